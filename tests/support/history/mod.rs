//! Judges what several `campaign` processes printed: did two ever lead at once, did tokens grow, do the lines
//! agree with each other, and when did nobody lead?
//!
//! It stands on nothing but `serde_json`, so that the program `check-history` can include it, too.

mod events;
mod files;
mod leaderless;
mod line;
mod proofs;
mod report;
mod tokens;

use std::collections::BTreeMap;

use serde_json::Value;

use self::events::{Term, Told};
use self::line::{Line, Reading};
use self::proofs::Gaps;

pub(crate) use self::events::Promotion;
pub(crate) use self::files::check;
pub(crate) use self::leaderless::{Cause, Fault, Leaderless, Place};
pub(crate) use self::proofs::{Overlap, Proven, overlaps};
pub(crate) use self::report::{Report, Summary};
pub(crate) use self::tokens::{Disorder, TokenFault};

/// A hole between readings that a sampler with a period of at most 50 ms reports as a `gap`.
const HOLE_US: u64 = 100_000;

/// How far `ended_us` may be from what a reading made at the same moment says. It is taken from another clock,
/// and brought to the wall clock when it is told, by which time that may have been slewed by 1 in 2000.
fn slack_us(ended_us: u64, told_us: u64) -> u64 {
    1_000 + told_us.saturating_sub(ended_us) / 1_000
}

/// What one process said and what follows from it.
#[derive(Debug, Clone)]
pub(crate) struct History {
    name: String,
    proven: Vec<Proven>,
    promotions: Vec<Promotion>,
    terms: BTreeMap<u64, Term>,
    gaps: Gaps,
    faults: Vec<String>,
    malformed: Vec<String>,
    /// The times of the first and of the last thing told or read.
    span: Option<(u64, u64)>,
    lines: usize,
    samples: usize,
    stopped: bool,
    /// What the last reading said, and when it was made.
    last_read: Option<(u64, Option<u64>)>,
}

impl History {
    /// Reads the lines of one process, in the order in which it printed them.
    pub(crate) fn new<'a>(name: &str, lines: impl IntoIterator<Item = &'a Value>) -> Self {
        let mut log = Log::new(name);
        for line in lines {
            log.push(line);
        }
        log.judge()
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The times during which readings prove that the process led, in order.
    pub(crate) fn proven(&self) -> &[Proven] {
        &self.proven
    }

    /// The process's promotions, as printed.
    pub(crate) fn promotions(&self) -> &[Promotion] {
        &self.promotions
    }

    /// What is wrong with this process's lines alone: those that contradict others, then those that are none.
    pub(crate) fn faults(&self) -> Vec<&str> {
        self.faults.iter().chain(&self.malformed).map(String::as_str).collect()
    }
}

/// The lines of one process as they come, in a form that is small enough for hours of them.
#[derive(Debug)]
struct Log {
    name: String,
    lines: usize,
    told: Vec<(usize, Told)>,
    readings: Vec<Reading>,
    faults: Vec<String>,
    malformed: Vec<String>,
    stopped: bool,
}

impl Log {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            lines: 0,
            told: Vec::new(),
            readings: Vec::new(),
            faults: Vec::new(),
            malformed: Vec::new(),
            stopped: false,
        }
    }

    fn push(&mut self, line: &Value) {
        let stopped = self.stopped;
        match Line::parse(line) {
            Err(fault) => return self.push_malformed(fault, &line.to_string()),
            Ok(Line::Read(reading)) => self.readings.push(reading),
            Ok(Line::Told(told)) => {
                self.stopped |= told.is_stopped();
                self.told.push((self.lines + 1, told));
            }
        }
        self.lines += 1;
        if stopped {
            self.faults.push(format!("line {}: a line after stopped: {line}", self.lines));
        }
    }

    fn push_malformed(&mut self, fault: &str, text: &str) {
        self.lines += 1;
        self.malformed.push(format!("line {}: {fault}: {text}", self.lines));
    }

    /// All lines have been read.
    fn judge(self) -> History {
        let Self { name, lines, told, mut readings, mut faults, malformed, stopped } = self;
        let times = || told.iter().map(|(_, told)| told.at_us).chain(readings.iter().map(Reading::at_us));
        let span = times().min().zip(times().max());
        // A gap begins after the reading it names, which may have been printed.
        readings.sort_by_key(|reading| (reading.time(), matches!(reading, Reading::Gap { .. })));
        let gaps = Gaps::new(&readings);
        let proven = proofs::prove(&readings);
        let (promotions, mut terms) = events::follow(&told, &gaps, &mut faults);
        events::compare(&mut terms, &proven, &readings, &told, &mut faults);
        let samples = || readings.iter().filter_map(Reading::sample);
        History {
            name,
            last_read: samples().next_back().map(|(at_us, _, token)| (at_us, token)),
            samples: samples().count(),
            proven,
            promotions,
            terms,
            gaps,
            faults,
            malformed,
            span,
            lines,
            stopped,
        }
    }
}

/// Everything that is wrong: overlaps, tokens that do not increase, and lines that contradict each other.
pub(crate) fn violations(histories: &[History]) -> Vec<String> {
    Report::new(histories, &[]).violations()
}

/// Fails the test unless the histories are those of a correct election.
#[track_caller]
pub(crate) fn assert_one_leader_at_a_time(histories: &[History]) {
    let found = violations(histories);
    assert!(found.is_empty(), "{}", found.join("\n"));
}
