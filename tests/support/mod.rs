//! The harness: servers, faults, candidates in processes of their own, and a judge of what they printed.

#![allow(dead_code, unused_imports, reason = "a harness offers what the next test needs, too")]

pub(crate) mod campaign;
pub(crate) mod cases;
pub(crate) mod cluster;
pub(crate) mod history;
pub(crate) mod hostile;
pub(crate) mod own_process;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod replicas;
pub(crate) mod sentinels;
pub(crate) mod server;
pub(crate) mod tls;

use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) use campaign::{Campaign, Line};
pub(crate) use cluster::Cluster;
pub(crate) use history::History;
pub(crate) use own_process::{in_own_process, in_own_process_within};
pub(crate) use proxy::{Flow, Proxy};
pub(crate) use replicas::Replicas;
pub(crate) use sentinels::Sentinels;
pub(crate) use server::{Admin, Reply, Server};

/// A group that no other test and no other run has.
pub(crate) fn unique_group(test: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{test}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The middle value; of an even number of values the larger of the two in the middle.
#[track_caller]
pub(crate) fn median<T: Ord + Copy>(values: &[T]) -> T {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    *sorted.get(sorted.len() / 2).expect("a median needs a value")
}

/// Waits until `look` succeeds, and returns what it found; panics after `cap` with what it saw last.
///
/// For conditions outside of this process that nothing announces. Where there is an event, wait for that.
#[track_caller]
pub(crate) fn eventually<T, S: Debug>(cap: Duration, mut look: impl FnMut() -> Result<T, S>) -> T {
    let from = Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(seen) => assert!(from.elapsed() < cap, "not within {cap:?}; seen last: {seen:?}"),
        }
        thread::sleep(Duration::from_millis(2));
    }
}
