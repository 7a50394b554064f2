//! What happens to a world from outside: who lives in it, and which faults strike when. All of it follows from a seed.

use std::fmt;
use std::time::Duration;

use super::chance::Seed;
use crate::election::options::{Options, RenewError, Strict, Timing};
use crate::election::store::Class;

/// Virtual nanoseconds since the world began.
pub(super) type Nanos = u64;

pub(super) const MS: Nanos = 1_000_000;

/// What a world is made of.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) climate: Climate,
    pub(super) instances: Vec<Settings>,
    /// Whether an instance of the Go version is in the group.
    pub(super) go: bool,
    /// How many replicas the primary has.
    pub(super) replicas: usize,
    pub(super) faults: Vec<Fault>,
    /// When the last fault is over.
    pub(super) quiet_at: Nanos,
}

/// Which kinds of faults there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Climate {
    /// Crashes only, on a good network: a takeover comes at the lease's edge.
    Calm,
    /// Everything that the promises cover.
    Within,
    /// Also what no client can promise anything about: lost data, deleted keys, a jumping wall clock.
    Outside,
    /// Everything that the promises cover, and data that is lost in failovers, restarts and by deletion: under strict
    /// no two lead at once.
    Failover,
}

impl Climate {
    pub(super) const ALL: [Self; 4] = [Self::Calm, Self::Within, Self::Outside, Self::Failover];
}

/// One instance.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) timing: Timing,
    /// How much faster than the server's its clock runs, in millionths.
    pub(super) ppm: i64,
    /// What its clock says when the world begins.
    pub(super) origin: Nanos,
    pub(super) works: bool,
}

/// Something that goes wrong, and for how long.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) at: Nanos,
    pub(super) lasts: Nanos,
    pub(super) kind: Kind,
}

/// What goes wrong; the number is the instance's.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    /// The process stands still, or the whole machine: SIGSTOP, a suspend.
    Pause(usize),
    /// Only the driver's thread gets no processor.
    Stall(usize),
    /// The process is killed; another one comes at the end.
    Crash(usize),
    /// It is stopped cleanly; another one comes at the end.
    Stop(usize),
    /// It steps down, and does not contend until the end.
    StepDown(usize),
    /// Its lead work returns by itself.
    WorkEnds(usize),
    /// Requests and replies are lost, late or doubled.
    Weather(usize, Weather),
    /// What it sends arrives after the end, if at all.
    HoleOut(usize),
    /// What is sent to it arrives after the end, if at all.
    HoleIn(usize),
    /// Its connection is reset.
    Reset(usize),
    /// It hears no wake.
    Deaf(usize),
    /// A wake comes that nobody sent.
    ForgedWake(usize),
    /// The server stands still, and goes on with what has arrived.
    Freeze,
    /// The server is gone, and comes back with its data.
    Restart,
    /// The server refuses everything.
    Refuse(Class),
    /// The Go instance is killed; another one comes at the end.
    GoCrash,
    /// The Go instance is stopped cleanly; another one comes at the end.
    GoStop,
    /// The server is gone, and comes back empty.
    LoseData,
    /// The lease key is deleted.
    DeleteLease,
    /// The term key is deleted.
    DeleteTerm,
    /// Somebody else writes the lease key, with an expiry at the end.
    Overwrite,
    /// The server's wall clock jumps by so many nanoseconds.
    Jump(i64),
    /// One of the replicas takes the primary's place, and meanwhile these are cut off together with the old one.
    Failover { to: usize, old: Old, cut: Option<Sides> },
    /// These are cut off from all others.
    Split(Sides),
    /// What this server replicates comes so much later.
    Slow(usize, Nanos),
    /// A replica is emptied, and copies its primary anew at the end.
    Empty(usize),
    /// The primary is emptied.
    Flush,
    /// The primary is gone, and comes back with what it had so many changes ago.
    Rewind(usize),
    /// The instance takes this server for the primary.
    Stray(usize, usize),
}

/// What becomes of the primary that is replaced. At the end it is a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Old {
    /// It was killed.
    Gone,
    /// It was killed, and comes back before that, with what it had so many changes ago, as a primary.
    Back(usize),
    /// It is not told.
    Alive,
}

/// Who is on the one side of a cut: one bit for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sides {
    pub(super) nodes: u8,
    pub(super) instances: u8,
}

impl Sides {
    pub(super) fn has_node(&self, node: usize) -> bool {
        self.nodes >> node & 1 == 1
    }

    pub(super) fn has_instance(&self, who: usize) -> bool {
        self.instances >> who & 1 == 1
    }
}

/// How bad an instance's network is, in parts of a thousand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Weather {
    pub(super) lost: u64,
    pub(super) late: u64,
    pub(super) doubled: u64,
}

impl Plan {
    /// The plan of this seed.
    pub(super) fn draw(seed: u64, climate: Climate) -> Self {
        let mut seeds = Seed::new(seed);
        let dice = &mut seeds;
        let ttl = *dice.pick(&[100, 300, 1_000, 1_000, 5_000, 5_000, 30_000]);
        let fails_over = climate == Climate::Failover;
        let replicas = if fails_over { *dice.pick(&[0, 1, 1, 2, 2, 2, 3, 3]) } else { 0 };
        let most = ttl * if fails_over { *dice.pick(&[1, 1, 3]) } else { 1 };
        let is_strict = fails_over && dice.below(8) > 0;
        let strict =
            is_strict.then(|| Strict::replicas(replicas as u32).longest_ttl(Duration::from_millis(most)));
        let timing = draw_timing(dice, ttl, strict);
        let count = 1 + dice.below(4) as usize;
        let instances: Vec<_> = (0..count)
            .map(|_| Settings {
                // Most groups have one timing; where they differ, nothing may depend on it.
                timing: match dice.below(if fails_over { 2 } else { 4 }) {
                    0 => {
                        let ttl = *dice.pick(&[ttl, most]);
                        draw_timing(dice, ttl, strict)
                    }
                    _ => timing,
                },
                ppm: dice.below(20_001) as i64 - 10_000,
                origin: dice.below(1 << 50),
                works: dice.below(2) == 0,
            })
            .collect();
        let go = !matches!(climate, Climate::Calm | Climate::Failover) && dice.below(4) == 0;
        let span = (0..instances.len()).map(|who| longest(&instances[who].timing)).max().unwrap_or(0);
        let mut faults = Vec::new();
        let (mut at, strikes) = (0, 10 + dice.below(50));
        for _ in 0..strikes {
            at += match climate {
                Climate::Calm => span + dice.below(2 * span),
                // Often several at once.
                _ => dice.below(span) * dice.below(2),
            };
            let fault = match climate {
                Climate::Failover if dice.below(2) == 0 => draw_loss(dice, &instances, replicas),
                _ => draw_fault(dice, climate, &instances, go),
            };
            let (kind, lasts) = fault;
            faults.push(Fault { at, lasts, kind });
        }
        Self { seed, climate, instances, go, replicas, quiet_at: 0, faults }.settled()
    }

    /// The same without this fault.
    pub(super) fn without(&self, fault: usize) -> Self {
        let mut plan = self.clone();
        plan.faults.remove(fault);
        plan.settled()
    }

    /// The same, with this fault of half its length.
    pub(super) fn halved(&self, fault: usize) -> Self {
        let mut plan = self.clone();
        plan.faults[fault].lasts /= 2;
        plan.settled()
    }

    /// The same, with this fault and all later ones sooner: half of the time since the one before is left out.
    pub(super) fn sooner(&self, fault: usize) -> Self {
        let mut plan = self.clone();
        let before = fault.checked_sub(1).map_or(0, |before| plan.faults[before].at);
        let by = (plan.faults[fault].at - before) / 2;
        plan.faults[fault..].iter_mut().for_each(|fault| fault.at -= by);
        plan.settled()
    }

    fn settled(mut self) -> Self {
        let last = self.faults.iter().map(|fault| fault.at + fault.lasts).max().unwrap_or(0);
        // Each time that the server's clock is set back makes a lease that much longer.
        let back = self.faults.iter().map(|fault| match fault.kind {
            Kind::Jump(by) => by.min(0).unsigned_abs(),
            _ => 0,
        });
        self.quiet_at = last + back.sum::<Nanos>();
        self
    }

    /// How long after the last fault somebody leads at the latest: ttl + wait, a call and the threads' lags; under strict
    /// also one hold, after another that began before and came to nothing.
    pub(super) fn patience(&self) -> Nanos {
        let longest = |of: fn(&Timing) -> Duration| self.instances.iter().map(|it| of(&it.timing)).max();
        let (ttl, wait) = (longest(|timing| timing.ttl), longest(|timing| timing.wait));
        let jitter = longest(|timing| timing.jitter);
        let hold = longest(|timing| timing.strict.map_or(Duration::ZERO, |strict| strict.longest));
        let (ttl, hold) = (ttl.unwrap_or_default(), hold.unwrap_or_default());
        let sum = ttl.max(hold) + hold + wait.unwrap_or_default() + 3 * jitter.unwrap_or_default();
        // Clocks that are slow by a hundredth wait that much longer.
        nanos(sum) / 100 * 101 + 50 * MS
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, climate, go, replicas, .. } = self;
        writeln!(f, "seed {seed}, {climate:?}, go: {go}, replicas: {replicas}")?;
        for (who, it) in self.instances.iter().enumerate() {
            writeln!(f, "  instance {who}: {:?}, {} ppm, works: {}", it.timing, it.ppm, it.works)?;
        }
        for Fault { at, lasts, kind } in &self.faults {
            writeln!(f, "  {:>9.3} ms for {:.3} ms: {kind:?}", millis(*at), millis(*lasts))?;
        }
        write!(f, "  quiet at {:.3} ms", millis(self.quiet_at))
    }
}

/// For printing.
pub(super) fn millis(nanos: Nanos) -> f64 {
    nanos as f64 / MS as f64
}

pub(super) fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).expect("a world does not last for centuries")
}

/// The time in which everything that follows from one fault can happen.
fn longest(timing: &Timing) -> Nanos {
    nanos(timing.ttl.max(timing.wait.min(timing.ttl * 2)))
}

fn draw_timing(dice: &mut Seed, ttl_ms: u64, strict: Option<Strict>) -> Timing {
    let ttl = Duration::from_millis(ttl_ms);
    let part = |dice: &mut Seed, least: u32, most: u32| {
        ttl * (least + dice.below(u64::from(most - least) + 1) as u32) / 1000
    };
    let (stop_margin, jitter) = match dice.below(3) {
        0 => (None, ttl / 1000),
        1 => (Some(ttl / 50), part(dice, 0, 230)),
        _ => {
            let margin = part(dice, 20, 250);
            (Some(margin), (ttl / 4 - margin).mul_f64(dice.share()))
        }
    };
    let options = Options {
        strict,
        ttl,
        wait: *dice.pick(&[ttl / 5, ttl * 6 / 5, ttl * 6 / 5, ttl * 3]),
        jitter,
        stop_margin,
        renew_error: *dice.pick(&[RenewError::Demote, RenewError::Retry]),
        lead_grace: *dice.pick(&[None, Some(ttl / 3), Some(Duration::ZERO)]),
    };
    options.check().expect("the draw keeps to the rules")
}

/// Short ones, and such as outlast the lease.
fn draw_length(dice: &mut Seed, ttl: Nanos) -> Nanos {
    match dice.below(3) {
        0 => dice.below(ttl / 4),
        1 => dice.below(ttl),
        _ => dice.below(3 * ttl),
    }
}

/// What happens to the servers and to what they hold.
fn draw_loss(dice: &mut Seed, instances: &[Settings], replicas: usize) -> (Kind, Nanos) {
    let who = dice.below(instances.len() as u64) as usize;
    let ttl = nanos(instances[who].timing.ttl);
    let lasts = draw_length(dice, ttl);
    let (node, steps) = (dice.below(replicas as u64 + 1) as usize, dice.below(8) as usize);
    let sides = Sides { nodes: dice.below(1 << (replicas + 1)) as u8, instances: dice.below(16) as u8 };
    match dice.below(16) {
        0..6 => {
            let old = *dice.pick(&[Old::Gone, Old::Back(steps), Old::Alive, Old::Alive]);
            let cut = (dice.below(4) > 0).then_some(sides);
            (Kind::Failover { to: node, old, cut }, lasts)
        }
        6 => (Kind::Split(sides), lasts),
        7 | 8 => {
            let most = *dice.pick(&[ttl / 10, ttl]);
            (Kind::Slow(node, dice.below(most)), lasts)
        }
        9 => (Kind::Empty(node), lasts),
        10 => (Kind::Flush, 0),
        11 => (Kind::LoseData, lasts),
        12 => (Kind::Rewind(steps), lasts),
        13 => (Kind::DeleteLease, 0),
        14 => (Kind::DeleteTerm, 0),
        _ => (Kind::Stray(who, node), lasts),
    }
}

fn draw_fault(dice: &mut Seed, climate: Climate, instances: &[Settings], go: bool) -> (Kind, Nanos) {
    let who = dice.below(instances.len() as u64) as usize;
    let timing = &instances[who].timing;
    let ttl = nanos(timing.ttl);
    let lasts = draw_length(dice, ttl);
    // Nothing that is stopped or steps down is cut short by the fault's end.
    let out = nanos(timing.lead_grace + timing.call_limit * 2) + 20 * MS;
    if climate == Climate::Calm {
        return match dice.below(3) {
            0 => (Kind::Stop(who), lasts + out),
            _ => (Kind::Crash(who), lasts),
        };
    }
    let outside = climate == Climate::Outside && dice.below(4) == 0;
    if outside {
        return match dice.below(5) {
            0 => (Kind::LoseData, lasts),
            1 => (Kind::DeleteLease, 0),
            2 => (Kind::DeleteTerm, 0),
            3 => (Kind::Overwrite, lasts),
            _ => (Kind::Jump(dice.below(4 * ttl) as i64 - 2 * ttl as i64), 0),
        };
    }
    match dice.below(if go { 20 } else { 18 }) {
        0 | 1 => (Kind::Pause(who), lasts),
        2 => (Kind::Stall(who), lasts),
        3 | 4 => (Kind::Crash(who), lasts),
        5 => (Kind::Stop(who), lasts + out),
        6 => (Kind::StepDown(who), lasts),
        7 => (Kind::WorkEnds(who), nanos(timing.wait)),
        8 | 9 => {
            let weather = Weather { lost: dice.below(500), late: dice.below(500), doubled: dice.below(300) };
            (Kind::Weather(who, weather), lasts)
        }
        10 => (Kind::HoleOut(who), lasts),
        11 => (Kind::HoleIn(who), lasts),
        12 => (Kind::Reset(who), 0),
        13 => (Kind::Deaf(who), lasts),
        14 => (Kind::ForgedWake(who), 0),
        15 => (Kind::Freeze, lasts),
        16 => (Kind::Restart, lasts),
        17 => (Kind::Refuse(*dice.pick(&[Class::Passing, Class::WrongNode, Class::Configuration])), lasts),
        18 => (Kind::GoCrash, lasts),
        _ => (Kind::GoStop, lasts),
    }
}
