//! The one clock of the crate: it also counts the time that the machine was suspended.

use std::fmt;
use std::ops::Add;
use std::time::{Duration, SystemTime};

use rustix::time::ClockId;
#[cfg(not(all(test, loom)))]
use rustix::time::clock_gettime;

#[cfg(all(test, loom))]
use super::leadership::loom_models::clock_gettime;

/// CLOCK_BOOTTIME goes on during a suspend, as the lease's expiry does; CLOCK_MONOTONIC does not.
#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::Boottime;
/// On macOS CLOCK_MONOTONIC counts the time asleep; elsewhere a suspend is not covered.
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::Monotonic;

/// An instant of the clock that leadership is proved with.
///
/// Like [`std::time::Instant`], but on Linux it is read from `CLOCK_BOOTTIME`, so a machine that was
/// suspended finds its leadership ended when it wakes. Adding saturates: an instant too far ahead to
/// be represented is the last one, which no clock reaches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Duration);

impl Instant {
    /// The last instant: "never", for a deadline.
    pub(crate) const NEVER: Self = Self(Duration::MAX);

    /// Reads the clock.
    #[must_use]
    pub fn now() -> Self {
        let now = clock_gettime(CLOCK);
        // The clock counts from the machine's start, so neither part is negative.
        Self(Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32))
    }

    /// The time since `earlier`, or zero if that is later.
    #[must_use]
    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The time since this instant, or zero if it lies ahead.
    #[must_use]
    pub fn elapsed(self) -> Duration {
        Self::now().saturating_duration_since(self)
    }

    /// The wall clock's time at this instant, as far as the wall clock was not set since.
    ///
    /// The wall clock is read after this one, so the answer is late by the moment between, never early. A thread
    /// that loses its processor in that moment reads them again, a few times at most.
    #[must_use]
    pub fn to_system_time(self) -> SystemTime {
        let (now, wall) = both_clocks();
        let shifted = match self.0.checked_sub(now.0) {
            Some(ahead) => wall.checked_add(ahead),
            None => wall.checked_sub(now.0 - self.0),
        };
        shifted.unwrap_or(wall)
    }

    /// The instant this much earlier, or the clock's origin.
    pub(crate) fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(duration))
    }

    /// This instant as the time since the clock's origin, whole nanoseconds; u64::MAX at most.
    pub(crate) fn as_nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }

    /// The instant that [`as_nanos`](Self::as_nanos) came from.
    pub(crate) fn from_nanos(nanos: u64) -> Self {
        if nanos == u64::MAX { Self::NEVER } else { Self(Duration::from_nanos(nanos)) }
    }

    /// An instant for tests in virtual time.
    #[cfg(test)]
    pub(crate) const fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }
}

/// Two readings this close to each other are of one moment.
const ONE_MOMENT: Duration = Duration::from_micros(20);
/// How often the clocks are read for that. What is nearest by then has to do.
const READINGS: usize = 5;

/// This clock, and the wall clock right after it.
fn both_clocks() -> (Instant, SystemTime) {
    let read = || {
        let (now, wall) = (Instant::now(), SystemTime::now());
        (now.elapsed(), now, wall)
    };
    let mut nearest = read();
    for _ in 1..READINGS {
        if nearest.0 <= ONE_MOMENT {
            break;
        }
        nearest = nearest.min(read());
    }
    (nearest.1, nearest.2)
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Instant({:?})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B04: the clock stood still while the machine was suspended, and a leader woke with a lease long gone.
    #[test]
    #[cfg(target_os = "linux")]
    fn the_clock_is_the_one_that_counts_a_suspend() {
        // No test can suspend its machine: where that never was, the clocks read the same.
        assert_eq!(CLOCK, ClockId::Boottime);
        let boot = || clock_gettime(ClockId::Boottime);
        let (before, now, after) = (boot(), Instant::now(), boot());
        let nanos = |time: rustix::time::Timespec| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
        assert!(nanos(before) <= now.as_nanos() && now.as_nanos() <= nanos(after), "{before:?} {now:?}");
    }

    #[test]
    fn adding_saturates_and_differences_stop_at_zero() {
        assert_eq!(Instant::from_millis(5) + Duration::MAX, Instant::NEVER);
        assert_eq!(Instant::NEVER + Duration::MAX, Instant::NEVER);
        let (early, late) = (Instant::from_millis(5), Instant::from_millis(8));
        assert_eq!(early.saturating_duration_since(late), Duration::ZERO);
        assert_eq!(late.saturating_duration_since(early), Duration::from_millis(3));
    }

    #[test]
    fn nanoseconds_round_trip_and_the_last_instant_stays_the_last() {
        let now = Instant::now();
        assert_eq!(Instant::from_nanos(now.as_nanos()), now);
        assert_eq!(Instant::from_nanos(Instant::NEVER.as_nanos()), Instant::NEVER);
    }

    #[test]
    fn an_instant_is_shown_as_the_wall_clock_of_its_moment() {
        let (before, instant, after) = (SystemTime::now(), Instant::now(), SystemTime::now());
        let shown = instant.to_system_time();
        let slack = Duration::from_millis(50);
        assert!(shown + slack >= before && shown <= after + slack, "{before:?} {shown:?} {after:?}");
        assert!((instant + Duration::from_secs(60)).to_system_time() > after + Duration::from_secs(50));
        // An instant that the wall clock cannot show is shown as now rather than as a panic.
        assert!(Instant::NEVER.to_system_time() >= before);
    }
}
