//! When a process certainly led, and who else did at that time.
//!
//! A reading that is true proves leadership at an instant between its `at_us` and its `done_us`. Between two
//! printed readings of one token every reading was the same, for a change is printed, and a term once ended
//! does not come back: so leadership is proven from the first one's `done_us` to the last one's `at_us`.
//! Where readings are missing (a `gap`) they prove nothing.
//!
//! Events say more than readings that are milliseconds apart: who heard of its promotion led before, and leads
//! until the end that it tells. All of it errs towards too short, so an overlap is real.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use super::events::Term;
use super::line::Reading;
use super::{HOLE_US, History};

/// A time during which a process led.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Proven {
    pub(crate) token: u64,
    pub(crate) from_us: u64,
    /// Of a lone reading this is the earlier of the two times: it proves some instant between them.
    pub(crate) to_us: u64,
}

/// Two processes that led at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Overlap {
    pub(crate) a: String,
    pub(crate) b: String,
    pub(crate) from_us: u64,
    pub(crate) to_us: u64,
    pub(crate) tokens: (u64, u64),
    /// Readings alone show it; otherwise it needs what the processes said of their terms' begin and end.
    pub(crate) read: bool,
}

impl Overlap {
    pub(crate) fn length_us(&self) -> u64 {
        self.to_us - self.from_us
    }
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { a, b, from_us, tokens, read, .. } = self;
        let (length, by) = (self.length_us(), if *read { "" } else { ", as their events say" });
        write!(
            f,
            "{a} (token {}) and {b} (token {}) both led for {length} µs from {from_us}{by}",
            tokens.0, tokens.1
        )
    }
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

    /// The first and the last instant that it may be about.
    pub(super) fn bounds(&self) -> (u64, u64) {
        (self.from_us.min(self.to_us), self.from_us.max(self.to_us))
    }
}

/// The times at which two of the processes led at once, in order.
pub(crate) fn overlaps(histories: &[History]) -> Vec<Overlap> {
    let readings = sweep(histories, |history| history.proven.clone());
    let read: HashSet<_> = readings.into_iter().map(|it| (it.a, it.b, it.tokens)).collect();
    let mut found = sweep(histories, |history| evidence(&history.proven, &history.terms));
    for overlap in &mut found {
        overlap.read = read.contains(&(overlap.a.clone(), overlap.b.clone(), overlap.tokens));
    }
    found
}

/// Walks through the proofs in order of time, and compares each with those that are not over.
fn sweep(histories: &[History], proofs: impl Fn(&History) -> Vec<Proven>) -> Vec<Overlap> {
    let mut all: Vec<(usize, Proven)> = Vec::new();
    for (index, history) in histories.iter().enumerate() {
        all.extend(proofs(history).into_iter().map(|proof| (index, proof)));
    }
    all.sort_by_key(|(_, proof)| proof.bounds());
    let mut found = Vec::new();
    let mut open: Vec<(usize, Proven)> = Vec::new();
    for new in all {
        open.retain(|(_, proof)| proof.bounds().1 > new.1.bounds().0);
        for old in &open {
            let ((a, one), (b, other)) = if old.0 < new.0 { (*old, new) } else { (new, *old) };
            if let (true, Some((from_us, to_us))) = (a != b, one.overlap(&other)) {
                let (a, b) = (histories[a].name.clone(), histories[b].name.clone());
                let tokens = (one.token, other.token);
                found.push(Overlap { a, b, from_us, to_us, tokens, read: true });
            }
        }
        open.push(new);
    }
    found
}

/// What readings prove, and what the events add to it; of one term no piece touches another.
fn evidence(proven: &[Proven], terms: &BTreeMap<u64, Term>) -> Vec<Proven> {
    let claims = terms.iter().filter_map(|(&token, term)| {
        let (from_us, to_us) = term.claim()?;
        Some(Proven { token, from_us, to_us })
    });
    let mut pieces: Vec<Proven> = proven.iter().copied().chain(claims).collect();
    pieces.sort_by_key(|piece| (piece.token, piece.bounds()));
    let mut merged: Vec<Proven> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match merged.last_mut() {
            // A lone reading is within the other if the later of its times is.
            Some(last) if last.token == piece.token && !last.is_lone() && piece.from_us <= last.to_us => {
                last.to_us = last.to_us.max(piece.to_us);
            }
            _ => merged.push(piece),
        }
    }
    merged
}

/// Joins readings, in order of time, to proofs.
pub(super) fn prove(readings: &[Reading]) -> Vec<Proven> {
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

/// When a process read nothing, so that it may have stood still.
#[derive(Debug, Clone)]
pub(super) struct Gaps {
    /// The last reading before each gap, and the latest end of the gaps until then; in order of time.
    ends: Vec<(u64, u64)>,
}

impl Gaps {
    /// Of readings in order of time.
    pub(super) fn new(readings: &[Reading]) -> Self {
        let mut latest_us = 0;
        let ends = readings.iter().filter_map(|reading| match *reading {
            Reading::Gap { prev_us, at_us, .. } => {
                latest_us = latest_us.max(at_us);
                Some((prev_us, latest_us))
            }
            Reading::Sample { .. } => None,
        });
        Self { ends: ends.collect() }
    }

    /// Whether what was heard at this time may be the consequence of a gap.
    pub(super) fn explain(&self, at_us: u64) -> bool {
        let before = self.ends.partition_point(|(prev_us, _)| *prev_us <= at_us);
        before > 0 && at_us <= self.ends[before - 1].1 + HOLE_US
    }
}
