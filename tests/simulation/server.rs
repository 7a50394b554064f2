//! One server of a world: the scripts' model, on a clock that runs true but may be set.

use std::time::Duration;

use super::plan::{MS, Nanos};
use crate::election::key::InstanceId;
use crate::election::store::strict::{Call, HOLD, Lineage, Said};
use crate::election::store::{Answer, Class, Clocks, Keys, Lease, Outcome, StoreError, Term};

/// What the wall clock says when a world begins, some time in 2026.
const BEGIN: Nanos = 1_790_000_000_000 * MS;

/// Redis, as far as one group is concerned.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) keys: Keys,
    pub(super) frozen_until: Nanos,
    /// How many outages are under way; it is up while there is none.
    pub(super) outages: u32,
    /// Grows with each restart, and whenever its connections end: what was on its way before is lost.
    pub(super) boot: u64,
    pub(super) refuses: Option<Class>,
    wall: Nanos,
    /// Which data set it has.
    pub(super) lineage: Lineage,
    /// Whether it is a replica: it writes for nobody.
    pub(super) is_replica: bool,
}

/// Who has the lease, and the token if the holder keeps one.
pub(super) type Held = Option<(InstanceId, Option<u64>)>;

pub(super) fn is_parked(holder: &InstanceId) -> bool {
    holder.as_str().starts_with(HOLD)
}

/// What is asked of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Ours(Call),
    Go(GoAsk),
}

/// The three scripts of the Go version: they look at the value alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GoAsk {
    Acquire,
    Renew,
    Release,
}

impl Server {
    pub(super) fn new() -> Self {
        Self {
            keys: Keys::default(),
            frozen_until: 0,
            outages: 0,
            boot: 0,
            refuses: None,
            wall: BEGIN,
            lineage: Lineage::default(),
            is_replica: false,
        }
    }

    /// What leases expire by: whole milliseconds of the wall clock.
    pub(super) fn time(&self, now: Nanos) -> Duration {
        Duration::from_millis((self.wall + now) / MS)
    }

    /// Sets the wall clock to a time in microseconds.
    pub(super) fn set_time(&mut self, now: Nanos, time_us: u64) {
        self.wall = time_us * 1000 - now;
    }

    /// Sets the wall clock forward or back.
    pub(super) fn jump(&mut self, by: i64) {
        self.wall = self.wall.saturating_add_signed(by);
    }

    pub(super) fn held(&self) -> Held {
        let lease = self.keys.lease.as_ref()?;
        let is_led = |term: &&Term| term.holder == lease.holder && !is_parked(&lease.holder);
        let term = self.keys.term.as_ref().filter(is_led);
        Some((lease.holder.clone(), term.map(|term| term.token)))
    }

    /// When the lease ends if nobody touches it: at the millisecond after its last one.
    pub(super) fn lease_ends(&self) -> Option<Nanos> {
        let end = self.keys.lease.as_ref()?.expires? + Duration::from_millis(1);
        Some(u64::try_from(end.as_nanos()).expect("this century").saturating_sub(self.wall))
    }

    pub(super) fn expire(&mut self, now: Nanos) {
        let clock = self.time(now);
        self.keys.expire(|end| clock > end);
    }

    /// Somebody else writes the lease key.
    pub(super) fn overwrite(&mut self, now: Nanos, lasts: Nanos) {
        let expires = Some(self.time(now) + Duration::from_nanos(lasts));
        self.keys.lease = Some(Lease { holder: "somebody else".into(), expires });
    }

    /// Does what is asked. An answer to the Go version is `Released` for its 1, and `Vacant` for its 0.
    pub(super) fn execute(
        &mut self,
        now: Nanos,
        id: &InstanceId,
        ttl: Duration,
        ask: &Ask,
    ) -> Result<Said, StoreError> {
        let class = self.refuses.or(self.is_replica.then_some(Class::WrongNode));
        if let Some(class) = class {
            return Err(StoreError::new(Outcome::Refused, class, "the server refuses"));
        }
        self.expire(now);
        let time = self.time(now);
        match ask {
            Ask::Ours(call) => {
                let time_us = (self.wall + now) / 1000;
                let clocks = Clocks { now: time, time_us, lineage: &self.lineage };
                self.keys.execute(id, ttl, call, clocks)
            }
            Ask::Go(ask) => {
                let lease = Some(Lease { holder: id.clone(), expires: Some(time + ttl) });
                let is_own = self.keys.lease.as_ref().is_some_and(|lease| lease.holder == *id);
                let done = match ask {
                    GoAsk::Acquire => self.keys.lease.is_none(),
                    GoAsk::Renew | GoAsk::Release => is_own,
                };
                if done {
                    self.keys.lease = if *ask == GoAsk::Release { None } else { lease };
                }
                Ok(if done { Answer::Released } else { Answer::Vacant }.into())
            }
        }
    }
}
