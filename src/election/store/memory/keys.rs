//! The scripts as functions: what one group's lease key and term key hold, and what each operation does to them.

use std::time::Duration;

use super::super::{Action, Answer, Class, Holding, Outcome, StoreError};
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

/// The term key, as far as the operations read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Term {
    pub(crate) token: u64,
    pub(crate) holder: InstanceId,
    pub(crate) attempt: u64,
}

/// The store's time while an operation is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clocks {
    /// By the clock that leases expire by.
    pub(crate) now: Duration,
    /// Redis' `TIME`, in microseconds.
    pub(crate) time_us: u64,
}

impl Keys {
    /// Drops the lease if its end is one of the past.
    pub(crate) fn expire(&mut self, is_past: impl Fn(Duration) -> bool) {
        self.lease.take_if(|lease| lease.expires.is_some_and(is_past));
    }

    /// Does one operation; an expired lease is to be dropped before.
    pub(crate) fn execute(
        &mut self,
        id: &InstanceId,
        ttl: Duration,
        action: Action,
        clocks: Clocks,
    ) -> Result<Answer, StoreError> {
        let expires = Some(clocks.now.saturating_add(ttl));
        match action {
            Action::Acquire { attempt, floor } => self.acquire(id, expires, attempt, floor, clocks),
            Action::Renew { token } if self.is_held(id, token) => {
                let lease = self.lease.as_mut().expect("the lease is held");
                // Somebody else took its expiry away; it gets one now.
                let left = remaining(lease, clocks.now).unwrap_or(ttl);
                lease.expires = expires;
                Ok(Answer::Renewed { left })
            }
            Action::Release { token } if self.is_held(id, token) => {
                self.lease = None;
                Ok(Answer::Released)
            }
            Action::Renew { .. } | Action::Release { .. } | Action::Look => Ok(self.look(clocks.now)),
        }
    }

    fn acquire(
        &mut self,
        id: &InstanceId,
        expires: Option<Duration>,
        attempt: u64,
        floor: u64,
        clocks: Clocks,
    ) -> Result<Answer, StoreError> {
        if self.lease.as_ref().is_some_and(|lease| lease.holder != *id) {
            return Ok(self.look(clocks.now));
        }
        let own = self.term.as_ref().filter(|term| term.holder == *id);
        if own.is_some_and(|term| attempt <= term.attempt) {
            return Ok(Answer::Ghost);
        }
        let last = self.term.as_ref().map_or(0, |term| term.token);
        let token = next_token(last, clocks.time_us, floor).ok_or_else(|| {
            StoreError::new(
                Outcome::Refused,
                Class::Configuration,
                format!("no token is left above {last} and {floor}; tokens end at {LONGEST_TOKEN}"),
            )
        })?;
        self.term = Some(Term { token, holder: id.clone(), attempt });
        self.lease = Some(Lease { holder: id.clone(), expires });
        Ok(Answer::Won { token, ahead: Duration::from_micros(token.saturating_sub(clocks.time_us)) })
    }

    fn is_held(&self, id: &InstanceId, token: u64) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.holder == *id)
            && self.term.as_ref().is_some_and(|term| term.token == token)
    }

    fn look(&self, now: Duration) -> Answer {
        let Some(lease) = &self.lease else { return Answer::Vacant };
        let term = self.term.as_ref().filter(|term| term.holder == lease.holder);
        Answer::Held(Holding {
            holder: lease.holder.clone(),
            token: term.map(|term| term.token),
            remaining: remaining(lease, now),
        })
    }
}

fn remaining(lease: &Lease, now: Duration) -> Option<Duration> {
    lease.expires.map(|end| end.saturating_sub(now))
}
