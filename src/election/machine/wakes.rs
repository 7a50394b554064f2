//! What is heard of releases, and what may have been missed of them.

use std::time::Duration;

use super::{Machine, Moment, Output, RELEASE_PAUSE, State};
use crate::election::clock::Instant;

/// A renewal before its time comes no sooner after the one before than this part of ttl.
const EARLY_PART: u32 = 10;

impl Machine {
    /// Whether a wake with this token tells nothing: this instance released it, or has led since.
    pub(crate) fn is_old(&self, token: u64) -> bool {
        token <= self.own_token
    }

    pub(super) fn woken(&mut self, now: Moment, token: u64) {
        self.heard = token;
        if self.is_old(token) {
            return;
        }
        self.rest_until = now.at;
        self.ask_soon(now);
        self.woken = self.attempt_is_under_way();
    }

    /// Wakes are heard again; what was asked at their loss may have found nobody to answer it.
    pub(super) fn wake_back(&mut self, now: Moment, out: &mut Vec<Output>) {
        self.renew_early(now, true, out);
        if !self.stuck {
            self.ask_soon(now);
        }
        self.missed = self.attempt_is_under_way();
    }

    /// Asks whether the lease is still ours, before its time, unless it has just asked, or has just been
    /// answered.
    pub(super) fn renew_early(&mut self, now: Moment, answered: bool, out: &mut Vec<Output>) {
        let State::Leading(term) = &self.state else { return };
        let asked_at = match answered {
            true => self.timing.sent_at(term.deadline),
            false => term.held_until.saturating_sub(self.timing.ttl),
        };
        let just_asked = now.at < asked_at + self.timing.ttl / EARLY_PART;
        if self.in_flight.is_none() && !just_asked && now.at < term.renew_at {
            self.send_renewal(now, true, out);
        }
    }

    /// Whether the answer that comes next may be older than what was heard since.
    pub(super) fn is_to_ask_again(&mut self) -> bool {
        let (woken, missed) = (std::mem::take(&mut self.woken), std::mem::take(&mut self.missed));
        woken || missed && !self.stuck
    }

    fn attempt_is_under_way(&self) -> bool {
        matches!(self.state, State::Following { .. }) && self.in_flight.is_some()
    }

    /// Brings the next attempt forward.
    fn ask_soon(&mut self, now: Moment) {
        let soon = self.soon(now);
        if let State::Following { next } = &mut self.state {
            *next = (*next).min(soon);
        }
    }

    /// When to ask after the lease was released: at once, or once another instance may have won it.
    ///
    /// Here the jitter is spread by the square of the dice: half of the attempts come within its first
    /// quarter. Nobody leads meanwhile, and however many followers ask, the first is answered.
    pub(super) fn soon(&self, now: Moment) -> Instant {
        let late = if now.at < self.barred_until() { RELEASE_PAUSE } else { Duration::ZERO };
        now.at + late + self.timing.jitter.mul_f64(now.dice * now.dice)
    }
}
