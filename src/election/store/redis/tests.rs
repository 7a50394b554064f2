//! The session against a peer that does what a test tells it to: nothing, half of it, or the wrong thing.

mod cluster;
mod fake;
mod regressions;
mod sentinel;
#[cfg(feature = "tls")]
mod tls;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use redis::{Parser, Value};
use rustix::net::{self as sys, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::*;
use crate::election::clock::Instant;
use crate::election::key::{Group, InstanceId};
use crate::election::store::{
    Action, Answer, Budget, Class, Heard, Listener, Operation, Outcome, Session, StoreError,
};

/// What a bounded wait may take beyond its budget on a machine that is busy with the other tests. The
/// peers hold still for longer, so a wait that is not bounded is told from one that is.
const SLACK: Duration = Duration::from_secs(10);

/// The budget of an operation that is to run out of it.
const SHORT: Duration = Duration::from_millis(150);

/// The budget of one that is not to.
const LONG: Duration = Duration::from_secs(20);

/// How long a server waits for a client that does not do its part, so that the test fails and does not hang.
const CAP: Duration = Duration::from_secs(40);

const HELLO: &[u8] = b"%2\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n";
const VACANT: &[u8] = b"*1\r\n$6\r\nvacant\r\n";
const WON: &[u8] = b"*3\r\n$3\r\nwon\r\n$2\r\n42\r\n$2\r\n42\r\n";

type Result = std::result::Result<Answer, StoreError>;

/// One connection as the server sees it.
struct Peer {
    stream: TcpStream,
    parser: Parser,
}

impl Peer {
    fn accept(listener: &TcpListener) -> Self {
        let stream = listener.accept().expect("a client").0;
        stream.set_read_timeout(Some(CAP)).expect("a timeout");
        Self { stream, parser: Parser::new() }
    }

    /// The next command's words; none when the client has closed.
    fn command(&mut self) -> Option<Vec<String>> {
        match self.parser.parse_value(&mut self.stream).ok()? {
            Value::Array(words) => {
                Some(words.iter().map(|word| redis::from_redis_value_ref(word).expect("text")).collect())
            }
            other => panic!("no command: {other:?}"),
        }
    }

    fn expect(&mut self, name: &str) -> Vec<String> {
        let words = self.command().unwrap_or_else(|| panic!("the client closed instead of {name}"));
        assert_eq!(words[0], name);
        words
    }

    /// Sends it; the client may have closed already.
    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).ok();
    }

    fn shake_hands(listener: &TcpListener) -> Self {
        let mut peer = Self::accept(listener);
        peer.expect("HELLO");
        peer.send(HELLO);
        peer
    }

    /// Holds still until the client closes the connection.
    fn wait_for_close(mut self) {
        self.stream.read_to_end(&mut Vec::new()).ok();
    }

    /// Sends these bytes one by one, more often than a budget ends, for longer than any budget is.
    fn trickle(mut self, bytes: &[u8]) {
        let begun = Instant::now();
        let mut bytes = bytes.iter().cycle();
        while begun.elapsed() < CAP
            && bytes.next().is_some_and(|byte| self.stream.write_all(&[*byte]).is_ok())
        {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Runs a server on a thread of its own; its panics are the test's when it is joined.
fn serve(script: impl FnOnce(TcpListener) + Send + 'static) -> (String, JoinHandle<()>) {
    let (listener, url) = listen();
    (url, thread::spawn(move || script(listener)))
}

fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    bound_accepts(&listener);
    let url = format!("redis://{}", listener.local_addr().expect("an address"));
    (listener, url)
}

fn bound_accepts(listener: impl AsFd) {
    sys::sockopt::set_socket_timeout(listener, sys::sockopt::Timeout::Recv, Some(CAP)).expect("a timeout");
}

fn session_of(store: &RedisStore) -> RedisSession {
    RedisSession::new(Dialer::new(store.target.clone(), store.access.clone())).expect("descriptors")
}

fn session(url: &str) -> RedisSession {
    session_of(&RedisStore::open(url).expect("a good URL"))
}

fn operation(action: Action) -> Operation {
    let group = Group::new("example").expect("a good name");
    Operation { group, id: InstanceId::from("me"), ttl: Duration::from_secs(5), action, strict: None }
}

fn run(session: &mut RedisSession, actions: &[Action], time: Duration) -> Vec<Result> {
    let batch: Vec<_> = actions.iter().map(|action| operation(*action)).collect();
    let budget = Budget::new(Instant::now() + time, &session.bell());
    let results = session.execute(&batch, &budget);
    assert_eq!(results.len(), batch.len());
    results
}

fn look(session: &mut RedisSession, time: Duration) -> Result {
    run(session, &[Action::Look], time).remove(0)
}

/// A look that is to fail by the end of its budget, and not long after it: another thread shortens a long one to
/// this once `begun` says how far the look is, however long that takes.
#[track_caller]
fn shortened(session: &mut RedisSession, left: Duration, begun: impl FnOnce() + Send) -> StoreError {
    let budget = Budget::new(Instant::now() + LONG, &session.bell());
    let mut results = thread::scope(|scope| {
        scope.spawn(|| {
            begun();
            budget.shorten(Instant::now() + left);
        });
        session.execute(&[operation(Action::Look)], &budget)
    });
    let error = results.remove(0).expect_err("nobody answers");
    let late = budget.until().elapsed();
    assert!(late < SLACK, "{late:?}: {error}");
    error
}

/// Does it with more and more time, until it succeeds.
///
/// How much is enough depends on the machine; but what takes more than its share never leaves enough.
#[track_caller]
fn with_enough_time<T, E: std::fmt::Debug>(mut act: impl FnMut(Duration) -> std::result::Result<T, E>) -> T {
    let mut time = SHORT * 4;
    loop {
        match act(time) {
            Ok(done) => return done,
            Err(failed) => assert!(time < LONG, "not even within {time:?}: {failed:?}"),
        }
        time *= 4;
    }
}

/// A look that is to fail by the end of a short budget, and not long after it.
#[track_caller]
fn late(session: &mut RedisSession) -> StoreError {
    let begun = Instant::now();
    let error = look(session, SHORT).expect_err("nobody answers");
    let took = begun.elapsed();
    assert!(took >= SHORT / 2 && took < SHORT + SLACK, "{took:?}: {error}");
    error
}

#[track_caller]
fn assert_says(error: &StoreError, outcome: Outcome, class: Class, parts: &[&str]) {
    assert_eq!((error.outcome(), error.class()), (outcome, class), "{error}");
    let text = error.to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{parts:?} in {text:?}");
}

#[test]
fn a_server_that_accepts_and_says_nothing_is_bounded_and_named() {
    let (begins, begun) = unbounded();
    let (url, server) = serve(move |listener| {
        let mut peer = Peer::accept(&listener);
        peer.expect("HELLO");
        begins.send(()).expect("the test waits");
        peer.wait_for_close();
    });
    let begun = move || begun.recv().expect("the server");
    let error = shortened(&mut session(&url), SHORT, begun);
    let address = &url["redis://".len()..];
    let parts = ["handshake", address, "took longer than the", "allowed"];
    assert_says(&error, Outcome::NotSent, Class::Passing, &parts);
    server.join().expect("the server");
}

#[test]
fn a_trickled_handshake_or_reply_and_endless_pushes_have_the_one_budget() {
    for (greets, bytes) in [(false, &b"+"[..]), (true, b"+"), (true, b">1\r\n+x\r\n")] {
        let (begins, begun) = unbounded();
        let (url, server) = serve(move |listener| {
            let mut peer = Peer::accept(&listener);
            peer.expect("HELLO");
            if greets {
                peer.send(HELLO);
                peer.expect("EVAL");
            }
            begins.send(()).expect("the test waits");
            peer.trickle(bytes);
        });
        let mut session = session(&url);
        let begun = move || begun.recv().expect("the server");
        let error = shortened(&mut session, SHORT, begun);
        let (outcome, doing) = match greets {
            false => (Outcome::NotSent, "handshake"),
            true => (Outcome::Unknown, "waiting for the reply of"),
        };
        assert_says(&error, outcome, Class::Passing, &[doing, "took longer"]);
        drop(session);
        server.join().expect("the server");
    }
}

#[test]
fn a_handshake_and_a_reply_that_are_each_in_time_are_not_both() {
    let (url, server) = serve(|listener| {
        let mut peer = Peer::accept(&listener);
        peer.expect("HELLO");
        thread::sleep(SHORT * 2 / 3);
        peer.send(HELLO);
        peer.command();
        thread::sleep(SHORT * 2 / 3);
        peer.send(VACANT);
        peer.wait_for_close();
    });
    late(&mut session(&url));
    server.join().expect("the server");
}

#[test]
fn another_thread_ends_every_wait_at_once() {
    // A connect to a full backlog gives no sign that it waits; nothing but the wait takes this long.
    let wait_a_little = || thread::sleep(Duration::from_millis(50));

    let full = FullTcp::new();
    let error = shortened(&mut session(&full.url), Duration::ZERO, wait_a_little);
    assert_says(&error, Outcome::NotSent, Class::Passing, &["connecting to"]);

    let full = FullUnix::new();
    let error = shortened(&mut session(&full.url), Duration::ZERO, wait_a_little);
    assert_says(&error, Outcome::NotSent, Class::Passing, &["connecting to", "full.sock"]);

    let resolver = Resolver::scripted();
    let mut session_with_name = session_of(&resolver.store("redis://leases.test"));
    let error = shortened(&mut session_with_name, Duration::ZERO, || resolver.called());
    assert_says(&error, Outcome::NotSent, Class::Passing, &["looking up the name leases.test"]);

    for (greets, outcome, doing) in
        [(false, Outcome::NotSent, "handshake"), (true, Outcome::Unknown, "the reply of")]
    {
        let (waits, waiting) = unbounded();
        let (url, server) = serve(move |listener| {
            let mut peer = Peer::accept(&listener);
            peer.expect("HELLO");
            if greets {
                peer.send(HELLO);
                peer.expect("EVAL");
            }
            waits.send(()).expect("the test waits");
            peer.wait_for_close();
        });
        let mut session = session(&url);
        let error = shortened(&mut session, Duration::ZERO, move || waiting.recv().expect("the server"));
        assert_says(&error, outcome, Class::Passing, &[doing]);
        drop(session);
        server.join().expect("the server");
    }
}

#[test]
fn what_is_no_reply_ends_the_connection_with_an_unknown_outcome() {
    let bulk = [b"$60000\r\n".to_vec(), vec![b'x'; 100_000]].concat();
    for (bytes, what) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "no known type"),
        (b"*2\r\n$3\r\nwo", "closed the connection"),
        (b"", "closed the connection"),
        (&bulk, "without its end"),
        (b"$999999999\r\n", "above the limit"),
        (b"+OK\r\n", "an unexpected reply"),
        (b"*1\r\n$5\r\nghost\r\n", "an unexpected reply"),
        (b"#x\r\n", "malformed"),
    ] {
        let bytes = bytes.to_vec();
        let (url, server) = serve(move |listener| {
            let mut peer = Peer::shake_hands(&listener);
            peer.expect("EVAL");
            peer.send(&bytes);
            peer.stream.shutdown(std::net::Shutdown::Write).ok();
            peer.wait_for_close();
            let mut peer = Peer::shake_hands(&listener);
            peer.expect("EVAL");
            peer.send(VACANT);
            peer.wait_for_close();
        });
        let mut session = session(&url);
        let error = look(&mut session, LONG).expect_err("no reply");
        assert_says(&error, Outcome::Unknown, Class::Passing, &[what]);
        // The next batch dials again, and its reply is its own.
        assert!(matches!(look(&mut session, LONG), Ok(Answer::Vacant)));
        drop(session);
        server.join().expect("the server");
    }
}

#[test]
fn garbage_in_the_handshake_is_not_sent() {
    let (url, server) = serve(|listener| {
        let mut peer = Peer::accept(&listener);
        peer.expect("HELLO");
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        peer.wait_for_close();
    });
    let error = look(&mut session(&url), LONG).expect_err("no Redis");
    assert_says(&error, Outcome::NotSent, Class::Passing, &["handshake", "no known type"]);
    server.join().expect("the server");
}

#[test]
fn a_reset_is_an_unknown_outcome() {
    let (url, server) = serve(|listener| {
        let mut peer = Peer::shake_hands(&listener);
        peer.expect("EVAL");
        // Closing with a linger of zero resets.
        sys::sockopt::set_socket_linger(&peer.stream, Some(Duration::ZERO)).expect("linger");
    });
    let error = look(&mut session(&url), LONG).expect_err("a reset");
    assert_says(&error, Outcome::Unknown, Class::Passing, &["waiting for the reply of"]);
    server.join().expect("the server");
}

#[test]
fn the_replies_before_a_break_are_answers_and_those_after_it_are_unknown() {
    let (url, server) = serve(|listener| {
        let mut peer = Peer::shake_hands(&listener);
        (0..3).for_each(|_| drop(peer.expect("EVAL")));
        peer.send(VACANT);
    });
    let results = run(&mut session(&url), &[Action::Look; 3], LONG);
    assert!(matches!(results[0], Ok(Answer::Vacant)));
    for result in &results[1..] {
        assert_eq!(result.as_ref().expect_err("no reply").outcome(), Outcome::Unknown);
    }
    server.join().expect("the server");
}

#[test]
fn of_a_batch_that_is_sent_in_part_the_rest_is_known_not_to_be_sent() {
    let (begins, begun) = unbounded();
    let (done, wait) = unbounded::<()>();
    let (url, server) = serve(move |listener| {
        let peer = Peer::shake_hands(&listener);
        peer.stream.peek(&mut [0]).expect("the batch");
        begins.send(()).expect("the test waits");
        // Nothing is read of a batch that is larger than the buffers of both sides.
        wait.recv().ok();
    });
    let mut session = session(&url);
    let batch = vec![operation(Action::Look); 20_000];
    let budget = Budget::new(Instant::now() + LONG, &session.bell());
    let results = thread::scope(|scope| {
        scope.spawn(|| {
            begun.recv().expect("the server");
            budget.shorten(Instant::now());
        });
        session.execute(&batch, &budget)
    });
    let outcomes: Vec<_> =
        results.iter().map(|result| result.as_ref().expect_err("late").outcome()).collect();
    let sent = outcomes.iter().take_while(|outcome| **outcome == Outcome::Unknown).count();
    assert!(sent > 0 && sent < outcomes.len(), "{sent}");
    assert!(outcomes[sent..].iter().all(|outcome| *outcome == Outcome::NotSent));
    drop(done);
    server.join().expect("the server");
}

#[test]
fn an_idle_close_or_byte_costs_a_new_connection_and_no_error() {
    for bytes in [&b""[..], b">1\r\n+x\r\n", VACANT] {
        let (idle, gone) = unbounded();
        let (url, server) = serve(move |listener| {
            for _ in 0..2 {
                let mut peer = Peer::shake_hands(&listener);
                peer.expect("EVAL");
                peer.send(VACANT);
                peer.send(bytes);
                drop(peer);
                idle.send(()).ok();
            }
        });
        let mut session = session(&url);
        for _ in 0..2 {
            assert!(matches!(look(&mut session, LONG), Ok(Answer::Vacant)), "{bytes:?}");
            gone.recv().expect("the server closes");
        }
        server.join().expect("the server");
    }
}

#[test]
fn surplus_bytes_are_never_the_next_reply() {
    let (url, server) = serve(|listener| {
        let mut peer = Peer::shake_hands(&listener);
        peer.expect("EVAL");
        peer.send(&[VACANT, WON].concat());
        let mut next = Peer::shake_hands(&listener);
        next.expect("EVAL");
        next.send(b"*1\r\n$5\r\nghost\r\n");
        next.wait_for_close();
    });
    let mut session = session(&url);
    assert!(matches!(look(&mut session, LONG), Ok(Answer::Vacant)));
    let acquire = Action::Acquire { attempt: 1, floor: 0 };
    assert!(matches!(run(&mut session, &[acquire], LONG)[..], [Ok(Answer::Ghost)]));
    drop(session);
    server.join().expect("the server");
}

#[test]
fn a_batch_is_one_write_and_the_next_one_uses_the_same_connection() {
    let (url, server) = serve(|listener| {
        let mut peer = Peer::shake_hands(&listener);
        while peer.command().is_some() {
            peer.send(b">1\r\n+unasked\r\n");
            peer.send(VACANT);
        }
    });
    let mut session = session(&url);
    for writes in [2, 3] {
        let results = run(&mut session, &[Action::Look; 10], LONG);
        assert!(results.iter().all(|result| matches!(result, Ok(Answer::Vacant))), "{results:?}");
        // One for the handshake, and one for each batch.
        assert_eq!(session.wire().expect("it is kept").writes(), writes);
    }
    drop(session);
    server.join().expect("the server");
}

#[test]
fn a_connection_is_dropped_after_a_lost_renewal_or_a_wrong_node_and_kept_after_other_errors() {
    let renew = Action::Renew { token: 1 };
    for (action, reply, kept) in [
        (renew, &b"*2\r\n$7\r\nrenewed\r\n:5\r\n"[..], true),
        (renew, VACANT, false),
        (renew, b"*4\r\n$4\r\nheld\r\n$3\r\nyou\r\n:5\r\n$0\r\n\r\n", false),
        (Action::Release { token: 1 }, VACANT, true),
        (renew, b"-READONLY You can't write against a read only replica.\r\n", false),
        (renew, b"-MOVED 1 127.0.0.1:7\r\n", false),
        (renew, b"-NOPERM No permissions to access a key\r\n", true),
        (renew, b"-LOADING Redis is loading the dataset in memory\r\n", true),
    ] {
        let (url, server) = serve(move |listener| {
            let mut peer = Peer::shake_hands(&listener);
            peer.expect("EVAL");
            peer.send(reply);
            peer.wait_for_close();
        });
        let mut session = session(&url);
        run(&mut session, &[action], LONG);
        assert_eq!(session.wire().is_some(), kept, "{action:?} {}", String::from_utf8_lossy(reply));
        drop(session);
        server.join().expect("the server");
    }
}

#[test]
fn the_handshake_is_one_write_with_login_name_and_database() {
    let (url, server) = serve(|listener| {
        let mut peer = Peer::accept(&listener);
        assert_eq!(peer.expect("HELLO")[1..], ["3", "AUTH", "default", "p@ss", "SETNAME", "taskrunner"]);
        // Both have come before any reply.
        assert_eq!(peer.expect("SELECT")[1..], ["7"]);
        peer.send(&[HELLO, b"+OK\r\n"].concat());
        peer.expect("EVAL");
        peer.send(VACANT);
        peer.wait_for_close();
    });
    let mut session = session(&format!("{}/7", url.replace("redis://", "redis://:p%40ss@")));
    assert!(matches!(look(&mut session, LONG), Ok(Answer::Vacant)));
    drop(session);
    server.join().expect("the server");
}

#[test]
fn a_handshake_that_fails_says_what_can_be_done() {
    let hello = |mode: &str, role: &str| {
        format!(
            "%2\r\n$4\r\nmode\r\n${}\r\n{mode}\r\n$4\r\nrole\r\n${}\r\n{role}\r\n",
            mode.len(),
            role.len()
        )
    };
    for (reply, class, what) in [
        (hello("standalone", "replica"), Class::WrongNode, "is a replica"),
        (hello("standalone", "slave"), Class::WrongNode, "is a slave"),
        (hello("sentinel", "master"), Class::Configuration, "Sentinel"),
        ("-NOAUTH HELLO must be called\r\n".to_owned(), Class::Configuration, "NOAUTH"),
        ("-WRONGPASS invalid username-password pair\r\n".to_owned(), Class::Configuration, "WRONGPASS"),
        ("-ERR max number of clients reached\r\n".to_owned(), Class::Passing, "max number of clients"),
        ("-LOADING Redis is loading\r\n".to_owned(), Class::Passing, "LOADING"),
    ] {
        let (url, server) = serve(move |listener| {
            let mut peer = Peer::accept(&listener);
            peer.expect("HELLO");
            peer.send(reply.as_bytes());
            peer.wait_for_close();
        });
        let error = look(&mut session(&url), LONG).expect_err("no handshake");
        assert_says(&error, Outcome::NotSent, class, &[what, "127.0.0.1:"]);
        server.join().expect("the server");
    }
}

#[test]
fn a_server_without_hello_is_asked_as_of_old() {
    let unknown =
        b"-ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `u`, `hunter2`, \r\n";
    let master = b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n";
    type Failure = Option<(Class, &'static str)>;
    let cases: [(&[u8], Failure); 6] = [
        (master, None),
        (b"-NOPERM this user has no permissions to run the 'role' command\r\n", None),
        (b"-ERR unknown command `ROLE`\r\n", None),
        (b"*5\r\n$5\r\nslave\r\n$1\r\nh\r\n:1\r\n$1\r\nc\r\n:-1\r\n", Some((Class::WrongNode, "is a slave"))),
        (b"*2\r\n$8\r\nsentinel\r\n*0\r\n", Some((Class::Configuration, "Sentinel"))),
        (b"-LOADING Redis is loading\r\n", Some((Class::Passing, "LOADING"))),
    ];
    for (role, failure) in cases {
        let role = role.to_vec();
        let (url, server) = serve(move |listener| {
            let mut peer = Peer::accept(&listener);
            peer.expect("HELLO");
            peer.expect("SELECT");
            peer.send(&[&unknown[..], b"-NOAUTH Authentication required.\r\n"].concat());
            assert_eq!(peer.expect("AUTH")[1..], ["u", "hunter2"]);
            assert_eq!(peer.expect("SELECT")[1..], ["2"]);
            peer.expect("ROLE");
            peer.send(&[b"+OK\r\n+OK\r\n", &role[..]].concat());
            if peer.command().is_some() {
                peer.send(VACANT);
            }
            peer.wait_for_close();
        });
        let mut session = session(&format!("{}/2", url.replace("redis://", "redis://u:hunter2@")));
        match (look(&mut session, LONG), failure) {
            (Ok(Answer::Vacant), None) => {}
            (Err(error), Some((class, what))) => assert_says(&error, Outcome::NotSent, class, &[what]),
            other => panic!("{other:?}"),
        }
        drop(session);
        server.join().expect("the server");
    }
}

#[test]
fn a_hello_without_a_role_is_followed_by_the_question() {
    let (url, server) = serve(|listener| {
        let mut peer = Peer::accept(&listener);
        peer.expect("HELLO");
        peer.send(b"%1\r\n$5\r\nproto\r\n:3\r\n");
        peer.expect("ROLE");
        peer.send(b"*1\r\n$5\r\nslave\r\n");
        peer.wait_for_close();
    });
    let error = look(&mut session(&url), LONG).expect_err("a replica");
    assert_says(&error, Outcome::NotSent, Class::WrongNode, &["is a slave"]);
    server.join().expect("the server");
}

/// A TCP port whose backlog is full: a connect is neither taken nor refused.
struct FullTcp {
    url: String,
    _kept: Vec<OwnedFd>,
}

impl FullTcp {
    fn new() -> Self {
        let listener = sys::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        sys::bind(&listener, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("a port");
        sys::listen(&listener, 0).expect("to listen");
        let address = sys::getsockname(&listener).expect("an address");
        let address = SocketAddr::try_from(address).expect("an IP address");
        let mut kept = vec![listener];
        for _ in 0..4 {
            let filler =
                sys::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::NONBLOCK, None);
            let filler = filler.expect("a socket");
            sys::connect(&filler, &address).ok();
            kept.push(filler);
        }
        Self { url: format!("redis://{address}"), _kept: kept }
    }
}

/// The same as a Unix socket.
struct FullUnix {
    url: String,
    _dir: tempfile::TempDir,
    listener: OwnedFd,
    fillers: Vec<OwnedFd>,
}

impl FullUnix {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("full.sock");
        let address = SocketAddrUnix::new(&path).expect("a short path");
        let listener = sys::socket(AddressFamily::UNIX, SocketType::STREAM, None).expect("a socket");
        sys::bind(&listener, &address).expect("to bind");
        bound_accepts(&listener);
        sys::listen(&listener, 0).expect("to listen");
        let fillers = (0..2).map(|_| {
            let filler =
                sys::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None);
            let filler = filler.expect("a socket");
            sys::connect(&filler, &address).ok();
            filler
        });
        Self { url: format!("unix://{}", path.display()), fillers: fillers.collect(), _dir: dir, listener }
    }
}

#[test]
fn a_full_backlog_is_bounded() {
    let full = FullTcp::new();
    assert_says(
        &late(&mut session(&full.url)),
        Outcome::NotSent,
        Class::Passing,
        &["connecting to", "took longer"],
    );
    let full = FullUnix::new();
    assert_says(
        &late(&mut session(&full.url)),
        Outcome::NotSent,
        Class::Passing,
        &["connecting to", "took longer"],
    );
}

#[test]
fn a_unix_socket_is_connected_to_once_its_backlog_has_room() {
    let full = FullUnix::new();
    let mut session = session(&full.url);
    let listener = full.listener.as_fd();
    let budget = Budget::new(Instant::now() + LONG, &session.bell());
    let results = thread::scope(|scope| {
        scope.spawn(|| {
            let count = full.fillers.len();
            // Those that filled it, as many as were let in, and then the session's own.
            for _ in 0..=count {
                let accepted = sys::accept(listener).expect("a client");
                let mut peer = std::os::unix::net::UnixStream::from(accepted);
                peer.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
                if matches!(peer.read(&mut [0; 1024]), Ok(n) if n > 0) {
                    peer.write_all(HELLO).expect("the handshake");
                    peer.set_read_timeout(None).expect("no timeout");
                    // The end of the script's last argument is the end of the command.
                    assert!(peer.read(&mut [0; 8192]).expect("the operation") > 0);
                    peer.write_all(VACANT).expect("the reply");
                    return;
                }
            }
            panic!("the session did not come");
        });
        session.execute(&[operation(Action::Look)], &budget)
    });
    assert!(matches!(results[..], [Ok(Answer::Vacant)]), "{results:?}");
}

/// A resolver that waits to be told what to answer, and panics if told nothing any more.
struct Resolver {
    calls: Receiver<()>,
    answers: Sender<io::Result<Vec<SocketAddr>>>,
    resolve: Arc<dyn Fn() -> io::Result<Vec<SocketAddr>> + Send + Sync>,
    running: Arc<AtomicUsize>,
}

impl Resolver {
    fn scripted() -> Self {
        let (call, calls) = unbounded();
        let (answers, answer) = unbounded();
        let running = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&running);
        let resolve = Arc::new(move || {
            assert_eq!(counted.fetch_add(1, Ordering::SeqCst), 0, "two look-ups at once");
            call.send(()).ok();
            let answer = answer.recv().expect("an answer");
            counted.fetch_sub(1, Ordering::SeqCst);
            answer
        });
        Self { calls, answers, resolve, running }
    }

    fn store(&self, url: &str) -> RedisStore {
        let resolve = Arc::clone(&self.resolve);
        RedisStore::open(url).expect("a good URL").with_resolver(move |host, port| {
            assert_eq!((host, port), ("leases.test", 6379));
            assert_eq!(thread::current().name(), Some("tr-lookup"));
            resolve()
        })
    }

    fn called(&self) {
        self.calls.recv().expect("a look-up");
    }

    fn answer(&self, addresses: &[SocketAddr]) {
        self.answers.send(Ok(addresses.to_vec())).expect("the resolver");
    }
}

/// A server that answers looks.
fn serve_looks() -> fake::Fake {
    fake::Fake::new(|words| if words[0] == "HELLO" { HELLO.to_vec() } else { VACANT.to_vec() })
}

#[test]
fn a_look_up_that_hangs_is_bounded_and_not_doubled_and_counted() {
    let resolver = Resolver::scripted();
    let mut session = session_of(&resolver.store("redis://leases.test"));
    let lookups = session.lookups();
    assert_eq!(lookups.running(), 0);
    for _ in 0..3 {
        assert_says(
            &late(&mut session),
            Outcome::NotSent,
            Class::Passing,
            &["looking up the name leases.test"],
        );
        assert_eq!((lookups.running(), resolver.running.load(Ordering::SeqCst)), (1, 1));
    }
    // Its answer is used by whoever waits for it next.
    resolver.answer(&[serve_looks().address]);
    assert!(matches!(look(&mut session, LONG), Ok(Answer::Vacant)));
    assert_eq!(lookups.running(), 0);
}

#[test]
fn a_name_that_stops_resolving_keeps_its_last_good_addresses() {
    let resolver = Resolver::scripted();
    let mut session = session_of(&resolver.store("redis://leases.test"));
    let server = serve_looks();
    resolver.answer(&[server.address]);
    assert!(matches!(look(&mut session, LONG), Ok(Answer::Vacant)));
    // It fails, it has no address, and then it hangs.
    resolver.answers.send(Err(io::Error::other("no such host"))).expect("the resolver");
    session.forget_wire();
    assert!(matches!(look(&mut session, LONG), Ok(Answer::Vacant)));
    resolver.answer(&[]);
    session.forget_wire();
    assert!(matches!(look(&mut session, LONG), Ok(Answer::Vacant)));
    let vacant = with_enough_time(|time| {
        session.forget_wire();
        look(&mut session, time)
    });
    assert!(matches!(vacant, Answer::Vacant));
    assert_eq!(session.lookups().running(), 1);
}

#[test]
fn a_look_up_that_fails_or_panics_is_an_error_that_names_it() {
    for (answer, what) in [
        (Some(Err(io::Error::other("no such host"))), "no such host"),
        (Some(Ok(vec![])), "no address"),
        (None, "panicked"),
    ] {
        let Resolver { answers, resolve, calls: _calls, .. } = Resolver::scripted();
        let store = RedisStore::open("redis://leases.test").expect("a good URL");
        let store = store.with_resolver(move |_, _| resolve());
        if let Some(answer) = answer {
            answers.send(answer).expect("the resolver");
        }
        drop(answers);
        let mut session = session_of(&store);
        let error = look(&mut session, LONG).expect_err("no address");
        assert_says(&error, Outcome::NotSent, Class::Passing, &["looking up", "leases.test"]);
        let told = format!("{error}: {:?}", std::error::Error::source(&error));
        assert!(told.contains(what), "{told}");
        assert_eq!(session.lookups().running(), 0);
    }
}

#[test]
fn every_address_of_a_name_gets_its_share() {
    let (silent, _) = listen();
    let full = FullTcp::new();
    let server = serve_looks();
    let addresses = [
        full.url["redis://".len()..].parse().expect("an address"),
        silent.local_addr().expect("an address"),
        server.address,
    ];
    let store = RedisStore::open("redis://leases.test").expect("a good URL");
    let store = store.with_resolver(move |_, _| Ok(addresses.to_vec()));
    assert!(matches!(with_enough_time(|time| look(&mut session_of(&store), time)), Answer::Vacant));
}

#[test]
fn a_budget_that_is_over_sends_nothing() {
    let (listener, url) = listen();
    let error = look(&mut session(&url), Duration::ZERO).expect_err("no time");
    assert_says(&error, Outcome::NotSent, Class::Passing, &["no time left"]);
    listener.set_nonblocking(true).expect("non-blocking");
    assert!(listener.accept().is_err(), "it was dialled");
}

#[test]
fn the_password_is_shown_nowhere() {
    for url in ["redis://user:hunter2@127.0.0.1:1/", "unix:///nonexistent/redis.sock?user=user&pass=hunter2"]
    {
        let store = RedisStore::open(url).expect("a good URL");
        let mut session = session_of(&store);
        let error = look(&mut session, LONG).expect_err("nobody listens");
        let shown = format!("{store:?} {session:?} {error} {error:?}");
        assert!(shown.contains("user") && !shown.contains("hunter2"), "{shown}");
    }
}

const CHANNEL: &[u8] = b"$55\r\ntaskrunner:leader:YNEZYJZJOMFH7AD67ODHNKJNZNXYUP4P:wake\r\n";
const WAKE_LIMIT: Duration = Duration::from_secs(2);

fn listener(url: &str) -> RedisListener {
    let store = RedisStore::open(url).expect("a good URL");
    RedisListener::new(Dialer::new(store.target, store.access)).expect("descriptors")
}

fn example() -> [Group; 1] {
    [Group::new("example").expect("a good name")]
}

fn listen_to(listener: &mut RedisListener, time: Duration) -> std::result::Result<Heard, StoreError> {
    let budget = Budget::new(Instant::now() + time, &listener.bell());
    listener.next(&example(), &budget)
}

fn woken_by(token: u64) -> Heard {
    Heard::Wake { lease: example()[0].lease().to_owned(), token }
}

/// A message in RESP3, where it is a push, or in RESP2, where it is an array.
fn message(kind: char, name: &str, last: &str) -> Vec<u8> {
    let head = format!("{kind}3\r\n${}\r\n{name}\r\n", name.len());
    [head.as_bytes(), CHANNEL, last.as_bytes()].concat()
}

impl Peer {
    fn accept_listener(listener: &TcpListener, kind: char) -> Self {
        let mut peer = Self::shake_hands(listener);
        let channel = std::str::from_utf8(&CHANNEL[5..60]).expect("text");
        assert_eq!(peer.expect("SUBSCRIBE")[1..], [channel]);
        peer.send(&message(kind, "subscribe", ":1\r\n"));
        peer
    }
}

#[test]
fn a_wake_is_heard_in_either_protocol_and_what_is_none_is_passed_over() {
    for kind in ['>', '*'] {
        let (url, server) = serve(move |listener| {
            let mut peer = Peer::accept_listener(&listener, kind);
            let long = format!("$400\r\n{}\r\n", "9".repeat(400));
            for payload in [
                "$0\r\n\r\n",
                "$7\r\ngarbage\r\n",
                "$2\r\n-1\r\n",
                "$3\r\n1.5\r\n",
                "$2\r\n 1\r\n",
                "$16\r\n9007199254740992\r\n",
                "$-1\r\n",
                "*0\r\n",
                &long,
            ] {
                peer.send(&message(kind, "message", payload));
            }
            // Of a kind that nobody asked for, and of nothing at all.
            peer.send(&message(kind, "smessage", "$2\r\n11\r\n"));
            peer.send(format!("{kind}0\r\n").as_bytes());
            // In pieces, as a network may bring it.
            for byte in message(kind, "message", "$2\r\n42\r\n") {
                peer.send(&[byte]);
            }
            peer.send(&message(kind, "message", "$2\r\n43\r\n"));
            peer.wait_for_close();
        });
        let mut listener = listener(&url);
        assert_eq!(listen_to(&mut listener, LONG).expect("it listens"), Heard::Listening);
        for token in [42, 43] {
            assert_eq!(listen_to(&mut listener, LONG).expect("a wake"), woken_by(token));
        }
        assert_eq!(listen_to(&mut listener, SHORT).expect("it listens"), Heard::Nothing);
        drop(listener);
        server.join().expect("the server");
    }
}

#[test]
fn a_half_of_a_wake_outlives_the_end_of_a_budget_and_is_made_whole_by_the_next() {
    let (go, gone) = unbounded();
    let (url, server) = serve(move |listener| {
        let mut peer = Peer::accept_listener(&listener, '>');
        let wake = message('>', "message", "$2\r\n42\r\n");
        peer.send(&wake[..wake.len() / 2]);
        gone.recv().expect("the test");
        peer.send(&wake[wake.len() / 2..]);
        peer.wait_for_close();
    });
    let mut listener = listener(&url);
    assert_eq!(listen_to(&mut listener, LONG).expect("it listens"), Heard::Listening);
    assert_eq!(listen_to(&mut listener, SHORT).expect("it listens"), Heard::Nothing);
    go.send(()).expect("the server");
    assert_eq!(listen_to(&mut listener, LONG).expect("a wake"), woken_by(42));
    drop(listener);
    server.join().expect("the server");
}

#[test]
fn a_wake_connection_that_breaks_or_turns_to_garbage_is_an_error_and_made_anew() {
    for (bytes, what) in [
        (&b""[..], "closed the connection"),
        (b">3\r\n$7\r\nmess", "closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no known type"),
        (b"$999999999\r\n", "above the limit"),
    ] {
        let (url, server) = serve(move |listener| {
            let mut peer = Peer::accept_listener(&listener, '>');
            peer.send(bytes);
            peer.stream.shutdown(std::net::Shutdown::Write).ok();
            peer.wait_for_close();
            Peer::accept_listener(&listener, '>').wait_for_close();
        });
        let mut listener = listener(&url);
        assert_eq!(listen_to(&mut listener, LONG).expect("it listens"), Heard::Listening);
        let error = listen_to(&mut listener, LONG).expect_err("no wake");
        assert_says(&error, Outcome::NotSent, Class::Passing, &["listening to", what]);
        assert_eq!(listen_to(&mut listener, LONG).expect("it listens again"), Heard::Listening);
        drop(listener);
        server.join().expect("the server");
    }
}

#[test]
fn a_subscription_that_is_refused_says_whether_it_can_pass() {
    for (reply, class, what) in [
        (
            &b"-NOPERM User x has no permissions to access the 'y' channel\r\n"[..],
            Class::Configuration,
            "NOPERM",
        ),
        (b"-LOADING Redis is loading the dataset in memory\r\n", Class::Passing, "LOADING"),
    ] {
        let (url, server) = serve(move |listener| {
            let mut peer = Peer::shake_hands(&listener);
            peer.expect("SUBSCRIBE");
            peer.send(reply);
            peer.wait_for_close();
        });
        let error = listen_to(&mut listener(&url), LONG).expect_err("refused");
        assert_says(&error, Outcome::Refused, class, &["SUBSCRIBE", what]);
        server.join().expect("the server");
    }
}

#[test]
fn a_wake_connection_is_dialled_and_subscribed_within_a_limit_of_its_own() {
    // Its budget has no end, so that a server that says nothing would hold it for ever.
    let silent: [fn(TcpListener); 2] = [
        |listener| Peer::accept(&listener).wait_for_close(),
        |listener| {
            let mut peer = Peer::shake_hands(&listener);
            peer.expect("SUBSCRIBE");
            peer.wait_for_close();
        },
    ];
    thread::scope(|scope| {
        for script in silent {
            scope.spawn(move || {
                let (url, server) = serve(script);
                let begun = Instant::now();
                let error = listen_to(&mut listener(&url), CAP).expect_err("nobody answers");
                let took = begun.elapsed();
                assert!(took >= WAKE_LIMIT / 2 && took < WAKE_LIMIT + SLACK, "{took:?}: {error}");
                assert_says(&error, Outcome::NotSent, Class::Passing, &["took longer"]);
                server.join().expect("the server");
            });
        }
    });
}

#[test]
fn another_thread_ends_the_dialling_of_a_wake_connection_at_once() {
    let (waits, waiting) = unbounded();
    let (url, server) = serve(move |listener| {
        let mut peer = Peer::shake_hands(&listener);
        peer.expect("SUBSCRIBE");
        waits.send(()).expect("the test waits");
        peer.wait_for_close();
    });
    let mut listener = listener(&url);
    let budget = Budget::new(Instant::NEVER, &listener.bell());
    let begun = Instant::now();
    let heard = thread::scope(|scope| {
        scope.spawn(|| {
            waiting.recv().expect("the server");
            budget.shorten(Instant::now());
        });
        listener.next(&example(), &budget)
    });
    heard.expect_err("it was ended");
    // The limit of its own is as long; what is shortened must come well before.
    assert!(begun.elapsed() < WAKE_LIMIT, "{:?}", begun.elapsed());
    drop(listener);
    server.join().expect("the server");
}
