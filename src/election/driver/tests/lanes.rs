//! Groups that are spread over places which the test moves them between.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::AtomicUsize;

use super::*;
use crate::election::store::{Node, Nodes, Redirect};

/// A memory store that says it has nodes. Each knows where every group is, and answers for its own.
#[derive(Clone)]
struct Spread {
    memory: MemoryStore,
    /// At which node, by its port, a group is.
    truth: Arc<Mutex<HashMap<String, u16>>>,
    learned: Arc<Mutex<HashMap<String, u16>>>,
    gate: Arc<Mutex<Option<Gate>>>,
    /// How many operations have been executed at a node.
    executed: Arc<AtomicUsize>,
    /// No session can be opened with the node of this port.
    refused: Arc<AtomicUsize>,
    /// Held by each session while its thread has it.
    sessions: Arc<()>,
}

/// Keeps the node of this port from doing anything.
#[derive(Clone)]
struct Gate {
    port: u16,
    /// Says that it was asked.
    ask: Sender<()>,
    /// Disconnects when it may go on.
    opened: Receiver<()>,
}

struct SpreadSession {
    store: Spread,
    memory: Box<dyn Session>,
    port: Option<u16>,
    _alive: Arc<()>,
}

impl Spread {
    fn new() -> Self {
        Self {
            memory: MemoryStore::new(),
            truth: Arc::default(),
            learned: Arc::default(),
            gate: Arc::default(),
            executed: Arc::default(),
            refused: Arc::default(),
            sessions: Arc::default(),
        }
    }

    fn put(&self, group: &Group, port: u16) {
        lock(&self.truth).insert(group.lease().to_owned(), port);
    }

    fn session(&self, port: Option<u16>) -> io::Result<Box<dyn Session>> {
        let (store, memory) = (self.clone(), sealed::Open::open(&self.memory)?);
        Ok(Box::new(SpreadSession { store, memory, port, _alive: Arc::clone(&self.sessions) }))
    }

    /// How many sessions there are.
    fn sessions(&self) -> usize {
        // Beside those, each of them has a store with one, the test has one, and each driver's nodes.
        Arc::strong_count(&self.sessions)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LeaseStore for Spread {}

impl sealed::Open for Spread {
    fn open(&self) -> io::Result<Box<dyn Session>> {
        self.session(None)
    }

    fn listen(&self) -> io::Result<Box<dyn Listener>> {
        sealed::Open::listen(&self.memory)
    }
}

impl Session for SpreadSession {
    fn execute(&mut self, batch: &[Operation], budget: &Budget) -> Vec<Result<Answer, StoreError>> {
        let gate = lock(&self.store.gate).clone().filter(|gate| self.port == Some(gate.port));
        if let Some(Gate { ask, opened, .. }) = gate {
            ask.send(()).expect("the test");
            opened.recv().expect_err("nothing is sent");
        }
        let execute = |operation: &Operation| {
            let lease = operation.group.lease();
            let port = lock(&self.store.truth)[lease];
            if self.port == Some(port) {
                self.store.executed.fetch_add(1, Ordering::AcqRel);
                return self.memory.execute(std::slice::from_ref(operation), budget).remove(0);
            }
            lock(&self.store.learned).insert(lease.to_owned(), port);
            let moved = Redirect::Moved { slot: 0, node: node(port) };
            Err(StoreError::new(Outcome::Refused, Class::WrongNode, "moved").with_redirect(Some(moved)))
        };
        batch.iter().map(execute).collect()
    }

    fn bell(&self) -> Bell {
        Bell::default()
    }

    fn nodes(&self) -> Option<Arc<dyn Nodes>> {
        Some(Arc::new(self.store.clone()))
    }
}

impl Nodes for Spread {
    fn of(&self, group: &Group) -> Option<Node> {
        lock(&self.learned).get(group.lease()).map(|port| node(*port))
    }

    fn open(&self, node: &Node) -> io::Result<Box<dyn Session>> {
        match usize::from(node.port) == self.refused.load(Ordering::Acquire) {
            true => Err(io::Error::other("no descriptors left")),
            false => self.session(Some(node.port)),
        }
    }
}

fn node(port: u16) -> Node {
    Node { host: "node".into(), port, asking: false }
}

fn group(name: &str) -> Group {
    Group::new(name).expect("a good name")
}

#[test]
fn a_group_that_moves_again_and_again_keeps_its_leader_and_leaves_no_thread_behind() {
    let store = Spread::new();
    store.put(&group("group"), 1);
    let elector = builder(store.clone()).ttl(Duration::from_secs(2)).start().expect("good options");
    let leadership = elector.wait_for_leadership(CAP).expect("leads");
    let before = store.sessions();
    for port in 2..10 {
        let renewals = elector.status().counters.renewals;
        store.put(&group("group"), port);
        eventually(|| elector.status().counters.renewals > renewals);
        // The lane to the node before has ended.
        eventually(|| store.sessions() == before);
    }
    assert!(leadership.is_valid(), "{:?}", elector.status().last_error);
    assert_eq!(elector.status().counters.errors, 0);
    elector.stop().expect("the memory answers");
    assert_eq!(store.sessions(), 1, "the store that the test has");
}

#[test]
fn a_node_that_no_session_can_be_opened_with_is_an_error_of_its_own_groups() {
    let store = Spread::new();
    store.refused.store(2, Ordering::Release);
    store.put(&group("good"), 1);
    store.put(&group("bad"), 2);
    let elector = |name: &str| Elector::builder(store.clone(), name).start().expect("good options");
    let (good, bad) = (elector("good"), elector("bad"));
    good.wait_for_leadership(CAP).expect("leads");
    let error = bad.on_error().recv_timeout(CAP).expect("an error");
    assert_eq!(error.kind(), ErrorKind::Passing);
    let chain = error.to_chain();
    assert!(chain.contains("open a session with the cluster node node:2: no descriptors left"), "{chain}");
    store.refused.store(0, Ordering::Release);
    bad.wait_for_leadership(CAP).expect("leads");
    assert_eq!(good.status().counters.errors, 0);
}

/// Adds elections of so many groups, each at a node of its own, from port 1 on.
fn add_elections(driver: &Driver, store: &Spread, count: u16, ttl: Duration) -> Vec<Arc<Standing>> {
    let timing = Options { ttl, ..Options::default() }.check().expect("good options");
    let add = |number: u16| {
        let group = group(&number.to_string());
        store.put(&group, 1 + number);
        let (id, number) = (InstanceId::random(None).expect("an id"), u64::from(number));
        let standing = Arc::new(Standing::new(driver.commands(number)));
        let (outlets, _) = Outlets::new();
        driver.add(Election::new(number, group, id, timing, Arc::clone(&standing), outlets, no_lead()));
        standing
    };
    (0..count).map(add).collect()
}

#[test]
fn what_is_redirected_after_its_election_has_stopped_is_not_sent_any_more() {
    let store = Spread::new();
    let driver = start_driver(&store);
    // Nothing is renewed meanwhile.
    let standings = add_elections(&driver, &store, 2, CAP * 3);
    standings.iter().for_each(|standing| drop(standing.wait(Some(CAP)).expect("leads")));
    let ((ask, asked), (open, opened)) = (bounded(1), bounded(0));
    *lock(&store.gate) = Some(Gate { port: 1, ask, opened });
    let (done, looked) = bounded(1);
    driver.commands(0).send(Command::Look { done });
    asked.recv_timeout(CAP).expect("the look is under way");
    // Another elector has learned that the group is elsewhere now, so that the release takes another lane.
    store.put(&group("0"), 3);
    lock(&store.learned).insert(group("0").lease().to_owned(), 3);
    driver.commands(0).send(Command::Stop);
    eventually(|| standings[0].ended().is_some());
    drop(open);
    looked.recv_timeout(CAP).expect_err("nobody is told");
    driver.commands(1).send(Command::Stop);
    driver.close();
    driver.ended().recv_timeout(CAP).expect_err("nothing is sent");
    driver.join();
    assert_eq!(store.executed.load(Ordering::Acquire), 4, "two attempts, two releases, and a look");
}

#[test]
fn the_threads_of_all_lanes_are_counted() {
    let store = Spread::new();
    let driver = start_driver(&store);
    assert_eq!(driver.threads(), 3);
    let standings = add_elections(&driver, &store, 5, Duration::from_secs(2));
    driver.close();
    for standing in &standings {
        standing.wait(Some(CAP)).expect("leads");
    }
    assert_eq!(driver.threads(), 3 + 5);
    // What stops takes its lane along.
    driver.commands(0).send(Command::Stop);
    eventually(|| driver.threads() == 3 + 4);
    (1..5).for_each(|number| driver.commands(number).send(Command::Stop));
    driver.ended().recv_timeout(CAP).expect_err("nothing is sent");
    assert_eq!(driver.threads(), 2, "they were joined");
    driver.join();
}

#[test]
fn a_pause_that_ends_between_two_looks_at_the_clock_is_not_slept_over() {
    let store = Spread::new();
    store.put(&group("group"), 1);
    // Known from the start, so that it does not change meanwhile.
    lock(&store.learned).insert(group("group").lease().to_owned(), 1);
    let (owner, (inbox, messages)) = (Owner::new(), inbox(INBOX));
    let (session, listener) = sealed::Open::open_both(&store).expect("descriptors");
    let lanes = Lanes::start(owner, session, inbox.clone()).expect("a thread");
    let wakes = Wakes::start(owner, listener, inbox.clone()).expect("a thread");
    let mut schedule = Schedule::new(messages, lanes, wakes);
    let commands = Commands { inbox, election: 0 };
    let (standing, (outlets, _)) = (Arc::new(Standing::new(commands)), Outlets::new());
    let timing = Options { ttl: CAP * 3, ..Options::default() }.check().expect("good options");
    let id = InstanceId::random(None).expect("an id");
    let election = Election::new(0, group("group"), id, timing, standing, outlets, no_lead());
    schedule.take(Message::Add(Box::new(election)));
    // Until its attempt is under way; nobody takes the answer.
    eventually(|| {
        schedule.call_due();
        schedule.dispatch();
        schedule.sleep(Instant::now()) > Duration::from_secs(1)
    });
    let (done, _looked) = bounded(1);
    schedule.take(Message::Command(0, Command::Look { done }));
    assert!(!schedule.sleep(Instant::now()).is_zero(), "it would spin until the lane is free");
    // Another lane is free, and the look could be sent along it since a moment ago.
    lock(&store.learned).insert(group("group").lease().to_owned(), 2);
    assert_eq!(schedule.sleep(Instant::now()), Duration::ZERO);
    [Message::Command(0, Command::Stop), Message::Close].into_iter().for_each(|last| {
        schedule.take(last);
    });
    schedule.run();
}
