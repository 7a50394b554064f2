//! What needs a machine of its own to be measured.

use std::hint;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{CAP, MS, builder, follows, renews};
use crate::support::{Proxy, Server, unique_group};

/// B07: a healthy leader lost its lease now and then, for its renewals had no time to spare.
#[test]
fn a_leader_on_a_busy_machine_and_a_slow_network_keeps_its_lease() {
    const TTL: Duration = Duration::from_secs(1);
    const RENEWALS: u64 = 12;
    let server = Server::start();
    let proxy = Proxy::to(&server);
    proxy.delay(5 * MS);
    let group = unique_group("busy");
    let start = |url: &str| builder(url, &group).ttl(TTL).start().expect("good options");
    let elector = start(&proxy.url());
    let leadership = elector.wait_for_leadership(CAP).expect("leads");
    let other = start(&server.url());
    follows(&other);
    let (is_over, from) = (AtomicBool::new(false), Instant::now());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(|| {
                // Not for ever, also where the test fails meanwhile.
                while !is_over.load(Ordering::Relaxed) && from.elapsed() < CAP {
                    hint::spin_loop();
                }
            });
        }
        renews(&elector, RENEWALS);
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(leadership.is_valid() && elector.on_demote().is_empty() && elector.on_error().is_empty());
    assert_eq!(other.status().counters.promotions, 0);
}
