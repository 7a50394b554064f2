//! Where leases are kept: what is asked of a store, and what it answers.
//!
//! A store executes a batch of lease operations within one budget of time and gives one result for
//! each. "Somebody else holds it" is an answer. An error says what may have happened.

pub(crate) mod budget;
mod memory;
pub(crate) mod redirect;
mod redis;
pub(crate) mod strict;
#[cfg(test)]
mod tests;

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

pub(crate) use budget::{Bell, Budget};
#[cfg(test)]
pub(crate) use memory::{Clocks, Keys, Lease, Term};
pub use memory::{MemoryStore, Switch};
pub(crate) use redirect::{Hop, Node, Nodes, Redirect, Trail};
#[cfg(feature = "tls")]
pub use redis::Tls;
pub use redis::{Credentials, RedisStore};
use strict::Strictness;

use super::key::{Group, InstanceId};

/// A place where leases are kept: [`RedisStore`] or [`MemoryStore`].
///
/// An elector takes one and opens a session of its own on it, with no connection shared with anybody.
/// The trait is sealed for now: what is asked of a store will still grow.
pub trait LeaseStore: sealed::Open {}

pub(crate) mod sealed {
    /// Opening a session; it does no I/O.
    pub trait Open: Send + 'static {
        /// A new session, to be owned by one thread. It fails where the system refuses a descriptor.
        fn open(&self) -> std::io::Result<Box<dyn super::Session>>;

        /// A new listener, to be owned by one thread. As above.
        fn listen(&self) -> std::io::Result<Box<dyn super::Listener>>;

        /// Both, for one elector, with one look-up at a time for the two.
        fn open_both(&self) -> std::io::Result<(Box<dyn super::Session>, Box<dyn super::Listener>)> {
            Ok((self.open()?, self.listen()?))
        }
    }
}

/// One thread's way to a store. It may keep a connection from one batch to the next.
pub trait Session: Send {
    /// Executes the operations, in their order within a group, and gives one result for each.
    ///
    /// Returns by the end of the budget, also when that is shortened meanwhile. An operation whose
    /// outcome is unknown is never sent twice.
    fn execute(&mut self, batch: &[Operation], budget: &Budget) -> Vec<Result<Answer, StoreError>>;

    /// What interrupts this session's waits when a budget is shortened.
    fn bell(&self) -> Bell;

    /// The [look-ups](Lookups) of this session and of its listener.
    fn lookups(&self) -> Lookups {
        Lookups::default()
    }

    /// The nodes that the groups are spread over; none where this session reaches the leases of all.
    ///
    /// A session that has some reaches any node, and what it is told there says which is the right one.
    fn nodes(&self) -> Option<Arc<dyn Nodes>> {
        None
    }
}

/// One thread's ear for the wakes of groups.
pub trait Listener: Send {
    /// Waits for what happens next to these groups, or for the end of the budget.
    ///
    /// It connects first if it has to. An error says that it does not listen any more.
    fn next(&mut self, groups: &[Group], budget: &Budget) -> Result<Heard, StoreError>;

    /// Listens anew, on another connection, from the next call on.
    fn reset(&mut self);

    /// What interrupts this listener's waits when a budget is shortened.
    fn bell(&self) -> Bell;
}

/// What a [`Listener`] heard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It listens from now on; what was told before is lost.
    Listening,
    /// The lease with this key was released by the term with this token.
    Wake {
        /// The lease key.
        lease: String,
        /// The token of the term that released it.
        token: u64,
    },
    /// Nothing until the budget's end.
    Nothing,
}

/// Counts the threads of one elector's connections that nothing can end before they end by themselves: one for each
/// name that is being looked up (64 at the most), one that asks for credentials, and one that reads which certificate
/// authorities the system trusts. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct Lookups(Arc<AtomicUsize>);

impl Lookups {
    /// How many are running.
    pub(crate) fn running(&self) -> usize {
        self.0.load(Ordering::Acquire)
    }

    /// One more runs from now on; the clone is for it to say when it has ended.
    pub(crate) fn begun(&self) -> Self {
        self.0.fetch_add(1, Ordering::AcqRel);
        self.clone()
    }

    /// One less runs.
    pub(crate) fn ended(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// One operation on the lease of one group, in the name of one instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    pub(crate) group: Group,
    pub(crate) id: InstanceId,
    /// Whole milliseconds.
    pub(crate) ttl: Duration,
    pub(crate) action: Action,
    pub(crate) strict: Option<Strictness>,
}

/// What an [`Operation`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Win the lease if it is absent, or if its value is this instance's id.
    Acquire {
        /// The instance's number for this attempt, larger than for any earlier one.
        attempt: u64,
        /// The highest token this instance has seen; the one won is larger.
        floor: u64,
    },
    /// Set the lease's expiry to ttl again, if it is held by this id under this token.
    Renew { token: u64 },
    /// Delete the lease and tell the followers, if it is held by this id under this token.
    Release { token: u64 },
    /// Read who holds the lease.
    Look,
}

/// What a store answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// To an acquire: the lease is this instance's, and a new term has this token.
    Won {
        /// The term's token.
        token: u64,
        /// How far the token is ahead of the server's time in microseconds; zero if it is not.
        ahead: Duration,
    },
    /// To a renew: the expiry was set again; the lease had this long left.
    Renewed {
        /// What was left of the lease before.
        left: Duration,
    },
    /// To a release: the lease was deleted.
    Released,
    /// To every action: no, this is who holds the lease. It may be this id, under another token.
    Held(Holding),
    /// To all but an acquire: no, nobody holds the lease.
    Vacant,
    /// To an acquire: no, a later attempt of this instance has been answered already.
    Ghost,
}

/// Who holds a lease, as the store says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The lease's value. Nobody leads by a lease that is parked, see [`is_parked`](Self::is_parked).
    pub(crate) holder: InstanceId,
    /// The holder's token; none where the holder does not keep one, as a Go instance does not.
    pub(crate) token: Option<u64>,
    /// What is left of the lease; none for a lease without expiry, which nobody of ours writes.
    pub(crate) remaining: Option<Duration>,
    /// How strict the holder is; none where it is not, or keeps no term.
    pub(crate) strict: Option<Strictness>,
}

impl Holding {
    /// Whether the lease is kept from everybody until an earlier data set's last proof has run out.
    pub(crate) fn is_parked(&self) -> bool {
        self.holder.as_str().starts_with(strict::HOLD)
    }
}

/// What may have happened to an operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing of it was sent.
    NotSent,
    /// The server answered with an error, and nothing was done.
    Refused,
    /// It was sent, or a part of it, and no answer came: it may still be done, at any later time.
    Unknown,
}

/// Whether trying again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It can.
    Passing,
    /// It can, on another server: this one is a replica or another slot's node.
    WrongNode,
    /// It cannot, until somebody changes the server, its users or the URL.
    Configuration,
}

/// Why an operation has no [`Answer`].
#[derive(Clone, Debug)]
pub struct StoreError {
    outcome: Outcome,
    class: Class,
    /// Boxed to be small: errors are returned by value.
    message: Box<str>,
    redirect: Option<Redirect>,
    of_login: bool,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl StoreError {
    /// An error without a source. The message names what was done, to what, and never a password.
    pub(crate) fn new(outcome: Outcome, class: Class, message: impl Into<Box<str>>) -> Self {
        Self { outcome, class, message: message.into(), redirect: None, of_login: false, source: None }
    }

    /// The same with the error that it came from.
    pub(crate) fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// The same with where the operation may be sent instead.
    pub(crate) fn with_redirect(self, redirect: Option<Redirect>) -> Self {
        Self { redirect, ..self }
    }

    pub(crate) fn redirect(&self) -> Option<&Redirect> {
        self.redirect.as_ref()
    }

    /// The same, if this is so, of a login that was refused.
    pub(crate) fn with_login_refused(self, of_login: bool) -> Self {
        Self { of_login, ..self }
    }

    /// Whether a login was refused: it would be elsewhere, too, and trying it can lock the user out.
    pub(crate) fn is_of_login(&self) -> bool {
        self.of_login
    }

    /// The same, now that it is known what has happened.
    pub(crate) fn with_outcome(self, outcome: Outcome) -> Self {
        Self { outcome, ..self }
    }

    /// What may have happened.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.outcome
    }

    /// Whether trying again can help.
    #[must_use]
    pub fn class(&self) -> Class {
        self.class
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for StoreError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|source| &**source as &(dyn StdError + 'static))
    }
}
