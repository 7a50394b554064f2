//! Leases kept in Redis or Valkey.
//!
//! The `redis` crate gives the URL, the commands and the values. The socket is ours: its blocking
//! connections have no bound on a whole operation.

mod aside;
mod credentials;
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
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;
mod url;
mod wire;

use std::io;
use std::net::SocketAddr;

use super::{LeaseStore, Listener, Session, sealed};
use crate::election::error::Error;
pub use credentials::Credentials;
use credentials::Source;
use dial::Dialer;
use listener::RedisListener;
use resolve::Resolver;
use session::RedisSession;
#[cfg(feature = "tls")]
pub use tls::Tls;
#[cfg(not(feature = "tls"))]
use tls::Tls;
use url::Target;

/// Leases kept in one Redis or Valkey server, from Redis 6.2.
///
/// It holds no connection: every elector dials its own, and clones are only the same settings.
///
/// # Rights
///
/// A user of the server's ACL needs no more than this (set a password, too):
///
/// ```text
/// ACL SETUSER leases on ~taskrunner:leader:* ~{taskrunner:leader:* resetchannels &taskrunner:leader:*
///     -@all +eval +get +set +del +pttl +pexpire +hset +hdel +hmget +time +publish +subscribe
/// ```
///
/// and `+select` for a database other than 0, `+info +wait` for [strict](crate::election::Strict). A right that is
/// missing is told by an error of kind [`Configuration`](super::super::ErrorKind::Configuration) each time it is in
/// the way; without `publish` and `subscribe` elections go on, but followers learn of a release only when the lease
/// would have ended.
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
    access: Access,
}

/// How servers are reached, whichever they are.
#[derive(Clone, Debug, Default)]
struct Access {
    resolver: Resolver,
    tls: Option<Tls>,
    /// In the place of a URL's user and password.
    credentials: Option<Source>,
}

impl RedisStore {
    /// Reads the URL of a server. It does no I/O: a server that is down is found out by the electors.
    ///
    /// - `redis://[[user][:password]@]host[:port][/database]`, or `valkey://`
    /// - the same with `rediss://` or `valkeys://`, for TLS: the server must prove by a certificate to be that
    ///   host, which may be an IP address, too. It needs the feature `tls`.
    /// - `unix:///path/to/socket[?db=number][&user=user][&pass=password]`, or `redis+unix://`,
    ///   `valkey+unix://`
    ///
    /// User and password are percent-encoded. The port is 6379 and the database 0 unless given. Redis Cluster
    /// and Sentinel are not supported yet.
    ///
    /// # Errors
    ///
    /// A [`Configuration`](super::super::ErrorKind::Configuration) error if the URL is not one of these.
    /// It says what is wrong with it and repeats none of it, for it may hold a password.
    pub fn open(url: &str) -> Result<Self, Error> {
        let target = Target::parse(url)?;
        #[cfg(feature = "tls")]
        let tls = target.tls.then(Tls::default);
        #[cfg(not(feature = "tls"))]
        let tls = None;
        Ok(Self { target, access: Access { tls, ..Access::default() } })
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
        self.access.resolver = Resolver::new(resolve);
        self
    }

    /// Encrypts the connections this way, whether or not the URL asks for TLS. Those over a Unix socket are not.
    ///
    /// Where it is not called, `rediss://` means [`Tls::default`].
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_tls(mut self, tls: Tls) -> Self {
        self.access.tls = Some(tls);
        self
    }

    /// Logs in at the servers with what this function gives, and not with the URL's user and password.
    ///
    /// It is called each time a connection is dialled, so that a password can change while an elector runs: change
    /// it here before, or together with, the server's. A server lets connections go on that logged in with the old
    /// one.
    ///
    /// It is called on a thread of its own and never twice at once for one elector. While it does not return, fails
    /// or panics, what it gave last is used. What it takes is taken from the time of the operation that dials: a
    /// function that asks another service does well to remember the answer.
    ///
    /// # Examples
    ///
    /// ```
    /// use taskrunner::election::{Credentials, RedisStore};
    ///
    /// let store = RedisStore::open("redis://leases.internal")?.with_credentials(|| {
    ///     let password = std::fs::read_to_string("/run/secrets/leases")?;
    ///     Ok(Credentials::new(Some("leases"), password.trim_end()))
    /// });
    /// # Ok::<(), taskrunner::election::Error>(())
    /// ```
    #[must_use]
    pub fn with_credentials(
        mut self,
        give: impl Fn() -> io::Result<Credentials> + Send + Sync + 'static,
    ) -> Self {
        self.access.credentials = Some(Source::new(give));
        self
    }
}

impl LeaseStore for RedisStore {}

impl sealed::Open for RedisStore {
    fn open(&self) -> io::Result<Box<dyn Session>> {
        let dialer = Dialer::new(self.target.clone(), self.access.clone());
        Ok(Box::new(RedisSession::new(dialer)?))
    }

    fn listen(&self) -> io::Result<Box<dyn Listener>> {
        let dialer = Dialer::new(self.target.clone(), self.access.clone());
        Ok(Box::new(RedisListener::new(dialer)?))
    }

    fn open_both(&self) -> io::Result<(Box<dyn Session>, Box<dyn Listener>)> {
        let dialer = Dialer::new(self.target.clone(), self.access.clone());
        let listener = RedisListener::new(dialer.twin())?;
        Ok((Box::new(RedisSession::new(dialer)?), Box::new(listener)))
    }
}
