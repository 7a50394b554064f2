//! From a name to addresses.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};

use super::aside::Aside;
use super::wire::Patience;
use crate::election::store::{Class, Lookups, Outcome, StoreError};

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
    lookups: Arc<Mutex<HashMap<Name, Lookup>>>,
    running: Lookups,
}

/// A host and a port.
type Name = (String, u16);

type Lookup = Aside<Vec<SocketAddr>>;

impl Names {
    /// The threads are counted there.
    pub(super) fn new(resolver: Resolver, running: Lookups) -> Self {
        Self { resolver, lookups: Arc::default(), running }
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
        let (resolver, name) = (self.resolver.clone(), host.to_owned());
        let look_up = move || match (resolver.0)(&name, port)? {
            addresses if addresses.is_empty() => Err(io::Error::other("it has no address")),
            addresses => Ok(addresses),
        };
        let lookup = self.of(host, port)?;
        lookup.ask("tr-lookup", &format!("looking up the name {host}"), look_up, patience)
    }

    /// The look-ups of this name.
    fn of(&self, host: &str, port: u16) -> Result<Lookup, StoreError> {
        let mut lookups = self.lookups.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (host.to_owned(), port);
        if lookups.len() >= MOST_NAMES && !lookups.contains_key(&name) {
            let idle =
                lookups.iter().find(|(_, lookup)| !lookup.is_under_way()).map(|(name, _)| name.clone());
            let Some(idle) = idle else {
                let error = io::Error::other("too many names are being looked up");
                let message = format!("looking up the name {host} failed");
                return Err(StoreError::new(Outcome::NotSent, Class::Passing, message).with_source(error));
            };
            lookups.remove(&idle);
        }
        Ok(lookups.entry(name).or_insert_with(|| Aside::new(self.running.clone())).clone())
    }
}
