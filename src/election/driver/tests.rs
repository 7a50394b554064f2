//! The threads over stores that hang, die or refuse, and many elections over one connection.

mod cluster;
mod lanes;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crossbeam_channel::bounded;

use super::*;
use crate::election::clock::Instant;
use crate::election::key::{Group, InstanceId};
use crate::election::leadership::Standing;
use crate::election::options::Options;
use crate::election::store::budget::BellEnd;
use crate::election::store::{
    Bell, Budget, Class, Heard, LeaseStore, Operation, Outcome, RedisStore, sealed,
};
use crate::election::{Builder, Elector, ErrorKind, MemoryStore, Reason};
use crate::server::{Admin, Server};

/// Long enough for anything that happens at all.
const CAP: Duration = Duration::from_secs(20);

/// A memory store whose sessions do what the test wants.
#[derive(Clone)]
struct Rigged {
    memory: MemoryStore,
    fault: Arc<Mutex<Option<Fault>>>,
    /// Whether a session is inside a fault now.
    caught: Arc<AtomicBool>,
    /// Held by each listener while its thread has it.
    listeners: Arc<()>,
}

enum Fault {
    /// Waits until its budget has ended.
    Hang,
    Panic,
    /// Waits until the sender is dropped, whatever its budget says.
    Stuck(Receiver<()>),
    /// Drops this elector on the I/O thread.
    Drop(Box<Elector>),
}

struct RiggedListener {
    memory: Box<dyn Listener>,
    _alive: Arc<()>,
}

struct RiggedSession {
    store: Rigged,
    memory: Box<dyn Session>,
    bell: Bell,
    end: BellEnd,
}

impl Rigged {
    fn new() -> Self {
        Self {
            memory: MemoryStore::new(),
            fault: Arc::default(),
            caught: Arc::default(),
            listeners: Arc::default(),
        }
    }

    fn rig(&self, fault: impl Into<Option<Fault>>) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault.into();
    }

    fn wait_until_caught(&self) {
        eventually(|| self.caught.load(Ordering::Acquire));
    }
}

impl LeaseStore for Rigged {}

impl sealed::Open for Rigged {
    fn open(&self) -> std::io::Result<Box<dyn Session>> {
        let (bell, end) = Bell::new()?;
        Ok(Box::new(RiggedSession { store: self.clone(), memory: self.memory.open()?, bell, end }))
    }

    fn listen(&self) -> std::io::Result<Box<dyn Listener>> {
        Ok(Box::new(RiggedListener { memory: self.memory.listen()?, _alive: Arc::clone(&self.listeners) }))
    }
}

impl Listener for RiggedListener {
    fn next(&mut self, groups: &[Group], budget: &Budget) -> Result<Heard, StoreError> {
        self.memory.next(groups, budget)
    }

    fn reset(&mut self) {
        self.memory.reset();
    }

    fn bell(&self) -> Bell {
        self.memory.bell()
    }
}

impl Session for RiggedSession {
    fn execute(&mut self, batch: &[Operation], budget: &Budget) -> Vec<Result<Answer, StoreError>> {
        let fault = self.store.fault.lock().unwrap_or_else(PoisonError::into_inner).take();
        match fault {
            None => self.memory.execute(batch, budget),
            Some(Fault::Stuck(freed)) => {
                self.store.caught.store(true, Ordering::Release);
                freed.recv().expect_err("nothing is sent");
                self.memory.execute(batch, budget)
            }
            Some(Fault::Panic) => panic!("the store was rigged to panic"),
            Some(Fault::Drop(elector)) => {
                drop(elector);
                self.store.caught.store(true, Ordering::Release);
                self.memory.execute(batch, budget)
            }
            Some(Fault::Hang) => {
                self.store.caught.store(true, Ordering::Release);
                while let Some(left) = budget.remaining() {
                    let mut fds = [rustix::event::PollFd::new(&self.end, rustix::event::PollFlags::IN)];
                    let left = left.try_into().expect("a budget fits");
                    rustix::event::poll(&mut fds, Some(&left)).expect("poll");
                    self.end.silence();
                }
                self.store.caught.store(false, Ordering::Release);
                self.store.rig(Fault::Hang);
                let error = || StoreError::new(Outcome::Unknown, Class::Passing, "hung");
                batch.iter().map(|_| Err(error())).collect()
            }
        }
    }

    fn bell(&self) -> Bell {
        self.bell.clone()
    }
}

fn eventually(mut condition: impl FnMut() -> bool) {
    let from = std::time::Instant::now();
    while !condition() {
        assert!(from.elapsed() < CAP, "not within {CAP:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn start_driver(store: &impl LeaseStore) -> Driver {
    let (session, listener) = (store.open().expect("a descriptor"), store.listen().expect("a descriptor"));
    Driver::start(Owner::new(), session, listener).expect("three threads")
}

fn no_lead() -> Lead {
    Lead::new(Owner::new(), None)
}

fn builder(store: impl LeaseStore) -> Builder {
    Elector::builder(store, "group").ttl(Duration::from_millis(400)).wait(Duration::from_millis(400))
}

#[test]
fn the_handles_may_be_shared_by_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Elector>();
    shared::<crate::election::Leadership>();
    shared::<Error>();
    shared::<Event>();
    shared::<RedisStore>();
    shared::<MemoryStore>();
}

#[test]
fn a_store_that_panics_ends_the_elector_and_everybody_is_told() {
    let store = Rigged::new();
    let elector = builder(store.clone()).start().expect("good options");
    let events = elector.events();
    let leadership = elector.wait_for_leadership(CAP).expect("leads");
    store.rig(Fault::Panic);
    assert!(leadership.lost().recv_timeout(CAP).expect_err("disconnects").is_disconnected());
    assert!(!elector.is_leader() && !leadership.is_valid());
    assert_eq!(elector.wait_for_leadership(None).expect_err("dead").kind(), ErrorKind::Dead);
    assert_eq!(elector.step_down(Duration::ZERO).expect_err("dead").kind(), ErrorKind::Dead);
    assert_eq!(elector.stop().expect_err("dead").kind(), ErrorKind::Dead);
    assert!(!events.iter().any(|event| matches!(event, Event::Stopped)), "it has not stopped, it has died");
    assert!(elector.events().recv().is_err(), "a new subscription ends at once");
    assert!(elector.on_promote().try_iter().count() <= 1 && elector.on_promote().recv().is_err());
    eventually(|| Arc::strong_count(&store.listeners) == 1);
}

#[test]
fn a_store_that_hangs_delays_neither_the_demotion_nor_a_stop() {
    let store = Rigged::new();
    let elector = builder(store.clone()).start().expect("good options");
    let leadership = elector.wait_for_leadership(CAP).expect("leads");
    store.rig(Fault::Hang);
    let demotion = elector.on_demote().recv_timeout(CAP).expect("demoted");
    assert_eq!((demotion.token, demotion.reason), (leadership.token(), Reason::Expired));
    assert!(!elector.is_leader() && leadership.lost().try_recv().is_err_and(|e| e.is_disconnected()));
    store.wait_until_caught();
    let from = Instant::now();
    // The lease has expired by itself, or the release hangs until the stop is over.
    if let Err(error) = elector.stop() {
        assert_eq!(error.kind(), ErrorKind::Passing, "{error}");
    }
    let limit = Duration::from_millis(400 + 2 * 200) + Duration::from_millis(500);
    assert!(from.elapsed() < limit, "grace, two call limits and a slow machine: {:?}", from.elapsed());
}

#[test]
fn a_stop_shortens_the_operation_that_hangs() {
    let store = Rigged::new();
    store.rig(Fault::Hang);
    let day = Duration::from_secs(24 * 60 * 60);
    let elector = Elector::builder(store.clone(), "group").ttl(day).start().expect("good options");
    store.wait_until_caught();
    store.rig(None);
    let from = Instant::now();
    elector.stop().ok();
    assert!(from.elapsed() < Duration::from_secs(5), "the attempt had two seconds: {:?}", from.elapsed());
}

#[test]
fn stops_of_a_stuck_elector_are_bounded_together_and_say_that_it_leads_no_more() {
    let store = Rigged::new();
    let elector = Arc::new(builder(store.clone()).start().expect("good options"));
    let leadership = elector.wait_for_leadership(CAP).expect("leads");
    let (free, freed) = bounded(0);
    store.rig(Fault::Stuck(freed));
    store.wait_until_caught();
    let from = Instant::now();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(elector.stop().expect_err("stuck").kind(), ErrorKind::Overrun));
        }
    });
    // Two call limits and the slack are 0.9 s; one after the other they would take four times that.
    assert!(from.elapsed() < Duration::from_secs(2), "{:?}", from.elapsed());
    assert!(!elector.is_leader() && !leadership.is_valid());

    // Nobody is held up by the threads that are left, whatever is sent to them.
    let subscriptions: Vec<_> = (0..2 * INBOX).map(|_| elector.events()).collect();
    drop(free);
    for events in subscriptions {
        events.iter().for_each(drop);
    }
    eventually(|| elector.stop().is_ok());
}

#[test]
fn nothing_is_sent_in_the_name_of_an_instance_that_has_stopped() {
    let store = Rigged::new();
    let (free, freed) = bounded(0);
    store.rig(Fault::Stuck(freed));
    let driver = start_driver(&store);
    let timing = Options { ttl: Duration::from_millis(200), ..Options::default() };
    let timing = timing.check().expect("good options");
    let start = |number: u64| {
        let group = Group::new(&format!("group {number}")).expect("a good name");
        let id = InstanceId::random(None).expect("an id");
        let standing = Arc::new(Standing::new(driver.commands(number)));
        let (outlets, _) = Outlets::new();
        driver.add(Election::new(number, group, id, timing, Arc::clone(&standing), outlets, no_lead()));
        standing
    };
    let busy = start(0);
    store.wait_until_caught();
    let standing = start(1);
    // Its attempt waits behind the one that is stuck.
    thread::sleep(timing.jitter + Duration::from_millis(20));
    driver.commands(1).send(Command::Stop);
    eventually(|| standing.ended().is_some());
    // A third one's attempt, which still has time, goes in the next batch: the second one's must not.
    let third = start(2);
    thread::sleep(timing.jitter + Duration::from_millis(20));
    drop(free);
    busy.wait(Some(CAP)).expect("leads");
    third.wait(Some(CAP)).expect("leads");
    // By then the other one has renewed, so what was waiting has been sent, if it was.
    thread::sleep(timing.ttl);
    assert!(busy.is_leader());
    assert_eq!(
        format!("{:?}", store.memory),
        "MemoryStore { groups: 2 }",
        "the second group was never touched"
    );
    driver.close();
    driver.commands(0).send(Command::Stop);
    driver.commands(2).send(Command::Stop);
    driver.join();
}

#[test]
fn an_elector_dropped_on_its_own_thread_does_not_wait_for_itself() {
    let store = Rigged::new();
    let elector = Box::new(builder(store.clone()).start().expect("good options"));
    elector.wait_for_leadership(CAP).expect("leads");
    let events = elector.events();
    store.rig(Fault::Drop(elector));
    eventually(|| store.caught.load(Ordering::Acquire));
    assert!(events.iter().any(|event| matches!(event, Event::Stopped)), "it stops all the same");
}

#[test]
fn stops_at_the_same_time_all_return_the_same_and_leave_no_lease() {
    let store = MemoryStore::new();
    let elector = builder(store.clone()).start().expect("good options");
    elector.wait_for_leadership(CAP).expect("leads");
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| elector.stop().expect("the memory answers"));
        }
    });
    elector.stop().expect("as before");
    assert_eq!(elector.wait_for_leadership(None).expect_err("stopped").kind(), ErrorKind::Stopped);
    assert_eq!(elector.step_down(Duration::ZERO).expect_err("stopped").kind(), ErrorKind::Stopped);
    let last: Vec<_> = elector.events().iter().collect();
    assert!(matches!(last[..], [Event::Stopped]), "{last:?}");
    let next = builder(store).ttl(Duration::from_secs(60)).start().expect("good options");
    next.wait_for_leadership(CAP).expect("the lease was released, not left to expire");
}

#[test]
fn a_subscription_begins_with_the_present_state_and_ends_with_the_end() {
    let elector = builder(MemoryStore::new()).start().expect("good options");
    let token = elector.wait_for_leadership(CAP).expect("leads").token();
    let events = elector.events();
    elector.step_down(Duration::from_secs(60)).expect("the memory answers");
    elector.stop().expect("the memory answers");
    let seen: Vec<_> = events.iter().collect();
    assert!(matches!(&seen[0], Event::Promoted(leadership) if leadership.token() == token), "{seen:?}");
    assert!(matches!(&seen[1], Event::LeaderChanged(Some(leader)) if leader.id == elector.id()), "{seen:?}");
    assert!(
        matches!(&seen[2], Event::Demoted(demotion) if demotion.reason == Reason::SteppedDown),
        "{seen:?}"
    );
    assert!(matches!(&seen[3], Event::LeaderChanged(None)), "{seen:?}");
    assert!(matches!(&seen[4], Event::Stopped), "{seen:?}");
    assert_eq!(seen.len(), 5, "{seen:?}");
}

#[test]
fn promotions_and_demotions_never_contradict_each_other() {
    let elector = builder(MemoryStore::new()).start().expect("good options");
    let (promote, demote) = (elector.on_promote(), elector.on_demote());
    for _ in 0..50 {
        let leadership = elector.wait_for_leadership(CAP).expect("leads");
        eventually(|| promote.len() == 1);
        assert_eq!(demote.len(), 0, "a demotion of an earlier term stands beside the promotion");
        elector.step_down(Duration::ZERO).expect("the memory answers");
        assert!(!leadership.is_valid());
    }
    elector.step_down(Duration::from_secs(60)).expect("the memory answers");
    assert_eq!((promote.len(), demote.len()), (0, 1));
    assert_eq!(demote.recv().expect("the last one").reason, Reason::SteppedDown);
}

#[test]
fn a_leadership_steps_down_for_its_own_term_only() {
    let elector = builder(MemoryStore::new()).start().expect("good options");
    let first = elector.wait_for_leadership(CAP).expect("leads");
    elector.step_down(Duration::ZERO).expect("the memory answers");
    let second = elector.wait_for_leadership(CAP).expect("leads again");
    assert!(second.token() > first.token());
    first.step_down();
    elector.events().recv().expect("a subscription is made after the step down");
    assert!(second.is_valid(), "an earlier term's step down has ended a later one");
    second.step_down();
    assert!(second.lost().recv_timeout(CAP).is_err_and(|error| error.is_disconnected()));
}

#[test]
fn a_step_down_whose_pause_ends_before_the_attempt_in_flight_does_not_wait_for_the_term_that_it_wins() {
    let store = Rigged::new();
    let (free, freed) = bounded(0);
    store.rig(Fault::Stuck(freed));
    let elector = builder(store.clone()).ttl(CAP * 4).start().expect("good options");
    store.wait_until_caught();
    thread::scope(|scope| {
        let stepped_down = scope.spawn(|| elector.step_down(Duration::ZERO));
        // It most likely waits by then. If not, it steps down from the term itself, which is answered, too.
        thread::sleep(Duration::from_millis(50));
        drop(free);
        stepped_down.join().expect("no panic").expect("nothing is left to be released");
    });
    elector.wait_for_leadership(CAP).expect("leads");
}

#[test]
fn a_hundred_elections_share_one_connection_and_one_of_them_fails_alone() {
    let server = Server::start();
    let store = RedisStore::open(&server.url()).expect("a good url");
    let driver = start_driver(&store);
    let timing = Options { ttl: Duration::from_secs(2), wait: Duration::from_secs(1), ..Options::default() };
    let timing = timing.check().expect("good options");
    let elections: Vec<_> = (0..100)
        .map(|number| {
            let group = Group::new(&format!("group {number}")).expect("a good name");
            let id = InstanceId::random(None).expect("an id");
            if number == 42 {
                server.command(&["SET", group.term(), "not a hash"]);
            }
            let standing = Arc::new(Standing::new(driver.commands(number)));
            let (outlets, inlets) = Outlets::new();
            driver.add(Election::new(number, group, id, timing, Arc::clone(&standing), outlets, no_lead()));
            (standing, inlets)
        })
        .collect();
    driver.close();

    let (_, inlets) = &elections[42];
    let error = inlets.error.recv_timeout(CAP).expect("the term key is no hash");
    assert_eq!(error.kind(), ErrorKind::Configuration, "{}", error.to_chain());
    let others =
        || elections.iter().enumerate().filter(|(number, _)| *number != 42).map(|(_, election)| election);
    for (standing, _) in others() {
        standing.wait(Some(CAP)).expect("leads");
    }
    let mut admin = server.admin();
    let before = traffic(&mut admin);
    // Every election renews at least three times meanwhile, unless it loses its lease.
    let mut looks = 0;
    let after = loop {
        looks += 1;
        let now = traffic(&mut admin);
        if now.scripts >= before.scripts + 300 {
            break now;
        }
        assert!(looks < 200, "99 leaders have not renewed three times in 20 s");
        thread::sleep(Duration::from_millis(100));
    };
    let (reads, scripts) = (after.reads - before.reads - looks, after.scripts - before.scripts);
    for (standing, inlets) in others() {
        assert!(standing.is_leader() && inlets.demote.is_empty() && inlets.error.is_empty());
    }
    assert!(reads < scripts, "{scripts} scripts came in {reads} reads: they are not pipelined");
    let clients = server.command(&["CLIENT", "LIST", "TYPE", "normal"]);
    assert_eq!(clients.text().matches("name=taskrunner").count(), 1, "{}", clients.text());

    for (number, _) in elections.iter().enumerate() {
        driver.commands(number as u64).send(Command::Stop);
    }
    let ended = driver.ended().recv_timeout(CAP);
    assert!(ended.is_err_and(|error| error.is_disconnected()), "both threads end");
    driver.join();
    for (standing, _) in &elections {
        standing.ended().expect("stopped").expect("released");
    }
    assert_eq!(server.command(&["KEYS", "taskrunner:leader:*"]).list().len(), 0, "every lease is released");
}

/// What a server has been sent.
struct Traffic {
    /// How often it read from a connection, the question for these figures included.
    reads: u64,
    scripts: u64,
}

fn traffic(admin: &mut Admin) -> Traffic {
    let info = admin.command(&["INFO", "everything"]);
    let field = |name: &str| {
        let line = info.text().lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0");
        let digits = line.split(|c: char| !c.is_ascii_digit()).find(|digits| !digits.is_empty());
        digits.and_then(|digits| digits.parse().ok()).expect("a number")
    };
    Traffic { reads: field("total_reads_processed:"), scripts: field("cmdstat_eval:calls=") }
}
