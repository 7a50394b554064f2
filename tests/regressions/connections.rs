//! Connections that break, hang or lead to the wrong server, and how often they are tried again.

use std::fs;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use taskrunner::election::{Elector, ErrorKind, Event, RenewError};

use super::{CAP, MS, Name, builder, follows, holder, leads, wait_for_errors};
use crate::support::{Admin, Proxy, Server, eventually, in_own_process, unique_group};

/// B63: the client stayed on the server that had been demoted, and every renewal failed until it was restarted.
#[test]
fn a_leader_whose_server_is_demoted_follows_the_name_to_the_new_one() {
    for serves_stale_data in ["yes", "no"] {
        let (old, new) = (Server::start(), Server::start());
        let name = Name::of(&old);
        let group = unique_group("failover");
        let start = || name.builder(&group).ttl(1500 * MS).wait(200 * MS).start().expect("good options");
        let electors = [start(), start()];
        let first = eventually(CAP, || electors.iter().find_map(Elector::leadership).ok_or("nobody leads"));
        // READONLY of the one, MASTERDOWN of the other; neither closes a connection that is there.
        old.command(&["CONFIG", "SET", "replica-serve-stale-data", serves_stale_data]);
        // The new one waits until its data has come, as in a failover, and knows nothing of the lease.
        name.move_to(&new);
        assert_eq!(old.command(&["REPLICAOF", "127.0.0.1", "1"]).text(), "OK");
        let second = eventually(CAP, || {
            let leading = electors.iter().find_map(Elector::leadership);
            leading.filter(|leadership| leadership.token() > first.token()).ok_or("nobody leads there")
        });
        // The new one does not know of the first term, which ends by its deadline.
        eventually(CAP, || if first.is_valid() { Err(first.remaining()) } else { Ok(()) });
        assert!(second.is_valid());
        let holder = holder(&mut new.admin(), electors[0].key());
        assert!(electors.iter().any(|elector| holder.as_deref() == Some(elector.id())), "{holder:?}");
        for elector in &electors {
            for error in elector.on_error().try_iter() {
                assert_eq!(error.kind(), ErrorKind::WrongNode, "{}", error.to_chain());
            }
        }
    }
}

/// B71: a connection that hangs blocked the loop for minutes, and was used again after it.
#[test]
fn whatever_hangs_is_left_for_a_new_connection_and_its_late_reply_is_nobodys() {
    for phase in ["handshake", "renewal", "attempt", "release"] {
        let server = Server::with(&["--requirepass", "secret"]);
        let mut admin = server.admin();
        admin.command(&["AUTH", "secret"]);
        let proxy = Proxy::to(&server);
        let url = proxy.url().replace("redis://", "redis://:secret@");
        if phase == "handshake" {
            proxy.hold();
        }
        let elector = builder(&url, &unique_group("hangs"))
            .ttl(1200 * MS)
            .wait(100 * MS)
            .start()
            .expect("good options");
        let old = if phase == "handshake" { 0 } else { leads(&elector).token() };
        match phase {
            // Executed, without a reply.
            "renewal" => proxy.hold_replies(),
            "attempt" => {
                admin.command(&["SET", elector.key(), "foreign"]);
                follows(&elector);
                proxy.hold();
                admin.command(&["DEL", elector.key()]);
            }
            "release" => {
                proxy.hold();
                elector.step_down(Duration::ZERO).ok(); // Whether it is given back in time is not the question.
            }
            _ => {}
        }
        let (connections, errors) = (proxy.traffic().connections, elector.status().counters.errors);
        wait_for_errors(&elector, errors + 4);
        assert!(!elector.is_leader(), "{phase}");
        proxy.pass();
        let new = leads(&elector).token();
        assert!(new > old, "{phase}");
        assert!(proxy.traffic().connections > connections, "{phase}: over a connection that hung");
        // Whatever still comes out of the proxy changes nothing.
        let renewals = elector.status().counters.renewals;
        eventually(CAP, || match elector.status() {
            status if status.token != Some(new) => panic!("{phase}: {status:?}"),
            status if status.counters.renewals > renewals + 2 => Ok(()),
            status => Err(format!("{status:?}")),
        });
    }
}

/// B76: a queue in the client kept what it could not send, and sent all of it after the reconnect.
#[test]
fn nothing_that_was_given_up_is_sent_when_the_server_is_back() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let elector = builder(&proxy.url(), &unique_group("queue"))
        .ttl(400 * MS)
        .wait(20 * MS)
        .start()
        .expect("good options");
    leads(&elector);
    proxy.refuse(true);
    proxy.reset_all();
    let before = elector.status().counters.attempts;
    eventually(CAP, || match elector.status().counters.attempts {
        attempts if attempts >= before + 10 => Ok(()),
        attempts => Err(attempts),
    });
    let mut monitor = server.admin_within(CAP);
    monitor.command(&["MONITOR"]);
    proxy.refuse(false);
    let token = leads(&elector).token().to_string();
    // What it sends, until it renews: an acquire ends with the number of the attempt, a renewal is of a token.
    let mut sent = Vec::new();
    loop {
        let line = monitor.read().expect("a renewal comes").text().to_owned();
        let words: Vec<_> = line.split("\" \"").map(|word| word.trim_end_matches('"').to_owned()).collect();
        match (line.contains("] \"EVAL\""), words.len()) {
            (true, 9) => sent.push(format!("attempt {}", words[8])),
            (true, 8) if words[6] == token => break,
            (true, _) => sent.push(words[5..].join(" ")),
            _ => {}
        }
    }
    let [only] = &sent[..] else { panic!("{sent:?}") };
    let attempt: u64 = only.strip_prefix("attempt ").and_then(|n| n.parse().ok()).expect("an attempt");
    assert!(attempt >= before + 10, "attempt {attempt} had been given up");
}

/// B79: one request that got no answer took all the time there was until the deadline.
#[test]
fn a_connection_that_stalls_leaves_time_for_a_renewal_over_a_new_one() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    // A renewal has a sixth of the ttl, and 4.5 s remain until the deadline when it is due.
    let elector = builder(&proxy.url(), &unique_group("stalls"))
        .ttl(10_000 * MS)
        .renew_error(RenewError::Retry)
        .start()
        .expect("good options");
    let (events, leadership) = (elector.events(), leads(&elector));
    let renewals = elector.status().counters.renewals;
    let connections = proxy.traffic().connections;
    proxy.hold();
    // The wake connection is not given up, for nobody expects anything of it.
    eventually(CAP, || match proxy.traffic().connections {
        now if now > connections => Ok(()),
        now => Err(now),
    });
    proxy.pass();
    eventually(CAP, || match elector.status().counters.renewals {
        now if now > renewals => Ok(()),
        now => Err(now),
    });
    assert!(leadership.is_valid());
    elector.stop().expect("released");
    let told: Vec<_> = events.iter().filter(|event| matches!(event, Event::Error(_))).collect();
    assert!(told.is_empty(), "{told:?}");
}

/// The processor time that this process has used, in hundredths of a second.
fn cpu_ticks() -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process::id())).expect("this process lives");
    // The name before the other fields may contain blanks; the two fields are the 14th and the 15th.
    let fields = stat.rsplit_once(')').expect("a name in parentheses").1;
    fields.split_whitespace().skip(11).take(2).map(|field| field.parse::<u64>().expect("a number")).sum()
}

/// B77, B81: a connection that never recovered, or an error path without a pause, ran in a hot loop.
#[test]
fn no_failure_makes_a_hot_loop_and_each_is_recovered_from() {
    in_own_process(
        "regressions::connections::no_failure_makes_a_hot_loop_and_each_is_recovered_from",
        || {
            const WAIT: Duration = Duration::from_millis(200);
            const TIME: Duration = Duration::from_secs(4);
            type Step = fn(&mut Admin, &Proxy, &str);
            let faults: [(&str, Step, Step); 6] = [
                ("refused", |_, proxy, _| proxy.refuse(true), |_, proxy, _| proxy.refuse(false)),
                (
                    "a key of the wrong type",
                    |admin, _, key| _ = admin.command(&["RPUSH", key, "x"]),
                    |admin, _, key| _ = admin.command(&["DEL", key]),
                ),
                (
                    "a right is missing",
                    |admin, _, _| _ = admin.command(&["ACL", "SETUSER", "default", "-eval"]),
                    |admin, _, _| _ = admin.command(&["ACL", "SETUSER", "default", "+@all"]),
                ),
                (
                    "a wrong password",
                    |admin, _, _| _ = admin.command(&["CONFIG", "SET", "requirepass", "secret"]),
                    |admin, _, _| _ = admin.command(&["CONFIG", "SET", "requirepass", ""]),
                ),
                (
                    "too many clients",
                    |admin, _, _| _ = admin.command(&["CONFIG", "SET", "maxclients", "1"]),
                    |admin, _, _| _ = admin.command(&["CONFIG", "SET", "maxclients", "100"]),
                ),
                ("a black hole", |_, proxy, _| proxy.hold(), |_, proxy, _| proxy.pass()),
            ];
            let scenes: Vec<_> = faults
                .iter()
                .map(|(name, begin, end)| {
                    let server = Server::start();
                    let (mut admin, proxy) = (server.admin(), Proxy::to(&server));
                    let build = |group| builder(&proxy.url(), group).ttl(1000 * MS).wait(WAIT);
                    let group = unique_group("hot-loop");
                    let key = build(&group).start().expect("good options").key().to_owned();
                    begin(&mut admin, &proxy, &key);
                    let elector = build(&group).start().expect("good options");
                    (name, end, server, admin, proxy, key, elector)
                })
                .collect();
            for (name, .., elector) in &scenes {
                wait_for_errors(elector, 2);
                assert!(!elector.is_leader(), "{name}");
            }
            let counts = || -> Vec<_> {
                let count = |(.., proxy, _, elector): &(_, _, Server, Admin, Proxy, String, Elector)| {
                    (elector.status().counters.attempts, proxy.traffic().connections)
                };
                scenes.iter().map(count).collect()
            };
            let (from, before, ticks) = (Instant::now(), counts(), cpu_ticks());
            thread::sleep(TIME);
            let (after, ticks, took) = (counts(), cpu_ticks() - ticks, from.elapsed());
            // Full jitter makes a pause half as long on the average, and sometimes very short.
            let most = (took.as_millis() / WAIT.as_millis()) as u64 * 4 + 10;
            for ((before, after), (name, ..)) in before.iter().zip(&after).zip(&scenes) {
                let attempts = after.0 - before.0;
                assert!((1..=most).contains(&attempts), "{name}: {attempts} attempts in {took:?}");
                // The wakes' connection is tried for itself.
                let connections = after.1 - before.1;
                assert!(connections <= 2 * most, "{name}: {connections} connections in {took:?}");
            }
            // Of all six together, with the proxies that they use; a loop without a pause takes all there is.
            assert!(ticks < 100, "{ticks} hundredths of a second of the processor in {took:?}");
            for (name, end, _server, mut admin, proxy, key, elector) in scenes {
                end(&mut admin, &proxy, &key);
                let led = elector.wait_for_leadership(CAP);
                led.unwrap_or_else(|error| panic!("{name}: {}", error.to_chain()));
            }
        },
    );
}
