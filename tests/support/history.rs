//! Judges what several `campaign` processes printed: did two ever lead at once?
//!
//! A reading that is true proves leadership at an instant between its `at_us` and its `done_us`. Between two
//! printed readings of one token every reading was the same, for a change is printed, and a term once ended
//! does not come back: so leadership is proven from the first one's `done_us` to the last one's `at_us`.
//! Where readings are missing (a `gap`) nothing is proven. All of it errs towards too short, so an overlap is real.

use std::fmt;

use serde_json::Value;

/// A hole between readings that a sampler with a period of at most 50 ms reports as a `gap`.
const HOLE_US: u64 = 100_000;

/// `ended_us` comes from another clock than the readings' times; they may differ by this much.
const CLOCKS_US: u64 = 1_000;

/// What one process said and what follows from it.
#[derive(Debug, Clone)]
pub(crate) struct History {
    name: String,
    proven: Vec<Proven>,
    promotions: Vec<Promotion>,
    faults: Vec<String>,
}

/// A time during which `is_leader()` was true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Proven {
    pub(crate) token: u64,
    pub(crate) from_us: u64,
    /// Of a lone reading this is the earlier of the two times: it proves some instant between them.
    pub(crate) to_us: u64,
}

/// When a process heard that it leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Promotion {
    pub(crate) token: u64,
    pub(crate) at_us: u64,
    /// The process stood still just before, so it may have heard of it long after it happened.
    late: bool,
}

/// Two processes that led at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Overlap {
    pub(crate) a: String,
    pub(crate) b: String,
    pub(crate) from_us: u64,
    pub(crate) to_us: u64,
    pub(crate) tokens: (u64, u64),
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { a, b, from_us, to_us, tokens } = self;
        let length = to_us - from_us;
        write!(
            f,
            "{a} (token {}) and {b} (token {}) both led for {length} µs from {from_us}",
            tokens.0, tokens.1
        )
    }
}

impl History {
    /// Reads the lines of one process, in the order in which it printed them.
    pub(crate) fn new<'a>(name: &str, lines: impl IntoIterator<Item = &'a Value>) -> Self {
        let lines: Vec<&Value> = lines.into_iter().collect();
        let mut faults = Vec::new();
        let mut readings = Vec::new();
        for line in &lines {
            match Reading::parse(line) {
                Ok(reading) => readings.extend(reading),
                Err(fault) => faults.push(format!("{fault}: {line}")),
            }
        }
        // A gap begins after the reading it names, which may have been printed.
        readings.sort_by_key(|reading| (reading.time(), matches!(reading, Reading::Gap { .. })));
        let promotions = events(&lines, &readings, &mut faults);
        Self { name: name.to_owned(), proven: prove(&readings), promotions, faults }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The times during which the process led, in order.
    pub(crate) fn proven(&self) -> &[Proven] {
        &self.proven
    }

    /// The process's promotions, as printed.
    pub(crate) fn promotions(&self) -> &[Promotion] {
        &self.promotions
    }

    /// What is wrong with this process's lines alone.
    pub(crate) fn faults(&self) -> &[String] {
        &self.faults
    }
}

/// The times at which two of the processes led at once.
pub(crate) fn overlaps(histories: &[History]) -> Vec<Overlap> {
    let mut found = Vec::new();
    for (index, a) in histories.iter().enumerate() {
        for b in &histories[index + 1..] {
            for one in &a.proven {
                for other in &b.proven {
                    if let Some((from_us, to_us)) = one.overlap(other) {
                        let (a, b) = (a.name.clone(), b.name.clone());
                        found.push(Overlap { a, b, from_us, to_us, tokens: (one.token, other.token) });
                    }
                }
            }
        }
    }
    found
}

/// Everything that is wrong: overlaps, tokens that do not increase, and lines that contradict each other.
pub(crate) fn violations(histories: &[History]) -> Vec<String> {
    let mut found: Vec<String> = overlaps(histories).iter().map(Overlap::to_string).collect();
    for history in histories {
        found.extend(history.faults.iter().map(|fault| format!("{}: {fault}", history.name)));
    }
    let promotions = histories.iter().flat_map(|history| &history.promotions);
    let mut tokens: Vec<u64> = promotions.clone().map(|promotion| promotion.token).collect();
    tokens.sort_unstable();
    for pair in tokens.windows(2).filter(|pair| pair[0] == pair[1]) {
        found.push(format!("token {} was given twice", pair[0]));
    }
    // Ordered by when they were heard, where the process was awake to hear them, and by what readings prove.
    let heard = promotions.filter(|promotion| !promotion.late).map(|it| (it.at_us, it.token)).collect();
    let seen =
        histories.iter().flat_map(|history| &history.proven).map(|it| (it.from_us, it.token)).collect();
    for (what, mut times) in [("was promoted", heard), ("was read", seen)] {
        let times: &mut Vec<(u64, u64)> = &mut times;
        times.sort_unstable();
        for pair in times.windows(2).filter(|pair| pair[0].1 > pair[1].1) {
            found.push(format!("token {} {what} after token {}, at {}", pair[1].1, pair[0].1, pair[1].0));
        }
    }
    found
}

/// Fails the test unless the histories are those of a correct election.
#[track_caller]
pub(crate) fn assert_one_leader_at_a_time(histories: &[History]) {
    let found = violations(histories);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

impl Proven {
    /// The times that two proofs have in common.
    fn overlap(&self, other: &Self) -> Option<(u64, u64)> {
        match (self.is_lone(), other.is_lone()) {
            (false, false) => {
                let (from, to) = (self.from_us.max(other.from_us), self.to_us.min(other.to_us));
                (from < to).then_some((from, to))
            }
            // The instant of a lone reading is not known, so all it can be has to lie within the other.
            (true, false) => (other.from_us < self.to_us && self.from_us < other.to_us)
                .then_some((self.to_us, self.from_us)),
            (false, true) => other.overlap(self),
            (true, true) => None,
        }
    }

    fn is_lone(&self) -> bool {
        self.to_us <= self.from_us
    }
}

/// A line about a reading, or about the lack of any.
#[derive(Debug, Clone, Copy)]
enum Reading {
    Sample { token: Option<u64>, at_us: u64, done_us: u64, prev_us: Option<u64> },
    Gap { leader: bool, prev_us: u64, at_us: u64 },
}

impl Reading {
    /// None for a line about something else.
    fn parse(line: &Value) -> Result<Option<Self>, &'static str> {
        let number = |name: &str| line[name].as_u64();
        let at_us = number("at_us").ok_or("a line without at_us")?;
        let leader = || line["leader"].as_bool().ok_or("a reading without leader");
        match line["event"].as_str().ok_or("a line without event")? {
            "sample" => {
                let (token, done_us) =
                    (number("token"), number("done_us").ok_or("a sample without done_us")?);
                if leader()? != token.is_some() {
                    return Err("a sample whose leader and token contradict");
                }
                if done_us < at_us {
                    return Err("a sample that was done before it began");
                }
                Ok(Some(Self::Sample { token, at_us, done_us, prev_us: number("prev_us") }))
            }
            "gap" => {
                let prev_us = number("prev_us").ok_or("a gap without prev_us")?;
                Ok(Some(Self::Gap { leader: leader()?, prev_us, at_us }))
            }
            _ => Ok(None),
        }
    }

    fn time(&self) -> u64 {
        match self {
            Self::Sample { at_us, .. } => *at_us,
            Self::Gap { prev_us, .. } => *prev_us,
        }
    }
}

/// Joins readings, in order of time, to proofs.
fn prove(readings: &[Reading]) -> Vec<Proven> {
    let mut proven = Vec::new();
    // The proof that the next reading may lengthen, and when the last printed reading was.
    let mut open: Option<Proven> = None;
    let mut last_us: Option<u64> = None;
    for reading in readings {
        match *reading {
            Reading::Sample { token, at_us, done_us, prev_us } => {
                // The reading before this one has the token of the last printed one, if none is missing between.
                let prev_us = prev_us.filter(|prev| at_us.saturating_sub(*prev) <= HOLE_US);
                let before = prev_us.filter(|prev| {
                    last_us.is_some_and(|last| last <= *prev && at_us.saturating_sub(last) <= 2 * HOLE_US)
                });
                if let (Some(proof), Some(before)) = (&mut open, before) {
                    proof.to_us = proof.to_us.max(before);
                }
                match &mut open {
                    Some(proof) if before.is_some() && token == Some(proof.token) => proof.to_us = at_us,
                    _ => {
                        proven.extend(open.take());
                        open = token.map(|token| Proven { token, from_us: done_us, to_us: at_us });
                    }
                }
                last_us = Some(at_us);
            }
            Reading::Gap { leader, prev_us, .. } => {
                if let Some(mut proof) = open.take() {
                    if leader {
                        proof.to_us = proof.to_us.max(prev_us);
                    }
                    proven.push(proof);
                }
            }
        }
    }
    proven.extend(open);
    proven
}

/// Reads the events in their order, and notes what is wrong with it.
fn events(lines: &[&Value], readings: &[Reading], faults: &mut Vec<String>) -> Vec<Promotion> {
    let mut promotions: Vec<Promotion> = Vec::new();
    let mut leading: Option<u64> = None;
    // Where events were missed, the next one may be of either kind.
    let mut missed = false;
    let mut stopped = false;
    for line in lines {
        let token = line["token"].as_u64();
        if stopped {
            faults.push(format!("a line after stopped: {line}"));
        }
        match line["event"].as_str().unwrap_or_default() {
            "promoted" => {
                let (Some(token), Some(at_us)) = (token, line["at_us"].as_u64()) else {
                    faults.push(format!("a promotion without its token or time: {line}"));
                    continue;
                };
                if leading.is_some() && !missed {
                    faults.push(format!("promoted twice in a row: {line}"));
                }
                if promotions.last().is_some_and(|last| last.token >= token) {
                    faults.push(format!("a token that is not larger than the one before: {line}"));
                }
                let late = readings.iter().any(|reading| {
                    matches!(reading, Reading::Gap { prev_us, at_us: end_us, .. }
                        if (*prev_us..=end_us + HOLE_US).contains(&at_us))
                });
                promotions.push(Promotion { token, at_us, late });
                (leading, missed) = (Some(token), false);
            }
            "demoted" => {
                if (leading.is_none() || leading != token) && !missed {
                    faults.push(format!("demoted from a term it did not have: {line}"));
                }
                if let Some(ended_us) = line["ended_us"].as_u64() {
                    let after = readings.iter().find_map(|reading| match reading {
                        Reading::Sample { token: read, at_us, .. }
                            if *read == token && *at_us > ended_us + CLOCKS_US =>
                        {
                            Some(*at_us)
                        }
                        _ => None,
                    });
                    if let Some(at_us) = after {
                        faults.push(format!("read true at {at_us}, after the end: {line}"));
                    }
                } else {
                    faults.push(format!("a demotion without ended_us: {line}"));
                }
                (leading, missed) = (None, false);
            }
            "missed" => missed = true,
            "stopped" => {
                if leading.is_some() && !missed {
                    faults.push(format!("stopped while leading: {line}"));
                }
                stopped = true;
            }
            _ => {}
        }
    }
    promotions
}
