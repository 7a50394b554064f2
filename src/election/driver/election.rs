//! One election within a driver: its machine, and everybody who is to be told.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::Sender;

use super::{Command, ElectionId, Lead, Outlets};
use crate::election::clock::Instant;
use crate::election::error::{self, Error};
use crate::election::event::{Demotion, Event, Reason};
use crate::election::key::{Group, InstanceId};
use crate::election::leadership::{Leadership, Standing};
use crate::election::machine::{Input, Machine, Moment, Output, Unreleased};
use crate::election::options::Timing;
use crate::election::status::{Inspection, Role, inspection, look};
use crate::election::store::strict::Strictness;
use crate::election::store::{Action, Answer, Operation, StoreError};

/// A machine, in whose name operations are sent and events are told.
pub(crate) struct Election {
    number: ElectionId,
    group: Group,
    id: InstanceId,
    timing: Timing,
    machine: Machine,
    standing: Arc<Standing>,
    outlets: Outlets,
    lead: Lead,
    /// The token of the present term.
    term: Option<u64>,
    /// Who waits for the way out of a term to be over.
    waiting: Vec<Sender<Result<(), Error>>>,
    /// Whether lead work runs, of this term or an earlier one.
    working: bool,
    /// How the last way out ended.
    outcome: Result<(), Error>,
    stopped: bool,
}

/// What an election wants done with its operations.
pub(super) enum Order {
    Send {
        op: u64,
        until: Instant,
        operation: Operation,
    },
    Shorten {
        op: u64,
        until: Instant,
    },
    /// Listen for wakes on another connection.
    Listen,
}

impl Election {
    pub(crate) fn new(
        number: ElectionId,
        group: Group,
        id: InstanceId,
        timing: Timing,
        standing: Arc<Standing>,
        outlets: Outlets,
        lead: Lead,
    ) -> Self {
        let now = Moment { at: Instant::now(), dice: rand::random() };
        let machine = Machine::new(id.clone(), timing, now);
        Self {
            number,
            group,
            id,
            timing,
            machine,
            standing,
            outlets,
            lead,
            term: None,
            waiting: Vec::new(),
            working: false,
            outcome: Ok(()),
            stopped: false,
        }
    }

    pub(super) fn number(&self) -> ElectionId {
        self.number
    }

    pub(super) fn group(&self) -> &Group {
        &self.group
    }

    /// How long this instance waits before it tries again what cannot work.
    pub(super) fn wait(&self) -> Duration {
        self.timing.wait
    }

    /// The operation that asks who leads, and until when it may take.
    pub(super) fn look(&self) -> (Operation, Instant) {
        (look(&self.group), Instant::now() + self.timing.look_limit())
    }

    /// What the answer to it says.
    pub(super) fn inspection(&self, result: Result<Answer, StoreError>) -> Result<Inspection, Error> {
        inspection(&self.group, Some(result))
    }

    /// Tells that wakes cannot be heard.
    pub(super) fn tell_of_wakes(&mut self, error: StoreError) {
        self.tell_error(Error::store(error::Operation::Wake, self.group.name(), error));
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
                let stands = self.term == Some(token);
                stands.then_some(Input::StepDown { pause: self.timing.wait })
            }
            Command::LeadBegan { token, granted } => self.lead_began(token, &granted),
            Command::LeadReturned { token, panic, taken } => {
                self.working = false;
                self.standing.note(|status| status.overrun = None);
                drop(taken);
                if let Some(error) = panic {
                    log::warn!("group {:?}: {error}", self.group.name());
                    self.tell_error(error);
                }
                Some(Input::LeadReturned { token })
            }
            Command::Report(error) => {
                log::warn!("group {:?}: {error}", self.group.name());
                self.tell_error(error);
                None
            }
            Command::Stop => Some(Input::Stop),
            // Not for the machine.
            Command::Look { .. } => None,
        }
    }

    /// Lets lead work run on a thread of the user's, if the term stands and none runs.
    fn lead_began(&mut self, token: u64, granted: &Sender<Result<(), Error>>) -> Option<Input> {
        let stands = self.term == Some(token) && self.standing.is_leader();
        let answer = match stands {
            true if self.working => Err(Error::works_already(token)),
            true => Ok(()),
            false => Err(Error::not_leading(token)),
        };
        let begins = answer.is_ok();
        // The caller waits for the answer; one that has gone does not run anything.
        let begins = granted.try_send(answer).is_ok() && begins;
        self.working |= begins;
        begins.then_some(Input::LeadBegan { token })
    }

    /// Gives the machine an input and does what it says, but for its orders about operations.
    pub(super) fn handle(&mut self, now: Moment, input: Input) -> Vec<Order> {
        let (mut outputs, mut orders) = (Vec::new(), Vec::new());
        if matches!(input, Input::Wake { token } if !self.machine.is_old(token)) {
            self.standing.note(|status| status.counters.wakes += 1);
        }
        self.machine.handle(now, input, &mut outputs);
        let mut follow_up = None;
        for output in outputs {
            let comes = self.apply(output, &mut orders);
            debug_assert!(comes.is_none() || follow_up.is_none(), "one output at a time has a follow-up");
            follow_up = comes.or(follow_up);
        }
        if let Some(input) = follow_up {
            orders.extend(self.handle(Moment { at: Instant::now(), ..now }, input));
        }
        if self.machine.is_settled() {
            self.answer_waiting(&Ok(()));
        }
        orders
    }

    /// Does one thing; what comes of it is for the machine again.
    fn apply(&mut self, output: Output, orders: &mut Vec<Order>) -> Option<Input> {
        let group = self.group.name();
        match output {
            Output::Send { op, action, until } => {
                log::trace!(
                    "group {group:?}: {action:?} within {:?}",
                    until.saturating_duration_since(Instant::now())
                );
                if matches!(action, Action::Acquire { .. }) {
                    self.standing.note(|status| status.counters.attempts += 1);
                }
                let (group, id, ttl) = (self.group.clone(), self.id.clone(), self.timing.ttl);
                let operation = Operation { group, id, ttl, action, strict: self.timing.strict };
                orders.push(Order::Send { op, until, operation });
            }
            Output::Shorten { op, until } => orders.push(Order::Shorten { op, until }),
            Output::Promoted { token, until } => {
                // Where `stop()` has gone on without this driver, nobody is told of a term that comes after it.
                let leadership = self.standing.begin(token, self.timing.sent_at(until), until)?;
                self.term = Some(token);
                self.outlets.tell(&Event::Promoted(leadership.clone()));
                log::info!("group {group:?}: promoted, token {token}");
                // Who asked to step down while this attempt was under way has seen the pause go by.
                self.answer_waiting(&Ok(()));
                return self.begin_lead_work(token, leadership);
            }
            Output::Extended { until } => {
                let extended = self.standing.extend(self.timing.sent_at(until), until);
                log::trace!("group {group:?}: renewed");
                if !extended {
                    return Some(Input::Lapsed);
                }
            }
            Output::Demoted { token, reason } => self.demoted(token, reason),
            Output::Leader(leader) => {
                self.standing.note(|status| status.leader.clone_from(&leader));
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
            Output::Unlike { operation, holder, strict } => {
                let says = |strict: Option<Strictness>| match strict {
                    Some(Strictness { replicas, longest }) => {
                        format!("strict with {replicas} replicas and a longest ttl of {longest:?}")
                    }
                    None => "not strict".to_owned(),
                };
                let message = format!(
                    "{holder}, which leads group {group:?}, is {}, and this instance is {}; all of a group must be alike",
                    says(strict),
                    says(self.timing.strict),
                );
                self.tell_error(Error::refused(operation, message));
            }
            Output::FarAhead { token, by } => {
                log::warn!(
                    "group {group:?}: token {token} is {by:?} ahead of the store's time; a clock was wrong once"
                );
            }
            Output::Unheard => orders.push(Order::Listen),
            Output::Overrun { token, since } => {
                self.standing.note(|status| status.overrun = Some((token, since)));
                self.tell_error(Error::overrun(token, since.elapsed()));
            }
            Output::Left { unreleased } => self.left(unreleased),
            Output::Stopped => {
                self.stopped = true;
                self.outlets.stopped();
                self.standing.end(self.outcome.clone());
            }
        }
        None
    }

    /// Starts the lead work of a term that has begun. Without it the term is of no use.
    fn begin_lead_work(&mut self, token: u64, leadership: Leadership) -> Option<Input> {
        match self.lead.begin(leadership, &self.standing.commands) {
            Ok(begun) => {
                self.working |= begun;
                begun.then_some(Input::LeadBegan { token })
            }
            Err(error) => {
                self.tell_error(error);
                Some(Input::LeadReturned { token })
            }
        }
    }

    /// Ends the term: its validity first, then the lost-signal, then the telling.
    fn demoted(&mut self, token: u64, reason: Reason) {
        if self.term.take() != Some(token) {
            return;
        }
        let at = self.standing.end_term();
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
        self.standing.note(|status| {
            status.role = Role::Follower;
        });
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
        let last = (error.clone(), Instant::now());
        self.standing.note(|status| {
            status.counters.errors += 1;
            status.last_error = Some(last);
        });
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
