//! What goes wrong, when, to whom and for how long: drawn from a seed, and known before anything runs.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// How many candidates there are.
pub(super) const CANDIDATES: usize = 10;

/// The promise holds on a Redis that loses no data. In each of these periods data is lost only from
/// `LOSSES_FROM` on.
const PERIOD: Duration = Duration::from_secs(20);
const LOSSES_FROM: Duration = Duration::from_secs(15);

/// One thing that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault {
    /// Counted from the beginning of the run.
    pub(super) at: Duration,
    pub(super) lasts: Duration,
    pub(super) kind: &'static Kind,
    /// Whether it meets whoever leads then, if that can be told.
    pub(super) leader: bool,
    /// Whom it meets else; of no meaning for a fault of the server.
    pub(super) candidate: usize,
}

/// A way to go wrong.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) act: Act,
    /// How often it is drawn, compared with the others.
    weight: u32,
    /// How long it lasts, in milliseconds.
    shortest: u64,
    longest: u64,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Process(OnProcess),
    Network(OnNetwork),
    Server(OnServer),
    /// The server loses data, which is outside of the promise.
    Data(OnData),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnProcess {
    Kill,
    Terminate,
    Freeze,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnNetwork {
    Hole,
    HoldCommands,
    HoldReplies,
    Delay,
    /// And then a hole: a deadline that counts from the reply would lie after the lease's end.
    LateReplies,
    Trickle,
    Reset,
    Close,
    Refuse,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnServer {
    Freeze,
    Restart,
    Pause,
    FlushScripts,
    KillClients,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnData {
    DeleteLease,
    OverwriteLease,
    DeleteTerm,
    FlushAll,
}

/// Also the second half of [`OnNetwork::LateReplies`].
pub(super) const HOLE: Kind = kind("hole", Act::Network(OnNetwork::Hole), 3, 50, 1500);

/// The ttl of the candidates is 600 ms: what is to outlast a lease lasts longer.
#[rustfmt::skip]
const WITHIN: &[Kind] = &[
    kind("kill", Act::Process(OnProcess::Kill), 3, 0, 1000),
    kind("terminate", Act::Process(OnProcess::Terminate), 3, 0, 0),
    kind("freeze", Act::Process(OnProcess::Freeze), 6, 30, 1800),
    HOLE,
    kind("hold_commands", Act::Network(OnNetwork::HoldCommands), 2, 50, 1500),
    kind("hold_replies", Act::Network(OnNetwork::HoldReplies), 3, 50, 1500),
    kind("delay", Act::Network(OnNetwork::Delay), 3, 100, 1500),
    kind("late_replies", Act::Network(OnNetwork::LateReplies), 3, 350, 900),
    kind("trickle", Act::Network(OnNetwork::Trickle), 1, 100, 1000),
    kind("reset", Act::Network(OnNetwork::Reset), 2, 0, 0),
    kind("close", Act::Network(OnNetwork::Close), 1, 0, 0),
    kind("refuse", Act::Network(OnNetwork::Refuse), 2, 50, 1500),
    kind("redis_freeze", Act::Server(OnServer::Freeze), 1, 50, 800),
    kind("redis_restart", Act::Server(OnServer::Restart), 1, 0, 800),
    kind("redis_pause", Act::Server(OnServer::Pause), 1, 50, 800),
    kind("flush_scripts", Act::Server(OnServer::FlushScripts), 1, 0, 0),
    kind("kill_clients", Act::Server(OnServer::KillClients), 1, 0, 0),
];

#[rustfmt::skip]
const OUTSIDE: &[Kind] = &[
    kind("delete_lease", Act::Data(OnData::DeleteLease), 3, 0, 0),
    kind("overwrite_lease", Act::Data(OnData::OverwriteLease), 3, 20, 300),
    kind("delete_term", Act::Data(OnData::DeleteTerm), 1, 0, 0),
    kind("flush_all", Act::Data(OnData::FlushAll), 2, 0, 0),
];

const fn kind(name: &'static str, act: Act, weight: u32, shortest: u64, longest: u64) -> Kind {
    Kind { name, act, weight, shortest, longest }
}

impl Kind {
    /// Whether it is outside of the promise.
    pub(super) fn loses_data(&self) -> bool {
        matches!(self.act, Act::Data(_))
    }
}

/// The faults of a run, in order. The same seed draws the same ones.
pub(super) fn draw(seed: u64, length: Duration) -> Vec<Fault> {
    let mut dice = StdRng::seed_from_u64(seed);
    let mut faults = Vec::new();
    let mut at = Duration::ZERO;
    loop {
        at += Duration::from_millis(dice.random_range(50..=500));
        if at >= length {
            return faults;
        }
        let kinds = if may_lose_data(at) && dice.random_bool(0.5) { OUTSIDE } else { WITHIN };
        let kind = choose(kinds, &mut dice);
        faults.push(Fault {
            at,
            lasts: Duration::from_millis(dice.random_range(kind.shortest..=kind.longest)),
            kind,
            leader: dice.random_bool(0.5),
            candidate: dice.random_range(0..CANDIDATES),
        });
    }
}

fn may_lose_data(at: Duration) -> bool {
    at.as_millis() % PERIOD.as_millis() >= LOSSES_FROM.as_millis()
}

fn choose(kinds: &'static [Kind], dice: &mut StdRng) -> &'static Kind {
    let mut left = dice.random_range(0..kinds.iter().map(|kind| kind.weight).sum());
    kinds
        .iter()
        .find(|kind| {
            let found = left < kind.weight;
            left = left.saturating_sub(kind.weight);
            found
        })
        .expect("what is drawn is less than the sum of the weights")
}

#[test]
fn a_seed_draws_the_same_faults_again_and_another_one_draws_others() {
    const MINUTE: Duration = Duration::from_secs(60);
    let faults = draw(7, MINUTE);
    assert_eq!(faults, draw(7, MINUTE));
    assert_ne!(faults, draw(8, MINUTE));
    assert!(draw(7, MINUTE * 2).starts_with(&faults), "a longer run begins like a shorter one");
}

#[test]
fn every_kind_is_drawn_and_data_is_lost_at_the_end_of_a_period_only() {
    let faults = draw(1, PERIOD * 30);
    for kind in WITHIN.iter().chain(OUTSIDE) {
        assert!(faults.iter().any(|fault| fault.kind == kind), "{} was never drawn", kind.name);
    }
    for fault in faults.iter().filter(|fault| fault.kind.loses_data()) {
        assert!(may_lose_data(fault.at), "{fault:?}");
    }
    let losses = faults.iter().filter(|fault| fault.kind.loses_data()).count();
    assert!(losses * 4 < faults.len(), "{losses} of {} faults lose data", faults.len());
}
