//! A connection to the embedded store that can be cut.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::MemoryStore;
use crate::election::store::{Class, Outcome, StoreError};

/// Cuts and mends the connection of a store that was made by [`MemoryStore::with_switch`].
#[derive(Clone)]
pub struct Switch {
    pub(super) store: MemoryStore,
}

impl Switch {
    /// Cuts the connection, if it is whole. Once this has returned nothing reaches the leases over it.
    pub fn cut(&self) {
        let shared = self.store.lock();
        let connection = &self.store.connection;
        if !connection.cut.swap(true, Ordering::Relaxed) {
            connection.cuts.fetch_add(1, Ordering::Relaxed);
            shared.ring(connection);
        }
    }

    /// Mends the connection, if it is cut.
    pub fn mend(&self) {
        let shared = self.store.lock();
        let connection = &self.store.connection;
        if connection.cut.swap(false, Ordering::Relaxed) {
            shared.ring(connection);
        }
    }
}

impl fmt::Debug for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Switch").field("cut", &self.store.connection.is_cut()).finish()
    }
}

/// The way from a store's clones to the leases. It changes under the lock of these only, which orders it
/// with all that is done to them.
#[derive(Default)]
pub(super) struct Connection {
    cut: AtomicBool,
    /// How often it was cut: a listener sees by it that it has missed something, however short that was.
    cuts: AtomicU64,
}

impl Connection {
    pub(super) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    pub(super) fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::Relaxed)
    }

    /// Fails while it is cut.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        if self.is_cut() { Err(Self::error()) } else { Ok(()) }
    }

    pub(super) fn error() -> StoreError {
        StoreError::new(Outcome::NotSent, Class::Passing, "the connection is cut")
    }
}
