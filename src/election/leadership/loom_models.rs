//! The shared cell of leadership in every interleaving of the threads that use it.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release --lib loom` explores them. Time passes when a thread of the
//! model says so, and a thread may see that as late as the memory model lets it. A wait has no timeout here:
//! a wake-up that is lost is found as a deadlock.

#![allow(clippy::print_stderr, reason = "how much was explored is a figure worth showing")]

use std::sync::atomic::{AtomicBool, AtomicUsize};

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread::{self, JoinHandle};
use rustix::time::{ClockId, Timespec};

use super::*;

loom::lazy_static! {
    /// What the clock shows, in seconds.
    static ref CLOCK: AtomicU64 = AtomicU64::new(0);
}

/// Stands in for the system's clock.
pub(in crate::election) fn clock_gettime(_: ClockId) -> Timespec {
    let seconds = i64::try_from(CLOCK.load(Ordering::SeqCst)).expect("models are short");
    Timespec { tv_sec: seconds, tv_nsec: 0 }
}

fn pass_time_to(seconds: u64) {
    CLOCK.store(seconds, Ordering::SeqCst);
}

const fn at(seconds: u64) -> Instant {
    Instant::from_millis(1000 * seconds)
}

/// Runs the model in every interleaving, and says how many there were.
fn explore(model: &'static str, body: impl Fn() + Send + Sync + 'static) {
    let explored = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&explored);
    loom::model(move || {
        count.fetch_add(1, Ordering::Relaxed);
        body();
    });
    eprintln!("{model}: {} interleavings", explored.load(Ordering::Relaxed));
}

/// Something that a thread of the model has seen or done, noted in the order in which it happened. Loom knows
/// nothing of it: no thread waits for it, and none sees memory because of it.
#[derive(Clone, Default)]
struct Mark(Arc<AtomicBool>);

impl Mark {
    fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

fn standing() -> Arc<Standing> {
    pass_time_to(0);
    Arc::new(Standing::new(Commands::of_nobody()))
}

/// A term from second 0 to 10 under token 7.
fn led() -> (Arc<Standing>, Leadership) {
    let standing = standing();
    let leadership = standing.begin(7, at(0), at(10)).expect("it has not ended");
    (standing, leadership)
}

fn has_fired(leadership: &Leadership) -> bool {
    leadership.lost().try_recv().is_err_and(|error| error.is_disconnected())
}

/// Every way to ask whether a term of this instance stands.
fn ways_to_ask(standing: &Arc<Standing>, leadership: &Leadership) -> [Box<dyn Fn() -> bool + Send>; 4] {
    let [one, two, three] = [(); 3].map(|()| Arc::clone(standing));
    let leadership = leadership.clone();
    [
        Box::new(move || one.is_leader()),
        Box::new(move || two.status().role == Role::Leader),
        Box::new(move || three.leadership().is_some()),
        Box::new(move || leadership.is_valid()),
    ]
}

/// Two threads that each ask in two of the ways, one after the other.
fn two_readers(
    standing: &Arc<Standing>,
    leadership: &Leadership,
    look: impl Fn(&dyn Fn() -> bool) + Clone + Send + 'static,
) -> [JoinHandle<()>; 2] {
    let [a, b, c, d] = ways_to_ask(standing, leadership);
    [[a, d], [b, c]].map(|asked| {
        let look = look.clone();
        thread::spawn(move || asked.iter().for_each(|ask| look(&**ask)))
    })
}

fn join<T>(threads: impl IntoIterator<Item = JoinHandle<T>>) -> Vec<T> {
    threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
}

#[test]
fn no_reader_sees_a_token_with_the_deadline_of_another_term() {
    explore("tokens and deadlines", || {
        let (standing, _) = led();
        let of_status = {
            let standing = Arc::clone(&standing);
            move || {
                let status = standing.status();
                assert_eq!(status.token.is_some(), status.role == Role::Leader);
                (status.token, status.remaining.as_secs())
            }
        };
        let of_leadership = {
            let standing = Arc::clone(&standing);
            move || match standing.leadership() {
                None => (None, 0),
                // The term may have ended since.
                Some(leadership) => match leadership.remaining().as_secs() {
                    0 if leadership.token() == 7 => (None, 0),
                    remaining => (Some(leadership.token()), remaining),
                },
            }
        };
        let reader = |look: Box<dyn Fn() -> (Option<u64>, u64) + Send>| {
            thread::spawn(move || {
                let mut newest = 0;
                for _ in 0..2 {
                    match look() {
                        (None, 0) => {}
                        (Some(token), remaining) => {
                            assert!(
                                matches!((token, remaining), (7, 10 | 15) | (8, 20)),
                                "{token} {remaining}"
                            );
                            assert!(remaining >= newest, "an earlier state after a later one");
                            newest = remaining;
                        }
                        seen => panic!("{seen:?}"),
                    }
                }
            })
        };
        let readers = [reader(Box::new(of_status)), reader(Box::new(of_leadership))];
        assert!(standing.extend(at(0), at(15)));
        standing.end_term();
        standing.begin(8, at(0), at(20)).expect("it has not ended");
        join(readers);
    });
}

#[test]
fn a_term_is_extended_or_lapses_and_no_reader_sees_true_after_any_has_seen_false() {
    static EXTENDED: AtomicUsize = AtomicUsize::new(0);
    static LAPSED: AtomicUsize = AtomicUsize::new(0);
    explore("an extension that races with the deadline", || {
        let (standing, leadership) = led();
        let seen_false = Mark::default();
        let readers = {
            let seen_false = seen_false.clone();
            two_readers(&standing, &leadership, move |ask| {
                let seen_before = seen_false.is_set();
                match ask() {
                    true => assert!(!seen_before, "true after false"),
                    false => seen_false.set(),
                }
            })
        };
        let time = thread::spawn(|| pass_time_to(10));
        let extended = standing.extend(at(0), at(20));
        join(readers);
        join([time]);
        assert_eq!(standing.is_leader(), extended);
        if extended {
            assert!(!seen_false.is_set(), "extended after it had lapsed");
            EXTENDED.fetch_add(1, Ordering::Relaxed);
        } else {
            assert_eq!(standing.end_term(), at(10), "what is told of a lapse is its deadline");
            LAPSED.fetch_add(1, Ordering::Relaxed);
        }
    });
    let outcomes = [&EXTENDED, &LAPSED].map(|count| count.load(Ordering::Relaxed));
    eprintln!("extended in {}, lapsed in {}", outcomes[0], outcomes[1]);
    assert!(outcomes.iter().all(|count| *count > 0), "the race was never run");
}

#[test]
fn the_lost_signal_fires_after_validity_has_ended_and_nobody_leads_after_the_end_of_a_term() {
    explore("the end of a term", || {
        let (standing, leadership) = led();
        let ended = Mark::default();
        let readers = {
            let (ended, leadership) = (ended.clone(), leadership.clone());
            two_readers(&standing, &leadership.clone(), move |ask| {
                let over = ended.is_set() || has_fired(&leadership);
                assert!(!(ask() && over), "true after the end");
            })
        };
        standing.end_term();
        assert!(has_fired(&leadership));
        ended.set();
        join(readers);
    });
}

#[test]
fn nobody_leads_after_the_end_of_the_elector_whatever_a_late_driver_does() {
    explore("the end of the elector beside a late driver", || {
        let (standing, first) = led();
        let ended = Mark::default();
        let stop = {
            let (standing, ended, first) = (Arc::clone(&standing), ended.clone(), first.clone());
            thread::spawn(move || {
                standing.end(Ok(()));
                assert!(has_fired(&first));
                ended.set();
            })
        };
        let reader = {
            let (standing, ended) = (Arc::clone(&standing), ended.clone());
            thread::spawn(move || {
                let over = ended.is_set();
                assert!(!(standing.is_leader() && over), "true after the end");
            })
        };
        let waiter = {
            let standing = Arc::clone(&standing);
            thread::spawn(move || match standing.wait(None) {
                Ok(leadership) => assert!(matches!(leadership.token(), 7 | 8)),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Stopped),
            })
        };
        let extended = standing.extend(at(0), at(15));
        assert!(extended || first.remaining().is_zero());
        standing.end_term();
        let second = standing.begin(8, at(0), at(20));
        join([stop, reader, waiter]);
        assert!(!standing.is_leader() && standing.leadership().is_none());
        // It has begun before the end, or not at all.
        assert!(second.is_none_or(|second| !second.is_valid() && has_fired(&second)));
    });
}

/// What two threads that wait for leadership hear, while the driver does this.
fn explore_waiters(
    model: &'static str,
    driver: impl Fn(&Arc<Standing>) + Send + Sync + 'static,
    expect: impl Fn(Result<u64, ErrorKind>) + Send + Sync + 'static,
) {
    explore(model, move || {
        let standing = standing();
        let waiters = [(); 2].map(|()| {
            let standing = Arc::clone(&standing);
            thread::spawn(move || {
                standing.wait(None).map(|leadership| leadership.token()).map_err(|error| error.kind())
            })
        });
        driver(&standing);
        join(waiters).into_iter().for_each(&expect);
    });
}

#[test]
fn no_waiter_misses_the_beginning_of_a_term_or_the_end_of_waiting() {
    explore_waiters(
        "waiting for a term",
        |standing| _ = standing.begin(7, at(0), at(10)),
        |heard| assert_eq!(heard, Ok(7)),
    );
    explore_waiters(
        "waiting through a term that is over before it begins",
        |standing| {
            standing.begin(7, at(0), at(0)).expect("it has not ended");
            standing.end_term();
            standing.begin(8, at(0), at(10)).expect("it has not ended");
        },
        |heard| assert_eq!(heard, Ok(8)),
    );
    explore_waiters(
        "waiting for what ends at once",
        |standing| {
            standing.begin(7, at(0), at(10)).expect("it has not ended");
            standing.end_term();
            standing.end(Ok(()));
        },
        |heard| assert!(matches!(heard, Ok(7) | Err(ErrorKind::Stopped)), "{heard:?}"),
    );
    explore_waiters(
        "waiting while lead work overruns",
        |standing| standing.note(|status| status.overrun = Some((7, at(0)))),
        |heard| assert_eq!(heard, Err(ErrorKind::Overrun)),
    );
    explore_waiters(
        "waiting for the end",
        |standing| standing.end(Err(Error::dead())),
        |heard| assert_eq!(heard, Err(ErrorKind::Dead)),
    );
}
