//! The scripts as functions: what one group's lease key and term key hold, and what each call does to them.

use std::time::Duration;

use super::super::strict::{Call, HOLD, Lineage, Said, Strictness};
use super::super::{Answer, Class, Holding, Outcome, StoreError};
use crate::election::key::InstanceId;
use crate::election::term::{LONGEST_TOKEN, next_token};

/// The lease key and the term key of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) lease: Option<Lease>,
    pub(crate) term: Option<Term>,
}

/// The lease key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) holder: InstanceId,
    /// By the clock that leases expire by. None never ends; nobody of ours writes that.
    pub(crate) expires: Option<Duration>,
}

/// The term key, as far as the calls read it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Term {
    /// Zero while only parked leases have been written.
    pub(crate) token: u64,
    pub(crate) holder: InstanceId,
    pub(crate) attempt: u64,
    pub(crate) ttl: Duration,
    /// The data set that has acknowledged a lease of this group last.
    pub(crate) lineage: Option<Lineage>,
    /// When the lease ends that was promised last, by the clock that leases expire by. Of strict only.
    pub(crate) until: Option<Duration>,
    /// How strict the holder is, if it is; of a parked lease with the longest ttl that was known then.
    pub(crate) strict: Option<Strictness>,
}

/// What a call finds at the store beside the keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clocks<'a> {
    /// By the clock that leases expire by.
    pub(crate) now: Duration,
    /// Redis' `TIME`, in microseconds.
    pub(crate) time_us: u64,
    /// Which data set the keys are in.
    pub(crate) lineage: &'a Lineage,
}

/// An acquire, beside whose it is.
struct Attempt {
    ttl: Duration,
    number: u64,
    floor: u64,
    strict: Option<Strictness>,
}

impl Keys {
    /// Drops the lease if its end is one of the past.
    pub(crate) fn expire(&mut self, is_past: impl Fn(Duration) -> bool) {
        self.lease.take_if(|lease| lease.expires.is_some_and(is_past));
    }

    /// Does what one script does; an expired lease is to be dropped before.
    pub(crate) fn execute(
        &mut self,
        id: &InstanceId,
        ttl: Duration,
        call: &Call,
        clocks: Clocks<'_>,
    ) -> Result<Said, StoreError> {
        match call {
            Call::Acquire { attempt, floor, strict } => {
                let attempt = Attempt { ttl, number: *attempt, floor: *floor, strict: *strict };
                self.acquire(id, &attempt, clocks)
            }
            Call::Renew { token, strict } if self.is_held(id, *token) => {
                let (lease, term) = self.both();
                // Somebody else took its expiry away; it gets one now.
                let left = remaining(lease, clocks.now).unwrap_or(ttl);
                let ends = clocks.now.saturating_add(ttl);
                lease.expires = Some(ends);
                let Some(acknowledged) = strict else { return Ok(Answer::Renewed { left }.into()) };
                term.until = Some(ends);
                if acknowledged.lineage.as_ref() == Some(clocks.lineage) {
                    term.lineage = Some(clocks.lineage.clone());
                }
                Ok(Said { answer: Answer::Renewed { left }, lineage: Some(clocks.lineage.clone()) })
            }
            Call::Release { token, .. } => {
                let is_held = self.is_held(id, *token);
                let may_end = is_held || self.lease.is_none();
                let is_its = |term: &&mut Term| term.token == *token && term.holder == *id;
                if let Some(term) = self.term.as_mut().filter(is_its).filter(|_| may_end) {
                    // What was promised to this term need not be waited out, for it has ended.
                    term.until = term.until.and(Some(Duration::ZERO));
                }
                if is_held {
                    self.lease = None;
                    return Ok(Answer::Released.into());
                }
                Ok(self.look(clocks.now).into())
            }
            Call::Settle { lineage, strict } if self.is_parked_by(id) && lineage == clocks.lineage => {
                let (lease, term) = self.both();
                let ends = clocks.now.saturating_add(term.longest(*strict));
                lease.expires = Some(ends);
                (term.lineage, term.until) = (Some(lineage.clone()), Some(ends));
                Ok(self.look(clocks.now).into())
            }
            Call::Renew { .. } | Call::Settle { .. } | Call::Look => Ok(self.look(clocks.now).into()),
        }
    }

    fn acquire(
        &mut self,
        id: &InstanceId,
        attempt: &Attempt,
        clocks: Clocks<'_>,
    ) -> Result<Said, StoreError> {
        let is_parked = attempt.strict.is_some() && self.is_parked_by(id);
        if !is_parked && self.lease.as_ref().is_some_and(|lease| lease.holder != *id) {
            return Ok(self.look(clocks.now).into());
        }
        let hold = InstanceId::from(&*format!("{HOLD}{id}"));
        let term = self.term.clone().unwrap_or_default();
        if (term.holder == *id || term.holder == hold) && attempt.number <= term.attempt {
            return Ok(Answer::Ghost.into());
        }
        let last = term.token;
        let token = next_token(last, clocks.time_us, attempt.floor).ok_or_else(|| {
            StoreError::new(
                Outcome::Refused,
                Class::Configuration,
                format!("no token is left above {last} and {}; tokens end at {LONGEST_TOKEN}", attempt.floor),
            )
        })?;
        if let Some(strict) = attempt.strict {
            let is_known = term.lineage.as_ref() == Some(clocks.lineage);
            if is_parked && is_known {
                return Ok(self.look(clocks.now).into());
            }
            // Who had the lease may have known of a longer ttl than this instance does.
            let longest = term.longest(strict);
            let parked = match is_known {
                // Parked by this instance, and not acknowledged in time: it is asked for again for what is left.
                false if is_parked => {
                    let left = self.lease.as_ref().and_then(|lease| remaining(lease, clocks.now));
                    left.filter(|left| !left.is_zero()).unwrap_or(longest)
                }
                false => longest,
                true if self.lease.is_none() && term.holder != *id => {
                    term.until.unwrap_or_default().saturating_sub(clocks.now).min(longest)
                }
                true => Duration::ZERO,
            };
            if !parked.is_zero() {
                let ends = Some(clocks.now.saturating_add(parked));
                self.lease = Some(Lease { holder: hold.clone(), expires: ends });
                let strict = Some(Strictness { longest, ..strict });
                self.term = Some(Term { holder: hold, attempt: attempt.number, until: ends, strict, ..term });
                let lineage = Some(clocks.lineage.clone()).filter(|_| !is_known);
                return Ok(Said { answer: self.look(clocks.now), lineage });
            }
        }
        let ends = Some(clocks.now.saturating_add(attempt.ttl));
        self.lease = Some(Lease { holder: id.clone(), expires: ends });
        self.term = Some(Term {
            token,
            holder: id.clone(),
            attempt: attempt.number,
            ttl: attempt.ttl,
            // What follows an instance that is not strict begins with a hold.
            lineage: attempt.strict.and(term.lineage),
            until: attempt.strict.and(ends),
            strict: attempt.strict,
        });
        let ahead = Duration::from_micros(token.saturating_sub(clocks.time_us));
        let lineage = attempt.strict.map(|_| clocks.lineage.clone());
        Ok(Said { answer: Answer::Won { token, ahead }, lineage })
    }

    fn is_held(&self, id: &InstanceId, token: u64) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.holder == *id)
            && self.term.as_ref().is_some_and(|term| term.token == token)
    }

    fn is_parked_by(&self, id: &InstanceId) -> bool {
        let value = self.lease.as_ref().map(|lease| lease.holder.as_str());
        value.and_then(|value| value.strip_prefix(HOLD)) == Some(id.as_str())
    }

    /// Both keys, where the lease is there; a term key that is not comes into being.
    fn both(&mut self) -> (&mut Lease, &mut Term) {
        let lease = self.lease.as_mut().expect("the lease is held or parked");
        (lease, self.term.get_or_insert_default())
    }

    fn look(&self, now: Duration) -> Answer {
        let Some(lease) = &self.lease else { return Answer::Vacant };
        let mut holding = Holding {
            holder: lease.holder.clone(),
            token: None,
            remaining: remaining(lease, now),
            strict: None,
        };
        let term = self.term.as_ref().filter(|term| term.holder == lease.holder && !holding.is_parked());
        if let Some(term) = term {
            (holding.token, holding.strict) = (Some(term.token), term.strict);
        }
        Answer::Held(holding)
    }
}

impl Term {
    /// The longest ttl that is known, with what an instance knows.
    fn longest(&self, strict: Strictness) -> Duration {
        self.strict.map_or(strict.longest, |known| known.longest.max(strict.longest))
    }
}

fn remaining(lease: &Lease, now: Duration) -> Option<Duration> {
    lease.expires.map(|end| end.saturating_sub(now))
}
