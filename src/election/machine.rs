//! The rules of one election, as a state machine without I/O, clock, thread, randomness or log.
//!
//! It is given the time with every input, says what is to be sent and told, and when it wants to be
//! called again. Every rule about time or order is here, so all of them are tested in virtual time.
//!
//! ```text
//!              Won in time                    step down, stop, lost, expired,
//!              ┌─────────────────────────┐    renewal error, lead work ended
//!              │                         ▼      │
//!    ┌──────────────┐              ┌─────────┐  │  ┌─────────┐  stopping  ┌─────────┐
//! ──▶│  Following   │              │ Leading │──┴─▶│ Leaving │───────────▶│ Stopped │
//!    └──────────────┘              └─────────┘     └─────────┘            └─────────┘
//!        ▲      │ won too late, or while stopping      ▲  │
//!        │      └──────────────────────────────────────┘  │ the lead work has returned, and the
//!        └────────────────────────────────────────────────┘ release is answered or given up
//! ```

mod answers;
mod leaving;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
mod wakes;

use std::time::Duration;

use super::clock::Instant;
use super::error::Operation;
use super::event::{Leader, Reason};
use super::key::InstanceId;
use super::options::{RenewError, Timing};
use super::store::strict::Strictness;
use super::store::{Action, Answer, StoreError};
use leaving::Leaving;

/// The first back-off after an error; it doubles with each further one, up to `wait`.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
/// How far apart a release is tried after the lead work has returned, at first.
const RELEASE_PAUSE: Duration = Duration::from_millis(25);
/// Later it is this part of the time that has passed: a release is late by half a percent of the outage.
const RELEASE_PART: u32 = 200;
/// Redis expires a lease at the millisecond after its last one: an attempt at PTTL + 0 loses.
const EXPIRY_STEP: Duration = Duration::from_millis(1);

/// The time of an input, and the random number of that moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) at: Instant,
    /// Uniform in 0..1; one is enough, for at most one instant is drawn at a time.
    pub(crate) dice: f64,
}

/// What happens to an election.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    /// Time has passed.
    Time,
    /// The store has answered an operation.
    Answer { op: u64, result: Result<Answer, StoreError> },
    /// Somebody says that the lease was released by the term with this token.
    Wake { token: u64 },
    /// The connection that wakes come over was lost: something may have happened to the store.
    WakeLost,
    /// There is such a connection from now on: what was told before was missed.
    WakeBack,
    /// Lead work runs for this term from now on.
    LeadBegan { token: u64 },
    /// The lead work of this term has returned.
    LeadReturned { token: u64 },
    /// An extension came too late: the deadline before it had passed by the clock that readers see.
    Lapsed,
    /// The user gives up leadership and does not contend for `pause`.
    StepDown { pause: Duration },
    /// The user ends the election.
    Stop,
}

/// What is to be done about it, in this order.
#[derive(Clone, Debug)]
pub(crate) enum Output {
    /// Give this to the store; it is answered, or has failed, by `until`.
    Send { op: u64, action: Action, until: Instant },
    /// The operation in flight has no longer than this now.
    Shorten { op: u64, until: Instant },
    /// A term begins, proved until then.
    Promoted { token: u64, until: Instant },
    /// The term is proved until then.
    Extended { until: Instant },
    /// The term ends.
    Demoted { token: u64, reason: Reason },
    /// Another holder of the lease is known, this instance included, or nobody.
    Leader(Option<Leader>),
    /// An operation failed.
    Failed { operation: Operation, error: StoreError },
    /// The lease in the store has no expiry: nobody of ours wrote it, and it never ends.
    Unending { operation: Operation, holder: InstanceId },
    /// The holder is strict in another way than this instance, or only one of them is strict.
    Unlike { operation: Operation, holder: InstanceId, strict: Option<Strictness> },
    /// A token is this far ahead of the store's time.
    FarAhead { token: u64, by: Duration },
    /// The lead work still runs at the end of its grace, or a `wait` later.
    Overrun { token: u64, since: Instant },
    /// The lease went from one holder to another, and no wake told of it.
    Unheard,
    /// The way out of a term is over; the lease that could not be released, and why.
    Left { unreleased: Option<Unreleased> },
    /// Nothing follows.
    Stopped,
}

/// A lease that this instance may still hold and has given up releasing; it ends by itself.
#[derive(Clone, Debug)]
pub(crate) struct Unreleased {
    /// None where an attempt was not answered, so that it is not known whether there is a lease.
    pub(crate) token: Option<u64>,
    /// When it ends at the latest, but for the time that the last request was under way.
    pub(crate) until: Instant,
    /// Whether the lead work has outlived its grace, so that no release was tried.
    pub(crate) overrun: bool,
    /// How the last release failed; none where no answer has come.
    pub(crate) error: Option<StoreError>,
}

/// One election of one instance.
#[derive(Debug)]
pub(crate) struct Machine {
    id: InstanceId,
    timing: Timing,
    state: State,
    in_flight: Option<InFlight>,
    last_op: u64,
    /// Counts this instance's acquires, so that the store can refuse one that was overtaken.
    attempt: u64,
    /// The highest token seen.
    floor: u64,
    /// The token this instance won last; a wake with it or an earlier one tells nothing new.
    own_token: u64,
    /// How many attempts have failed in a row.
    failures: u32,
    /// An acquire of unknown outcome may have won the lease.
    unsettled: bool,
    /// The last answer was one that only somebody else can change, such as a right that is missing: it is asked
    /// again every `wait`, and not because wakes are heard again.
    stuck: bool,
    /// A wake came while an attempt was under way.
    woken: bool,
    /// One may have been missed before the attempt that was under way when wakes were heard again.
    missed: bool,
    /// The token of the last wake.
    heard: u64,
    /// Until when it stands back after a term; another holder's wake ends this.
    rest_until: Instant,
    /// Until when it does not contend, whatever happens.
    pause_until: Instant,
    leader: Option<Leader>,
    stop_by: Option<Instant>,
}

#[derive(Debug)]
enum State {
    /// It tries to win the lease at `next`; while it may not, it looks who holds it.
    Following {
        next: Instant,
    },
    Leading(Term),
    Leaving(Leaving),
    Stopped,
}

/// A term that this instance can prove.
#[derive(Debug)]
struct Term {
    token: u64,
    /// Counted from before the last good request: `sent_at + ttl - stop margin`.
    deadline: Instant,
    renew_at: Instant,
    /// When the lease ends at the latest, but for the time that a request was under way: ttl after the last one
    /// that may have set its expiry.
    held_until: Instant,
    /// Whether lead work runs, which is to be waited for on the way out.
    working: bool,
    /// The last error under [`RenewError::Retry`], told only if the term expires of it.
    failed: Option<StoreError>,
}

#[derive(Debug)]
struct InFlight {
    op: u64,
    action: Action,
    sent_at: Instant,
    /// A renewal before its time: if it fails, the one in time decides.
    early: bool,
}

impl Machine {
    /// An election that begins with an attempt at once.
    pub(crate) fn new(id: InstanceId, timing: Timing, now: Moment) -> Self {
        Self {
            id,
            state: State::Following { next: now.at + timing.jitter.mul_f64(now.dice) },
            in_flight: None,
            last_op: 0,
            attempt: 0,
            floor: 0,
            own_token: 0,
            failures: 0,
            unsettled: false,
            stuck: false,
            woken: false,
            missed: false,
            heard: 0,
            rest_until: now.at,
            pause_until: now.at,
            leader: None,
            stop_by: None,
            timing,
        }
    }

    /// Takes one input and appends what is to be done about it.
    pub(crate) fn handle(&mut self, now: Moment, input: Input, out: &mut Vec<Output>) {
        // The deadline comes before whatever else happens now: what arrives after it wins nothing.
        self.expire(now, out);
        match input {
            Input::Time => {}
            Input::Answer { op, result } => {
                if let Some(request) = self.in_flight.take_if(|request| request.op == op) {
                    self.answered(now, request, result, out);
                }
            }
            Input::Wake { token } => self.woken(now, token),
            Input::WakeLost => self.renew_early(now, false, out),
            Input::WakeBack => self.wake_back(now, out),
            Input::LeadBegan { token } => self.lead_began(token),
            Input::LeadReturned { token } => self.lead_returned(now, token, out),
            Input::Lapsed => self.leave(now, Reason::Expired, out),
            Input::StepDown { pause } => self.step_down(now, pause, out),
            Input::Stop => self.stop(now, out),
        }
        self.advance(now, out);
    }

    /// When it wants to be called again, if nothing happens before.
    pub(crate) fn wake_at(&self) -> Instant {
        let idle = |at| if self.in_flight.is_none() { at } else { Instant::NEVER };
        let next = match &self.state {
            State::Following { next } => idle(*next),
            State::Leading(term) => term.deadline.min(idle(term.renew_at)),
            State::Leaving(leaving) => match leaving.working {
                Some(told) if leaving.overrun || !leaving.ours => told,
                Some(told) => told.min(idle(leaving.next)),
                None => idle(leaving.next.min(leaving.held_until)),
            },
            State::Stopped => return Instant::NEVER,
        };
        self.stop_by.map_or(next, |by| by.min(next))
    }

    /// Whether this instance holds no lease: no term is under way or on its way out, and no attempt
    /// that may win one.
    pub(crate) fn is_settled(&self) -> bool {
        let attempts = self.in_flight.as_ref().is_some_and(|request| request.action != Action::Look);
        matches!(self.state, State::Following { .. } | State::Stopped) && !attempts
    }

    fn expire(&mut self, now: Moment, out: &mut Vec<Output>) {
        if matches!(&self.state, State::Leading(term) if now.at >= term.deadline) {
            self.leave(now, Reason::Expired, out);
        }
    }

    fn lead_began(&mut self, token: u64) {
        match &mut self.state {
            State::Leading(term) if term.token == token => term.working = true,
            // The term ended in the moment in which the work was started.
            State::Leaving(leaving) if leaving.token == token => {
                leaving.working = Some(leaving.since + self.timing.lead_grace);
            }
            _ => {}
        }
    }

    fn lead_returned(&mut self, now: Moment, token: u64, out: &mut Vec<Output>) {
        if matches!(&self.state, State::Leading(term) if term.token == token) {
            self.leave(now, Reason::LeadEnded, out);
        }
        if let State::Leaving(leaving) = &mut self.state
            && leaving.token == token
        {
            leaving.working = None;
            leaving.next = now.at;
        }
    }

    /// Does what is due now.
    fn advance(&mut self, now: Moment, out: &mut Vec<Output>) {
        if self.stop_by.is_some() && self.advance_stop(now, out) {
            return;
        }
        self.settle(now);
        // The way out comes first, for it may lead right to the next attempt.
        self.advance_leaving(now, out);
        let barred = self.barred_until();
        match &mut self.state {
            State::Following { next } => {
                if self.in_flight.is_some() || now.at < *next {
                    return;
                }
                if now.at < barred {
                    // Right before the attempt that tells it anyway, it need not look.
                    if now.at + RELEASE_PAUSE >= barred {
                        *next = barred;
                    } else {
                        self.send(now, Action::Look, now.at + self.timing.look_limit(), out);
                    }
                } else {
                    self.attempt += 1;
                    let action = Action::Acquire { attempt: self.attempt, floor: self.floor };
                    self.send(now, action, now.at + self.timing.call_limit, out);
                }
            }
            State::Leading(term) => {
                if self.in_flight.is_none() && now.at >= term.renew_at {
                    self.send_renewal(now, false, out);
                }
            }
            State::Leaving(_) | State::Stopped => {}
        }
    }

    /// Until when it may not contend.
    fn barred_until(&self) -> Instant {
        self.rest_until.max(self.pause_until)
    }

    /// Sets when it asks next: while it may not contend, no later than when it may again.
    fn follow(&mut self, now: Moment, at: Instant) {
        let barred = self.barred_until();
        let at = if now.at < barred { at.min(barred + self.timing.jitter.mul_f64(now.dice)) } else { at };
        if let State::Following { next } = &mut self.state {
            *next = at;
        }
    }

    fn send_renewal(&mut self, now: Moment, early: bool, out: &mut Vec<Output>) {
        let State::Leading(term) = &mut self.state else { return };
        term.held_until = now.at + self.timing.ttl;
        let until = match self.timing.renew_error {
            RenewError::Demote if !early => term.deadline,
            _ => term.deadline.min(now.at + self.timing.retry_limit()),
        };
        let action = Action::Renew { token: term.token };
        self.send(now, action, until, out);
        if let Some(request) = &mut self.in_flight {
            request.early = early;
        }
    }

    fn send(&mut self, now: Moment, action: Action, until: Instant, out: &mut Vec<Output>) {
        self.last_op += 1;
        // The deadline of what is won counts from here, before anything of it is sent.
        self.in_flight = Some(InFlight { op: self.last_op, action, sent_at: now.at, early: false });
        out.push(Output::Send { op: self.last_op, action, until });
    }
}
