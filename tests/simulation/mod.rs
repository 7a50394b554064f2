//! Simulated worlds: the real machine in virtual time, among every fault that the promises cover, and some that they
//! do not.
//!
//! The instances are the crate's own [`Machine`](crate::election::machine::Machine); the scripts are the model that
//! the embedded store runs on, which [`model`] compares with the scripts on a real server. Clocks, threads, the
//! network and the server are simulated ([`world`]), and the promises are checked at each step ([`judge`]). The
//! faults are drawn from a seed ([`random`]), or chosen exhaustively in small worlds ([`explore`]).
//!
//! `tests/simulate.sh` runs more of it than a plain test does, for as long as it is told.

#![allow(
    clippy::print_stdout,
    reason = "how much was searched, and from which seed, is a part of the result"
)]

mod chance;
mod explore;
mod instance;
mod judge;
mod model;
mod plan;
mod random;
mod replicas;
mod server;
mod stories;
mod world;

use std::env;
use std::time::{Duration, Instant as Timer};

use explore::{Explored, explore, small_worlds};
use plan::Climate;
use random::{Effort, report, search};

/// A number from the environment.
fn number(name: &str) -> Option<u64> {
    let value = env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|error| panic!("{name} is {value:?}: {error}")))
}

/// The seed of a run; printed, so that it can be run again.
fn seed(what: &str) -> u64 {
    let seed = number("SIMULATION_SEED").unwrap_or_else(rand::random);
    println!("{what}: SIMULATION_SEED={seed}");
    seed
}

/// The promises, as far as they are the machine's and the scripts', in worlds drawn from a seed: that no two lead and no
/// proof outlives its lease, the deadline's anchor, tokens, lead work and the bound of a stop in all of them; how soon
/// another takes over, and that a stop gives the lease back, in calm ones.
///
/// `SIMULATED_LEASES`, `SIMULATED_FAILOVERS` and `SIMULATION_SECONDS` say how many at least, `SIMULATED_CLIMATE` in which
/// worlds only; with `SIMULATED_WORLD` it shows one that was found to break a promise.
#[test]
fn no_world_breaks_a_promise() {
    let only = env::var("SIMULATED_CLIMATE").ok().map(|name| {
        let climate = Climate::ALL.into_iter().find(|climate| format!("{climate:?}") == name);
        climate.expect("SIMULATED_CLIMATE names one")
    });
    if let Some(world) = number("SIMULATED_WORLD") {
        panic!("{}", report(world, only.expect("SIMULATED_CLIMATE is given with SIMULATED_WORLD")));
    }
    let leases = number("SIMULATED_LEASES").unwrap_or(10_000);
    let failovers = number("SIMULATED_FAILOVERS").unwrap_or(0);
    let time = Duration::from_secs(number("SIMULATION_SECONDS").unwrap_or(0));
    let begun = Timer::now();
    let found = search(seed("simulation"), only, Effort { leases, failovers, time })
        .unwrap_or_else(|broken| panic!("{broken}"));
    for (climate, figures) in &found {
        println!("{climate:?}: {figures}");
    }
    println!("{} leases in {:.1?}", found.iter().map(|(_, it)| it.leases).sum::<u64>(), begun.elapsed());
}

/// The same, but for what is judged in calm worlds only, on every way through small worlds of two instances.
///
/// `EXPLORED_CHOICES` is how many faults there may be on one way.
#[test]
fn no_choice_in_a_small_world_breaks_a_promise() {
    let most = number("EXPLORED_CHOICES").unwrap_or(1) as u32;
    let begun = Timer::now();
    let mut total = Explored::default();
    for (story, plan) in small_worlds() {
        let explored = explore(&plan, most).unwrap_or_else(|broken| panic!("{story}: {broken}"));
        assert!(explored.figures.leases > 0, "{story}: nobody has led");
        total.add(&explored);
    }
    println!("small worlds: {total} in {:.1?}, with up to {most} faults on each way", begun.elapsed());
}
