//! The threads of an election, and what passes between them.
//!
//! The driver's thread owns the machines and sleeps in one place. It does no I/O and runs no user
//! code but the program's logger, so nothing else that hangs can delay a demotion. The I/O thread owns the session with the store.
//! One driver runs any number of elections over one session; their operations go in batches.

mod election;
mod io;
mod outlets;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::{self, JoinHandle, ThreadId};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

pub(crate) use election::{Election, longest_way_out};
pub(crate) use outlets::{Inlets, Outlets, SUBSCRIPTION};

use super::clock::Instant;
use super::error::Error;
use super::event::Event;
use super::leadership::Standing;
use super::machine::{Input, Moment};
use super::store::{Answer, Bell, Budget, Class, Operation, Outcome, Session, StoreError};
use election::Order;
use io::Batch;

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
}

/// What a user asks of an election.
pub(crate) enum Command {
    /// Send events there, beginning with the present state.
    Subscribe(Subscriber),
    /// Give leadership up, and tell when the way out is over.
    StepDown { pause: Duration, done: Sender<Result<(), Error>> },
    /// Give this term up.
    EndTerm { token: u64 },
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
    thread: JoinHandle<()>,
    /// Both threads of ours, for whoever must not wait for itself.
    pub(crate) threads: [ThreadId; 2],
    /// Disconnects when the driver's thread, and the I/O thread before it, has ended.
    ended: Receiver<()>,
}

impl Driver {
    /// Spawns both threads over this session. They do nothing before an election is added.
    pub(crate) fn start(session: Box<dyn Session>) -> Result<Self, Error> {
        let bell = session.bell();
        let (inbox, messages) = bounded(INBOX);
        let (batches, work) = bounded(1);
        let answers = inbox.clone();
        let io = spawn("tr-io", move || io::run(session, &work, answers))?;
        let (end, ended) = bounded(0);
        let io_id = io.thread().id();
        let thread = spawn("tr-driver", move || {
            let _ended = end;
            Loop::new(messages, batches, bell).run(io);
        })?;
        let threads = [thread.thread().id(), io_id];
        Ok(Self { inbox, thread, threads, ended })
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

    /// Disconnects when both threads have ended, so that [`join`](Self::join) takes no time.
    pub(crate) fn ended(&self) -> Receiver<()> {
        self.ended.clone()
    }

    /// Waits for both threads to end.
    pub(crate) fn join(self) {
        // A panic has been told to every election already.
        self.thread.join().ok();
    }
}

/// Spawns a thread of ours; Linux shows 15 bytes of a name.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Error> {
    thread::Builder::new().name(name.into()).spawn(body).map_err(|error| {
        let message = format!("could not spawn the thread {name}; the system's limits may be reached");
        Error::spawn(message, Some(Arc::new(error)))
    })
}

/// An operation that a machine wants done.
struct Request {
    election: ElectionId,
    op: u64,
    until: Instant,
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
    fn new(messages: Receiver<Message>, batches: Sender<Batch>, bell: Bell) -> Self {
        Self {
            messages,
            batches,
            bell,
            elections: BTreeMap::new(),
            alarms: BTreeSet::new(),
            lagging: BTreeSet::new(),
            waiting: Vec::new(),
            flight: None,
            closed: false,
        }
    }

    fn run(mut self, io: JoinHandle<()>) {
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
        io.join().ok();
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
                self.elections.insert(id, *election);
                self.alarms.insert((Instant::now(), id));
            }
            Message::Close => self.closed = true,
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
                    self.call(request.election, Input::Answer { op: request.op, result });
                }
            }
            // What this thread drops as it ends tells everybody.
            Message::IoEnded => return false,
        }
        true
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
            self.elections.remove(&id);
        } else {
            self.alarms.insert((wake_at, id));
        }
        for order in orders {
            match order {
                Order::Send { op, until, operation } => {
                    self.waiting.push((Request { election: id, op, until }, operation));
                }
                Order::Shorten { op, until } => self.shorten(id, op, until),
            }
        }
    }

    /// An operation has less time now. A batch ends with the last deadline of its operations.
    fn shorten(&mut self, election: ElectionId, op: u64, until: Instant) {
        let of_it = |request: &&mut Request| request.election == election && request.op == op;
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
            self.call(request.election, Input::Answer { op: request.op, result: Err(error) });
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
