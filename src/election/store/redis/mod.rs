//! Leases kept in Redis or Valkey.
//!
//! The `redis` crate gives the URL, the commands and the values. The socket is ours: its blocking
//! connections have no bound on a whole operation.

mod dial;
mod fault;
mod frame;
mod listener;
#[cfg(test)]
mod properties;
mod resolve;
mod script;
mod session;
#[cfg(test)]
mod tests;
mod url;
mod wire;

use std::io;
use std::net::SocketAddr;

use super::{LeaseStore, Listener, Session, sealed};
use crate::election::error::Error;
use dial::Dialer;
use listener::RedisListener;
use resolve::Resolver;
#[cfg(test)]
pub(crate) use script::pack;
use session::RedisSession;
use url::Target;

/// Leases kept in one Redis or Valkey server, from Redis 6.2.
///
/// It holds no connection: every elector dials its own, and clones are only the same settings.
///
/// # Examples
///
/// ```
/// use taskrunner::election::RedisStore;
///
/// let store = RedisStore::open("redis://user:password@127.0.0.1:6379/0")?;
/// let store = RedisStore::open("unix:///run/redis.sock?db=0&user=user&pass=password")?;
/// # Ok::<(), taskrunner::election::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RedisStore {
    target: Target,
    resolver: Resolver,
}

impl RedisStore {
    /// Reads the URL of a server. It does no I/O: a server that is down is found out by the electors.
    ///
    /// - `redis://[[user][:password]@]host[:port][/database]`, or `valkey://`
    /// - `unix:///path/to/socket[?db=number][&user=user][&pass=password]`, or `redis+unix://`,
    ///   `valkey+unix://`
    ///
    /// User and password are percent-encoded. The port is 6379 and the database 0 unless given. TLS,
    /// Redis Cluster and Sentinel are not supported yet.
    ///
    /// # Errors
    ///
    /// A [`Configuration`](super::super::ErrorKind::Configuration) error if the URL is not one of these.
    /// It says what is wrong with it and repeats none of it, for it may hold a password.
    pub fn open(url: &str) -> Result<Self, Error> {
        Ok(Self { target: Target::parse(url)?, resolver: Resolver::default() })
    }

    /// Looks the host's name up with this function, given the host and the port.
    ///
    /// It is called each time a connection is dialled, on a thread of its own and never twice at once for
    /// one elector. While it does not return, or fails, the addresses of its last success are used. A
    /// host that is an IP address is not looked up. Defaults to the system's `getaddrinfo`.
    ///
    /// # Examples
    ///
    /// ```
    /// use taskrunner::election::RedisStore;
    ///
    /// let store = RedisStore::open("redis://leases.internal")?
    ///     .with_resolver(|_host, port| Ok(vec![([10, 0, 0, 7], port).into()]));
    /// # Ok::<(), taskrunner::election::Error>(())
    /// ```
    #[must_use]
    pub fn with_resolver(
        mut self,
        resolve: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        self.resolver = Resolver::new(resolve);
        self
    }
}

impl LeaseStore for RedisStore {}

impl sealed::Open for RedisStore {
    fn open(&self) -> io::Result<Box<dyn Session>> {
        let dialer = Dialer::new(self.target.clone(), self.resolver.clone());
        Ok(Box::new(RedisSession::new(dialer)?))
    }

    fn listen(&self) -> io::Result<Box<dyn Listener>> {
        let dialer = Dialer::new(self.target.clone(), self.resolver.clone());
        Ok(Box::new(RedisListener::new(dialer)?))
    }

    fn open_both(&self) -> io::Result<(Box<dyn Session>, Box<dyn Listener>)> {
        let dialer = Dialer::new(self.target.clone(), self.resolver.clone());
        let listener = RedisListener::new(dialer.twin())?;
        Ok((Box::new(RedisSession::new(dialer)?), Box::new(listener)))
    }
}
