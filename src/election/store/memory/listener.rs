//! How releases are heard of on the embedded store.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::MemoryStore;
use super::switch::Connection;
use crate::election::key::Group;
use crate::election::store::budget::BellEnd;
use crate::election::store::{Bell, Budget, Heard, Listener, StoreError};

/// Where a listener is told of releases.
#[derive(Clone)]
pub(super) struct Ear {
    wakes: Arc<Mutex<VecDeque<Heard>>>,
    pub(super) bell: Bell,
    pub(super) connection: Arc<Connection>,
}

impl Ear {
    /// How many wakes wait for a listener; one that is slower misses the oldest.
    const WAKES: usize = 64;

    fn wakes(&self) -> MutexGuard<'_, VecDeque<Heard>> {
        self.wakes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tell(&self, wake: Heard) {
        if self.connection.is_cut() {
            return;
        }
        let mut wakes = self.wakes();
        if wakes.len() == Self::WAKES {
            wakes.pop_front();
        }
        wakes.push_back(wake);
        self.bell.ring();
    }
}

pub(super) struct MemoryListener {
    store: MemoryStore,
    ear: Ear,
    end: BellEnd,
    /// How often the connection had been cut when it began to listen; none while it does not.
    listening: Option<u64>,
}

impl MemoryListener {
    /// A listener to the releases of this store. It fails where the system refuses a descriptor.
    pub(super) fn new(store: &MemoryStore) -> io::Result<Self> {
        let (bell, end) = Bell::new()?;
        let ear = Ear { wakes: Arc::default(), bell, connection: Arc::clone(&store.connection) };
        store.lock().ears.push(ear.clone());
        Ok(Self { store: store.clone(), ear, end, listening: None })
    }

    /// Begins to listen, if it does not and can. Says that it has begun, or that a cut has ended it.
    fn connect(&mut self) -> Result<Option<Heard>, StoreError> {
        let _shared = self.store.lock();
        let connection = &self.store.connection;
        match self.listening {
            Some(cuts) if cuts == connection.cuts() => return Ok(None),
            // The loss was told; there is nothing more to tell until the connection is mended.
            None if connection.is_cut() => return Ok(None),
            Some(_) | None => self.ear.wakes().clear(),
        }
        if self.listening.take().is_some() {
            return Err(Connection::error());
        }
        self.listening = Some(connection.cuts());
        Ok(Some(Heard::Listening))
    }
}

impl Listener for MemoryListener {
    fn next(&mut self, groups: &[Group], budget: &Budget) -> Result<Heard, StoreError> {
        loop {
            if let Some(begun) = self.connect()? {
                return Ok(begun);
            }
            let Some(left) = budget.remaining() else { return Ok(Heard::Nothing) };
            let heard = self.ear.wakes().pop_front();
            match heard {
                Some(Heard::Wake { lease, token }) if groups.iter().any(|group| group.lease() == lease) => {
                    return Ok(Heard::Wake { lease, token });
                }
                Some(_) => {}
                None => self.end.wait(left),
            }
        }
    }

    fn reset(&mut self) {
        self.listening = None;
    }

    fn bell(&self) -> Bell {
        self.ear.bell.clone()
    }
}

impl Drop for MemoryListener {
    fn drop(&mut self) {
        self.store.lock().ears.retain(|ear| !Arc::ptr_eq(&ear.wakes, &self.ear.wakes));
    }
}
