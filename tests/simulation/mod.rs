//! A simulated world: the real machine in virtual time, among faults.

mod chance;
mod explore;
mod instance;
mod judge;
mod model;
mod plan;
mod random;
mod server;
mod world;

use std::env;
use std::time::Duration;

use explore::{explore, small_world};
use plan::{Climate, MS};
use random::{Effort, report, search};

fn number(name: &str) -> Option<u64> {
    let value = env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|error| panic!("{name} is {value:?}: {error}")))
}

#[test]
fn no_world_breaks_a_promise() {
    if let Some(seed) = number("SIMULATED_WORLD") {
        let climate = match env::var("SIMULATED_CLIMATE").as_deref() {
            Ok("Calm") => Climate::Calm,
            Ok("Outside") => Climate::Outside,
            _ => Climate::Within,
        };
        panic!("{}", report(seed, climate));
    }
    let seed = number("SIMULATION_SEED").unwrap_or_else(|| rand::random());
    let leases = number("SIMULATED_LEASES").unwrap_or(10_000);
    let time = Duration::from_secs(number("SIMULATION_SECONDS").unwrap_or(0));
    println!("simulation: seed {seed}");
    match search(seed, Effort { leases, time }) {
        Ok(found) => {
            for (climate, figures) in found {
                println!("{climate:?}: {figures:?}");
            }
        }
        Err(broken) => panic!("{broken}"),
    }
}

#[test]
fn no_choice_in_a_small_world_breaks_a_promise() {
    use crate::election::options::Options;
    let most = number("EXPLORED_CHOICES").unwrap_or(2) as u32;
    let options = Options { ttl: Duration::from_millis(1000), wait: Duration::from_millis(1200), jitter: Duration::ZERO, ..Options::default() };
    let timing = options.check().expect("good");
    for ppm in [[-10_000, 10_000]] {
        let begun = std::time::Instant::now();
        let plan = small_world(timing, ppm, true, None, 3000 * MS);
        match explore(&plan, most) {
            Ok(explored) => println!("{ppm:?}: {:?} {explored:?}", begun.elapsed()),
            Err(broken) => panic!("{broken}"),
        }
    }
}

fn eventually(cap: Duration, mut holds: impl FnMut() -> bool) {
    let until = std::time::Instant::now() + cap;
    while !holds() {
        assert!(std::time::Instant::now() < until, "not within {cap:?}");
        std::thread::yield_now();
    }
}
