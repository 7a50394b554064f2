//! A world in virtual time: instances, a network, a server and the faults of a plan, one event after the other.

mod faults;
mod go;
mod lease;
mod network;
mod replication;
mod threads;

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

use super::chance::Chance;
use super::instance::Instance;
use super::judge::{Cause, Figures, Judge};
use super::plan::{Climate, Nanos, Plan, millis};
use super::replicas::Servers;
use super::server::Ask;
use crate::election::key::InstanceId;
use crate::election::machine::Input;
use crate::election::store::strict::{Said, Wait};
use crate::election::store::{Class, Keys, Outcome, StoreError};
use go::Go;
use replication::Waiting;

/// The Go instance's number in events; it has a machine of another kind.
const GO: usize = 99;
/// How soon a refused connection, or a reset, is noticed.
const SOON: Nanos = 100_000;

/// What is to happen.
#[derive(Clone, Debug)]
enum Event {
    /// The driver's thread takes an input.
    Turn {
        who: usize,
        life: u64,
        input: Input,
    },
    /// It wants to be called.
    Alarm {
        who: usize,
        life: u64,
        alarm: u64,
    },
    /// The I/O thread sends.
    Depart {
        who: usize,
        life: u64,
        op: u64,
    },
    /// A request is at the server.
    Arrive {
        packet: Packet,
        boot: u64,
    },
    /// A reply is at the process.
    Reply {
        packet: Packet,
        result: Result<Said, StoreError>,
        acknowledged: u32,
        boot: u64,
    },
    /// What a primary has is at a replica.
    Replicate {
        to: usize,
        link: u64,
        from: usize,
        reign: u64,
        offset: u64,
        keys: Keys,
    },
    /// That a replica has it is known to the primary.
    Acknowledge {
        to: usize,
        reign: u64,
        by: usize,
        offset: u64,
    },
    /// Replicas are no longer waited for.
    WaitEnds {
        number: u64,
    },
    /// A replica takes the primary's place.
    Promote {
        fault: usize,
    },
    /// A server is told whom to replicate.
    Attach {
        node: usize,
    },
    /// An instance finds the primary.
    Learn {
        who: usize,
    },
    /// A primary that was killed, and replaced meanwhile, comes back as one.
    ComeBack {
        fault: usize,
    },
    /// The I/O thread's deadline.
    Timeout {
        who: usize,
        life: u64,
        op: u64,
    },
    /// The lead work returns.
    Returned {
        who: usize,
        life: u64,
        token: u64,
    },
    /// The lease may be over.
    LeaseEnds {
        node: usize,
    },
    /// The Go instance does what is due.
    GoTurn {
        life: u64,
    },
    Begin(usize),
    End(usize),
    /// Another process comes in the place of one that was killed by a mishap.
    Born {
        who: usize,
        life: u64,
    },
}

/// A request under way.
#[derive(Clone, Debug)]
struct Packet {
    who: usize,
    life: u64,
    op: u64,
    id: InstanceId,
    ttl: Duration,
    ask: Ask,
    /// Where it goes.
    node: usize,
    /// How replicas are waited for after it.
    wait: Option<Wait>,
    /// How long the reply takes; none where it is lost, or nobody waits for it.
    reply: Option<Nanos>,
}

struct Scheduled {
    at: Nanos,
    number: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// A world under way.
pub(super) struct World<'a, C> {
    plan: &'a Plan,
    chance: &'a mut C,
    now: Nanos,
    queue: BinaryHeap<Reverse<Scheduled>>,
    pushed: u64,
    servers: Servers,
    /// The requests whose replies wait for replicas.
    waiting: Vec<Waiting>,
    /// Which server each fault has struck, while it lasts.
    struck: Vec<Option<usize>>,
    instances: Vec<Instance>,
    go: Option<Go>,
    judge: Judge,
    /// Whether each thing that happens is written down.
    trace: Option<Vec<String>>,
}

/// How a world ended.
pub(super) struct Verdict {
    pub(super) broken: Option<String>,
    pub(super) figures: Figures,
    pub(super) trace: Vec<String>,
}

/// Runs a world to its end, or to the first broken promise.
pub(super) fn run(plan: &Plan, chance: &mut impl Chance, traced: bool) -> Verdict {
    let instances: Vec<_> = plan.instances.iter().cloned().map(Instance::new).collect();
    let first = &plan.instances[0].timing;
    let go = plan.go.then(|| Go::new(first.ttl, first.wait));
    let mut world = World {
        plan,
        chance,
        now: 0,
        queue: BinaryHeap::new(),
        pushed: 0,
        servers: Servers::new(plan.replicas, if plan.climate == Climate::Failover { 8 } else { 0 }),
        waiting: Vec::new(),
        struck: vec![None; plan.faults.len()],
        instances,
        go,
        judge: Judge::new(plan),
        trace: traced.then(Vec::new),
    };
    world.begin();
    let mut end = plan.quiet_at + plan.patience();
    while world.runs_to(end) {
        world.conclude();
        if !world.deposes() {
            break;
        }
        end += plan.patience();
    }
    Verdict {
        broken: world.judge.broken,
        figures: world.judge.figures,
        trace: world.trace.unwrap_or_default(),
    }
}

impl<C: Chance> World<'_, C> {
    fn begin(&mut self) {
        for who in 0..self.instances.len() {
            self.born(who);
        }
        if self.go.is_some() {
            self.push(SOON, Event::GoTurn { life: 0 });
        }
        for (fault, at) in self.plan.faults.iter().map(|fault| fault.at).enumerate() {
            self.push_at(at, Event::Begin(fault));
        }
    }

    /// What happens until then; false if it breaks a promise, or is not worth going on with.
    fn runs_to(&mut self, end: Nanos) -> bool {
        while self.queue.peek().is_some_and(|next| next.0.at <= end) {
            let Some(Reverse(next)) = self.queue.pop() else { break };
            self.now = next.at;
            self.chance.at(next.at);
            if self.servers.is_forked() {
                self.judge.forked_at = next.at;
            }
            self.happen(next.event);
            if self.judge.broken.is_some() || !self.goes_on() {
                return false;
            }
        }
        self.now = end;
        true
    }

    /// Liveness: ttl + wait after the last fault somebody leads.
    fn conclude(&mut self) {
        let now = self.now;
        let leads = self.instances.iter().any(|it| it.is_leader(now));
        let go_leads = self.go.as_ref().is_some_and(|go| go.alive && go.leads);
        self.judge.holds(now, leads || go_leads, || "nobody leads, long after the last fault".to_owned());
    }

    /// In a group of both kinds nobody starves: whoever leads is killed, and another is to follow. False once nobody
    /// is left to, or something is broken.
    fn deposes(&mut self) -> bool {
        let now = self.now;
        if self.go.is_none() || self.judge.broken.is_some() {
            return false;
        }
        match (0..self.instances.len()).find(|who| self.instances[*who].is_leader(now)) {
            Some(who) => self.killed(who),
            None => self.go_dies(),
        }
        let is_left = self.instances.iter().any(|it| it.machine.is_some());
        is_left || self.go.as_ref().is_some_and(|go| go.alive)
    }

    fn goes_on(&mut self) -> bool {
        let Self { chance, instances, servers, waiting, queue, judge, now, .. } = self;
        chance.goes_on(&|out| {
            // Writing to a hash does not fail.
            _ = write!(out, "{now} {servers:?}{waiting:?}");
            for it in instances.iter() {
                let tokens = [it.proof.map(|proof| proof.token), it.work.map(|work| work.token)];
                _ = write!(out, "{it:?}{:?}", tokens.map(|token| token.and_then(|token| judge.ended(token))));
            }
            let mut events: Vec<_> = queue.iter().map(|Reverse(it)| (it.at, it.number, &it.event)).collect();
            events.sort_by_key(|(at, number, _)| (*at, *number));
            events.iter().for_each(|(at, _, event)| _ = write!(out, "{at}{event:?}"));
        })
    }

    fn push(&mut self, after: Nanos, event: Event) {
        self.push_at(self.now.saturating_add(after), event);
    }

    fn push_at(&mut self, at: Nanos, event: Event) {
        self.pushed += 1;
        self.queue.push(Reverse(Scheduled { at, number: self.pushed, event }));
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>12.6} {}", millis(self.now), what()));
        }
    }

    fn lives(&self, who: usize, life: u64) -> bool {
        self.instances[who].life == life && self.instances[who].machine.is_some()
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Turn { who, life, input } => {
                if self.lives(who, life)
                    && !self.postpone(who, |by| Event::Turn { who, life, input: later(&input, by) })
                {
                    self.turn(who, input);
                }
            }
            Event::Alarm { who, life, alarm } => {
                if self.lives(who, life)
                    && self.instances[who].alarm == alarm
                    && !self.postpone(who, |_| Event::Alarm { who, life, alarm })
                {
                    self.turn(who, Input::Time);
                }
            }
            Event::Depart { who, life, op } => self.depart(who, life, op),
            Event::Arrive { packet, boot } => self.arrive(packet, boot),
            Event::Reply { packet: Packet { who: GO, life, .. }, result, .. } => {
                self.go_answered(life, &result);
            }
            Event::Reply { packet, result, acknowledged, boot } => {
                self.reply(packet, result, acknowledged, boot);
            }
            Event::Replicate { to, link, from, reign, offset, keys } => {
                self.replicated(to, link, (from, reign), offset, keys);
            }
            Event::Acknowledge { to, reign, by, offset } => self.acknowledged(to, reign, by, offset),
            Event::WaitEnds { number } => self.wait_ends(number),
            Event::Promote { fault } => self.promote(fault),
            Event::Attach { node } => self.attach(node),
            Event::Learn { who } => self.learn(who),
            Event::ComeBack { fault } => self.come_back(fault),
            Event::Timeout { who, life, op } => self.timeout(who, life, op),
            Event::Returned { who, life, token } => self.returned(who, life, token),
            Event::LeaseEnds { node } => {
                self.serve(node, Cause::Expired, |server, now| server.expire(now));
            }
            Event::GoTurn { life } => self.go_turn(life),
            Event::Begin(fault) => self.fault_begins(fault),
            Event::End(fault) => self.fault_ends(fault),
            Event::Born { who, life } => {
                if self.instances[who].life == life {
                    self.born(who);
                }
            }
        }
    }
}

/// The same input so much later: a step down ends when it was planned to.
fn later(input: &Input, by: Nanos) -> Input {
    match input {
        Input::StepDown { pause } => {
            Input::StepDown { pause: pause.saturating_sub(Duration::from_nanos(by)) }
        }
        other => other.clone(),
    }
}

fn passing(outcome: Outcome) -> StoreError {
    StoreError::new(outcome, Class::Passing, "no answer")
}
