//! Worlds in which everything happens at the worst moment: what a search would find once in a hundred million.

use std::time::Duration;

use super::chance::{Chance, Fate};
use super::plan::{Climate, Fault, Kind, MS, Nanos, Old, Plan, Settings, Sides, Weather};
use super::world::run;
use crate::election::options::{Options, RenewError, Strict};

const TTL: Nanos = 1000 * MS;
/// How long everything takes that nothing is said of.
const STEP: Nanos = MS / 10;

/// When, within which fault, which node (or 110 and more: which instance) is told; and how long lead work takes to
/// return.
struct Told {
    within: Vec<(usize, usize, Nanos)>,
    reaction: Nanos,
}

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

/// Three instances on a primary with two replicas.
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
    let quiet_at = 10 * TTL;
    Plan { seed: 0, climate: Climate::Failover, instances, go: false, replicas: 2, faults, quiet_at }
}

/// The first leader is cut off from its primary, finds the new one right before its lease ends there, and renews
/// it beside its lead work, though it leads no more. Meanwhile another has won on the old primary, and the replica
/// that acknowledged it goes over to the new one.
#[test]
fn a_renewal_after_the_end_of_a_term_does_not_vouch_for_a_data_set() {
    let cut = Sides { nodes: 0, instances: 1 };
    let faults = vec![
        Fault { at: 1600 * MS, lasts: 880 * MS, kind: Kind::Split(cut) },
        Fault { at: 1600 * MS, lasts: 3000 * MS, kind: Kind::Failover { to: 0, old: Old::Alive, cut: None } },
    ];
    let within = vec![(1, 100, 860 * MS), (1, 2, 50 * MS), (1, 110, 25 * MS), (1, 112, 10 * MS)];
    let verdict = run(&world(faults), &mut Told { within, reaction: 700 * MS }, true);
    assert_eq!(verdict.broken, None, "\n{}", verdict.trace.join("\n"));
    assert!(verdict.figures.failovers == 1 && verdict.figures.promotions > 2, "{}", verdict.figures);
}
