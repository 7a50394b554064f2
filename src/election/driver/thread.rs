//! Threads whose end can be waited for with a limit, and whose owner can be asked for.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, bounded};

use crate::election::error::Error;

thread_local! {
    static PLACE: Cell<Option<(Owner, Place)>> = const { Cell::new(None) };
}

/// Which elector a thread belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(u64);

/// What a thread of an elector is for, which says what it must not wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The driver and what it joins: it must not wait for the election to go on.
    Engine,
    /// The lead work: it must not wait for its own return.
    LeadWork,
    /// The hooks: they must not wait for their own end.
    Hook,
}

impl Owner {
    /// An elector that owns no thread yet.
    pub(crate) fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }

    /// What the calling thread is to this elector, if it is one of its own.
    pub(crate) fn place(self) -> Option<Place> {
        PLACE.get().filter(|(owner, _)| *owner == self).map(|(_, place)| place)
    }

    /// Runs something as if the calling thread were one of this elector's.
    pub(crate) fn within<T>(self, place: Place, body: impl FnOnce() -> T) -> T {
        /// Also when the body panics, the thread becomes what it was.
        struct Restore(Option<(Owner, Place)>);
        impl Drop for Restore {
            fn drop(&mut self) {
                PLACE.set(self.0);
            }
        }
        let _restore = Restore(PLACE.replace(Some((self, place))));
        body()
    }
}

/// A thread of an elector.
#[derive(Debug)]
pub(crate) struct Thread {
    handle: JoinHandle<()>,
    /// Disconnects when the thread's body has ended.
    ended: Receiver<()>,
}

impl Thread {
    /// Spawns a thread. Linux shows 15 bytes of its name.
    pub(crate) fn spawn(
        owner: Owner,
        place: Place,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<Self, Error> {
        let (end, ended) = bounded(0);
        let spawned = thread::Builder::new().name(name.into()).spawn(move || {
            let _end = end;
            owner.within(place, body);
        });
        let handle = spawned.map_err(|error| {
            let message = format!("could not spawn the thread {name}; the system's limits may be reached");
            Error::spawn(message, Some(Arc::new(error)))
        })?;
        Ok(Self { handle, ended })
    }

    /// Disconnects when its body has ended, so that [`join`](Self::join) takes no time.
    pub(crate) fn ended(&self) -> Receiver<()> {
        self.ended.clone()
    }

    /// Waits for its end.
    pub(crate) fn join(self) {
        // Who panicked has told of it by what it dropped.
        self.handle.join().ok();
    }

    /// Whether its body has ended, so that joining takes no time.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.try_recv().is_err_and(|error| error.is_disconnected())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const CAP: Duration = Duration::from_secs(20);

    #[test]
    fn a_thread_knows_its_owner_and_its_place_and_forgets_them_also_by_a_panic() {
        let (one, two) = (Owner::new(), Owner::new());
        assert_ne!(one, two);
        assert_eq!(one.place(), None);
        one.within(Place::Hook, || {
            assert_eq!((one.place(), two.place()), (Some(Place::Hook), None));
            two.within(Place::LeadWork, || assert_eq!(one.place(), None));
            assert_eq!(one.place(), Some(Place::Hook));
        });
        std::panic::catch_unwind(|| one.within(Place::Engine, || panic!("as planned"))).expect_err("panics");
        assert_eq!(one.place(), None);
    }

    #[test]
    fn the_end_of_a_thread_is_told_also_of_one_that_panics() {
        for panics in [false, true] {
            let (go, gone) = bounded::<()>(0);
            let body = move || {
                gone.recv().expect_err("nothing is sent");
                assert!(!panics, "as planned");
            };
            let thread = Thread::spawn(Owner::new(), Place::Hook, "tr-test", body).expect("a thread");
            assert!(!thread.has_ended());
            drop(go);
            assert!(thread.ended().recv_timeout(CAP).is_err_and(|error| error.is_disconnected()));
            assert!(thread.has_ended());
            thread.join();
        }
    }
}
