//! Worlds drawn from a seed, one after the other, and what is left of one that breaks a promise once everything
//! that is not needed for it has been taken away.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::chance::{Random, Seed};
use super::judge::Figures;
use super::plan::{Climate, MS, Plan};
use super::world::{Verdict, run};

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    pub(super) leases: u64,
    /// In worlds of failovers.
    pub(super) failovers: u64,
    pub(super) time: Duration,
}

/// Runs worlds on all processors until `effort` was made in each climate, or in one; or one breaks, then says how.
pub(super) fn search(
    seed: u64,
    only: Option<Climate>,
    effort: Effort,
) -> Result<Vec<(Climate, Figures)>, String> {
    // Most of the effort goes to what the promises cover.
    let shares = [10, 70, 15, 5];
    let climates = Climate::ALL.into_iter().zip(shares);
    let wanted = climates.filter(|(climate, _)| only.is_none_or(|only| only == *climate));
    let found = wanted.map(|(climate, share)| {
        let share = if only.is_some() { 100 } else { share };
        let failovers = if climate == Climate::Failover { effort.failovers } else { 0 };
        let (leases, time) = (effort.leases * share / 100, effort.time * share as u32 / 100);
        Ok((climate, search_climate(seed, climate, Effort { leases, failovers, time })?))
    });
    found.collect()
}

fn search_climate(seed: u64, climate: Climate, effort: Effort) -> Result<Figures, String> {
    let (next, enough) = (AtomicU64::new(0), AtomicBool::new(false));
    let total = Mutex::new(Figures::default());
    let broken = Mutex::new(None::<u64>);
    let begun = Instant::now();
    let work = || {
        while !enough.load(Ordering::Relaxed) {
            let world = seed_of(seed, climate, next.fetch_add(1, Ordering::Relaxed));
            let plan = Plan::draw(world, climate);
            let verdict = run(&plan, &mut Random::new(world), false);
            let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
            total.add(&verdict.figures);
            if verdict.broken.is_some() {
                broken.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(world);
            }
            let done = total.leases >= effort.leases
                && total.failovers >= effort.failovers
                && begun.elapsed() >= effort.time;
            if done || verdict.broken.is_some() {
                enough.store(true, Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let total = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    match broken.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(world) => Err(format!("{}\nfound in the world number {}", report(world, climate), total.worlds)),
        None => Ok(total),
    }
}

fn seed_of(seed: u64, climate: Climate, world: u64) -> u64 {
    Seed::new(seed.wrapping_add(climate as u64).wrapping_mul(0x2545_F491_4F6C_DD1D).wrapping_add(world))
        .next()
}

/// The world of this seed, made as small as it can be while it still breaks, and what happens in it.
pub(super) fn report(seed: u64, climate: Climate) -> String {
    let judged = |plan: &Plan| run(plan, &mut Random::new(seed), false);
    let plan = shrunk(Plan::draw(seed, climate), |plan| judged(plan).broken.is_some());
    let Verdict { broken, trace, .. } = run(&plan, &mut Random::new(seed), true);
    let broken = broken.unwrap_or_else(|| "nothing is broken".to_owned());
    let from = trace.len().saturating_sub(80);
    format!(
        "{broken}\n{plan}\n{}\nto see it again: SIMULATED_WORLD={seed} SIMULATED_CLIMATE={climate:?} tests/simulate.sh",
        trace[from..].join("\n")
    )
}

/// Takes away faults, and shortens those that are left and the time between them, as long as it still breaks.
fn shrunk(mut plan: Plan, breaks: impl Fn(&Plan) -> bool) -> Plan {
    loop {
        let faults = 0..plan.faults.len();
        let mut smaller = faults.clone().rev().map(|fault| plan.without(fault)).find(&breaks);
        for change in [Plan::sooner, Plan::halved] {
            smaller = smaller.or_else(|| {
                let changed = faults.clone().map(|fault| change(&plan, fault));
                changed.into_iter().find(|it| it.quiet_at + MS < plan.quiet_at && breaks(it))
            });
        }
        match smaller {
            Some(smaller) => plan = smaller,
            None => return plan,
        }
    }
}
