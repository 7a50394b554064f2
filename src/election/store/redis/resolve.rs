//! From a name to addresses.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use super::aside::Aside;
use super::wire::Patience;
use crate::election::store::{Lookups, StoreError};

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

/// The look-ups of one host for one elector's connections. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Names {
    resolver: Resolver,
    lookups: Aside<Vec<SocketAddr>>,
}

impl Names {
    /// The threads are counted there.
    pub(super) fn new(resolver: Resolver, running: Lookups) -> Self {
        Self { resolver, lookups: Aside::new(running) }
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
        self.lookups.ask("tr-lookup", &format!("looking up the name {host}"), look_up, patience)
    }
}
