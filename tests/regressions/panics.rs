//! Panics in whatever runs code of the user's, and drops at odd places.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{bounded, unbounded};
use log::{LevelFilter, Log, Metadata, Record};
use taskrunner::election::{Elector, ErrorKind, Event, MemoryStore, Reason, Role};

use super::{CAP, MS, leads};
use crate::support::process::thread_names;
use crate::support::{eventually, in_own_process};

fn quick(store: &MemoryStore) -> taskrunner::election::Builder {
    Elector::builder(store.clone(), "group").ttl(300 * MS).wait(100 * MS)
}

/// A logger that panics on the threads that decide.
struct Panicking;

impl Log for Panicking {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // One record: what is logged of the death must not be a second panic.
        let dies =
            thread::current().name() == Some("tr-driver") && record.args().to_string().contains("demoted");
        if dies {
            panic_any("the logger");
        }
    }

    fn flush(&self) {}
}

/// B85: the task that held the lease died, and everybody went on with what it had said last.
#[test]
fn an_elector_whose_driver_has_died_says_so_everywhere_and_leads_no_more() {
    in_own_process(
        "regressions::panics::an_elector_whose_driver_has_died_says_so_everywhere_and_leads_no_more",
        || {
            log::set_logger(&Panicking).expect("no logger yet");
            log::set_max_level(LevelFilter::Trace);
            let store = MemoryStore::new();
            let elector = quick(&store).ttl(CAP).start().expect("good options");
            let (events, promotions) = (elector.events(), elector.on_promote());
            let (demotions, errors) = (elector.on_demote(), elector.on_error());
            let leadership = leads(&elector);
            let waiting = thread::scope(|scope| {
                leadership.step_down();
                let waiting = scope.spawn(|| {
                    // Until it does not lead any more.
                    leadership.lost().recv().expect_err("nothing is ever sent there");
                    elector.wait_for_leadership(None)
                });
                waiting.join().expect("no panic")
            });
            assert_eq!(waiting.expect_err("dead").kind(), ErrorKind::Dead);
            assert!(!elector.is_leader() && !leadership.is_valid() && elector.leadership().is_none());
            assert_eq!(leadership.check().expect_err("it has ended").kind(), ErrorKind::NotLeading);
            assert_eq!((elector.status().role, elector.status().token), (Role::Stopped, None));
            for outcome in [
                elector.current_leader().map(drop),
                elector.step_down(Duration::ZERO),
                elector.run(|_| unreachable!("it never leads")),
                elector.stop(),
                elector.stop(),
            ] {
                assert_eq!(outcome.expect_err("dead").kind(), ErrorKind::Dead);
            }
            // All channels end, and none claims that it has stopped.
            assert!(!events.iter().any(|event| matches!(event, Event::Stopped)));
            promotions.iter().for_each(drop);
            demotions.iter().for_each(drop);
            errors.iter().for_each(drop);
            assert!(elector.events().recv().is_err());
            drop(elector);
            eventually(CAP, || match thread_names(std::process::id()) {
                names if names.iter().any(|name| name.starts_with("tr-")) => Err(names),
                _ => Ok(()),
            });
        },
    );
}

/// B87: a callback that panicked while it read the elector's state poisoned it.
#[test]
fn after_a_panic_in_every_callback_every_method_answers() {
    let cell: Arc<OnceLock<Elector>> = Arc::default();
    let (panicked, panics) = unbounded();
    let touch = |what: &'static str| {
        let (cell, panicked) = (Arc::clone(&cell), panicked.clone());
        move || {
            let elector = cell.wait();
            let seen = (elector.status(), elector.leadership(), elector.is_leader(), format!("{elector:?}"));
            let subscription = elector.events();
            panicked.send(what).expect("kept");
            let _unwound = (seen, subscription);
            panic!("as planned in {what}");
        }
    };
    let (promote, demote, error, work) = (touch("promote"), touch("demote"), touch("error"), touch("work"));
    let elector = quick(&MemoryStore::new())
        .on_promote(move |_| promote())
        .on_demote(move |_| demote())
        .on_error(move |_| error())
        .lead(move |_| work())
        .start()
        .expect("good options");
    let elector = cell.get_or_init(|| elector);
    // The panics of one are the errors that another one is called with.
    let mut seen = Vec::new();
    while !["promote", "demote", "error", "work"].iter().all(|what| seen.contains(what)) {
        seen.push(panics.recv_timeout(CAP).unwrap_or_else(|_| panic!("only {seen:?} have panicked")));
    }
    // The work ends each term at once, and so nobody can rely on being in time for one.
    let status = eventually(CAP, || match elector.status() {
        status if status.counters.promotions >= 3 => Ok(status),
        status => Err(format!("{status:?}")),
    });
    assert_eq!(status.last_error.expect("there were some").0.kind(), ErrorKind::Panicked);
    assert!(elector.on_demote().recv_timeout(CAP).is_ok_and(|demotion| demotion.reason == Reason::LeadEnded));
    elector.current_leader().expect("the memory answers");
    assert!(elector.events().recv_timeout(CAP).is_ok());
    elector.step_down(Duration::ZERO).expect("the memory answers");
    elector.stop().expect("all of its callbacks return, if by a panic");
    assert!(!elector.is_leader());
}

thread_local! {
    static KEPT: RefCell<Option<Elector>> = const { RefCell::new(None) };
}

/// B89: an elector dropped where nothing else runs any more hung or panicked.
#[test]
fn an_elector_kept_in_a_thread_local_is_stopped_when_its_thread_ends() {
    let store = MemoryStore::new();
    let kept = store.clone();
    let (told, tells) = bounded(1);
    thread::spawn(move || {
        // Long enough for nobody else to lead within the cap, unless the lease is released.
        let elector = Elector::builder(kept, "group").ttl(CAP * 4).start().expect("good options");
        told.send((leads(&elector), elector.events())).expect("kept");
        KEPT.set(Some(elector));
        // The thread ends, and with it what it kept.
    });
    let (leadership, events) = tells.recv_timeout(CAP).expect("it leads");
    let next = Elector::builder(store, "group").start().expect("good options");
    assert!(leads(&next).token() > leadership.token());
    let end = std::iter::from_fn(|| events.recv_timeout(CAP).ok()).last();
    assert!(matches!(end, Some(Event::Stopped)), "{end:?}");
}

/// B96: what one thread had taken, another one could not give back.
#[test]
fn one_thread_starts_another_stops_and_a_third_drops() {
    let store = MemoryStore::new();
    let start = {
        let store = store.clone();
        move || Elector::builder(store, "group").ttl(CAP * 4).start().expect("good options")
    };
    for stops in [true, false] {
        let elector = thread::spawn(start.clone()).join().expect("no panic");
        let (elector, leadership) =
            thread::spawn(move || (leads(&elector), elector)).join().map(|(l, e)| (e, l)).expect("no panic");
        let elector = thread::spawn(move || {
            if stops {
                elector.stop().expect("the memory answers");
            }
            elector
        });
        let elector = elector.join().expect("no panic");
        thread::spawn(move || drop(elector)).join().expect("no panic");
        assert!(!leadership.is_valid());
    }
    leads(&Elector::builder(store, "group").start().expect("good options"));
}

/// B86: the work failed, the lease was renewed for ever, and a later election in the process was broken.
#[test]
fn after_work_that_panics_another_instance_leads_and_then_this_one_again() {
    let store = MemoryStore::new();
    let elector = Elector::builder(store.clone(), "group").ttl(CAP * 4).wait(1000 * MS);
    let elector = elector.start().expect("good options");
    let mut other = None;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        elector.run(|_| {
            // It asks long before this one does again.
            let builder = Elector::builder(store.clone(), "group").ttl(CAP * 4).wait(10 * MS);
            other = Some(builder.start().expect("good options"));
            panic_any("as planned");
        })
    }));
    assert_eq!(outcome.expect_err("it goes through").downcast_ref(), Some(&"as planned"));
    let other = other.expect("the work has begun");
    let first = leads(&other);
    other.stop().expect("the memory answers");
    let mut token = 0;
    elector
        .run(|leadership| {
            token = leadership.token();
            elector.stop().expect("asked");
        })
        .expect("stopped");
    assert!(token > first.token());
}
