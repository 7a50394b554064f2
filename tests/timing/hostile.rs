//! Servers that are no Redis, and networks that change what Redis says.

#![allow(clippy::print_stderr, reason = "a test that measures shows its figures")]

use std::process;
use std::thread;
use std::time::{Duration, Instant};

use taskrunner::election::{Elector, ErrorKind, Event, RedisStore, Role};

use crate::support::cases::cases;
use crate::support::hostile::{Attack, HELD, HELLO, Hostile, Stage, Then};
use crate::support::process::rss_kb;
use crate::support::{Proxy, Server, eventually, in_own_process, unique_group};

const CAP: Duration = Duration::from_secs(20);
const MS: Duration = Duration::from_millis(1);

/// The shortest waits that there are, so that much happens: a call takes 100 ms at most.
const TTL: Duration = Duration::from_millis(200);
const CALL_LIMIT: Duration = Duration::from_millis(100);

/// How long each server is endured.
const ENDURED: Duration = Duration::from_millis(300);

/// What a call may take beside the waits that its bound counts, while servers pour data over every core. What
/// a server does here it does for ever, so a wait that is not bounded is told from one that is.
const WAKING: Duration = Duration::from_secs(2);

/// How long what is told of a server may be, in bytes.
const LONGEST_TEXT: usize = 5_000;

/// How long one round with changed replies takes.
const ROUND: Duration = Duration::from_millis(600);

/// By how much the process may grow, the server's own threads included.
const GROWTH_KB: u64 = 8 << 10;

fn elector(url: &str, group: &str) -> Elector {
    let store = RedisStore::open(url).expect("a good url");
    Elector::builder(store, group).ttl(TTL).wait(TTL).jitter(MS).start().expect("good options")
}

fn attacks() -> Vec<Attack> {
    let attack = |name, head: &str, then| Attack { name, head: head.to_owned(), then };
    let slow = Duration::from_millis(50);
    let huge_holder = HELD.replace("$3\r\nyou", &format!("$60000\r\n{}", "y".repeat(60_000)));
    vec![
        attack("an endless string", "$60000\r\n", Then::Pour("x")),
        attack("a string of a huge length", "$999999999\r\n", Then::Pour("x")),
        attack("a length without end", "$", Then::Pour("9")),
        attack("a huge array", "*999999999\r\n", Then::Pour(":1\r\n")),
        attack("arrays within arrays", "", Then::Pour("*1\r\n")),
        attack("maps within maps", "", Then::Pour("%1\r\n+k\r\n")),
        attack("a map as large as is read", "%10000\r\n", Then::Pour("+k\r\n+v\r\n")),
        attack("a line without end", "+", Then::Pour("x")),
        attack("endless pushes", "", Then::Pour(">2\r\n+a\r\n+b\r\n")),
        attack("endless attributes", "", Then::Pour("|1\r\n+k\r\n+v\r\n")),
        attack("endless errors", "", Then::Pour("-ERR no\r\n")),
        attack("endless long errors", "", Then::Make(|_, _| format!("-ERR {}\r\n", "no ".repeat(20_000)))),
        attack("endless numbers", "", Then::Pour(":1\r\n")),
        attack("endless nothing", "", Then::Pour("$0\r\n\r\n*0\r\n%0\r\n>0\r\n~0\r\n+\r\n_\r\n")),
        attack("empty lines", "", Then::Pour("\r\n")),
        attack("zeros", "", Then::Pour("\0")),
        attack("a streamed string", "$?\r\n", Then::Pour(";4\r\nabcd\r\n")),
        attack("a streamed array", "*?\r\n", Then::Pour(":1\r\n")),
        attack("another protocol", "HTTP/1.1 400 Bad Request\r\n\r\n", Then::Silence),
        attack("another node", "-MOVED 7 127.0.0.1:1\r\n", Then::Silence),
        attack("a proper reply and more", &format!("{HELD}garbage"), Then::Silence),
        attack("a proper reply for ever", "", Then::Pour(HELD)),
        attack("proper replies to what was not asked yet", &[HELLO, HELD, HELD].concat(), Then::Silence),
        attack("a proper reply with a huge holder", &huge_holder, Then::Silence),
        attack("nothing", "", Then::Silence),
        attack("one byte now and then", "", Then::Trickle("+", slow)),
        attack("a push now and then", "", Then::Trickle(">1\r\n+x\r\n", slow)),
        attack("an end", "", Then::Close),
        attack("an end within a reply", "%2\r\n$4\r\nmo", Then::Close),
        attack("messages on a huge channel", "", Then::Make(|_, made| message(&"c".repeat(60_000), made))),
        attack("endless wakes", "", Then::Make(message)),
    ]
}

/// A message that tells a channel that a token was released.
fn message(channel: &str, token: u64) -> String {
    let token = token.to_string();
    let head = format!(">3\r\n$7\r\nmessage\r\n${}\r\n{channel}\r\n", channel.len());
    format!("{head}${}\r\n{token}\r\n", token.len())
}

/// Endures one attack at one stage; what it may do to an elector is bounded. Returns how many bytes were sent.
fn endure(attack: &Attack, stage: Stage) -> u64 {
    let what = format!("{} at {stage:?}", attack.name);
    let server = Hostile::start(attack, stage);
    let elector = elector(&server.url(), &unique_group("hostile"));
    let unread = elector.events();
    thread::sleep(ENDURED);
    match stage {
        Stage::Renewal => {
            eventually(CAP, || match elector.status().counters {
                counters if counters.demotions > 0 => Ok(()),
                counters => Err(counters),
            });
        }
        _ => {
            assert!(!elector.is_leader(), "{what}");
            assert_eq!(elector.status().counters.promotions, 0, "{what}");
        }
    }
    let speaks = matches!(stage, Stage::Accepted | Stage::Greeting | Stage::Operation);
    if speaks && !attack.name.contains("proper") {
        eventually(CAP, || match elector.status().counters.errors {
            0 => Err(format!("{what}: no error was told")),
            errors => Ok(errors),
        });
    }
    let asked = Instant::now();
    let answer = elector.current_leader();
    // It may wait for an operation that is under way.
    assert!(asked.elapsed() <= CALL_LIMIT * 2 + WAKING, "{what}: {:?} {answer:?}", asked.elapsed());
    if let Err(error) = answer {
        assert_ne!(error.kind(), ErrorKind::Dead, "{what}: {error}");
    }
    let status = elector.status();
    let stopped = Instant::now();
    let outcome = elector.stop();
    let took = stopped.elapsed();
    assert!(took <= CALL_LIMIT * 2 + WAKING, "{what}: stop() took {took:?}");
    if let Err(error) = outcome {
        assert_ne!(error.kind(), ErrorKind::Dead, "{what}: {error}");
    }
    assert_eq!(elector.status().role, Role::Stopped, "{what}");
    let (attempts, connections) = (status.counters.attempts, server.connections());
    // Wakes are answered by an attempt, as fast as the server answers those.
    let bound = if attack.name == "endless wakes" { 1_000 } else { 100 };
    assert!(
        attempts <= bound && connections <= 100,
        "{what}: {attempts} attempts, {connections} connections"
    );
    for event in unread.try_iter() {
        let length = match event {
            Event::Error(error) => error.to_chain().len(),
            Event::LeaderChanged(Some(leader)) => leader.id.len(),
            _ => 0,
        };
        assert!(length < LONGEST_TEXT, "{what}: {length} bytes are kept of one event");
    }
    server.bytes()
}

#[test]
fn no_server_holds_an_elector_up_or_makes_it_grow_or_spin() {
    in_own_process("timing::hostile::no_server_holds_an_elector_up_or_makes_it_grow_or_spin", || {
        const STAGES: [Stage; 6] = [
            Stage::Accepted,
            Stage::Greeting,
            Stage::Operation,
            Stage::Renewal,
            Stage::Subscription,
            Stage::Listening,
        ];
        let mut before = None;
        for attack in &attacks() {
            let (during, sent) = thread::scope(|scope| {
                let enduring = STAGES.map(|stage| scope.spawn(move || endure(attack, stage)));
                // In the midst of it, when most is kept.
                thread::sleep(ENDURED * 2 / 3);
                let during = rss_kb(process::id());
                (during, enduring.into_iter().map(|it| it.join().expect("it endures")).sum::<u64>())
            });
            let after = rss_kb(process::id());
            let before = *before.get_or_insert(after);
            eprintln!(
                "{during} kB during {}, {after} kB after it; {} kB were sent",
                attack.name,
                sent / 1000
            );
            assert!(during.max(after) <= before + GROWTH_KB, "from {before} kB by {}", attack.name);
        }
    });
}

/// Two electors of one group, each behind a network that changes replies, while real ones say who may lead.
#[test]
fn replies_that_are_changed_on_the_way_make_no_second_leader_and_end_no_thread() {
    let server = Server::start();
    let rounds = cases(1).cases.div_ceil(32);
    let mut mangled = 0;
    for round in 0..rounds {
        let group = unique_group("mangled");
        let proxies = [Proxy::to(&server), Proxy::to(&server)];
        let electors = [0, 1].map(|side: usize| {
            proxies[side].mangle_replies(u64::from(round) * 2 + side as u64);
            elector(&proxies[side].url(), &group)
        });
        let from = Instant::now();
        while from.elapsed() < ROUND {
            for _ in 0..1_000 {
                // A proof that ends between the two looks was there at the first, so both stand at once.
                let leaderships = [0, 1].map(|side: usize| electors[side].leadership());
                if let [Some(one), Some(other)] = &leaderships {
                    let both = one.is_valid() && other.is_valid();
                    assert!(!both, "round {round}: {} and {} lead", one.token(), other.token());
                }
            }
            thread::sleep(MS / 4);
        }
        for (elector, proxy) in electors.iter().zip(&proxies) {
            let stopped = Instant::now();
            if let Err(error) = elector.stop() {
                assert_ne!(error.kind(), ErrorKind::Dead, "round {round}: {error}");
            }
            let took = stopped.elapsed();
            assert!(took <= CALL_LIMIT * 2 + WAKING, "round {round}: stop() took {took:?}");
            assert_eq!(elector.status().role, Role::Stopped, "round {round}");
            mangled += proxy.traffic().to_client.chunks;
        }
    }
    eprintln!("{rounds} rounds, {mangled} replies passed the changing hands");
    assert!(mangled > u64::from(rounds), "hardly anything was said");
}
