//! What a process told of its terms, and whether that agrees with itself and with its readings.

use std::collections::BTreeMap;

use super::line::Reading;
use super::proofs::{Gaps, Proven};
use super::{HOLE_US, slack_us};

/// An event of a process; `at_us` is when it was heard.
#[derive(Debug, Clone, Copy)]
pub(super) struct Told {
    pub(super) at_us: u64,
    pub(super) what: What,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum What {
    Started,
    Promoted { token: u64 },
    Demoted { token: u64, reason: Reason, ended_us: u64 },
    Missed,
    Stopped,
    Other,
}

impl Told {
    /// Whether it is the last event of its process.
    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.what, What::Stopped)
    }
}

/// Why a term ended, as its process says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    Expired,
    Lost,
    RenewError,
    /// It gave leadership up: `stepped_down`, `lead_ended` or `stopped`.
    GivenUp,
}

impl Reason {
    pub(super) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "expired" => Self::Expired,
            "lost" => Self::Lost,
            "renew_error" => Self::RenewError,
            "stepped_down" | "lead_ended" | "stopped" => Self::GivenUp,
            _ => return None,
        })
    }
}

/// When a process heard that it leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Promotion {
    pub(crate) token: u64,
    pub(crate) at_us: u64,
    /// The process stood still just before, so it may have heard of it long after it happened.
    pub(super) late: bool,
}

/// A term of one process: what is known of its begin and end.
#[derive(Debug, Clone, Default)]
pub(super) struct Term {
    pub(super) promoted_us: Option<u64>,
    pub(super) demoted: Option<Demotion>,
    /// From the first to the last true reading.
    pub(super) read: Option<(u64, u64)>,
    /// Readings contradict the events.
    doubtful: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Demotion {
    pub(super) reason: Reason,
    pub(super) ended_us: u64,
    at_us: u64,
}

impl Demotion {
    fn slack_us(&self) -> u64 {
        slack_us(self.ended_us, self.at_us)
    }
}

impl Term {
    /// The time for which the process itself says that it led, where readings do not deny it. One end of it may
    /// be a reading, if that is close.
    pub(super) fn claim(&self) -> Option<(u64, u64)> {
        if self.doubtful {
            return None;
        }
        let ended_us = self.demoted.map(|it| it.ended_us.saturating_sub(it.slack_us()));
        let (from_us, to_us) = match (self.promoted_us, ended_us, self.read) {
            (Some(from_us), Some(to_us), _) => (from_us, to_us),
            (Some(from_us), None, Some((read_us, _))) if read_us.saturating_sub(from_us) <= HOLE_US => {
                (from_us, read_us)
            }
            (None, Some(to_us), Some((_, read_us))) if to_us.saturating_sub(read_us) <= HOLE_US => {
                (read_us, to_us)
            }
            _ => return None,
        };
        (from_us < to_us).then_some((from_us, to_us))
    }
}

/// Follows the events, with the numbers of their lines, in the order in which they were printed.
pub(super) fn follow(
    told: &[(usize, Told)],
    gaps: &Gaps,
    faults: &mut Vec<String>,
) -> (Vec<Promotion>, BTreeMap<u64, Term>) {
    let mut promotions = Vec::new();
    let mut terms: BTreeMap<u64, Term> = BTreeMap::new();
    let mut leading: Option<u64> = None;
    // Where events were missed, the next one may be of either kind.
    let mut missed = false;
    let mut last_us = 0;
    for (index, &(line, Told { at_us, what })) in told.iter().enumerate() {
        let mut fault = |text: String| faults.push(format!("line {line}: {text}, at {at_us}"));
        if at_us + slack_us(0, 0) < last_us {
            fault(format!("an event of an earlier time than the one before it, {last_us}"));
        }
        last_us = last_us.max(at_us);
        match what {
            What::Started if index > 0 => fault("started after other events".to_owned()),
            What::Promoted { token } => {
                if let (Some(before), false) = (leading, missed) {
                    fault(format!("promoted twice in a row, to token {token} from {before}"));
                }
                promotions.push(Promotion { token, at_us, late: gaps.explain(at_us) });
                terms.entry(token).or_default().promoted_us.get_or_insert(at_us);
                (leading, missed) = (Some(token), false);
            }
            What::Demoted { token, reason, ended_us } => {
                if leading != Some(token) && !missed {
                    fault(format!("demoted from token {token}, a term it did not have"));
                }
                if ended_us > at_us + slack_us(0, 0) {
                    fault(format!("demoted from token {token} ahead of the end, {ended_us}"));
                }
                terms.entry(token).or_default().demoted.get_or_insert(Demotion { reason, ended_us, at_us });
                (leading, missed) = (None, false);
            }
            What::Missed => missed = true,
            What::Stopped => {
                if let (Some(token), false) = (leading, missed) {
                    fault(format!("stopped while leading under token {token}"));
                }
                leading = None;
            }
            What::Started | What::Other => {}
        }
    }
    (promotions, terms)
}

/// Compares the terms with the readings, which are in order of time, and adds what only those know.
pub(super) fn compare(
    terms: &mut BTreeMap<u64, Term>,
    proven: &[Proven],
    readings: &[Reading],
    told: &[(usize, Told)],
    faults: &mut Vec<String>,
) {
    let any = |is: fn(&What) -> bool| told.iter().any(|(_, told)| is(&told.what));
    // Where something was missed, it may have been both the begin and the end of a term. Where the lines break
    // off, the last term may not have been told yet.
    let missed = any(|what| matches!(what, What::Missed));
    let stopped = any(|what| matches!(what, What::Stopped));
    let last_told = terms.keys().next_back().copied();
    for proof in proven {
        let (from_us, to_us) = proof.bounds();
        let term = terms.entry(proof.token).or_default();
        let read = term.read.unwrap_or((from_us, to_us));
        term.read = Some((read.0.min(from_us), read.1.max(to_us)));
        let Some(demoted) = term.demoted else { continue };
        if !term.doubtful && proof.to_us > demoted.ended_us + demoted.slack_us() {
            term.doubtful = true;
            faults.push(format!(
                "read true at {}, after the end at {}, under token {}",
                proof.to_us, demoted.ended_us, proof.token
            ));
        }
    }
    let samples: Vec<_> = readings.iter().filter_map(Reading::sample).collect();
    for (token, term) in terms {
        if let (None, None, Some((from_us, _))) = (term.promoted_us, term.demoted, term.read)
            && !missed
            && (stopped || last_told.is_some_and(|last| last > *token))
        {
            faults.push(format!("read true from {from_us} on without any event of token {token}"));
        }
        let (Some(from_us), Some(demoted)) = (term.promoted_us, term.demoted) else { continue };
        let to_us = demoted.ended_us.saturating_sub(demoted.slack_us());
        let within = samples.partition_point(|(at_us, ..)| *at_us < from_us);
        let other = samples[within..]
            .iter()
            .take_while(|(_, done_us, _)| *done_us < to_us)
            .find(|(_, _, read)| *read != Some(*token));
        if let Some((at_us, _, read)) = other {
            term.doubtful = true;
            let read = read.map_or("false".to_owned(), |read| format!("true of token {read}"));
            faults.push(format!("read {read} at {at_us}, within the term of token {token}"));
        }
    }
}
