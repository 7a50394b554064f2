//! The end of an elector: at any moment, on any network, and with nothing left behind.

#![allow(clippy::print_stderr, reason = "a test that measures shows its figures")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use taskrunner::election::{Builder, Elector, Error, ErrorKind, Event, MemoryStore, RedisStore};

use crate::support::cluster::join;
use crate::support::process::{fd_count, thread_names};
use crate::support::{Admin, Proxy, Reply, Server, eventually, in_own_process, unique_group};

/// Longer than anything takes that is to happen.
const CAP: Duration = Duration::from_secs(20);

const MS: Duration = Duration::from_millis(1);

/// What a call may take beside the waits that its bound counts: waking threads on a busy machine.
const WAKING: Duration = Duration::from_millis(50);

fn builder(url: &str, group: &str) -> Builder {
    Elector::builder(RedisStore::open(url).expect("a good url"), group)
}

/// The threads of electors in this process.
fn our_threads() -> Vec<String> {
    thread_names(process::id()).into_iter().filter(|name| name.starts_with("tr-")).collect()
}

#[track_caller]
fn expect_no_threads_of_ours() {
    // The kernel lists a thread for a moment after it was joined.
    eventually(Duration::from_secs(1), || match our_threads() {
        threads if threads.is_empty() => Ok(()),
        threads => Err(threads),
    });
}

/// How many operations the server has been sent.
fn scripts(admin: &mut Admin) -> u64 {
    let info = admin.command(&["INFO", "commandstats"]);
    let line = info.text().lines().find_map(|line| line.strip_prefix("cmdstat_eval:calls="));
    line.and_then(|line| line.split(',').next()).map_or(0, |calls| calls.parse().expect("a number"))
}

fn holder(admin: &mut Admin, key: &str) -> Option<String> {
    match admin.command(&["GET", key]) {
        Reply::Nil => None,
        reply => Some(reply.text().to_owned()),
    }
}

/// The lease key of a group, without an elector that contends on the test's server.
fn key_of(group: &str) -> String {
    Elector::builder(MemoryStore::new(), group).start().expect("good options").key().to_owned()
}

/// How our connections look in the server's list.
fn our_clients(admin: &mut Admin) -> usize {
    admin.command(&["CLIENT", "LIST"]).text().matches(" name=taskrunner ").count()
}

#[track_caller]
fn expect_no_clients_of_ours(admin: &mut Admin) {
    eventually(CAP, || match our_clients(admin) {
        0 => Ok(()),
        count => Err(count),
    });
}

/// What all rounds together saw.
#[derive(Default)]
struct Tally {
    leading: AtomicU32,
    following: AtomicU32,
    unreleased: AtomicU32,
}

/// Starts electors one after the other over a proxy of its own, and ends each at a random moment.
struct Rounds {
    proxy: Proxy,
    group: String,
    key: String,
    admin: Admin,
    random: StdRng,
    /// What had been sent when the last round ended.
    sent: u64,
}

impl Rounds {
    fn new(server: &Server, seed: u64) -> Self {
        let (proxy, group) = (Proxy::to(server), unique_group("random-moment"));
        proxy.delay(5 * MS);
        let (key, admin) = (key_of(&group), server.admin());
        Self { proxy, group, key, admin, random: StdRng::seed_from_u64(seed), sent: 0 }
    }

    fn expect_silence(&self) {
        assert_eq!(self.proxy.traffic().to_server.bytes, self.sent, "something was sent after the end");
    }

    fn run(&mut self, tally: &Tally) {
        self.expect_silence();
        let ttl = MS * self.random.random_range(150..=200);
        if self.random.random_bool(0.4) {
            // Somebody else leads at first, so this one contends, and may win in the middle of its end.
            let foreign = self.random.random_range(1..=250).to_string();
            self.admin.command(&["SET", &self.key, "foreign", "PX", &foreign]);
        }
        // Handshake and acquire take 20 ms, and a renewal follows each 80 to 105 ms: through two of those.
        let delay = Duration::from_micros(self.random.random_range(0..260_000));
        let with_drop = self.random.random_bool(0.5);

        let elector =
            builder(&self.proxy.url(), &self.group).ttl(ttl).wait(50 * MS).start().expect("good options");
        let id = elector.id().to_owned();
        thread::sleep(delay);
        let leadership = elector.leadership();
        let role = if leadership.is_some() { &tally.leading } else { &tally.following };
        role.fetch_add(1, Ordering::Relaxed);
        if with_drop {
            drop(elector);
        } else {
            if let Err(error) = elector.stop() {
                assert_eq!(error.kind(), ErrorKind::Passing, "{}", error.to_chain());
            }
            assert!(!elector.is_leader() && elector.leadership().is_none(), "leading after stop()");
            self.sent = self.proxy.traffic().to_server.bytes;
            drop(elector);
            self.expect_silence();
        }
        self.sent = self.proxy.traffic().to_server.bytes;
        assert!(leadership.is_none_or(|leadership| !leadership.is_valid()), "a term outlived its elector");
        let ours = |admin: &mut Admin| holder(admin, &self.key).is_some_and(|holder| holder == id);
        if ours(&mut self.admin) {
            tally.unreleased.fetch_add(1, Ordering::Relaxed);
            // An acquire was in flight, or the release: the lease ends by itself.
            eventually(ttl + WAKING, || if ours(&mut self.admin) { Err("still ours") } else { Ok(()) });
        }
        self.admin.command(&["DEL", &self.key]);
    }
}

#[test]
fn a_thousand_ends_at_random_moments_leave_no_leader_no_lease_no_thread_and_no_command() {
    in_own_process(
        "timing::stop::a_thousand_ends_at_random_moments_leave_no_leader_no_lease_no_thread_and_no_command",
        || {
            const SIDE_BY_SIDE: u32 = 10;
            const LAPS: u32 = 5;
            const ROUNDS: u32 = 20;
            let seed: u64 = rand::random();
            eprintln!("seed {seed}");
            let server = Server::start();
            let mut admin = server.admin();
            let (tally, from) = (Tally::default(), Instant::now());
            let mut all: Vec<_> =
                (0..SIDE_BY_SIDE).map(|n| Rounds::new(&server, seed.wrapping_add(n.into()))).collect();
            for _ in 0..LAPS {
                thread::scope(|scope| {
                    for rounds in &mut all {
                        scope.spawn(|| (0..ROUNDS).for_each(|_| rounds.run(&tally)));
                    }
                });
                expect_no_threads_of_ours();
                expect_no_clients_of_ours(&mut admin);
                let before = scripts(&mut admin);
                // Longer than any of them would wait before its next attempt or renewal.
                thread::sleep(120 * MS);
                assert_eq!(scripts(&mut admin), before, "the server was sent something after the end");
                all.iter().for_each(Rounds::expect_silence);
            }
            let [leading, following, unreleased] =
                [tally.leading, tally.following, tally.unreleased].map(AtomicU32::into_inner);
            eprintln!(
                "{} ends in {:?}: {leading} of leaders, {following} of followers; {unreleased} leases left to expire",
                leading + following,
                from.elapsed(),
            );
            assert_eq!(leading + following, SIDE_BY_SIDE * LAPS * ROUNDS);
            assert!(leading > 100 && following > 100, "the moments are not as random as they should be");
            // The network is good, so only a machine that stood still for a call limit can be the reason.
            assert!(unreleased <= 10, "{unreleased} leases were left to expire");
        },
    );
}

/// Stops the electors, each from a thread of its own. Asserts that each is back in time, and returns how they
/// ended and how long the calls took.
#[track_caller]
fn stop_all(what: &str, electors: &[(&str, Duration, &Elector)]) -> Vec<Result<(), Error>> {
    let outcomes = thread::scope(|scope| {
        let stops = electors.iter().map(|(_, _, elector)| {
            scope.spawn(move || {
                let from = Instant::now();
                (elector.stop(), from.elapsed())
            })
        });
        let stops: Vec<_> = stops.collect();
        stops.into_iter().map(|stop| stop.join().expect("no panic")).collect::<Vec<_>>()
    });
    for ((name, ttl, elector), (outcome, took)) in electors.iter().zip(&outcomes) {
        // Two call limits, since there is no lead work to wait for.
        let bound = 2 * (*ttl / 2).min(Duration::from_secs(2));
        eprintln!("{what}, {name}: stop() took {took:?} of {bound:?}");
        assert!(*took <= bound + WAKING, "{what}, {name}: stop() took {took:?}, {:?} were allowed", bound);
        assert!(!elector.is_leader());
        if let Err(error) = outcome {
            assert_eq!(error.kind(), ErrorKind::Passing, "{what}, {name}: {}", error.to_chain());
        }
    }
    outcomes.into_iter().map(|(outcome, _)| outcome).collect()
}

#[test]
fn a_stop_is_back_in_time_when_redis_is_frozen_unreachable_or_gone() {
    let stop_under = |what| {
        let mut server = Server::start();
        let proxy = Proxy::to(&server);
        let mut admin = server.admin();
        // The long lease outlives the stop.
        let (long, short) = (5000 * MS, 1000 * MS);
        let start = |name: &str, ttl| {
            builder(&proxy.url(), &unique_group(name)).ttl(ttl).wait(50 * MS).start().expect("good options")
        };
        let group = unique_group("follows");
        let foreign = ["SET", &key_of(&group), "foreign", "PX", "60000"];
        admin.command(&foreign);
        let follows = builder(&proxy.url(), &group).ttl(short).wait(50 * MS).start().expect("good options");
        let [at_rest, renews] = [start("at-rest", long), start("renews", short)];
        for elector in [&at_rest, &renews] {
            elector.wait_for_leadership(CAP).expect("leads");
        }
        match what {
            "frozen" => server.freeze(),
            "a black hole" => proxy.hold(),
            _ => server.kill(),
        }
        let connects = start("connects", short);
        // By now the one leader's renewal has been sent, and the follower's attempt; the other leader is at rest.
        thread::sleep(600 * MS);
        let outcomes = stop_all(
            what,
            &[
                ("a leader at rest", long, &at_rest),
                ("a leader that renews", short, &renews),
                ("a follower", short, &follows),
                ("one that was never connected", short, &connects),
            ],
        );
        let error = outcomes[0].as_ref().expect_err("the lease cannot be released");
        assert!(error.to_string().contains("was not released"), "{}", error.to_chain());
        let sent = proxy.traffic().to_server.bytes;
        match what {
            "frozen" => server.thaw(),
            "a black hole" => proxy.pass(),
            _ => server.restart(),
        }
        let mut admin = server.admin();
        // What was in the kernel's buffers at the end may still be executed, an acquire for its ttl at most.
        for elector in [&at_rest, &renews, &follows, &connects] {
            eventually(short + WAKING, || match holder(&mut admin, elector.key()) {
                Some(holder) if holder == elector.id() => Err(holder),
                _ => Ok(()),
            });
        }
        assert_eq!(proxy.traffic().to_server.bytes, sent, "{what}: something was sent after the end");
        expect_no_clients_of_ours(&mut admin);
    };
    // Side by side, for almost all of it is waiting.
    thread::scope(|scope| {
        for what in ["frozen", "a black hole", "gone"] {
            scope.spawn(move || stop_under(what));
        }
    });
}

#[test]
fn a_stop_releases_a_lease_that_was_won_by_a_reply_that_never_came() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let mut admin = server.admin();
    let group = unique_group("lost-reply");
    let key = key_of(&group);
    admin.command(&["SET", &key, "foreign", "PX", "60000"]);
    // A call limit of 2 s: the acquire is in flight for as long as the test takes.
    let elector = builder(&proxy.url(), &group).wait(50 * MS).start().expect("good options");
    let events = elector.events();
    while !matches!(events.recv_timeout(CAP), Ok(Event::LeaderChanged(Some(_)))) {}
    proxy.hold_replies();
    admin.command(&["DEL", &key]);
    eventually(CAP, || match holder(&mut admin, &key) {
        Some(holder) if holder == elector.id() => Ok(()),
        other => Err(other),
    });
    thread::scope(|scope| {
        let stop = scope.spawn(|| elector.stop());
        // By then the stop waits for the reply, which is lost with the connection.
        thread::sleep(50 * MS);
        assert!(!stop.is_finished(), "an acquire is in flight");
        proxy.close_all();
        proxy.pass();
        stop.join().expect("no panic").expect("the server can be reached again");
    });
    assert_eq!(holder(&mut admin, &key), None, "the lease was not released");
    assert!(!elector.is_leader() && elector.on_promote().is_empty(), "nobody was told of it");
}

#[test]
fn a_stop_from_another_thread_ends_every_wait_for_leadership() {
    for frozen in [false, true] {
        let server = Server::start();
        let (group, ttl) = (unique_group("waits"), 1000 * MS);
        server.command(&["SET", &key_of(&group), "foreign", "PX", "60000"]);
        let elector = builder(&server.url(), &group).ttl(ttl).wait(50 * MS).start().expect("good options");
        let elector = Arc::new(elector);
        let (sender, ended) = mpsc::channel();
        for _ in 0..4 {
            let (elector, sender) = (Arc::clone(&elector), sender.clone());
            // Not joined: one that waits for ever must fail the test and not hang it.
            thread::spawn(move || sender.send((elector.wait_for_leadership(None), Instant::now())));
        }
        // Long enough for all of them to be waiting; if one is not, it has the same answer.
        let early = ended.recv_timeout(100 * MS);
        assert!(early.is_err(), "somebody else leads: {early:?}");
        if frozen {
            server.freeze();
            // By then an attempt is in flight.
            thread::sleep(100 * MS);
        }
        let from = Instant::now();
        let outcome = elector.stop();
        let took = from.elapsed();
        // Two call limits, for either.
        assert!(took <= ttl + WAKING, "stop() took {took:?}");
        assert!(frozen || outcome.is_ok(), "{outcome:?}");
        for _ in 0..4 {
            let (waited, at) = ended.recv_timeout(CAP).expect("a wait ends with the elector");
            let error = waited.expect_err("somebody else leads");
            let expected = outcome.as_ref().err().map_or(ErrorKind::Stopped, Error::kind);
            assert_eq!(error.kind(), expected, "{}", error.to_chain());
            assert!(at - from <= ttl + WAKING, "a wait ended {:?} after the stop began", at - from);
        }
        eprintln!("frozen {frozen}: stop() took {took:?} with four threads waiting");
    }
}

#[test]
fn a_drop_during_a_panic_releases_the_lease_in_time() {
    in_own_process("timing::stop::a_drop_during_a_panic_releases_the_lease_in_time", || {
        for frozen in [false, true] {
            let server = Server::start();
            let (group, ttl) = (unique_group("unwinds"), 1000 * MS);
            let key = key_of(&group);
            let mut from = Instant::now();
            let panic = catch_unwind(AssertUnwindSafe(|| {
                let elector = builder(&server.url(), &group).ttl(ttl).start().expect("good options");
                elector.wait_for_leadership(CAP).expect("leads");
                assert!(elector.is_leader());
                if frozen {
                    server.freeze();
                }
                from = Instant::now();
                // As panic!() does, without a message on the test's output.
                resume_unwind(Box::new("the user's work"));
            }));
            let took = from.elapsed();
            assert_eq!(panic.expect_err("a panic").downcast_ref(), Some(&"the user's work"), "its own panic");
            eprintln!("frozen {frozen}: the unwinding took {took:?}");
            // Two call limits.
            assert!(took <= ttl + WAKING, "the unwinding took {took:?}");
            expect_no_threads_of_ours();
            if !frozen {
                assert_eq!(holder(&mut server.admin(), &key), None, "the lease was not released");
            }
        }
    });
}

#[test]
fn three_hundred_electors_one_after_the_other_leave_nothing_behind() {
    in_own_process("timing::stop::three_hundred_electors_one_after_the_other_leave_nothing_behind", || {
        const EACH: usize = 100;
        let mut server = Server::start();
        let group = unique_group("cycles");
        let mut admin = server.admin();
        let cycle = |leads: bool| {
            let elector = builder(&server.url(), &group).start().expect("good options");
            if leads {
                elector.wait_for_leadership(CAP).expect("leads");
            }
            elector.stop().expect("released, or never won");
        };
        // The first one makes what the process keeps: a thread-local generator, the allocator's arenas.
        cycle(true);
        let count = || (fd_count(process::id()), thread_names(process::id()).len());
        let flat = |what: &str, before: (usize, usize)| {
            eventually(Duration::from_secs(1), || match count() {
                now if now == before => Ok(()),
                now => Err(format!("{what}: {now:?} descriptors and threads, {before:?} before")),
            });
        };
        let before = count();
        let from = Instant::now();
        (0..EACH).for_each(|_| cycle(true));
        flat("led", before);
        (0..EACH).for_each(|_| cycle(false));
        flat("stopped at once", before);
        expect_no_clients_of_ours(&mut admin);
        assert_eq!(holder(&mut admin, &key_of(&group)), None);
        drop(admin);
        let url = server.url();
        server.kill();
        let before = count();
        for _ in 0..EACH {
            let elector = builder(&url, &group).start().expect("good options");
            elector.on_error().recv_timeout(CAP).expect("the server is gone");
            elector.stop().expect("there is nothing to release");
        }
        flat("without a server", before);
        eprintln!("{} electors in {:?}", 3 * EACH, from.elapsed());
    });
}

#[test]
fn a_stop_is_back_in_time_when_every_node_of_a_cluster_is_frozen() {
    let nodes = [(); 2].map(|()| Server::with(&["--cluster-enabled", "yes"]));
    join(&nodes.each_ref().map(|node| (node, node.port())));
    let url = format!("redis-cluster://{},{}", nodes[0].address(), nodes[1].address());
    let ttl = 60_000 * MS;
    // The slots of their groups are as good as never all at one node.
    let electors = [(); 8].map(|()| builder(&url, &unique_group("cluster")).ttl(ttl).start());
    let electors = electors.map(|elector| elector.expect("good options"));
    for elector in &electors {
        elector.wait_for_leadership(CAP).expect("leads");
    }
    nodes.iter().for_each(Server::freeze);
    let leaders = electors.each_ref().map(|elector| ("a leader", ttl, elector));
    for outcome in stop_all("frozen nodes", &leaders) {
        let error = outcome.expect_err("the lease cannot be released");
        assert!(error.to_string().contains("was not released"), "{}", error.to_chain());
    }
}
