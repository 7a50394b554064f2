//! One absolute deadline for a whole batch, which another thread can shorten.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::election::clock::Instant;

/// The longest single wait for a bell; who waits longer waits again.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

/// The deadline of one batch: dial, handshake, redirects and replies together.
#[derive(Debug)]
pub struct Budget {
    until: AtomicU64,
    bell: Bell,
}

impl Budget {
    /// A budget that ends at `until`, of a session with this bell.
    pub(crate) fn new(until: Instant, bell: &Bell) -> Self {
        Self { until: AtomicU64::new(until.as_nanos()), bell: bell.clone() }
    }

    /// When it ends.
    pub(crate) fn until(&self) -> Instant {
        Instant::from_nanos(self.until.load(Ordering::Acquire))
    }

    /// What is left of it; none once it has ended.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        let left = self.until().saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Ends it at `until`, if that is earlier, and wakes the session out of its wait to see that.
    pub(crate) fn shorten(&self, until: Instant) {
        let earlier = self.until.fetch_min(until.as_nanos(), Ordering::AcqRel) > until.as_nanos();
        if earlier {
            self.bell.ring();
        }
    }
}

/// Wakes a session out of a wait for a socket. Clones ring the same bell.
#[derive(Clone, Debug, Default)]
pub struct Bell(Option<Arc<UnixStream>>);

impl Bell {
    /// A bell and the end that a session waits on beside its socket.
    pub(crate) fn new() -> std::io::Result<(Self, BellEnd)> {
        let (near, far) = UnixStream::pair()?;
        near.set_nonblocking(true)?;
        far.set_nonblocking(true)?;
        Ok((Self(Some(Arc::new(near))), BellEnd(far)))
    }

    pub(crate) fn ring(&self) {
        if let Some(stream) = &self.0 {
            // A full buffer means that it rings already.
            (&**stream).write_all(&[1]).ok();
        }
    }
}

/// The waiting end of a [`Bell`].
#[derive(Debug)]
pub(crate) struct BellEnd(UnixStream);

impl BellEnd {
    /// Waits for a ring, for `limit` at most, and takes it back.
    pub(crate) fn wait(&self, limit: Duration) {
        let timeout = Timespec::try_from(limit.min(LONGEST_WAIT)).expect("a day fits into a timespec");
        // What interrupts it or ends it early makes the caller look again.
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&timeout)).ok();
        self.silence();
    }

    /// Takes back every ring so far.
    pub(crate) fn silence(&self) {
        let mut rings = [0; 64];
        while matches!((&self.0).read(&mut rings), Ok(n) if n > 0) {}
    }
}

impl AsFd for BellEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_only_ever_shortened() {
        let (bell, end) = Bell::new().expect("a socket pair");
        let start = Instant::now();
        let budget = Budget::new(start + Duration::from_secs(60), &bell);
        budget.shorten(start + Duration::from_secs(90));
        assert_eq!(budget.until(), start + Duration::from_secs(60));
        assert!((&end.0).read(&mut [0]).is_err(), "a longer deadline must not ring");
        budget.shorten(start);
        assert_eq!(budget.remaining(), None);
        assert_eq!((&end.0).read(&mut [0]).expect("the ring"), 1);
    }

    #[test]
    fn a_bell_that_nobody_hears_never_blocks() {
        let (bell, end) = Bell::new().expect("a socket pair");
        for _ in 0..1_000_000 {
            bell.ring();
        }
        end.silence();
        assert!((&end.0).read(&mut [0]).is_err());
    }
}
