//! Small worlds, and in them every choice of loss, delay, pause and crash, up to so many on one way.
//!
//! A world is run again for each way through its choices. A state that another way has reached already is not gone
//! on from.

use std::collections::HashSet;
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

use super::chance::{Chance, Fate, Mishap};
use super::judge::Figures;
use super::plan::{Climate, Fault, Kind, MS, Nanos, Plan, Settings, Weather};
use super::world::run;
use crate::election::options::{Options, RenewError};

/// What a search went through.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Explored {
    pub(super) states: u64,
    pub(super) ways: u64,
    pub(super) figures: Figures,
}

/// Goes every way through a small world that has at most so many choices off the straight one.
pub(super) fn explore(plan: &Plan, most: u32) -> Result<Explored, String> {
    let mut chosen = Chosen { until: plan.quiet_at / 3 * 2, most, ..Chosen::default() };
    let mut explored = Explored::default();
    loop {
        chosen.restart();
        let verdict = run(plan, &mut chosen, false);
        explored.ways += 1;
        explored.figures.add(&verdict.figures);
        if let Some(broken) = verdict.broken {
            chosen.restart();
            let trace = run(plan, &mut chosen, true).trace.join("\n");
            return Err(format!("{broken}\n{plan}\n{trace}"));
        }
        if !chosen.advance() {
            explored.states = chosen.seen.len() as u64;
            return Ok(explored);
        }
    }
}

impl Explored {
    pub(super) fn add(&mut self, other: &Self) {
        self.states += other.states;
        self.ways += other.ways;
        self.figures.add(&other.figures);
    }
}

impl fmt::Display for Explored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} states on {} ways, {} leases", self.states, self.ways, self.figures.leases)
    }
}

/// ttl, of which everything else follows.
const TTL: Nanos = 1000 * MS;
/// When there are no choices any more, and everything that was chosen is over.
const HORIZON: Nanos = 3 * TTL;

/// Two instances: with clocks that are apart as far as may be, both policies, with lead work and without, and what
/// happens to them anyway.
pub(super) fn small_worlds() -> Vec<(String, Plan)> {
    let stories = [
        None,
        Some(Kind::Stop(0)),
        Some(Kind::StepDown(0)),
        Some(Kind::WorkEnds(0)),
        Some(Kind::Freeze),
        Some(Kind::Restart),
        Some(Kind::Reset(0)),
        Some(Kind::Deaf(1)),
    ];
    let mut worlds = Vec::new();
    for renew_error in [RenewError::Demote, RenewError::Retry] {
        for (ppm, works) in [([-10_000, 10_000], true), ([10_000, -10_000], false)] {
            for story in &stories {
                let name = format!("{renew_error:?}, clocks {ppm:?}, works: {works}, {story:?}");
                worlds.push((name, small_world(renew_error, ppm, works, story.clone())));
            }
        }
    }
    worlds
}

fn small_world(renew_error: RenewError, ppm: [i64; 2], works: bool, story: Option<Kind>) -> Plan {
    let options = Options {
        ttl: Duration::from_nanos(TTL),
        wait: Duration::from_nanos(TTL / 5 * 6),
        jitter: Duration::ZERO,
        renew_error,
        ..Options::default()
    };
    let timing = options.check().expect("it keeps to the rules");
    let instances = ppm.map(|ppm| Settings { timing, ppm, origin: 1 << 40, works }).to_vec();
    // Right after the first term has begun, and for longer than it lasts without renewal.
    let faults = story.map(|kind| Fault { at: TTL / 10, lasts: TTL * 12 / 10, kind }).into_iter().collect();
    Plan { seed: 0, climate: Climate::Within, instances, go: false, replicas: 0, faults, quiet_at: HORIZON }
}

/// Chances as they are chosen one after the other.
#[derive(Default)]
struct Chosen {
    /// The choices of this way, each with how many there were.
    way: Vec<(u8, u8)>,
    depth: usize,
    /// How many choices of this way are off the straight one.
    off: u32,
    most: u32,
    /// From then on there are no choices; the longest of them is over in time.
    until: Nanos,
    now: Nanos,
    /// Whether something was chosen since the state was last looked at.
    fresh: bool,
    seen: HashSet<u64>,
}

impl Chosen {
    fn restart(&mut self) {
        (self.depth, self.off, self.now, self.fresh) = (0, 0, 0, false);
    }

    /// Goes on to the next way; false after the last one.
    fn advance(&mut self) -> bool {
        self.way.truncate(self.depth);
        while let Some((choice, of)) = self.way.pop() {
            if choice + 1 < of {
                self.way.push((choice + 1, of));
                return true;
            }
        }
        false
    }

    /// One of `of`; the first is the straight one.
    fn choose(&mut self, of: u8) -> u8 {
        if self.now >= self.until || self.off >= self.most {
            return 0;
        }
        if self.depth == self.way.len() {
            self.way.push((0, of));
            self.fresh = true;
        } else if self.depth + 1 == self.way.len() {
            // The last choice of a way is a new one, too.
            self.fresh = true;
        }
        let (choice, _) = self.way[self.depth];
        self.depth += 1;
        self.off += u32::from(choice > 0);
        choice
    }
}

/// How long everything takes that goes straight.
const STEP: Nanos = MS / 10;

impl Chance for Chosen {
    fn at(&mut self, now: Nanos) {
        self.now = now;
    }

    fn dice(&mut self, _: usize, _: u64) -> f64 {
        0.5
    }

    fn lag(&mut self, who: usize, _: u64) -> Nanos {
        STEP + who as Nanos * STEP / 10
    }

    fn slip(&mut self, _: usize, _: u64) -> Nanos {
        // Longer than any deadline of a small world is ahead.
        [0, 10_000 * MS][usize::from(self.choose(2))]
    }

    fn fate(&mut self, _: usize, _: u64, _: Weather, ttl: Nanos) -> Fate {
        let straight = Fate { request: Some(STEP), reply: Some(STEP), copy: None };
        match self.choose(7) {
            0 => straight,
            1 => Fate { request: None, ..straight },
            2 => Fate { reply: None, ..straight },
            3 => Fate { request: Some(ttl * 3 / 10), ..straight },
            4 => Fate { reply: Some(ttl * 4 / 10), ..straight },
            // After the instance has given up, and perhaps asked for something else.
            5 => Fate { request: Some(ttl * 11 / 10), ..straight },
            _ => Fate { copy: Some(ttl * 7 / 10), ..straight },
        }
    }

    fn survives(&mut self, _: usize, _: u64) -> bool {
        self.choose(2) == 0
    }

    fn replication(&mut self, node: usize, _: u64) -> Nanos {
        STEP + node as Nanos * STEP / 10
    }

    fn within(&mut self, _: usize, whom: usize, time: Nanos) -> Nanos {
        time / 10 * (1 + whom as Nanos)
    }

    fn reaction(&mut self, _: usize, _: u64, grace: Nanos) -> Nanos {
        [grace / 2, grace * 3][usize::from(self.choose(2))]
    }

    fn mishap(&mut self, _: usize) -> Option<Mishap> {
        match self.choose(4) {
            0 => None,
            1 => Some(Mishap::Pause(self.until / 5)),
            2 => Some(Mishap::Pause(self.until / 2)),
            _ => Some(Mishap::Crash(self.until / 10)),
        }
    }

    fn goes_on(&mut self, state: &dyn Fn(&mut dyn Write)) -> bool {
        // What comes without a choice follows from the state before.
        if !std::mem::take(&mut self.fresh) || self.depth < self.way.len() {
            return true;
        }
        let mut hash = Hash(DefaultHasher::new());
        state(&mut hash);
        hash.0.write_u32(self.off);
        self.seen.insert(hash.0.finish())
    }
}

/// Takes text, and keeps its hash.
struct Hash(DefaultHasher);

impl Write for Hash {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}
