//! The threads of an election, and what passes between them.
//!
//! The driver's thread owns the machines and sleeps in one place. It does no I/O and runs no user
//! code but the program's logger, so nothing else that hangs can delay a demotion. An I/O thread owns
//! the session with the store (in a cluster there is one for each node), another thread listens for wakes.
//! One driver runs any number of elections over one session; their operations go in batches.

mod election;
mod hooks;
mod inbox;
mod io;
mod lanes;
mod lead;
mod outlets;
mod schedule;
#[cfg(test)]
mod tests;
mod thread;
mod wake;

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};

pub(crate) use election::{Election, longest_way_out};
pub(crate) use hooks::Hooks;
pub(crate) use lead::{Lead, Returning};
pub(crate) use outlets::{Inlets, Outlets, SUBSCRIPTION};
pub(crate) use thread::{Owner, Place, Thread};

use super::error::Error;
use super::event::Event;
use super::leadership::Standing;
use super::status::Inspection;
use super::store::{Answer, Listener, Operation, Session, StoreError};
use inbox::{Inbox, inbox};
use lanes::{IoThreads, Lanes, Way};
use schedule::Schedule;
use wake::Wakes;

/// How many messages may wait for the driver; who sends more waits for it.
const INBOX: usize = 1024;
/// The longest wait to send a command. The driver takes one in microseconds, unless the program's logger
/// holds it up.
const SEND_LIMIT: Duration = Duration::from_secs(1);
/// The threads of a driver beside those that do I/O: its own, and the one that listens.
const OTHER_THREADS: usize = 2;
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
    /// What the store said to the operations of the batch in flight on this lane, in its order.
    Answers { way: Way, operations: Vec<Operation>, results: Vec<Result<Answer, StoreError>> },
    /// An I/O thread has ended without being told to.
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
    /// The lead work of this term has returned, perhaps by a panic. `taken` is dropped when the election
    /// has taken note.
    LeadReturned { token: u64, panic: Option<Error>, taken: Option<Sender<()>> },
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
    inbox: Inbox<Message>,
    election: ElectionId,
}

impl Commands {
    /// Sends a command. One that does not arrive, because the driver has ended or is held up, is dropped,
    /// which tells whoever waits for its answer.
    pub(crate) fn send(&self, command: Command) {
        self.inbox.send_timeout(Message::Command(self.election, command), SEND_LIMIT).ok();
    }

    /// Sends a command that must not be lost, however long the driver is held up.
    ///
    /// It cannot be for ever: a driver that ends closes its inbox before it waits for anybody.
    pub(crate) fn send_surely(&self, command: Command) {
        // With the driver everything has ended.
        self.inbox.send(Message::Command(self.election, command)).ok();
    }

    /// Gives the term with this token up.
    pub(crate) fn end_term(&self, token: u64) {
        // With the driver every term has ended.
        self.send(Command::EndTerm { token });
    }

    /// Commands that reach no driver.
    #[cfg(test)]
    pub(crate) fn of_nobody() -> Self {
        Self { inbox: inbox(1).0, election: 0 }
    }
}

/// The owner of a driver's threads.
pub(crate) struct Driver {
    inbox: Inbox<Message>,
    /// Joins the others before it ends.
    thread: Thread,
    io: IoThreads,
}

impl Driver {
    /// Spawns the threads over a session and a listener. They do nothing before an election is added.
    pub(crate) fn start(
        owner: Owner,
        session: Box<dyn Session>,
        listener: Box<dyn Listener>,
    ) -> Result<Self, Error> {
        let (inbox, messages) = inbox(INBOX);
        let lanes = Lanes::start(owner, session, inbox.clone())?;
        let io = lanes.threads();
        let wakes = Wakes::start(owner, listener, inbox.clone())?;
        let thread = Thread::spawn(owner, Place::Engine, "tr-driver", move || {
            Schedule::new(messages, lanes, wakes).run();
        })?;
        Ok(Self { inbox, thread, io })
    }

    /// How many threads there are until [`join`](Self::join) succeeds.
    pub(crate) fn threads(&self) -> usize {
        OTHER_THREADS + self.io.running()
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
