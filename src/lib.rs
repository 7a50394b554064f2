//! Leader election on Redis for programs without an async runtime.
//!
//! One instance of a group holds a lease in Redis and is the leader; the others follow, and take over
//! when it stops, dies or is cut off.
//!
//! # What it promises
//!
//! - **At most one leader.** For two electors of one group, on one Redis that loses no data, the times at
//!   which [`is_leader`](election::Elector::is_leader) is true never overlap, as long as each instance's
//!   clock runs within 1 % of the Redis host's and neither jumps.
//! - **Leadership is proved at the call, never remembered.** A deadline is compared with the clock each
//!   time. It counts from before the request was sent.
//! - **Every term has a fencing token** larger than that of every earlier term.
//! - **Every wait has a bound**, [`stop`](election::Elector::stop) included.
//!
//! It does not promise that work in flight has ended when the term ends (give the token to the resource),
//! nor, unless the group is [strict](election::Strict), one leader on a Redis that loses its data. The README has the bounds.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use taskrunner::election::{Elector, MemoryStore};
//!
//! // For a real group: RedisStore::open("redis://127.0.0.1/")?
//! let elector = Elector::builder(MemoryStore::new(), "my-app-coordinator").start()?;
//! let leadership = elector.wait_for_leadership(Duration::from_secs(10))?;
//! leadership.check()?;
//! println!("leading under token {}", leadership.token());
//! elector.stop()?;
//! assert!(!elector.is_leader());
//! # Ok::<(), taskrunner::election::Error>(())
//! ```
//!
//! # How it works
//!
//! A pure machine decides, threads act, a value with a deadline proves leadership.
//!
//! The lease is a key with an expiry. An instance wins it where it is absent, and renews it at half its
//! ttl; each is one script, atomic in Redis. Ttl less the stop margin after the last good renewal was
//! *sent*, the instance leads no more, whatever has become of the answer: before the lease can be anybody
//! else's. A follower is told how long the lease has left, and asks again right at its end; a release
//! wakes it before that.
//!
//! # Threads
//!
//! | name | what it does | when it ends |
//! |---|---|---|
//! | `tr-driver` | decides, keeps time, sends events; never does I/O, runs no code of the user's but the logger | with [`stop`](election::Elector::stop) or the drop of the elector |
//! | `tr-io` | talks to the store, one operation at a time, each within its limit | before `tr-driver` |
//! | `tr-io-` and a port | the same with the node of a cluster that has the group's lease | the same, or when another node has it |
//! | `tr-wake` | listens for releases by other instances, on a connection of its own | before `tr-driver` |
//! | `tr-hooks` | calls the [hooks](election::Builder::on_promote), if there are any | when the last hook has returned |
//! | `tr-lead` | runs the [lead work](election::Builder::lead), in each term | when the work returns |
//! | `tr-lookup` | one look-up of a server's name, for each connection that is dialled | with the look-up, which nothing can end earlier |
//! | `tr-credentials` | one call of the [closure for credentials](election::RedisStore::with_credentials), for each connection that is dialled | with the call |
//! | `tr-authorities` | reads which certificate authorities the system trusts, for the first connection with TLS that names none | with the reading |
//!
//! If `tr-driver` or a `tr-io` panics, the elector leads no more, every waiting call returns
//! [`Dead`](election::ErrorKind::Dead), and all channels disconnect.
//!
//! # Limitations
//!
//! - A Redis that loses its data can have two leaders for up to a ttl, unless the group is
//!   [strict](election::Strict).
//! - After a fork both processes hold the same proof until its deadline; start electors after it.
//! - After a suspend of the machine events may come one sleep of the driver late. The proof is never late
//!   where the clock counts the suspend: on Linux (`CLOCK_BOOTTIME`) and macOS.
//!
//! # Log levels
//!
//! The library logs by the `log` facade and installs no logger. Silence while nothing changes.
//!
//! | level | what |
//! |---|---|
//! | error | a thread of an elector has died |
//! | warn | a demotion that nobody asked for; a panic of a hook or of the lead work; a dropped elector that could not stop cleanly; a token far ahead of the store's time; a server whose role is not known; followers that could not be woken |
//! | info | promoted, and demoted on request |
//! | debug | failed attempts, reconnects, another leader |
//! | trace | each operation |
//!
//! A logger that blocks holds the election up, as it would any thread. It does not touch the proof, which
//! ends at its deadline all the same.
//!
//! # Features
//!
//! - `tls`: connections with TLS, as by `rediss://` URLs. With rustls and ring.
//! - `cli`: the command line, `taskrunner`. It is of no use to a program that depends on the library.
//!
//! # Versioning
//!
//! Before 1.0 a break of the public API is a minor version. No type of a dependency is part of it but
//! `crossbeam_channel::Receiver`. The minimum Rust version is 1.88, and rises in minor versions only.

pub mod election;

/// The examples of the README are compiled and run as tests of the documentation; one of them needs TLS.
#[cfg(all(doctest, feature = "tls"))]
#[doc = include_str!("../README.md")]
pub struct Readme;

// Servers that the unit tests start; the harness of the integration tests has the same file.
#[cfg(test)]
#[path = "../tests/support/server.rs"]
mod server;

// How often the properties of the unit tests are tried.
#[cfg(test)]
#[path = "../tests/support/cases.rs"]
mod cases;
