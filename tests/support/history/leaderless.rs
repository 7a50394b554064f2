//! When nobody led, and why.

use std::fmt;

use super::events::{Demotion, Reason, Term};
use super::report::ms;
use super::{HOLE_US, History};

/// Something that was done to the group on purpose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: String,
    /// What it was done to.
    pub(crate) target: Option<String>,
    pub(crate) at_us: u64,
    pub(crate) until_us: u64,
}

/// A time during which no process proved or claimed that it leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leaderless {
    pub(crate) from_us: u64,
    pub(crate) to_us: u64,
    pub(crate) place: Place,
    /// Who led before, under which token, and how that ended.
    pub(crate) after: Option<(String, u64, Cause)>,
    /// The faults that were under way.
    pub(crate) faults: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// Before the first term.
    Begin,
    Between,
    /// After the last term.
    End,
}

/// How the term before ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// The leader gave leadership up.
    Handover,
    Expired,
    RenewError,
    Lost,
    /// The leader's lines end.
    Crash,
    /// The leader stood still when the term ended.
    Paused,
    /// The leader's lines go on, and do not tell.
    Untold,
}

impl Cause {
    pub(super) const ALL: [Self; 7] = [
        Self::Handover,
        Self::Expired,
        Self::RenewError,
        Self::Lost,
        Self::Crash,
        Self::Paused,
        Self::Untold,
    ];
}

impl Leaderless {
    pub(crate) fn length_us(&self) -> u64 {
        self.to_us - self.from_us
    }

    pub(crate) fn cause(&self) -> Option<Cause> {
        self.after.as_ref().map(|(_, _, cause)| *cause)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Some(target) => write!(f, "{} of {target}", self.kind),
            None => f.write_str(&self.kind),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Handover => "handover",
            Self::Expired => "expired",
            Self::RenewError => "renew_error",
            Self::Lost => "lost",
            Self::Crash => "crash",
            Self::Paused => "paused",
            Self::Untold => "untold",
        })
    }
}

impl fmt::Display for Leaderless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} ms from {}", ms(self.length_us()), self.from_us)?;
        match self.place {
            Place::Begin => f.write_str(", before the first term")?,
            Place::Between => {}
            Place::End => f.write_str(", at the end")?,
        }
        if let Some((who, token, cause)) = &self.after {
            write!(f, ", after {who} (token {token}): {cause}")?;
        }
        if !self.faults.is_empty() {
            write!(f, "; meanwhile: {}", self.faults.join(", "))?;
        }
        Ok(())
    }
}

/// The time of one term, as far as it was proved or claimed.
struct Led<'a> {
    from_us: u64,
    to_us: u64,
    who: &'a str,
    token: u64,
    cause: Cause,
}

/// The times without a leader, and for how long there was one.
pub(super) fn spans(histories: &[History], faults: &[Fault]) -> (Vec<Leaderless>, u64) {
    let mut terms: Vec<_> = histories.iter().flat_map(led).collect();
    terms.sort_by_key(|term| (term.from_us, term.to_us));
    let known = || histories.iter().filter_map(|history| history.span);
    let (Some(begin_us), Some(end_us)) = (known().map(|it| it.0).min(), known().map(|it| it.1).max()) else {
        return (Vec::new(), 0);
    };
    let mut found = Vec::new();
    let mut add = |from_us: u64, to_us: u64, place, before: Option<&Led<'_>>| {
        if from_us < to_us {
            let after = before.map(|it| (it.who.to_owned(), it.token, it.cause));
            found.push(Leaderless { from_us, to_us, place, after, faults: Vec::new() });
        }
    };
    // The term that reaches furthest of those until now.
    let mut last: Option<&Led<'_>> = None;
    for term in &terms {
        match last {
            None => add(begin_us, term.from_us, Place::Begin, None),
            Some(before) => add(before.to_us, term.from_us, Place::Between, last),
        }
        if last.is_none_or(|before| before.to_us < term.to_us) {
            last = Some(term);
        }
    }
    match last {
        None => add(begin_us, end_us, Place::Begin, None),
        Some(before) => add(before.to_us, end_us, Place::End, last),
    }
    let led_us = (end_us - begin_us).saturating_sub(found.iter().map(Leaderless::length_us).sum());
    name_faults(&mut found, faults);
    (found, led_us)
}

/// A fault of a moment shows a little later, and its victim's last line may be a little older.
fn name_faults(spans: &mut [Leaderless], faults: &[Fault]) {
    for fault in faults {
        let first = spans.partition_point(|span| span.to_us < fault.at_us);
        let until_us = fault.until_us.saturating_add(HOLE_US);
        for span in spans[first..].iter_mut().take_while(|span| span.from_us <= until_us) {
            span.faults.push(fault.to_string());
        }
    }
}

fn led(history: &History) -> impl Iterator<Item = Led<'_>> {
    let last = history.terms.keys().next_back().copied();
    history.terms.iter().filter_map(move |(&token, term)| {
        let known = [term.promoted_us.map(|at_us| (at_us, at_us)), term.read];
        let from_us = known.iter().flatten().map(|it| it.0).min();
        let seen_us = known.iter().flatten().map(|it| it.1).max();
        let (to_us, cause) = match (term.demoted, history.span) {
            // It may have heard of its promotion after the end.
            (Some(demoted), _) => {
                let read_us = term.read.map_or(0, |it| it.1);
                (demoted.ended_us.max(read_us), cause(history, &demoted))
            }
            (None, Some((_, last_us))) if last == Some(token) && breaks_off(history, token, term) => {
                (last_us, Cause::Crash)
            }
            (None, _) => (seen_us?, Cause::Untold),
        };
        let from_us = from_us.unwrap_or(to_us).min(to_us);
        Some(Led { from_us, to_us, who: history.name(), token, cause })
    })
}

fn cause(history: &History, demoted: &Demotion) -> Cause {
    match demoted.reason {
        Reason::GivenUp => Cause::Handover,
        _ if history.gaps.explain(demoted.ended_us) => Cause::Paused,
        Reason::Expired => Cause::Expired,
        Reason::Lost => Cause::Lost,
        Reason::RenewError => Cause::RenewError,
    }
}

/// Whether the process's lines end while it leads.
fn breaks_off(history: &History, token: u64, term: &Term) -> bool {
    !history.stopped
        && match history.last_read {
            Some((at_us, read)) => read == Some(token) || term.promoted_us.is_some_and(|it| it > at_us),
            None => true,
        }
}
