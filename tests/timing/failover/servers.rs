//! The master that has the lease ends or stands still, and the servers promote another one by themselves.

#![allow(clippy::print_stderr, reason = "the figures measured are told beside the test's output")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use taskrunner::election::{RedisStore, inspect};

use super::*;
use crate::support::replicas::acknowledge;
use crate::support::{Cluster, Sentinels, Server};

const TTL: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_secs(1);

/// How many replicas each master has.
const REPLICAS: u32 = 2;

/// The limit of a single question of who leads.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// The limit of a stop without lead work: twice the call limit, which is half of the ttl.
const STOP_LIMIT: Duration = TTL;

#[test]
fn a_cluster_whose_master_is_killed_has_one_leader_again_in_time() {
    fail_over(Rig::cluster, Fault::Kill);
}

#[test]
fn a_cluster_whose_master_is_stopped_has_one_leader_again_in_time() {
    fail_over(Rig::cluster, Fault::Freeze);
}

#[test]
fn sentinels_whose_master_is_killed_have_one_leader_again_in_time() {
    fail_over(Rig::sentinels, Fault::Kill);
}

#[test]
fn sentinels_whose_master_is_stopped_have_one_leader_again_in_time() {
    fail_over(Rig::sentinels, Fault::Freeze);
}

/// Servers that fail over by themselves.
enum Rig {
    Cluster(Cluster),
    Sentinels(Sentinels),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// kill -9. The server is started again, empty, after the failover.
    Kill,
    /// SIGSTOP. The server goes on after the failover, and takes itself for the master at first.
    Freeze,
}

impl Rig {
    fn cluster() -> Self {
        Self::Cluster(Cluster::start())
    }

    fn sentinels() -> Self {
        Self::Sentinels(Sentinels::start())
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Cluster(_) => "cluster",
            Self::Sentinels(_) => "sentinels",
        }
    }

    fn url(&self) -> String {
        match self {
            Self::Cluster(rig) => rig.url(),
            Self::Sentinels(rig) => rig.url(),
        }
    }

    fn server(&self, index: usize) -> &Server {
        match self {
            Self::Cluster(rig) => rig.node(index),
            Self::Sentinels(rig) => rig.server(index),
        }
    }

    /// The server that has the key.
    fn master_of(&self, key: &str) -> usize {
        match self {
            Self::Cluster(rig) => rig.master_of(rig.slot(key)),
            Self::Sentinels(rig) => rig.master(),
        }
    }

    fn begin(&mut self, fault: Fault, index: usize) {
        match (self, fault) {
            (Self::Cluster(rig), Fault::Kill) => rig.kill(index),
            (Self::Cluster(rig), Fault::Freeze) => rig.freeze(index),
            (Self::Sentinels(rig), Fault::Kill) => rig.kill(index),
            (Self::Sentinels(rig), Fault::Freeze) => rig.freeze(index),
        }
    }

    /// Brings the server back.
    fn end(&mut self, fault: Fault, index: usize) {
        match (self, fault) {
            (Self::Cluster(rig), Fault::Kill) => rig.restart(index),
            (Self::Cluster(rig), Fault::Freeze) => rig.thaw(index),
            (Self::Sentinels(rig), Fault::Kill) => rig.restart(index),
            (Self::Sentinels(rig), Fault::Freeze) => rig.thaw(index),
        }
    }

    fn wait_until_whole(&self) {
        match self {
            Self::Cluster(rig) => rig.wait_until_whole(),
            Self::Sentinels(rig) => rig.wait_until_whole(),
        }
    }
}

fn fail_over(start: fn() -> Rig, fault: Fault) {
    let mut rig = start();
    for strict in [None, Some(REPLICAS)] {
        rig.wait_until_whole();
        let mut candidates = Candidates::new("failover", TTL, WAIT, strict);
        for name in ["one", "two", "three"] {
            candidates.add(name, &rig.url());
        }
        let key = candidates.key();
        let (mut servers_us, mut taken_us, mut returns_us) = (Vec::new(), Vec::new(), Vec::new());
        let store = RedisStore::open(&rig.url()).expect("a good URL");
        let looked = Looked::new(store, &candidates.group);
        let mut stop = Duration::ZERO;
        let rounds = rounds(1);
        for round in 0..rounds {
            let leader = candidates.leader();
            candidates.wait_for_some_moment();
            let old = rig.master_of(&key);
            rig.begin(fault, old);
            let from = Instant::now();
            let from_us = now_us();
            if round + 1 == rounds {
                // One that stops while the server is away does so in time all the same.
                stop = stop.max(terminate(&mut candidates, leader.index));
            }
            let new =
                eventually(CAP, || Some(rig.master_of(&key)).filter(|it| *it != old).ok_or("the old one"));
            if strict.is_some() {
                // Until then there is nobody to acknowledge anything.
                eventually(CAP, || if acknowledge(rig.server(new), 1) { Ok(()) } else { Err("nobody") });
            }
            let servers = from.elapsed();
            servers_us.push(us(servers));
            taken_us.push(candidates.take_over(leader, from_us, servers + candidates.longest_takeover()));
            let back_us = now_us();
            rig.end(fault, old);
            rig.wait_until_whole();
            returns_us.push(now_us() - back_us);
        }
        let (longest_look, failed) = looked.end();
        for index in 0..candidates.all.len() {
            stop = stop.max(terminate(&mut candidates, index));
        }
        let worst_us = candidates.judge();
        eprintln!(
            "{}, {fault:?}, {}, ttl and wait 1 s: the servers' failover {}; the next leader {}; the old \
             master a replica {}; two leaders for {:.1} ms at most; the longest look {longest_look:?} ({failed} \
             failed); the longest stop {stop:?}",
            rig.name(),
            candidates.kind(),
            figures(&servers_us),
            figures(&taken_us),
            figures(&returns_us),
            ms(worst_us),
        );
        // An old master that comes back takes itself for one for ten seconds, as some sentinels do for two: nobody
        // turns to it all the same.
        assert!(worst_us <= us(TTL), "two leaders for {:.1} ms, bound {TTL:?}", ms(worst_us));
        assert!(longest_look <= LOOK_LIMIT + NOISE, "a look took {longest_look:?}");
        assert!(stop <= STOP_LIMIT + NOISE, "a stop took {stop:?}");
    }
}

/// Ends the candidate by SIGTERM, if it lives, and returns how long that took.
fn terminate(candidates: &mut Candidates, index: usize) -> Duration {
    let candidate = &mut candidates.all[index];
    if candidate.try_exit().is_some() {
        return Duration::ZERO;
    }
    let from = Instant::now();
    candidate.terminate();
    candidate.wait_exit(CAP);
    from.elapsed()
}

/// Asks all the time who leads, each time on a connection of its own.
struct Looked {
    thread: thread::JoinHandle<(Duration, u32)>,
    enough: Arc<AtomicBool>,
}

impl Looked {
    fn new(store: RedisStore, group: &str) -> Self {
        let enough = Arc::new(AtomicBool::new(false));
        let (until, group) = (Arc::clone(&enough), group.to_owned());
        let thread = thread::spawn(move || {
            let (mut longest, mut failed) = (Duration::ZERO, 0);
            while !until.load(Ordering::Relaxed) {
                let from = Instant::now();
                failed += u32::from(inspect(&store, &group).is_err());
                longest = longest.max(from.elapsed());
                thread::sleep(Duration::from_millis(20));
            }
            (longest, failed)
        });
        Self { thread, enough }
    }

    /// How long the longest look took, and how many failed.
    fn end(self) -> (Duration, u32) {
        self.enough.store(true, Ordering::Relaxed);
        self.thread.join().expect("no panic")
    }
}
