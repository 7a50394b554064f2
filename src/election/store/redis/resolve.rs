//! Looking up a name without waiting longer than the budget: on a thread of its own.
//!
//! The system's look-up cannot be bounded nor stopped; it takes ten seconds and more when the name
//! servers are silent.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use super::wire::{Broken, Patience};
use crate::election::store::{Class, Lookups, Outcome, StoreError};

/// Of the time left, a look-up gets one part in this many while there are addresses from an earlier
/// one: the rest is for dialling those.
const LOOKUP_PARTS: usize = 2;

/// How many names are remembered. Nodes of a cluster and sentinels name others: one that lies must fill
/// neither the memory nor the system with threads.
const MOST_NAMES: usize = 64;

/// How a host and a port become addresses.
#[derive(Clone)]
pub(super) struct Resolver(Arc<Resolve>);

type Resolve = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;

impl Resolver {
    pub(super) fn new(
        resolve: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(resolve))
    }
}

impl Default for Resolver {
    /// The system's own look-up.
    fn default() -> Self {
        Self::new(|host, port| Ok((host, port).to_socket_addrs()?.collect()))
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}

/// The look-ups of one elector's connections: at most one of a name is under way, and what the last good one
/// said is kept. Clones share both.
#[derive(Clone, Debug)]
pub(super) struct Names {
    resolver: Resolver,
    states: Arc<Mutex<HashMap<Name, State>>>,
    lookups: Lookups,
}

/// A host and a port.
type Name = (String, u16);

#[derive(Debug, Default)]
struct State {
    under_way: Option<Arc<UnderWay>>,
    last_good: Vec<SocketAddr>,
}

/// What a look-up said; shared by all who wait for it.
type Answer = Result<Vec<SocketAddr>, Arc<io::Error>>;

/// A look-up that has not been taken note of yet.
#[derive(Debug)]
struct UnderWay {
    /// Readable, at its end, once the thread has ended.
    ended: UnixStream,
    /// Empty when the thread ended by a panic.
    answer: Arc<OnceLock<Answer>>,
}

/// Held by the thread of a look-up; dropping it, on unwind too, tells the session.
struct Running {
    lookups: Lookups,
    _ended: UnixStream,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.lookups.ended();
    }
}

impl Names {
    pub(super) fn new(resolver: Resolver) -> Self {
        Self { resolver, states: Arc::default(), lookups: Lookups::default() }
    }

    /// How many threads of look-ups are running, readable from anywhere.
    pub(super) fn lookups(&self) -> Lookups {
        self.lookups.clone()
    }

    /// The addresses of a host, in the order to try them; never none.
    ///
    /// A name that cannot be looked up, or not in time, has the addresses of the last time.
    pub(super) fn addresses(
        &self,
        host: &str,
        port: u16,
        patience: &Patience<'_>,
    ) -> Result<Vec<SocketAddr>, StoreError> {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, port)]);
        }
        let name = (host.to_owned(), port);
        let last_good = self.states().get(&name).map_or_else(Vec::new, |state| state.last_good.clone());
        let share = patience.share(if last_good.is_empty() { 1 } else { LOOKUP_PARTS });
        match self.look_up(&name, &share) {
            Err(error) if last_good.is_empty() => Err(error),
            Err(error) => {
                log::debug!("{error}; using the addresses of the last look-up");
                Ok(last_good)
            }
            looked_up => looked_up,
        }
    }

    fn look_up(&self, name: &Name, patience: &Patience<'_>) -> Result<Vec<SocketAddr>, StoreError> {
        let host = &name.0;
        let under_way = self.under_way(name).map_err(|error| {
            failed(format!("could not begin to look up the name {host}")).with_source(error)
        })?;
        if let Err(broken) = patience.readable(&under_way.ended) {
            let allowed = patience.allowed();
            return Err(match broken {
                Broken::Io(error) => failed(format!("could not wait for the name {host}")).with_source(error),
                _ => failed(format!("looking up the name {host} took longer than the {allowed:?} allowed")),
            });
        }
        let mut states = self.states();
        let state = states.entry(name.clone()).or_default();
        // Whoever comes first takes note of it; the next to ask begins another.
        state.under_way.take_if(|other| Arc::ptr_eq(other, &under_way));
        match under_way.answer.get() {
            Some(Ok(addresses)) if !addresses.is_empty() => {
                state.last_good.clone_from(addresses);
                Ok(addresses.clone())
            }
            Some(Ok(_)) => Err(failed(format!("the name {host} has no address"))),
            Some(Err(error)) => {
                Err(failed(format!("could not look up the name {host}")).with_source(Arc::clone(error)))
            }
            None => Err(failed(format!("the resolver panicked while looking up the name {host}"))),
        }
    }

    /// The look-up to wait for. One that is stuck is waited for rather than doubled: threads must not pile
    /// up behind it.
    fn under_way(&self, name: &Name) -> io::Result<Arc<UnderWay>> {
        let mut states = self.states();
        if let Some(under_way) = states.get(name).and_then(|state| state.under_way.as_ref()) {
            return Ok(Arc::clone(under_way));
        }
        if states.len() >= MOST_NAMES && !states.contains_key(name) {
            let idle =
                states.iter().find(|(_, state)| state.under_way.is_none()).map(|(name, _)| name.clone());
            let idle = idle.ok_or_else(|| io::Error::other("too many names are being looked up"))?;
            states.remove(&idle);
        }
        let under_way = Arc::new(self.begin(&name.0, name.1)?);
        states.entry(name.clone()).or_default().under_way = Some(Arc::clone(&under_way));
        Ok(under_way)
    }

    fn states(&self) -> MutexGuard<'_, HashMap<Name, State>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread of a look-up. It is not joined: nothing can end a look-up that is stuck.
    fn begin(&self, host: &str, port: u16) -> io::Result<UnderWay> {
        let (ended, far) = UnixStream::pair()?;
        let answer = Arc::new(OnceLock::new());
        let (resolver, host, slot) = (self.resolver.clone(), host.to_owned(), Arc::clone(&answer));
        let running = Running { lookups: self.lookups.begun(), _ended: far };
        thread::Builder::new().name("tr-lookup".to_owned()).spawn(move || {
            // Moved in first, so that it is dropped last: after the answer is there.
            let _running = running;
            let answer = (resolver.0)(&host, port).map_err(Arc::new);
            slot.set(answer).expect("nobody else answers");
        })?;
        Ok(UnderWay { ended, answer })
    }
}

fn failed(message: String) -> StoreError {
    StoreError::new(Outcome::NotSent, Class::Passing, message)
}
