//! Name servers, networks and servers that are slow, or answer a byte now and then.

#![allow(clippy::print_stderr, reason = "a test that measures shows its figures")]

use std::fs;
use std::io::ErrorKind as IoErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use crossbeam_channel::Receiver;
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, listen, socket};
use taskrunner::election::{
    Builder, Demotion, Elector, Error, ErrorKind, Event, Instant, MemoryStore, Operation, Reason, RedisStore,
};

use crate::support::process::thread_names;
use crate::support::{Admin, Flow, Proxy, Reply, Server, eventually, in_own_process, median, unique_group};

/// Longer than anything takes that is to happen.
const CAP: Duration = Duration::from_secs(20);

const MS: Duration = Duration::from_millis(1);

/// How late a demotion may be told.
const LATE: Duration = Duration::from_millis(20);

/// What a call may take beside the waits that its bound counts: waking threads on a busy machine.
const WAKING: Duration = Duration::from_millis(50);

/// How long a look-up hangs that hangs.
const LOOKUP: Duration = Duration::from_secs(10);

const TTL: Duration = Duration::from_secs(1);
const MARGIN: Duration = Duration::from_millis(50);
/// Two call limits, each half of the ttl; there is no lead work to wait for.
const STOP: Duration = TTL;

fn builder(store: RedisStore) -> Builder {
    Elector::builder(store, unique_group("slow")).ttl(TTL).stop_margin(MARGIN)
}

fn open(url: &str) -> RedisStore {
    RedisStore::open(url).expect("a good url")
}

/// A name server that can be made to hang.
#[derive(Clone)]
struct Names(Arc<NamesState>);

struct NamesState {
    address: Mutex<SocketAddr>,
    silent: Mutex<bool>,
    speaks: Condvar,
    asked: AtomicU32,
}

impl Names {
    fn of(address: SocketAddr) -> Self {
        let (address, silent) = (Mutex::new(address), Mutex::new(false));
        Self(Arc::new(NamesState { address, silent, speaks: Condvar::new(), asked: AtomicU32::new(0) }))
    }

    /// From now on a look-up hangs.
    fn silence(&self) {
        *self.0.silent.lock().expect("no panic") = true;
    }

    /// Ends the look-ups that hang.
    fn speak(&self) {
        *self.0.silent.lock().expect("no panic") = false;
        self.0.speaks.notify_all();
    }

    fn move_to(&self, address: SocketAddr) {
        *self.0.address.lock().expect("no panic") = address;
    }

    /// How many look-ups were begun.
    fn asked(&self) -> u32 {
        self.0.asked.load(Ordering::SeqCst)
    }

    fn store(&self) -> RedisStore {
        let state = Arc::clone(&self.0);
        open("redis://redis.test").with_resolver(move |host, _| {
            assert_eq!(host, "redis.test");
            state.asked.fetch_add(1, Ordering::SeqCst);
            let silent = state.silent.lock().expect("no panic");
            drop(state.speaks.wait_timeout_while(silent, LOOKUP, |silent| *silent).expect("no panic"));
            Ok(vec![*state.address.lock().expect("no panic")])
        })
    }
}

/// A port whose backlog is full: who connects there waits.
struct FullPort {
    listener: TcpListener,
    _fill: Vec<TcpStream>,
}

impl FullPort {
    fn new() -> Self {
        // A listener of the standard library has a longer backlog; listening again sets it.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listen(&listener, 1).expect("a socket that listens");
        let address = listener.local_addr().expect("a bound socket");
        let mut fill = Vec::new();
        loop {
            match TcpStream::connect_timeout(&address, 200 * MS) {
                Ok(stream) => fill.push(stream),
                Err(error) if error.kind() == IoErrorKind::TimedOut => break,
                Err(error) => panic!("{error}"),
            }
            assert!(fill.len() < 100, "the backlog never fills");
        }
        Self { listener, _fill: fill }
    }

    fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("a bound socket")
    }
}

/// The same as a Unix socket: who connects there is told to try again.
fn full_socket(path: &Path) -> Vec<OwnedFd> {
    let address = SocketAddrUnix::new(path).expect("a short path");
    // A listener of the standard library has a longer backlog; listening again sets it.
    let listener = UnixListener::bind(path).expect("a free path");
    listen(&listener, 1).expect("a socket that listens");
    let mut all = vec![OwnedFd::from(listener)];
    loop {
        let client = socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("a socket can be made");
        ioctl_fionbio(&client, true).expect("a socket can be non-blocking");
        match connect(&client, &address) {
            Ok(()) => all.push(client),
            Err(Errno::AGAIN) => return all,
            Err(error) => panic!("{error}"),
        }
        assert!(all.len() < 100, "the backlog never fills");
    }
}

/// Watches a leader through the end of its term: `fault_at` is when nothing came through any more. Asserts that
/// the term ends at a deadline that was proved before, that no reading is true after it, and that it is told in
/// time; returns how late.
#[track_caller]
fn expect_demotion_in_time(
    what: &str,
    elector: &Elector,
    events: &Receiver<Event>,
    fault_at: Instant,
) -> Duration {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let readings = scope.spawn(|| {
            let mut last_true = None;
            while !over.load(Ordering::Relaxed) {
                let before = Instant::now();
                if elector.is_leader() {
                    last_true = Some(before);
                }
                thread::sleep(MS / 5);
            }
            last_true
        });
        let demotion = next_demotion(events);
        let received = Instant::now();
        // What is read next is false for certain; a few readings show it.
        thread::sleep(5 * MS);
        over.store(true, Ordering::Relaxed);
        let last_true = readings.join().expect("no panic").expect("it led at first");
        assert_eq!(demotion.reason, Reason::Expired, "{what}");
        assert!(last_true < demotion.at, "{what}: it read true at {last_true:?}, after {:?}", demotion.at);
        assert!(
            demotion.at <= fault_at + (TTL - MARGIN),
            "{what}: the deadline counts from what was not answered"
        );
        let late = received.saturating_duration_since(demotion.at);
        assert!(late <= LATE, "{what}: the demotion was told {late:?} late");
        late
    })
}

#[track_caller]
fn next_demotion(events: &Receiver<Event>) -> Demotion {
    let until = std::time::Instant::now() + CAP;
    loop {
        if let Event::Demoted(demotion) = events.recv_deadline(until).expect("the term ends") {
            return demotion;
        }
    }
}

/// Stops an elector, and asserts that it is back in time.
#[track_caller]
fn stop_in_time(what: &str, elector: &Elector) -> (Duration, Result<(), Error>) {
    let from = Instant::now();
    let outcome = elector.stop();
    let took = from.elapsed();
    assert!(took <= STOP + WAKING, "{what}: stop() took {took:?}, {STOP:?} are allowed");
    assert!(!elector.is_leader());
    if let Err(error) = &outcome {
        // A look-up may hang for longer.
        let kind = error.kind();
        assert!(matches!(kind, ErrorKind::Passing | ErrorKind::Overrun), "{what}: {}", error.to_chain());
    }
    (took, outcome)
}

/// Puts one leader to its deadline, and stops another one, a leader whose renewal is in flight, and one that was
/// started meanwhile.
#[track_caller]
fn outlast(what: &str, store: impl Fn() -> RedisStore, begin: impl FnOnce()) {
    let start = || builder(store()).start().expect("good options");
    let [expires, renews] = [start(), start()];
    let events = expires.events();
    for elector in [&expires, &renews] {
        elector.wait_for_leadership(CAP).expect("leads");
    }
    begin();
    let fault_at = Instant::now();
    let connects = start();
    thread::scope(|scope| {
        let stops = scope.spawn(|| {
            // The renewal is due at half the ttl.
            thread::sleep(TTL * 11 / 20);
            thread::scope(|scope| {
                let stops = [&renews, &connects].map(|elector| scope.spawn(|| stop_in_time(what, elector).0));
                stops.map(|stop| stop.join().expect("in time"))
            })
        });
        let late = expect_demotion_in_time(what, &expires, &events, fault_at);
        let (after, _) = stop_in_time(what, &expires);
        let [renewing, connecting] = stops.join().expect("in time");
        eprintln!(
            "{what}: told {late:?} after the deadline; stop() took {renewing:?} while renewing, {connecting:?} \
             while connecting, {after:?} after the demotion"
        );
    });
}

/// Closes the connections of all electors, while none of them is in use.
fn close_connections(server: &Server) {
    let mut admin = server.admin();
    let clients = admin.command(&["CLIENT", "LIST"]);
    for client in clients.text().lines().filter(|client| client.contains(" name=taskrunner ")) {
        let id = client
            .split_once("id=")
            .and_then(|(_, rest)| rest.split(' ').next())
            .expect("a client has an id");
        assert_eq!(admin.command(&["CLIENT", "KILL", "ID", id]).int(), 1);
    }
}

#[test]
fn a_full_backlog_of_a_port_delays_neither_demotion_nor_stop() {
    let server = Server::start();
    let (names, full) = (Names::of(server.address()), FullPort::new());
    outlast(
        "a full port",
        || names.store(),
        || {
            names.move_to(full.address());
            close_connections(&server);
        },
    );
}

#[test]
fn a_full_backlog_of_a_unix_socket_delays_neither_demotion_nor_stop() {
    let server = Server::start();
    let [link, full, new] = ["link.sock", "full.sock", "new.sock"].map(|name| server.dir().join(name));
    let _fill = full_socket(&full);
    symlink(server.socket(), &link).expect("a free path");
    outlast(
        "a full socket",
        || open(&format!("unix://{}", link.display())),
        || {
            symlink(&full, &new).expect("a free path");
            fs::rename(&new, &link).expect("a link can be replaced");
            close_connections(&server);
        },
    );
}

#[test]
fn a_handshake_that_trickles_delays_neither_demotion_nor_stop() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    outlast(
        "a trickled handshake",
        || open(&proxy.url()),
        || {
            // The reply to HELLO has more than 100 bytes.
            proxy.trickle_replies(20 * MS);
            proxy.close_all();
        },
    );
}

#[test]
fn a_reply_that_trickles_delays_neither_demotion_nor_stop() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    // The reply to a renewal has more than 20 bytes.
    outlast("a trickled reply", || open(&proxy.url()), || proxy.trickle_replies(50 * MS));
}

#[test]
fn a_request_that_trickles_delays_neither_demotion_nor_stop() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    outlast("a trickled request", || open(&proxy.url()), || proxy.set(Flow::Trickle(5 * MS), Flow::Pass));
}

#[test]
fn a_look_up_that_hangs_before_a_black_hole_delays_neither_demotion_nor_stop() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let names = Names::of(proxy.address());
    outlast(
        "a hanging look-up",
        || names.store(),
        || {
            names.silence();
            proxy.hold();
            proxy.close_all();
        },
    );
    names.speak();
}

/// The threads of electors in this process.
fn our_threads() -> Vec<String> {
    thread_names(process::id()).into_iter().filter(|name| name.starts_with("tr-")).collect()
}

/// Waits until these are the threads of electors. The kernel lists a thread for a moment after it was joined.
#[track_caller]
fn expect_threads(expected: &[&str]) {
    eventually(Duration::from_secs(1), || match our_threads() {
        threads if threads == expected => Ok(()),
        threads => Err(threads),
    });
}

/// Waits until the lease has been renewed after this call began.
#[track_caller]
fn wait_for_renewal(admin: &mut Admin, key: &str) {
    let mut last = admin.command(&["PTTL", key]).int();
    eventually(CAP, || {
        let now = admin.command(&["PTTL", key]).int();
        let renewed = now > last;
        last = now;
        if renewed { Ok(()) } else { Err(now) }
    });
}

#[test]
fn a_name_that_stops_resolving_costs_nobody_the_lease() {
    in_own_process("timing::slow_network::a_name_that_stops_resolving_costs_nobody_the_lease", || {
        let server = Server::start();
        let names = Names::of(server.address());
        let elector = builder(names.store()).start().expect("good options");
        let events = elector.events();
        let token = elector.wait_for_leadership(CAP).expect("leads").token();
        let mut admin = server.admin();
        // Both connections are made, with one look-up for each or one for the two.
        eventually(CAP, || match admin.command(&["CLIENT", "LIST", "TYPE", "pubsub"]) {
            list if list.text().contains("name=taskrunner") => Ok(()),
            list => Err(list),
        });
        let before = names.asked();
        names.silence();
        for _ in 0..3 {
            // After a renewal, when the connection is at rest.
            wait_for_renewal(&mut admin, elector.key());
            close_connections(&server);
            wait_for_renewal(&mut admin, elector.key());
            assert_eq!(elector.leadership().map(|leadership| leadership.token()), Some(token));
            expect_threads(&["tr-driver", "tr-io", "tr-lookup", "tr-wake"]);
        }
        assert_eq!(names.asked(), before + 1, "a look-up that hangs must not be asked again beside itself");
        assert!(!events.try_iter().any(|event| matches!(event, Event::Demoted(_) | Event::Error(_))));

        let (took, outcome) = stop_in_time("a hanging look-up", &elector);
        let error = outcome.expect_err("a thread is left");
        eprintln!("stop() took {took:?}: {error}");
        assert_eq!(error.kind(), ErrorKind::Overrun);
        assert!(error.to_string().contains(" 1 of its threads"), "{error}");
        assert_eq!(admin.command(&["GET", elector.key()]), Reply::Nil, "the lease was not released");
        expect_threads(&["tr-lookup"]);
        names.speak();
        expect_threads(&[]);
    });
}

#[test]
fn a_name_that_never_resolves_is_asked_for_once_and_does_not_hold_up_a_stop() {
    in_own_process(
        "timing::slow_network::a_name_that_never_resolves_is_asked_for_once_and_does_not_hold_up_a_stop",
        || {
            let server = Server::start();
            let names = Names::of(server.address());
            names.silence();
            let elector = builder(names.store()).wait(50 * MS).start().expect("good options");
            for _ in 0..3 {
                let error = elector.on_error().recv_timeout(CAP).expect("an error is told");
                assert_eq!((error.kind(), error.operation()), (ErrorKind::Passing, Some(Operation::Connect)));
                let chain = error.to_chain();
                assert!(chain.contains("redis.test") && chain.contains("took longer than"), "{chain}");
            }
            expect_threads(&["tr-driver", "tr-io", "tr-lookup", "tr-wake"]);
            assert_eq!(names.asked(), 1, "a look-up that hangs must not be asked again beside itself");
            let (took, outcome) = stop_in_time("a hanging look-up", &elector);
            let error = outcome.expect_err("a thread is left");
            eprintln!("stop() took {took:?}: {error}");
            assert_eq!(error.kind(), ErrorKind::Overrun);
            assert!(error.to_string().contains(" 1 of its threads"), "{error}");
            expect_threads(&["tr-lookup"]);

            // One that is still there when the name resolves leads.
            let patient = builder(names.store()).wait(50 * MS).start().expect("good options");
            patient.on_error().recv_timeout(CAP).expect("an error is told");
            names.speak();
            patient.wait_for_leadership(CAP).expect("leads");
            patient.stop().expect("nothing is left");
            expect_threads(&[]);
        },
    );
}

#[test]
fn a_stop_that_can_neither_release_nor_end_a_look_up_tells_both() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let names = Names::of(proxy.address());
    let ttl = Duration::from_secs(5);
    // The lease outlives the stop, which takes two call limits of 2 s.
    let elector =
        Elector::builder(names.store(), unique_group("both")).ttl(ttl).start().expect("good options");
    elector.wait_for_leadership(CAP).expect("leads");
    names.silence();
    proxy.hold();
    proxy.close_all();
    let from = Instant::now();
    let error = elector.stop().expect_err("a lease and a thread are left");
    assert!(from.elapsed() <= Duration::from_secs(4) + WAKING, "stop() took {:?}", from.elapsed());
    names.speak();
    let chain = error.to_chain();
    assert!(chain.contains("was not released") && chain.contains(" 1 of its threads"), "{chain}");
}

#[test]
fn the_first_attempt_comes_right_after_the_lease_has_ended() {
    const ROUNDS: usize = 20;
    const LEASE: &str = "300";
    /// The end of the lease in µs of the server's clock, which stands still inside a script.
    const LEASE_END: &str = "redis.call('SET', KEYS[1], 'foreign', 'PX', ARGV[1])
        local now = redis.call('TIME')
        return (now[1] * 1000 + math.floor(now[2] / 1000) + redis.call('PTTL', KEYS[1])) * 1000";
    let server = Server::start();
    let mut admin = server.admin();
    let group = unique_group("first-attempt");
    let key = Elector::builder(MemoryStore::new(), &*group).start().expect("good options").key().to_owned();
    let mut after: Vec<i64> = (0..ROUNDS)
        .map(|_| {
            let end_us = admin.command(&["EVAL", LEASE_END, "1", &key, LEASE]).int();
            let elector = Elector::builder(open(&server.url()), &*group).start().expect("good options");
            elector.wait_for_leadership(CAP).expect("leads");
            let since = admin.command(&["HGET", &format!("{{{key}}}:term"), "since"]);
            elector.stop().expect("released");
            since.text().parse::<i64>().expect("a number") - end_us
        })
        .collect();
    after.sort_unstable();
    let median = median(&after);
    eprintln!(
        "won {median} µs after the lease's end in the median, from {} to {} µs",
        after[0],
        after[ROUNDS - 1]
    );
    assert!(after[0] > 0, "won before the lease had ended");
    // The jitter of 5 ms, and 10 ms.
    assert!(median <= 15_000, "{after:?}");
}
