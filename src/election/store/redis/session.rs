//! One thread's connection to one server, and the batches that go over it.

use std::io;

use redis::{ServerError, Value};

use super::dial::{Dialer, describe};
use super::url::Address;
use super::wire::{Broken, Patience, Wire};
use super::{fault, script};
use crate::election::clock::Instant;
use crate::election::store::budget::BellEnd;
use crate::election::store::strict::{Call, Conclusion, Ledger, Said, Wait, followed};
use crate::election::store::{Answer, Bell, Budget, Class, Lookups, Operation, Outcome, Session, StoreError};

/// Owns at most one connection, and dials when a batch needs one.
#[derive(Debug)]
pub(super) struct RedisSession {
    dialer: Dialer,
    wire: Option<Wire>,
    ledger: Ledger,
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
        Ok(Self { dialer, wire: None, ledger: Ledger::default(), bell, end })
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
        let mut wire = wire.take()?;
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
        if batch.is_empty() {
            return Vec::new();
        }
        let now = Instant::now();
        let calls: Vec<_> =
            batch.iter().map(|operation| (operation, self.ledger.call(operation, now))).collect();
        let request = Request::new(&calls, Wait::of(batch), &self.dialer);

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
            match wire.send(&request.packed, &patience) {
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
            return request
                .begins
                .iter()
                .map(|at| Err(if begun(at) { error.clone() } else { cut_off() }))
                .collect();
        }

        let mut replies = request.receive(&mut wire, &self.dialer, &patience);
        let (said, now) = (std::mem::take(&mut replies.said), Instant::now());
        let mut concluded: Vec<_> = batch
            .iter()
            .zip(said)
            .map(|(operation, said)| self.ledger.conclude(operation, said, &replies.acknowledged, now))
            .collect();
        replies.keep &= follow(&mut wire, batch, &mut concluded, replies.whole, &self.dialer, &patience);
        // Bytes beyond the last reply are no reply of ours.
        if replies.whole && replies.keep && wire.is_quiet() {
            self.wire = Some(wire);
        }
        concluded.into_iter().map(|concluded| concluded.result).collect()
    }

    fn bell(&self) -> Bell {
        self.bell.clone()
    }

    fn lookups(&self) -> Lookups {
        self.dialer.lookups()
    }
}

/// Asks what the conclusions ask for, and makes their results final; whether the connection is still good.
///
/// What cannot be asked any more is left out: it would have saved others time.
fn follow(
    wire: &mut Wire,
    batch: &[Operation],
    concluded: &mut [Conclusion],
    is_whole: bool,
    dialer: &Dialer,
    patience: &Patience<'_>,
) -> bool {
    let wanted = concluded.iter_mut().zip(batch).filter_map(|(concluded, operation)| {
        let call = concluded.then.take()?;
        Some((&mut concluded.result, (operation, call)))
    });
    let (results, calls): (Vec<_>, Vec<_>) = wanted.unzip();
    if calls.is_empty() || !is_whole {
        return is_whole;
    }
    let request = Request::new(&calls, None, dialer);
    if wire.send(&request.packed, patience).is_err() {
        return false;
    }
    let replies = request.receive(wire, dialer, patience);
    for (result, said) in results.into_iter().zip(replies.said) {
        *result = followed(result.clone(), said);
    }
    replies.whole && replies.keep
}

/// Calls that go over the wire in one piece.
struct Request<'a> {
    calls: &'a [(&'a Operation, Call)],
    /// How many replicas are waited for after them.
    wait: Option<Wait>,
    packed: Vec<u8>,
    /// Where each call begins in that.
    begins: Vec<usize>,
}

/// What came back.
struct Replies {
    /// One for each call.
    said: Vec<Result<Said, StoreError>>,
    /// How many replicas have acknowledged all of it; none were asked without a wait.
    acknowledged: Result<u32, StoreError>,
    /// Whether all of it came.
    whole: bool,
    /// Whether this is the right server, as far as it is known.
    keep: bool,
}

impl<'a> Request<'a> {
    fn new(calls: &'a [(&'a Operation, Call)], wait: Option<Wait>, dialer: &Dialer) -> Self {
        let mut packed = Vec::new();
        let begins = calls.iter().map(|(operation, call)| {
            let begin = packed.len();
            if dialer.is_asking() {
                packed.extend_from_slice(ASKING);
            }
            script::pack(operation, call, &mut packed);
            begin
        });
        let begins = begins.collect();
        if let Some(Wait { replicas, limit }) = wait {
            let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
            redis::cmd("WAIT").arg(replicas).arg(limit).write_packed_command(&mut packed);
        }
        Self { calls, wait, packed, begins }
    }

    fn receive(&self, wire: &mut Wire, dialer: &Dialer, patience: &Patience<'_>) -> Replies {
        let address = dialer.address();
        let unknown = |broken| describe(Outcome::Unknown, WAITING, address, broken, patience);
        let garbage = || unknown(Broken::Garbage("an unexpected reply"));
        let mut replies = Replies {
            said: Vec::with_capacity(self.calls.len()),
            acknowledged: Ok(0),
            whole: true,
            keep: true,
        };
        for (operation, call) in self.calls {
            let asked = if dialer.is_asking() { wire.receive(patience) } else { Ok(Value::Nil) };
            let reply = asked.and_then(|asked| Ok((asked, wire.receive(patience)?)));
            // A node that refuses ASKING sends the operation back, which alone would not say why.
            let reply = reply.map(|replies| match replies {
                (asked @ Value::ServerError(_), Value::ServerError(_)) => asked,
                (_, reply) => reply,
            });
            let said = match reply {
                Ok(Value::ServerError(error)) => {
                    let error = refused(operation, address, &error);
                    // The next dial may find the right one: by another address, or by its role. A cluster's node
                    // is the right one to ask.
                    replies.keep &= error.class() != Class::WrongNode || dialer.is_in_cluster();
                    Ok(Err(error))
                }
                Ok(reply) => script::said(operation, call, &reply).map(Ok).ok_or_else(garbage),
                Err(broken) => Err(unknown(broken)),
            };
            match said {
                Ok(said) => {
                    // A lost lease may be a stale server's word; the next dial checks its role.
                    let lost =
                        matches!(&said, Ok(said) if matches!(said.answer, Answer::Held(_) | Answer::Vacant));
                    replies.keep &= !(lost && matches!(call, Call::Renew { .. }));
                    replies.said.push(said);
                }
                Err(error) => {
                    // What comes after cannot be told apart any more.
                    replies.said.resize(self.calls.len(), Err(error.clone()));
                    return Replies { acknowledged: Err(error), whole: false, ..replies };
                }
            }
        }
        if replies.said.iter().all(Result::is_err) {
            // Nothing was done that could be acknowledged, and to wait for that here would take the time that
            // another node is to have.
            replies.keep &= self.wait.is_none();
        } else if let Some(wait) = self.wait {
            replies.acknowledged = match wire.receive(patience) {
                Ok(Value::Int(count)) => {
                    let count = u32::try_from(count).unwrap_or(0);
                    // A primary that its replicas have left may have been replaced; the next dial looks for that.
                    replies.keep &= count >= wait.replicas;
                    Ok(count)
                }
                Ok(Value::ServerError(error)) => {
                    let (class, text) = fault::classify(&error);
                    replies.keep = false;
                    Err(StoreError::new(Outcome::Unknown, class, format!("{address} refused WAIT: {text}")))
                }
                reply => {
                    replies.whole = false;
                    Err(reply.map_or_else(unknown, |_| garbage()))
                }
            };
        }
        replies
    }
}

fn refused(operation: &Operation, address: &Address, error: &ServerError) -> StoreError {
    let (class, mut text) = fault::classify(error);
    if text.contains("WRONGTYPE") {
        let (lease, term) = (operation.group.lease(), operation.group.term());
        text.push_str(&format!(
            "; the lease key {lease} must be a string and the term key {term} a hash: delete the one that is not"
        ));
    }
    let refused = StoreError::new(Outcome::Refused, class, format!("{address} refused it: {text}"));
    refused.with_redirect(fault::redirect(error, address))
}

fn not_sent(message: &str) -> StoreError {
    StoreError::new(Outcome::NotSent, Class::Passing, message)
}
