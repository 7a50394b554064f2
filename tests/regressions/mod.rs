//! Failures that other libraries for leases and leader election have had, each put to this one. `tests/REGRESSIONS.md`
//! lists them all, with the tests that cover them.

mod callbacks;
mod clock;
mod connections;
mod data_loss;
mod errors;
mod identity;
mod leaks;
mod observing;
mod options;
mod panics;
mod permissions;
mod server_faults;
mod stopping;
mod table;
mod timing;
mod versions;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use taskrunner::election::{Builder, Elector, Event, Leadership, MemoryStore, Reason, RedisStore};

use crate::support::{Admin, Reply, Server, eventually};

/// Longer than anything takes that is to happen, on the slowest machine.
const CAP: Duration = Duration::from_secs(30);

const MS: Duration = Duration::from_millis(1);

fn builder(url: &str, group: &str) -> Builder {
    Elector::builder(RedisStore::open(url).expect("a good url"), group)
}

#[track_caller]
fn leads(elector: &Elector) -> Leadership {
    elector.wait_for_leadership(CAP).unwrap_or_else(|error| panic!("{}", error.to_chain()))
}

/// Waits until the elector knows that another one holds the lease, and returns that one's id.
#[track_caller]
fn follows(elector: &Elector) -> String {
    eventually(CAP, || match elector.status().leader {
        Some(leader) if leader.id != elector.id() => Ok(leader.id),
        other => Err(other),
    })
}

/// Waits for an event that `pick` takes, and throws away those before it.
#[track_caller]
fn next<T>(events: &Receiver<Event>, what: &str, mut pick: impl FnMut(&Event) -> Option<T>) -> T {
    let until = Instant::now() + CAP;
    let mut seen = Vec::new();
    loop {
        match events.recv_deadline(until) {
            Ok(event) => match pick(&event) {
                Some(found) => return found,
                None => seen.push(event),
            },
            Err(error) => panic!("no event {what} within {CAP:?} ({error}); these came: {seen:?}"),
        }
    }
}

fn demotion(event: &Event) -> Option<(u64, Reason)> {
    match event {
        Event::Demoted(demotion) => Some((demotion.token, demotion.reason)),
        _ => None,
    }
}

/// Waits until the elector has been told of so many errors in all.
#[track_caller]
fn wait_for_errors(elector: &Elector, count: u64) {
    eventually(CAP, || match elector.status().counters.errors {
        errors if errors >= count => Ok(()),
        errors => Err(errors),
    });
}

/// Waits until the elector has had this many more renewals answered.
#[track_caller]
fn renews(elector: &Elector, times: u64) {
    let from = elector.status().counters.renewals;
    eventually(CAP, || match elector.status().counters.renewals {
        now if now >= from + times => Ok(()),
        now => Err(now - from),
    });
}

/// The lease key of a group, without an elector that contends on the test's server.
fn key_of(group: &str) -> String {
    Elector::builder(MemoryStore::new(), group).start().expect("good options").key().to_owned()
}

fn term_of(key: &str) -> String {
    format!("{{{key}}}:term")
}

fn holder(admin: &mut Admin, key: &str) -> Option<String> {
    match admin.command(&["GET", key]) {
        Reply::Nil => None,
        reply => Some(reply.text().to_owned()),
    }
}

/// A name whose server can change, as one behind which a failover happens.
#[derive(Clone)]
struct Name(Arc<Mutex<SocketAddr>>);

impl Name {
    fn of(server: &Server) -> Self {
        Self(Arc::new(Mutex::new(server.address())))
    }

    fn move_to(&self, server: &Server) {
        *self.0.lock().expect("no panic") = server.address();
    }

    fn builder(&self, group: &str) -> Builder {
        let address = Arc::clone(&self.0);
        let store = RedisStore::open("redis://leases.test").expect("a good url");
        let resolve = move |_: &str, _: u16| Ok(vec![*address.lock().expect("no panic")]);
        Elector::builder(store.with_resolver(resolve), group)
    }
}

/// When the lease ends, in µs of the server's own clock. Inside a script its time stands still.
fn lease_end_us(admin: &mut Admin, key: &str) -> u64 {
    const LEASE_END: &str = "local now = redis.call('TIME')
        return (now[1] * 1000 + math.floor(now[2] / 1000) + redis.call('PTTL', KEYS[1])) * 1000";
    admin.command(&["EVAL", LEASE_END, "1", key]).int().try_into().expect("after 1970")
}

/// What a field of the term key says.
fn term_field(admin: &mut Admin, key: &str, field: &str) -> u64 {
    let value = admin.command(&["HGET", &format!("{{{key}}}:term"), field]);
    value.text().parse().expect("a number")
}
