//! One election within a driver: its machine, and everybody who is to be told.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};

use super::{Command, ElectionId, Outlets};
use crate::election::clock::Instant;
use crate::election::error::Error;
use crate::election::event::{Demotion, Event, Reason};
use crate::election::key::{Group, InstanceId};
use crate::election::leadership::Standing;
use crate::election::machine::{Input, Machine, Moment, Output, Unreleased};
use crate::election::options::Timing;
use crate::election::store::Operation;

/// A machine, in whose name operations are sent and events are told.
pub(crate) struct Election {
    number: ElectionId,
    group: Group,
    id: InstanceId,
    timing: Timing,
    machine: Machine,
    standing: Arc<Standing>,
    outlets: Outlets,
    /// The token of the present term, and the sender whose loss is its lost-signal.
    term: Option<(u64, Sender<()>)>,
    /// Who waits for the way out of a term to be over.
    waiting: Vec<Sender<Result<(), Error>>>,
    /// How the last way out ended.
    outcome: Result<(), Error>,
    stopped: bool,
}

/// What an election wants done with its operations.
pub(super) enum Order {
    Send { op: u64, until: Instant, operation: Operation },
    Shorten { op: u64, until: Instant },
}

impl Election {
    pub(crate) fn new(
        number: ElectionId,
        group: Group,
        id: InstanceId,
        timing: Timing,
        standing: Arc<Standing>,
        outlets: Outlets,
    ) -> Self {
        let now = Moment { at: Instant::now(), dice: rand::random() };
        let machine = Machine::new(id.clone(), timing, false, now);
        Self {
            number,
            group,
            id,
            timing,
            machine,
            standing,
            outlets,
            term: None,
            waiting: Vec::new(),
            outcome: Ok(()),
            stopped: false,
        }
    }

    pub(super) fn number(&self) -> ElectionId {
        self.number
    }

    pub(super) fn wake_at(&self) -> Instant {
        self.machine.wake_at()
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.stopped
    }

    pub(super) fn is_lagging(&self) -> bool {
        self.outlets.is_lagging()
    }

    /// Tells subscriptions that are behind what they missed; whether one still is.
    pub(super) fn is_behind_after_catching_up(&mut self) -> bool {
        self.outlets.catch_up();
        self.outlets.is_lagging()
    }

    /// What a command means to the machine, if it concerns it.
    pub(super) fn command(&mut self, command: Command) -> Option<Input> {
        match command {
            Command::Subscribe(subscriber) => {
                if let Some(sender) = subscriber.take() {
                    self.outlets.subscribe(sender);
                }
                None
            }
            Command::StepDown { pause, done } => {
                self.waiting.push(done);
                Some(Input::StepDown { pause })
            }
            Command::EndTerm { token } => {
                let stands = self.term.as_ref().is_some_and(|(term, _)| *term == token);
                stands.then_some(Input::StepDown { pause: self.timing.wait })
            }
            Command::Stop => Some(Input::Stop),
        }
    }

    /// Gives the machine an input and does what it says, but for its orders about operations.
    pub(super) fn handle(&mut self, now: Moment, input: Input) -> Vec<Order> {
        let (mut outputs, mut orders) = (Vec::new(), Vec::new());
        self.machine.handle(now, input, &mut outputs);
        let mut lapsed = false;
        for output in outputs {
            lapsed |= self.apply(output, &mut orders);
        }
        if lapsed {
            orders.extend(self.handle(Moment { at: Instant::now(), ..now }, Input::Lapsed));
        }
        if self.machine.is_settled() {
            self.answer_waiting(&Ok(()));
        }
        orders
    }

    /// Does one thing; true if the term has lapsed before it could be extended.
    fn apply(&mut self, output: Output, orders: &mut Vec<Order>) -> bool {
        let group = self.group.name();
        match output {
            Output::Send { op, action, until } => {
                log::trace!(
                    "group {group:?}: {action:?} within {:?}",
                    until.saturating_duration_since(Instant::now())
                );
                let (group, id, ttl) = (self.group.clone(), self.id.clone(), self.timing.ttl);
                orders.push(Order::Send { op, until, operation: Operation { group, id, ttl, action } });
            }
            Output::Shorten { op, until } => orders.push(Order::Shorten { op, until }),
            Output::Promoted { token, until } => {
                let (sender, lost) = bounded(0);
                let leadership = self.standing.begin(token, until, lost);
                self.term = Some((token, sender));
                self.outlets.tell(&Event::Promoted(leadership));
                log::info!("group {group:?}: promoted, token {token}");
            }
            Output::Extended { until } => {
                let extended = self.standing.extend(until);
                log::trace!("group {group:?}: renewed");
                return !extended;
            }
            Output::Demoted { token, reason } => self.demoted(token, reason),
            Output::Leader(leader) => {
                let event = Event::LeaderChanged(leader);
                self.outlets.tell(&event);
                log::debug!("group {group:?}: {event:?}");
            }
            Output::Failed { operation, error } => self.tell_error(Error::store(operation, group, error)),
            Output::Unending { operation, holder } => {
                let message = format!(
                    "the lease of group {group:?} is held by {holder} without an expiry, so it never ends; \
                     delete the key {} if nobody needs it",
                    self.group.lease(),
                );
                self.tell_error(Error::refused(operation, message));
            }
            Output::FarAhead { token, by } => {
                log::warn!(
                    "group {group:?}: token {token} is {by:?} ahead of the store's time; a clock was wrong once"
                );
            }
            Output::Overrun { token, since } => {
                self.tell_error(Error::overrun(group, token, since.elapsed()));
            }
            Output::Left { unreleased } => self.left(unreleased),
            Output::Stopped => {
                self.stopped = true;
                self.outlets.stopped();
                self.standing.end(self.outcome.clone());
            }
        }
        false
    }

    /// Ends the term: its validity first, then the lost-signal, then the telling.
    fn demoted(&mut self, token: u64, reason: Reason) {
        let at = self.standing.end_term();
        self.term = None;
        self.outlets.tell(&Event::Demoted(Demotion { token, reason, at }));
        let group = self.group.name();
        match reason {
            Reason::SteppedDown | Reason::Stopped => {
                log::info!("group {group:?}: demoted, token {token}: {reason}");
            }
            _ => log::warn!("group {group:?}: demoted, token {token}: {reason}"),
        }
    }

    fn left(&mut self, unreleased: Option<Unreleased>) {
        let outcome = unreleased.map_or(Ok(()), |unreleased| {
            let left = unreleased.until.saturating_duration_since(Instant::now());
            Err(Error::unreleased(self.group.name(), unreleased, left))
        });
        if let Err(error) = &outcome {
            self.tell_error(error.clone());
        }
        self.answer_waiting(&outcome);
        self.outcome = outcome;
    }

    fn answer_waiting(&mut self, outcome: &Result<(), Error>) {
        for done in self.waiting.drain(..) {
            // Who has stopped waiting needs no answer.
            done.try_send(outcome.clone()).ok();
        }
    }

    fn tell_error(&mut self, error: Error) {
        self.outlets.tell(&Event::Error(error.clone()));
        log::debug!("{}", error.to_chain());
    }
}

impl Drop for Election {
    /// An election that ends without having stopped has lost its thread: nobody renews any more.
    fn drop(&mut self) {
        self.standing.end(Err(Error::dead()));
        if !self.stopped {
            log::error!("group {:?}: a thread of the election has died; it leads no more", self.group.name());
        }
    }
}

/// The longest that the way out of a term takes: one call limit each for the operation in flight and
/// for the release.
pub(crate) fn longest_way_out(timing: &Timing) -> Duration {
    timing.call_limit * 2
}
