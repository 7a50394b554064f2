//! The user's code: hooks, lead work and listeners that take their time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use taskrunner::election::{Builder, Elector, MemoryStore};

use super::{CAP, MS, follows, renews};

fn builder(store: &MemoryStore) -> Builder {
    Elector::builder(store.clone(), "group")
}

/// B08, B30: the user's code ran on the thread that renews, and the lease ended under it.
#[test]
fn a_hook_and_lead_work_that_keep_their_threads_busy_cost_the_lease_nothing() {
    type Told = fn(Builder, Arc<AtomicBool>) -> Builder;
    fn spin(is_over: &AtomicBool) {
        let from = Instant::now();
        // Not for ever, also where the test fails meanwhile.
        while !is_over.load(Ordering::Relaxed) && from.elapsed() < 2 * CAP {
            std::hint::spin_loop();
        }
    }
    let hook: Told = |builder, is_over| builder.on_promote(move |_| spin(&is_over));
    let work: Told = |builder, is_over| builder.lead(move |_| spin(&is_over));
    for busy in [hook, work] {
        let store = MemoryStore::new();
        let is_over = Arc::new(AtomicBool::new(false));
        let ttl = 2000 * MS;
        let elector = busy(builder(&store).ttl(ttl), Arc::clone(&is_over)).start().expect("good options");
        let leadership = elector.wait_for_leadership(CAP).expect("leads");
        let other = builder(&store).ttl(ttl).start().expect("good options");
        follows(&other);
        // Two ttls.
        renews(&elector, 4);
        assert!(leadership.is_valid() && !other.is_leader());
        is_over.store(true, Ordering::Relaxed);
        other.stop().expect("the memory answers");
        elector.stop().expect("the thread is free");
    }
}

/// B31: with a full channel the next renewal's time was not set, and they came one after the other.
#[test]
fn listeners_that_never_read_cause_no_more_renewals() {
    const RENEWALS: u64 = 10;
    let ttl = 200 * MS;
    let elector = builder(&MemoryStore::new()).ttl(ttl).start().expect("good options");
    let events = elector.events();
    while events.len() < 256 {
        elector.wait_for_leadership(CAP).expect("leads");
        elector.step_down(Duration::ZERO).expect("the memory answers");
    }
    elector.wait_for_leadership(CAP).expect("leads");
    let (from, before) = (Instant::now(), elector.status().counters.renewals);
    renews(&elector, RENEWALS);
    let made = elector.status().counters.renewals - before;
    // Each comes half a ttl after the one before, and the first may have been due when the time was taken.
    let most = from.elapsed().as_millis() / (ttl / 2).as_millis() + 1;
    assert!(u128::from(made) <= most, "{made} renewals, where {most} had their time");
    assert!(events.len() >= 256 && elector.on_promote().len() <= 1, "nobody has read");
}
