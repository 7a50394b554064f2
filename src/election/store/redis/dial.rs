//! From an address to a connection that is logged in, on the right database, and to a primary.

use redis::{Cmd, ServerError, Value, cmd};

use super::credentials::{Credentials, Login};
use super::resolve::Names;
use super::tls::Tls;
use super::url::{Address, Target};
use super::wire::{Broken, Patience, Wire};
use super::{Access, fault};
use crate::election::store::{Class, Lookups, Outcome, StoreError};

/// What the server shows for our connections in `CLIENT LIST`.
const CLIENT_NAME: &str = "taskrunner";

/// Dials one server again and again, for one session.
#[derive(Debug)]
pub(super) struct Dialer {
    target: Target,
    names: Names,
    tls: Option<Tls>,
    login: Login,
    /// What the connection that is dialled logs in with.
    credentials: Option<Credentials>,
    /// Of name look-ups and of calls for credentials.
    running: Lookups,
    /// Whether it was said that the server's role cannot be known.
    warned: bool,
}

impl Dialer {
    pub(super) fn new(target: Target, access: Access) -> Self {
        let running = Lookups::default();
        Self {
            target,
            names: Names::new(access.resolver, running.clone()),
            tls: access.tls,
            login: Login::new(access.credentials, running.clone()),
            credentials: None,
            running,
            warned: false,
        }
    }

    /// Another one for the same server, which shares the look-ups of its name and the calls for credentials.
    pub(super) fn twin(&self) -> Self {
        Self {
            target: self.target.clone(),
            names: self.names.clone(),
            tls: self.tls.clone(),
            login: self.login.clone(),
            credentials: None,
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

    /// A new connection, ready for operations. Every error is `NotSent`: of those nothing was sent.
    pub(super) fn dial(&mut self, patience: &Patience<'_>) -> Result<Wire, StoreError> {
        self.credentials = self.login.credentials(self.target.credentials.as_ref(), patience)?;
        let (host, port) = match &self.target.address {
            Address::Unix(path) => {
                let wire = Wire::unix(path, patience)
                    .map_err(|broken| self.broken("connecting to", broken, patience))?;
                return self.shake_hands(wire, patience);
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
            match wire.and_then(|wire| self.shake_hands(wire, &share)) {
                Ok(wire) => return Ok(wire),
                // A wrong password is wrong at every address, and trying it can lock the user out.
                Err(error) if error.class() == Class::Configuration => return Err(error),
                Err(error) => refused = Some(error),
            }
        }
        Err(refused.unwrap_or_else(|| self.not_sent(Class::Passing, "has no address to connect to")))
    }

    /// The same connection, with TLS if that is wanted.
    fn encrypt(&self, wire: Wire, patience: &Patience<'_>) -> Result<Wire, StoreError> {
        let (Some(tls), Address::Tcp { host, .. }) = (&self.tls, &self.target.address) else {
            return Ok(wire);
        };
        wire.encrypted(tls, host, patience).map_err(|broken| {
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
                if field(&reply, "mode").is_some_and(|mode| mode == "sentinel") {
                    return Err(self.is_a_sentinel());
                }
                field(&reply, "role").map(str::to_owned)
            }
        };
        self.expect_no_error("SELECT", replies)?;
        match role {
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
        let auth = self.credentials.as_ref().map(|Credentials { user, password }| {
            let mut auth = cmd("AUTH");
            // A server of that age knows no users, and takes the password alone.
            if let Some(user) = user {
                auth.arg(user);
            }
            auth.arg(password).take()
        });
        let (auths, selects) = (auth.iter().len(), select.iter().len());
        let commands: Vec<_> = auth.into_iter().chain(select).chain([cmd("ROLE")]).collect();
        let mut replies = self.exchange(&mut wire, &commands, patience)?.into_iter();
        self.expect_no_error("AUTH", replies.by_ref().take(auths))?;
        self.expect_no_error("SELECT", replies.by_ref().take(selects))?;
        self.check_role(replies.next())?;
        Ok(wire)
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
    fn exchange(
        &self,
        wire: &mut Wire,
        commands: &[Cmd],
        patience: &Patience<'_>,
    ) -> Result<Vec<Value>, StoreError> {
        let broken = |broken| {
            let is_cut = matches!(broken, Broken::Closed | Broken::Io(_));
            let error = self.broken("the handshake with", broken, patience);
            if is_cut && self.tls.is_none() && matches!(self.target.address, Address::Tcp { .. }) {
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

    fn expect_no_error(&self, command: &str, replies: impl Iterator<Item = Value>) -> Result<(), StoreError> {
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

    fn refused(&self, command: &str, error: &ServerError) -> StoreError {
        let (class, text) = fault::classify(error);
        self.not_sent(class, &format!("refused {command}: {text}"))
    }

    fn is_a_sentinel(&self) -> StoreError {
        self.not_sent(
            Class::Configuration,
            "is a Sentinel, which keeps no lease; connect to the primary that it watches",
        )
    }

    fn not_sent(&self, class: Class, what: &str) -> StoreError {
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

/// A field of HELLO's reply: a map, or in RESP2 a flat array.
fn field<'a>(reply: &'a Value, name: &str) -> Option<&'a str> {
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
