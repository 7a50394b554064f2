//! The driver's thread: it calls each machine in time, and gives their operations to the I/O thread.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender};

use super::election::Order;
use super::inbox::Messages;
use super::io::Batch;
use super::wake::Wakes;
use super::{Command, Election, ElectionId, Message, Thread};
use crate::election::clock::Instant;
use crate::election::error::Error;
use crate::election::machine::{Input, Moment};
use crate::election::status::Inspection;
use crate::election::store::{Answer, Bell, Budget, Class, Operation, Outcome, StoreError};

/// How often a subscription that is behind is looked at, beside each event: nothing else tells that
/// a listener reads again.
const LAG_CHECK: Duration = Duration::from_millis(100);

/// What the store was asked to do, and for whom.
struct Request {
    election: ElectionId,
    purpose: Purpose,
    until: Instant,
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

/// The batch that the I/O thread is at.
struct Flight {
    requests: Vec<Request>,
    budget: Arc<Budget>,
}

/// The machines of a driver, when each wants to be called, and the batch that is under way.
pub(super) struct Schedule {
    messages: Messages<Message>,
    batches: Sender<Batch>,
    bell: Bell,
    wakes: Wakes,
    /// Whether wakes are heard now.
    listening: bool,
    elections: BTreeMap<ElectionId, Election>,
    /// When each election wants to be called, in the order of time.
    alarms: BTreeSet<(Instant, ElectionId)>,
    /// The elections with a subscription that is behind.
    lagging: BTreeSet<ElectionId>,
    waiting: Vec<(Request, Operation)>,
    flight: Option<Flight>,
    closed: bool,
}

impl Schedule {
    pub(super) fn new(messages: Messages<Message>, batches: Sender<Batch>, bell: Bell, wakes: Wakes) -> Self {
        Self {
            messages,
            batches,
            bell,
            wakes,
            listening: false,
            elections: BTreeMap::new(),
            alarms: BTreeSet::new(),
            lagging: BTreeSet::new(),
            waiting: Vec::new(),
            flight: None,
            closed: false,
        }
    }

    pub(super) fn run(mut self, io: Thread) {
        while !(self.closed && self.elections.is_empty()) {
            match self.messages.recv_timeout(self.sleep()) {
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
        // Losing its sender ends the I/O thread, after a batch whose budget is about to end.
        drop(self.batches);
        self.wakes.end();
        io.join();
    }

    /// How long nothing is to be done.
    fn sleep(&self) -> Duration {
        let alarm = self.alarms.first().map_or(Instant::NEVER, |(at, _)| *at);
        let sleep = alarm.saturating_duration_since(Instant::now());
        if self.lagging.is_empty() { sleep } else { sleep.min(LAG_CHECK) }
    }

    /// Takes one message; false when the threads must end.
    fn take(&mut self, message: Message) -> bool {
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
            Message::Answers(results) => {
                let requests = self.flight.take().map_or_else(Vec::new, |flight| flight.requests);
                for (request, result) in requests.into_iter().zip(results) {
                    self.answer(request, result);
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
            self.waiting.push((Request { election: id, purpose: Purpose::Look { done }, until }, operation));
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
    fn call_due(&mut self) {
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
            self.waiting.retain(|(request, _)| request.election != id);
        } else {
            self.alarms.insert((wake_at, id));
        }
        for order in orders {
            match order {
                Order::Send { op, until, operation } => {
                    let request = Request { election: id, purpose: Purpose::Machine { op }, until };
                    self.waiting.push((request, operation));
                }
                Order::Shorten { op, until } => self.shorten(id, op, until),
                Order::Listen => self.wakes.remake(),
            }
        }
    }

    /// An operation has less time now. A batch ends with the last deadline of its operations.
    fn shorten(&mut self, election: ElectionId, op: u64, until: Instant) {
        let of_it = |request: &&mut Request| request.is(election, op);
        if let Some(request) = self.waiting.iter_mut().map(|(request, _)| request).find(of_it) {
            request.until = request.until.min(until);
        }
        let Some(flight) = &mut self.flight else { return };
        if let Some(request) = flight.requests.iter_mut().find(of_it) {
            request.until = request.until.min(until);
            if let Some(last) = flight.requests.iter().map(|request| request.until).max() {
                flight.budget.shorten(last);
            }
        }
    }

    /// Gives the I/O thread what has been waiting for it.
    fn dispatch(&mut self) {
        if self.flight.is_some() {
            return;
        }
        let now = Instant::now();
        while let Some(late) = self.waiting.iter().position(|(request, _)| request.until <= now) {
            // It waited for a batch that took longer than its own time. Its instance may have stopped since.
            let (request, _) = self.waiting.remove(late);
            let error = StoreError::new(Outcome::NotSent, Class::Passing, "the store was busy for too long");
            self.answer(request, Err(error));
        }
        if self.waiting.is_empty() {
            return;
        }
        let (requests, operations): (Vec<_>, Vec<_>) = self.waiting.drain(..).unzip();
        let last = requests.iter().map(|request| request.until).max().unwrap_or(Instant::NEVER);
        let budget = Arc::new(Budget::new(last, &self.bell));
        // It has room for one, and none is in flight. If the thread is gone, its last word is on the way.
        self.batches.try_send(Batch { operations, budget: Arc::clone(&budget) }).ok();
        self.flight = Some(Flight { requests, budget });
    }
}
