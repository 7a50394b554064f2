//! Errors of renewals and attempts: what they end, and what goes on after them.

use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use taskrunner::election::{Elector, ErrorKind, Event, Operation, Reason, RenewError, Role};

use super::{CAP, MS, builder, follows, renews};
use crate::support::process::thread_names;
use crate::support::{Reply, Server, eventually, in_own_process, unique_group};

/// B15: after its lease had lapsed an elector told its owner for ever that it led, and contended no more.
#[test]
fn a_lone_instance_leads_again_after_its_server_was_gone_or_stood_still_for_three_ttls() {
    let mut server = Server::start();
    let ttl = 300 * MS;
    for policy in [RenewError::Demote, RenewError::Retry] {
        let group = unique_group("away");
        let lone = builder(&server.url(), &group).ttl(ttl).wait(ttl).renew_error(policy).start();
        let lone = lone.expect("good options");
        for freezes in [false, true] {
            let before = lone.wait_for_leadership(CAP).expect("leads");
            let events = lone.events();
            if freezes {
                server.freeze();
            } else {
                server.kill();
            }
            thread::sleep(3 * ttl);
            assert!(!lone.is_leader() && !before.is_valid());
            if freezes {
                server.thaw();
            } else {
                server.restart();
            }
            let mut told = Vec::new();
            let after = loop {
                match events.recv_timeout(CAP).expect("something is told") {
                    // A subscription begins with the present state.
                    Event::Promoted(now) if now.token() > before.token() => break now,
                    Event::Demoted(demotion) => told.push(demotion.token),
                    _ => {}
                }
            };
            assert_eq!(told, [before.token()], "{policy:?}: one end of one term");
            renews(&lone, 2);
            assert!(after.token() > before.token());
        }
        lone.stop().expect("the server answers");
    }
}

/// B16: one failure, and nobody led any more; each of them left a thread behind.
#[test]
fn after_each_of_twenty_freezes_one_of_three_leads_and_there_are_no_more_threads() {
    in_own_process(
        "regressions::errors::after_each_of_twenty_freezes_one_of_three_leads_and_there_are_no_more_threads",
        || {
            let server = Server::start();
            let (group, ttl) = (unique_group("freezes"), 100 * MS);
            let electors =
                [(); 3].map(|()| builder(&server.url(), &group).ttl(ttl).wait(ttl).start().expect("good"));
            let leader = |after: u64| {
                eventually(CAP, || {
                    let all: Vec<_> = electors.iter().filter_map(Elector::leadership).collect();
                    match &all[..] {
                        [one] if one.token() > after => Ok(one.token()),
                        other => Err(format!("{other:?}")),
                    }
                })
            };
            let mut token = leader(0);
            let threads = thread_names(process::id());
            for _ in 0..20 {
                server.freeze();
                thread::sleep(2 * ttl);
                assert!(electors.iter().all(|elector| !elector.is_leader()), "nobody can prove it");
                server.thaw();
                token = leader(token);
            }
            eventually(CAP, || match thread_names(process::id()) {
                now if now == threads => Ok(()),
                now => Err(now),
            });
            for elector in &electors {
                elector.stop().expect("the server answers");
            }
        },
    );
}

/// B19: an elector that could not reach its server went on as if it led.
#[test]
fn an_instance_whose_server_is_down_at_its_start_says_so_and_leads_once_the_server_is_up() {
    let mut server = Server::start();
    let (group, url) = (unique_group("down"), server.url());
    server.kill();
    let elector = builder(&url, &group).wait(100 * MS).start().expect("the start does no I/O");
    for _ in 0..3 {
        let error = elector.on_error().recv_timeout(CAP).expect("an error is told");
        assert_eq!((error.kind(), error.operation()), (ErrorKind::Passing, Some(Operation::Connect)));
        assert!(!elector.is_leader() && elector.leadership().is_none());
    }
    assert_eq!(elector.status().role, Role::Follower);
    server.restart();
    elector.wait_for_leadership(CAP).expect("leads");
}

/// B25: a leader whose every renewal was refused kept its state, and there were two for good.
#[test]
fn a_leader_that_loses_the_right_to_renew_ends_in_time_and_follows_once_it_has_it_back() {
    // With the first, a slow machine may come to its deadline before the error.
    for (policy, reasons) in [
        (RenewError::Demote, &[Reason::RenewError, Reason::Expired][..]),
        (RenewError::Retry, &[Reason::Expired]),
    ] {
        let server = Server::start();
        let mut admin = server.admin();
        admin.command(&["ACL", "SETUSER", "svc", "on", ">pw", "~*", "&*", "+@all"]);
        let (group, ttl) = (unique_group("renew-right"), 1500 * MS);
        let start = |url: &str| {
            let builder = builder(url, &group).ttl(ttl).wait(200 * MS).renew_error(policy);
            builder.start().expect("good options")
        };
        let limited = start(&server.url().replace("redis://", "redis://svc:pw@"));
        let before = limited.wait_for_leadership(CAP).expect("leads");
        let other = start(&server.url());
        follows(&other);
        let demotions = limited.on_demote();
        let rights = admin.command(&["ACL", "SETUSER", "svc", "-eval", "-evalsha"]);
        assert_eq!(rights, Reply::Text("OK".to_owned()));
        let after = other.wait_for_leadership(CAP).expect("the lease ends");
        assert!(after.token() > before.token());
        assert!(!limited.is_leader() && !before.is_valid(), "{policy:?}: there are two");
        let demotion = demotions.recv_timeout(CAP).expect("the term has ended");
        assert_eq!(demotion.token, before.token(), "{policy:?}");
        assert!(reasons.contains(&demotion.reason), "{policy:?}: {demotion:?}");
        let errors = limited.on_error();
        let mut told = std::iter::repeat_with(|| errors.recv_timeout(CAP).expect("the reason is told"));
        let refused = told.find(|error| error.kind() == ErrorKind::Configuration).expect("it has no end");
        assert!(refused.to_chain().contains("ermission"), "{}", refused.to_chain());

        admin.command(&["ACL", "SETUSER", "svc", "+eval"]);
        eventually(CAP, || match limited.status().leader {
            Some(leader) if leader.id == other.id() => Ok(()),
            leader => Err(leader),
        });
        renews(&other, 1);
        assert!(after.is_valid() && !limited.is_leader());
        assert_eq!(limited.status().role, Role::Follower);
    }
}

/// B61: once the server had forgotten its scripts, nothing worked until a restart of the client.
#[test]
fn a_server_that_forgets_its_scripts_all_the_time_costs_nothing() {
    let mut server = Server::start();
    let elector = builder(&server.url(), &unique_group("flush")).ttl(2000 * MS).start();
    let elector = elector.expect("good options");
    let leadership = elector.wait_for_leadership(CAP).expect("leads");
    let is_over = AtomicBool::new(false);
    let mut admin = server.admin();
    thread::scope(|scope| {
        let flushing = scope.spawn(|| {
            let (mut flushes, from) = (0, Instant::now());
            // Not for ever, also where the test fails meanwhile.
            while !is_over.load(Ordering::Relaxed) && from.elapsed() < 2 * CAP {
                assert_eq!(admin.command(&["SCRIPT", "FLUSH"]).text(), "OK");
                flushes += 1;
                thread::sleep(MS);
            }
            flushes
        });
        renews(&elector, 3);
        assert!(leadership.is_valid());
        elector.step_down(200 * MS).expect("released");
        is_over.store(true, Ordering::Relaxed);
        assert!(flushing.join().expect("no panic") > 100);
    });
    assert!(elector.on_error().is_empty());
    assert_eq!(elector.on_demote().try_recv().expect("the one asked for").reason, Reason::SteppedDown);
    server.restart();
    elector.wait_for_leadership(CAP).expect("leads on a server that knows no script");
    elector.stop().expect("released");
}
