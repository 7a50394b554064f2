//! What an elector says about itself, and a store about a group.

use std::time::Duration;

use super::clock::Instant;
use super::error::{Error, ErrorKind};
use super::event::Leader;
use super::key::{Group, InstanceId};
use super::store::redirect::execute_one;
use super::store::{Action, Answer, LeaseStore, Operation, StoreError};

/// How long [`inspect`] may take.
const INSPECT_LIMIT: Duration = Duration::from_secs(2);

/// The state of an elector, as of one moment.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Status {
    /// What this instance is doing.
    pub role: Role,
    /// The token of the present term, while this instance leads.
    pub token: Option<u64>,
    /// How long the present term stands if it is not renewed; zero if there is none.
    pub remaining: Duration,
    /// Who is known to hold the lease, this instance included.
    pub leader: Option<Leader>,
    /// The last error, and when it came.
    pub last_error: Option<(Error, Instant)>,
    /// When the request was sent that renewed or won the present or the last term last.
    pub renewed_at: Option<Instant>,
    /// The lead work that has outlived its grace: the token of its term, and when that ended.
    pub overrun: Option<(u64, Instant)>,
    /// What has happened since the start.
    pub counters: Counters,
}

/// What an instance is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// It contends, or waits to.
    #[default]
    Follower,
    /// It can prove that it leads.
    Leader,
    /// Its term has ended, and its lead work or the release of the lease is waited for.
    Leaving,
    /// The elector has ended.
    Stopped,
}

/// What has happened since an elector's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Terms begun.
    pub promotions: u64,
    /// Terms ended.
    pub demotions: u64,
    /// Attempts to win the lease.
    pub attempts: u64,
    /// Renewals that succeeded.
    pub renewals: u64,
    /// Errors told.
    pub errors: u64,
    /// Releases by other instances that were heard of.
    pub wakes: u64,
}

/// Who holds the lease of a group, as the store says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The lease key.
    pub key: String,
    /// Who holds the lease; none if nobody does.
    pub leader: Option<Leader>,
    /// How long the lease lasts if it is not renewed; none if nobody holds it, or if it has no expiry,
    /// which nobody of ours writes. Without a leader it is for how long the lease is parked, see
    /// [`Strict`](super::Strict).
    pub remaining: Option<Duration>,
}

/// Asks a store who leads a group, for programs that only look. It blocks for 2 s at most.
///
/// # Errors
///
/// What kept the store from answering; [`Configuration`](ErrorKind::Configuration) for an empty group.
///
/// # Examples
///
/// ```
/// use taskrunner::election::{MemoryStore, inspect};
///
/// let found = inspect(&MemoryStore::new(), "demo")?;
/// assert_eq!(found.leader, None);
/// # Ok::<(), taskrunner::election::Error>(())
/// ```
pub fn inspect(store: &impl LeaseStore, group: &str) -> Result<Inspection, Error> {
    let group = Group::new(group)?;
    let session = store.open().map_err(Error::session)?;
    let result =
        execute_one(session, &look(&group), Instant::now() + INSPECT_LIMIT).map_err(Error::session)?;
    inspection(&group, Some(result))
}

/// The operation that asks who holds a lease.
pub(crate) fn look(group: &Group) -> Operation {
    let (id, ttl) = (InstanceId::default(), Duration::ZERO);
    Operation { group: group.clone(), id, ttl, action: Action::Look, strict: None }
}

/// What the answer to it says.
pub(crate) fn inspection(
    group: &Group,
    result: Option<Result<Answer, StoreError>>,
) -> Result<Inspection, Error> {
    let found = |leader, remaining| Ok(Inspection { key: group.lease().to_owned(), leader, remaining });
    match result {
        Some(Ok(Answer::Held(holding))) => {
            let leader = Leader { id: holding.holder.as_str().to_owned(), token: holding.token };
            found(Some(leader).filter(|_| !holding.is_parked()), holding.remaining)
        }
        Some(Ok(Answer::Vacant)) => found(None, None),
        Some(Err(error)) => Err(Error::looked_up(group.name(), error)),
        Some(Ok(_)) | None => {
            Err(Error::new(ErrorKind::Passing, "the store gave an answer that does not fit a look-up"))
        }
    }
}
