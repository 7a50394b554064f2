//! The way out of a term: its lead work is waited for, and its lease is given back.

use std::time::Duration;

use super::answers::failed;
use super::{Action, Machine, Moment, Operation, Output, Reason, State, StoreError, Unreleased};
use crate::election::clock::Instant;

/// No term has this token: it asks the store which one this instance holds the lease under.
pub(super) const UNKNOWN: u64 = 0;

/// A term that has ended here, whose lease may still be held.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) token: u64,
    pub(super) since: Instant,
    pub(super) reason: Reason,
    /// Whether the lease may still be this term's.
    pub(super) ours: bool,
    /// The lease is gone before its time, and strict has the others wait for that unless it is told that
    /// nobody leads by it any more.
    pub(super) yields: bool,
    pub(super) held_until: Instant,
    /// While the lead work runs: when its overrun is told next, first at the end of its grace.
    pub(super) working: Option<Instant>,
    pub(super) overrun: bool,
    /// When the next renewal (the lead work runs) or release (it has returned) may be sent.
    pub(super) next: Instant,
    /// When it asks again who leads, once the way out is over: the end of another's lease, if known.
    pub(super) ask_at: Instant,
    pub(super) failed: Option<StoreError>,
}

impl Machine {
    /// Ends the term that is led, if there is one: what happens next is the way out.
    pub(super) fn leave(&mut self, now: Moment, reason: Reason, out: &mut Vec<Output>) {
        let State::Leading(term) = &mut self.state else { return };
        let (token, working, last_error) = (term.token, term.working, term.failed.take());
        let leaving = Leaving {
            token,
            since: now.at,
            reason,
            ours: reason != Reason::Lost,
            yields: false,
            held_until: term.held_until,
            working: working.then_some(now.at + self.timing.lead_grace),
            overrun: false,
            next: now.at,
            ask_at: now.at,
            failed: None,
        };
        self.state = State::Leaving(leaving);
        let stand_back = now.at + self.timing.wait;
        match reason {
            Reason::Lost | Reason::SteppedDown | Reason::Stopped => {}
            Reason::Expired | Reason::RenewError => self.rest_until = stand_back,
            Reason::LeadEnded => self.pause_until = self.pause_until.max(stand_back),
        }
        out.push(Output::Demoted { token, reason });
        if let Some(error) = last_error.filter(|_| reason == Reason::Expired) {
            out.push(failed(Operation::Renew, error));
        }
    }

    pub(super) fn step_down(&mut self, now: Moment, pause: Duration, out: &mut Vec<Output>) {
        self.leave(now, Reason::SteppedDown, out);
        self.pause_until = self.pause_until.max(now.at + pause);
        self.shorten(now.at + self.timing.call_limit, out);
    }

    pub(super) fn stop(&mut self, now: Moment, out: &mut Vec<Output>) {
        if self.stop_by.is_some() {
            return;
        }
        self.leave(now, Reason::Stopped, out);
        let grace = match &self.state {
            State::Leaving(leaving) if leaving.working.is_some() => self.timing.lead_grace,
            _ => Duration::ZERO,
        };
        self.stop_by = Some(now.at + grace + self.timing.call_limit * 2);
        self.shorten(now.at + self.timing.call_limit, out);
    }

    fn shorten(&self, until: Instant, out: &mut Vec<Output>) {
        if let Some(request) = &self.in_flight {
            out.push(Output::Shorten { op: request.op, until });
        }
    }

    /// Does what is due while stopping; true when nothing more is to be done now.
    pub(super) fn advance_stop(&mut self, now: Moment, out: &mut Vec<Output>) -> bool {
        if matches!(self.state, State::Stopped) {
            return true;
        }
        if self.stop_by.is_some_and(|by| now.at >= by) {
            self.finish(now, out);
            return true;
        }
        if matches!(self.state, State::Following { .. }) && self.is_settled() && !self.unsettled {
            self.finish(now, out);
            return true;
        }
        false
    }

    /// An instance that does not contend gives back what an acquire without a reply may have won.
    pub(super) fn settle(&mut self, now: Moment) {
        let idle = matches!(self.state, State::Following { .. }) && self.in_flight.is_none();
        if idle && self.unsettled && (self.stop_by.is_some() || now.at < self.pause_until) {
            self.unsettled = false;
            // The store's "no" tells the token to release.
            self.state = State::Leaving(Leaving::untold(UNKNOWN, now.at, now.at + self.timing.ttl));
        }
    }

    pub(super) fn advance_leaving(&mut self, now: Moment, out: &mut Vec<Output>) {
        let State::Leaving(leaving) = &mut self.state else { return };
        let token = leaving.token;
        if let Some(told) = leaving.working {
            if now.at >= told {
                leaving.overrun = true;
                leaving.working = Some(now.at + self.timing.wait);
                out.push(Output::Overrun { token, since: leaving.since });
                if self.stop_by.is_some() {
                    self.finish(now, out);
                }
            } else if leaving.ours && !leaving.overrun && self.in_flight.is_none() && now.at >= leaving.next {
                leaving.held_until = now.at + self.timing.ttl;
                let until = self.by_stop(now.at + self.timing.retry_limit());
                self.send(now, Action::Renew { token }, until, out);
            }
            return;
        }
        if self.in_flight.is_some() {
            return;
        }
        if std::mem::take(&mut leaving.yields) {
            let until = self.by_stop(now.at + self.timing.call_limit);
            self.send(now, Action::Release { token }, until, out);
        } else if !leaving.ours {
            self.left(now, out);
        } else if now.at >= leaving.held_until {
            // It has ended by itself: there is nothing to release, and nobody is known to hold it.
            leaving.ours = false;
            if self.leader.as_ref().is_some_and(|leader| leader.id == self.id.as_str()) {
                self.told(None, out);
            }
            self.left(now, out);
        } else if now.at >= leaving.next {
            let until = self.by_stop(now.at + self.timing.call_limit);
            self.send(now, Action::Release { token }, until, out);
        }
    }

    fn by_stop(&self, until: Instant) -> Instant {
        self.stop_by.map_or(until, |by| by.min(until))
    }

    /// The way out of a term is over.
    pub(super) fn left(&mut self, now: Moment, out: &mut Vec<Output>) {
        if self.stop_by.is_some() {
            return self.finish(now, out);
        }
        out.push(Output::Left { unreleased: self.unreleased(now) });
        let State::Leaving(leaving) = &self.state else { return };
        let ask_at = leaving.ask_at;
        let next =
            if ask_at > now.at { ask_at + self.timing.jitter.mul_f64(now.dice) } else { self.soon(now) };
        self.state = State::Following { next };
        self.follow(now, next);
    }

    fn finish(&mut self, now: Moment, out: &mut Vec<Output>) {
        out.push(Output::Left { unreleased: self.unreleased(now) });
        out.push(Output::Stopped);
        self.state = State::Stopped;
        self.in_flight = None;
    }

    /// The lease that this instance leaves behind.
    fn unreleased(&mut self, now: Moment) -> Option<Unreleased> {
        let State::Leaving(leaving) = &mut self.state else { return None };
        let left = leaving.ours && now.at < leaving.held_until;
        left.then(|| Unreleased {
            token: (leaving.token != UNKNOWN).then_some(leaving.token),
            until: leaving.held_until,
            overrun: leaving.overrun && leaving.working.is_some(),
            error: leaving.failed.take(),
        })
    }
}

impl Leaving {
    /// The way out of a lease that was won, or may have been, and that nobody was told of.
    pub(super) fn untold(token: u64, now: Instant, held_until: Instant) -> Self {
        Self {
            token,
            since: now,
            reason: Reason::Stopped,
            ours: true,
            yields: false,
            held_until,
            working: None,
            overrun: false,
            next: now,
            ask_at: now,
            failed: None,
        }
    }
}
