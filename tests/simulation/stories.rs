//! Worlds in which everything happens at the worst moment: what a search finds once in thousands of worlds, or never.

use std::time::Duration;

use super::chance::{Chance, Fate};
use super::plan::{Climate, Fault, Kind, MS, Nanos, Old, Plan, Settings, Sides, Weather};
use super::world::run;
use crate::election::options::{Options, RenewError, Strict};

const TTL: Nanos = 1000 * MS;
/// How long everything takes that nothing is said of.
const STEP: Nanos = MS / 10;

/// What the chances of a story are.
struct Told {
    /// How long after the fault with this number begins its part that this one plays: those of
    /// [`Chance::within`]. What is not told comes at its end.
    within: Vec<(usize, usize, Nanos)>,
    /// How long lead work takes to return.
    reaction: Nanos,
}

/// The moment of promotion, and the instances, among those that a failover tells.
const PROMOTION: usize = 100;
const INSTANCES: usize = 110;

impl Chance for Told {
    fn dice(&mut self, _: usize, _: u64) -> f64 {
        0.5
    }

    fn lag(&mut self, who: usize, _: u64) -> Nanos {
        STEP + who as Nanos * STEP / 10
    }

    fn slip(&mut self, _: usize, _: u64) -> Nanos {
        0
    }

    fn fate(&mut self, _: usize, _: u64, _: Weather, _: Nanos) -> Fate {
        Fate { request: Some(STEP), reply: Some(STEP), copy: None }
    }

    fn survives(&mut self, _: usize, _: u64) -> bool {
        false
    }

    fn replication(&mut self, _: usize, _: u64) -> Nanos {
        STEP
    }

    fn within(&mut self, fault: usize, whom: usize, time: Nanos) -> Nanos {
        let told = self.within.iter().find(|(of, it, _)| (*of, *it) == (fault, whom));
        told.map_or(time, |(_, _, after)| *after)
    }

    fn reaction(&mut self, _: usize, _: u64, _: Nanos) -> Nanos {
        self.reaction
    }
}

fn fault(at: Nanos, lasts: Nanos, kind: Kind) -> Fault {
    Fault { at: at * MS, lasts: lasts * MS, kind }
}

/// Three instances with a primary, number 0, and two replicas. Instance 0 leads from 1001 ms on, and renews its lease
/// at 1501 ms and 2001 ms, if nothing keeps it from that.
fn world(faults: Vec<Fault>) -> Plan {
    let options = Options {
        ttl: Duration::from_nanos(TTL),
        wait: Duration::from_nanos(TTL / 5 * 6),
        jitter: Duration::ZERO,
        renew_error: RenewError::Retry,
        strict: Some(Strict::replicas(2)),
        ..Options::default()
    };
    let timing = options.check().expect("it keeps to the rules");
    let instances = vec![Settings { timing, ppm: 0, origin: 1 << 40, works: true }; 3];
    let quiet_at = 8 * TTL;
    Plan { seed: 0, climate: Climate::Failover, instances, go: false, replicas: 2, faults, quiet_at }
}

#[track_caller]
fn nobody_leads_beside_another(faults: Vec<Fault>, within: Vec<(usize, usize, Nanos)>, reaction: Nanos) {
    let within = within.into_iter().map(|(fault, whom, after)| (fault, whom, after * MS)).collect();
    let verdict = run(&world(faults), &mut Told { within, reaction: reaction * MS }, true);
    assert_eq!(verdict.broken, None, "\n{}", verdict.trace.join("\n"));
    assert!(verdict.figures.promotions > 1, "nobody has taken over: {}", verdict.figures);
}

/// The first leader is cut off from its primary, finds the new one right before its lease ends there, and renews
/// it beside its lead work, though it leads no more. Meanwhile another has won on the old primary, and the replica
/// that acknowledged it goes over to the new one. What the first one releases must not be won at once.
#[test]
fn a_renewal_after_the_end_of_a_term_does_not_vouch_for_a_data_set() {
    let faults = vec![
        fault(1600, 880, Kind::Split(Sides { nodes: 0, instances: 1 })),
        fault(1600, 3000, Kind::Failover { to: 0, old: Old::Alive, cut: None }),
    ];
    let within = vec![(1, PROMOTION, 860), (1, 2, 50), (1, INSTANCES, 25), (1, INSTANCES + 2, 10)];
    nobody_leads_beside_another(faults, within, 700);
}

/// On an emptied replica that was promoted the lease is parked. Before a replica comes that acknowledges this, it has
/// acknowledged another renewal on the old primary, which lasts longer than what was parked.
#[test]
fn a_hold_counts_from_its_acknowledgement() {
    let faults = vec![
        fault(1550, 3000, Kind::Empty(1)),
        fault(1600, 3000, Kind::Failover { to: 0, old: Old::Alive, cut: None }),
    ];
    let within = vec![(1, PROMOTION, 300), (1, 2, 130), (1, INSTANCES + 2, 30)];
    nobody_leads_beside_another(faults, within, 1);
}

/// All data is lost, and the hold that follows is deleted alone, while the leader has not noticed anything.
#[test]
fn a_deleted_hold_is_waited_out() {
    let faults = vec![
        fault(2100, 0, Kind::Flush),
        fault(2110, 10, Kind::Deaf(1)),
        fault(2300, 0, Kind::DeleteLease),
        fault(2310, 10, Kind::Deaf(2)),
    ];
    nobody_leads_beside_another(faults, Vec::new(), 1);
}
