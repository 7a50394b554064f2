//! Strict, as a program sees it: a hold, who leads meanwhile, and what it says of those who are not strict.

use std::time::Duration;

use taskrunner::election::{
    Builder, Elector, ErrorKind, Event, LeaseStore, MemoryStore, RedisStore, Strict, inspect,
};

use crate::support::{Server, eventually};

/// Long enough for anything that happens at all.
const CAP: Duration = Duration::from_secs(20);
const MS: Duration = Duration::from_millis(1);

fn builder(store: impl LeaseStore + 'static, strict: Strict) -> Builder {
    Elector::builder(store, "group").ttl(200 * MS).wait(200 * MS).jitter(Duration::ZERO).strict(strict)
}

/// The group's first start, on any store: nobody leads before the longest ttl is over, and everybody says so.
fn first_start(store: impl LeaseStore + Clone + 'static) {
    let longest = 600 * MS;
    let begun = std::time::Instant::now();
    let strict = Strict::replicas(0).longest_ttl(longest);
    let elector = builder(store.clone(), strict).start().expect("good options");
    let hold = eventually(CAP, || match inspect(&store, "group").expect("the store answers") {
        found if found.remaining.is_some() => Ok(found),
        found => Err(found),
    });
    let known = elector.status().leader;
    if begun.elapsed() < longest {
        // Who looks sees that the lease is parked, and that nobody leads.
        assert_eq!((hold.leader, known), (None, None));
    }
    let first = elector.wait_for_leadership(CAP).expect("leads").token();
    let took = begun.elapsed();
    assert!(took >= longest, "it led after {took:?}");
    assert_eq!(elector.status().counters.errors, 0);

    // A term that follows another one on the same data waits for nothing.
    elector.stop().expect("it is released");
    // Nor is the lease ever parked: the longest ttl is longer than the test waits.
    let strict = Strict::replicas(0).longest_ttl(10 * CAP);
    let next = builder(store, strict).start().expect("good options");
    let leadership = next.wait_for_leadership(CAP).expect("leads");
    assert!(leadership.token() > first);
}

#[test]
fn the_first_leader_of_a_group_comes_after_one_hold_and_the_next_at_once() {
    let server = Server::start();
    first_start(RedisStore::open(&server.url()).expect("a good URL"));
    first_start(MemoryStore::new());
}

#[test]
fn instances_of_a_group_that_are_not_alike_say_so() {
    let store = MemoryStore::new();
    let plain = Elector::builder(store.clone(), "group").start().expect("good options");
    plain.wait_for_leadership(CAP).expect("leads");
    let one = builder(store, Strict::replicas(2)).start().expect("good options");
    let error = one.events().iter().find_map(|event| match event {
        Event::Error(error) => Some(error),
        _ => None,
    });
    let error = error.expect("it is told");
    assert_eq!(error.kind(), ErrorKind::Configuration);
    for part in [plain.id(), "is not strict", "strict with 2 replicas", "must be alike"] {
        assert!(error.to_string().contains(part), "{error} lacks {part:?}");
    }
}

#[test]
fn instances_that_know_of_different_longest_ttls_say_so() {
    let store = MemoryStore::new();
    let long = builder(store.clone(), Strict::replicas(0)).ttl(600 * MS).start().expect("good options");
    long.wait_for_leadership(CAP).expect("leads");
    let short = builder(store, Strict::replicas(0)).start().expect("good options");
    // This one would wait 200 ms for a lease that may be lost with 600 ms left.
    let error = short.on_error().recv_timeout(CAP).expect("it is told");
    assert_eq!(error.kind(), ErrorKind::Configuration);
    for part in ["longest ttl of 600ms", "longest ttl of 200ms", "must be alike"] {
        assert!(error.to_string().contains(part), "{error} lacks {part:?}");
    }
}

#[test]
fn no_instance_is_called_what_a_parked_lease_is_known_by() {
    let named = Elector::builder(MemoryStore::new(), "group").name("hold").start();
    let error = named.expect_err("a parked lease would look the same");
    assert_eq!(error.kind(), ErrorKind::Configuration);
    Elector::builder(MemoryStore::new(), "group").name("holder").start().expect("a good name");
}
