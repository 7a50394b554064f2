//! What each answer of the store means.

use std::time::Duration;

use super::leaving::UNKNOWN;
use super::{
    Action, Answer, EXPIRY_STEP, FIRST_BACKOFF, InFlight, Leader, Leaving, Machine, Moment, Operation,
    Output, RELEASE_PART, RELEASE_PAUSE, Reason, RenewError, State, StoreError, Term,
};
use crate::election::clock::Instant;
use crate::election::store::{Class, Holding, Outcome};

/// A token this far ahead of the store's time is not explained by terms that follow each other.
const FAR_AHEAD: Duration = Duration::from_secs(24 * 60 * 60);

impl Machine {
    /// Takes the answer to a request, whatever has become of the state meanwhile.
    pub(super) fn answered(
        &mut self,
        now: Moment,
        request: InFlight,
        result: Result<Answer, StoreError>,
        out: &mut Vec<Output>,
    ) {
        if let Ok(Answer::Held(holding)) = &result {
            self.floor = self.floor.max(holding.token.unwrap_or(0));
        }
        self.stuck = match &result {
            Ok(Answer::Held(holding)) => holding.remaining.is_none(),
            Ok(_) => false,
            Err(error) => error.class() == Class::Configuration,
        };
        match request.action {
            Action::Acquire { .. } => self.acquire_answered(now, request.sent_at, result, out),
            Action::Renew { .. } => self.renew_answered(now, &request, result, out),
            Action::Release { .. } => self.release_answered(now, result, out),
            Action::Look => self.look_answered(now, request.sent_at, result, out),
        }
    }

    fn acquire_answered(
        &mut self,
        now: Moment,
        sent_at: Instant,
        result: Result<Answer, StoreError>,
        out: &mut Vec<Output>,
    ) {
        let again = self.is_to_ask_again();
        match result {
            Ok(Answer::Won { token, ahead }) => self.won(now, sent_at, token, ahead, out),
            Ok(Answer::Held(holding)) => {
                self.unsettled = false;
                self.failures = 0;
                let jitter = self.timing.jitter.mul_f64(now.dice);
                let next = if again { now.at } else { self.end_of(now, sent_at, &holding) };
                self.follow(now, next + jitter);
                self.told_holding(Operation::Acquire, holding, out);
            }
            Ok(answer) => {
                let text = match answer {
                    Answer::Ghost => "the store has answered a later attempt of this instance already",
                    _ => "the store's answer does not fit an acquire",
                };
                let error = StoreError::new(Outcome::Refused, Class::Passing, text);
                self.acquire_failed(now, error, out);
            }
            Err(error) => self.acquire_failed(now, error, out),
        }
    }

    fn won(&mut self, now: Moment, sent_at: Instant, token: u64, ahead: Duration, out: &mut Vec<Output>) {
        self.unsettled = false;
        self.failures = 0;
        self.floor = self.floor.max(token);
        self.own_token = token;
        if ahead > FAR_AHEAD {
            out.push(Output::FarAhead { token, by: ahead });
        }
        let deadline = self.deadline(sent_at);
        let held_until = sent_at + self.timing.ttl;
        if now.at >= deadline || now.at < self.pause_until || self.stop_by.is_some() {
            // Won too late to prove it, or no longer wanted: nobody is told, and it is given back.
            self.state = State::Leaving(Leaving::untold(token, now.at, held_until));
            return;
        }
        let renew_at = self.renew_at(now, sent_at);
        self.state =
            State::Leading(Term { token, deadline, renew_at, held_until, working: false, failed: None });
        out.push(Output::Promoted { token, until: deadline });
        let id = self.id.as_str().to_owned();
        self.told(Some(Leader { id, token: Some(token) }), out);
    }

    fn look_answered(
        &mut self,
        now: Moment,
        sent_at: Instant,
        result: Result<Answer, StoreError>,
        out: &mut Vec<Output>,
    ) {
        let again = self.is_to_ask_again();
        match result {
            Ok(answer) => {
                let next = match &answer {
                    _ if again => self.soon(now),
                    Answer::Held(holding) => {
                        self.end_of(now, sent_at, holding) + self.timing.jitter.mul_f64(now.dice)
                    }
                    _ => now.at + self.timing.wait,
                };
                self.failures = 0;
                self.follow(now, next);
                self.gone(Operation::Look, answer, out);
            }
            Err(error) => {
                self.back_off(now, &error);
                out.push(failed(Operation::Look, error));
            }
        }
    }

    fn acquire_failed(&mut self, now: Moment, error: StoreError, out: &mut Vec<Output>) {
        self.unsettled |= error.outcome() == Outcome::Unknown;
        self.back_off(now, &error);
        out.push(failed(Operation::Acquire, error));
    }

    fn back_off(&mut self, now: Moment, error: &StoreError) {
        let pause = match error.class() {
            Class::Configuration => self.timing.wait,
            Class::Passing | Class::WrongNode => {
                let doubled = FIRST_BACKOFF.saturating_mul(1 << self.failures.min(30));
                doubled.min(self.timing.wait).mul_f64(now.dice)
            }
        };
        self.failures = self.failures.saturating_add(1);
        self.follow(now, now.at + pause);
    }

    fn renew_answered(
        &mut self,
        now: Moment,
        request: &InFlight,
        result: Result<Answer, StoreError>,
        out: &mut Vec<Output>,
    ) {
        let sent_at = request.sent_at;
        match &mut self.state {
            State::Leading(_) => self.renew_answered_leading(now, request, result, out),
            State::Leaving(leaving) => match result {
                Ok(Answer::Renewed { .. }) => {
                    leaving.next = match leaving.working {
                        Some(_) => sent_at + self.timing.ttl / 2 + self.timing.jitter.mul_f64(now.dice),
                        None => now.at,
                    };
                }
                Ok(answer) => self.gone(Operation::Renew, answer, out),
                Err(error) => {
                    let fatal = leaving.reason == Reason::Expired && sent_at < leaving.since;
                    leaving.next = match leaving.working {
                        Some(_) => now.at + self.timing.retry_pause(),
                        None => now.at,
                    };
                    // It says why the term expired; what fails on the way out changes nothing.
                    if fatal {
                        out.push(failed(Operation::Renew, error));
                    }
                }
            },
            State::Following { .. } | State::Stopped => {}
        }
    }

    fn renew_answered_leading(
        &mut self,
        now: Moment,
        request: &InFlight,
        result: Result<Answer, StoreError>,
        out: &mut Vec<Output>,
    ) {
        let sent_at = request.sent_at;
        let (deadline, renew_at) = (self.deadline(sent_at), self.renew_at(now, sent_at));
        let State::Leading(term) = &mut self.state else { return };
        match result {
            Ok(Answer::Renewed { .. }) => {
                term.deadline = deadline;
                term.renew_at = renew_at;
                term.failed = None;
                out.push(Output::Extended { until: deadline });
            }
            Ok(answer) => {
                let until = match &answer {
                    // Nobody but this instance wins a lease that has its id as its value.
                    Answer::Held(holding) if holding.holder == self.id => now.at,
                    Answer::Held(holding) => self.end_of(now, sent_at, holding),
                    _ => now.at,
                };
                self.leave(now, Reason::Lost, out);
                if let State::Leaving(leaving) = &mut self.state {
                    leaving.ask_at = until;
                    leaving.yields = self.timing.strict.is_some() && answer == Answer::Vacant;
                }
                self.gone(Operation::Renew, answer, out);
            }
            // It asked early because something had happened; what counts is the one in time.
            Err(_) if request.early => {}
            Err(error) => match self.timing.renew_error {
                RenewError::Demote => {
                    self.leave(now, Reason::RenewError, out);
                    out.push(failed(Operation::Renew, error));
                }
                RenewError::Retry => {
                    term.renew_at = now.at + self.timing.retry_pause();
                    term.failed = Some(error);
                }
            },
        }
    }

    fn release_answered(&mut self, now: Moment, result: Result<Answer, StoreError>, out: &mut Vec<Output>) {
        let State::Leaving(leaving) = &mut self.state else { return };
        match result {
            Ok(Answer::Released) => {
                leaving.ours = false;
                self.told(None, out);
                self.left(now, out);
            }
            Ok(Answer::Held(Holding { holder, token: Some(token), .. }))
                if (self.stop_by.is_some() || leaving.token == UNKNOWN)
                    && holder == self.id
                    && token != leaving.token =>
            {
                // An acquire of ours whose reply was lost has won: this is its term.
                leaving.token = token;
                leaving.next = now.at;
            }
            Ok(answer) => {
                self.gone(Operation::Release, answer, out);
                self.left(now, out);
            }
            Err(error) if error.class() == Class::Configuration => {
                // It would not pass before the lease ends by itself.
                leaving.failed = Some(error);
                self.left(now, out);
            }
            Err(error) => {
                leaving.failed = Some(error);
                let passed = now.at.saturating_duration_since(leaving.since);
                leaving.next = now.at + RELEASE_PAUSE.max(passed / RELEASE_PART);
            }
        }
    }

    /// The store says that the lease is not this term's.
    fn gone(&mut self, operation: Operation, answer: Answer, out: &mut Vec<Output>) {
        if let State::Leaving(leaving) = &mut self.state {
            leaving.ours = false;
        }
        match answer {
            Answer::Held(holding) => self.told_holding(operation, holding, out),
            _ => self.told(None, out),
        }
    }

    fn told_holding(&mut self, operation: Operation, holding: Holding, out: &mut Vec<Output>) {
        if holding.remaining.is_none() {
            out.push(Output::Unending { operation, holder: holding.holder.clone() });
        }
        if holding.is_parked() {
            return self.told(None, out);
        }
        let leader = Leader { id: holding.holder.as_str().to_owned(), token: holding.token };
        let is_new = self.leader.as_ref() != Some(&leader);
        if is_new && holding.token.is_some() && holding.strict != self.timing.strict {
            out.push(Output::Unlike { operation, holder: holding.holder, strict: holding.strict });
        }
        self.told(Some(leader), out);
    }

    pub(super) fn told(&mut self, leader: Option<Leader>, out: &mut Vec<Output>) {
        if self.leader != leader {
            // Another's lease passed on without a wake: a crash, or a connection that is half open. A Go
            // instance, which has no token, never sends one.
            let passed = self.leader.as_ref().filter(|last| last.id != self.id.as_str());
            let wake = passed.and_then(|last| last.token);
            if wake.is_some_and(|token| token != self.heard) {
                out.push(Output::Unheard);
            }
            self.leader.clone_from(&leader);
            out.push(Output::Leader(leader));
        }
    }

    /// When another's lease ends, but not later than `wait` from the question and not before now.
    ///
    /// What remains of it was counted when the question arrived. Counted from when the question was
    /// sent, the next one arrives as much later than that as the first did: right at the end.
    fn end_of(&self, now: Moment, sent_at: Instant, holding: &Holding) -> Instant {
        let remaining = holding.remaining.unwrap_or(Duration::MAX).saturating_add(EXPIRY_STEP);
        (sent_at + remaining.min(self.timing.wait)).max(now.at)
    }

    fn deadline(&self, sent_at: Instant) -> Instant {
        sent_at + (self.timing.ttl - self.timing.stop_margin)
    }

    fn renew_at(&self, now: Moment, sent_at: Instant) -> Instant {
        sent_at + self.timing.ttl / 2 + self.timing.jitter.mul_f64(now.dice)
    }
}

/// What was not sent has failed at connecting, whatever was to be done.
pub(super) fn failed(operation: Operation, error: StoreError) -> Output {
    let operation = if error.outcome() == Outcome::NotSent { Operation::Connect } else { operation };
    Output::Failed { operation, error }
}
