//! What a Redis URL says, or a list of them.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;

use redis::{ConnectionAddr, IntoConnectionInfo};
use rustix::net::SocketAddrUnix;

use super::credentials::Credentials;
use crate::election::error::Error;
use crate::election::store::Node;

/// Where servers listen unless a URL says otherwise.
const PORT: u16 = 6379;
/// And Sentinels.
pub(super) const SENTINEL_PORT: u16 = 26379;
/// The longest name that a host can have.
const LONGEST_HOST: usize = 253;

/// What a URL names.
#[derive(Clone, Debug)]
pub(super) enum Url {
    Server(Target),
    /// Nodes of a cluster; there is at least one.
    Cluster(Vec<Target>),
    /// The primary that these Sentinels name; there is at least one.
    Sentinel {
        sentinels: Vec<Target>,
        master: String,
        /// How to log in at the primary; its address is one of a Sentinel.
        server: Target,
    },
}

/// Where a server is, and how to log in there.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) address: Address,
    pub(super) credentials: Option<Credentials>,
    pub(super) database: u32,
    /// Whether the URL asks for TLS.
    pub(super) tls: bool,
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl Url {
    /// Reads a URL of any form. The error never repeats any of it, for it may hold a password in a wrong place.
    pub(super) fn parse(url: &str) -> Result<Self, Error> {
        let url = url.trim();
        let scheme = url.split("://").next().unwrap_or_default().to_ascii_lowercase();
        let Some((server, topology)) = scheme.split_once(['-', '+']) else {
            return Target::parse(url).map(Self::Server);
        };
        let is_server = matches!(server, "redis" | "rediss" | "valkey" | "valkeys");
        match topology {
            "cluster" if is_server => {
                let parts = Parts::of(url)?;
                Ok(Self::Cluster(parts.targets(server, PORT, parts.path)?))
            }
            "sentinel" if is_server => Self::parse_sentinel(server, &Parts::of(url)?),
            _ => Target::parse(url).map(Self::Server),
        }
    }

    fn parse_sentinel(server: &str, parts: &Parts<'_>) -> Result<Self, Error> {
        let path = parts.path.strip_prefix('/').unwrap_or_default();
        // The database with its slash, or nothing.
        let (master, database) = path.split_at(path.find('/').unwrap_or(path.len()));
        let is_odd = |c: char| !c.is_ascii_alphanumeric() && !".-_".contains(c);
        if master.is_empty() || master.contains(is_odd) {
            return Err(bad(
                "must name the primary that the Sentinels watch, after the hosts and a slash, in letters, digits and .-_",
            ));
        }
        let (targets, master) = (parts.targets(server, SENTINEL_PORT, database)?, master.to_owned());
        let server = targets.first().cloned().ok_or_else(|| bad("names no host"))?;
        // User and password are those of the servers.
        let sentinels = targets.into_iter().map(|target| Target { credentials: None, ..target });
        Ok(Self::Sentinel { sentinels: sentinels.collect(), master, server })
    }
}

/// The parts of a URL that may name several hosts.
struct Parts<'a> {
    /// User and password with the `@` after them, or nothing.
    login: &'a str,
    hosts: &'a str,
    /// From the first slash on, or nothing.
    path: &'a str,
}

impl<'a> Parts<'a> {
    fn of(url: &'a str) -> Result<Self, Error> {
        let (_, rest) = url.split_once("://").ok_or_else(|| bad("has no scheme"))?;
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (login, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        if path.contains(['?', '#']) {
            return Err(bad("has a question mark or a fragment after its hosts, which mean nothing there"));
        }
        Ok(Self { login, hosts, path })
    }

    /// One target for each host, with the same login.
    fn targets(&self, scheme: &str, port: u16, path: &str) -> Result<Vec<Target>, Error> {
        let hosts = self.hosts.split(',');
        hosts
            .map(|host| Target::parse_with(&format!("{scheme}://{}{host}{path}", self.login), port))
            .collect()
    }
}

impl Target {
    /// Reads the URL of one server.
    pub(super) fn parse(url: &str) -> Result<Self, Error> {
        Self::parse_with(url, PORT)
    }

    /// The same, where the port is this one unless the URL says another.
    pub(super) fn parse_with(url: &str, port: u16) -> Result<Self, Error> {
        let url = url.trim();
        if url.is_empty() {
            return Err(bad("is empty"));
        }
        if url.contains(char::is_control) {
            // Some of them would be left out in silence, of a password too.
            return Err(bad("has a control character in it, which must be percent-encoded"));
        }
        let Some((scheme, rest)) = url.split_once("://") else { return Err(bad("has no scheme")) };
        // Up to the path; what stands before the last @ is user and password.
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let hosts = authority.rsplit('@').next().unwrap_or_default();
        let tls = matches!(&*scheme.to_ascii_lowercase(), "rediss" | "valkeys");
        match &*scheme.to_ascii_lowercase() {
            "rediss" | "valkeys" if cfg!(not(feature = "tls")) => {
                return Err(bad("asks for TLS, which needs the feature `tls` of this crate"));
            }
            "redis" | "valkey" | "rediss" | "valkeys" if hosts.contains(',') => {
                return Err(bad("names several hosts; a cluster's nodes have a redis-cluster:// URL"));
            }
            "redis" | "valkey" | "rediss" | "valkeys" if hosts.is_empty() || hosts.starts_with(':') => {
                return Err(bad("names no host"));
            }
            "redis" | "valkey" | "rediss" | "valkeys" => {}
            "unix" | "redis+unix" | "valkey+unix" if !authority.is_empty() => {
                return Err(bad(
                    "names a host where a socket's path should begin: write three slashes after unix:",
                ));
            }
            "unix" | "redis+unix" | "valkey+unix"
                if rest.split(['?', '#']).next().is_none_or(str::is_empty) =>
            {
                return Err(bad("names no socket path"));
            }
            "unix" | "redis+unix" | "valkey+unix" => {}
            _ => {
                return Err(bad(
                    "has a scheme that is none of redis, rediss, valkey, valkeys, unix, redis+unix, valkey+unix, redis-cluster and redis-sentinel",
                ));
            }
        }
        refuse_unknown_parameters(rest, scheme.to_ascii_lowercase().contains("unix"))?;
        // TLS is ours, and the crate need not know of it.
        let url: Cow<'_, str> = if tls { format!("redis://{rest}").into() } else { url.into() };
        // The crate's error may quote the URL, so it is not a source of ours.
        let info = (*url).into_connection_info().map_err(|_| {
            bad("cannot be parsed; special characters in user and password must be percent-encoded, and a database is a number")
        })?;
        let address = match info.addr() {
            ConnectionAddr::Tcp(_, 0) => return Err(bad("names the port 0, on which no server listens")),
            // The crate's own port stands there, too, where none is given.
            ConnectionAddr::Tcp(host, _) if !names_port(hosts) => Address::Tcp { host: host.clone(), port },
            ConnectionAddr::Tcp(host, port) => Address::Tcp { host: host.clone(), port: *port },
            ConnectionAddr::Unix(path) if path.file_name().is_none() => {
                return Err(bad("names no socket path"));
            }
            ConnectionAddr::Unix(path) if SocketAddrUnix::new(path).is_err() => {
                return Err(bad("names a socket path that is longer than the system allows"));
            }
            ConnectionAddr::Unix(path) => Address::Unix(path.clone()),
            _ => return Err(bad("names an address of a kind that is not supported")),
        };
        let settings = info.redis_settings();
        let (user, password) = (settings.username(), settings.password());
        // A user without a password may log in with any; the empty one is what the command wants then.
        let credentials = (user.is_some() || password.is_some())
            .then(|| Credentials::new(user, password.unwrap_or_default()));
        // Servers read it as an i32.
        let database = u32::try_from(settings.db())
            .ok()
            .filter(|database| i32::try_from(*database).is_ok())
            .ok_or_else(|| bad("has a database number that is negative or too large"))?;
        Ok(Self { address, credentials, database, tls })
    }
}

/// Whether a host has a port after it; one of IP version 6 has colons itself, in brackets.
fn names_port(host: &str) -> bool {
    host.rsplit(']').next().is_some_and(|rest| rest.split_once(':').is_some_and(|(_, port)| !port.is_empty()))
}

impl Address {
    /// The address that a server names; none if there can be no such thing.
    pub(super) fn named(host: &str, port: &str) -> Option<Self> {
        let is_good = |c: char| c.is_ascii_alphanumeric() || ".-_:%".contains(c);
        let is_host = (1..=LONGEST_HOST).contains(&host.len()) && host.chars().all(is_good);
        let port = Some(port).filter(|port| port.bytes().all(|byte| byte.is_ascii_digit()))?;
        let port = port.parse().ok().filter(|port| *port != 0)?;
        is_host.then(|| Self::Tcp { host: host.to_owned(), port })
    }
}

impl From<&Node> for Address {
    fn from(node: &Node) -> Self {
        Self::Tcp { host: (*node.host).to_owned(), port: node.port }
    }
}

/// What is passed over in silence may have been meant to choose the database: two instances that read the
/// same URL differently would both lead.
fn refuse_unknown_parameters(rest: &str, is_socket: bool) -> Result<(), Error> {
    if rest.contains('#') {
        return Err(bad("has a fragment, which means nothing here; write # as %23"));
    }
    let Some((_, query)) = rest.split_once('?') else { return Ok(()) };
    if !is_socket {
        return Err(bad("has parameters after a question mark; user, password and database stand before it"));
    }
    let known = |pair: &str| matches!(pair.split('=').next(), Some("db" | "user" | "pass"));
    if query.split('&').all(known) {
        Ok(())
    } else {
        Err(bad("has a parameter that is none of db, user and pass"))
    }
}

pub(super) fn bad(what: &str) -> Error {
    Error::options(format!(
        "the Redis URL {what}; a good one is redis://user:password@host:6379/0, \
         unix:///path/to/redis.sock?db=0, redis-cluster://user:password@host1:6379,host2:6379 or \
         redis-sentinel://user:password@host1:26379,host2:26379/mymaster/0"
    ))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_urls_are_read() {
        let tcp = |host: &str, port| Address::Tcp { host: host.to_owned(), port };
        let unix = |path: &str| Address::Unix(path.into());
        for (url, address, username, password, database) in [
            ("redis://127.0.0.1/", tcp("127.0.0.1", 6379), None, None, 0),
            ("redis://localhost", tcp("localhost", 6379), None, None, 0),
            (" valkey://h:7000/3\n", tcp("h", 7000), None, None, 3),
            ("REDIS://h", tcp("h", 6379), None, None, 0),
            ("redis://[::1]:7/", tcp("::1", 7), None, None, 0),
            ("redis://:p%40ss@h", tcp("h", 6379), None, Some("p@ss"), 0),
            ("redis://us%2Fer:p,ss@h/2", tcp("h", 6379), Some("us/er"), Some("p,ss"), 2),
            ("redis://user@h", tcp("h", 6379), Some("user"), Some(""), 0),
            ("unix:///run/redis.sock", unix("/run/redis.sock"), None, None, 0),
            ("redis+unix:///run/r.sock?db=4&user=u&pass=p%26", unix("/run/r.sock"), Some("u"), Some("p&"), 4),
            ("valkey+unix:///run/r%20s.sock", unix("/run/r s.sock"), None, None, 0),
        ] {
            let target = Target::parse(url).unwrap_or_else(|e| panic!("{url}: {e}"));
            assert_eq!(target.address, address, "{url}");
            let credentials = password.map(|password| Credentials::new(username, password));
            assert_eq!((target.credentials, target.database), (credentials, database), "{url}");
        }
    }

    #[test]
    fn tls_is_asked_for_by_the_scheme() {
        for (url, tls) in
            [("rediss://u:p@h/2", true), ("Valkeys://u:p@h/2", true), ("redis://u:p@h/2", false)]
        {
            match Target::parse(url) {
                Ok(target) => assert_eq!((target.tls, target.database), (tls, 2), "{url}"),
                Err(error) => {
                    let named = error.to_string().contains("feature `tls`");
                    assert!(tls && named && cfg!(not(feature = "tls")), "{url}: {error}");
                }
            }
        }
    }

    #[test]
    #[cfg(feature = "tls")]
    fn tls_is_asked_for_by_the_scheme_of_several_hosts_too() {
        let Ok(Url::Cluster(nodes)) = Url::parse("rediss-cluster://a,b") else { panic!("nodes") };
        assert!(nodes.iter().all(|node| node.tls));
        let Ok(Url::Sentinel { sentinels, server, .. }) = Url::parse("valkeys+sentinel://a,b/m") else {
            panic!("Sentinels")
        };
        assert!(server.tls && sentinels.iter().all(|sentinel| sentinel.tls));
    }

    #[test]
    fn a_url_of_several_hosts_is_one_of_each() {
        let shown = |targets: &[Target]| {
            let login = |target: &Target| (target.credentials.clone(), target.database, target.tls);
            let addresses: Vec<_> = targets.iter().map(|target| target.address.to_string()).collect();
            (addresses.join(" "), login(&targets[0]))
        };
        let login =
            |user, password, database| (Some(Credentials::new(Some(user), password)), database, false);
        for url in [
            "redis-cluster://u:p,@a,b:7000,[::1],[::2]:7",
            "VALKEY+CLUSTER://u:p%2C@a,b:7000,[::1],[::2]:7/0",
        ] {
            let Ok(Url::Cluster(nodes)) = Url::parse(url) else { panic!("{url}") };
            let addresses = "a:6379 b:7000 [::1]:6379 [::2]:7".to_owned();
            assert_eq!(shown(&nodes), (addresses, login("u", "p,", 0)), "{url}");
        }
        for (url, database) in [
            ("redis-sentinel://u:p@a,b:7/my.master", 0),
            (" redis+sentinel://u:p@a:26379,b:7/my.master/3 ", 3),
        ] {
            let Ok(Url::Sentinel { sentinels, master, server }) = Url::parse(url) else { panic!("{url}") };
            assert_eq!(shown(&sentinels), ("a:26379 b:7".to_owned(), (None, database, false)), "{url}");
            assert_eq!(shown(&[server]).1, login("u", "p", database), "{url}");
            assert_eq!(master, "my.master", "{url}");
        }
    }

    #[test]
    fn bad_urls_are_refused_with_what_is_wrong_and_without_the_password() {
        let long = format!("unix:///{}?pass=hunter2", "x".repeat(200));
        for (url, what) in [
            ("", "is empty"),
            (" ", "is empty"),
            ("hunter2@h:6379", "no scheme"),
            ("127.0.0.1:6379", "no scheme"),
            ("http://u:hunter2@h", "scheme that is none of"),
            ("hunter2://h", "scheme that is none of"),
            ("rediss://u:hunter2@h#insecure", "fragment"),
            ("rediss://u:hunter2@a:1,b:2", "several hosts"),
            ("valkeys://u:hunter2@", "no host"),
            ("redis://u:hunter2@a:1,b:2", "several hosts"),
            ("redis-cluster://u:hunter2@", "no host"),
            ("redis-cluster://u:hunter2@h,", "no host"),
            ("redis-cluster://u:hunter2@h,:7", "no host"),
            ("redis-cluster://u:hunter2@h:1,h:0", "port 0"),
            ("redis-cluster://u:hunter2@h/x", "cannot be parsed"),
            ("redis-cluster://u:hunter2@h?x=1", "question mark"),
            ("redis-cluster:u:hunter2@h", "no scheme"),
            ("unix-cluster:///s?pass=hunter2", "scheme that is none of"),
            ("redis-clusters://u:hunter2@h", "scheme that is none of"),
            ("redis-sentinel://u:hunter2@h", "name the primary"),
            ("redis+sentinel://u:hunter2@h/", "name the primary"),
            ("redis-sentinel://u:hunter2@h//0", "name the primary"),
            ("redis-sentinel://u:hunter2@h/my%20master", "name the primary"),
            ("redis-sentinel://u:hun/ter2@h/mymaster", "name the primary"),
            ("redis-sentinel://u:hunter2@/mymaster", "no host"),
            ("redis-sentinel://u:hunter2@h/mymaster/-1", "negative"),
            ("redis-sentinel://u:hunter2@h/mymaster/0/1", "cannot be parsed"),
            ("redis-sentinel://u:hunter2@h/mymaster#0", "fragment"),
            ("redis://", "no host"),
            ("redis:///0", "no host"),
            ("redis://u:hunter2@/0", "no host"),
            ("redis://u:hunter2@:6379", "no host"),
            ("redis://u:hunter2@h/-1", "negative"),
            ("redis://u:hunter2@h/99999999999", "too large"),
            ("redis://u:hunter2@h/2147483648", "too large"),
            ("redis://u:hunter2@h:0", "port 0"),
            ("redis://u:hunter2@h/x", "cannot be parsed"),
            ("redis://u:hunter2@h:port", "cannot be parsed"),
            ("redis://u:hun/ter2@h", "cannot be parsed"),
            ("redis://u:hunter2%ff@h", "cannot be parsed"),
            ("redis://u:hunter2\tx@h", "control character"),
            ("unix:///run/s?pass=hunter2\nx", "control character"),
            ("redis://u:hunter2@h?protocol=hunter2", "parameters after a question mark"),
            ("redis://u:hunter2@h?db=3", "parameters after a question mark"),
            ("redis://u:hunter2@h/0?", "parameters after a question mark"),
            ("redis://u:hunter2@h/0#insecure", "fragment"),
            ("redis://u:hun#ter2@h", "fragment"),
            ("unix:///run/s?database=3&pass=hunter2", "none of db, user and pass"),
            ("unix:///run/s?pass=hunter2&", "none of db, user and pass"),
            ("unix:///run/s?pass=hunter2#db", "fragment"),
            ("redis://0.0.0.0", "cannot be parsed"),
            ("unix://", "no socket path"),
            ("unix:///?pass=hunter2", "no socket path"),
            ("unix://run/redis.sock?pass=hunter2", "three slashes"),
            ("unix:///run/s?db=-1&pass=hunter2", "negative"),
            (&long, "longer than"),
        ] {
            // Without the feature nothing else is said of a URL that asks for TLS.
            let asks_for_tls = ["rediss", "valkeys"].iter().any(|scheme| url.starts_with(scheme));
            let what = if asks_for_tls && cfg!(not(feature = "tls")) { "the feature `tls`" } else { what };
            let error = Url::parse(url).err().unwrap_or_else(|| panic!("{url} was taken"));
            let shown = format!("{error} {error:?} {}", error.to_chain());
            assert!(shown.contains(what), "{url}: {shown}");
            assert!(shown.contains("redis://user:password@host:6379/0"), "{url}: {shown}");
            assert!(!shown.contains("hunter2") && !shown.contains("ter2"), "{url}: {shown}");
        }
    }
}
