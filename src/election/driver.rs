//! The threads of an election, and what passes between them.
//!
//! The driver's thread owns the machines and sleeps in one place. It does no I/O and runs no user
//! code but the program's logger, so nothing else that hangs can delay a demotion. The I/O thread owns the session with the store.
//! One driver runs any number of elections over one session; their operations go in batches.

mod election;
mod hooks;
mod io;
mod lead;
mod outlets;
#[cfg(test)]
mod tests;
mod thread;
mod wake;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

pub(crate) use election::{Election, longest_way_out};
pub(crate) use hooks::Hooks;
pub(crate) use lead::{Lead, Returning};
pub(crate) use outlets::{Inlets, Outlets, SUBSCRIPTION};
pub(crate) use thread::{Owner, Place, Thread};

use super::clock::Instant;
use super::error::Error;
use super::event::Event;
use super::leadership::Standing;
use super::machine::{Input, Moment};
use super::status::Inspection;
use super::store::{Answer, Bell, Budget, Class, Listener, Operation, Outcome, Session, StoreError};
use election::Order;
use io::Batch;
use wake::Wakes;

/// How many messages may wait for the driver; who sends more waits for it.
const INBOX: usize = 1024;
/// The longest wait to send a command. The driver takes one in microseconds, unless the program's logger
/// holds it up.
const SEND_LIMIT: Duration = Duration::from_secs(1);
/// How often a subscription that is behind is looked at, beside each event: nothing else tells that
/// a listener reads again.
const LAG_CHECK: Duration = Duration::from_millis(100);

/// An election's number within its driver.
pub(crate) type ElectionId = u64;

/// What arrives at the driver's one sleeping place.
pub(crate) enum Message {
    /// A new election.
    Add(Box<Election>),
    /// No further election will come: end with the last one.
    Close,
    /// Something for one election.
    Command(ElectionId, Command),
    /// What the store said to the operations of the batch in flight, in its order.
    Answers(Vec<Result<Answer, StoreError>>),
    /// The I/O thread has ended without being told to.
    IoEnded,
    /// Wakes are heard from now on.
    Listening,
    /// The lease with this key was released by the term with this token.
    Wake { lease: String, token: u64 },
    /// Wakes are not heard any more, or not yet.
    WakeLost(StoreError),
}

/// What a user asks of an election.
pub(crate) enum Command {
    /// Send events there, beginning with the present state.
    Subscribe(Subscriber),
    /// Give leadership up, and tell when the way out is over.
    StepDown { pause: Duration, done: Sender<Result<(), Error>> },
    /// Give this term up.
    EndTerm { token: u64 },
    /// Lead work is to run for this term on a thread of the user's; answered whether it may.
    LeadBegan { token: u64, granted: Sender<Result<(), Error>> },
    /// The lead work of this term has returned, perhaps by a panic.
    LeadReturned { token: u64, panic: Option<Error> },
    /// Tell this error to the listeners.
    Report(Error),
    /// Ask the store who leads.
    Look { done: Sender<Result<Inspection, Error>> },
    /// End the election.
    Stop,
}

/// The sending end of a new subscription.
///
/// If it is dropped on its way to an election, because that has stopped, its listener is told so.
pub(crate) struct Subscriber {
    sender: Option<Sender<Event>>,
    standing: Arc<Standing>,
}

impl Subscriber {
    pub(crate) fn new(sender: Sender<Event>, standing: Arc<Standing>) -> Self {
        Self { sender: Some(sender), standing }
    }

    /// The sender, for an election that goes on.
    fn take(mut self) -> Option<Sender<Event>> {
        self.sender.take()
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        if let Some(sender) = self.sender.take()
            && self.standing.has_stopped()
        {
            // The channel is new; what can fail is that nobody listens.
            sender.try_send(Event::Stopped).ok();
        }
    }
}

/// The way from a user to one election.
#[derive(Clone)]
pub(crate) struct Commands {
    inbox: Sender<Message>,
    election: ElectionId,
}

impl Commands {
    /// Sends a command. One that does not arrive, because the driver has ended or is held up, is dropped,
    /// which tells whoever waits for its answer.
    pub(crate) fn send(&self, command: Command) {
        self.inbox.send_timeout(Message::Command(self.election, command), SEND_LIMIT).ok();
    }

    /// Gives the term with this token up.
    pub(crate) fn end_term(&self, token: u64) {
        // With the driver every term has ended.
        self.send(Command::EndTerm { token });
    }

    /// Commands that reach no driver.
    #[cfg(test)]
    pub(crate) fn of_nobody() -> Self {
        Self { inbox: bounded(0).0, election: 0 }
    }
}

/// The owner of a driver's threads.
#[derive(Debug)]
pub(crate) struct Driver {
    inbox: Sender<Message>,
    /// Joins the others before it ends.
    thread: Thread,
}

impl Driver {
    /// How many threads there are until [`join`](Self::join) succeeds.
    pub(crate) const THREADS: usize = 3;

    /// Spawns the threads over a session and a listener. They do nothing before an election is added.
    pub(crate) fn start(
        owner: Owner,
        session: Box<dyn Session>,
        listener: Box<dyn Listener>,
    ) -> Result<Self, Error> {
        let bell = session.bell();
        let (inbox, messages) = bounded(INBOX);
        let (batches, work) = bounded(1);
        let answers = inbox.clone();
        let io = Thread::spawn(owner, Place::Engine, "tr-io", move || io::run(session, &work, answers))?;
        let wakes = Wakes::start(owner, listener, inbox.clone())?;
        let thread = Thread::spawn(owner, Place::Engine, "tr-driver", move || {
            Loop::new(messages, batches, bell, wakes).run(io);
        })?;
        Ok(Self { inbox, thread })
    }

    /// The way to the election with this number, whether it has been added or not.
    pub(crate) fn commands(&self, election: ElectionId) -> Commands {
        Commands { inbox: self.inbox.clone(), election }
    }

    /// Begins an election.
    pub(crate) fn add(&self, election: Election) {
        // A driver that has ended is told to everybody by what it dropped.
        self.inbox.send(Message::Add(Box::new(election))).ok();
    }

    /// Lets the threads end with the last election.
    pub(crate) fn close(&self) {
        self.inbox.send(Message::Close).ok();
    }

    /// Disconnects when all threads have ended, so that [`join`](Self::join) takes no time.
    pub(crate) fn ended(&self) -> Receiver<()> {
        self.thread.ended()
    }

    /// Waits for all threads to end.
    pub(crate) fn join(self) {
        self.thread.join();
    }
}

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

/// The driver's thread.
struct Loop {
    messages: Receiver<Message>,
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

impl Loop {
    fn new(messages: Receiver<Message>, batches: Sender<Batch>, bell: Bell, wakes: Wakes) -> Self {
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

    fn run(mut self, io: Thread) {
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
            Message::Listening => self.listening = true,
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
        let ids: Vec<_> = self.elections.keys().copied().collect();
        for id in ids {
            // A right that is missing stays so until somebody is told. All else passes, or the
            // operations fail of it, too.
            if (error.class(), error.outcome()) == (Class::Configuration, Outcome::Refused)
                && let Some(election) = self.elections.get_mut(&id)
            {
                election.tell_of_wakes(error.clone());
            }
            if was_listening {
                self.call(id, Input::WakeLost);
            }
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
