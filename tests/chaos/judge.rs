//! What must hold after any chaos, and the figures that say how much was tried.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::TTL;
use super::record::Told;
use super::resource::stale;
use super::stage::Played;
use crate::support::history::{Disorder, Overlap, Report};

/// The judgement, and the figures.
#[derive(Debug)]
pub(super) struct Verdict {
    /// What is wrong; nothing may be.
    pub(super) wrong: Vec<String>,
    processes: usize,
    terms: usize,
    faults: BTreeMap<&'static str, usize>,
    passed_over: usize,
    worst_within_us: u64,
    worst_outside_us: u64,
    overlaps_outside: usize,
    longest_leaderless_us: u64,
    longest_exit: Duration,
    unreleased: usize,
    recovered: Option<Duration>,
    writes: Writes,
}

#[derive(Debug)]
struct Writes {
    accepted: usize,
    refused: usize,
    stale: usize,
    /// How many of the stale ones came after data was lost.
    after_loss: usize,
}

/// A time in which a loss of data excuses that two lead.
///
/// Whoever led at the loss had sent its last good renewal before it, so its deadline comes less than a ttl after.
struct Excuse {
    from_us: u64,
    to_us: u64,
}

impl Excuse {
    fn of(fault: &Told) -> Self {
        let ttl_us = u64::try_from(TTL.as_micros()).expect("a ttl is short");
        Self { from_us: fault.at_us, to_us: fault.until_us + ttl_us }
    }

    fn covers(&self, from_us: u64, to_us: u64) -> bool {
        self.from_us <= from_us && to_us <= self.to_us
    }
}

impl Verdict {
    pub(super) fn of(played: Played) -> Self {
        let Played { record, ledgers, processes, passed_over, longest_exit, unreleased, recovered } = played;
        let losses = record.faults.iter().filter(|fault| fault.kind.loses_data());
        let excuses: Vec<Excuse> = losses.map(Excuse::of).collect();
        let excused = |from_us, to_us| excuses.iter().any(|excuse| excuse.covers(from_us, to_us));

        let told = record.faults.iter().map(Told::to_fault).collect::<Vec<_>>();
        let report = Report::new(&record.histories, &told);
        let mut wrong = record.troubles;
        let (outside, within): (Vec<Overlap>, Vec<Overlap>) =
            report.overlaps.into_iter().partition(|it| excused(it.from_us, it.to_us));
        wrong.extend(within.iter().map(Overlap::to_string));
        // While two lead, promotions and readings of the older term follow some of the later one.
        let tokens = report.tokens.iter().filter(|it| {
            let disorder = matches!(it.disorder, Disorder::Smaller { .. });
            !(disorder && excused(it.at_us, it.at_us))
        });
        wrong.extend(tokens.map(ToString::to_string));
        wrong.extend(report.events.into_iter().chain(report.malformed));
        if recovered.is_none() {
            wrong.push("no leader that everyone knows when all faults were over".to_owned());
        }

        let old = stale(&ledgers.unfenced);
        wrong.extend(stale(&ledgers.fenced).iter().map(|it| format!("an old write has landed: {it:?}")));
        wrong.extend(ledgers.strange.iter().map(|it| format!("a write that is no token: {it:?}")));
        let mut tokens: Vec<u64> = ledgers.fenced.iter().map(|write| write.token).collect();
        tokens.dedup();
        if tokens.len() < 2 {
            wrong.push(format!("only the writes of {} terms have landed", tokens.len()));
        }
        let mut faults = BTreeMap::new();
        record.faults.iter().for_each(|fault| *faults.entry(fault.kind.name).or_default() += 1);
        Self {
            wrong,
            processes,
            terms: report.summary.terms,
            faults,
            passed_over,
            worst_within_us: worst(&within),
            worst_outside_us: worst(&outside),
            overlaps_outside: outside.len(),
            longest_leaderless_us: report.summary.longest_leaderless_us,
            longest_exit,
            unreleased,
            recovered,
            writes: Writes {
                accepted: ledgers.fenced.len(),
                refused: ledgers.refused,
                stale: old.len(),
                after_loss: old.iter().filter(|write| excused(write.at_us, write.at_us)).count(),
            },
        }
    }
}

fn worst(overlaps: &[Overlap]) -> u64 {
    overlaps.iter().map(|overlap| overlap.to_us - overlap.from_us).max().unwrap_or_default()
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { writes, .. } = self;
        let ms = |us: u64| us as f64 / 1000.0;
        let kinds: Vec<String> = self.faults.iter().map(|(name, count)| format!("{name} {count}")).collect();
        let all: usize = self.faults.values().sum();
        writeln!(f, "processes started:     {}", self.processes)?;
        writeln!(f, "terms:                 {}", self.terms)?;
        writeln!(f, "faults:                {all} ({} passed over): {}", self.passed_over, kinds.join(", "))?;
        writeln!(f, "overlap, no data lost: {:.1} ms at worst", ms(self.worst_within_us))?;
        writeln!(
            f,
            "overlap, data lost:    {:.1} ms at worst, {} times; the bound is {} ms",
            ms(self.worst_outside_us),
            self.overlaps_outside,
            TTL.as_millis()
        )?;
        writeln!(f, "longest leaderless:    {:.1} ms", ms(self.longest_leaderless_us))?;
        writeln!(
            f,
            "longest exit:          {:.1} ms after SIGTERM; {} leases could not be given back",
            self.longest_exit.as_secs_f64() * 1e3,
            self.unreleased
        )?;
        if let Some(recovered) = self.recovered {
            writeln!(
                f,
                "all agree at the end:  {:.1} ms after the last fault",
                recovered.as_secs_f64() * 1e3
            )?;
        }
        writeln!(f, "writes, fenced:        {} accepted, {} refused", writes.accepted, writes.refused)?;
        write!(
            f,
            "writes, not fenced:    {} of an old term have landed after one of a later, {} of them with data lost",
            writes.stale, writes.after_loss
        )
    }
}
