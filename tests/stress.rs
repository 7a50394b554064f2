//! Many threads at once: what is told to a hundred and more listeners, and stops from everywhere.

#![allow(clippy::print_stderr, reason = "a test that measures shows its figures")]

use std::process;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded, unbounded};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use taskrunner::election::{
    Builder, Demotion, Elector, Error, ErrorKind, Event, Leadership, MemoryStore, Reason, Role,
};

use crate::support::process::thread_names;
use crate::support::{eventually, in_own_process};

/// Longer than anything takes that is to happen, on the slowest machine.
const CAP: Duration = Duration::from_secs(30);

const MS: Duration = Duration::from_millis(1);

/// An elector that loses no term by a slow machine.
fn builder(store: &MemoryStore) -> Builder {
    Elector::builder(store.clone(), "stress").ttl(Duration::from_secs(60)).wait(10 * MS)
}

fn leads(elector: &Elector) -> Leadership {
    elector.wait_for_leadership(CAP).expect("leads")
}

fn seeded() -> u64 {
    let seed = rand::random();
    eprintln!("seed {seed}");
    seed
}

#[track_caller]
fn expect_no_threads_of_ours() {
    // The kernel lists a thread for a moment after it was joined.
    eventually(CAP, || {
        let mut names = thread_names(process::id());
        names.retain(|name| name.starts_with("tr-"));
        if names.is_empty() { Ok(()) } else { Err(names) }
    });
}

/// What identifies an event among all that one elector tells.
fn shown(event: &Event) -> String {
    match event {
        Event::Promoted(leadership) => format!("promoted {}", leadership.token()),
        Event::Demoted(demotion) => format!("demoted {} {}", demotion.token, demotion.reason),
        Event::LeaderChanged(leader) => {
            format!("leader {:?}", leader.as_ref().and_then(|leader| leader.token))
        }
        other => format!("{other:?}"),
    }
}

/// Everything that was emitted, as it was told to a subscription that missed nothing.
struct Emitted(Vec<String>);

impl Emitted {
    /// Reads a subscription to its end.
    fn all_of(subscription: &Receiver<Event>) -> Self {
        Self(subscription.iter().map(|event| shown(&event)).collect())
    }

    /// Checks what another subscription was told, after the present state that it began with: it is what was
    /// emitted from some event on to the last, but that `Missed` and the present state stand exactly for what
    /// is not there. Returns how much was missed.
    #[track_caller]
    fn check(&self, told: &[Event]) -> u64 {
        let is_leader = |event: &&Event| matches!(event, Event::LeaderChanged(_));
        // The state ends with the holder, who is told again when others subscribe. What follows is a change of
        // role or the end: each of those is emitted once.
        let mut told = told.iter().skip_while(|event| !is_leader(event)).skip_while(is_leader).peekable();
        let first = told.peek().map(|event| shown(event)).expect("the end, if nothing else");
        let emitted = self.0.iter().position(|emitted| *emitted == first);
        let mut next = emitted.unwrap_or_else(|| panic!("{first} was not emitted"));
        let mut missed = 0;
        while let Some(event) = told.next() {
            if let Event::Missed { count } = event {
                missed += count;
                next += usize::try_from(*count).expect("few");
                let before = &self.0[..next];
                let last = |kinds: &[&str]| {
                    let of_kind = |emitted: &&String| kinds.iter().any(|kind| emitted.starts_with(kind));
                    before.iter().rev().find(of_kind).expect("the elector has led").clone()
                };
                let present = [last(&["promoted", "demoted"]), last(&["leader"])];
                let state = [told.next(), told.next()].map(|event| event.map_or_else(String::new, shown));
                assert_eq!(state, present, "the state after {count} were missed");
            } else {
                assert_eq!(self.0.get(next), Some(&shown(event)), "event {next} of {}", self.0.len());
                next += 1;
            }
        }
        assert_eq!(next, self.0.len(), "what was told and what was missed add up");
        missed
    }
}

/// Subscribes all the time until the elector has stopped. Returns some of the subscriptions, and what each
/// was told first.
fn subscribe_all_the_time(elector: Arc<Elector>, seed: u64) -> JoinHandle<Vec<(Event, Receiver<Event>)>> {
    thread::spawn(move || {
        let mut random = StdRng::seed_from_u64(seed);
        let mut kept = Vec::new();
        loop {
            let subscription = elector.events();
            let first = subscription.recv_timeout(CAP).expect("the present state, or the end");
            if matches!(first, Event::Stopped) {
                assert!(subscription.recv().is_err(), "nothing follows");
                return kept;
            }
            // The others are dropped, mostly while something is told.
            if random.random_bool(0.1) {
                kept.push((first, subscription));
            }
            thread::sleep(Duration::from_micros(random.random_range(0..2000)));
        }
    })
}

#[test]
fn what_a_hundred_subscriptions_read_and_missed_adds_up_exactly_to_what_was_emitted() {
    const UNREAD: usize = 40;
    const SLEEPY: usize = 40;
    const QUICK: usize = 20;
    const DROPPED: usize = 40;
    const ROUNDS: usize = 500;
    let seed = seeded();
    let mut random = StdRng::seed_from_u64(seed);
    let elector = Arc::new(builder(&MemoryStore::new()).start().expect("good options"));
    leads(&elector);
    let subscribe = |count| (0..count).map(|_| elector.events()).collect::<Vec<_>>();
    let witness = elector.events();
    let (unread, sleepy, quick, dropped) =
        (subscribe(UNREAD), subscribe(SLEEPY), subscribe(QUICK), subscribe(DROPPED));

    let witness = thread::spawn(move || Emitted::all_of(&witness));
    let quick = quick.into_iter().map(|quick| thread::spawn(move || quick.iter().collect::<Vec<_>>()));
    let quick: Vec<_> = quick.collect();
    // Some of these fall behind, and catch up, and fall behind again.
    let sleepy = thread::spawn(move || {
        let mut random = StdRng::seed_from_u64(seed.wrapping_add(1));
        let mut told = vec![Vec::new(); SLEEPY];
        let has_ended = |told: &Vec<Event>| matches!(told.last(), Some(Event::Stopped));
        while !told.iter().all(has_ended) {
            let which = random.random_range(0..SLEEPY);
            let most = random.random_range(0..600);
            told[which].extend(sleepy[which].try_iter().take(most));
            thread::sleep(Duration::from_micros(random.random_range(0..3000)));
        }
        told
    });
    let late = subscribe_all_the_time(Arc::clone(&elector), seed.wrapping_add(2));
    let mut dropped = dropped.into_iter();
    for _ in 0..ROUNDS {
        elector.step_down(Duration::ZERO).expect("the memory answers");
        leads(&elector);
        if random.random_bool(0.1) {
            drop(dropped.next());
        }
    }
    elector.stop().expect("the memory answers");

    let emitted = witness.join().expect("no panic");
    assert!(!emitted.0.iter().any(|event| event.starts_with("Missed")), "the witness missed something");
    let roles =
        emitted.0.iter().filter(|event| event.starts_with("promoted") || event.starts_with("demoted"));
    for (at, role) in roles.enumerate() {
        assert_eq!(role.starts_with("promoted"), at % 2 == 0, "event {at} of those that alternate is {role}");
    }
    let all = |subscription: &Receiver<Event>| subscription.iter().collect::<Vec<_>>();
    for unread in &unread {
        assert!(emitted.check(&all(unread)) > 1000, "who never reads misses most");
    }
    let sleepy: Vec<_> = sleepy.join().expect("no panic").iter().map(|told| emitted.check(told)).collect();
    for quick in quick {
        assert_eq!(emitted.check(&quick.join().expect("no panic")), 0, "who reads all along misses nothing");
    }
    let late = late.join().expect("no panic");
    for (first, late) in &late {
        let told: Vec<_> = [first.clone()].into_iter().chain(late).collect();
        emitted.check(&told);
    }
    eprintln!(
        "{} events; {} of {SLEEPY} sleepy listeners fell behind, {} subscribed later",
        emitted.0.len(),
        sleepy.iter().filter(|missed| **missed > 0).count(),
        late.len(),
    );
    assert!(late.len() > 5, "hardly anybody subscribed meanwhile");
}

/// What was taken from the pair of `on_promote` and `on_demote`, by however many threads.
#[derive(Default)]
struct Taken {
    /// The newest change that was taken: its token, and whether it was the demotion.
    newest: (u64, bool),
    promotions: usize,
    demotions: usize,
}

impl Taken {
    fn take(&mut self, promote: &Receiver<Leadership>, demote: &Receiver<Demotion>, first_promote: bool) {
        let mut changes = Vec::new();
        for promotions in [first_promote, !first_promote] {
            if promotions {
                changes.extend(promote.try_recv().map(|leadership| (leadership.token(), false)));
            } else {
                changes.extend(demote.try_recv().map(|demotion| (demotion.token, true)));
            }
        }
        for change in changes {
            assert!(change > self.newest, "{change:?} after {:?} (token, demoted)", self.newest);
            self.newest = change;
            *if change.1 { &mut self.demotions } else { &mut self.promotions } += 1;
        }
    }
}

#[test]
fn a_random_reader_never_takes_from_the_pair_of_channels_what_a_newer_entry_contradicts() {
    const READERS: u64 = 4;
    const ROUNDS: usize = 2000;
    let seed = seeded();
    let elector = Arc::new(builder(&MemoryStore::new()).start().expect("good options"));
    let (events, is_over) = (elector.events(), Arc::new(AtomicBool::new(false)));
    let taken = Arc::new(Mutex::new(Taken::default()));
    let readers: Vec<_> = (0..READERS)
        .map(|number| {
            let (elector, taken, is_over) = (Arc::clone(&elector), Arc::clone(&taken), Arc::clone(&is_over));
            thread::spawn(move || {
                let mut random = StdRng::seed_from_u64(seed.wrapping_add(number));
                while !is_over.load(Ordering::Relaxed) {
                    let (promote, demote) = (elector.on_promote(), elector.on_demote());
                    // One at a time, so that what was taken has an order.
                    taken.lock().expect("no panic").take(&promote, &demote, random.random_bool(0.5));
                    thread::sleep(Duration::from_micros(random.random_range(0..500)));
                }
            })
        })
        .collect();
    let (promote, demote) = (elector.on_promote(), elector.on_demote());
    let mut random = StdRng::seed_from_u64(seed.wrapping_add(READERS));
    let told = || events.recv_timeout(CAP).expect("an event comes");
    for _ in 0..ROUNDS {
        let token = loop {
            if let Event::Promoted(leadership) = told() {
                break leadership.token();
            }
        };
        // Nothing changes until this thread wants it: the pair holds this promotion, or nothing.
        assert!(demote.is_empty(), "a demotion beside the promotion under token {token}");
        // The other promotions are left for the readers, or for the demotion to clear.
        if random.random_bool(0.3) {
            let mut taken = taken.lock().expect("no panic");
            taken.take(&promote, &demote, true);
            assert_eq!(taken.newest, (token, false));
        }
        elector.step_down(Duration::ZERO).expect("the memory answers");
    }
    elector.stop().expect("the memory answers");
    is_over.store(true, Ordering::Relaxed);
    readers.into_iter().for_each(|reader| reader.join().expect("no panic"));
    let mut taken = taken.lock().expect("no panic");
    taken.take(&promote, &demote, true);
    assert!(taken.newest.1, "the last that the pair held is the end of the last term");
    assert!(promote.try_recv().is_err() && demote.try_recv() == Err(TryRecvError::Disconnected));
    eprintln!("{} promotions and {} demotions were taken", taken.promotions, taken.demotions);
    assert!(taken.demotions > 20, "too few to prove anything: {}", taken.demotions);
}

/// An elector that all who have this may stop at the same moment.
struct Stoppable {
    elector: OnceLock<Elector>,
    start: Barrier,
    told: Sender<Result<(), Error>>,
}

impl Stoppable {
    fn stop(&self) -> &Elector {
        self.start.wait();
        let elector = self.elector.get().expect("it was set before the start");
        let outcome = elector.stop();
        self.told.send(outcome).expect("kept");
        elector
    }

    /// A stop by one of the elector's own threads, which must not keep the elector.
    fn stop_once(this: &Arc<Self>, really: bool) -> impl Fn() + Send + Sync + use<> {
        let (this, is_done) = (Arc::downgrade(this), AtomicBool::new(!really));
        move || {
            if let (false, Some(this)) = (is_done.swap(true, Ordering::Relaxed), this.upgrade()) {
                this.stop();
            }
        }
    }
}

#[test]
fn stops_from_thirty_two_threads_a_hook_and_the_lead_work_all_return_and_agree() {
    in_own_process(
        "stress::stops_from_thirty_two_threads_a_hook_and_the_lead_work_all_return_and_agree",
        || {
            const THREADS: usize = 32;
            const ROUNDS: usize = 21;
            for round in 0..ROUNDS {
                let (from_hook, from_work) = (round % 2 == 1, round % 4 >= 2);
                // A cut store keeps the lease from being released, and all are told. That is tried for as long
                // as a stop may take: the grace and two call limits.
                let is_cut = round == ROUNDS - 1;
                let grace = if is_cut { 1000 * MS } else { CAP };
                let (store, switch) = MemoryStore::new().with_switch();
                let stops = THREADS + usize::from(from_hook) + usize::from(from_work);
                let (told, outcomes) = unbounded();
                let start = Barrier::new(stops);
                let stoppable = Arc::new(Stoppable { elector: OnceLock::new(), start, told });
                let hook = Stoppable::stop_once(&stoppable, from_hook);
                let work = Stoppable::stop_once(&stoppable, from_work);
                let elector = builder(&store)
                    .on_promote(move |_| hook())
                    .lead(move |leadership| {
                        work();
                        leadership.lost().recv().expect_err("no message is ever sent");
                    })
                    .lead_grace(grace)
                    .start()
                    .expect("good options");
                leads(&elector);
                stoppable.elector.set(elector).expect("set once");
                if is_cut {
                    switch.cut();
                }
                for _ in 0..THREADS {
                    let stoppable = Arc::clone(&stoppable);
                    thread::spawn(move || {
                        let elector = stoppable.stop();
                        assert!(
                            !elector.is_leader() && elector.leadership().is_none(),
                            "it leads after stop()"
                        );
                    });
                }
                let what = format!("round {round}, hook {from_hook}, work {from_work}, cut {is_cut}");
                let mut seen = Vec::new();
                while seen.len() < stops {
                    let outcome = outcomes.recv_timeout(CAP);
                    seen.push(outcome.unwrap_or_else(|_| panic!("{what}: {} stops are back", seen.len())));
                }
                let elector = stoppable.elector.get().expect("it was set");
                let last = elector.stop();
                assert_eq!(elector.status().role, Role::Stopped);
                assert_eq!(last.is_err(), is_cut, "{what}: {last:?}");
                // Within the lead work it returns before anything has ended.
                let others = seen.iter().filter(|outcome| format!("{outcome:?}") != format!("{last:?}"));
                assert!(others.count() <= usize::from(from_work), "{what}: {last:?}, but {seen:?}");
                drop(stoppable);
                expect_no_threads_of_ours();
            }
        },
    );
}

/// Calls any method, and checks what it can return while the elector ends. `run` returns when the elector
/// stops, so it is called where somebody stops it.
fn call_anything(elector: &Elector, random: &mut StdRng, is_stopped: bool) {
    let expected = |error: &Error| {
        let kinds = [ErrorKind::Stopped, ErrorKind::Timeout];
        assert!(kinds.contains(&error.kind()), "{}", error.to_chain());
    };
    match random.random_range(0..11 + u32::from(is_stopped)) {
        0 => _ = elector.is_leader(),
        1 => _ = elector.status(),
        2 => _ = elector.wait_for_leadership(MS).inspect_err(expected),
        3 => _ = elector.step_down(Duration::ZERO).inspect_err(expected),
        4 => _ = elector.current_leader().inspect_err(expected),
        5 => _ = elector.events().recv_timeout(CAP).expect("the present state, or the end"),
        6 => _ = elector.on_promote().try_recv(),
        7 => _ = elector.on_demote().try_recv(),
        8 => assert!(elector.on_error().try_recv().is_err(), "nothing fails"),
        9 => assert!(format!("{elector:?}").contains(elector.id())),
        10 => {
            if let Some(leadership) = elector.leadership() {
                leadership.step_down();
                _ = leadership.check().inspect_err(|error| assert_eq!(error.kind(), ErrorKind::NotLeading));
            }
        }
        _ => elector.run(|leadership| leadership.step_down()).unwrap_or_else(|error| {
            // Somebody else's work may be running.
            assert_eq!(error.kind(), ErrorKind::Configuration, "{}", error.to_chain());
        }),
    }
}

#[test]
fn an_elector_that_is_stopped_or_dropped_while_others_call_everything_leaves_nobody_waiting() {
    in_own_process(
        "stress::an_elector_that_is_stopped_or_dropped_while_others_call_everything_leaves_nobody_waiting",
        || {
            const THREADS: u64 = 8;
            const ROUNDS: u64 = 40;
            let seed = seeded();
            let calls = Arc::new(AtomicUsize::new(0));
            for round in 0..ROUNDS {
                let elector = Arc::new(builder(&MemoryStore::new()).start().expect("good options"));
                let first = leads(&elector);
                let (events, promote, demote) = (elector.events(), elector.on_promote(), elector.on_demote());
                let (done, all_done) = bounded(THREADS as usize);
                let stops = round % 2 == 0;
                let is_over = Arc::new(AtomicBool::new(false));
                for number in 0..THREADS {
                    let (elector, calls) = (Arc::clone(&elector), Arc::clone(&calls));
                    let (is_over, done) = (Arc::clone(&is_over), done.clone());
                    let mut random = StdRng::seed_from_u64(seed.wrapping_add(THREADS * round + number));
                    thread::spawn(move || {
                        while !is_over.load(Ordering::Relaxed) {
                            call_anything(&elector, &mut random, stops);
                            calls.fetch_add(1, Ordering::Relaxed);
                        }
                        drop(elector);
                        done.send(()).expect("kept");
                    });
                }
                thread::sleep(5 * MS);
                if stops {
                    // All is called on an elector that ends, and that has ended.
                    elector.stop().expect("the memory answers");
                    assert!(!elector.is_leader());
                    thread::sleep(MS);
                }
                is_over.store(true, Ordering::Relaxed);
                drop(elector);
                // What outlives the elector is used while it is dropped, by whichever thread is the last.
                eventually(CAP, || {
                    first.step_down();
                    assert!(!(first.check().is_err() && first.is_valid()), "an ended term is valid again");
                    if all_done.len() == THREADS as usize { Ok(()) } else { Err(all_done.len()) }
                });
                assert!(!first.is_valid() && first.lost().try_recv() == Err(TryRecvError::Disconnected));
                let events: Vec<_> = events.iter().collect();
                assert!(matches!(events.last(), Some(Event::Stopped)), "{:?}", events.last());
                let ends = |event: &&Event| matches!(event, Event::Demoted(demotion) if demotion.reason == Reason::Stopped);
                assert!(events.iter().filter(ends).count() <= 1);
                assert_eq!(promote.iter().count(), 0, "a promotion is left over");
                assert!(demote.iter().count() <= 1);
                expect_no_threads_of_ours();
            }
            eprintln!("{} calls", calls.load(Ordering::Relaxed));
        },
    );
}
