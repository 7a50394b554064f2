//! What is left behind: in the process, and on the server.

#![allow(clippy::print_stderr, reason = "a test that measures shows its figures")]

use std::process;
use std::thread;
use std::time::Duration;

use taskrunner::election::{Elector, ErrorKind, Event, MemoryStore, Reason, RedisStore, inspect};

use super::{CAP, MS, builder, leads, next};
use crate::support::process::{fd_count, rss_kb, thread_names};
use crate::support::{Proxy, Reply, Server, eventually, in_own_process, unique_group};

/// How many descriptors and threads this process has.
fn counts() -> (usize, usize) {
    (fd_count(process::id()), thread_names(process::id()).len())
}

/// Waits until as many descriptors and threads are there as were before.
#[track_caller]
fn expect_flat(what: &str, before: (usize, usize)) {
    // The kernel lists a thread for a moment after it was joined.
    eventually(CAP, || match counts() {
        now if now == before => Ok(()),
        now => Err(format!("{what}: {now:?} descriptors and threads, {before:?} before")),
    });
}

/// B91: each lease that was lost and won again left something behind.
#[test]
fn two_thousand_lost_leases_leave_no_thread_no_descriptor_and_no_memory() {
    in_own_process(
        "regressions::leaks::two_thousand_lost_leases_leave_no_thread_no_descriptor_and_no_memory",
        || {
            const SIDE_BY_SIDE: usize = 20;
            const EACH: usize = 100;
            /// `tr-driver`, `tr-io`, `tr-wake`, and `tr-lead` while it leads.
            const THREADS: usize = 4;
            let server = Server::start();
            let (_, others) = counts();
            let electors: Vec<_> = (0..SIDE_BY_SIDE)
                .map(|_| {
                    let group = unique_group("lost");
                    // Its lead work begins and ends with each term, on a thread of its own.
                    let start = builder(&server.url(), &group).ttl(100 * MS).wait(20 * MS).lead_grace(CAP);
                    start.lead(|leadership| _ = leadership.lost().recv()).start().expect("good options")
                })
                .collect();
            let lose = |times: usize| {
                thread::scope(|scope| {
                    for (number, elector) in electors.iter().enumerate() {
                        let (events, mut admin) = (elector.events(), server.admin());
                        scope.spawn(move || {
                            let mut lost = 0;
                            while lost < times {
                                leads(elector);
                                match number % 2 {
                                    0 => admin.command(&["DEL", elector.key()]),
                                    _ => admin.command(&["SET", elector.key(), "foreign", "PX", "20"]),
                                };
                                lost += next(&events, "demoted", |event| match event {
                                    // A busy machine may be late with a renewal now and then.
                                    Event::Demoted(demotion) => {
                                        Some(usize::from(demotion.reason == Reason::Lost))
                                    }
                                    _ => None,
                                });
                            }
                        });
                    }
                });
                electors.iter().for_each(|elector| _ = leads(elector));
            };
            lose(EACH / 5);
            // What is lead work's thread in between is gone with its term, and the next one comes a moment after it
            // is told.
            let before = eventually(CAP, || match counts() {
                now if now.1 == others + SIDE_BY_SIDE * THREADS => Ok(now),
                now => Err(now),
            });
            let memory = rss_kb(process::id());
            lose(EACH);
            let after = rss_kb(process::id());
            expect_flat("after 2000 lost leases", before);
            eprintln!("{} lost leases: {memory} kB, then {after} kB", SIDE_BY_SIDE * EACH);
            assert!(after < memory + 1024, "memory has grown by {} kB", after - memory);
        },
    );
}

/// B92: what was made and never started, or could not be, was not taken back.
#[test]
fn what_is_never_started_or_cannot_be_leaves_nothing_behind() {
    in_own_process("regressions::leaks::what_is_never_started_or_cannot_be_leaves_nothing_behind", || {
        const EACH: usize = 1000;
        let mut server = Server::start();
        let mut admin = server.admin();
        let url = server.url();
        let open = || RedisStore::open(&url).expect("a good url");
        let never = || drop(Elector::builder(open(), "never").lead(|_| {}).on_promote(|_| {}));
        let refused = || {
            let refused = Elector::builder(open(), "refused").jitter(CAP).on_error(|_| {}).start();
            assert_eq!(refused.expect_err("a bad option").kind(), ErrorKind::Configuration);
        };
        let asked = || _ = inspect(&open(), "asked");
        asked();
        let before = counts();
        for (what, act) in [("never started", &never as &dyn Fn()), ("refused", &refused), ("asked", &asked)]
        {
            (0..EACH).for_each(|_| act());
            expect_flat(what, before);
        }
        eventually(CAP, || {
            match admin.command(&["CLIENT", "LIST"]).text().matches(" name=taskrunner ").count() {
                0 => Ok(()),
                count => Err(count),
            }
        });
        drop(admin);
        server.kill();
        let before = counts();
        (0..EACH).for_each(|_| asked());
        expect_flat("asked of nobody", before);
    });
}

/// B93: keys beside the lock piled up until the server was full.
#[test]
fn of_a_group_one_small_key_stays_however_its_electors_end() {
    const GROUPS: usize = 60;
    const TTL: Duration = Duration::from_millis(300);
    let server = Server::start();
    let mut admin = server.admin();
    let proxy = Proxy::to(&server);
    let groups: Vec<_> = (0..GROUPS).map(|_| unique_group("keys")).collect();
    let mut sizes = Vec::new();
    for _ in 0..3 {
        let electors: Vec<_> = groups
            .iter()
            .map(|group| builder(&proxy.url(), group).ttl(TTL).start().expect("good options"))
            .collect();
        electors.iter().for_each(|elector| _ = leads(elector));
        let (stopped, killed) = electors.split_at(GROUPS / 2);
        stopped.iter().for_each(|elector| elector.stop().expect("released"));
        // To the server these are gone without a word.
        proxy.refuse(true);
        proxy.reset_all();
        thread::scope(|scope| {
            killed.iter().for_each(|elector| {
                // The lease cannot be released, unless it has ended by itself.
                scope.spawn(|| elector.stop().ok());
            });
        });
        drop(electors);
        proxy.refuse(false);
        eventually(CAP, || match admin.command(&["KEYS", "taskrunner:leader:*"]) {
            Reply::List(leases) if leases.is_empty() => Ok(()),
            leases => Err(leases),
        });
        let keys = admin.command(&["KEYS", "*"]);
        for key in keys.list() {
            let key = key.text();
            assert!(key.starts_with("{taskrunner:leader:") && key.ends_with("}:term"), "{key}");
            assert_eq!(admin.command(&["HLEN", key]).int(), 5, "{key}");
        }
        sizes.push(keys.list().len());
    }
    assert_eq!(sizes, [GROUPS; 3], "one term key for each group, for its tokens to grow");
}

/// B92: the last handle went, and the threads that held another one stayed.
#[test]
fn channels_and_leaderships_that_outlive_an_elector_keep_no_thread_alive() {
    in_own_process(
        "regressions::leaks::channels_and_leaderships_that_outlive_an_elector_keep_no_thread_alive",
        || {
            let store = MemoryStore::new();
            let elector = Elector::builder(store.clone(), "outlived").start().expect("good options");
            let leadership = leads(&elector);
            drop((elector, leadership));
            let before = counts();
            let elector = Elector::builder(store, "outlived").start().expect("good options");
            let leadership = leads(&elector);
            let lost = leadership.lost();
            let (events, demotions) = (elector.events(), elector.on_demote());
            drop(elector);
            expect_flat("outlived", before);
            assert!(!leadership.is_valid() && lost.try_recv().is_err_and(|error| error.is_disconnected()));
            assert!(matches!(events.iter().last(), Some(Event::Stopped)));
            assert_eq!(
                demotions.iter().map(|demotion| demotion.reason).collect::<Vec<_>>(),
                [Reason::Stopped]
            );
        },
    );
}
