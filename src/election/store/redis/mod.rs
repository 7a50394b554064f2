//! Leases kept in Redis or Valkey.
//!
//! The `redis` crate gives the URL, the commands and the values. The socket is ours: its blocking
//! connections have no bound on a whole operation.

mod aside;
mod cluster;
mod credentials;
mod dial;
mod fault;
mod frame;
mod listener;
#[cfg(test)]
mod properties;
mod resolve;
mod script;
mod sentinel;
mod session;
mod slot;
#[cfg(test)]
mod tests;
#[cfg_attr(not(feature = "tls"), path = "no_tls.rs")]
mod tls;
mod url;
mod wire;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use super::{LeaseStore, Listener, Node, Session, sealed};
use crate::election::error::Error;
use cluster::{ClusterSession, Routes};
pub use credentials::Credentials;
use credentials::Source;
use dial::{Dialer, Way};
use listener::RedisListener;
use resolve::Resolver;
#[cfg(test)]
pub(crate) use script::pack;
use sentinel::Sentinels;
use session::RedisSession;
#[cfg(feature = "tls")]
pub use tls::Tls;
#[cfg(not(feature = "tls"))]
use tls::Tls;
use url::{Address, SENTINEL_PORT, Target, Url, bad};

/// Leases kept in Redis or Valkey, from Redis 6.2: in one server, in a cluster, or in the primary that
/// Sentinels name.
///
/// It holds no connection: every elector dials its own. Clones are the same settings, and share what is
/// learned of a cluster's slots.
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
/// and `+select` for a database other than 0, `+asking` in a cluster, `+info +wait` for
/// [strict](crate::election::Strict). A right that is missing is told by an error of kind
/// [`Configuration`](crate::election::ErrorKind::Configuration) each time it is in the way; without `publish` and
/// `subscribe` elections go on, but followers learn of a release only when the lease would have ended.
///
/// A user of a Sentinel needs no more than `-@all +sentinel|get-master-addr-by-name +sentinel|master`.
///
/// # Examples
///
/// ```
/// use taskrunner::election::RedisStore;
///
/// let store = RedisStore::open("redis://user:password@127.0.0.1:6379/0")?;
/// let store = RedisStore::open("unix:///run/redis.sock?db=0&user=user&pass=password")?;
/// let store = RedisStore::open("redis-cluster://user:password@10.0.0.1,10.0.0.2:7000")?;
/// let store = RedisStore::open("redis-sentinel://user:password@10.0.0.1,10.0.0.2/mymaster/0")?;
/// # Ok::<(), taskrunner::election::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RedisStore {
    /// How to log in at a server. Where it is, the topology may say otherwise.
    target: Target,
    topology: Topology,
    access: Access,
}

/// How servers are reached, whichever they are.
#[derive(Clone, Debug, Default)]
struct Access {
    resolver: Resolver,
    /// How connections are encrypted that are to be.
    tls: Tls,
    /// In the place of a URL's user and password.
    credentials: Option<Source>,
}

#[derive(Clone, Debug)]
enum Topology {
    Server,
    Cluster(Arc<Routes>),
    Sentinel(Arc<Sentinels>),
}

impl RedisStore {
    /// Reads a URL. It does no I/O: a server that is down is found out by the electors.
    ///
    /// - `redis://[[user][:password]@]host[:port][/database]`, or `valkey://`
    /// - `unix:///path/to/socket[?db=number][&user=user][&pass=password]`, or `redis+unix://`,
    ///   `valkey+unix://`
    /// - `redis-cluster://[[user][:password]@]host[:port][,host[:port]]...`, or `valkey-cluster://`: as
    ///   [`cluster`](Self::cluster)
    /// - `redis-sentinel://[[user][:password]@]host[:port][,host[:port]].../name[/database]`, or
    ///   `valkey-sentinel://`: as [`sentinel`](Self::sentinel), but that user and password are those of the
    ///   *servers*, and the Sentinels have none
    ///
    /// User and password are percent-encoded. The port is 6379, of a Sentinel 26379, and the database 0 unless
    /// given. With `rediss` or `valkeys` in the place of `redis` or `valkey` they are URLs for TLS: each server, or
    /// Sentinel, must prove by a certificate to be the host that the URL, a Sentinel or a node of the cluster names
    /// (it may be an IP address). It needs the feature `tls`.
    ///
    /// # Errors
    ///
    /// A [`Configuration`](crate::election::ErrorKind::Configuration) error if the URL is not one of these.
    /// It says what is wrong with it and repeats none of it, for it may hold a password.
    pub fn open(url: &str) -> Result<Self, Error> {
        match Url::parse(url)? {
            Url::Server(target) => Ok(Self::new(target, Topology::Server)),
            Url::Cluster(nodes) => Self::of_nodes(nodes),
            Url::Sentinel { sentinels, master, server } => Ok(Self::of_sentinels(sentinels, master, server)),
        }
    }

    /// Leases kept in a Redis Cluster, some nodes of which have these URLs. It does no I/O.
    ///
    /// A group's two keys are in one slot, and its operations go to the node that has it, as the nodes
    /// themselves say. Each node has a connection and a thread of its own in an elector, so that one that hangs
    /// holds up no other. The URLs need not name all nodes, but enough that one of them is up; user and
    /// password must be the same in all of them, and are those of all nodes.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open); also for no URL at all, for a database other than 0, and for a Unix socket.
    ///
    /// # Examples
    ///
    /// ```
    /// use taskrunner::election::RedisStore;
    ///
    /// let store = RedisStore::cluster(["redis://10.0.0.1:7000", "redis://10.0.0.2:7000"])?;
    /// # Ok::<(), taskrunner::election::Error>(())
    /// ```
    pub fn cluster(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, Error> {
        let mut nodes = Vec::new();
        for url in urls {
            match Url::parse(url.as_ref())? {
                Url::Server(target) => nodes.push(target),
                Url::Cluster(targets) => nodes.extend(targets),
                Url::Sentinel { .. } => {
                    return Err(bad("names Sentinels where a cluster's node is to be named"));
                }
            }
        }
        Self::of_nodes(nodes)
    }

    /// Leases kept in the primary that these Sentinels watch under this name. It does no I/O.
    ///
    /// All Sentinels are asked before and after a connection is dialled. The server that the newest configuration
    /// names is used if it says itself that it is a primary, else another one that is named and does. A Sentinel
    /// that hangs costs its share of the time once, and is left alone for ten seconds where more than half of all
    /// answer. User and password in the URLs are those of the *Sentinels*; the database is the servers'. `rediss://`
    /// Sentinels mean TLS to the servers, too; `with_tls` turns it on for the servers alone.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open); also for no URL at all, for different databases, and for URLs some of which ask for TLS
    /// and some do not.
    ///
    /// # Examples
    ///
    /// ```
    /// use taskrunner::election::RedisStore;
    ///
    /// let store = RedisStore::sentinel(["redis://10.0.0.1", "redis://10.0.0.2:26380"], "mymaster")?;
    /// # Ok::<(), taskrunner::election::Error>(())
    /// ```
    pub fn sentinel(urls: impl IntoIterator<Item = impl AsRef<str>>, master: &str) -> Result<Self, Error> {
        let sentinels: Vec<_> = urls
            .into_iter()
            .map(|url| Target::parse_with(url.as_ref(), SENTINEL_PORT))
            .collect::<Result<_, _>>()?;
        let Some(first) = sentinels.first().cloned() else {
            return Err(Error::options("no URL of a Sentinel was given; at least one is needed"));
        };
        if sentinels.iter().any(|sentinel| sentinel.tls != first.tls) {
            return Err(Error::options("of the URLs of the Sentinels some ask for TLS and some do not"));
        }
        if sentinels.iter().any(|sentinel| sentinel.database != first.database) {
            return Err(Error::options(
                "the URLs of the Sentinels name different databases of their servers",
            ));
        }
        if master.is_empty() {
            return Err(Error::options("the name of the primary that the Sentinels watch is empty"));
        }
        let server = Target { credentials: None, ..first };
        Ok(Self::of_sentinels(sentinels, master.to_owned(), server))
    }

    fn of_nodes(nodes: Vec<Target>) -> Result<Self, Error> {
        let Some(first) = nodes.first().cloned() else {
            return Err(Error::options("no URL of a cluster's node was given; at least one is needed"));
        };
        if nodes.iter().any(|node| node.credentials != first.credentials) {
            return Err(Error::options("the URLs of the cluster's nodes name different users or passwords"));
        }
        if nodes.iter().any(|node| node.tls != first.tls) {
            return Err(Error::options(
                "of the URLs of the cluster's nodes some ask for TLS and some do not",
            ));
        }
        let seed = |target: Target| match target {
            Target { database: 1.., .. } => Err(bad("names a database; a cluster has number 0 only")),
            Target { address: Address::Unix(_), .. } => {
                Err(bad("names a Unix socket; the nodes of a cluster name one another by host and port"))
            }
            Target { address: Address::Tcp { host, port }, .. } => {
                Ok(Node { host: host.into(), port, asking: false })
            }
        };
        let seeds = nodes.into_iter().map(seed).collect::<Result<_, _>>()?;
        Ok(Self::new(first, Topology::Cluster(Arc::new(Routes::new(seeds)))))
    }

    fn of_sentinels(sentinels: Vec<Target>, master: String, server: Target) -> Self {
        Self::new(server, Topology::Sentinel(Arc::new(Sentinels::new(sentinels, master))))
    }

    fn new(target: Target, topology: Topology) -> Self {
        Self { target, topology, access: Access::default() }
    }

    /// Looks a host's name up with this function, given the host and the port.
    ///
    /// It is called each time a connection is dialled, on a thread of its own and never twice at once for
    /// one name and elector. While it does not return, or fails, the addresses of its last success are used. A
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

    /// Encrypts the connections to servers this way, whether or not the URL asks for TLS; those to Sentinels only if
    /// their URLs do, and those over a Unix socket never.
    ///
    /// A server must prove to be the host that it was dialled by. Which host that is, says whoever named it: a Sentinel
    /// that is reached without TLS, or anybody in its place, can name any host that has a certificate of a trusted
    /// authority, and so can each node of a cluster. Trust an authority of your own ([`Tls::with_ca`]), and let the
    /// Sentinels have TLS, too.
    ///
    /// Where it is not called, `rediss://` means [`Tls::default`].
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_tls(mut self, tls: Tls) -> Self {
        self.access.tls = tls;
        self.target.tls = true;
        self
    }

    /// Logs in at the servers with what this function gives, and not with the URL's user and password. At Sentinels
    /// those of their URLs go on to be used.
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

impl RedisStore {
    fn dialer(&self) -> Dialer {
        let way = match &self.topology {
            Topology::Server => Way::Server,
            Topology::Cluster(routes) => Way::AnyNode { routes: Arc::clone(routes), next: 0 },
            Topology::Sentinel(sentinels) => Way::Sentinels(Arc::clone(sentinels)),
        };
        Dialer::by(way, self.target.clone(), self.access.clone())
    }

    fn session(&self, dialer: Dialer) -> io::Result<Box<dyn Session>> {
        Ok(match &self.topology {
            Topology::Cluster(routes) => Box::new(ClusterSession::new(dialer, Arc::clone(routes))?),
            Topology::Server | Topology::Sentinel(_) => Box::new(RedisSession::new(dialer)?),
        })
    }
}

impl sealed::Open for RedisStore {
    fn open(&self) -> io::Result<Box<dyn Session>> {
        self.session(self.dialer())
    }

    fn listen(&self) -> io::Result<Box<dyn Listener>> {
        Ok(Box::new(RedisListener::new(self.dialer())?))
    }

    fn open_both(&self) -> io::Result<(Box<dyn Session>, Box<dyn Listener>)> {
        let dialer = self.dialer();
        let listener = RedisListener::new(dialer.twin())?;
        Ok((self.session(dialer)?, Box::new(listener)))
    }
}
