//! From an address to a connection that is logged in, on the right database, and to a primary.

use std::sync::Arc;

use redis::{Cmd, ServerError, Value, cmd};

use super::aside::Aside;
use super::cluster::Routes;
use super::credentials::{Credentials, Login};
use super::resolve::Names;
use super::sentinel::{Sentinels, to_tell};
use super::tls::Tls;
use super::url::{Address, Target};
use super::wire::{Broken, Patience, Wire};
use super::{Access, fault};
use crate::election::store::{Class, Lookups, Node, Outcome, StoreError};

/// What the server shows for our connections in `CLIENT LIST`.
const CLIENT_NAME: &str = "taskrunner";

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

    /// Logs in, chooses the database and makes sure of the role, in one round trip as a rule.
    pub(super) fn shake_hands(
        &mut self,
        mut wire: Wire,
        patience: &Patience<'_>,
    ) -> Result<Wire, StoreError> {
        let select = (self.target.database != 0).then(|| cmd("SELECT").arg(self.target.database).take());
        let first: Vec<_> = [Some(self.hello())].into_iter().chain([select.clone()]).flatten().collect();
        let mut replies = self.exchange(&mut wire, &first, patience)?.into_iter();
        let role = match replies.next().unwrap_or_default() {
            Value::ServerError(error) if fault::is_unknown_command(&error) => {
                return self.shake_hands_as_of_old(wire, select, patience);
            }
            Value::ServerError(error) => return Err(self.refused("HELLO", &error)),
            reply => {
                self.expect_mode(field(&reply, "mode"))?;
                field(&reply, "role").map(str::to_owned)
            }
        };
        self.expect_no_error("SELECT", replies)?;
        match role {
            // A replica says itself which node has the slot.
            _ if self.is_in_cluster() => {}
            Some(role) => self.expect_primary(&role)?,
            None => {
                let role = self.exchange(&mut wire, &[cmd("ROLE")], patience)?;
                self.check_role(role.into_iter().next())?;
            }
        }
        Ok(wire)
    }

    /// The same with the commands of a server or a proxy that does not know HELLO.
    fn shake_hands_as_of_old(
        &mut self,
        mut wire: Wire,
        select: Option<Cmd>,
        patience: &Patience<'_>,
    ) -> Result<Wire, StoreError> {
        let auth = self.auth();
        let (auths, selects) = (auth.iter().len(), select.iter().len());
        let commands: Vec<_> = auth.into_iter().chain(select).chain([cmd("ROLE")]).collect();
        let mut replies = self.exchange(&mut wire, &commands, patience)?.into_iter();
        self.expect_no_error("AUTH", replies.by_ref().take(auths))?;
        self.expect_no_error("SELECT", replies.by_ref().take(selects))?;
        if !self.is_in_cluster() {
            self.check_role(replies.next())?;
        }
        Ok(wire)
    }

    /// The command to log in without HELLO, if there is a password.
    pub(super) fn auth(&self) -> Option<Cmd> {
        self.credentials.as_ref().map(|Credentials { user, password }| {
            let mut auth = cmd("AUTH");
            // A server of that age knows no users, and takes the password alone.
            if let Some(user) = user {
                auth.arg(user);
            }
            auth.arg(password).take()
        })
    }

    fn hello(&self) -> Cmd {
        let mut hello = cmd("HELLO");
        hello.arg(3);
        if let Some(Credentials { user, password }) = &self.credentials {
            hello.arg("AUTH").arg(user.as_deref().unwrap_or("default")).arg(password);
        }
        hello.arg("SETNAME").arg(CLIENT_NAME).take()
    }

    /// Sends the commands in one write and reads as many replies.
    pub(super) fn exchange(
        &self,
        wire: &mut Wire,
        commands: &[Cmd],
        patience: &Patience<'_>,
    ) -> Result<Vec<Value>, StoreError> {
        let broken = |broken| {
            let is_cut = matches!(broken, Broken::Closed | Broken::Io(_));
            let error = self.broken("the handshake with", broken, patience);
            if is_cut && !self.target.tls && matches!(self.target.address, Address::Tcp { .. }) {
                let what = "broke off at the first command; a server that wants TLS on this port (rediss://) does, too";
                return self.not_sent(error.class(), what).with_source(error);
            }
            error
        };
        let mut packed = Vec::new();
        commands.iter().for_each(|command| command.write_packed_command(&mut packed));
        let sent = wire.send(&packed, patience);
        let replies = commands.iter().map(|_| wire.receive(patience)).collect::<Result<Vec<_>, _>>();
        match (sent, replies) {
            (_, Ok(replies)) => Ok(replies),
            // Also where it could not all be sent: a server that refuses our certificate closes at once.
            (_, Err(error @ Broken::Misconfigured(_))) | (Ok(()), Err(error)) => Err(broken(error)),
            (Err((_, error)), Err(_)) => Err(broken(error)),
        }
    }

    /// Takes the reply to ROLE. A user who may not ask for it is served all the same.
    fn check_role(&mut self, reply: Option<Value>) -> Result<(), StoreError> {
        match reply {
            Some(Value::ServerError(error)) => {
                let refused = self.refused("ROLE", &error);
                if matches!(error.code(), "NOPERM" | "ERR") {
                    if !self.warned {
                        self.warned = true;
                        log::warn!("{refused}; it is not known whether this server is a primary");
                    }
                    return Ok(());
                }
                Err(refused)
            }
            Some(Value::Array(items)) => match items.first() {
                Some(Value::BulkString(role)) => self.expect_primary(&String::from_utf8_lossy(role)),
                _ => Err(self.not_sent(Class::Passing, "gave an unexpected reply to ROLE")),
            },
            _ => Err(self.not_sent(Class::Passing, "gave an unexpected reply to ROLE")),
        }
    }

    /// Makes sure that a server is used as what it is, where it says so.
    fn expect_mode(&self, mode: Option<&str>) -> Result<(), StoreError> {
        let what = match (mode, self.is_in_cluster()) {
            (Some("sentinel"), _) => return Err(self.is_a_sentinel()),
            (Some("cluster"), false) => {
                "is a Redis Cluster node; use RedisStore::cluster or a redis-cluster:// URL"
            }
            (Some("standalone"), true) => "is no Redis Cluster node; use RedisStore::open and a redis:// URL",
            _ => return Ok(()),
        };
        Err(self.not_sent(Class::Configuration, what))
    }

    fn expect_primary(&self, role: &str) -> Result<(), StoreError> {
        match role {
            "master" | "primary" => Ok(()),
            "sentinel" => Err(self.is_a_sentinel()),
            role => Err(self.not_sent(
                Class::WrongNode,
                &format!("is a {}, which keeps no lease; connect to its primary", fault::shortened(role)),
            )),
        }
    }

    pub(super) fn expect_no_error(
        &self,
        command: &str,
        replies: impl Iterator<Item = Value>,
    ) -> Result<(), StoreError> {
        for reply in replies {
            match reply {
                Value::Okay => {}
                Value::ServerError(error) => return Err(self.refused(command, &error)),
                _ => {
                    return Err(
                        self.not_sent(Class::Passing, &format!("gave an unexpected reply to {command}"))
                    );
                }
            }
        }
        Ok(())
    }

    pub(super) fn refused(&self, command: &str, error: &ServerError) -> StoreError {
        let (class, text) = fault::classify(error);
        self.not_sent(class, &format!("refused {command}: {text}")).with_login_refused(fault::is_login(error))
    }

    fn is_a_sentinel(&self) -> StoreError {
        self.not_sent(
            Class::Configuration,
            "is a Sentinel, which keeps no lease; use RedisStore::sentinel or a redis-sentinel:// URL",
        )
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

/// A field of a reply like HELLO's: a map, or in RESP2 a flat array.
pub(super) fn field<'a>(reply: &'a Value, name: &str) -> Option<&'a str> {
    let is_name = |key: &Value| text(key) == Some(name);
    match reply {
        Value::Map(pairs) => pairs.iter().find(|(key, _)| is_name(key)).and_then(|(_, value)| text(value)),
        Value::Array(items) => {
            items.chunks_exact(2).find(|pair| is_name(&pair[0])).and_then(|pair| text(&pair[1]))
        }
        _ => None,
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}
