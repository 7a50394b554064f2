//! The embedded store: leases in this process's memory.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::budget::BellEnd;
use super::{
    Action, Answer, Bell, Budget, Class, Heard, Holding, LeaseStore, Listener, Operation, Outcome, Session,
    StoreError, sealed,
};
use crate::election::clock::Instant;
use crate::election::key::{Group as GroupName, InstanceId};
use crate::election::term::{LONGEST_TOKEN, next_token};

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

/// Cuts and mends the connection of a store that was made by [`MemoryStore::with_switch`].
#[derive(Clone)]
pub struct Switch {
    store: MemoryStore,
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
struct Connection {
    cut: AtomicBool,
    /// How often it was cut: a listener sees by it that it has missed something, however short that was.
    cuts: AtomicU64,
}

impl Connection {
    fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::Relaxed)
    }

    /// Fails while it is cut.
    fn check(&self) -> Result<(), StoreError> {
        if self.is_cut() { Err(Self::error()) } else { Ok(()) }
    }

    fn error() -> StoreError {
        StoreError::new(Outcome::NotSent, Class::Passing, "the connection is cut")
    }
}

impl LeaseStore for MemoryStore {}

impl sealed::Open for MemoryStore {
    fn open(&self) -> std::io::Result<Box<dyn Session>> {
        Ok(Box::new(self.clone()))
    }

    fn listen(&self) -> std::io::Result<Box<dyn Listener>> {
        let (bell, end) = Bell::new()?;
        let ear = Ear { wakes: Arc::default(), bell, connection: Arc::clone(&self.connection) };
        self.lock().ears.push(ear.clone());
        Ok(Box::new(MemoryListener { store: self.clone(), ear, end, listening: None }))
    }
}

/// Where a listener is told of releases.
#[derive(Clone)]
struct Ear {
    wakes: Arc<Mutex<VecDeque<Heard>>>,
    bell: Bell,
    connection: Arc<Connection>,
}

impl Ear {
    /// How many wakes wait for a listener; one that is slower misses the oldest.
    const WAKES: usize = 64;

    fn wakes(&self) -> MutexGuard<'_, VecDeque<Heard>> {
        self.wakes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, wake: Heard) {
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

struct MemoryListener {
    store: MemoryStore,
    ear: Ear,
    end: BellEnd,
    /// How often the connection had been cut when it began to listen; none while it does not.
    listening: Option<u64>,
}

impl MemoryListener {
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
    fn next(&mut self, groups: &[GroupName], budget: &Budget) -> Result<Heard, StoreError> {
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

impl Session for MemoryStore {
    fn execute(&mut self, batch: &[Operation], budget: &Budget) -> Vec<Result<Answer, StoreError>> {
        let mut shared = self.lock();
        batch
            .iter()
            .map(|operation| match budget.remaining() {
                Some(_) => self.connection.check().and_then(|()| shared.execute(operation)),
                None => {
                    Err(StoreError::new(Outcome::NotSent, Class::Passing, "there was no time left to begin"))
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
    groups: HashMap<String, Group>,
    ears: Vec<Ear>,
    manual: Option<Duration>,
}

/// What Redis keeps in the lease key and the term key.
#[derive(Default)]
struct Group {
    lease: Option<Lease>,
    term: Option<Term>,
}

struct Lease {
    holder: InstanceId,
    expires: Duration,
}

struct Term {
    token: u64,
    holder: InstanceId,
    attempt: u64,
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

    fn execute(&mut self, operation: &Operation) -> Result<Answer, StoreError> {
        let now = self.now();
        let group = self.groups.entry(operation.group.lease().to_owned()).or_default();
        group.lease.take_if(|lease| lease.expires <= now);
        match operation.action {
            Action::Acquire { attempt, floor } => group.acquire(operation, attempt, floor, now),
            Action::Renew { token } if group.is_held(&operation.id, token) => {
                let lease = group.lease.as_mut().expect("the lease is held");
                let left = lease.expires - now;
                lease.expires = now.saturating_add(operation.ttl);
                Ok(Answer::Renewed { left })
            }
            Action::Release { token } if group.is_held(&operation.id, token) => {
                group.lease = None;
                let lease = operation.group.lease().to_owned();
                self.ears.iter().for_each(|ear| ear.tell(Heard::Wake { lease: lease.clone(), token }));
                Ok(Answer::Released)
            }
            Action::Renew { .. } | Action::Release { .. } | Action::Look => Ok(group.look(now)),
        }
    }
}

impl Group {
    fn acquire(
        &mut self,
        operation: &Operation,
        attempt: u64,
        floor: u64,
        now: Duration,
    ) -> Result<Answer, StoreError> {
        if self.lease.as_ref().is_some_and(|lease| lease.holder != operation.id) {
            return Ok(self.look(now));
        }
        let own = self.term.as_ref().filter(|term| term.holder == operation.id);
        if own.is_some_and(|term| attempt <= term.attempt) {
            return Ok(Answer::Ghost);
        }
        let last = self.term.as_ref().map_or(0, |term| term.token);
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = u64::try_from(time.as_micros()).unwrap_or(LONGEST_TOKEN);
        let token = next_token(last, time, floor).ok_or_else(|| {
            StoreError::new(
                Outcome::Refused,
                Class::Configuration,
                format!("no token is left above {last} and {floor}; tokens end at {LONGEST_TOKEN}"),
            )
        })?;
        let holder = operation.id.clone();
        self.term = Some(Term { token, holder: holder.clone(), attempt });
        self.lease = Some(Lease { holder, expires: now.saturating_add(operation.ttl) });
        Ok(Answer::Won { token, ahead: Duration::from_micros(token.saturating_sub(time)) })
    }

    fn is_held(&self, id: &InstanceId, token: u64) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.holder == *id)
            && self.term.as_ref().is_some_and(|term| term.token == token)
    }

    fn look(&self, now: Duration) -> Answer {
        let Some(lease) = &self.lease else { return Answer::Vacant };
        let term = self.term.as_ref().filter(|term| term.holder == lease.holder);
        Answer::Held(Holding {
            holder: lease.holder.clone(),
            token: term.map(|term| term.token),
            remaining: Some(lease.expires - now),
        })
    }
}
