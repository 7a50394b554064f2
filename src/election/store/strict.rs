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
use crate::election::clock::Instant;

/// What the value of a parked lease key begins with; the id of the instance that parked it follows.
pub(crate) const HOLD: &str = "hold/";

/// Acknowledgements are waited for this part of ttl at most.
const WAIT_PART: u32 = 8;
/// And not for longer than this, so that what is short of them is known, and taken back, within a call.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

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
    Settle { lineage: Lineage, strict: Strictness },
}

/// What a renewal tells under strict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    /// How many replicas there may be.
    pub(crate) replicas: u32,
    /// The data set on which the renewals before this one have been acknowledged for the longest ttl, if they have.
    pub(crate) lineage: Option<Lineage>,
}

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
            let part = (operation.ttl / WAIT_PART).min(LONGEST_WAIT);
            let millis = u64::try_from(part.as_millis()).unwrap_or(u64::MAX).max(1);
            Some(Self { replicas, limit: Duration::from_millis(millis) }).filter(|_| replicas > 0)
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
    /// By lease key.
    renewed: HashMap<String, Renewed>,
}

/// Renewals that were acknowledged one after the other.
#[derive(Debug)]
struct Renewed {
    token: u64,
    /// The data set that they are in.
    lineage: Lineage,
    /// When the first of them was known to be.
    since: Instant,
}

/// What an operation has come to, and what is to be asked because of it.
#[derive(Clone, Debug)]
pub(crate) struct Conclusion {
    pub(crate) result: Result<Answer, StoreError>,
    pub(crate) then: Option<Call>,
}

impl Ledger {
    /// What to ask for this operation.
    pub(crate) fn call(&self, operation: &Operation, now: Instant) -> Call {
        match operation.action {
            Action::Acquire { attempt, floor } => Call::Acquire { attempt, floor, strict: operation.strict },
            Action::Renew { token } => {
                // The first may have been acknowledged after its lease had ended on an earlier primary, and somebody
                // else won it there: until that has run out, too, it does not vouch for this data set.
                let strict = operation.strict.map(|strict| {
                    let vouches = |last: &&Renewed| last.token == token && now >= last.since + strict.longest;
                    let last = self.renewed.get(operation.group.lease()).filter(vouches);
                    let lineage = last.map(|last| last.lineage.clone());
                    Acknowledged { replicas: strict.replicas, lineage }
                });
                Call::Renew { token, strict }
            }
            Action::Release { token } => Call::Release { token, wake: true },
            Action::Look => Call::Look,
        }
    }

    /// What the answer means, given how many replicas have acknowledged it by now.
    pub(crate) fn conclude(
        &mut self,
        operation: &Operation,
        said: Result<Said, StoreError>,
        acknowledged: &Result<u32, StoreError>,
        now: Instant,
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
                    let goes_on = |last: &Renewed| last.token == token && last.lineage == *lineage;
                    let since = renewed.filter(goes_on).map_or(now, |last| last.since);
                    let renewed = Renewed { token, lineage: lineage.clone(), since };
                    self.renewed.insert(operation.group.lease().to_owned(), renewed);
                }
                just(Ok(said.answer.clone()))
            }
            // Nobody could lead after this hold, and that must be known.
            (Answer::Held(_), Some(error)) if said.lineage.is_some() => {
                just(Err(error.with_outcome(Outcome::Refused)))
            }
            (Answer::Held(_), None) if matches!(operation.action, Action::Acquire { .. }) => {
                let settle = |lineage: &Lineage| Call::Settle { lineage: lineage.clone(), strict };
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
        (Ok(answer), Ok(_)) => Ok(answer),
        // Nobody could lead after this hold, and that must be known. Nothing was won.
        (Ok(_), Err(error)) => Err(error.with_outcome(Outcome::Refused)),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::election::key::{Group, InstanceId};
    use crate::election::store::Holding;

    const MS: Duration = Duration::from_millis(1);
    const START: Instant = Instant::from_millis(1_000);
    const WINS: Action = Action::Acquire { attempt: 1, floor: 0 };
    const RENEWS: Action = Action::Renew { token: 7 };

    fn operation(action: Action, replicas: impl Into<Option<u32>>, ttl: Duration) -> Operation {
        let strict = replicas.into().map(|replicas| Strictness { replicas, longest: 9_000 * MS });
        let group = Group::new("example").expect("a good name");
        Operation { group, id: InstanceId::from("me"), ttl, action, strict }
    }

    #[test]
    fn a_batch_waits_for_the_most_replicas_and_for_the_shortest_part_of_a_ttl() {
        let of = |batch: &[Operation]| Wait::of(batch).map(|wait| (wait.replicas, wait.limit));
        let wins = |replicas: u32, millis: u32| operation(WINS, replicas, MS * millis);
        assert_eq!(of(&[wins(2, 5_000)]), Some((1, 625 * MS)));
        assert_eq!(of(&[wins(2, 60_000)]), Some((1, 1_000 * MS)), "within a call");
        assert_eq!(of(&[wins(1, 100)]), Some((1, 12 * MS)), "whole milliseconds");
        assert_eq!(of(&[wins(1, 1)]), Some((1, MS)), "WAIT n 0 would wait for ever");
        assert_eq!(of(&[wins(1, 5_000), wins(5, 1_000), wins(0, 100)]), Some((3, 125 * MS)));
        let idle =
            [Action::Look, Action::Release { token: 7 }].map(|action| operation(action, 2, 5_000 * MS));
        assert_eq!(of(&idle), None);
        assert_eq!(of(&[wins(0, 5_000), operation(WINS, None, 5_000 * MS)]), None);
    }

    fn said(answer: Answer, lineage: &str) -> Result<Said, StoreError> {
        let lineage = Some(lineage).filter(|name| !name.is_empty()).map(Lineage::from);
        Ok(Said { answer, lineage })
    }

    fn error() -> StoreError {
        StoreError::new(Outcome::Unknown, Class::Configuration, "the server refused WAIT")
    }

    #[test]
    fn what_too_few_have_acknowledged_does_not_count() {
        let won = || Answer::Won { token: 7, ahead: Duration::ZERO };
        let renewed = || Answer::Renewed { left: MS };
        for (action, answer, replicas, acknowledged, counts) in [
            (WINS, won(), 3, Ok(2), true),
            (WINS, won(), 3, Ok(1), false),
            (WINS, won(), 2, Ok(1), true),
            (WINS, won(), 1, Ok(0), false),
            (WINS, won(), 0, Ok(0), true),
            (WINS, won(), 1, Err(error()), false),
            (RENEWS, renewed(), 3, Ok(1), false),
            (RENEWS, renewed(), 1, Ok(1), true),
            (RENEWS, renewed(), 1, Err(error()), false),
        ] {
            let operation = operation(action, replicas, 5_000 * MS);
            let concluded =
                Ledger::default().conclude(&operation, said(answer.clone(), "here"), &acknowledged, START);
            let undone = matches!(concluded.then, Some(Call::Release { token: 7, wake: false }));
            assert_eq!(undone, !counts && action == WINS, "{action:?} {acknowledged:?}");
            match concluded.result {
                Ok(result) => assert!(counts && result == answer, "{action:?} {acknowledged:?}"),
                Err(failed) => {
                    assert!(!counts, "{action:?} {acknowledged:?}");
                    let class = acknowledged.err().map_or(Class::Passing, |error| error.class());
                    assert_eq!((failed.outcome(), failed.class()), (Outcome::Unknown, class));
                }
            }
        }
    }

    #[test]
    fn only_what_was_acknowledged_for_the_longest_ttl_is_told_to_the_next_renewal_of_the_same_token() {
        let mut ledger = Ledger::default();
        let renews = |token| operation(Action::Renew { token }, 2, 5_000 * MS);
        let renewed = |lineage| said(Answer::Renewed { left: MS }, lineage);
        let at = |millis| START + MS * millis;
        let told = |ledger: &Ledger, token, millis| match ledger.call(&renews(token), at(millis)) {
            Call::Renew { strict: Some(Acknowledged { lineage, .. }), .. } => lineage,
            call => panic!("{call:?}"),
        };
        assert_eq!(told(&ledger, 7, 0), None);
        ledger.conclude(&renews(7), renewed("here"), &Ok(0), at(0));
        assert_eq!(told(&ledger, 7, 20_000), None, "nobody acknowledged it");
        ledger.conclude(&renews(7), renewed("here"), &Ok(1), at(10_000));
        assert_eq!(told(&ledger, 7, 18_999), None, "what an earlier primary granted may last");
        ledger.conclude(&renews(7), renewed("here"), &Ok(1), at(15_000));
        assert_eq!(told(&ledger, 7, 19_000), Some("here".into()));
        assert_eq!(told(&ledger, 8, 19_000), None, "another term");
        ledger.conclude(&operation(Action::Look, 2, MS), Ok(Answer::Vacant.into()), &Ok(0), at(19_000));
        assert_eq!(told(&ledger, 7, 19_000), Some("here".into()), "a look is no renewal");
        ledger.conclude(&renews(7), renewed("there"), &Ok(1), at(20_000));
        assert_eq!(told(&ledger, 7, 28_999), None, "another data set");
        assert_eq!(told(&ledger, 7, 29_000), Some("there".into()));
        ledger.conclude(&renews(7), Err(error()), &Ok(1), at(29_000));
        assert_eq!(told(&ledger, 7, 60_000), None, "the last one failed");
    }

    #[test]
    fn what_was_parked_is_settled_once_it_is_acknowledged() {
        let parked = |remaining| {
            let holder = InstanceId::from("hold/me");
            Answer::Held(Holding { holder, token: None, remaining: Some(remaining), strict: None })
        };
        let strict = Strictness { replicas: 2, longest: 9_000 * MS };
        let settle = Call::Settle { lineage: "here".into(), strict };
        for (lineage, acknowledged, then) in [
            ("here", Ok(1), Some(settle)),
            ("here", Ok(0), None),
            ("here", Err(error()), None),
            // Parked on the recorded data set.
            ("", Ok(1), None),
        ] {
            let operation = operation(WINS, 2, 5_000 * MS);
            let concluded =
                Ledger::default().conclude(&operation, said(parked(5 * MS), lineage), &acknowledged, START);
            assert_eq!(concluded.then, then, "{lineage} {acknowledged:?}");
            match concluded.result {
                Ok(answer) => assert_eq!(answer, parked(5 * MS), "{lineage} {acknowledged:?}"),
                Err(error) => assert!(then.is_none() && lineage == "here", "{acknowledged:?}: {error}"),
            }
        }
        let anew = followed(Ok(parked(5 * MS)), Ok(parked(9_000 * MS).into()));
        assert_eq!(anew.expect("it is held"), parked(9_000 * MS));
        assert_eq!(
            followed(Ok(parked(5 * MS)), Ok(Answer::Vacant.into())).expect("it ended"),
            parked(5 * MS)
        );
        let failed = followed(Ok(parked(5 * MS)), Err(error())).expect_err("nobody can lead after it");
        assert_eq!(failed.outcome(), Outcome::Refused);
    }

    #[test]
    fn a_win_that_was_taken_back_leaves_nothing_unknown() {
        let failed = |said| followed(Err(error()), said).expect_err("it does not count").outcome();
        assert_eq!(failed(Ok(Answer::Released.into())), Outcome::Refused);
        assert_eq!(failed(Ok(Answer::Vacant.into())), Outcome::Refused);
        assert_eq!(failed(Err(error())), Outcome::Unknown);
    }
}
