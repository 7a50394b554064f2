//! What must hold in every world, and what is counted.

use std::collections::HashMap;
use std::fmt;

use super::plan::{Climate, MS, Nanos, Plan, millis};

/// Keeps what has happened to the group's terms, and notes the first thing that must not happen.
#[derive(Debug)]
pub(super) struct Judge {
    climate: Climate,
    /// Whether promise 1 holds without exception.
    exact: bool,
    pub(super) broken: Option<String>,
    pub(super) figures: Figures,
    last_token: u64,
    /// Of whoever led.
    last_term: u64,
    /// Whether tokens may repeat: the term is lost, and the server's clock was set back.
    pub(super) term_lost: bool,
    pub(super) clock_back: bool,
    /// How each term's lease ended, by token.
    ended: HashMap<u64, Ended>,
    /// The end of the last lease, while nobody has won since.
    pub(super) vacant_since: Option<Nanos>,
    /// When there was more than one primary last.
    pub(super) forked_at: Nanos,
}

/// What worlds are counted by.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    pub(super) worlds: u64,
    /// Leases that were won.
    pub(super) leases: u64,
    pub(super) promotions: u64,
    pub(super) commands: u64,
    pub(super) faults: u64,
    /// How often a primary was replaced.
    pub(super) failovers: u64,
    /// How often a lease was parked.
    pub(super) holds: u64,
    /// The longest time for which two led at once, in thousandths of ttl.
    pub(super) worst_overlap: Nanos,
    /// The longest that a term outlived its lease, in thousandths of ttl.
    pub(super) worst_leftover: Nanos,
    /// The latest takeover after a lease's end in a calm world, but for the jitter and what a slow clock adds.
    pub(super) worst_takeover: Nanos,
}

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) at: Nanos,
    pub(super) cause: Cause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// By its expiry.
    Expired,
    /// Its holder deleted it.
    Released,
    /// Its holder won it again, as a new term.
    Renewed,
    /// A fault that no client can do anything about.
    Outside,
}

impl Judge {
    pub(super) fn new(plan: &Plan) -> Self {
        let climate = plan.climate;
        let is_strict = plan.instances.iter().all(|it| it.timing.strict.is_some());
        Self {
            climate,
            exact: is_strict || matches!(climate, Climate::Calm | Climate::Within),
            broken: None,
            figures: Figures { worlds: 1, ..Figures::default() },
            last_token: 0,
            last_term: 0,
            term_lost: false,
            clock_back: false,
            ended: HashMap::new(),
            vacant_since: None,
            forked_at: 0,
        }
    }

    /// Notes a broken promise; the first one counts.
    pub(super) fn broken(&mut self, now: Nanos, what: impl Into<String>) {
        let what = what.into();
        self.broken.get_or_insert_with(|| format!("at {:.6} ms: {what}", millis(now)));
    }

    /// Notes it unless it holds.
    pub(super) fn holds(&mut self, now: Nanos, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.broken(now, what());
        }
    }

    /// A lease was won. Promise 4: its token is larger than that of every earlier term.
    pub(super) fn won(&mut self, now: Nanos, token: u64) {
        self.figures.leases += 1;
        let last = self.last_token;
        let excused = self.term_lost && self.clock_back;
        // Two primaries may give the same in one microsecond; that only one of them counts is judged by who leads.
        let tied = self.climate == Climate::Failover && token == last;
        self.holds(now, token > last || tied || excused, || format!("token {token} was given after {last}"));
        self.last_token = last.max(token);
        self.ended.remove(&token);
    }

    /// The lease of a term is over; the term may go on for so long, by its own clock's deadline.
    ///
    /// Promise 1 within its limits: no proof outlives its lease. Outside: for less than ttl.
    pub(super) fn lease_ended(&mut self, now: Nanos, token: u64, cause: Cause, outlives: Nanos, ttl: Nanos) {
        self.ended.insert(token, Ended { at: now, cause });
        self.leftover(now, token, outlives, ttl);
    }

    /// A term is proved for so long from now on, whose lease may be over.
    pub(super) fn proved(&mut self, now: Nanos, token: u64, outlives: Nanos, ttl: Nanos) {
        if let Some(ended) = self.ended.get(&token).copied() {
            self.leftover(now, token, (now - ended.at) + outlives, ttl);
        }
    }

    fn leftover(&mut self, now: Nanos, token: u64, leftover: Nanos, ttl: Nanos) {
        self.figures.worst_leftover = self.figures.worst_leftover.max(leftover * 1000 / ttl);
        // An instance whose clock is slow by a hundredth takes that much longer.
        let bound = if self.climate == Climate::Outside { ttl / 100 * 101 } else { 0 };
        self.holds(now, leftover <= bound, || {
            format!("the proof of token {token} outlives its lease by {:.6} ms", millis(leftover))
        });
    }

    /// A term begins. Promise 4, where leases are lost: one that nobody led by does not count.
    pub(super) fn promoted(&mut self, now: Nanos, token: u64) {
        self.figures.promotions += 1;
        let last = std::mem::replace(&mut self.last_term, token);
        let holds = token > last || !self.exact || self.climate != Climate::Failover;
        self.holds(now, holds, || format!("the term of token {token} begins after that of {last}"));
    }

    /// Somebody begins to lead while another one does.
    pub(super) fn both(&mut self, now: Nanos, what: impl FnOnce() -> String) {
        let exact = self.exact;
        self.holds(now, !exact, what);
    }

    /// Two led at once. Not counted is the time in which each has a primary of its own, of which one is not told
    /// that it was replaced.
    pub(super) fn overlap(&mut self, now: Nanos, from: Nanos, to: Nanos, ttl: Nanos) {
        let from = if self.exact { from } else { from.max(self.forked_at) };
        let length = to.saturating_sub(from);
        self.figures.worst_overlap = self.figures.worst_overlap.max(length * 1000 / ttl);
        let bound = if self.exact { 0 } else { ttl / 100 * 101 };
        self.holds(now, length <= bound, || format!("two led at once for {:.6} ms", millis(length)));
    }

    pub(super) fn ended(&self, token: u64) -> Option<Ended> {
        self.ended.get(&token).copied()
    }

    /// Somebody holds the lease again, in a calm world with a healthy follower. Promise 7: at the lease's edge.
    pub(super) fn taken_over(&mut self, now: Nanos, jitter: Nanos, ttl: Nanos) {
        let Some(since) = self.vacant_since else { return };
        let late = now - since;
        self.figures.worst_takeover =
            self.figures.worst_takeover.max(late.saturating_sub(jitter + (jitter + ttl) / 100));
        // A clock that is slow by a hundredth is late by that much of what was left of the lease; the
        // threads and the network of a world have up to 7 ms of lags.
        let bound = jitter + (jitter + ttl) / 100 + 10 * MS;
        self.holds(now, late <= bound, || format!("the takeover came {:.6} ms late", millis(late)));
    }
}

impl Figures {
    pub(super) fn add(&mut self, other: &Self) {
        self.worlds += other.worlds;
        self.leases += other.leases;
        self.promotions += other.promotions;
        self.commands += other.commands;
        self.faults += other.faults;
        self.failovers += other.failovers;
        self.holds += other.holds;
        self.worst_overlap = self.worst_overlap.max(other.worst_overlap);
        self.worst_leftover = self.worst_leftover.max(other.worst_leftover);
        self.worst_takeover = self.worst_takeover.max(other.worst_takeover);
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { worlds, leases, promotions, commands, faults, .. } = self;
        write!(
            f,
            "{worlds} worlds, {leases} leases, {promotions} terms, {commands} commands, {faults} faults; "
        )?;
        write!(f, "longest overlap {} ‰ of ttl, ", self.worst_overlap)?;
        write!(f, "longest proof without a lease {} ‰ of ttl", self.worst_leftover)?;
        if self.failovers > 0 {
            write!(f, "; {} failovers, {} holds", self.failovers, self.holds)?;
        }
        if self.worst_takeover > 0 {
            write!(f, "; latest takeover {:.1} ms late", millis(self.worst_takeover))?;
        }
        Ok(())
    }
}
