//! Those who listen to an elector: late, never, or sixteen at once.

#![allow(clippy::print_stderr, reason = "a test that measures shows its figures")]

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use taskrunner::election::{Elector, ErrorKind, Event, Leadership, MemoryStore, Reason, RedisStore};

use crate::support::process::rss_kb;
use crate::support::{Server, eventually, in_own_process, unique_group};

/// Longer than anything takes that is to happen, on the slowest machine.
const CAP: Duration = Duration::from_secs(30);

const MS: Duration = Duration::from_millis(1);

/// The token of a promotion.
fn promoted(event: &Event) -> Option<u64> {
    match event {
        Event::Promoted(leadership) => Some(leadership.token()),
        _ => None,
    }
}

fn recv(events: &Receiver<Event>) -> Event {
    events.recv_timeout(CAP).expect("an event comes")
}

#[test]
fn a_subscriber_that_slept_through_a_thousand_changes_hears_how_many_it_missed_and_the_true_state() {
    const ROUNDS: usize = 500;
    let elector = Elector::builder(MemoryStore::new(), "demo").start().expect("good options");
    let first = elector.wait_for_leadership(CAP).expect("leads").token();
    let (sleeper, reader) = (elector.events(), elector.events());
    let all = thread::spawn(move || reader.iter().collect::<Vec<_>>());
    let mut last = first;
    for _ in 0..ROUNDS {
        elector.step_down(Duration::ZERO).expect("the memory answers");
        last = elector.wait_for_leadership(CAP).expect("leads again").token();
    }
    // The last promotion is proved before it is told. It has been by the time a later subscription begins.
    recv(&elector.events());

    // What it has room for, and then how many more there were.
    let mut before = Vec::new();
    let missed = loop {
        match recv(&sleeper) {
            Event::Missed { count } => break count,
            event => before.push(event),
        }
    };
    assert_eq!(before.len(), 256, "the documented size of a subscription");
    assert_eq!(promoted(&recv(&sleeper)), Some(last), "the true state: this instance leads");
    match recv(&sleeper) {
        Event::LeaderChanged(Some(leader)) => {
            assert_eq!((leader.id.as_str(), leader.token), (elector.id(), Some(last)));
        }
        event => panic!("{event:?} in the place of the holder"),
    }
    assert_eq!(elector.leadership().map(|leadership| leadership.token()), Some(last));

    // It is a listener like any other again.
    elector.step_down(CAP).expect("the memory answers");
    match recv(&sleeper) {
        Event::Demoted(demotion) => {
            assert_eq!((demotion.token, demotion.reason), (last, Reason::SteppedDown));
        }
        event => panic!("{event:?} in the place of the demotion"),
    }
    assert!(matches!(recv(&sleeper), Event::LeaderChanged(None)));
    elector.stop().expect("the memory answers");
    assert!(matches!(recv(&sleeper), Event::Stopped));
    assert!(sleeper.recv().is_err(), "nothing follows");

    // The one that read all along had every event: a promotion and a demotion in each round, and the holder's
    // change with each; the present state at first; and the end.
    let all = all.join().expect("no panic");
    assert_eq!(all.iter().filter_map(promoted).count(), ROUNDS + 1);
    assert_eq!(all.len(), 2 + 4 * ROUNDS + 2 + 1);
    assert_eq!(
        before.len() as u64 + missed,
        all.len() as u64 - 3,
        "what was read and what was missed add up"
    );
    for (slept, read) in before.iter().zip(&all) {
        assert_eq!(format!("{:?}", promoted(slept)), format!("{:?}", promoted(read)), "{slept:?} {read:?}");
    }
    eprintln!("a subscriber read {} events, missed {missed} and then knew the state", before.len());
}

#[test]
fn nobody_reads_any_channel_while_redis_is_down_and_nothing_grows_or_waits() {
    in_own_process(
        "listeners::nobody_reads_any_channel_while_redis_is_down_and_nothing_grows_or_waits",
        || {
            let mut server = Server::start();
            let store = RedisStore::open(&server.url()).expect("a good url");
            let (ttl, margin, call_limit) = (200 * MS, 10 * MS, 100 * MS);
            let elector = Elector::builder(store, unique_group("unread"))
                .ttl(ttl)
                .stop_margin(margin)
                // Many attempts, and so many errors.
                .wait(10 * MS)
                .start()
                .expect("good options");
            let leadership = elector.wait_for_leadership(CAP).expect("leads");
            let subscriptions: Vec<_> = (0..100).map(|_| elector.events()).collect();
            let channels = (elector.on_promote(), elector.on_demote(), elector.on_error());

            server.kill();
            // Nothing is proved after this: no renewal was sent later than now.
            let deadline = Instant::now() + ttl - margin;
            let mut last_true = None;
            loop {
                let before = Instant::now();
                match elector.is_leader() {
                    true => last_true = Some(before),
                    false => break,
                }
                thread::sleep(MS / 2);
            }
            assert!(last_true.is_none_or(|at| at < deadline), "it led after its deadline");
            assert!(leadership.lost().recv_timeout(CAP).is_err_and(|error| error.is_disconnected()));

            // First all buffers fill up; from then on everything is to stay as it is.
            let lengths = || subscriptions.iter().map(Receiver::len).collect::<Vec<_>>();
            let full = eventually(CAP, || match lengths() {
                lengths if lengths.iter().all(|length| *length >= 256) => Ok(lengths),
                lengths => Err(lengths),
            });
            let (filled, renewal) = (rss_kb(process::id()), ttl / 2);
            thread::sleep(50 * renewal);
            let after = rss_kb(process::id());
            eprintln!(
                "100 unread subscriptions through 50 renewals without Redis: {filled} kB, then {after} kB"
            );
            assert_eq!(lengths(), full, "a full subscription takes no more");
            assert!(channels.2.len() == 16 && channels.1.len() == 1 && channels.0.is_empty());
            // Each error for each subscription would be some hundred kB a second.
            assert!(after < filled + 512, "memory has grown by {} kB", after - filled);

            let from = Instant::now();
            elector.stop().expect("the lease has expired long ago");
            let took = from.elapsed();
            eprintln!("stop() took {took:?}");
            // The lead grace, which is a ttl, and two call limits.
            assert!(took <= ttl + 2 * call_limit, "stop() took {took:?}");
            for subscription in subscriptions {
                assert!(
                    matches!(subscription.iter().last(), Some(Event::Stopped)),
                    "everybody still hears of the end"
                );
            }
        },
    );
}

#[test]
fn promotions_and_demotions_alternate_strictly_through_two_hundred_lost_leases() {
    const GROUPS: usize = 4;
    const LOSSES: usize = 50;
    let server = Server::start();
    let lose_fifty = || {
        let store = RedisStore::open(&server.url()).expect("a good url");
        let elector = Elector::builder(store, unique_group("alternate"))
            .ttl(100 * MS)
            .wait(50 * MS)
            .start()
            .expect("good options");
        let (events, mut admin) = (elector.events(), server.admin());
        let (mut leading, mut last, mut lost) = (None, 0, 0);
        while lost < LOSSES {
            match recv(&events) {
                Event::Promoted(leadership) => {
                    let token = leadership.token();
                    assert_eq!(leading, None, "promoted to {token} while promoted");
                    assert!(token > last, "token {token} after {last}");
                    (leading, last) = (Some(token), token);
                    admin.command(&["DEL", elector.key()]);
                }
                Event::Demoted(demotion) => {
                    assert_eq!(
                        leading,
                        Some(demotion.token),
                        "demoted, but not from the term it was promoted to"
                    );
                    leading = None;
                    // A busy machine may be late with a renewal now and then.
                    lost += usize::from(demotion.reason == Reason::Lost);
                }
                Event::Missed { count } => panic!("{count} events were missed"),
                _ => {}
            }
        }
        elector.stop().expect("the server answers");
        // What came after the last loss.
        for event in events.iter() {
            match event {
                Event::Promoted(leadership) => assert_eq!(leading.replace(leadership.token()), None),
                Event::Demoted(demotion) => assert_eq!(leading.take(), Some(demotion.token)),
                _ => {}
            }
        }
        assert_eq!(leading, None, "stopped while promoted");
    };
    thread::scope(|scope| {
        for _ in 0..GROUPS {
            scope.spawn(lose_fifty);
        }
    });
}

/// What one thread does to two electors of one group until it is told to end. Returns how much it did.
fn hammer(electors: &[Elector; 2], is_over: &AtomicBool, seed: u64) -> u64 {
    let mut random = StdRng::seed_from_u64(seed);
    let mut highest = [0; 2];
    let mut calls = 0;
    while !is_over.load(Ordering::Relaxed) {
        calls += 1;
        let which = random.random_range(0..2);
        let (elector, other) = (&electors[which], &electors[1 - which]);
        match random.random_range(0..1000) {
            // Rarely, so that there are terms to look at between the changes.
            0 => elector.step_down(Duration::ZERO).expect("the memory answers"),
            1 => elector.step_down(MS).expect("the memory answers"),
            2..5 => {
                if let Some(leadership) = elector.leadership() {
                    leadership.step_down();
                }
            }
            5..15 => {
                if let Err(error) = elector.wait_for_leadership(MS) {
                    assert_eq!(error.kind(), ErrorKind::Timeout, "{}", error.to_chain());
                }
            }
            15..30 => {
                let events = elector.events();
                let first = events.recv_timeout(CAP).expect("a subscription begins with the present state");
                assert!(matches!(first, Event::Promoted(_) | Event::LeaderChanged(_)), "{first:?}");
            }
            30..40 => {
                elector.on_promote().try_iter().count();
                elector.on_demote().try_iter().count();
                let error = elector.on_error().try_recv().ok();
                assert!(error.is_none(), "{error:?}");
            }
            40..50 => assert!(format!("{elector:?} {:?}", elector.leadership()).contains(elector.id())),
            _ => {
                let before = elector.leadership();
                let leads = elector.is_leader();
                let after = elector.leadership();
                let tokens = [&before, &after].map(|leadership| leadership.as_ref().map(Leadership::token));
                // A term that has ended does not come back, so it stood all the time between.
                if tokens[0].is_some() && tokens[0] == tokens[1] {
                    assert!(leads, "not leading within the term {:?}", tokens[0]);
                }
                for token in tokens.into_iter().flatten() {
                    assert!(token >= highest[which], "token {token} after {}", highest[which]);
                    highest[which] = token;
                }
                // The term was valid before and after the other's, so at the same time.
                if let Some(leadership) = &after
                    && let Some(others) = other.leadership()
                {
                    assert!(!leadership.is_valid(), "{leadership:?} and {others:?} at once");
                }
            }
        }
    }
    calls
}

#[test]
fn sixteen_threads_that_call_everything_while_leaders_change_see_one_consistent_leader() {
    const THREADS: u64 = 16;
    let store = MemoryStore::new();
    let electors = Arc::new([(); 2].map(|()| {
        let builder = Elector::builder(store.clone(), "demo").ttl(1000 * MS).wait(10 * MS);
        builder.start().expect("good options")
    }));
    let is_over = Arc::new(AtomicBool::new(false));
    let changes = Arc::new(AtomicU64::new(0));
    let counts = electors.iter().map(|elector| {
        let (events, changes) = (elector.events(), Arc::clone(&changes));
        thread::spawn(move || {
            for event in events {
                changes.fetch_add(promoted(&event).map_or(0, |_| 1), Ordering::Relaxed);
            }
        })
    });
    let counts: Vec<_> = counts.collect();
    let seed: u64 = rand::random();
    eprintln!("seed {seed}");
    let (done, all_done) = bounded(THREADS as usize);
    for number in 0..THREADS {
        let (electors, is_over, done) = (Arc::clone(&electors), Arc::clone(&is_over), done.clone());
        // Dropped on a panic too, and then nothing was sent.
        thread::spawn(move || done.send(hammer(&electors, &is_over, seed.wrapping_add(number))));
    }
    drop(done);
    thread::sleep(Duration::from_secs(3));
    is_over.store(true, Ordering::Relaxed);
    let mut calls = Vec::new();
    for _ in 0..THREADS {
        calls.push(all_done.recv_timeout(CAP).expect("no thread panics, and none is stuck"));
    }
    for elector in electors.iter() {
        elector.stop().expect("the memory answers");
    }
    for count in counts {
        count.join().expect("no panic");
    }
    let changes = changes.load(Ordering::Relaxed);
    eprintln!("{} calls during {changes} promotions", calls.iter().sum::<u64>());
    assert!(changes > 20, "too few changes to prove anything: {changes}");
}
