//! Sentinels that name the right server, a wrong one, or none.

use super::fake::{Fake, SILENCE, hello, nobody};
use super::*;
use crate::election::store::sealed::Open;

/// A sentinel that names this server.
fn sentinel(server: SocketAddr) -> Fake {
    Fake::new(move |_| address(&server.ip().to_string(), &server.port().to_string()))
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

#[test]
fn the_server_that_a_sentinel_names_is_used_and_that_sentinel_is_asked_first_the_next_time() {
    let master = server("master");
    let asked = Fake::new({
        let address = address("127.0.0.1", &master.address.port().to_string());
        move |words| {
            assert_eq!(words, ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"]);
            address.clone()
        }
    });
    let ignorant = Fake::new(|_| b"*-1\r\n".to_vec());
    let mut session = session_by(&[nobody(), ignorant.address, asked.address]);
    finds_it_vacant(&mut session, LONG);
    assert_eq!((ignorant.asked(), asked.asked()), (vec!["SENTINEL".to_owned()], vec!["SENTINEL".to_owned()]));
    assert_eq!(master.asked(), ["HELLO", "EVAL"]);
    session.forget_wire();
    finds_it_vacant(&mut session, LONG);
    assert!(ignorant.asked().is_empty());
    assert_eq!(asked.asked(), ["SENTINEL"]);
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
    assert!(sentinels.iter().all(|sentinel| sentinel.asked() == ["SENTINEL"]));
}

#[test]
fn a_master_that_hangs_has_one_share_of_the_time_though_all_name_it() {
    let error = with_enough_time(|time| {
        let frozen = Fake::new(|_| SILENCE.to_vec());
        let sentinels = [(); 3].map(|()| sentinel(frozen.address));
        let addresses = sentinels.each_ref().map(|sentinel| sentinel.address);
        let error = look(&mut session_by(&addresses), time).expect_err("it hangs");
        let (asked, tried) = (sentinels.map(|sentinel| sentinel.asked().len()), frozen.asked());
        assert!(tried.len() <= 1, "it is tried again: {tried:?}");
        // Half of the time, and not all of it, which would leave none for the others.
        if (asked, tried.len()) == ([1; 3], 1) { Ok(error) } else { Err((asked, tried, error)) }
    });
    assert_says(&error, Outcome::NotSent, Class::Passing, &["handshake", "took longer"]);
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
        if words[0] == "AUTH" { b"+OK\r\n".to_vec() } else { named.clone() }
    });
    let asked = "SENTINEL GET-MASTER-ADDR-BY-NAME mymaster";
    let url = format!("redis://{}", sentinel.address);
    for (store, expected) in [
        (
            RedisStore::sentinel([url.replace("//", "//watch:hunter2@") + "/3"], "mymaster"),
            ["AUTH watch hunter2", asked, "HELLO 3 SETNAME taskrunner", "SELECT 3"].as_slice(),
        ),
        (
            RedisStore::open(&(url.replace("redis://", "redis-sentinel://u:hunter2@") + "/mymaster")),
            [asked, "HELLO 3 AUTH u hunter2 SETNAME taskrunner"].as_slice(),
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
