//! How a program embeds an elector: hooks, lead work, wakes and questions, on the embedded store.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded, unbounded};
use taskrunner::election::{
    Builder, Elector, ErrorKind, Event, Leadership, MemoryStore, Reason, Role, inspect,
};

use crate::support::eventually;

/// Long enough for anything that happens at all.
const CAP: Duration = Duration::from_secs(20);
const MS: Duration = Duration::from_millis(1);

/// An elector whose takeovers by expiry or by asking are much slower than those by a wake.
fn builder(store: &MemoryStore) -> Builder {
    Elector::builder(store.clone(), "group").ttl(Duration::from_secs(30)).wait(Duration::from_secs(60))
}

/// One whose terms are short.
fn quick(store: &MemoryStore) -> Builder {
    Elector::builder(store.clone(), "group").ttl(200 * MS).wait(200 * MS)
}

fn leads(elector: &Elector) -> Leadership {
    elector.wait_for_leadership(CAP).expect("leads")
}

/// Waits until the elector's attempt has been answered and it listens for wakes.
fn follows(elector: &Elector) {
    eventually(CAP, || match elector.status().leader {
        Some(leader) => Ok(leader),
        None => Err("knows no leader"),
    });
}

#[test]
fn a_release_wakes_the_next_one_at_once() {
    let store = MemoryStore::new();
    let mut leader = builder(&store).start().expect("good options");
    for _ in 0..100 {
        let token = leads(&leader).token();
        let follower = builder(&store).start().expect("good options");
        follows(&follower);
        leader.stop().expect("the memory answers");
        assert!(leads(&follower).token() > token);
        match follower.status().counters.wakes {
            // The release came before it listened; it has asked when it did.
            0 => leader = follower,
            wakes => return assert_eq!(wakes, 1),
        }
    }
    panic!("no release of a hundred was heard");
}

#[test]
fn an_elector_does_not_count_its_own_releases_as_wakes() {
    let store = MemoryStore::new();
    let elector = builder(&store).start().expect("good options");
    for _ in 0..20 {
        leads(&elector);
        elector.step_down(Duration::ZERO).expect("the memory answers");
    }
    elector.stop().expect("the memory answers");
    assert_eq!(elector.status().counters.wakes, 0);
    assert!(elector.status().counters.promotions >= 20);
}

#[test]
fn hooks_are_called_in_the_order_of_events() {
    let (told, tells) = unbounded();
    let (promoted, demoted) = (told.clone(), told);
    let elector = quick(&MemoryStore::new())
        .on_promote(move |leadership| {
            promoted.send(format!("promoted {}", leadership.token())).expect("kept");
        })
        .on_demote(move |demotion| {
            demoted.send(format!("demoted {} {}", demotion.token, demotion.reason)).expect("kept");
        })
        .start()
        .expect("good options");
    let mut expected = Vec::new();
    for _ in 0..20 {
        let token = leads(&elector).token();
        elector.step_down(Duration::ZERO).expect("the memory answers");
        expected.extend([format!("promoted {token}"), format!("demoted {token} stepped_down")]);
    }
    let token = leads(&elector).token();
    elector.stop().expect("the memory answers");
    expected.extend([format!("promoted {token}"), format!("demoted {token} stopped")]);
    assert_eq!(tells.iter().collect::<Vec<_>>(), expected);
}

#[test]
fn a_hook_that_blocks_changes_nothing_for_the_lease_and_stop_counts_its_thread() {
    let (release, released) = bounded::<()>(0);
    let elector =
        quick(&MemoryStore::new()).on_promote(move |_| _ = released.recv()).start().expect("good options");
    let leadership = leads(&elector);
    eventually(CAP, || match elector.status().counters.renewals {
        renewals @ 6.. => Ok(renewals),
        renewals => Err(renewals),
    });
    assert!(leadership.is_valid(), "renewed for three ttls while the hook blocks");
    let error = elector.stop().expect_err("the hook is still in user code");
    assert_eq!(error.kind(), ErrorKind::Overrun);
    assert!(error.to_string().contains("1 of its threads"), "{error}");
    assert!(!elector.is_leader());
    drop(release);
    eventually(CAP, || elector.stop().map_err(|error| error.to_string()));
}

#[test]
fn a_panic_of_a_hook_is_told_and_the_hook_is_called_again() {
    let (told, tells) = unbounded();
    let errors = told.clone();
    let elector = quick(&MemoryStore::new())
        .on_promote(move |leadership| {
            told.send(format!("promoted {}", leadership.token())).expect("kept");
            panic!("as planned")
        })
        .on_error(move |error| {
            errors.send(format!("{:?} {error}", error.kind())).expect("kept");
            panic!("this one is not told to itself")
        })
        .start()
        .expect("good options");
    let promotion_and_panic = || {
        let token = leads(&elector).token();
        assert_eq!(tells.recv_timeout(CAP).expect("the promotion"), format!("promoted {token}"));
        let error = tells.recv_timeout(CAP).expect("the panic");
        assert_eq!(error, "Panicked on_promote panicked: as planned");
    };
    promotion_and_panic();
    elector.step_down(Duration::ZERO).expect("the memory answers");
    promotion_and_panic();
    // No step down before the stop: another term could begin between the two, and be told.
    elector.stop().expect("a panic is no reason not to stop");
    assert!(tells.try_recv().is_err(), "a panic of the error hook calls it no more");
}

#[test]
fn an_error_hook_that_falls_behind_and_panics_is_not_called_with_its_own_panics() {
    let (told, tells) = unbounded();
    let (release, released) = bounded::<()>(0);
    let store = MemoryStore::new();
    let (cuttable, switch) = store.with_switch();
    switch.cut();
    let elector = quick(&cuttable)
        .wait(20 * MS)
        .on_error(move |error| {
            // Errors queue up behind the first.
            _ = released.recv();
            told.send(error.kind()).expect("kept");
            panic!("as planned")
        })
        .start()
        .expect("good options");
    let told_so_far = |least| move |errors| if errors >= least { Ok(()) } else { Err(errors) };
    eventually(CAP, || told_so_far(5)(elector.status().counters.errors));
    switch.mend();
    leads(&elector);
    drop(release);
    elector.stop().expect("the hook comes to an end");
    assert!(tells.iter().all(|kind| kind == ErrorKind::Passing), "its own panics are told to others only");
}

#[test]
fn a_hook_may_step_down_and_stop() {
    let cell: Arc<OnceLock<Elector>> = Arc::default();
    let (told, tells) = unbounded();
    let of_hook = Arc::clone(&cell);
    let mut first = None;
    let elector = quick(&MemoryStore::new())
        .on_promote(move |leadership| {
            let (elector, token) = (of_hook.wait(), leadership.token());
            let done = if *first.get_or_insert(token) == token {
                elector.step_down(Duration::ZERO)
            } else {
                elector.stop()
            };
            told.send(done.is_ok()).expect("kept");
        })
        .start()
        .expect("good options");
    let elector = cell.get_or_init(|| elector);
    assert_eq!(tells.recv_timeout(CAP), Ok(true), "stepped down");
    assert_eq!(tells.recv_timeout(CAP), Ok(true), "stopped");
    assert_eq!(elector.wait_for_leadership(CAP).expect_err("stopped").kind(), ErrorKind::Stopped);
    elector.stop().expect("and its thread has ended");
}

/// The token, beginning and end of each lead work.
type WorkLog = Arc<Mutex<Vec<(u64, Instant, Instant)>>>;

/// Lead work that runs until its term is lost and then takes some time, and notes both ends.
fn slow_to_end(log: &WorkLog, takes: Duration) -> impl Fn(Leadership) + use<> {
    let log = Arc::clone(log);
    move |leadership| {
        let began = Instant::now();
        leadership.lost().recv().expect_err("no message is ever sent");
        thread::sleep(takes);
        log.lock().expect("no panic").push((leadership.token(), began, Instant::now()));
    }
}

#[test]
fn lead_work_ends_before_the_lease_is_released() {
    let store = MemoryStore::new();
    let log = Arc::default();
    let work = || slow_to_end(&log, 50 * MS);
    let first = builder(&store).lead(work()).start().expect("good options");
    leads(&first);
    let second = builder(&store).lead(work()).start().expect("good options");
    follows(&second);
    for _ in 0..5 {
        let (leader, other) = if first.is_leader() { (&first, &second) } else { (&second, &first) };
        // Long enough for the other one, which the release wakes.
        leader.step_down(Duration::from_secs(1)).expect("the work returns in its grace");
        leads(other);
        follows(leader);
    }
    first.stop().expect("the work returns in its grace");
    second.stop().expect("the work returns in its grace");
    let mut terms = log.lock().expect("no panic").clone();
    terms.sort_by_key(|(token, ..)| *token);
    assert!(terms.len() >= 6, "{terms:?}");
    for pair in terms.windows(2) {
        assert!(pair[0].2 <= pair[1].1, "the work of two terms ran at once: {pair:?}");
    }
}

#[test]
fn lead_work_that_returns_or_panics_steps_down_and_pauses() {
    for panics in [false, true] {
        let store = MemoryStore::new();
        let runs = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&runs);
        let elector = quick(&store)
            .wait(Duration::from_secs(60))
            .lead(move |_| {
                counted.fetch_add(1, Ordering::Relaxed);
                assert!(!panics, "as planned");
            })
            .start()
            .expect("good options");
        let demotion = elector.on_demote().recv_timeout(CAP).expect("demoted");
        assert_eq!(demotion.reason, Reason::LeadEnded);
        let other = quick(&store).start().expect("good options");
        leads(&other);
        assert_eq!(runs.load(Ordering::Relaxed), 1, "it does not spin");
        if panics {
            let error = elector.on_error().recv_timeout(CAP).expect("the panic is told");
            assert_eq!(error.kind(), ErrorKind::Panicked);
            assert!(error.to_string().contains("as planned"), "{error}");
        }
        elector.stop().expect("the memory answers");
    }
}

#[test]
fn lead_work_that_outlives_its_grace_is_told_and_keeps_its_instance_from_contending() {
    let store = MemoryStore::new();
    let (release, released): (_, Receiver<()>) = bounded(0);
    let elector =
        quick(&store).lead_grace(50 * MS).lead(move |_| _ = released.recv()).start().expect("good options");
    let token = leads(&elector).token();
    let error = elector.step_down(Duration::ZERO).expect_err("the work does not return");
    assert!(matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Overrun), "{error}");
    let told = elector.on_error().recv_timeout(CAP).expect("the overrun is told");
    assert_eq!(told.kind(), ErrorKind::Overrun);
    assert_eq!(elector.status().overrun.map(|(token, _)| token), Some(token));
    assert_eq!(elector.status().role, Role::Leaving);
    let waiting = elector.wait_for_leadership(None).expect_err("it cannot lead");
    assert_eq!(waiting.kind(), ErrorKind::Overrun);
    // The lease is left to expire, and another one leads then.
    let other = quick(&store).start().expect("good options");
    leads(&other);
    other.stop().expect("the memory answers");
    assert_eq!(elector.status().counters.attempts, 1, "it does not contend while the work runs");
    drop(release);
    let next = eventually(CAP, || elector.wait_for_leadership(CAP).map_err(|error| error.kind()));
    assert!(next.token() > token);
    elector.stop().expect("the work returns at once now");
}

#[test]
fn a_stop_says_that_lead_work_outlived_its_grace() {
    let (release, released): (_, Receiver<()>) = bounded(0);
    let elector = quick(&MemoryStore::new())
        .lead_grace(50 * MS)
        .lead(move |_| _ = released.recv())
        .start()
        .expect("good options");
    leads(&elector);
    let error = elector.stop().expect_err("the work does not return");
    assert_eq!(error.kind(), ErrorKind::Overrun);
    assert!(error.to_string().contains("1 of its threads"), "{error}");
    assert!(!elector.is_leader());
    drop(release);
}

#[test]
fn run_works_on_the_callers_thread_in_each_term_until_the_elector_stops() {
    let elector = quick(&MemoryStore::new()).start().expect("good options");
    let caller = thread::current().id();
    let mut tokens = Vec::new();
    elector
        .run(|leadership| {
            assert_eq!(thread::current().id(), caller);
            assert!(leadership.is_valid());
            tokens.push(leadership.token());
            // From within the work both only ask, for they would wait for the work itself.
            if tokens.len() < 3 {
                elector.step_down(Duration::ZERO).expect("asked");
            } else {
                elector.stop().expect("asked");
            }
            leadership.lost().recv().expect_err("no message is ever sent");
        })
        .expect("it stopped");
    assert_eq!(tokens.len(), 3);
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    elector.stop().expect("stopped");
}

#[test]
fn run_goes_on_after_work_that_outlived_its_grace() {
    let elector = quick(&MemoryStore::new()).lead_grace(20 * MS).start().expect("good options");
    let mut runs = 0;
    elector
        .run(|leadership| {
            runs += 1;
            if runs == 3 {
                return elector.stop().expect("asked");
            }
            leadership.step_down();
            leadership.lost().recv().expect_err("no message is ever sent");
            eventually(CAP, || elector.status().overrun.ok_or("in its grace"));
        })
        .expect("it stopped");
    assert_eq!(runs, 3);
}

#[test]
fn run_lets_a_panic_through_and_the_instance_steps_down() {
    let elector = quick(&MemoryStore::new()).start().expect("good options");
    let outcome = catch_unwind(AssertUnwindSafe(|| elector.run(|_| panic!("as planned"))));
    assert!(outcome.is_err());
    let demotion = elector.on_demote().recv_timeout(CAP).expect("demoted");
    assert_eq!(demotion.reason, Reason::LeadEnded);
    elector.stop().expect("the memory answers");
}

#[test]
fn only_one_lead_work_runs_at_a_time() {
    let elector = quick(&MemoryStore::new())
        .lead(|leadership| _ = leadership.lost().recv())
        .start()
        .expect("good options");
    leads(&elector);
    let error = elector.run(|_| unreachable!("the other one runs")).expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.to_string().contains("runs already"), "{error}");
    assert!(elector.is_leader(), "and it changes nothing for the one that runs");
}

#[test]
fn status_tells_what_this_instance_is_doing() {
    let store = MemoryStore::new();
    let leader = builder(&store).name("web-1").start().expect("good options");
    let token = leads(&leader).token();
    let status = leader.status();
    assert_eq!((status.role, status.token), (Role::Leader, Some(token)));
    assert!(!status.remaining.is_zero() && status.remaining <= Duration::from_secs(30));
    assert!(status.renewed_at.is_some_and(|at| at.elapsed() < CAP) && status.last_error.is_none());
    let follower = builder(&store).start().expect("good options");
    follows(&follower);
    let status = follower.status();
    assert_eq!((status.role, status.token, status.remaining), (Role::Follower, None, Duration::ZERO));
    let known = status.leader.expect("the other one");
    assert_eq!((known.id.as_str(), known.token, known.name()), (leader.id(), Some(token), Some("web-1")));
    leader.stop().expect("the memory answers");
    assert_eq!(leader.status().role, Role::Stopped);
    assert_eq!(leader.status().counters.demotions, 1);
}

#[test]
fn who_leads_can_be_asked_by_an_elector_and_by_anybody() {
    let store = MemoryStore::new();
    let nobody = inspect(&store, "group").expect("the memory answers");
    assert_eq!((nobody.leader, nobody.remaining), (None, None));
    let elector = builder(&store).start().expect("good options");
    let token = leads(&elector).token();
    for found in [elector.current_leader(), inspect(&store, "group")] {
        let found = found.expect("the memory answers");
        let leader = found.leader.expect("this one");
        assert_eq!((leader.id.as_str(), leader.token), (elector.id(), Some(token)));
        assert_eq!(found.key, elector.key());
        assert!(found.remaining.is_some_and(|left| left <= Duration::from_secs(30)));
    }
    elector.stop().expect("the memory answers");
    assert_eq!(elector.current_leader().expect_err("stopped").kind(), ErrorKind::Stopped);
    assert_eq!(inspect(&store, "").expect_err("no group").kind(), ErrorKind::Configuration);
}

#[test]
fn a_change_of_the_leader_is_told_to_followers() {
    let store = MemoryStore::new();
    let first = builder(&store).start().expect("good options");
    leads(&first);
    let second = builder(&store).start().expect("good options");
    let third = builder(&store).start().expect("good options");
    follows(&second);
    follows(&third);
    let events = third.events();
    first.stop().expect("the memory answers");
    let next = eventually(CAP, || match (second.is_leader(), third.is_leader()) {
        (true, _) => Ok(&second),
        (_, true) => Ok(&third),
        _ => Err("nobody leads"),
    });
    let told = events.iter().find_map(|event| match event {
        Event::LeaderChanged(Some(leader)) if leader.id == next.id() => Some(leader),
        _ => None,
    });
    assert!(told.is_some_and(|leader| leader.token.is_some()));
}
