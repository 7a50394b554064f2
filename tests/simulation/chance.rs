//! Where a world's chances come from: drawn from a seed, or chosen one after the other by a search.

use std::fmt::Write;

use super::plan::{Nanos, Weather};

/// SplitMix64: small, and a world is the same everywhere.
#[derive(Clone, Debug)]
pub(super) struct Seed(u64);

impl Seed {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed(self.0)
    }

    /// Uniform in 0..end, or 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        scaled(self.next(), end)
    }

    /// Uniform in 0..1.
    pub(super) fn share(&mut self) -> f64 {
        share(self.next())
    }

    pub(super) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}

fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

fn scaled(bits: u64, end: u64) -> u64 {
    ((u128::from(bits) * u128::from(end)) >> 64) as u64
}

fn share(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// What becomes of one request: how long each way takes, none where it is lost on that way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fate {
    pub(super) request: Option<Nanos>,
    pub(super) reply: Option<Nanos>,
    /// It arrives once more, so long after it was sent.
    pub(super) copy: Option<Nanos>,
}

/// Where a world's chances come from.
pub(super) trait Chance {
    /// What is asked from now on is asked at this time.
    fn at(&mut self, now: Nanos) {
        _ = now;
    }

    /// The random number of the moment in which an instance takes an input.
    fn dice(&mut self, who: usize, turn: u64) -> f64;

    /// How late a thread of an instance gets a processor.
    fn lag(&mut self, who: usize, turn: u64) -> Nanos;

    /// How long after the machine's decision it takes effect for readers.
    fn slip(&mut self, who: usize, turn: u64) -> Nanos;

    /// What becomes of an instance's request.
    fn fate(&mut self, who: usize, op: u64, weather: Weather, ttl: Nanos) -> Fate;

    /// Whether something that was sent into a black hole arrives after it.
    fn survives(&mut self, who: usize, op: u64) -> bool;

    /// How long a change, or its acknowledgement, takes on its way between two servers.
    fn replication(&mut self, node: usize, number: u64) -> Nanos;

    /// When within a fault's time what belongs to it happens to this one.
    fn within(&mut self, fault: usize, whom: usize, time: Nanos) -> Nanos;

    /// How long lead work takes to return once its term has ended.
    fn reaction(&mut self, who: usize, term: u64, grace: Nanos) -> Nanos;

    /// Something that happens to the instance after this turn, beside what was planned.
    fn mishap(&mut self, who: usize) -> Option<Mishap> {
        _ = who;
        None
    }

    /// Whether it is worth going on from this state, which is told as text that is equal for equal states.
    fn goes_on(&mut self, state: &dyn Fn(&mut dyn Write)) -> bool {
        _ = state;
        true
    }
}

/// See [`Chance::mishap`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mishap {
    /// The process stands still for so long.
    Pause(Nanos),
    /// It is killed, and another one comes after so long.
    Crash(Nanos),
}

/// Chances that follow from a seed. Each depends only on what it is for, so a world with one fault less
/// keeps most of the others' circumstances.
#[derive(Debug)]
pub(super) struct Random {
    seed: u64,
}

/// What a number is drawn for.
#[derive(Clone, Copy)]
enum What {
    Dice = 1,
    Lag,
    Slip,
    Fate,
    Survives,
    Reaction,
    Replication,
    Within,
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed }
    }

    fn draw(&self, what: What, who: usize, number: u64) -> Seed {
        let key = (what as u64) << 56 | (who as u64) << 48 | number;
        Seed::new(mixed(self.seed ^ mixed(key)))
    }
}

/// How long a packet takes at least.
const QUICK: Nanos = 50_000;

impl Chance for Random {
    fn dice(&mut self, who: usize, turn: u64) -> f64 {
        let mut dice = self.draw(What::Dice, who, turn);
        // The ends of the range more often than they would come by themselves.
        match dice.below(8) {
            0 => 0.0,
            1 => 1.0 - f64::EPSILON,
            _ => dice.share(),
        }
    }

    fn lag(&mut self, who: usize, turn: u64) -> Nanos {
        let mut dice = self.draw(What::Lag, who, turn);
        match dice.below(64) {
            0 => dice.below(3_000_000),
            1..8 => dice.below(500_000),
            _ => 10_000 + dice.below(50_000),
        }
    }

    fn slip(&mut self, who: usize, turn: u64) -> Nanos {
        let mut dice = self.draw(What::Slip, who, turn);
        match dice.below(64) {
            0 => dice.below(50_000_000),
            _ => dice.below(5_000),
        }
    }

    fn fate(&mut self, who: usize, op: u64, weather: Weather, ttl: Nanos) -> Fate {
        let mut dice = self.draw(What::Fate, who, op);
        let mut way = || {
            let quick = QUICK + dice.below(500_000);
            match dice.below(1000) {
                it if it < weather.lost => None,
                it if it < weather.lost + weather.late => {
                    let most = *dice.pick(&[ttl / 10, ttl, 3 * ttl]);
                    Some(quick + dice.below(most))
                }
                _ => Some(quick),
            }
        };
        let (request, reply) = (way(), way());
        let copy = (dice.below(1000) < weather.doubled).then(|| request.unwrap_or(0) + dice.below(3 * ttl));
        Fate { request, reply, copy }
    }

    fn survives(&mut self, who: usize, op: u64) -> bool {
        self.draw(What::Survives, who, op).below(2) == 0
    }

    fn replication(&mut self, node: usize, number: u64) -> Nanos {
        let mut dice = self.draw(What::Replication, node, number);
        match dice.below(64) {
            0 => dice.below(20_000_000),
            1..8 => dice.below(3_000_000),
            _ => QUICK + dice.below(500_000),
        }
    }

    fn within(&mut self, fault: usize, whom: usize, time: Nanos) -> Nanos {
        let mut dice = self.draw(What::Within, whom, fault as u64);
        match dice.below(4) {
            0 => dice.below(time.min(20_000_000)),
            _ => dice.below(time),
        }
    }

    fn reaction(&mut self, who: usize, term: u64, grace: Nanos) -> Nanos {
        let mut dice = self.draw(What::Reaction, who, term);
        match dice.below(8) {
            0 => grace + dice.below(3 * grace + 300_000_000),
            1 => grace,
            _ => dice.below(grace),
        }
    }
}
