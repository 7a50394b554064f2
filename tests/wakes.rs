//! Wakes and hooks on a real server: whatever happens to the wake connection, takeover is no later than without it,
//! and whatever a hook does, the lease is renewed.

use std::process;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{bounded, unbounded};
use taskrunner::election::{
    Builder, Elector, ErrorKind, Event, Leadership, Operation, Reason, RedisStore, Role,
};

use crate::support::process::thread_names;
use crate::support::{Admin, Campaign, Flow, Proxy, Reply, Server, eventually, in_own_process, unique_group};

/// Long enough for anything that happens at all.
const CAP: Duration = Duration::from_secs(20);
const MS: Duration = Duration::from_millis(1);

/// A lease that neither ends nor is renewed within [`CAP`]: what happens has another reason.
const LONG: Duration = Duration::from_secs(60);

/// What a takeover may take beside the times that are counted, on a machine that is busy with other tests.
const SLACK: Duration = Duration::from_secs(1);

/// The default.
const JITTER: Duration = Duration::from_millis(5);

/// An elector that does nothing of its own accord for longer than [`CAP`], once it leads or follows.
fn builder(url: &str, group: &str) -> Builder {
    Elector::builder(RedisStore::open(url).expect("a good url"), group).ttl(LONG).wait(2 * LONG)
}

fn leads(elector: &Elector) -> Leadership {
    elector.wait_for_leadership(CAP).expect("leads")
}

/// Waits until the elector's attempt has been answered by another one's name.
fn follows(elector: &Elector) {
    eventually(CAP, || match elector.status().leader {
        Some(leader) if leader.id != elector.id() => Ok(()),
        leader => Err(leader),
    });
}

/// Waits until so many connections are subscribed to the wakes of the group.
#[track_caller]
fn expect_listeners(admin: &mut Admin, key: &str, count: i64) {
    let channel = format!("{key}:wake");
    eventually(CAP, || match admin.command(&["PUBSUB", "NUMSUB", &channel]).list()[1].int() {
        listeners if listeners == count => Ok(()),
        listeners => Err(listeners),
    });
}

/// Waits until a follower that is subscribed has asked once more for what it may have missed before: it does so right
/// after. If it was subscribed before its first attempt, it has nothing to ask, and nothing tells of that.
fn settles(follower: &Elector) {
    let until = Instant::now() + SLACK;
    while follower.status().counters.attempts < 2 && Instant::now() < until {
        thread::sleep(MS);
    }
    // Its questions are answered one after the other.
    follower.current_leader().expect("the server answers");
}

/// How often somebody asked to be subscribed, refused or not.
fn subscribes(admin: &mut Admin) -> u64 {
    let info = admin.command(&["INFO", "commandstats"]);
    let line = info.text().lines().find_map(|line| line.strip_prefix("cmdstat_subscribe:"));
    let counts = line.unwrap_or_default().split(',').filter_map(|field| field.split_once('='));
    let counts = counts.filter(|(name, _)| matches!(*name, "calls" | "rejected_calls"));
    counts.map(|(_, count)| count.parse::<u64>().expect("a number")).sum()
}

/// A user who has every right but to the wake channels, and its URL.
fn deaf_and_mute(server: &Server) -> String {
    server.command(&["ACL", "SETUSER", "deaf", "on", ">pass", "~*", "resetchannels", "+@all"]);
    server.url().replace("redis://", "redis://deaf:pass@")
}

#[track_caller]
fn expect_told_of_the_missing_right(elector: &Elector) {
    let error = elector.on_error().recv_timeout(CAP).expect("it is told");
    let told = (error.operation(), error.kind());
    assert_eq!(told, (Some(Operation::Wake), ErrorKind::Configuration), "{}", error.to_chain());
}

#[test]
fn without_the_right_to_the_channel_a_takeover_is_no_later_than_the_leases_end_and_the_error_is_told() {
    const TTL: Duration = Duration::from_secs(2);

    let server = Server::start();
    let [heard, deaf] = [server.url(), deaf_and_mute(&server)];
    let take_over = |leader_url: &str, follower_url: &str| {
        let group = unique_group("no-right");
        // The wait is too long to be what brings the takeover.
        let start = |url: &str| builder(url, &group).ttl(TTL).start().expect("good options");
        let leader = start(leader_url);
        let token = leads(&leader).token();
        let follower = start(follower_url);
        follows(&follower);
        for (elector, url) in [(&leader, leader_url), (&follower, follower_url)] {
            if url == deaf {
                expect_told_of_the_missing_right(elector);
            }
        }
        leader.stop().expect("a release needs no right to the channel");
        // The last renewal was sent before the stop.
        let next = follower.wait_for_leadership(TTL + JITTER + SLACK).expect("leads at the lease's end");
        assert!(next.token() > token);
        assert_eq!(follower.status().counters.wakes, 0);
    };
    thread::scope(|scope| {
        scope.spawn(|| take_over(&deaf, &heard));
        scope.spawn(|| take_over(&heard, &deaf));
        scope.spawn(|| take_over(&deaf, &deaf));
    });
}

#[test]
fn a_subscription_that_is_refused_is_asked_for_once_per_wait_and_made_once_it_is_allowed() {
    const WAIT: Duration = Duration::from_millis(500);
    const WAITS: u32 = 4;

    let server = Server::start();
    let mut admin = server.admin();
    let group = unique_group("refused");
    let elector = builder(&deaf_and_mute(&server), &group).wait(WAIT).start().expect("good options");
    leads(&elector);
    expect_told_of_the_missing_right(&elector);
    let before = subscribes(&mut admin);
    // Not a wait for anything: the time over which is counted.
    thread::sleep(WAIT * WAITS);
    let asked = subscribes(&mut admin) - before;
    // On a busy machine both this wait and those between are longer; the one more is at the edge.
    assert!((1..=u64::from(2 * WAITS) + 1).contains(&asked), "asked {asked} times in {WAITS} waits");
    assert!(elector.is_leader());
    server.command(&["ACL", "SETUSER", "deaf", "&taskrunner:leader:*"]);
    expect_listeners(&mut admin, elector.key(), 1);
}

#[test]
fn a_wake_that_is_lost_costs_no_more_than_the_rest_of_the_lease() {
    const TTL: Duration = Duration::from_secs(2);

    let server = Server::start();
    let mut admin = server.admin();
    admin.command(&["ACL", "SETUSER", "ear", "on", ">pass", "~*", "allchannels", "+@all"]);
    let url = server.url().replace("redis://", "redis://ear:pass@");
    for for_good in [false, true] {
        let group = unique_group("lost-wake");
        let leader = builder(&server.url(), &group).ttl(TTL).start().expect("good options");
        let token = leads(&leader).token();
        let follower = builder(&url, &group).ttl(TTL).start().expect("good options");
        follows(&follower);
        expect_listeners(&mut admin, leader.key(), 2);
        if for_good {
            // The server closes the connections of a user that lose a right, and lets no new one subscribe.
            admin.command(&["ACL", "SETUSER", "ear", "resetchannels"]);
            expect_listeners(&mut admin, leader.key(), 1);
        } else {
            let killed = admin.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).int();
            assert_eq!(killed, 2, "the leader's and the follower's wake connection");
        }
        leader.stop().expect("the server answers");
        let next = follower.wait_for_leadership(TTL + JITTER + SLACK).expect("leads at the lease's end");
        assert!(next.token() > token);
        if for_good {
            expect_told_of_the_missing_right(&follower);
            assert_eq!(follower.status().counters.wakes, 0);
        }
    }
}

#[test]
fn a_follower_that_stands_still_holds_nobody_up_and_believes_no_old_wake() {
    let server = Server::start();
    let mut admin = server.admin();
    let group = unique_group("frozen-follower");
    let args = ["--ttl", "60s", "--wait", "120s"];
    let start = |name: &str| Campaign::start(&group, &server.url(), &args).named(name);
    let mut leader = start("leader");
    let first = leader.wait_event(0, "promoted", CAP).number("token");
    let [frozen, healthy] = [start("frozen"), start("healthy")];
    for follower in [&frozen, &healthy] {
        follower.wait_for(|line| line.is("leader") && line.token() == Some(first), CAP);
    }
    let key = leader.wait_event(0, "started", CAP).text("key").to_owned();
    expect_listeners(&mut admin, &key, 3);
    frozen.freeze();
    leader.terminate();
    assert_eq!(leader.wait_exit(CAP).code(), Some(0));
    // The lease would last for much longer than the cap: it was the wake.
    let second = healthy.wait_event(0, "promoted", CAP).number("token");
    assert!(second > first);
    frozen.thaw();
    // It asks because of the wake that it had slept through, and hears that another one was faster.
    frozen.wait_for(|line| line.is("leader") && line.token() == Some(second), CAP);
    assert!(
        frozen.events().iter().all(|line| !line.is("promoted") && !line.is("error")),
        "{:?}",
        frozen.events()
    );
    assert!(healthy.events().iter().all(|line| !line.is("demoted")), "{:?}", healthy.events());
}

#[test]
fn a_wake_for_another_group_wakes_nobody_here() {
    let server = Server::start();
    let mut admin = server.admin();
    let mut pair = |name: &str| {
        let group = unique_group(name);
        let leader = builder(&server.url(), &group).start().expect("good options");
        leads(&leader);
        let follower = builder(&server.url(), &group).start().expect("good options");
        follows(&follower);
        expect_listeners(&mut admin, leader.key(), 2);
        (leader, follower)
    };
    let ((ours, follower), (theirs, other)) = (pair("ours"), pair("theirs"));
    theirs.stop().expect("the server answers");
    leads(&other);
    // One at the start, and one when wakes are first heard.
    const OWN: u64 = 2;
    let counters = follower.status().counters;
    assert!(counters.wakes == 0 && counters.attempts <= OWN, "{counters:?}");
    ours.stop().expect("the server answers");
    leads(&follower);
    let counters = follower.status().counters;
    // Had it heard the other one late, it would have counted it by now: the connection keeps the order.
    assert!(counters.wakes == 1 && counters.attempts <= OWN + 1, "{counters:?}");
}

#[test]
fn what_anybody_publishes_on_the_channel_costs_an_attempt_at_most_and_never_raises_a_token() {
    /// The largest token there is.
    const HUGE: &str = "9007199254740990";

    let server = Server::start();
    let mut admin = server.admin();
    let group = unique_group("garbage");
    let leader = builder(&server.url(), &group).start().expect("good options");
    let first = leads(&leader).token();
    let follower = builder(&server.url(), &group).start().expect("good options");
    follows(&follower);
    expect_listeners(&mut admin, leader.key(), 2);
    let channel = format!("{}:wake", leader.key());
    let mut publish = |payload: &str| {
        assert_eq!(admin.command(&["PUBLISH", &channel, payload]), Reply::Int(2), "{payload:?}");
    };
    let nines = "9".repeat(400);
    for payload in ["", "garbage", "-1", "1.5", "1e15", " 1", "9007199254740991", &nines, "{\"token\":1}"] {
        publish(payload);
    }
    publish(HUGE);
    eventually(CAP, || match follower.status().counters {
        counters if matches!((counters.wakes, counters.attempts), (1, 2 | 3)) => Ok(()),
        counters => Err(counters),
    });
    assert!(leader.is_leader(), "the leader has nothing to do with it");
    // The leader's own token says nothing that a follower of it does not know, and is no harm.
    publish(&first.to_string());
    eventually(CAP, || match follower.status().counters {
        counters if matches!((counters.wakes, counters.attempts), (2, 3 | 4)) => Ok(()),
        counters => Err(counters),
    });
    leader.stop().expect("the server answers");
    let next = leads(&follower).token();
    // A token is the time in microseconds where nothing larger is known.
    assert!(next > first && next < first + 3_600_000_000, "{next} after {first}");
    assert!(follower.on_error().is_empty());
}

/// A lease that is renewed in time 5 s after the last renewal.
const RENEWED: Duration = Duration::from_secs(10);

/// What shows that a renewal was not the one in time, which is 4 s away when the wake connection is lost.
const EARLY: Duration = Duration::from_secs(3);

/// Waits until the last renewal is long enough ago for another one before its time: a tenth of the ttl.
#[track_caller]
fn expect_long_renewed(leader: &Elector) {
    eventually(CAP, || match leader.status().renewed_at {
        Some(at) if at.elapsed() > RENEWED / 10 => Ok(()),
        at => Err(at),
    });
}

#[test]
fn the_loss_of_the_wake_connection_makes_the_leader_renew_at_once_and_changes_nothing_else() {
    let server = Server::start();
    let mut admin = server.admin();
    let leader = builder(&server.url(), &unique_group("renews")).ttl(RENEWED).start().expect("good options");
    let leadership = leads(&leader);
    let events = leader.events();
    assert!(matches!(events.recv_timeout(CAP), Ok(Event::Promoted(_))));
    assert!(matches!(events.recv_timeout(CAP), Ok(Event::LeaderChanged(Some(_)))));
    for _ in 0..3 {
        expect_listeners(&mut admin, leader.key(), 1);
        expect_long_renewed(&leader);
        let before = leader.status().counters.renewals;
        let killed = admin.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).int();
        assert_eq!(killed, 1, "the wake connection");
        eventually(EARLY, || match leader.status().counters.renewals {
            renewals if renewals > before => Ok(()),
            renewals => Err(renewals),
        });
        assert!(leadership.is_valid());
    }
    assert!(events.try_recv().is_err() && leader.on_error().is_empty(), "nobody is told of it");
}

#[test]
fn a_leader_whose_server_was_emptied_hears_of_it_by_the_wake_connection() {
    let mut server = Server::start();
    let leader = builder(&server.url(), &unique_group("emptied")).ttl(RENEWED).start().expect("good options");
    let first = leads(&leader);
    expect_listeners(&mut server.admin(), leader.key(), 1);
    expect_long_renewed(&leader);
    let demotions = leader.on_demote();
    // So fast that the first question, at the loss, may find nobody to answer it.
    server.restart();
    let demotion = demotions.recv_timeout(EARLY).expect("the lease is gone");
    assert_eq!((demotion.token, demotion.reason), (first.token(), Reason::Lost));
    assert!(!first.is_valid());
    assert!(leads(&leader).token() > first.token(), "tokens grow also over a loss of all data");
}

#[test]
fn a_wake_connection_that_brings_nothing_is_made_anew_when_the_holder_changed_without_a_wake() {
    const TTL: Duration = Duration::from_secs(4);

    let server = Server::start();
    let mut admin = server.admin();
    let proxy = Proxy::to(&server);
    let group = unique_group("half-open");
    let first = builder(&server.url(), &group).ttl(TTL).start().expect("good options");
    leads(&first);
    let follower = builder(&proxy.url(), &group).start().expect("good options");
    follows(&follower);
    let second = builder(&server.url(), &group).start().expect("good options");
    follows(&second);
    expect_listeners(&mut admin, first.key(), 3);
    settles(&follower);
    // The follower asks again when the lease would have ended, which leaves it idle for two seconds.
    let before = proxy.traffic();
    proxy.set(Flow::Pass, Flow::Discard);
    first.stop().expect("the server answers");
    let token = leads(&second).token();
    let swallowed = proxy.traffic();
    assert!(swallowed.to_client.bytes > before.to_client.bytes, "the wake came to the proxy");
    assert_eq!(swallowed.connections, before.connections);
    proxy.pass();
    eventually(CAP, || match proxy.traffic().connections {
        connections if connections == before.connections + 1 => Ok(()),
        connections => Err(connections),
    });
    assert_eq!(follower.status().leader.and_then(|leader| leader.token), Some(token));
    assert_eq!(follower.status().counters.wakes, 0);
    expect_listeners(&mut admin, first.key(), 2);
    // This lease lasts for longer than the cap, so it is by the new connection that the follower hears: of the release
    // itself, or, where the server still counts the old connection, by asking as soon as it listens.
    second.stop().expect("the server answers");
    assert!(leads(&follower).token() > token);
    assert!(follower.status().counters.wakes <= 1);
}

/// The threads of electors in this process.
fn our_threads() -> Vec<String> {
    thread_names(process::id()).into_iter().filter(|name| name.starts_with("tr-")).collect()
}

#[test]
fn a_stop_does_not_wait_for_a_wake_connection_that_is_stuck_in_dialling() {
    // Of its own, for it counts threads.
    let test = "wakes::a_stop_does_not_wait_for_a_wake_connection_that_is_stuck_in_dialling";
    in_own_process(test, || {
        let server = Server::start();
        let mut admin = server.admin();
        let proxy = Proxy::to(&server);
        let group = unique_group("stuck");
        let leader = builder(&server.url(), &group).start().expect("good options");
        leads(&leader);
        let follower = builder(&proxy.url(), &group).start().expect("good options");
        follows(&follower);
        expect_listeners(&mut admin, leader.key(), 2);
        settles(&follower);
        let before = proxy.traffic().connections;
        // The follower has nothing to ask for, so what it dials now is the wake connection.
        proxy.hold();
        proxy.reset_all();
        eventually(CAP, || match proxy.traffic() {
            traffic if traffic.connections > before && traffic.open > 0 => Ok(()),
            traffic => Err(traffic),
        });
        let from = Instant::now();
        follower.stop().expect("there is nothing to release");
        let took = from.elapsed();
        // Dialling by itself would go on for 2 s.
        assert!(took < SLACK, "stop() took {took:?}");
        leader.stop().expect("the server answers");
        eventually(CAP, || match our_threads() {
            threads if threads.is_empty() => Ok(()),
            threads => Err(threads),
        });
    });
}

#[test]
fn a_stopped_elector_leaves_no_wake_connection_behind() {
    let server = Server::start();
    let mut admin = server.admin();
    let group = unique_group("leaves");
    let start = || builder(&server.url(), &group).start().expect("good options");
    let leader = start();
    leads(&leader);
    let follower = start();
    follows(&follower);
    expect_listeners(&mut admin, leader.key(), 2);
    for elector in [&follower, &leader] {
        elector.stop().expect("the server answers");
    }
    // And one that is stopped while it may be connecting.
    start().stop().expect("the server answers");
    eventually(CAP, || match admin.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).text() {
        "" => Ok(()),
        clients => Err(clients.to_owned()),
    });
}

/// Looks at the lease for two and a half ttls while a hook is at its worst: it must be renewed throughout.
#[track_caller]
fn expect_renewed_throughout(admin: &mut Admin, elector: &Elector, ttl: Duration) {
    let from = Instant::now();
    let mut least = i64::MAX;
    while from.elapsed() < ttl * 5 / 2 {
        assert_eq!(admin.command(&["GET", elector.key()]).text(), elector.id());
        least = least.min(admin.command(&["PTTL", elector.key()]).int());
        assert!(elector.is_leader());
        thread::sleep(10 * MS);
    }
    // It is renewed when a half is left; a quarter is for a machine that is busy with other tests.
    let bound = i64::try_from((ttl / 4).as_millis()).expect("a short time");
    assert!(least > bound, "{least} ms were left of the lease once");
}

#[test]
fn a_hook_that_sleeps_panics_or_blocks_for_ever_changes_nothing_for_the_lease() {
    const TTL: Duration = Duration::from_secs(2);

    let server = Server::start();
    let (unblock, blocked) = bounded::<()>(0);
    let start = |hook: Box<dyn FnMut(Leadership) + Send>| {
        let group = unique_group("hooks");
        let elector = builder(&server.url(), &group).ttl(TTL).on_promote(hook).start().expect("good options");
        leads(&elector);
        elector
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let elector = start(Box::new(|_| thread::sleep(TTL * 2)));
            let mut admin = server.admin();
            expect_renewed_throughout(&mut admin, &elector, TTL);
            elector.stop().expect("the hook has returned by now");
            assert_eq!(admin.command(&["EXISTS", elector.key()]), Reply::Int(0), "released");
        });
        scope.spawn(|| {
            let elector = start(Box::new(|_| panic!("as planned")));
            expect_renewed_throughout(&mut server.admin(), &elector, TTL);
            // Told, and called again in the next term.
            for _ in 0..2 {
                let error = elector.on_error().recv_timeout(CAP).expect("the panic is told");
                assert_eq!(error.kind(), ErrorKind::Panicked, "{}", error.to_chain());
                elector.step_down(Duration::ZERO).expect("released");
                leads(&elector);
            }
            elector.stop().expect("released");
        });
        scope.spawn(|| {
            let elector = start(Box::new(move |_| _ = blocked.recv()));
            let mut admin = server.admin();
            expect_renewed_throughout(&mut admin, &elector, TTL);
            // Every method still answers.
            let token = elector.leadership().expect("leads").token();
            assert_eq!((elector.status().role, elector.status().token), (Role::Leader, Some(token)));
            let told = elector.current_leader().expect("the server answers").leader.expect("this one");
            assert_eq!((told.id.as_str(), told.token), (elector.id(), Some(token)));
            assert!(matches!(elector.events().recv_timeout(CAP), Ok(Event::Promoted(_))));
            elector.step_down(LONG).expect("released");
            assert_eq!(admin.command(&["EXISTS", elector.key()]), Reply::Int(0), "released");
            assert_eq!(elector.stop().expect_err("the hook blocks").kind(), ErrorKind::Overrun);
            drop(unblock);
            eventually(CAP, || elector.stop().map_err(|error| error.to_chain()));
        });
    });
}

#[test]
fn a_hook_that_stops_its_elector_returns_and_the_lease_is_released() {
    let server = Server::start();
    let mut admin = server.admin();
    let cell: Arc<OnceLock<Elector>> = Arc::default();
    let (told, tells) = unbounded();
    let of_hook = Arc::clone(&cell);
    let elector = builder(&server.url(), &unique_group("stops"))
        .on_promote(move |leadership| {
            let outcome = of_hook.wait().stop();
            told.send((outcome.map_err(|error| error.to_chain()), leadership.is_valid())).expect("kept");
        })
        .start()
        .expect("good options");
    let elector = cell.get_or_init(|| elector);
    assert_eq!(tells.recv_timeout(CAP), Ok((Ok(()), false)));
    assert_eq!(admin.command(&["EXISTS", elector.key()]), Reply::Int(0), "released");
    assert_eq!(elector.status().role, Role::Stopped);
    elector.stop().expect("its threads have ended");
}

#[test]
fn hooks_that_fell_far_behind_go_on_with_the_present_state() {
    let server = Server::start();
    let (unblock, blocked) = bounded::<()>(0);
    let (told, tells) = unbounded();
    let demoted = told.clone();
    let elector = builder(&server.url(), &unique_group("behind"))
        .jitter(Duration::ZERO)
        .on_promote(move |leadership| {
            told.send(("promoted", leadership.token())).expect("kept");
            blocked.recv().ok();
        })
        .on_demote(move |demotion| demoted.send(("demoted", demotion.token)).expect("kept"))
        .start()
        .expect("good options");
    // Each term is three events or more, of which 256 are kept.
    for _ in 0..200 {
        leads(&elector);
        elector.step_down(Duration::ZERO).expect("the server answers");
    }
    let last = leads(&elector).token();
    drop(unblock);
    let mut seen = Vec::new();
    while seen.last() != Some(&("promoted", last)) {
        seen.push(tells.recv_timeout(CAP).expect("the present state"));
    }
    elector.stop().expect("the hooks have returned");
    seen.extend(tells.iter());
    assert_eq!(seen.last(), Some(&("demoted", last)));
    assert!(seen.len() < 400, "nothing was missed");
    // No term is told twice, and none out of turn; what was missed may be an end.
    let is_in_turn = |one: &(&str, u64), next: &(&str, u64)| match next.0 {
        "promoted" => one.1 < next.1,
        _ => one.0 == "promoted" && one.1 <= next.1,
    };
    assert!(seen.is_sorted_by(is_in_turn), "{seen:?}");
}
