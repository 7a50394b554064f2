//! One thread's connection to one server, and the batches that go over it.

use std::io;

use redis::Value;

use super::dial::{Dialer, describe};
use super::url::Address;
use super::wire::{Broken, Patience, Wire};
use super::{fault, script};
use crate::election::store::budget::BellEnd;
use crate::election::store::{
    Action, Answer, Bell, Budget, Class, Lookups, Operation, Outcome, Session, StoreError,
};

/// Owns at most one connection, and dials when a batch needs one.
#[derive(Debug)]
pub(super) struct RedisSession {
    dialer: Dialer,
    wire: Option<Wire>,
    bell: Bell,
    end: BellEnd,
}

/// Lets a node that is being given a slot execute the next command.
const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";

const WAITING: &str = "waiting for the reply of";

impl RedisSession {
    /// A session without a connection. It fails where the system refuses a descriptor for the bell.
    pub(super) fn new(dialer: Dialer) -> io::Result<Self> {
        let (bell, end) = Bell::new()?;
        Ok(Self { dialer, wire: None, bell, end })
    }

    /// The server that was dialled last.
    pub(super) fn address(&self) -> &Address {
        self.dialer.address()
    }

    /// The connection that is kept.
    #[cfg(test)]
    pub(super) fn wire(&self) -> Option<&Wire> {
        self.wire.as_ref()
    }

    /// Drops the connection, so that the next batch dials.
    pub(super) fn forget_wire(&mut self) {
        self.wire = None;
    }

    /// The connection, if it has stayed as it was left. One that the server closed is no error.
    fn idle_wire(wire: &mut Option<Wire>, dialer: &Dialer) -> Option<Wire> {
        let wire = wire.take()?;
        if wire.is_quiet() {
            return Some(wire);
        }
        log::debug!("the idle connection to {} was closed; dialling again", dialer.address());
        None
    }
}

impl Session for RedisSession {
    fn execute(&mut self, batch: &[Operation], budget: &Budget) -> Vec<Result<Answer, StoreError>> {
        let fail = |error: StoreError| vec![Err(error); batch.len()];
        let patience = Patience::new(budget, &self.end);
        if patience.remaining().is_none() {
            return fail(not_sent("there was no time left to begin"));
        }
        let mut packed = Vec::new();
        let begins: Vec<_> = batch
            .iter()
            .map(|operation| {
                let begin = packed.len();
                if self.dialer.is_asking() {
                    packed.extend_from_slice(ASKING);
                }
                script::pack(operation, &mut packed);
                begin
            })
            .collect();
        if batch.is_empty() {
            return Vec::new();
        }

        let mut kept = Self::idle_wire(&mut self.wire, &self.dialer);
        let (mut wire, writes, sent) = loop {
            let (mut wire, was_kept) = match kept.take() {
                Some(wire) => (wire, true),
                None => match self.dialer.dial(&patience) {
                    Ok(wire) => (wire, false),
                    Err(error) => return fail(error),
                },
            };
            let writes = wire.writes();
            match wire.send(&packed, &patience) {
                // Closed in the moment since it was looked at, and nothing was sent: as if found closed.
                Err((0, Broken::Io(_))) if was_kept => {}
                sent => break (wire, writes, sent),
            }
        };
        let address = self.dialer.address();
        log::trace!("{} operations to {address} in {} writes", batch.len(), wire.writes() - writes);
        if let Err((sent, broken)) = sent {
            let outcome = if sent == 0 { Outcome::NotSent } else { Outcome::Unknown };
            let error = describe(outcome, "sending to", address, broken, &patience);
            let cut_off = || not_sent("an operation before it could not be sent").with_source(error.clone());
            let begun = |begin: &usize| sent == 0 || *begin < sent;
            return begins.iter().map(|at| Err(if begun(at) { error.clone() } else { cut_off() })).collect();
        }

        let mut keep = true;
        let mut results = Vec::with_capacity(batch.len());
        for operation in batch {
            let asked = if self.dialer.is_asking() { wire.receive(&patience).map(drop) } else { Ok(()) };
            let unknown = match asked.and_then(|()| wire.receive(&patience)) {
                Ok(Value::ServerError(error)) => {
                    let (class, mut text) = fault::classify(&error);
                    let redirect = fault::redirect(&error, address);
                    if text.contains("WRONGTYPE") {
                        let (lease, term) = (operation.group.lease(), operation.group.term());
                        text.push_str(&format!(
                            "; the lease key {lease} must be a string and the term key {term} a hash: delete the one that is not"
                        ));
                    }
                    // The next dial may find the right one: by another address, or by its role.
                    keep &= class != Class::WrongNode || self.dialer.is_in_cluster();
                    let message = format!("{address} refused it: {text}");
                    let error = StoreError::new(Outcome::Refused, class, message);
                    results.push(Err(error.with_redirect(redirect)));
                    continue;
                }
                Ok(reply) => match script::answer(operation, &reply) {
                    Some(answer) => {
                        // A lost lease may be a stale server's word; the next dial checks its role.
                        let lost = matches!(answer, Answer::Held(_) | Answer::Vacant);
                        keep &= !(lost && matches!(operation.action, Action::Renew { .. }));
                        results.push(Ok(answer));
                        continue;
                    }
                    None => describe(
                        Outcome::Unknown,
                        WAITING,
                        address,
                        Broken::Garbage("an unexpected reply"),
                        &patience,
                    ),
                },
                Err(broken) => describe(Outcome::Unknown, WAITING, address, broken, &patience),
            };
            // What comes after cannot be told apart any more.
            results.resize(batch.len(), Err(unknown));
            return results;
        }
        // Bytes beyond the last reply are no reply of ours.
        if keep && wire.is_quiet() {
            self.wire = Some(wire);
        }
        results
    }

    fn bell(&self) -> Bell {
        self.bell.clone()
    }

    fn lookups(&self) -> Lookups {
        self.dialer.lookups()
    }
}

fn not_sent(message: &str) -> StoreError {
    StoreError::new(Outcome::NotSent, Class::Passing, message)
}
