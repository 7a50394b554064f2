//! Everything that is found, to be read by people.

use std::fmt::{self, Display};

use super::History;
use super::leaderless::{self, Cause, Fault, Leaderless, Place};
use super::proofs::{Overlap, overlaps};
use super::tokens::{self, TokenFault};

/// How many findings of a kind are shown; there may be as many as there are lines.
const SHOWN: usize = 20;

/// What a group's histories tell.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    pub(crate) overlaps: Vec<Overlap>,
    pub(crate) tokens: Vec<TokenFault>,
    /// Lines that contradict others, with the name of their process.
    pub(crate) events: Vec<String>,
    /// Lines that are none.
    pub(crate) malformed: Vec<String>,
    /// In order of time. This is how long takeovers took, and nothing wrong.
    pub(crate) leaderless: Vec<Leaderless>,
    pub(crate) summary: Summary,
}

/// Figures of all processes together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) processes: usize,
    pub(crate) terms: usize,
    pub(crate) lines: usize,
    pub(crate) samples: usize,
    /// From the first line to the last.
    pub(crate) covered_us: u64,
    /// How long of that somebody led.
    pub(crate) led_us: u64,
    /// Between two terms.
    pub(crate) longest_leaderless_us: u64,
    pub(crate) worst_overlap_us: u64,
}

impl Report {
    pub(crate) fn new(histories: &[History], faults: &[Fault]) -> Self {
        let overlaps = overlaps(histories);
        let (leaderless, led_us) = leaderless::spans(histories, faults);
        let known = || histories.iter().filter_map(|history| history.span);
        let (begin_us, end_us) = (known().map(|it| it.0).min(), known().map(|it| it.1).max());
        let summary = Summary {
            processes: histories.len(),
            terms: histories.iter().map(|history| history.terms.len()).sum(),
            lines: histories.iter().map(|history| history.lines).sum(),
            samples: histories.iter().map(|history| history.samples).sum(),
            covered_us: begin_us.zip(end_us).map_or(0, |(begin_us, end_us)| end_us - begin_us),
            led_us,
            longest_leaderless_us: longest(between(&leaderless)),
            worst_overlap_us: overlaps.iter().map(Overlap::length_us).max().unwrap_or_default(),
        };
        let named = |of: fn(&History) -> &Vec<String>| {
            let each = |it| of(it).iter().map(|text| format!("{}: {text}", it.name()));
            histories.iter().flat_map(each).collect()
        };
        Self {
            overlaps,
            tokens: tokens::faults(histories),
            events: named(|history| &history.faults),
            malformed: named(|history| &history.malformed),
            leaderless,
            summary,
        }
    }

    /// Everything that is wrong. That nobody leads for a while is not.
    pub(crate) fn violations(&self) -> Vec<String> {
        let mut found: Vec<String> = self.overlaps.iter().map(Overlap::to_string).collect();
        found.extend(self.tokens.iter().map(TokenFault::to_string));
        found.extend(self.events.iter().chain(&self.malformed).cloned());
        found
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.overlaps.is_empty()
            && self.tokens.is_empty()
            && self.events.is_empty()
            && self.malformed.is_empty()
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { processes, terms, lines, samples, covered_us, led_us, .. } = self.summary;
        writeln!(f, "{processes} processes, {terms} terms, {lines} lines, {samples} of them samples")?;
        let share = 100.0 * led_us as f64 / covered_us.max(1) as f64;
        writeln!(f, "{:.3} s, with a leader for {share:.2} % of it", covered_us as f64 / 1e6)?;
        list(f, "overlaps", &self.overlaps)?;
        if !self.overlaps.is_empty() {
            writeln!(f, "  worst: {} µs", self.summary.worst_overlap_us)?;
        }
        list(f, "tokens out of order", &self.tokens)?;
        list(f, "events out of order", &self.events)?;
        list(f, "malformed lines", &self.malformed)?;
        self.fmt_leaderless(f)?;
        match self.violations().len() {
            0 => writeln!(f, "nothing is wrong"),
            count => writeln!(f, "wrong: {count}"),
        }
    }
}

impl Report {
    fn fmt_leaderless(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "without a leader between terms: {}", between(&self.leaderless).count())?;
        for cause in Cause::ALL {
            let of_cause = || between(&self.leaderless).filter(|span| span.cause() == Some(cause));
            let mut lengths: Vec<u64> = of_cause().map(Leaderless::length_us).collect();
            lengths.sort_unstable();
            if let Some(longest) = lengths.last() {
                let (count, median) = (lengths.len(), ms(lengths[lengths.len() / 2]));
                writeln!(
                    f,
                    "  {cause:<11} {count:>6}, median {median:.1} ms, longest {:.1} ms",
                    ms(*longest)
                )?;
            }
        }
        let mut longest: Vec<&Leaderless> = self.leaderless.iter().collect();
        longest.sort_by_key(|span| std::cmp::Reverse(span.length_us()));
        list(f, "without a leader at all, the longest first", &longest)
    }
}

fn list(f: &mut fmt::Formatter<'_>, what: &str, found: &[impl Display]) -> fmt::Result {
    writeln!(f, "{what}: {}", found.len())?;
    for one in found.iter().take(SHOWN) {
        writeln!(f, "  {one}")?;
    }
    match found.len().checked_sub(SHOWN) {
        Some(more @ 1..) => writeln!(f, "  and {more} more"),
        _ => Ok(()),
    }
}

fn between(spans: &[Leaderless]) -> impl Iterator<Item = &Leaderless> {
    spans.iter().filter(|span| span.place == Place::Between)
}

fn longest<'a>(spans: impl Iterator<Item = &'a Leaderless>) -> u64 {
    spans.map(Leaderless::length_us).max().unwrap_or_default()
}

/// Microseconds as milliseconds, to be shown.
pub(super) fn ms(us: u64) -> f64 {
    us as f64 / 1000.0
}
