//! Sentinels that name the right server, a wrong one, or none.

use super::fake::{Fake, SILENCE, hello, nobody};
use super::*;
use crate::election::store::sealed::Open;

const NO_RIGHT: &[u8] = b"-NOPERM this user has no permissions to run the 'sentinel|master' command\r\n";

/// What each sentinel is asked at each dial.
const QUESTIONS: [&str; 2] = ["SENTINEL MASTER mymaster", "SENTINEL GET-MASTER-ADDR-BY-NAME mymaster"];

/// A sentinel that names this server, and whose user may not know more.
fn sentinel(server: SocketAddr) -> Fake {
    sentinel_that_says(NO_RIGHT, server)
}

/// One that names it by the configuration of this number.
fn sentinel_of(epoch: u64, server: SocketAddr) -> Fake {
    sentinel_that_says(&of_epoch(&epoch.to_string()), server)
}

/// One that answers the question for the master's state with this.
fn sentinel_that_says(state: &[u8], server: SocketAddr) -> Fake {
    let (state, named) = (state.to_vec(), address(&server.ip().to_string(), &server.port().to_string()));
    Fake::new(move |words| if words[1] == "MASTER" { state.clone() } else { named.clone() })
}

/// The state of a master, in short.
fn of_epoch(epoch: &str) -> Vec<u8> {
    let length = epoch.len();
    format!("*4\r\n$4\r\nname\r\n$8\r\nmymaster\r\n$12\r\nconfig-epoch\r\n${length}\r\n{epoch}\r\n")
        .into_bytes()
}

fn address(host: &str, port: &str) -> Vec<u8> {
    format!("*2\r\n${}\r\n{host}\r\n${}\r\n{port}\r\n", host.len(), port.len()).into_bytes()
}

fn server(role: &'static str) -> Fake {
    Fake::new(move |words| match &*words[0] {
        "HELLO" => hello("standalone", role),
        _ => VACANT.to_vec(),
    })
}

fn store(sentinels: &[SocketAddr]) -> RedisStore {
    RedisStore::sentinel(sentinels.iter().map(|address| format!("redis://{address}")), "mymaster")
        .expect("good URLs")
}

fn session_by(sentinels: &[SocketAddr]) -> RedisSession {
    RedisSession::new(store(sentinels).dialer()).expect("descriptors")
}

#[track_caller]
fn finds_it_vacant(session: &mut RedisSession, time: Duration) {
    match look(session, time) {
        Ok(Answer::Vacant) => {}
        other => panic!("{other:?}"),
    }
}

/// Replicas, and the numbers of those that are dialled.
fn replicas<const N: usize>() -> ([Fake; N], Receiver<usize>) {
    let (tell, told) = unbounded();
    let replicas = std::array::from_fn(|number| {
        let tell = tell.clone();
        Fake::new(move |_| {
            tell.send(number).expect("the test");
            hello("standalone", "replica")
        })
    });
    (replicas, told)
}

#[test]
fn all_sentinels_are_asked_before_and_after_each_dial_and_a_server_that_they_name_is_used() {
    let master = server("master");
    let ignorant = Fake::new(|_| b"*-1\r\n".to_vec());
    let (tell, told) = unbounded();
    let asked = [(); 2].map(|()| {
        let (tell, named) = (tell.clone(), address("127.0.0.1", &master.address.port().to_string()));
        Fake::new(move |words| {
            tell.send(words.join(" ")).expect("the test");
            if words[1] == "MASTER" { of_epoch("7") } else { named.clone() }
        })
    });
    let mut session = session_by(&[ignorant.address, asked[0].address, asked[1].address]);
    for _ in 0..2 {
        finds_it_vacant(&mut session, LONG);
        assert_eq!(ignorant.asked(), ["SENTINEL"; 4]);
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [QUESTIONS; 4].concat());
        assert_eq!(master.asked(), ["HELLO", "EVAL"]);
        session.forget_wire();
    }
}

#[test]
fn the_server_of_the_newest_configuration_is_dialled_first_and_each_once() {
    let numbered = |epoch: u64| of_epoch(&epoch.to_string());
    let resp3 = b"%1\r\n$12\r\nconfig-epoch\r\n$1\r\n9\r\n".to_vec();
    // Each sentinel: the server that it names, and how it answers the question for the epoch.
    for (what, named, order) in [
        ("the old one by most", vec![(0, numbered(4)), (0, numbered(4)), (1, numbered(5))], vec![1, 0]),
        ("the new one first", vec![(1, numbered(5)), (0, numbered(4)), (0, numbered(4))], vec![1, 0]),
        ("numbers, not texts", vec![(0, numbered(9)), (1, numbered(10))], vec![1, 0]),
        ("the highest of one server", vec![(0, numbered(6)), (1, numbered(5)), (1, numbered(7))], vec![1, 0]),
        ("three servers", vec![(2, numbered(1)), (0, numbered(2)), (1, numbered(3))], vec![1, 0, 2]),
        ("one epoch, most", vec![(0, numbered(4)), (1, numbered(4)), (1, numbered(4))], vec![1, 0]),
        ("one epoch, equally many", vec![(0, numbered(4)), (1, numbered(4))], vec![0, 1]),
        ("no right", vec![(0, NO_RIGHT.to_vec()), (1, numbered(1)), (0, NO_RIGHT.to_vec())], vec![1, 0]),
        (
            "no right anywhere, most",
            vec![0, 1, 1].into_iter().map(|it| (it, NO_RIGHT.to_vec())).collect(),
            vec![1, 0],
        ),
        ("a word", vec![(0, of_epoch("high")), (1, numbered(1))], vec![1, 0]),
        ("less than zero", vec![(0, of_epoch("-1")), (1, numbered(1))], vec![1, 0]),
        ("too large", vec![(0, of_epoch("18446744073709551616")), (1, numbered(1))], vec![1, 0]),
        ("an odd reply", vec![(0, b"*1\r\n$12\r\nconfig-epoch\r\n".to_vec()), (1, numbered(1))], vec![1, 0]),
        ("no list", vec![(0, b"+OK\r\n".to_vec()), (1, numbered(1))], vec![1, 0]),
        ("a map", vec![(0, numbered(8)), (1, resp3)], vec![1, 0]),
    ] {
        let (servers, dialled) = replicas::<3>();
        let sentinels: Vec<_> =
            named.iter().map(|(server, state)| sentinel_that_says(state, servers[*server].address)).collect();
        let addresses: Vec<_> = sentinels.iter().map(|it| it.address).collect();
        let error = look(&mut session_by(&addresses), LONG).expect_err("no primary");
        assert_says(&error, Outcome::NotSent, Class::WrongNode, &["is a replica"]);
        assert_eq!(dialled.try_iter().collect::<Vec<_>>(), order, "{what}");
    }
}

#[test]
fn an_old_primary_that_lives_again_is_not_used_while_most_sentinels_still_name_it() {
    let (old, new) = (server("master"), server("master"));
    let sentinels = [sentinel_of(3, old.address), sentinel_of(3, old.address), sentinel_of(4, new.address)];
    finds_it_vacant(&mut session_by(&sentinels.each_ref().map(|it| it.address)), LONG);
    assert_eq!((old.asked().len(), new.asked()), (0, vec!["HELLO".into(), "EVAL".into()]));
}

#[test]
fn a_primary_that_is_superseded_while_it_is_dialled_is_left_for_the_new_one() {
    let new = server("master");
    let promoted = Arc::new(AtomicUsize::new(0));
    let old = Fake::new({
        let promoted = Arc::clone(&promoted);
        move |_| {
            promoted.store(1, Ordering::SeqCst);
            hello("standalone", "master")
        }
    });
    let ports = [old.address, new.address].map(|it| it.port().to_string());
    let sentinel = Fake::new(move |_| address("127.0.0.1", &ports[promoted.load(Ordering::SeqCst)]));
    finds_it_vacant(&mut session_by(&[sentinel.address]), LONG);
    assert_eq!((old.asked(), new.asked()), (vec!["HELLO".to_owned()], vec!["HELLO".into(), "EVAL".into()]));
}

#[test]
fn sentinels_that_name_another_server_each_time_do_not_hold_up_anybody_for_ever() {
    let servers: Vec<_> = (0..20).map(|_| server("master")).collect();
    let mut ports: Vec<_> = servers.iter().map(|it| it.address.port().to_string()).collect();
    let sentinel = Fake::new(move |words| match &*words[1] {
        "MASTER" => NO_RIGHT.to_vec(),
        _ => address("127.0.0.1", &ports.pop().expect("it is not asked so often")),
    });
    let error = look(&mut session_by(&[sentinel.address]), LONG).expect_err("never the same");
    assert_says(&error, Outcome::NotSent, Class::Passing, &["too many that the Sentinels name"]);
}

#[test]
fn a_silent_sentinel_costs_its_share_once_where_more_than_half_answer() {
    let master = server("master");
    let good = [(); 2].map(|()| sentinel(master.address));
    let [one, two] = good.each_ref().map(|it| it.address);
    // It is spared after the first dial already.
    for (others, asked) in [([one, two], [2, 0]), ([one, nobody()], [4, 4])] {
        with_enough_time(|time| {
            let silent = Fake::new(|_| SILENCE.to_vec());
            let store = store(&[silent.address, others[0], others[1]]);
            let found = asked.map(|_| {
                // What one session has found out, all know.
                let mut session = RedisSession::new(store.dialer()).expect("descriptors");
                (look(&mut session, time).is_ok(), silent.asked().len())
            });
            if found == asked.map(|it| (true, it)) { Ok(()) } else { Err(found) }
        });
    }
}

#[test]
fn a_replica_or_a_dead_server_that_one_sentinel_names_is_passed_over_for_what_the_next_names() {
    let (master, replica) = (server("master"), server("slave"));
    let sentinels = [replica.address, nobody(), master.address].map(sentinel);
    finds_it_vacant(&mut session_by(&sentinels.each_ref().map(|sentinel| sentinel.address)), LONG);
    assert_eq!(
        (replica.asked(), master.asked()),
        (vec!["HELLO".to_owned()], vec!["HELLO".into(), "EVAL".into()])
    );
}

#[test]
fn a_server_that_all_sentinels_name_is_tried_once() {
    let replica = server("replica");
    let sentinels = [(); 5].map(|()| sentinel(replica.address));
    let addresses = sentinels.each_ref().map(|sentinel| sentinel.address);
    let error = look(&mut session_by(&addresses), LONG).expect_err("no primary");
    assert_says(&error, Outcome::NotSent, Class::WrongNode, &["is a replica"]);
    assert_eq!(replica.asked(), ["HELLO"]);
    assert!(sentinels.iter().all(|sentinel| sentinel.asked() == ["SENTINEL"; 4]));
}

#[test]
fn a_master_that_hangs_has_half_of_the_time_and_then_the_sentinels_are_asked_again() {
    let error = with_enough_time(|time| {
        let frozen = Fake::new(|_| SILENCE.to_vec());
        let sentinels = [(); 3].map(|()| sentinel(frozen.address));
        let addresses = sentinels.each_ref().map(|sentinel| sentinel.address);
        let error = look(&mut session_by(&addresses), time).expect_err("it hangs");
        let (asked, tried) = (sentinels.map(|sentinel| sentinel.asked().len()), frozen.asked());
        assert!(tried.len() <= 1, "it is tried again: {tried:?}");
        match (asked, tried.len()) == ([4; 3], 1) {
            true => Ok(error),
            false => Err(format!("{asked:?} {tried:?} {error}")),
        }
    });
    assert_says(&error, Outcome::NotSent, Class::Passing, &["handshake", "took longer"]);
}

#[test]
fn a_server_that_hangs_costs_its_share_and_then_the_next_is_dialled() {
    let master = server("master");
    let answer = with_enough_time(|time| {
        let frozen = Fake::new(|_| SILENCE.to_vec());
        let sentinels = [sentinel_of(2, frozen.address), sentinel_of(1, master.address)];
        let answer = look(&mut session_by(&sentinels.each_ref().map(|it| it.address)), time);
        assert!(frozen.asked().len() <= 1, "it is tried again");
        answer
    });
    assert!(matches!(answer, Answer::Vacant));
}

#[test]
fn a_sentinel_that_says_nothing_or_trickles_costs_its_share() {
    let (_silent, silent) = listen();
    let (trickling, _trickle) = serve(|listener| {
        let peers = listener.incoming().map_while(std::result::Result::ok);
        peers.for_each(|stream| Peer { stream, parser: Parser::new() }.trickle(b"*"));
    });
    let address = |url: &str| url["redis://".len()..].parse().expect("an address");
    let master = server("master");
    let good = sentinel(master.address);
    let sentinels = [address(&silent), address(&trickling), good.address];
    assert!(matches!(with_enough_time(|time| look(&mut session_by(&sentinels), time)), Answer::Vacant));
    // And where there is no other, it ends in time.
    late(&mut session_by(&[address(&silent)]));
}

#[test]
fn a_sentinel_that_is_none_or_does_not_know_the_name_says_what_to_put_right() {
    let odd = |reply: &'static [u8]| Fake::new(move |_| reply.to_vec());
    for (reply, class, what) in [
        (
            &b"-ERR unknown command 'SENTINEL', with args beginning with: 'hunter2'\r\n"[..],
            Class::Configuration,
            "is no Sentinel",
        ),
        (b"*-1\r\n", Class::Configuration, "no primary of the name \"mymaster\""),
        (b"_\r\n", Class::Configuration, "no primary of the name \"mymaster\""),
        (b"-NOAUTH Authentication required.\r\n", Class::Configuration, "NOAUTH"),
        (b"-IDONTKNOW Sentinel is not that sure\r\n", Class::Passing, "IDONTKNOW"),
        (b"*1\r\n$1\r\nh\r\n", Class::Passing, "an address that is none"),
        (b"*2\r\n$1\r\nh\r\n$1\r\n0\r\n", Class::Passing, "an address that is none"),
        (b"*2\r\n$1\r\nh\r\n$5\r\n65536\r\n", Class::Passing, "an address that is none"),
        (b"*2\r\n$0\r\n\r\n$4\r\n6379\r\n", Class::Passing, "an address that is none"),
        (b"*2\r\n$3\r\na b\r\n$4\r\n6379\r\n", Class::Passing, "an address that is none"),
        (b"+OK\r\n", Class::Passing, "an address that is none"),
        (b"HTTP/1.1 400 Bad Request\r\n", Class::Passing, "no known type"),
    ] {
        let sentinel = odd(reply);
        let error = look(&mut session_by(&[sentinel.address]), LONG).expect_err(what);
        assert_says(&error, Outcome::NotSent, class, &[what, &sentinel.address.to_string()]);
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
    // What passes by itself does not hide it, in whatever order it comes; nor what a server says.
    let ignorant = odd(b"*-1\r\n");
    let (to_nobody, to_locked) =
        (sentinel(nobody()), sentinel(odd(b"-WRONGPASS invalid password\r\n").address));
    for (sentinels, what) in [
        ([nobody(), ignorant.address], "mymaster"),
        ([ignorant.address, nobody()], "mymaster"),
        ([to_nobody.address, to_locked.address], "WRONGPASS"),
        ([to_locked.address, to_nobody.address], "WRONGPASS"),
    ] {
        let error = look(&mut session_by(&sentinels), LONG).expect_err("no server");
        assert_says(&error, Outcome::NotSent, Class::Configuration, &[what]);
    }
}

#[test]
fn sentinels_and_servers_have_their_own_logins() {
    let (tell, told) = unbounded();
    let tells = move |words: &[String]| tell.send(words.join(" ")).expect("the test");
    let of_server = tells.clone();
    let master = Fake::new(move |words| {
        of_server(words);
        match &*words[0] {
            "HELLO" => hello("standalone", "master"),
            "SELECT" => b"+OK\r\n".to_vec(),
            _ => VACANT.to_vec(),
        }
    });
    let named = address("127.0.0.1", &master.address.port().to_string());
    let sentinel = Fake::new(move |words| {
        tells(words);
        match &*words[1] {
            "watch" => b"+OK\r\n".to_vec(),
            "MASTER" => NO_RIGHT.to_vec(),
            _ => named.clone(),
        }
    });
    let [state, asked] = QUESTIONS;
    let url = format!("redis://{}", sentinel.address);
    for (store, expected) in [
        (
            RedisStore::sentinel([url.replace("//", "//watch:hunter2@") + "/3"], "mymaster"),
            [
                "AUTH watch hunter2",
                state,
                asked,
                "HELLO 3 SETNAME taskrunner",
                "SELECT 3",
                "AUTH watch hunter2",
                state,
                asked,
            ]
            .as_slice(),
        ),
        (
            RedisStore::open(&(url.replace("redis://", "redis-sentinel://u:hunter2@") + "/mymaster")),
            [state, asked, "HELLO 3 AUTH u hunter2 SETNAME taskrunner", state, asked].as_slice(),
        ),
    ] {
        let store = store.expect("a good URL");
        let mut session = RedisSession::new(store.dialer()).expect("descriptors");
        finds_it_vacant(&mut session, LONG);
        let told: Vec<_> = told.try_iter().filter(|told| !told.starts_with("EVAL")).collect();
        assert_eq!(told, expected);
        assert!(!format!("{store:?} {session:?}").contains("hunter2"));
    }
}

#[test]
fn a_listener_finds_its_server_in_the_same_way() {
    let master = Fake::new(|words| match &*words[0] {
        "HELLO" => hello("standalone", "master"),
        _ => message('>', "subscribe", ":1\r\n"),
    });
    let sentinels = [nobody(), sentinel(master.address).address];
    let mut listener = store(&sentinels).listen().expect("descriptors");
    let budget = Budget::new(Instant::now() + LONG, &listener.bell());
    assert_eq!(listener.next(&example(), &budget).expect("it listens"), Heard::Listening);
}

#[test]
fn what_names_no_sentinels_is_refused() {
    for (urls, master, what) in [
        (&[][..], "m", "no URL"),
        (&["redis://h"], "", "is empty"),
        (&["redis://h/1", "redis://i/2"], "m", "different databases"),
        #[cfg(feature = "tls")]
        (&["redis://h", "rediss://i"], "m", "some ask for TLS and some do not"),
        (&["redis://u:hunter2@h", "hunter2"], "m", "no scheme"),
    ] {
        let error = RedisStore::sentinel(urls, master).expect_err(what);
        assert!(error.to_string().contains(what), "{urls:?}: {error}");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
    let store = RedisStore::sentinel(["redis://h", "redis://[::1]:7"], "m").expect("good URLs");
    assert!(format!("{store:?}").contains("26379"), "{store:?}");
}
