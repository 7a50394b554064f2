//! The wake connection: it hears that a lease was released.

use std::io;
use std::time::Duration;

use redis::{PushKind, Value, cmd};

use super::dial::{Dialer, describe};
use super::fault;
use super::wire::{Broken, Patience, Wire};
use crate::election::key::Group;
use crate::election::store::budget::BellEnd;
use crate::election::store::{Bell, Budget, Heard, Listener, Outcome, StoreError};
use crate::election::term::parse_token;

/// What a lease key's wake channel is called, after the key.
const CHANNEL: &str = ":wake";
/// How long dialling and subscribing may take together.
const DIAL_LIMIT: Duration = Duration::from_secs(2);

/// Owns at most one connection, which is subscribed to the channels of some groups.
#[derive(Debug)]
pub(super) struct RedisListener {
    dialer: Dialer,
    wire: Option<Wire>,
    /// The groups whose channels the connection is subscribed to.
    groups: Vec<Group>,
    bell: Bell,
    end: BellEnd,
}

impl RedisListener {
    /// A listener without a connection. It fails where the system refuses a descriptor for the bell.
    pub(super) fn new(dialer: Dialer) -> io::Result<Self> {
        let (bell, end) = Bell::new()?;
        Ok(Self { dialer, wire: None, groups: Vec::new(), bell, end })
    }

    fn subscribe(&mut self, groups: &[Group], budget: &Budget) -> Result<(), StoreError> {
        let patience = &Patience::new(budget, &self.end).at_most(DIAL_LIMIT);
        let mut wire = self.dialer.dial(patience)?;
        let address = self.dialer.address();
        let broken = |broken| describe(Outcome::NotSent, "subscribing at", address, broken, patience);
        let mut subscribe = cmd("SUBSCRIBE");
        for group in groups {
            subscribe.arg(format!("{}{CHANNEL}", group.lease()));
        }
        wire.send(&subscribe.get_packed_command(), patience).map_err(|(_, error)| broken(error))?;
        for _ in groups {
            match wire.receive_any(patience).map_err(broken)? {
                Value::ServerError(error) => {
                    let (class, text) = fault::classify(&error);
                    let message = format!("{address} refused SUBSCRIBE: {text}");
                    return Err(StoreError::new(Outcome::Refused, class, message));
                }
                Value::Push { kind: PushKind::Subscribe, .. } => {}
                // RESP2, where HELLO is not known.
                Value::Array(items) if text(items.first()) == Some("subscribe") => {}
                _ => return Err(broken(Broken::Garbage("an unexpected reply"))),
            }
        }
        self.wire = Some(wire);
        self.groups = groups.to_vec();
        Ok(())
    }
}

impl Listener for RedisListener {
    fn next(&mut self, groups: &[Group], budget: &Budget) -> Result<Heard, StoreError> {
        let patience = Patience::new(budget, &self.end);
        let kept = self.wire.take().filter(|_| self.groups == groups);
        let Some(mut wire) = kept else {
            self.subscribe(groups, budget)?;
            return Ok(Heard::Listening);
        };
        loop {
            match wire.receive_any(&patience) {
                Ok(value) => {
                    if let Some(wake) = wake(&value, groups) {
                        self.wire = Some(wire);
                        return Ok(wake);
                    }
                }
                Err(Broken::Late) => {
                    self.wire = Some(wire);
                    return Ok(Heard::Nothing);
                }
                Err(broken) => {
                    return Err(describe(
                        Outcome::NotSent,
                        "listening to",
                        self.dialer.address(),
                        broken,
                        &patience,
                    ));
                }
            }
        }
    }

    fn reset(&mut self) {
        self.wire = None;
    }

    fn bell(&self) -> Bell {
        self.bell.clone()
    }
}

/// The wake that a message tells of, if it is for one of these groups.
pub(super) fn wake(value: &Value, groups: &[Group]) -> Option<Heard> {
    let data = match value {
        Value::Push { kind: PushKind::Message, data } => &data[..],
        Value::Array(items) if text(items.first()) == Some("message") => &items[1..],
        _ => return None,
    };
    let lease = text(data.first())?.strip_suffix(CHANNEL)?;
    let group = groups.iter().find(|group| group.lease() == lease)?;
    let token = parse_token(text(data.get(1))?)?;
    Some(Heard::Wake { lease: group.lease().to_owned(), token })
}

fn text(value: Option<&Value>) -> Option<&str> {
    match value? {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}
