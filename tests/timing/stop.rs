//! The end of an elector: at any moment, on any network, and with nothing left behind.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use taskrunner::election::{Builder, Elector, ErrorKind, Operation, RedisStore};

use crate::support::process::{fd_count, thread_names};
use crate::support::{Admin, Proxy, Reply, Server, eventually, in_own_process, unique_group};

/// Longer than anything takes that is to happen.
const CAP: Duration = Duration::from_secs(20);

const MS: Duration = Duration::from_millis(1);

/// What a call may take beside the waits that its bound counts: waking threads on a busy machine.
const WAKING: Duration = Duration::from_millis(50);

fn builder(url: &str, group: &str) -> Builder {
    Elector::builder(RedisStore::open(url).expect("a good url"), group)
}

/// The threads of electors in this process.
fn our_threads() -> Vec<String> {
    thread_names(process::id()).into_iter().filter(|name| name.starts_with("tr-")).collect()
}

#[track_caller]
fn expect_no_threads_of_ours() {
    // The kernel lists a thread for a moment after it was joined.
    eventually(Duration::from_secs(1), || match our_threads() {
        threads if threads.is_empty() => Ok(()),
        threads => Err(threads),
    });
}

/// How many operations the server has been sent.
fn scripts(admin: &mut Admin) -> u64 {
    let info = admin.command(&["INFO", "commandstats"]);
    let line = info.text().lines().find_map(|line| line.strip_prefix("cmdstat_eval:calls="));
    line.and_then(|line| line.split(',').next()).map_or(0, |calls| calls.parse().expect("a number"))
}

fn holder(admin: &mut Admin, key: &str) -> Option<String> {
    match admin.command(&["GET", key]) {
        Reply::Nil => None,
        reply => Some(reply.text().to_owned()),
    }
}

/// The moments at which electors were ended.
#[derive(Default)]
struct Moments {
    leading: AtomicU32,
    following: AtomicU32,
    failed: AtomicU32,
}

/// Starts electors one after the other and ends each at a random moment.
struct Rounds<'a> {
    server: &'a Server,
    moments: &'a Moments,
    random: StdRng,
}

impl Rounds<'_> {
    /// One round over a proxy of its own; `sent` is what had been sent when the round before ended.
    fn run(&mut self, proxy: &Proxy, group: &str, sent: &mut u64) {
        let mut admin = self.server.admin();
        assert_eq!(proxy.traffic().to_server.bytes, *sent, "something was sent after the end");
        let ttl = MS * self.random.random_range(150..=200);
        let builder = builder(&proxy.url(), group).ttl(ttl).wait(50 * MS);
        let key = builder_key(group);
        if self.random.random_bool(0.3) {
            // Somebody else leads at first, so this one contends, and may win in the middle of the end.
            let foreign = self.random.random_range(1..=250).to_string();
            admin.command(&["SET", &key, "foreign", "PX", &foreign]);
        }
        // A handshake and an acquire take 20 ms, a renewal comes after at most 105 ms: two of those.
        let delay = Duration::from_micros(self.random.random_range(0..260_000));
        let with_drop = self.random.random_bool(0.5);

        let elector = builder.start().expect("good options");
        let id = elector.id().to_owned();
        thread::sleep(delay);
        let leadership = elector.leadership();
        let moment = if leadership.is_some() { &self.moments.leading } else { &self.moments.following };
        moment.fetch_add(1, Ordering::Relaxed);
        let mut released = true;
        if with_drop {
            drop(elector);
        } else {
            if let Err(error) = elector.stop() {
                assert_eq!(error.kind(), ErrorKind::Passing, "{}", error.to_chain());
                self.moments.failed.fetch_add(1, Ordering::Relaxed);
                released = false;
            }
            assert!(!elector.is_leader() && elector.leadership().is_none(), "leading after stop()");
        }
        *sent = proxy.traffic().to_server.bytes;
        assert!(leadership.is_none_or(|leadership| !leadership.is_valid()), "a term outlived its elector");
        if released && !with_drop {
            assert_ne!(holder(&mut admin, &key).as_deref(), Some(&*id), "the lease was not released");
        } else {
            // Nobody says whether a drop could release it. If an acquire was in flight, it ends by itself.
            eventually(ttl + WAKING, || match holder(&mut admin, &key) {
                Some(holder) if holder == id => Err(holder),
                _ => Ok(()),
            });
        }
        admin.command(&["DEL", &key]);
    }
}

/// The key of a group that was started before.
fn builder_key(group: &str) -> String {
    let store = taskrunner::election::MemoryStore::new();
    Elector::builder(store, group).start().expect("good options").key().to_owned()
}
