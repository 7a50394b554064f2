//! Many machines at once, on a store that is down for a while. Virtual time, real dice.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

const MACHINES: usize = 50;
const JITTERY: Timing = Timing { jitter: Duration::from_millis(5), ..TIMING };

/// The times in ms at which the machines send an attempt, until `end`. The store answers `reply` at once.
fn attempts(
    machines: &mut [Machine],
    random: &mut StdRng,
    end: u64,
    mut reply: impl FnMut(u64) -> Result<Answer, StoreError>,
) -> Vec<u64> {
    let mut sent = Vec::new();
    loop {
        let next = machines.iter_mut().min_by_key(|machine| machine.wake_at()).expect("there are some");
        let at = next.wake_at();
        let Some(now) = millis(at).filter(|now| *now < end) else { return sent };
        let mut moment = || Moment { at, dice: random.random() };
        let mut out = Vec::new();
        next.handle(moment(), Input::Time, &mut out);
        for output in out {
            if let Output::Send { op, action, .. } = output {
                sent.extend(matches!(action, Action::Acquire { .. }).then_some(now));
                next.handle(moment(), Input::Answer { op, result: reply(now) }, &mut Vec::new());
            }
        }
    }
}

/// The most that fall into the same ten milliseconds.
fn fullest(times: &[u64]) -> usize {
    let in_bin = |bin: u64| times.iter().filter(|time| **time / 10 == bin).count();
    times.iter().map(|time| in_bin(time / 10)).max().unwrap_or_default()
}

/// B80: after an outage all clients came in step, with each other and again and again.
#[test]
fn fifty_that_cannot_reach_the_store_do_not_come_in_step_and_not_often() {
    for seed in 0..20 {
        let mut random = StdRng::seed_from_u64(seed);
        let now = Moment { at: Instant::from_millis(0), dice: 0.5 };
        let mut machines: Vec<_> = (0..MACHINES).map(|_| Machine::new("me".into(), JITTERY, now)).collect();
        // All of them are refused for 30 ttls; they began at the same time.
        let all = attempts(&mut machines, &mut random, 30_000, |_| refused());
        // The second second and what follows: by then the back-off has grown to the wait.
        let late: Vec<_> = all.iter().copied().filter(|time| *time >= 1000).collect();
        let most = fullest(&late);
        assert!(most < MACHINES / 5, "seed {seed}: {most} attempts within 10 ms");
        // On the average half of the wait, with full jitter.
        let each = late.len() as u64 / MACHINES as u64;
        assert!((29_000 / 1200..29_000 / 400).contains(&each), "seed {seed}: {each} attempts each");
    }
}

/// B80: with many followers, one that leads is asked no more often for each of them.
#[test]
fn fifty_followers_ask_once_for_each_end_of_the_lease_that_they_know() {
    let mut random = StdRng::seed_from_u64(7);
    let now = Moment { at: Instant::from_millis(0), dice: 0.5 };
    let mut machines: Vec<_> = (0..MACHINES).map(|_| Machine::new("me".into(), JITTERY, now)).collect();
    // A leader that renews its lease of a second each half of it.
    let all = attempts(&mut machines, &mut random, 30_000, |now| held("leader", 5, 1000 - now % 500));
    // They ask soon after a renewal, when almost all of the ttl is left.
    assert!(all.len() <= MACHINES * (30 + 2), "{} attempts in 30 ttls", all.len());
}
