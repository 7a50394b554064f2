//! The timing of an election, and the rules between its values.

use std::time::Duration;

use super::clock::Instant;
use super::error::Error;
use super::store::strict::Strictness;

/// What the leader does when a renewal fails with an error. A "no" from the store always demotes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RenewError {
    /// Step aside at once and contend again after `wait`: the conservative choice.
    #[default]
    Demote,
    /// Stay the leader and try again until the deadline of what was last renewed.
    Retry,
}

/// Leadership that survives the loss of Redis data without a second leader: from a failover, a restart or a
/// deleted key.
///
/// Redis acknowledges a write before its replicas have it, and one without persistence forgets all of them. A
/// lease that is lost so can be won by another instance while the first still leads by it. Under strict
///
/// - a win or a renewal counts only when half of the replicas, rounded up, have acknowledged it (`WAIT`) within
///   an eighth of ttl, or a second. If they do not, an attempt has failed, and a renewal failed with an error.
/// - on a data set that has not acknowledged a lease of this group before, the lease is parked for the longest
///   ttl of the group before anybody leads; so is one that is gone before its time, for what was left of it.
///
/// What it costs: a round trip from the primary to its replicas in each attempt and renewal; leadership, while
/// too few replicas answer, which with [`RenewError::Demote`] one that falls behind for a moment ends, and with
/// [`RenewError::Retry`] not before the deadline; and one longest ttl without a leader, a hold, at the first start, after
/// each restart of Redis, after each failover in which the leader's lease did not survive (or whose leader goes
/// within a longest ttl of it), at the first replica that a server ever gets, and after the group's slot has moved to
/// another node. A lease that survives a failover goes on undisturbed. It needs the rights to `INFO` and `WAIT`.
///
/// Every instance of a group must be strict, with the same number of replicas and the same longest ttl; one that
/// finds another who is not tells an error of kind [`Configuration`](super::ErrorKind::Configuration), and so does
/// one whose primary has more replicas than it was told. Change either with the group stopped. It cannot cover
/// a primary that was replaced and never demoted, and whose replicas are given back to it by hand.
///
/// # Examples
///
/// A primary with two replicas, in a group in which nobody has a ttl above 5 s:
///
/// ```
/// use std::time::Duration;
/// use taskrunner::election::{Elector, RedisStore, Strict};
///
/// let builder = Elector::builder(RedisStore::open("redis://127.0.0.1")?, "my-app-coordinator")
///     .strict(Strict::replicas(2).longest_ttl(Duration::from_secs(5)));
/// # Ok::<(), taskrunner::election::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strict {
    replicas: u32,
    longest_ttl: Option<Duration>,
}

impl Strict {
    /// For a primary with so many replicas; on a cluster, each of its primaries. Zero is for a server
    /// without any, which can still lose its data in a restart.
    #[must_use]
    pub fn replicas(replicas: u32) -> Self {
        Self { replicas, longest_ttl: None }
    }

    /// The longest ttl of any instance of the group; the same for all of them. At least this instance's ttl.
    ///
    /// Defaults to this instance's ttl.
    #[must_use]
    pub fn longest_ttl(mut self, ttl: Duration) -> Self {
        self.longest_ttl = Some(ttl);
        self
    }

    fn check(&self, ttl: Duration) -> Result<Strictness, Error> {
        let longest = self.longest_ttl.map_or(ttl, whole_millis);
        if longest < ttl || longest > LONGEST_TTL {
            return Err(Error::options(format!(
                "longest ttl ({longest:?}) must be from ttl ({ttl:?}) to one day ({LONGEST_TTL:?})"
            )));
        }
        if self.replicas > MOST_REPLICAS {
            let replicas = self.replicas;
            return Err(Error::options(format!("replicas ({replicas}) must be at most {MOST_REPLICAS}")));
        }
        Ok(Strictness { replicas: self.replicas, longest })
    }
}

/// The user's wishes, unchecked.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) ttl: Duration,
    pub(crate) wait: Duration,
    pub(crate) jitter: Duration,
    pub(crate) stop_margin: Option<Duration>,
    pub(crate) renew_error: RenewError,
    pub(crate) lead_grace: Option<Duration>,
    pub(crate) strict: Option<Strict>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(5),
            wait: Duration::from_secs(6),
            jitter: Duration::from_millis(5),
            stop_margin: None,
            renew_error: RenewError::default(),
            lead_grace: None,
            strict: None,
        }
    }
}

/// Checked timing. Every wait of an election is bounded by one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timing {
    /// How long a lease lasts without renewal, as whole milliseconds.
    pub(crate) ttl: Duration,
    /// The longest time between two attempts of a follower.
    pub(crate) wait: Duration,
    /// Renewals and attempts come up to this much later than planned.
    pub(crate) jitter: Duration,
    /// How long before the lease's end the leader stops claiming it.
    pub(crate) stop_margin: Duration,
    /// How long one operation may take, dial included.
    pub(crate) call_limit: Duration,
    pub(crate) renew_error: RenewError,
    /// How long the lead work is waited for on the way out.
    pub(crate) lead_grace: Duration,
    pub(crate) strict: Option<Strictness>,
}

const SHORTEST_TTL: Duration = Duration::from_millis(100);
const LONGEST_TTL: Duration = Duration::from_secs(24 * 60 * 60);
const SHORTEST_WAIT: Duration = Duration::from_millis(10);
/// A longer wait is as good as never, and stays clear of every overflow.
const LONGEST_WAIT: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// More than any server has; the number of those that must acknowledge is an `i32` on the wire.
const MOST_REPLICAS: u32 = 1000;
const LONGEST_CALL: Duration = Duration::from_secs(2);

impl Options {
    /// Checks the rules between the values; a message names the numbers and the rule.
    pub(crate) fn check(&self) -> Result<Timing, Error> {
        let asked = self.ttl;
        let ttl = whole_millis(asked);
        if ttl < SHORTEST_TTL || ttl > LONGEST_TTL {
            return refuse(format!(
                "ttl ({asked:?}) must be from {SHORTEST_TTL:?} to one day ({LONGEST_TTL:?})"
            ));
        }
        if self.wait < SHORTEST_WAIT {
            return refuse(format!("wait ({:?}) must be at least {SHORTEST_WAIT:?}", self.wait));
        }
        let stop_margin = self.stop_margin.unwrap_or(ttl / 20);
        if stop_margin < ttl / 50 || stop_margin > ttl / 4 {
            return refuse(format!(
                "stop margin ({stop_margin:?}) must be from a fiftieth ({:?}) to a quarter ({:?}) of ttl ({ttl:?})",
                ttl / 50,
                ttl / 4,
            ));
        }
        if self.jitter.saturating_add(stop_margin) > ttl / 4 {
            return refuse(format!(
                "jitter ({:?}) and stop margin ({stop_margin:?}) together must be at most a quarter ({:?}) of ttl ({ttl:?})",
                self.jitter,
                ttl / 4,
            ));
        }
        Ok(Timing {
            ttl,
            wait: self.wait.min(LONGEST_WAIT),
            jitter: self.jitter,
            stop_margin,
            call_limit: (ttl / 2).min(LONGEST_CALL),
            renew_error: self.renew_error,
            lead_grace: self.lead_grace.unwrap_or(ttl).min(LONGEST_WAIT),
            strict: self.strict.map(|strict| strict.check(ttl)).transpose()?,
        })
    }
}

impl Timing {
    /// When the request was sent whose term is proved until then.
    pub(crate) fn sent_at(&self, until: Instant) -> Instant {
        until.saturating_sub(self.ttl - self.stop_margin)
    }

    /// How long one renewal may take under [`RenewError::Retry`], so that several fit before the deadline.
    pub(crate) fn retry_limit(&self) -> Duration {
        (self.ttl / 6).clamp(Duration::from_millis(20), LONGEST_CALL)
    }

    /// How long a look may take. It goes over the connection that a renewal may be due on.
    pub(crate) fn look_limit(&self) -> Duration {
        self.call_limit.min(self.retry_limit())
    }

    /// How long a renewal that failed waits under [`RenewError::Retry`] before the next.
    pub(crate) fn retry_pause(&self) -> Duration {
        self.retry_limit() / 4
    }
}

fn refuse(message: String) -> Result<Timing, Error> {
    Err(Error::options(message))
}

/// Redis counts whole milliseconds; the deadline is counted with what it was told.
fn whole_millis(duration: Duration) -> Duration {
    duration - Duration::from_nanos(u64::from(duration.subsec_nanos() % 1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::election::ErrorKind;

    const MS: Duration = Duration::from_millis(1);

    fn options(ttl: Duration) -> Options {
        Options { ttl, jitter: Duration::ZERO, ..Options::default() }
    }

    #[test]
    fn the_defaults_are_the_seed_systems() {
        let timing = Options::default().check().expect("the defaults");
        assert_eq!(timing.ttl, 5000 * MS);
        assert_eq!(timing.wait, 6000 * MS);
        assert_eq!(timing.jitter, 5 * MS);
        assert_eq!(timing.stop_margin, 250 * MS);
        assert_eq!(timing.call_limit, 2000 * MS);
        assert_eq!(timing.lead_grace, 5000 * MS);
        assert_eq!(timing.renew_error, RenewError::Demote);
    }

    #[test]
    fn derived_limits_scale_with_ttl() {
        let timing = |ttl| options(ttl).check().expect("a good ttl");
        assert_eq!(timing(100 * MS).call_limit, 50 * MS);
        assert_eq!(timing(100 * MS).retry_limit(), 20 * MS);
        assert_eq!(timing(3000 * MS).retry_limit(), 500 * MS);
        assert_eq!(timing(3000 * MS).retry_pause(), 125 * MS);
        assert_eq!(timing(LONGEST_TTL).retry_limit(), 2000 * MS);
        assert_eq!(
            timing(Duration::from_nanos(100_999_999)).ttl,
            100 * MS,
            "truncated to whole milliseconds"
        );
    }

    #[test]
    fn every_bad_value_is_refused_with_its_numbers_and_the_rule() {
        let base = options(1000 * MS);
        let cases: &[(Options, &[&str])] = &[
            (options(Duration::ZERO), &["ttl (0ns)", "100ms"]),
            (options(Duration::from_micros(500)), &["ttl (500µs)", "100ms"]),
            (options(Duration::from_nanos(99_999_999)), &["ttl (99.999999ms)", "100ms"]),
            (options(LONGEST_TTL + MS), &["ttl (86400.001s)", "one day (86400s)"]),
            (options(Duration::MAX), &["ttl (", "one day"]),
            (Options { wait: Duration::ZERO, ..base.clone() }, &["wait (0ns)", "10ms"]),
            (
                Options { wait: Duration::from_nanos(9_999_999), ..base.clone() },
                &["wait (9.999999ms)", "10ms"],
            ),
            (
                Options { stop_margin: Some(Duration::ZERO), ..base.clone() },
                &["stop margin (0ns)", "20ms", "ttl (1s)"],
            ),
            (
                Options { stop_margin: Some(19 * MS), ..base.clone() },
                &["stop margin (19ms)", "20ms", "ttl (1s)"],
            ),
            (
                Options { stop_margin: Some(251 * MS), ..base.clone() },
                &["stop margin (251ms)", "250ms", "ttl (1s)"],
            ),
            (
                Options { stop_margin: Some(Duration::MAX), ..base.clone() },
                &["stop margin (", "250ms", "ttl (1s)"],
            ),
            (
                Options { jitter: 201 * MS, ..base.clone() },
                &["jitter (201ms)", "stop margin (50ms)", "250ms"],
            ),
            (
                Options { jitter: Duration::MAX, ..base.clone() },
                &["jitter (", "stop margin (50ms)", "ttl (1s)"],
            ),
            (
                Options { jitter: MS, stop_margin: Some(250 * MS), ..base.clone() },
                &["jitter (1ms)", "stop margin (250ms)", "250ms"],
            ),
        ];
        for (options, parts) in cases {
            let error = options.check().expect_err(&format!("{options:?}"));
            assert_eq!(error.kind(), ErrorKind::Configuration);
            for part in *parts {
                assert!(error.to_string().contains(part), "{error} lacks {part:?}");
            }
        }
    }

    #[test]
    fn strict_is_checked_against_ttl() {
        let strict = |strict: Strict| Options { strict: Some(strict), ..options(1000 * MS) }.check();
        let checked = |it| strict(it).expect("good settings").strict.expect("it is strict");
        assert_eq!(checked(Strict::replicas(2)).longest, 1000 * MS, "this instance's ttl");
        assert_eq!(checked(Strict::replicas(0).longest_ttl(LONGEST_TTL)).longest, LONGEST_TTL);
        for (replicas, quorum) in [(0, 0), (1, 1), (2, 1), (3, 2), (4, 2), (5, 3)] {
            // With the primary they are more than half of the replicas and the primary.
            assert_eq!(checked(Strict::replicas(replicas)).quorum(), quorum);
            assert!(2 * (quorum + 1) > replicas + 1);
        }
        for (bad, parts) in [
            (Strict::replicas(2).longest_ttl(999 * MS), ["longest ttl (999ms)", "ttl (1s)"]),
            (Strict::replicas(2).longest_ttl(LONGEST_TTL + MS), ["longest ttl (86400.001s)", "one day"]),
            (Strict::replicas(1001), ["replicas (1001)", "at most 1000"]),
        ] {
            let error = strict(bad).expect_err("bad settings");
            assert_eq!(error.kind(), ErrorKind::Configuration);
            assert!(parts.iter().all(|part| error.to_string().contains(part)), "{error}");
        }
    }

    #[test]
    fn the_edges_of_the_rules_are_allowed() {
        let base = options(1000 * MS);
        for good in [
            options(SHORTEST_TTL),
            options(LONGEST_TTL),
            options(LONGEST_TTL + Duration::from_nanos(999_999)),
            Options { wait: SHORTEST_WAIT, ..base.clone() },
            Options { wait: Duration::MAX, ..base.clone() },
            Options { stop_margin: Some(20 * MS), ..base.clone() },
            Options { stop_margin: Some(250 * MS), ..base.clone() },
            Options { jitter: 200 * MS, ..base.clone() },
        ] {
            good.check().unwrap_or_else(|e| panic!("{good:?}: {e}"));
        }
    }
}
