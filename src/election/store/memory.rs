//! The embedded store: leases in this process's memory.

mod keys;
mod listener;
mod switch;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::strict::{Call, Ledger, Lineage, Said, followed};
use super::{
    Answer, Bell, Budget, Class, Heard, LeaseStore, Listener, Operation, Outcome, Session, StoreError, sealed,
};
use crate::election::clock::Instant;
use crate::election::term::LONGEST_TOKEN;
pub(crate) use keys::{Clocks, Keys};
#[cfg(test)]
pub(crate) use keys::{Lease, Term};
use listener::{Ear, MemoryListener};
use switch::Connection;
pub use switch::Switch;

/// Leases kept in memory, shared by all clones of one store.
///
/// It elects among the electors of one process: for tests, examples and programs that run alone. It
/// keeps the same rules as Redis does, tokens included.
///
/// # Examples
///
/// ```
/// use taskrunner::election::{Elector, MemoryStore};
///
/// let elector = Elector::builder(MemoryStore::new(), "nightly-report").start()?;
/// let leadership = elector.wait_for_leadership(None)?;
/// assert!(leadership.is_valid());
/// elector.stop()?;
/// # Ok::<(), taskrunner::election::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct MemoryStore {
    shared: Arc<Mutex<Shared>>,
    connection: Arc<Connection>,
}

impl MemoryStore {
    /// An empty store whose leases expire by the real clock.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty store whose clock stands still until [`advance`](Self::advance) moves it, for tests.
    ///
    /// Only the leases' expiry follows this clock; electors keep to the real one.
    #[must_use]
    pub fn with_manual_clock() -> Self {
        let shared = Shared { manual: Some(Duration::ZERO), ..Shared::default() };
        Self { shared: Arc::new(Mutex::new(shared)), connection: Arc::default() }
    }

    /// Moves the clock of a store made by [`with_manual_clock`](Self::with_manual_clock); else does nothing.
    pub fn advance(&self, by: Duration) {
        let mut shared = self.lock();
        if let Some(now) = &mut shared.manual {
            *now = now.saturating_add(by);
        }
    }

    /// The same leases over a connection of its own, which the switch can cut: for tests of what happens
    /// when an instance is cut off, or has crashed, which is the same to the others.
    ///
    /// While it is cut, every operation over it fails with an error of kind
    /// [`Passing`](crate::election::ErrorKind::Passing) and has no effect, and no wake is heard. Clones of the
    /// store that is returned share the connection; this one is not touched by it.
    ///
    /// # Examples
    ///
    /// A leader that is cut off leads no more by the time another one does:
    ///
    /// ```
    /// use std::time::Duration;
    /// use taskrunner::election::{Elector, MemoryStore};
    ///
    /// let store = MemoryStore::new();
    /// let (to_be_cut, switch) = store.with_switch();
    /// let ttl = Duration::from_millis(300);
    /// let one = Elector::builder(to_be_cut, "demo").ttl(ttl).start()?;
    /// let first = one.wait_for_leadership(Duration::from_secs(10))?;
    /// let two = Elector::builder(store, "demo").ttl(ttl).start()?;
    ///
    /// switch.cut();
    /// let second = two.wait_for_leadership(Duration::from_secs(10))?;
    /// assert!(!first.is_valid());
    /// assert!(second.token() > first.token());
    /// # Ok::<(), taskrunner::election::Error>(())
    /// ```
    #[must_use]
    pub fn with_switch(&self) -> (Self, Switch) {
        let store = Self { shared: Arc::clone(&self.shared), connection: Arc::default() };
        let switch = Switch { store: store.clone() };
        (store, switch)
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        // Nothing panics under this lock; a poisoned one is as consistent as any.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Taken out first: who writes this may be slow.
        let groups = self.lock().groups.len();
        f.debug_struct("MemoryStore").field("groups", &groups).finish()
    }
}

impl LeaseStore for MemoryStore {}

impl sealed::Open for MemoryStore {
    fn open(&self) -> std::io::Result<Box<dyn Session>> {
        Ok(Box::new(MemorySession { store: self.clone(), ledger: Ledger::default() }))
    }

    fn listen(&self) -> std::io::Result<Box<dyn Listener>> {
        Ok(Box::new(MemoryListener::new(self)?))
    }
}

/// One thread's way to a [`MemoryStore`].
struct MemorySession {
    store: MemoryStore,
    ledger: Ledger,
}

/// There are no replicas whose acknowledgement could be missing: as many have acknowledged as are asked for.
const ALL: u32 = u32::MAX;

impl Session for MemorySession {
    fn execute(&mut self, batch: &[Operation], budget: &Budget) -> Vec<Result<Answer, StoreError>> {
        let mut shared = self.store.lock();
        let now = Instant::now();
        let late = || StoreError::new(Outcome::NotSent, Class::Passing, "there was no time left to begin");
        batch
            .iter()
            .map(|operation| {
                budget.remaining().ok_or_else(late)?;
                self.store.connection.check()?;
                let said = shared.execute(operation, &self.ledger.call(operation, now));
                let concluded = self.ledger.conclude(operation, said, &Ok(ALL), now);
                match concluded.then {
                    Some(call) => followed(concluded.result, shared.execute(operation, &call)),
                    None => concluded.result,
                }
            })
            .collect()
    }

    fn bell(&self) -> Bell {
        // Nothing here waits, so there is nothing to wake.
        Bell::default()
    }
}

/// The leases and terms of all groups, and the time that they expire by.
#[derive(Default)]
struct Shared {
    groups: HashMap<String, Keys>,
    ears: Vec<Ear>,
    manual: Option<Duration>,
    lineage: Lineage,
}

impl Shared {
    /// The time of the leases: since the clock's origin, or since this store was made.
    fn now(&self) -> Duration {
        self.manual.unwrap_or_else(|| Duration::from_nanos(Instant::now().as_nanos()))
    }

    /// Makes the listeners on a connection look at it.
    fn ring(&self, connection: &Arc<Connection>) {
        let ears = self.ears.iter().filter(|ear| Arc::ptr_eq(&ear.connection, connection));
        ears.for_each(|ear| ear.bell.ring());
    }

    fn execute(&mut self, operation: &Operation, call: &Call) -> Result<Said, StoreError> {
        let now = self.now();
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time_us = u64::try_from(time.as_micros()).unwrap_or(LONGEST_TOKEN);
        let clocks = Clocks { now, time_us, lineage: &self.lineage };
        let lease = operation.group.lease();
        let keys = self.groups.entry(lease.to_owned()).or_default();
        keys.expire(|end| end <= now);
        let said = keys.execute(&operation.id, operation.ttl, call, clocks);
        if let (Ok(Said { answer: Answer::Released, .. }), Call::Release { token, wake: true }) =
            (&said, call)
        {
            self.ears.iter().for_each(|ear| ear.tell(Heard::Wake { lease: lease.to_owned(), token: *token }));
        }
        said
    }
}
