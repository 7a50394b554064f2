//! Strict: what must be true before a lease counts, on servers that can lose what they acknowledged.
//!
//! A store that replicates asynchronously forgets its last writes in a failover, and one without persistence
//! all of them in a restart. Two rules keep a lease that was lost so from having two leaders:
//!
//! - *Quorum.* A win or a renewal counts once so many replicas have acknowledged it that no other primary
//!   can have as many.
//! - *Hold.* The term key says on which data set the group's lease was acknowledged last: its lineage, the
//!   `master_replid`, which a restart or a promotion changes. Who wins on another one, or on one that does not
//!   know the group, parks the lease for the longest ttl of the group, and leads after that: every proof
//!   that an earlier data set gave has run out by then.
//!
//! What is asked of the servers beside the operations is decided here, without I/O. The scripts do the rest.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Action, Answer, Class, Operation, Outcome, StoreError};

/// What the value of a parked lease key begins with; the id of the instance that parked it follows.
pub(crate) const HOLD: &str = "hold/";

/// Acknowledgements are waited for this part of ttl at most.
const WAIT_PART: u32 = 8;

/// The checked settings of strict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Strictness {
    /// How many replicas the primary has.
    pub(crate) replicas: u32,
    /// The longest ttl of any instance of the group, in whole milliseconds.
    pub(crate) longest: Duration,
}

impl Strictness {
    /// How many replicas must acknowledge: with the primary they are more than half of all.
    pub(crate) fn quorum(&self) -> u32 {
        self.replicas.div_ceil(2)
    }
}

/// Which data set this is: Redis' `master_replid`.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Lineage(Arc<str>);

impl Lineage {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Lineage {
    fn from(id: &str) -> Self {
        Self(id.into())
    }
}

impl fmt::Debug for Lineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// What one script is asked to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Win the lease, or park it.
    Acquire { attempt: u64, floor: u64, strict: Option<Strictness> },
    /// Set its expiry again.
    Renew { token: u64, strict: Option<Acknowledged> },
    /// Delete it, and wake the followers if `wake`.
    Release { token: u64, wake: bool },
    /// Read who holds it.
    Look,
    /// Record the data set that acknowledged a parked lease, and begin its hold anew.
    Settle { lineage: Lineage, longest: Duration },
}

/// The data set on which the renewal before this one was acknowledged, if it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acknowledged(pub(crate) Option<Lineage>);

/// What a script answered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Said {
    pub(crate) answer: Answer,
    /// Under strict, of what was won or renewed: the data set that it is in. Of a lease that was parked: the data
    /// set to be recorded, if it is not yet.
    pub(crate) lineage: Option<Lineage>,
}

impl From<Answer> for Said {
    fn from(answer: Answer) -> Self {
        Self { answer, lineage: None }
    }
}

/// How replicas are waited for after a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    /// How many.
    pub(crate) replicas: u32,
    /// For how long at most: whole milliseconds, and never zero, which would mean for ever.
    pub(crate) limit: Duration,
}

impl Wait {
    /// The wait that a batch needs, if it needs one.
    pub(crate) fn of(batch: &[Operation]) -> Option<Self> {
        let waits = batch.iter().filter_map(|operation| {
            let counts = matches!(operation.action, Action::Acquire { .. } | Action::Renew { .. });
            let replicas = operation.strict.filter(|_| counts)?.quorum();
            let limit = Duration::from_millis(u64::try_from((operation.ttl / WAIT_PART).as_millis()).ok()?);
            Some(Self { replicas, limit: limit.max(Duration::from_millis(1)) }).filter(|_| replicas > 0)
        });
        waits.reduce(|one, two| Self {
            replicas: one.replicas.max(two.replicas),
            limit: one.limit.min(two.limit),
        })
    }
}

/// What one session knows of the data sets that its leases are in.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// By lease key: the token and the data set of the last renewal that was acknowledged.
    renewed: HashMap<String, (u64, Lineage)>,
}

/// What an operation has come to, and what is to be asked because of it.
#[derive(Clone, Debug)]
pub(crate) struct Conclusion {
    pub(crate) result: Result<Answer, StoreError>,
    pub(crate) then: Option<Call>,
}

impl Ledger {
    /// What to ask for this operation.
    pub(crate) fn call(&self, operation: &Operation) -> Call {
        match operation.action {
            Action::Acquire { attempt, floor } => Call::Acquire { attempt, floor, strict: operation.strict },
            Action::Renew { token } => {
                let strict = operation.strict.map(|_| {
                    let last = self.renewed.get(operation.group.lease());
                    Acknowledged(last.filter(|last| last.0 == token).map(|last| last.1.clone()))
                });
                Call::Renew { token, strict }
            }
            Action::Release { token } => Call::Release { token, wake: true },
            Action::Look => Call::Look,
        }
    }

    /// What the answer means, given how many replicas have acknowledged it.
    pub(crate) fn conclude(
        &mut self,
        operation: &Operation,
        said: Result<Said, StoreError>,
        acknowledged: &Result<u32, StoreError>,
    ) -> Conclusion {
        let just = |result| Conclusion { result, then: None };
        let renewed = self.renewed.remove(operation.group.lease());
        let (Some(strict), Ok(said)) = (operation.strict, &said) else {
            return just(said.map(|said| said.answer));
        };
        let short = short(operation, strict, acknowledged);
        match (&said.answer, short) {
            (Answer::Won { token, .. }, Some(error)) => {
                // Nobody leads by it, and it keeps the lease from others. It wakes nobody: they would do no better.
                Conclusion { result: Err(error), then: Some(Call::Release { token: *token, wake: false }) }
            }
            (Answer::Renewed { .. }, Some(error)) => just(Err(error)),
            (Answer::Renewed { .. }, None) => {
                if let (Action::Renew { token }, Some(lineage)) = (operation.action, &said.lineage) {
                    self.renewed.insert(operation.group.lease().to_owned(), (token, lineage.clone()));
                }
                just(Ok(said.answer.clone()))
            }
            (Answer::Held(_), None) if matches!(operation.action, Action::Acquire { .. }) => {
                let settle =
                    |lineage: &Lineage| Call::Settle { lineage: lineage.clone(), longest: strict.longest };
                Conclusion { result: Ok(said.answer.clone()), then: said.lineage.as_ref().map(settle) }
            }
            _ => {
                // A look says nothing about a renewal.
                if let (Action::Look, Some(renewed)) = (operation.action, renewed) {
                    self.renewed.insert(operation.group.lease().to_owned(), renewed);
                }
                just(Ok(said.answer.clone()))
            }
        }
    }
}

/// What an operation has come to after what its conclusion asked was answered.
pub(crate) fn followed(
    result: Result<Answer, StoreError>,
    said: Result<Said, StoreError>,
) -> Result<Answer, StoreError> {
    match (result, said) {
        // A hold that began anew.
        (Ok(_), Ok(Said { answer: answer @ Answer::Held(_), .. })) => Ok(answer),
        (Ok(answer), _) => Ok(answer),
        // The win was taken back, or it was gone already.
        (Err(error), Ok(_)) => Err(error.with_outcome(Outcome::Refused)),
        (Err(error), Err(_)) => Err(error),
    }
}

/// Why what a replica has to acknowledge does not count, if it does not.
fn short(
    operation: &Operation,
    strict: Strictness,
    acknowledged: &Result<u32, StoreError>,
) -> Option<StoreError> {
    let quorum = strict.quorum();
    let (class, why) = match acknowledged {
        Ok(count) if *count >= quorum => return None,
        Ok(count) => (Class::Passing, format!("only {count} did in time")),
        Err(error) if quorum > 0 => (error.class(), error.to_string()),
        Err(_) => return None,
    };
    let message = format!(
        "{quorum} of the {} replicas that strict counts on must acknowledge the lease {}, and {why}",
        strict.replicas,
        operation.group.lease()
    );
    Some(StoreError::new(Outcome::Unknown, class, message))
}
