//! The driver's thread: it calls each machine in time, and gives their operations to the I/O threads.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender};

use super::election::Order;
use super::inbox::Messages;
use super::lanes::{Lanes, Way};
use super::wake::Wakes;
use super::{Command, Election, ElectionId, Message};
use crate::election::clock::Instant;
use crate::election::error::Error;
use crate::election::machine::{Input, Moment};
use crate::election::status::Inspection;
use crate::election::store::{Answer, Class, Hop, Operation, Outcome, StoreError, Trail};

/// How often a subscription that is behind is looked at, beside each event: nothing else tells that
/// a listener reads again.
const LAG_CHECK: Duration = Duration::from_millis(100);

/// What the store was asked to do, and for whom.
pub(super) struct Request {
    election: ElectionId,
    purpose: Purpose,
    pub(super) until: Instant,
    trail: Trail,
}

/// Who is to be told the answer.
enum Purpose {
    /// The machine that wants it done.
    Machine { op: u64 },
    /// A user who asked who leads.
    Look { done: Sender<Result<Inspection, Error>> },
}

impl Request {
    fn is(&self, election: ElectionId, wanted: u64) -> bool {
        self.election == election && matches!(self.purpose, Purpose::Machine { op } if op == wanted)
    }
}

/// A request that is not sent yet, and where it is to go.
struct Waiting {
    request: Request,
    operation: Operation,
    hop: Hop,
}

/// The machines of a driver, when each wants to be called, and what is under way.
pub(super) struct Schedule {
    messages: Messages<Message>,
    lanes: Lanes,
    wakes: Wakes,
    /// Whether wakes are heard now.
    listening: bool,
    elections: BTreeMap<ElectionId, Election>,
    /// When each election wants to be called, in the order of time.
    alarms: BTreeSet<(Instant, ElectionId)>,
    /// The elections with a subscription that is behind.
    lagging: BTreeSet<ElectionId>,
    waiting: Vec<Waiting>,
    /// Whether a lane may have come out of use.
    rerouted: bool,
    closed: bool,
}

impl Schedule {
    pub(super) fn new(messages: Messages<Message>, lanes: Lanes, wakes: Wakes) -> Self {
        Self {
            messages,
            lanes,
            wakes,
            listening: false,
            elections: BTreeMap::new(),
            alarms: BTreeSet::new(),
            lagging: BTreeSet::new(),
            waiting: Vec::new(),
            rerouted: false,
            closed: false,
        }
    }

    pub(super) fn run(mut self) {
        while !(self.closed && self.elections.is_empty()) {
            match self.messages.recv_timeout(self.sleep(Instant::now())) {
                Ok(message) => {
                    if !self.take(message) {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.call_due();
            self.dispatch();
        }
        // Nobody may wait to send something to this thread while it waits for them.
        drop(self.messages);
        let join = self.lanes.end();
        self.wakes.end();
        join();
    }

    /// How long nothing is to be done.
    pub(super) fn sleep(&self, now: Instant) -> Duration {
        let alarm = self.alarms.first().map_or(Instant::NEVER, |(at, _)| *at);
        // What waits for its lane is sent when that is free, which a message tells. Only redirects have a pause. One
        // that has ended since the last dispatch counts, too: nothing else would tell of it.
        let waiting = self.waiting.iter().take(if self.lanes.has_nodes() { usize::MAX } else { 0 });
        let free = waiting.filter(|waiting| !self.lanes.is_busy(&self.way_of(waiting)));
        let pause = free.map(|waiting| waiting.hop.at).min();
        let sleep = pause.unwrap_or(alarm).min(alarm).saturating_duration_since(now);
        if self.lagging.is_empty() { sleep } else { sleep.min(LAG_CHECK) }
    }

    /// Takes one message; false when the threads must end.
    pub(super) fn take(&mut self, message: Message) -> bool {
        match message {
            Message::Add(election) => {
                let id = election.number();
                self.wakes.add(election.group(), election.wait());
                self.elections.insert(id, *election);
                self.alarms.insert((Instant::now(), id));
            }
            Message::Close => self.closed = true,
            Message::Command(id, Command::Look { done }) => self.look(id, done),
            Message::Command(id, command) => match self.elections.get_mut(&id) {
                Some(election) => {
                    if let Some(input) = election.command(command) {
                        self.call(id, input);
                    }
                }
                // It has stopped. What it drops here tells whoever waits for it.
                None => drop(command),
            },
            Message::Answers { way, operations, results } => {
                let requests = self.lanes.landed(&way);
                for ((request, operation), result) in requests.into_iter().zip(operations).zip(results) {
                    self.answer_or_redirect(request, operation, result);
                }
            }
            Message::Listening => {
                self.listening = true;
                // The first time, too: a release may have come after the first attempt and before this.
                self.call_all(&Input::WakeBack);
            }
            Message::Wake { lease, token } => {
                let of_it = |(_, election): &(&ElectionId, &Election)| election.group().lease() == lease;
                let ids: Vec<_> = self.elections.iter().filter(of_it).map(|(id, _)| *id).collect();
                for id in ids {
                    self.call(id, Input::Wake { token });
                }
            }
            Message::WakeLost(error) => self.wake_lost(&error),
            // What this thread drops as it ends tells everybody.
            Message::IoEnded => return false,
        }
        true
    }

    /// Sends an operation to where it was redirected, or tells who asked what the store says.
    fn answer_or_redirect(
        &mut self,
        mut request: Request,
        operation: Operation,
        result: Result<Answer, StoreError>,
    ) {
        let result = match result {
            // In the name of an election that has stopped nothing is sent any more.
            Err(error) if self.lanes.has_nodes() && self.elections.contains_key(&request.election) => {
                self.rerouted = true;
                match request.trail.follow(error, Instant::now(), request.until) {
                    Ok(hop) => return self.waiting.push(Waiting { request, operation, hop }),
                    Err(error) => Err(error),
                }
            }
            result => result,
        };
        self.answer(request, result);
    }

    /// Tells who asked what the store says.
    fn answer(&mut self, request: Request, result: Result<Answer, StoreError>) {
        match request.purpose {
            Purpose::Machine { op } => self.call(request.election, Input::Answer { op, result }),
            Purpose::Look { done } => {
                if let Some(election) = self.elections.get(&request.election) {
                    // Who has stopped waiting needs no answer.
                    done.try_send(election.inspection(result)).ok();
                }
            }
        }
    }

    /// Asks the store who leads the group of an election.
    fn look(&mut self, id: ElectionId, done: Sender<Result<Inspection, Error>>) {
        // The sender of one that has stopped is dropped, which tells.
        if let Some(election) = self.elections.get(&id) {
            let (operation, until) = election.look();
            self.send(id, Purpose::Look { done }, until, operation);
        }
    }

    fn wake_lost(&mut self, error: &StoreError) {
        let was_listening = std::mem::take(&mut self.listening);
        // A right that is missing stays so until somebody is told. All else passes, or the operations
        // fail of it, too.
        if (error.class(), error.outcome()) == (Class::Configuration, Outcome::Refused) {
            self.elections.values_mut().for_each(|election| election.tell_of_wakes(error.clone()));
        }
        if was_listening {
            self.call_all(&Input::WakeLost);
        }
    }

    fn call_all(&mut self, input: &Input) {
        let ids: Vec<_> = self.elections.keys().copied().collect();
        for id in ids {
            self.call(id, input.clone());
        }
    }

    /// Calls the machines whose time has come.
    pub(super) fn call_due(&mut self) {
        let now = Instant::now();
        while let Some((at, id)) = self.alarms.first().copied() {
            if at > now {
                break;
            }
            self.alarms.remove(&(at, id));
            self.call(id, Input::Time);
        }
        let elections = &mut self.elections;
        self.lagging.retain(|id| elections.get_mut(id).is_some_and(Election::is_behind_after_catching_up));
    }

    /// Gives one machine an input, and does what it says.
    fn call(&mut self, id: ElectionId, input: Input) {
        let Some(election) = self.elections.get_mut(&id) else { return };
        let moment = Moment { at: Instant::now(), dice: rand::random() };
        self.alarms.remove(&(election.wake_at(), id));
        let orders = election.handle(moment, input);
        let wake_at = election.wake_at();
        if election.is_lagging() {
            self.lagging.insert(id);
        }
        if election.has_stopped() {
            self.wakes.remove(election.group());
            self.elections.remove(&id);
            // What was to be sent for it is not sent any more; what was asked is told so by the drop.
            self.waiting.retain(|waiting| waiting.request.election != id);
            self.rerouted = true;
        } else {
            self.alarms.insert((wake_at, id));
        }
        for order in orders {
            match order {
                Order::Send { op, until, operation } => {
                    self.send(id, Purpose::Machine { op }, until, operation);
                }
                Order::Shorten { op, until } => self.shorten(id, op, until),
                Order::Listen => self.wakes.remake(),
            }
        }
    }

    /// Sends an operation with the next batch.
    fn send(&mut self, election: ElectionId, purpose: Purpose, until: Instant, operation: Operation) {
        let request = Request { election, purpose, until, trail: Trail::default() };
        let hop = Hop { to: None, at: Instant::now() };
        self.waiting.push(Waiting { request, operation, hop });
    }

    /// An operation has less time now.
    fn shorten(&mut self, election: ElectionId, op: u64, until: Instant) {
        let of_it = |request: &Request| request.is(election, op);
        if let Some(waiting) = self.waiting.iter_mut().find(|waiting| of_it(&waiting.request)) {
            waiting.request.until = waiting.request.until.min(until);
        }
        self.lanes.shorten(of_it, until);
    }

    /// Gives the I/O threads what has been waiting for them.
    pub(super) fn dispatch(&mut self) {
        while !self.waiting.is_empty() && (self.lanes.has_nodes() || !self.lanes.is_busy(&None)) {
            let failed = self.dispatch_once();
            if failed.is_empty() {
                break;
            }
            // What their machines want next may be sent at once.
            failed.into_iter().for_each(|(request, error)| self.answer(request, Err(error)));
        }
        self.lanes.join_ended();
        if std::mem::take(&mut self.rerouted) && self.lanes.has_nodes() {
            let of_groups =
                self.elections.values().filter_map(|election| self.lanes.way_of(election.group()));
            let of_waiting = self.waiting.iter().filter_map(|waiting| waiting.hop.to.clone());
            let used = of_groups.chain(of_waiting).collect();
            self.lanes.end_unused(&used);
        }
    }

    /// The lane that a request goes along.
    fn way_of(&self, waiting: &Waiting) -> Way {
        waiting.hop.to.clone().or_else(|| self.lanes.way_of(&waiting.operation.group))
    }

    /// Sends a batch along each lane that is free. Returns the requests that could not be sent, and why.
    fn dispatch_once(&mut self) -> Vec<(Request, StoreError)> {
        let now = Instant::now();
        let mut failed = Vec::new();
        let mut batches: BTreeMap<Way, (Vec<_>, Vec<_>)> = BTreeMap::new();
        for waiting in std::mem::take(&mut self.waiting) {
            let way = self.way_of(&waiting);
            let Waiting { request, operation, hop } = waiting;
            if hop.at > now || self.lanes.is_busy(&way) {
                self.waiting.push(Waiting { request, operation, hop });
            } else if request.until <= now {
                // It waited for a batch that took longer than its own time. Its instance may have stopped since.
                let error =
                    StoreError::new(Outcome::NotSent, Class::Passing, "the store was busy for too long");
                failed.push((request, error));
            } else {
                let (requests, operations) = batches.entry(way).or_default();
                requests.push(request);
                operations.push(operation);
            }
        }
        for (way, (requests, operations)) in batches {
            if let Err((requests, error)) = self.lanes.send(way, requests, operations) {
                failed.extend(requests.into_iter().map(|request| (request, error.clone())));
            }
        }
        failed
    }
}
