//! Several candidates of one group, and what is asked about them together.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::support::{Admin, Campaign, History, Line, eventually};

/// Longer than anything takes that is to happen, on the slowest machine.
pub(super) const CAP: Duration = Duration::from_secs(30);

/// How far the times of two lines, or of a line and of Redis, can be apart beside what they tell: Redis counts
/// whole milliseconds, and the deadline is told by converting it from another clock.
pub(super) const CLOCKS_US: u64 = 2_000;

/// A promotion that a candidate told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Promoted {
    pub(super) token: u64,
    /// The candidate's place among those asked.
    pub(super) index: usize,
    pub(super) at_us: u64,
}

/// All promotions that the candidates have told, in the order of their tokens.
pub(super) fn promotions(candidates: &[Campaign]) -> Vec<Promoted> {
    let mut told: Vec<_> = candidates
        .iter()
        .enumerate()
        .flat_map(|(index, candidate)| candidate.events().into_iter().map(move |line| (index, line)))
        .filter(|(_, line)| line.is("promoted"))
        .map(|(index, line)| Promoted { token: line.number("token"), index, at_us: line.at_us() })
        .collect();
    told.sort_by_key(|promoted| promoted.token);
    told
}

/// Waits for the first term whose token is larger than `token`.
#[track_caller]
pub(super) fn next_leader(candidates: &[Campaign], token: u64) -> Promoted {
    let from = Instant::now();
    loop {
        let next = promotions(candidates).into_iter().find(|promoted| promoted.token > token);
        if let Some(next) = next {
            return next;
        }
        assert!(from.elapsed() < CAP, "nobody was promoted after token {token} within {CAP:?}");
        // Seldom, for the candidates need the cores, too. Whoever is promoted notes the time itself.
        thread::sleep(Duration::from_millis(10));
    }
}

/// The id and the lease key with which a candidate has started.
#[track_caller]
pub(super) fn id_and_key(candidate: &Campaign) -> (String, String) {
    let started = candidate.wait_event(0, "started", CAP);
    (started.text("id").to_owned(), started.text("key").to_owned())
}

/// Waits until the candidate has asked for the lease and knows that another one holds it.
#[track_caller]
pub(super) fn wait_until_following(candidate: &Campaign) {
    let (own, _) = id_and_key(candidate);
    candidate
        .wait_for(|line| line.is("leader") && line.value["id"].as_str().is_some_and(|id| id != own), CAP);
}

/// When the lease ends by itself, as Unix microseconds; none if there is no lease.
pub(super) fn lease_end_us(admin: &mut Admin, key: &str) -> Option<u64> {
    u64::try_from(admin.command(&["PEXPIRETIME", key]).int()).ok().map(|ms| ms * 1000)
}

/// Waits until the lease ends later than at `end_us`, which is until Redis has executed a renewal; returns when.
#[track_caller]
pub(super) fn wait_for_renewal(admin: &mut Admin, key: &str, end_us: u64) -> u64 {
    eventually(CAP, || match lease_end_us(admin, key) {
        Some(end) if end > end_us => Ok(end),
        other => Err(other),
    })
}

/// Waits until about this much is left of the lease: no more, and less by at most a twentieth of `ttl`.
///
/// A renewal comes when a half of the ttl is left, and followers ask when about all or a half is. Between those
/// every candidate is idle, and the lease's end, which is returned, is that of the last renewal.
#[track_caller]
pub(super) fn wait_until_remaining(admin: &mut Admin, key: &str, ttl: Duration, remaining: Duration) -> u64 {
    let ms = |duration: Duration| i64::try_from(duration.as_millis()).expect("a short time");
    let wanted = ms(remaining.saturating_sub(ttl / 20))..=ms(remaining);
    eventually(CAP, || match admin.command(&["PTTL", key]).int() {
        left if wanted.contains(&left) => Ok(()),
        left => Err(left),
    });
    lease_end_us(admin, key).expect("a lease of which something remains")
}

/// Ends the processes, and returns all that they said.
pub(super) fn end(candidates: &mut [Campaign]) -> Vec<History> {
    candidates.iter_mut().for_each(Campaign::kill9);
    candidates.iter().map(Campaign::history).collect()
}

/// The lines that tell of a demotion or of an error: what a candidate should not have to tell.
pub(super) fn troubles(candidate: &Campaign) -> Vec<Line> {
    let mut lines = candidate.events();
    lines.retain(|line| !["started", "promoted", "leader"].contains(&line.event()));
    lines
}

/// The wall clock, as Unix microseconds.
pub(super) fn now_us() -> u64 {
    us(SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970"))
}

pub(super) fn us(duration: Duration) -> u64 {
    duration.as_micros().try_into().expect("a short time")
}

/// Microseconds as milliseconds, to be shown.
pub(super) fn ms(us: u64) -> f64 {
    us as f64 / 1000.0
}
