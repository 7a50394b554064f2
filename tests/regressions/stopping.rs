//! The end of an instance, and what it does to the one that follows.

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use log::{Level, LevelFilter, Log, Metadata, Record};
use rand::RngExt;
use taskrunner::election::{Elector, ErrorKind, MemoryStore};

use super::{CAP, MS, builder, follows};
use crate::support::{Campaign, Proxy, Reply, Server, eventually, in_own_process, unique_group};

/// B35: a stop met a renewal on its way, the release failed, and the next leader waited for the lease's end.
#[test]
fn a_stop_at_any_moment_of_the_renewals_leaves_the_lease_to_the_one_that_waits() {
    const PAIRS: usize = 4;
    const ROUNDS: u32 = 25;
    let server = Server::start();
    let stop_over_and_over = || {
        let (proxy, group, ttl) = (Proxy::to(&server), unique_group("hand-over"), 400 * MS);
        proxy.delay(5 * MS);
        let mut admin = server.admin();
        let stays = builder(&server.url(), &group).ttl(ttl).wait(ttl).start().expect("good options");
        for _ in 0..ROUNDS {
            stays.wait_for_leadership(CAP).expect("leads");
            let leaves = builder(&proxy.url(), &group).ttl(ttl).wait(ttl).start().expect("good options");
            follows(&leaves);
            // On a slow machine the pause may be over too early: then once more.
            let leadership = eventually(CAP, || {
                stays.step_down(100 * MS).expect("the server answers");
                leaves.wait_for_leadership(200 * MS).map_err(|error| error.to_chain())
            });
            // A renewal comes after 200 ms and takes 10.
            thread::sleep(Duration::from_micros(rand::rng().random_range(0..240_000)));
            let outcome = leaves.stop();
            assert!(!leaves.is_leader() && !leadership.is_valid());
            let holder = admin.command(&["GET", leaves.key()]);
            match outcome {
                Ok(()) => assert!(holder == Reply::Nil || holder.text() != leaves.id(), "untold"),
                // A machine that stood still.
                Err(error) => assert_eq!(error.kind(), ErrorKind::Passing, "{}", error.to_chain()),
            }
            let next = stays.wait_for_leadership(CAP).expect("it is its turn again");
            assert!(next.token() > leadership.token());
        }
    };
    thread::scope(|scope| {
        for _ in 0..PAIRS {
            scope.spawn(stop_over_and_over);
        }
    });
}

/// B40: a holder that had stood still deleted, as it ended, the lease of the next one.
#[test]
fn a_leader_that_is_told_to_end_while_it_stands_still_leaves_its_successor_alone() {
    let server = Server::start();
    let mut admin = server.admin();
    let group = unique_group("late-end");
    let args = ["--ttl", "2s", "--wait", "2s"];
    let mut late = Campaign::start(&group, &server.url(), &args).named("late");
    let token = late.wait_event(0, "promoted", CAP).token();
    let next = Campaign::start(&group, &server.url(), &args).named("next");
    let key = next.wait_event(0, "started", CAP).text("key").to_owned();
    next.wait_for(|line| line.is("leader") && line.token() == token, CAP);
    late.freeze();
    let promoted = next.wait_event(0, "promoted", CAP);
    assert!(promoted.token() > token);
    // The signal waits for the process.
    late.terminate();
    late.thaw();
    assert_eq!(late.wait_exit(CAP).code(), Some(0));
    assert_eq!(late.wait_event(0, "demoted", CAP).text("reason"), "expired");
    // Were its lease deleted, its next renewal would be answered with a no.
    let mut last = i64::MAX;
    eventually(CAP, || {
        let now = admin.command(&["PTTL", &key]).int();
        let (renewed, demoted) = (now > last, next.events().iter().any(|line| line.is("demoted")));
        last = now;
        if renewed || demoted { Ok(()) } else { Err(now) }
    });
    let demotions: Vec<_> = next.events().into_iter().filter(|line| line.is("demoted")).collect();
    assert!(demotions.iter().all(|line| line.text("reason") != "lost"), "{demotions:?}");
}

/// What is logged at WARN in this process.
struct Warnings(Mutex<Vec<String>>);

static WARNINGS: Warnings = Warnings(Mutex::new(Vec::new()));

impl Log for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() == Level::Warn
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            self.0.lock().expect("no panic").push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// B47: a release was skipped at the end, and nobody heard of it.
#[test]
fn a_drop_that_could_not_release_says_so() {
    in_own_process("regressions::stopping::a_drop_that_could_not_release_says_so", || {
        log::set_logger(&WARNINGS).expect("the process has no other logger");
        log::set_max_level(LevelFilter::Warn);
        let (cuttable, switch) = MemoryStore::new().with_switch();
        // Longer than the stop, which takes two call limits of 2 s.
        let elector = Elector::builder(cuttable, "group").ttl(20_000 * MS).start().expect("good options");
        elector.wait_for_leadership(CAP).expect("leads");
        switch.cut();
        drop(elector);
        let warnings = WARNINGS.0.lock().expect("no panic");
        let told = |warning: &String| warning.contains("dropping") && warning.contains("was not released");
        assert!(warnings.iter().any(told), "{warnings:?}");
    });
}
