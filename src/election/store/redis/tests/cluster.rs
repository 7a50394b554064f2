//! The nodes of a cluster that send an operation here and there.

use std::sync::atomic::AtomicBool;

use super::super::resolve::Names;
use super::super::wire::Patience;
use super::fake::{Fake, hello, nobody};
use super::*;
use crate::election::store::Lookups;
use crate::election::store::budget::Bell;
use crate::election::store::redirect::{MOST_REDIRECTS, execute_one};
use crate::election::store::sealed::Open;

/// The slot of the group that is asked for.
const SLOT: u16 = 357;

/// A node that gives these replies to operations, and then that the group is vacant.
fn node(replies: impl IntoIterator<Item = String, IntoIter: Send + 'static>) -> Fake {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    node_on(listener, replies)
}

fn node_on(
    listener: TcpListener,
    replies: impl IntoIterator<Item = String, IntoIter: Send + 'static>,
) -> Fake {
    let mut replies = replies.into_iter();
    Fake::on(listener, move |words| match &*words[0] {
        "HELLO" => hello("cluster", "master"),
        "ASKING" => b"+OK\r\n".to_vec(),
        _ => replies.next().map_or_else(|| VACANT.to_vec(), String::into_bytes),
    })
}

fn moved(to: SocketAddr) -> String {
    format!("-MOVED {SLOT} {to}\r\n")
}

fn cluster(seeds: &[SocketAddr]) -> RedisStore {
    RedisStore::cluster(seeds.iter().map(|seed| format!("redis://{seed}"))).expect("good URLs")
}

/// Looks as a new elector would, with what its store has learned.
fn look_within(store: &RedisStore, time: Duration) -> Result {
    let session = Open::open(store).expect("descriptors");
    execute_one(session, &operation(Action::Look), Instant::now() + time).expect("descriptors")
}

#[track_caller]
fn finds_it_vacant(store: &RedisStore) {
    match look_within(store, LONG) {
        Ok(Answer::Vacant) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_chain_of_redirects_is_followed_and_what_it_ends_at_is_remembered() {
    let last = node([]);
    let second = node([moved(last.address)]);
    let first = node([moved(second.address)]);
    let store = cluster(&[first.address]);
    finds_it_vacant(&store);
    assert_eq!(first.asked(), ["HELLO", "EVAL"]);
    assert_eq!(second.asked(), ["HELLO", "EVAL"]);
    // A clone knows it, too.
    finds_it_vacant(&store.clone());
    assert!(first.asked().is_empty() && second.asked().is_empty());
    assert_eq!(last.asked(), ["HELLO", "EVAL", "HELLO", "EVAL"]);
}

#[test]
fn nodes_that_send_an_operation_in_circles_are_given_up_on() {
    let listeners = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port"));
    let addresses = listeners.each_ref().map(|listener| listener.local_addr().expect("an address"));
    let [one, two] = listeners;
    let one = node_on(one, vec![moved(addresses[1]); 100]);
    let two = node_on(two, vec![moved(addresses[0]); 100]);
    let error = look_within(&cluster(&addresses), LONG).expect_err("nobody has it");
    assert_says(&error, Outcome::Refused, Class::WrongNode, &["5 redirects", "do not agree"]);
    let evals = [one, two].map(|node| node.asked().iter().filter(|name| *name == "EVAL").count());
    assert_eq!(evals.iter().sum::<usize>(), 1 + MOST_REDIRECTS as usize);
}

#[test]
fn an_ask_is_followed_once_with_asking_before_it_and_not_remembered() {
    let target = node([]);
    let source = node(vec![format!("-ASK {SLOT} {}\r\n", target.address); 2]);
    let store = cluster(&[source.address]);
    for _ in 0..2 {
        finds_it_vacant(&store);
        assert_eq!(source.asked(), ["HELLO", "EVAL"]);
        assert_eq!(target.asked(), ["HELLO", "ASKING", "EVAL"]);
    }
}

#[test]
fn a_node_that_refuses_asking_says_why_it_sends_an_operation_back_and_one_that_serves_it_is_believed() {
    let refusal = "NOPERM this user has no permissions to run the 'asking' command";
    let sent_back = moved(nobody());
    for (reply, serves) in [(sent_back.as_bytes(), false), (VACANT, true)] {
        let reply = reply.to_vec();
        let target = Fake::new(move |words| match &*words[0] {
            "HELLO" => hello("cluster", "master"),
            "ASKING" => format!("-{refusal}\r\n").into_bytes(),
            _ => reply.clone(),
        });
        let source = node([format!("-ASK {SLOT} {}\r\n", target.address)]);
        match look_within(&cluster(&[source.address]), LONG) {
            Ok(Answer::Vacant) => assert!(serves),
            Err(error) if !serves => {
                assert_says(&error, Outcome::Refused, Class::Configuration, &["'asking'", "NOPERM"]);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_slot_that_moves_is_asked_again_as_long_as_there_is_time() {
    let again = || "-TRYAGAIN Multiple keys request during rehashing of slot\r\n".to_owned();
    let moving = node(vec![again(); 10]);
    finds_it_vacant(&cluster(&[moving.address]));
    let moving = node(std::iter::repeat_with(again));
    // Where it has not even heard so once, there was too little time.
    let error = with_enough_time(|time| match look_within(&cluster(&[moving.address]), time) {
        Err(error) if error.outcome() == Outcome::Refused => Ok(error),
        other => Err(other),
    });
    assert_says(&error, Outcome::Refused, Class::Passing, &["moves the slot", "CLUSTER SETSLOT ... NODE"]);
    let cause = std::error::Error::source(&error).expect("what the node said").to_string();
    assert!(cause.contains("TRYAGAIN"), "{cause}");
}

#[test]
fn a_redirect_without_a_host_is_to_another_port_of_the_same_one() {
    let other = node([]);
    let first = node([format!("-MOVED {SLOT} :{}\r\n", other.address.port())]);
    finds_it_vacant(&cluster(&[first.address]));
    assert_eq!(other.asked(), ["HELLO", "EVAL"]);
}

#[test]
fn a_redirect_to_a_node_that_is_not_there_is_asked_about_once_more() {
    let port = nobody().port();
    // Of either version of IP.
    for host in ["127.0.0.1", "::1"] {
        let seed = node(vec![format!("-MOVED {SLOT} {host}:{port}\r\n"); 2]);
        let error = look_within(&cluster(&[seed.address]), LONG).expect_err("nobody there");
        let shown = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        assert_says(&error, Outcome::NotSent, Class::Passing, &["connecting to", &shown]);
        assert_eq!(seed.asked().iter().filter(|name| *name == "EVAL").count(), 2, "{host}");
    }
    // It has failed over meanwhile.
    let promoted = node([]);
    let seed = node([moved(nobody()), moved(promoted.address)]);
    finds_it_vacant(&cluster(&[seed.address]));
}

#[test]
fn a_redirect_that_makes_no_sense_is_an_error_that_shows_it() {
    let other = node([]);
    for text in [
        format!("MOVED 1 {}", other.address),
        format!("ASK 1 {}", other.address),
        format!("MOVED 99999 {}", other.address),
        format!("MOVED {SLOT} 127.0.0.1:0"),
        format!("MOVED {SLOT} ?:{}", other.address.port()),
        "MOVED".to_owned(),
    ] {
        let seed = node([format!("-{text}\r\n")]);
        let error = look_within(&cluster(&[seed.address]), LONG).expect_err("nowhere to go");
        assert_says(&error, Outcome::Refused, Class::WrongNode, &[&text]);
    }
    assert!(other.asked().is_empty());
}

#[test]
fn a_node_that_does_not_serve_the_slot_sends_it_elsewhere_once() {
    for text in ["CLUSTERDOWN The cluster is down", "LOADING Redis is loading the dataset in memory"] {
        let down = node(vec![format!("-{text}\r\n"); 10]);
        let up = node([]);
        finds_it_vacant(&cluster(&[down.address, up.address]));
        let error = look_within(&cluster(&[down.address]), LONG).expect_err("nobody serves it");
        assert_says(&error, Outcome::Refused, Class::Passing, &[text]);
        assert_eq!(down.asked().iter().filter(|name| *name == "EVAL").count(), 3);
    }
}

#[test]
fn what_may_have_been_done_is_not_sent_again_and_its_node_is_asked_for_no_more() {
    let (url, server) = serve(|listener| {
        let mut peer = Peer::accept(&listener);
        peer.expect("HELLO");
        peer.send(&hello("cluster", "master"));
        peer.expect("EVAL");
    });
    let broken: SocketAddr = url["redis://".len()..].parse().expect("an address");
    let seed = node([moved(broken)]);
    let store = cluster(&[seed.address]);
    let error = look_within(&store, LONG).expect_err("it closes");
    assert_says(&error, Outcome::Unknown, Class::Passing, &["waiting for the reply of"]);
    assert_eq!(seed.asked(), ["HELLO", "EVAL"]);
    server.join().expect("the server");
    finds_it_vacant(&store);
    assert_eq!(seed.asked(), ["HELLO", "EVAL"]);
}

#[test]
fn seeds_that_are_dead_or_silent_cost_their_share_and_each_dial_begins_with_the_next() {
    let (_silent, silent_url) = listen();
    let silent: SocketAddr = silent_url["redis://".len()..].parse().expect("an address");
    let good = node([]);
    let store = cluster(&[nobody(), silent, good.address]);
    assert!(matches!(with_enough_time(|time| look_within(&store, time)), Answer::Vacant));

    let seeds = [(); 3].map(|()| node([]));
    let store = cluster(&seeds.each_ref().map(|seed| seed.address));
    let mut session = RedisSession::new(store.dialer()).expect("descriptors");
    for round in 0..2 {
        for seed in &seeds {
            session.forget_wire();
            assert!(matches!(look(&mut session, LONG), Ok(Answer::Vacant)));
            assert_eq!(seed.asked(), ["HELLO", "EVAL"], "round {round}");
        }
    }
}

#[test]
fn a_seed_that_is_no_node_ends_no_dial_but_one_that_refuses_the_login_does() {
    for (reply, is_login, what) in [
        (hello("standalone", "master"), false, "is no Redis Cluster node"),
        (hello("sentinel", "sentinel"), false, "is a Sentinel"),
        (b"-WRONGPASS invalid username-password pair\r\n".to_vec(), true, "WRONGPASS"),
        (b"-NOAUTH HELLO must be called with AUTH\r\n".to_vec(), true, "NOAUTH"),
        (b"-NOPERM this user has no permissions to run the 'hello' command\r\n".to_vec(), true, "NOPERM"),
    ] {
        let bad = Fake::new(move |_| reply.clone());
        let good = node([]);
        let one_dial = cluster(&[bad.address, good.address]).dialer();
        match look(&mut RedisSession::new(one_dial).expect("descriptors"), LONG) {
            Ok(Answer::Vacant) => assert!(!is_login, "{what}"),
            Err(error) => {
                assert!(is_login, "{error}");
                assert_says(&error, Outcome::NotSent, Class::Configuration, &[what]);
                assert!(good.asked().is_empty(), "{what}");
            }
            other => panic!("{other:?}"),
        }
        // Where no other is good, either, it is what is told.
        for seeds in [[bad.address, nobody()], [nobody(), bad.address]] {
            let error = look_within(&cluster(&seeds), LONG).expect_err("no node");
            assert_says(&error, Outcome::NotSent, Class::Configuration, &[what]);
        }
    }
}

#[test]
fn a_remembered_node_whose_address_is_something_elses_now_is_asked_once() {
    let refusal = b"-WRONGPASS invalid username-password pair\r\n".to_vec();
    for (reply, is_login) in [(hello("standalone", "master"), false), (refusal, true)] {
        for knows_slot in [true, false] {
            let (is_reused, reply) = (Arc::new(AtomicBool::new(false)), reply.clone());
            let reused = Arc::clone(&is_reused);
            let remembered = Fake::new(move |words| match &*words[0] {
                _ if reused.load(Ordering::SeqCst) => reply.clone(),
                "HELLO" => hello("cluster", "master"),
                _ => VACANT.to_vec(),
            });
            let seed = node([moved(remembered.address)]);
            let store = cluster(&[seed.address]);
            finds_it_vacant(&store);
            assert_eq!(remembered.asked(), ["HELLO", "EVAL"]);
            is_reused.store(true, Ordering::SeqCst);
            let mut any = RedisSession::new(store.dialer()).expect("descriptors");
            let mut asked = 0;
            for round in 0..4 {
                any.forget_wire();
                let by_slot = knows_slot && round == 0;
                let looked = if by_slot { look_within(&store, LONG) } else { look(&mut any, LONG) };
                let asked_now = remembered.asked().len();
                assert_eq!(looked.is_err(), is_login && asked_now > 0, "{looked:?}");
                asked += asked_now;
            }
            assert_eq!(asked, 1, "knows the slot: {knows_slot}");
        }
    }
}

#[test]
fn a_listener_goes_on_to_the_next_node_after_each_failure_and_reset() {
    let node = || {
        Fake::new(|words| match &*words[0] {
            "HELLO" => hello("cluster", "slave"),
            _ => message('>', "subscribe", ":1\r\n"),
        })
    };
    let (one, two) = (node(), node());
    let store = cluster(&[one.address, nobody(), two.address]);
    let mut listener = RedisListener::new(store.dialer()).expect("descriptors");
    for round in 0..2 {
        for node in [&one, &two] {
            assert_eq!(listen_to(&mut listener, LONG).expect("it listens"), Heard::Listening);
            assert_eq!(node.asked(), ["HELLO", "SUBSCRIBE"], "round {round}");
            listener.reset();
        }
    }
}

#[test]
fn a_server_is_used_as_what_it_is() {
    for (mode, role, is_cluster, what) in [
        ("cluster", "master", true, None),
        // It says itself which node has the slot.
        ("cluster", "slave", true, None),
        ("standalone", "master", true, Some("use RedisStore::open")),
        ("sentinel", "sentinel", true, Some("use RedisStore::sentinel")),
        ("standalone", "master", false, None),
        ("cluster", "master", false, Some("use RedisStore::cluster")),
        ("sentinel", "sentinel", false, Some("use RedisStore::sentinel")),
    ] {
        let server = Fake::new(move |words| match &*words[0] {
            "HELLO" => hello(mode, role),
            _ => VACANT.to_vec(),
        });
        let store = match is_cluster {
            true => cluster(&[server.address]),
            false => RedisStore::open(&server.url()).expect("a good URL"),
        };
        match (look_within(&store, LONG), what) {
            (Ok(Answer::Vacant), None) => {}
            (Err(error), Some(what)) => assert_says(&error, Outcome::NotSent, Class::Configuration, &[what]),
            other => panic!("{mode} {role} {is_cluster}: {other:?}"),
        }
    }
}

#[test]
fn every_node_gets_the_login_of_the_urls() {
    let (tell, told) = unbounded();
    let node = |reply: Option<String>| {
        let tell = tell.clone();
        Fake::new(move |words| match &*words[0] {
            "HELLO" => {
                tell.send(words[2..5].join(" ")).expect("the test");
                hello("cluster", "master")
            }
            _ => reply.clone().map_or_else(|| VACANT.to_vec(), String::into_bytes),
        })
    };
    let last = node(None);
    let first = node(Some(moved(last.address)));
    let store =
        RedisStore::open(&format!("redis-cluster://user:hunter2@{}", first.address)).expect("a good URL");
    finds_it_vacant(&store);
    assert_eq!(told.try_iter().collect::<Vec<_>>(), ["AUTH user hunter2"; 2]);
    assert!(!format!("{store:?}").contains("hunter2"));
}

#[test]
fn names_without_end_that_hang_start_no_threads_without_end() {
    let (hang, hung) = unbounded::<()>();
    let resolver = super::super::Resolver::new(move |host, port| match host {
        "good" => Ok(vec![(Ipv4Addr::LOCALHOST, port).into()]),
        _ => hung.recv().map(|()| Vec::new()).map_err(io::Error::other),
    });
    let running = Lookups::default();
    let names = Names::new(resolver, running.clone());
    let (bell, end) = Bell::new().expect("descriptors");
    let look_up = |host: &str, time| {
        let budget = Budget::new(Instant::now() + time, &bell);
        names.addresses(host, 7, &Patience::new(&budget, &end))
    };
    look_up("good", LONG).expect("an address");
    let hangs = |number| look_up(&format!("h{number}"), Duration::from_millis(1)).expect_err("it hangs");
    (0..200).for_each(|number| drop(hangs(number)));
    let last = hangs(200);
    assert!(running.running() <= 64, "{}", running.running());
    assert_eq!((last.outcome(), last.class()), (Outcome::NotSent, Class::Passing));
    let cause = std::error::Error::source(&last).expect("a cause").to_string();
    assert!(cause.contains("too many"), "{cause}");
    // Once they have ended, others have their turn.
    drop(hang);
    let begun = Instant::now();
    while running.running() > 0 {
        assert!(begun.elapsed() < CAP);
        thread::yield_now();
    }
    look_up("h0", LONG).expect_err("it was not found");
    look_up("good", LONG).expect("an address");
}

#[test]
fn what_names_no_cluster_is_refused() {
    for (urls, what) in [
        (&[][..], "no URL"),
        (&["redis://h/1"], "names a database"),
        (&["redis-cluster://h,i/3"], "names a database"),
        (&["unix:///run/s"], "names a Unix socket"),
        (&["redis://u:hunter2@h", "redis://u:hunter3@h"], "different users or passwords"),
        #[cfg(feature = "tls")]
        (&["redis://h", "rediss://i"], "some ask for TLS and some do not"),
        (&["redis://h", "redis-sentinel://u:hunter2@h/m"], "names Sentinels"),
        (&["redis://h", "hunter2"], "no scheme"),
    ] {
        let error = RedisStore::cluster(urls).expect_err(what);
        assert!(error.to_string().contains(what), "{urls:?}: {error}");
        assert!(!format!("{error:?}").contains("hunter"), "{error:?}");
    }
}
