//! Servers that fail over, part from each other or lose what they were told, and what an election makes of it:
//! one leader again in time, and with strict never two.
//!
//! `FAILOVERS=10 cargo test --all-features failover -- --test-threads=1 --show-output` makes ten times as many
//! rounds as usual.

mod data_loss;
mod partitions;
mod servers;
mod slots;

use std::env;
use std::thread;
use std::time::Duration;

use rand::RngExt;

use super::group::{
    CAP, Promoted, end, id_and_key, ms, next_leader, now_us, promotions, us, wait_until_following,
};
use crate::support::history::{overlaps, violations};
use crate::support::{Campaign, eventually, median, unique_group};

/// What a busy machine may add to a time that has a bound.
const NOISE: Duration = Duration::from_millis(300);

/// How many rounds to make of something of which this many are usual.
fn rounds(usual: u32) -> u32 {
    let times = env::var("FAILOVERS").map_or(1, |it| it.parse().expect("FAILOVERS is a whole number"));
    usual * times
}

/// Candidates of one group, each with its own way to the servers.
struct Candidates {
    group: String,
    ttl: Duration,
    wait: Duration,
    strict: Option<u32>,
    all: Vec<Campaign>,
}

impl Candidates {
    fn new(test: &str, ttl: Duration, wait: Duration, strict: Option<u32>) -> Self {
        Self { group: unique_group(test), ttl, wait, strict, all: Vec::new() }
    }

    /// Starts one more.
    fn add(&mut self, name: &str, url: &str) {
        let in_ms = |time: Duration| format!("{}ms", time.as_millis());
        let (ttl, wait) = (in_ms(self.ttl), in_ms(self.wait));
        let replicas = self.strict.map(|it| it.to_string());
        let strict = replicas.iter().flat_map(|it| ["--strict", it]);
        let args: Vec<_> =
            ["--ttl", &ttl, "--wait", &wait, "--sample", "5ms"].into_iter().chain(strict).collect();
        self.all.push(Campaign::start(&self.group, url, &args).named(name));
    }

    /// The one that leads now, as far as it has told.
    #[track_caller]
    fn leader(&self) -> Promoted {
        eventually(CAP, || {
            let last = promotions(&self.all).pop().ok_or(None)?;
            let ended = self.all[last.index].events();
            match ended.iter().find(|it| it.is("demoted") && it.token() == Some(last.token)) {
                None => Ok(last),
                Some(_) => Err(Some(last)),
            }
        })
    }

    /// The lease key.
    fn key(&self) -> String {
        id_and_key(&self.all[0]).1
    }

    /// Waits for a moment somewhere between two renewals.
    fn wait_for_some_moment(&self) {
        thread::sleep(self.ttl.mul_f64(rand::rng().random_range(0.0..0.5)));
    }

    /// The longest time without a leader after the servers are there again: an attempt comes within `wait`, and
    /// may have to wait out the lease that survived, and the hold.
    fn longest_takeover(&self) -> Duration {
        let holds = u32::from(self.strict.is_some());
        self.wait + self.ttl * (1 + holds) + NOISE
    }

    /// Waits for a leader after `leader`, who must come within `bound` of `from_us`; returns how long it took.
    #[track_caller]
    fn take_over(&self, leader: Promoted, from_us: u64, bound: Duration) -> u64 {
        let next = next_leader(&self.all, leader.token);
        let taken_us = next.at_us.saturating_sub(from_us);
        assert!(taken_us <= us(bound), "no leader for {:.1} ms, bound {bound:?}", ms(taken_us));
        taken_us
    }

    /// Ends all, and judges what they said: two leaders at once are all that may be wrong, and under strict not
    /// even that. Returns the longest overlap.
    #[track_caller]
    fn judge(&mut self) -> u64 {
        let histories = end(&mut self.all);
        let (wrong, two) = (violations(&histories), overlaps(&histories));
        let allowed = if self.strict.is_some() { 0 } else { two.len() };
        assert!(wrong.len() == allowed, "{}", wrong.join("\n"));
        two.iter().map(|it| it.length_us()).max().unwrap_or_default()
    }

    /// What the figures are about.
    fn kind(&self) -> String {
        self.strict.map_or("not strict".to_owned(), |replicas| format!("strict with {replicas} replicas"))
    }
}

/// The times as they are told beside the test's output.
fn figures(times_us: &[u64]) -> String {
    let worst = times_us.iter().copied().max().unwrap_or_default();
    format!("median {:.0} ms, worst {:.0} ms of {}", ms(median(times_us)), ms(worst), times_us.len())
}
