//! One instance of a world: the real machine, and around it what the threads do with its outputs.

use std::time::Duration;

use super::plan::{Nanos, Settings, Weather};
use crate::election::clock::Instant;
use crate::election::event::Reason;
use crate::election::key::{Group, InstanceId};
use crate::election::machine::Machine;
use crate::election::store::strict::{Conclusion, Ledger};
use crate::election::store::{Action, Operation};

/// One instance. Each of its lives is a process of its own, with an id of its own.
#[derive(Debug)]
pub(super) struct Instance {
    pub(super) settings: Settings,
    group: Group,
    pub(super) life: u64,
    pub(super) id: InstanceId,
    /// None while there is no process.
    pub(super) machine: Option<Machine>,
    pub(super) born_at: Nanos,
    /// When its last lead work returned.
    pub(super) free_at: Nanos,
    /// Counts the inputs, over all lives.
    pub(super) turns: u64,
    /// The process stands still until then.
    pub(super) awake_at: Nanos,
    /// The driver's thread stands still until then.
    pub(super) driver_at: Nanos,
    /// What readers see.
    pub(super) proof: Option<Proof>,
    pub(super) told: Told,
    pub(super) request: Option<Request>,
    /// What its session knows of the data sets.
    pub(super) ledger: Ledger,
    /// What the request has come to, while what follows from that is asked.
    pub(super) concluded: Option<Conclusion>,
    /// Which server it takes for the primary.
    pub(super) view: usize,
    /// The one that it has sent the last request to.
    pub(super) asks: usize,
    /// The last request that the machine wanted sent, and when, by its clock.
    pub(super) asked: Option<(Request, Instant)>,
    /// The highest token that this life was told.
    pub(super) seen: u64,
    /// How many requests there were since then.
    pub(super) sends: (u64, Nanos),
    pub(super) work: Option<Work>,
    pub(super) weather: Weather,
    pub(super) hole_out: Nanos,
    pub(super) hole_in: Nanos,
    pub(super) deaf_until: Nanos,
    /// The last alarm that was set; older ones are void.
    pub(super) alarm: u64,
    /// Whether it has told that it leaves a lease behind.
    pub(super) leaves_lease: bool,
    /// When it was asked to stop, as long as nothing has kept it from that since.
    pub(super) stopping: Option<Nanos>,
    pub(super) last_demotion: Option<(Nanos, Reason)>,
}

/// What `is_leader()` compares with the clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Proof {
    pub(super) token: u64,
    pub(super) since: Nanos,
    pub(super) until: Instant,
}

/// The last event that was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Nothing,
    Promoted(u64),
    Stopped,
}

/// What the I/O thread is at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) op: u64,
    pub(super) action: Action,
    pub(super) until: Instant,
}

/// Lead work that runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) token: u64,
    /// Its term is over, and it was told so.
    pub(super) is_leaving: bool,
    /// It has outlived its grace.
    pub(super) overran: bool,
}

impl Instance {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            group: Group::new("simulated").expect("a good name"),
            life: 0,
            id: "nobody".into(),
            machine: None,
            born_at: 0,
            free_at: 0,
            turns: 0,
            awake_at: 0,
            driver_at: 0,
            proof: None,
            told: Told::Nothing,
            request: None,
            ledger: Ledger::default(),
            concluded: None,
            view: 0,
            asks: 0,
            asked: None,
            seen: 0,
            sends: (0, 0),
            work: None,
            weather: Weather::default(),
            hole_out: 0,
            hole_in: 0,
            deaf_until: 0,
            alarm: 0,
            leaves_lease: false,
            stopping: None,
            last_demotion: None,
        }
    }

    /// What the clock of the instance says.
    pub(super) fn local(&self, now: Nanos) -> Instant {
        let ahead = i128::from(now) * i128::from(self.settings.ppm) / 1_000_000;
        Instant::from_nanos((self.settings.origin + now).saturating_add_signed(ahead as i64))
    }

    /// The first moment at which its clock says so.
    pub(super) fn real(&self, at: Instant) -> Nanos {
        if at == Instant::NEVER {
            return Nanos::MAX;
        }
        let passed = i128::from(at.as_nanos()) - i128::from(self.settings.origin);
        let guess = passed * 1_000_000 / (1_000_000 + i128::from(self.settings.ppm));
        let mut now = u64::try_from(guess.max(0)).unwrap_or(Nanos::MAX / 2).saturating_sub(2);
        while self.local(now) < at {
            now += 1;
        }
        now
    }

    pub(super) fn ttl(&self) -> Duration {
        self.settings.timing.ttl
    }

    /// What its session is asked.
    pub(super) fn operation(&self, action: Action) -> Operation {
        let group = self.group.clone();
        let timing = &self.settings.timing;
        Operation { group, id: self.id.clone(), ttl: timing.ttl, action, strict: timing.strict }
    }

    /// What `is_leader()` returns.
    pub(super) fn is_leader(&self, now: Nanos) -> bool {
        self.proof.is_some_and(|proof| self.local(now) < proof.until)
    }
}
