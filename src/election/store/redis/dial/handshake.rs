//! From a connection to one that is logged in, on the right database, and to a server that keeps leases.

use redis::{Cmd, ServerError, Value, cmd};

use super::super::credentials::Credentials;
use super::super::fault;
use super::super::url::Address;
use super::super::wire::{Broken, Patience, Wire};
use super::Dialer;
use crate::election::store::{Class, StoreError};

/// What the server shows for our connections in `CLIENT LIST`.
const CLIENT_NAME: &str = "taskrunner";

impl Dialer {
    /// Logs in, chooses the database and makes sure of the role, in one round trip as a rule.
    pub(in crate::election::store::redis) fn shake_hands(
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
    pub(in crate::election::store::redis) fn auth(&self) -> Option<Cmd> {
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
    pub(in crate::election::store::redis) fn exchange(
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

    pub(in crate::election::store::redis) fn expect_no_error(
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

    pub(in crate::election::store::redis) fn refused(
        &self,
        command: &str,
        error: &ServerError,
    ) -> StoreError {
        let (class, text) = fault::classify(error);
        self.not_sent(class, &format!("refused {command}: {text}")).with_login_refused(fault::is_login(error))
    }

    fn is_a_sentinel(&self) -> StoreError {
        self.not_sent(
            Class::Configuration,
            "is a Sentinel, which keeps no lease; use RedisStore::sentinel or a redis-sentinel:// URL",
        )
    }
}

/// A field of a reply like HELLO's: a map, or in RESP2 a flat array.
pub(in crate::election::store::redis) fn field<'a>(reply: &'a Value, name: &str) -> Option<&'a str> {
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
