//! From what a user has named to a connection that can be used: which server, at which address, over what.

mod handshake;

use std::sync::Arc;

use super::Access;
use super::aside::Aside;
use super::cluster::Routes;
use super::credentials::{Credentials, Login};
use super::resolve::Names;
use super::sentinel::{Sentinels, to_tell};
use super::tls::Tls;
use super::url::{Address, Target};
use super::wire::{Broken, Patience, Wire};
use crate::election::store::{Class, Lookups, Node, Outcome, StoreError};
pub(super) use handshake::field;

/// How many nodes one dial tries of those that can be asked for any slot: more would leave none of them
/// time enough. The next dial goes on with the next one.
const NODES_A_DIAL: usize = 4;
/// Of the time left, the dial of one node of a cluster gets one part in this many: the rest is for asking others.
const NODE_PARTS: usize = 2;

/// Dials a server again and again, for one session.
#[derive(Debug)]
pub(super) struct Dialer {
    /// How to log in, and where: the server that was dialled last, or is to be.
    pub(super) target: Target,
    way: Way,
    names: Names,
    tls: Tls,
    /// The reading of what the system trusts, and what is wrong with that.
    loading: Aside<Result<(), String>>,
    login: Login,
    /// What the connection that is dialled logs in with.
    credentials: Option<Credentials>,
    /// Of name look-ups, of calls for credentials, and of readings of what the system trusts.
    running: Lookups,
    /// Whether it was said that the server's role cannot be known.
    warned: bool,
}

/// How the server is found.
#[derive(Clone, Debug)]
pub(super) enum Way {
    /// It is the one.
    Server,
    /// It is one node of a cluster. Before each operation may come ASKING.
    Node { asking: bool },
    /// Any node of a cluster, at each dial another.
    AnyNode { routes: Arc<Routes>, next: usize },
    /// Sentinels name it.
    Sentinels(Arc<Sentinels>),
}

impl Dialer {
    /// Of one server.
    #[cfg(test)]
    pub(super) fn new(target: Target, access: Access) -> Self {
        Self::by(Way::Server, target, access)
    }

    pub(super) fn by(way: Way, target: Target, access: Access) -> Self {
        let running = Lookups::default();
        Self {
            credentials: target.credentials.clone(),
            target,
            way,
            names: Names::new(access.resolver, running.clone()),
            tls: access.tls,
            loading: Aside::new(running.clone()),
            login: Login::new(access.credentials, running.clone()),
            running,
            warned: false,
        }
    }

    /// Another one for the same server, which shares the look-ups of its name and the calls for credentials.
    pub(super) fn twin(&self) -> Self {
        self.beside(self.target.clone(), self.way.clone())
    }

    /// One for a node of the same cluster.
    pub(super) fn to_node(&self, node: &Node) -> Self {
        let target = Target { address: node.into(), ..self.target.clone() };
        self.beside(target, Way::Node { asking: node.asking })
    }

    /// One for a sentinel, with a login of its own.
    pub(super) fn to_sentinel(&self, sentinel: &Target) -> Self {
        self.beside(sentinel.clone(), Way::Server)
    }

    fn beside(&self, target: Target, way: Way) -> Self {
        Self {
            credentials: target.credentials.clone(),
            target,
            way,
            names: self.names.clone(),
            tls: self.tls.clone(),
            loading: self.loading.clone(),
            login: self.login.clone(),
            running: self.running.clone(),
            warned: true,
        }
    }

    pub(super) fn address(&self) -> &Address {
        &self.target.address
    }

    pub(super) fn lookups(&self) -> Lookups {
        self.running.clone()
    }

    /// Whether each operation must have ASKING before it.
    pub(super) fn is_asking(&self) -> bool {
        matches!(self.way, Way::Node { asking: true })
    }

    /// Whether redirects are expected of the server.
    pub(super) fn is_in_cluster(&self) -> bool {
        matches!(self.way, Way::Node { .. } | Way::AnyNode { .. })
    }

    /// A new connection, ready for operations. Every error is `NotSent`: of those nothing was sent.
    pub(super) fn dial(&mut self, patience: &Patience<'_>) -> Result<Wire, StoreError> {
        match self.way.clone() {
            Way::Server => self.dial_server(patience),
            Way::Node { .. } => self.dial_server(&patience.share(NODE_PARTS)),
            Way::AnyNode { routes, next } => self.dial_any(&routes, next, patience),
            Way::Sentinels(sentinels) => self.dial_by_sentinels(&sentinels, patience),
        }
    }

    /// Tries nodes of a cluster in turn, from this one on.
    fn dial_any(
        &mut self,
        routes: &Routes,
        first: usize,
        patience: &Patience<'_>,
    ) -> Result<Wire, StoreError> {
        let nodes = routes.anybody();
        let mut refused = None;
        let tries = nodes.len().min(NODES_A_DIAL);
        for (number, node) in nodes.iter().cycle().skip(first % nodes.len()).take(tries).enumerate() {
            self.target.address = node.into();
            if let Way::AnyNode { next, .. } = &mut self.way {
                *next = first.wrapping_add(number + 1);
            }
            match self.dial_server(&patience.share(tries - number)) {
                Ok(wire) => return Ok(wire),
                Err(error) => {
                    if error.class() == Class::Configuration {
                        routes.dismiss(node);
                    }
                    if error.is_of_login() {
                        return Err(error);
                    }
                    refused = to_tell(refused, error);
                }
            }
        }
        Err(refused.unwrap_or_else(|| self.not_sent(Class::Passing, "has no node to connect to")))
    }

    /// A new connection to the target, ready for operations.
    pub(super) fn dial_server(&mut self, patience: &Patience<'_>) -> Result<Wire, StoreError> {
        self.credentials = self.login.credentials(self.target.credentials.as_ref(), patience)?;
        self.reach(patience, Self::shake_hands)
    }

    /// Connects to the target's addresses in turn, until one of them does what is wanted over the connection.
    pub(super) fn reach<T>(
        &mut self,
        patience: &Patience<'_>,
        mut wanted: impl FnMut(&mut Self, Wire, &Patience<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let (host, port) = match &self.target.address {
            Address::Unix(path) => {
                let wire = Wire::unix(path, patience)
                    .map_err(|broken| self.broken("connecting to", broken, patience))?;
                return wanted(self, wire, patience);
            }
            Address::Tcp { host, port } => (host, *port),
        };
        let addresses = self.names.addresses(host, port, patience)?;
        let mut refused = None;
        for (index, address) in addresses.iter().enumerate() {
            // The fair share is of the connection and its handshake: what accepts and then says
            // nothing must not use up the time of the next address.
            let share = patience.share(addresses.len() - index);
            let wire =
                Wire::tcp(*address, &share).map_err(|broken| self.broken("connecting to", broken, &share));
            let wire = wire.and_then(|wire| self.encrypt(wire, &share));
            match wire.and_then(|wire| wanted(self, wire, &share)) {
                Ok(reached) => return Ok(reached),
                Err(error) if error.is_of_login() => return Err(error),
                Err(error) => refused = to_tell(refused, error),
            }
        }
        Err(refused.unwrap_or_else(|| self.not_sent(Class::Passing, "has no address to connect to")))
    }

    /// The same connection, with TLS if that is wanted.
    fn encrypt(&self, wire: Wire, patience: &Patience<'_>) -> Result<Wire, StoreError> {
        let (true, Address::Tcp { host, .. }) = (self.target.tls, &self.target.address) else {
            return Ok(wire);
        };
        if !self.tls.is_loaded() {
            let (doing, tls) = ("reading the certificate authorities of this system", self.tls.clone());
            let loaded = self.loading.ask("tr-authorities", doing, move || Ok(tls.load()), patience)?;
            let doing = "the TLS handshake with";
            loaded.map_err(|why| self.broken(doing, Broken::Misconfigured(why), patience))?;
        }
        wire.encrypted(&self.tls, host, patience).map_err(|broken| {
            let is_mute = matches!(broken, Broken::Late | Broken::Closed);
            let error = self.broken("the TLS handshake with", broken, patience);
            if is_mute {
                return self
                    .not_sent(
                        error.class(),
                        "gave no answer of TLS; a server without TLS on this port does not, either",
                    )
                    .with_source(error);
            }
            error
        })
    }

    pub(super) fn not_sent(&self, class: Class, what: &str) -> StoreError {
        StoreError::new(Outcome::NotSent, class, format!("{} {what}", self.target.address))
    }

    fn broken(&self, doing: &str, broken: Broken, patience: &Patience<'_>) -> StoreError {
        describe(Outcome::NotSent, doing, &self.target.address, broken, patience)
    }
}

/// The error of a step that a connection did not survive: what was done, with whom, and for how long.
pub(super) fn describe(
    outcome: Outcome,
    doing: &str,
    address: &Address,
    broken: Broken,
    patience: &Patience<'_>,
) -> StoreError {
    let new = |message: String| StoreError::new(outcome, Class::Passing, message);
    match broken {
        Broken::Late => {
            new(format!("{doing} {address} took longer than the {:?} allowed", patience.allowed()))
        }
        Broken::Closed => new(format!("{doing} {address} failed: the server closed the connection")),
        Broken::Misconfigured(why) => {
            StoreError::new(outcome, Class::Configuration, format!("{doing} {address} failed: {why}"))
        }
        Broken::Garbage(what) => new(format!("{doing} {address} failed: the server sent {what}")),
        Broken::Io(error) => new(format!("{doing} {address} failed")).with_source(error),
    }
}
