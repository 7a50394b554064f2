//! The ways to the store: an I/O thread and a session each, so that a node that hangs holds up no other.
//!
//! A store that is in one place has one lane. In a cluster there is one to any node, and one to each that
//! some group's lease is known to be on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::{Sender, bounded};

use super::io::{self, Batch};
use super::schedule::Request;
use super::thread::{Owner, Place, Thread};
use super::{Inbox, Message};
use crate::election::clock::Instant;
use crate::election::error::Error;
use crate::election::key::Group;
use crate::election::store::{Bell, Budget, Class, Node, Nodes, Operation, Outcome, Session, StoreError};

/// Which lane: the one to a node, or the one to whatever the store's own session reaches.
pub(super) type Way = Option<Node>;

/// All lanes of a driver.
pub(super) struct Lanes {
    owner: Owner,
    answers: Inbox<Message>,
    nodes: Option<Arc<dyn Nodes>>,
    lanes: BTreeMap<Way, Lane>,
    /// Threads that have lost their lane and do nothing any more, but may not have ended yet.
    ending: Vec<Thread>,
    threads: IoThreads,
}

/// An I/O thread, and the batch that it is at.
struct Lane {
    batches: Sender<Batch>,
    bell: Bell,
    thread: Thread,
    flight: Option<Flight>,
}

struct Flight {
    requests: Vec<Request>,
    budget: Arc<Budget>,
}

/// Counts the I/O threads of a driver. Clones share the count.
#[derive(Clone, Default)]
pub(super) struct IoThreads(Arc<AtomicUsize>);

impl IoThreads {
    /// How many have not been joined.
    pub(super) fn running(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    fn join(&self, thread: Thread) {
        thread.join();
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Lanes {
    /// The lane of a store's own session. Others are made where that has nodes.
    pub(super) fn start(
        owner: Owner,
        session: Box<dyn Session>,
        answers: Inbox<Message>,
    ) -> Result<Self, Error> {
        let nodes = session.nodes();
        let (lanes, ending) = (BTreeMap::new(), Vec::new());
        let mut this = Self { owner, answers, nodes, lanes, ending, threads: IoThreads::default() };
        this.open(None, session)?;
        Ok(this)
    }

    pub(super) fn threads(&self) -> IoThreads {
        self.threads.clone()
    }

    /// Whether the store has places to choose between.
    pub(super) fn has_nodes(&self) -> bool {
        self.nodes.is_some()
    }

    /// The lane for the operations of this group.
    pub(super) fn way_of(&self, group: &Group) -> Way {
        self.nodes.as_ref()?.of(group)
    }

    /// Whether a lane is at a batch; one that is not there yet is free.
    pub(super) fn is_busy(&self, way: &Way) -> bool {
        self.lanes.get(way).is_some_and(|lane| lane.flight.is_some())
    }

    /// Sends a batch along a lane that is free, which is made if it is not there. Requests that cannot be sent
    /// come back.
    pub(super) fn send(
        &mut self,
        way: Way,
        requests: Vec<Request>,
        operations: Vec<Operation>,
    ) -> Result<(), (Vec<Request>, StoreError)> {
        if let Err(error) = self.make(&way) {
            return Err((requests, error));
        }
        let lane = self.lanes.get_mut(&way).expect("it has just been made");
        let last = requests.iter().map(|request| request.until).max().unwrap_or(Instant::NEVER);
        let budget = Arc::new(Budget::new(last, &lane.bell));
        // It has room for one, and none is in flight. If the thread is gone, its last word is on the way.
        lane.batches.try_send(Batch { operations, budget: Arc::clone(&budget) }).ok();
        lane.flight = Some(Flight { requests, budget });
        Ok(())
    }

    /// Takes note that a batch has been answered: whose requests they were.
    pub(super) fn landed(&mut self, way: &Way) -> Vec<Request> {
        let flight = self.lanes.get_mut(way).and_then(|lane| lane.flight.take());
        flight.map_or_else(Vec::new, |flight| flight.requests)
    }

    /// Gives a request that may be under way less time. A batch ends with the last deadline of its operations.
    pub(super) fn shorten(&mut self, is_it: impl Fn(&Request) -> bool, until: Instant) {
        for flight in self.lanes.values_mut().filter_map(|lane| lane.flight.as_mut()) {
            let Some(request) = flight.requests.iter_mut().find(|request| is_it(request)) else { continue };
            request.until = request.until.min(until);
            if let Some(last) = flight.requests.iter().map(|request| request.until).max() {
                flight.budget.shorten(last);
            }
        }
    }

    /// Ends the lanes to nodes that are at nothing, and not among the used ones.
    pub(super) fn end_unused(&mut self, used: &BTreeSet<Node>) {
        let unused = |(way, lane): (&Way, &Lane)| {
            let node = way.as_ref().filter(|node| lane.flight.is_none() && !used.contains(*node));
            node.cloned()
        };
        let unused: Vec<_> = self.lanes.iter().filter_map(unused).collect();
        // Losing its batches' sender ends a thread at once, for it waits for nothing else.
        self.ending.extend(
            unused.into_iter().filter_map(|node| self.lanes.remove(&Some(node))).map(|lane| lane.thread),
        );
    }

    /// Joins threads that have ended meanwhile.
    pub(super) fn join_ended(&mut self) {
        for thread in self.ending.extract_if(.., |thread| thread.has_ended()) {
            self.threads.join(thread);
        }
    }

    /// Ends all lanes: each thread after its batch, whose budget is about to end. They are joined by the call of
    /// what is returned.
    pub(super) fn end(self) -> impl FnOnce() {
        let lanes = self.lanes.into_values().map(|lane| lane.thread);
        let threads: Vec<_> = self.ending.into_iter().chain(lanes).collect();
        move || threads.into_iter().for_each(|thread| self.threads.join(thread))
    }

    /// Makes sure that a lane is there.
    fn make(&mut self, way: &Way) -> Result<(), StoreError> {
        let (Some(node), Some(nodes)) = (way, &self.nodes) else { return Ok(()) };
        if self.lanes.contains_key(way) {
            return Ok(());
        }
        let failed = |what: &str| {
            StoreError::new(
                Outcome::NotSent,
                Class::Passing,
                format!("could not {what} the cluster node {node}"),
            )
        };
        let session = nodes.open(node).map_err(|error| failed("open a session with").with_source(error))?;
        self.open(way.clone(), session).map_err(|error| failed("begin to talk to").with_source(error))
    }

    fn open(&mut self, way: Way, session: Box<dyn Session>) -> Result<(), Error> {
        let name = way.as_ref().map_or_else(|| "tr-io".to_owned(), |node| format!("tr-io-{}", node.port));
        let bell = session.bell();
        let (batches, work) = bounded(1);
        let (answers, of_thread) = (self.answers.clone(), way.clone());
        let body = move || io::run(session, &of_thread, &work, answers);
        let thread = Thread::spawn(self.owner, Place::Engine, &name, body)?;
        self.threads.0.fetch_add(1, Ordering::AcqRel);
        self.lanes.insert(way, Lane { batches, bell, thread, flight: None });
        Ok(())
    }
}
