//! A world in virtual time: instances, a network, a server and the faults of a plan, one event after the other.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

use super::chance::{Chance, Fate, Mishap};
use super::instance::{Instance, Proof, Request, Told, Work};
use super::judge::{Cause, Figures, Judge};
use super::plan::{Climate, Kind, MS, Nanos, Plan, Weather, millis, nanos};
use super::server::{Ask, GoAsk, Held, Server};
use crate::election::clock::Instant;
use crate::election::event::Reason;
use crate::election::key::InstanceId;
use crate::election::machine::{Input, Machine, Moment, Output};
use crate::election::store::{Action, Answer, Class, Outcome, StoreError};

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
        who: usize,
        life: u64,
        op: u64,
        result: Result<Answer, StoreError>,
        boot: u64,
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
    LeaseEnds,
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

/// The Go version's instance: it polls, and has no deadline of its own.
#[derive(Debug)]
struct Go {
    life: u64,
    alive: bool,
    id: InstanceId,
    leads: bool,
    ttl: Duration,
    wait: Nanos,
    op: u64,
}

/// A world under way.
pub(super) struct World<'a, C> {
    plan: &'a Plan,
    chance: &'a mut C,
    now: Nanos,
    queue: BinaryHeap<Reverse<Scheduled>>,
    pushed: u64,
    server: Server,
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
    let go = plan.go.then(|| Go {
        life: 0,
        alive: true,
        id: "go-0".into(),
        leads: false,
        ttl: first.ttl,
        wait: nanos(first.wait),
        op: 0,
    });
    let mut world = World {
        plan,
        chance,
        now: 0,
        queue: BinaryHeap::new(),
        pushed: 0,
        server: Server::new(),
        instances,
        go,
        judge: Judge::new(plan.climate),
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
        let Self { chance, instances, server, queue, judge, now, .. } = self;
        chance.goes_on(&|out| {
            // Writing to a hash does not fail.
            _ = write!(out, "{now} {server:?}");
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
            Event::Reply { who: GO, life, result, .. } => self.go_answered(life, &result),
            Event::Reply { who, life, op, result, boot } => self.reply(who, life, op, result, boot),
            Event::Timeout { who, life, op } => self.timeout(who, life, op),
            Event::Returned { who, life, token } => self.returned(who, life, token),
            Event::LeaseEnds => self.serve(Cause::Expired, |server, now| server.expire(now)),
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

    // ---- an instance's threads ----

    /// Puts an event off while the thread that would see it stands still.
    fn postpone(&mut self, who: usize, event: impl FnOnce(Nanos) -> Event) -> bool {
        let it = &self.instances[who];
        let able_at = it.awake_at.max(it.driver_at);
        if self.now < able_at {
            self.push_at(able_at, event(able_at - self.now));
        }
        self.now < able_at
    }

    fn born(&mut self, who: usize) {
        self.killed(who);
        let now = self.now;
        let dice = self.chance.dice(who, self.instances[who].turns);
        let it = &mut self.instances[who];
        let id: InstanceId = format!("{who}-{}", it.life).as_str().into();
        let moment = Moment { at: it.local(now), dice };
        it.machine = Some(Machine::new(id.clone(), it.settings.timing, moment));
        it.id = id;
        (it.born_at, it.awake_at, it.driver_at, it.told) = (now, now, now, Told::Nothing);
        (it.last_demotion, it.request) = (None, None);
        self.set_alarm(who);
    }

    /// Ends the process, whatever it was at.
    fn killed(&mut self, who: usize) {
        self.note(|| format!("{who}: a new life"));
        self.end_proof(who);
        let it = &mut self.instances[who];
        it.life += 1;
        (it.machine, it.work, it.stopping) = (None, None, None);
    }

    fn turn(&mut self, who: usize, input: Input) {
        let now = self.now;
        let it = &mut self.instances[who];
        it.turns += 1;
        let turns = it.turns;
        let dice = self.chance.dice(who, turns);
        let at = it.local(now);
        let moment = Moment { at, dice };
        let Some(machine) = &mut it.machine else { return };
        let is_time = matches!(input, Input::Time);
        let mut out = Vec::new();
        machine.handle(moment, input.clone(), &mut out);
        if is_time && out.is_empty() && machine.wake_at() <= at {
            self.judge.broken(now, format!("instance {who} is called again and again"));
        }
        self.note(|| format!("{who}: {input:?} -> {out:?}"));
        self.apply(who, moment, out);
        if let Some(mishap) = self.chance.mishap(who) {
            self.mishap(who, mishap);
        }
        self.set_alarm(who);
    }

    fn set_alarm(&mut self, who: usize) {
        let lag = self.chance.lag(who, self.instances[who].turns);
        let it = &mut self.instances[who];
        let Some(machine) = &it.machine else { return };
        it.alarm += 1;
        let (life, alarm) = (it.life, it.alarm);
        let at = it.real(machine.wake_at());
        if at != Nanos::MAX {
            self.push_at(at.max(self.now) + lag, Event::Alarm { who, life, alarm });
        }
    }

    fn mishap(&mut self, who: usize, mishap: Mishap) {
        self.note(|| format!("{who}: {mishap:?}"));
        match mishap {
            Mishap::Pause(lasts) => self.pause(who, lasts),
            Mishap::Crash(lasts) => {
                self.killed(who);
                let life = self.instances[who].life;
                self.push(lasts, Event::Born { who, life });
            }
        }
    }

    fn pause(&mut self, who: usize, lasts: Nanos) {
        let until = self.now + lasts;
        let it = &mut self.instances[who];
        it.awake_at = it.awake_at.max(until);
        it.stopping = None;
    }

    /// Does what the machine says, as the driver does.
    fn apply(&mut self, who: usize, moment: Moment, outputs: Vec<Output>) {
        let now = self.now;
        let mut follow_up = None;
        for output in outputs {
            match output {
                Output::Send { op, action, until } => self.send(who, moment.at, op, action, until),
                Output::Shorten { op, until } => self.shorten(who, op, until),
                Output::Promoted { token, until } => follow_up = self.promoted(who, token, until),
                Output::Extended { until } => {
                    let slip = match now < self.plan.quiet_at {
                        true => self.chance.slip(who, self.instances[who].turns),
                        false => 0,
                    };
                    let it = &mut self.instances[who];
                    let read = it.local(now + slip);
                    match &mut it.proof {
                        Some(proof) if read < proof.until => proof.until = until,
                        _ => follow_up = Some(Input::Lapsed),
                    }
                    self.check_proof(who);
                }
                Output::Demoted { token, reason } => self.demoted(who, token, reason),
                Output::Overrun { token, .. } => {
                    // It may have returned in this moment.
                    let work = self.instances[who].work.as_mut().filter(|work| work.token == token);
                    work.into_iter().for_each(|work| work.overran = true);
                }
                Output::Unheard => {
                    let life = self.instances[who].life;
                    self.push(2 * SOON, Event::Turn { who, life, input: Input::WakeBack });
                }
                Output::Stopped => self.stopped(who),
                Output::Leader(_)
                | Output::Failed { .. }
                | Output::Unending { .. }
                | Output::FarAhead { .. }
                | Output::Left { .. } => {}
            }
        }
        if let Some(input) = follow_up {
            let it = &mut self.instances[who];
            let Some(machine) = &mut it.machine else { return };
            let mut out = Vec::new();
            machine.handle(moment, input.clone(), &mut out);
            self.note(|| format!("{who}: {input:?} -> {out:?}"));
            self.apply(who, moment, out);
        }
    }

    fn send(&mut self, who: usize, wanted_at: Instant, op: u64, action: Action, until: Instant) {
        let now = self.now;
        let it = &mut self.instances[who];
        let is_over = it.told == Told::Stopped;
        self.judge.holds(now, !is_over, || format!("instance {who} sends {action:?} after it has stopped"));
        let contends = matches!(action, Action::Acquire { .. });
        self.judge.holds(now, !contends || it.work.is_none(), || {
            format!("instance {who} contends while the work of an earlier term runs")
        });
        it.request = Some(Request { op, action, until });
        it.asked_at = wanted_at;
        let life = it.life;
        let due = it.real(until).max(now);
        let lag = self.chance.lag(who, op);
        self.push(lag, Event::Depart { who, life, op });
        self.push_at(due, Event::Timeout { who, life, op });
    }

    fn shorten(&mut self, who: usize, op: u64, until: Instant) {
        let it = &mut self.instances[who];
        let Some(request) = it.request.as_mut().filter(|request| request.op == op) else { return };
        request.until = request.until.min(until);
        let (life, due) = (it.life, it.real(until).max(self.now));
        self.push_at(due, Event::Timeout { who, life, op });
    }

    fn promoted(&mut self, who: usize, token: u64, until: Instant) -> Option<Input> {
        let now = self.now;
        self.judge.figures.promotions += 1;
        for other in (0..self.instances.len()).filter(|other| *other != who) {
            let both = self.instances[other].is_leader(now) && self.plan.climate != Climate::Outside;
            self.judge.holds(now, !both, || format!("{who} is promoted while {other} leads"));
        }
        let it = &mut self.instances[who];
        let fits = !matches!(it.told, Told::Promoted(_) | Told::Stopped);
        self.judge.holds(now, fits, || format!("instance {who} is promoted after {:?}", it.told));
        it.told = Told::Promoted(token);
        it.proof = Some(Proof { token, since: now, until });
        let begins = it.settings.works;
        self.judge
            .holds(now, it.work.is_none(), || format!("instance {who} begins a term beside its old work"));
        if begins {
            it.work = Some(Work { token, is_leaving: false, overran: false });
            self.check_works(who);
        }
        self.check_proof(who);
        begins.then_some(Input::LeadBegan { token })
    }

    /// Promise 5, across instances: another's work runs only if it outlived its grace, or its lease ended
    /// otherwise than by its own hand.
    fn check_works(&mut self, who: usize) {
        for other in (0..self.instances.len()).filter(|other| *other != who) {
            let Some(work) = self.instances[other].work else { continue };
            let released = self.judge.ended(work.token).is_some_and(|ended| ended.cause == Cause::Released);
            self.judge.holds(self.now, !released, || {
                format!("the work of {who} begins beside that of {other}, which has released its lease")
            });
        }
    }

    /// A term was begun or extended. Promise 3: its deadline counts from before the request was sent. And promise 1:
    /// what if its lease is over?
    fn check_proof(&mut self, who: usize) {
        let it = &self.instances[who];
        let timing = &it.settings.timing;
        let latest = it.asked_at + (timing.ttl - timing.stop_margin);
        let in_time = it.proof.is_none_or(|proof| proof.until <= latest);
        self.judge.holds(self.now, in_time, || {
            format!("{who} counts its deadline from after the request was sent")
        });
        let Some(proof) = it.proof.filter(|_| it.is_leader(self.now)) else { return };
        let (outlives, ttl) = (it.real(proof.until) - self.now, nanos(it.ttl()));
        self.judge.proved(self.now, proof.token, outlives, ttl);
    }

    fn demoted(&mut self, who: usize, token: u64, reason: Reason) {
        let now = self.now;
        self.end_proof(who);
        let told = self.instances[who].told;
        self.judge.holds(now, told == Told::Promoted(token), || {
            format!("instance {who} is demoted from {token} after {told:?}")
        });
        let it = &mut self.instances[who];
        it.told = Told::Nothing;
        it.last_demotion = Some((now, reason));
        if let Some(work) = it.work.as_mut().filter(|work| work.token == token) {
            work.is_leaving = true;
            let (life, grace) = (it.life, nanos(it.settings.timing.lead_grace));
            let mut takes = self.chance.reaction(who, it.turns, grace);
            // After the last fault nothing hangs.
            if now + takes > self.plan.quiet_at {
                takes = takes.min(grace / 2).min(MS);
            }
            self.push(takes, Event::Returned { who, life, token });
        }
    }

    /// The term that readers see is over, if there is one: did another lead beside it?
    fn end_proof(&mut self, who: usize) {
        let Some(proof) = self.instances[who].proof.take() else { return };
        let it = &self.instances[who];
        let end = self.now.min(it.real(proof.until));
        let ttl = nanos(it.ttl());
        for other in self.instances.iter().enumerate().filter(|(other, _)| *other != who).map(|(_, it)| it) {
            let Some(others) = other.proof else { continue };
            let to = end.min(other.real(others.until));
            let from = proof.since.max(others.since);
            if from < to {
                let ttl = ttl.max(nanos(other.ttl()));
                self.judge.overlap(self.now, to - from, ttl);
            }
        }
    }

    fn stopped(&mut self, who: usize) {
        self.check_stop(who);
        let it = &mut self.instances[who];
        it.told = Told::Stopped;
        it.machine = None;
    }

    /// Promise 8: an instance that nothing keeps from it stops within lead grace + 2 call limits.
    fn check_stop(&mut self, who: usize) {
        let it = &mut self.instances[who];
        let Some(since) = it.stopping.take() else { return };
        let took = self.now - since;
        let timing = &it.settings.timing;
        // By a clock that is slow by a hundredth, and called a little late.
        let bound = nanos(timing.lead_grace + timing.call_limit * 2) / 100 * 102 + 10 * MS;
        self.judge.holds(self.now, took <= bound, || {
            format!("instance {who} takes {:.6} ms to stop", millis(took))
        });
    }

    /// Lead work has returned.
    fn returned(&mut self, who: usize, life: u64, token: u64) {
        let it = &mut self.instances[who];
        if it.life != life || it.work.is_none_or(|work| work.token != token) {
            return;
        }
        if self.now < it.awake_at {
            let at = it.awake_at;
            return self.push_at(at, Event::Returned { who, life, token });
        }
        it.work = None;
        let lag = self.chance.lag(who, self.instances[who].turns);
        self.push(lag, Event::Turn { who, life, input: Input::LeadReturned { token } });
    }

    // ---- the network ----

    fn depart(&mut self, who: usize, life: u64, op: u64) {
        let now = self.now;
        if !self.lives(who, life) {
            return;
        }
        let it = &self.instances[who];
        let Some(request) = it.request.filter(|request| request.op == op) else { return };
        if now < it.awake_at {
            return self.push_at(it.awake_at, Event::Depart { who, life, op });
        }
        if it.local(now) >= request.until {
            return;
        }
        if self.server.outages > 0 {
            return self.answered(who, op, Err(passing(Outcome::NotSent)));
        }
        let ttl = it.ttl();
        let (weather, hole_out, hole_in) = (it.weather, it.hole_out, it.hole_in);
        let id = it.id.clone();
        let Fate { mut request, mut reply, copy } = match request {
            _ if self.plan.climate == Climate::Calm => {
                self.chance.fate(who, op, Weather::default(), nanos(ttl))
            }
            _ => self.chance.fate(who, op, weather, nanos(ttl)),
        };
        // A hole swallows, or its packets are sent again after it.
        let mut through = |way: &mut Option<Nanos>, hole: Nanos| {
            if now < hole {
                let kept = self.chance.survives(who, op);
                *way = way.filter(|_| kept).map(|takes| hole - now + takes);
            }
        };
        through(&mut request, hole_out);
        through(&mut reply, hole_in);
        let action = self.instances[who].request.map(|request| request.action);
        let Some(action) = action else { return };
        let packet = Packet { who, life, op, id, ttl, ask: Ask::Ours(action), reply };
        let boot = self.server.boot;
        // Nothing is on its way for long after the last fault.
        let latest = self.plan.quiet_at.max(now + MS);
        if let Some(takes) = copy {
            let packet = Packet { reply: None, ..packet.clone() };
            self.push_at((now + takes).min(latest), Event::Arrive { packet, boot });
        }
        if let Some(takes) = request {
            self.push_at((now + takes).min(latest), Event::Arrive { packet, boot });
        }
    }

    fn arrive(&mut self, packet: Packet, boot: u64) {
        let now = self.now;
        if boot != self.server.boot {
            return;
        }
        if now < self.server.frozen_until {
            let thaw = self.server.frozen_until;
            return self.push_at(thaw, Event::Arrive { packet, boot });
        }
        self.judge.figures.commands += 1;
        let cause = match packet.ask {
            Ask::Ours(Action::Release { .. }) | Ask::Go(GoAsk::Release) => Cause::Released,
            _ => Cause::Renewed,
        };
        let mut result = Ok(Answer::Vacant);
        // What has expired since is no doing of this request.
        self.serve(Cause::Expired, |server, now| server.expire(now));
        self.serve(cause, |server, now| result = server.execute(now, &packet.id, packet.ttl, packet.ask));
        let Packet { who, life, op, reply, .. } = packet;
        self.note(|| format!("server: {who} {:?} -> {result:?}", packet.ask));
        if let (Ask::Ours(Action::Release { token }), Ok(Answer::Released)) = (packet.ask, &result) {
            self.wake(token);
        }
        if let Some(takes) = reply {
            self.push(takes, Event::Reply { who, life, op, result, boot });
        }
    }

    fn wake(&mut self, token: u64) {
        for who in 0..self.instances.len() {
            let it = &self.instances[who];
            if self.now >= it.deaf_until && self.now >= it.hole_in && it.machine.is_some() {
                let (life, turns) = (it.life, it.turns);
                let takes = 2 * SOON + self.chance.lag(who, turns);
                self.push(takes, Event::Turn { who, life, input: Input::Wake { token } });
            }
        }
    }

    fn reply(&mut self, who: usize, life: u64, op: u64, result: Result<Answer, StoreError>, boot: u64) {
        let it = &self.instances[who];
        if !self.lives(who, life) || boot != self.server.boot {
            return;
        }
        if self.now < it.awake_at {
            return self.push_at(it.awake_at, Event::Reply { who, life, op, result, boot });
        }
        self.answered(who, op, result);
    }

    fn timeout(&mut self, who: usize, life: u64, op: u64) {
        let it = &self.instances[who];
        if !self.lives(who, life) {
            return;
        }
        if self.now < it.awake_at {
            return self.push_at(it.awake_at, Event::Timeout { who, life, op });
        }
        let due = it.request.is_some_and(|request| request.op == op && it.local(self.now) >= request.until);
        if due {
            self.answered(who, op, Err(passing(Outcome::Unknown)));
        }
    }

    /// The I/O thread is done with this request, if it is still at it.
    fn answered(&mut self, who: usize, op: u64, result: Result<Answer, StoreError>) {
        let it = &mut self.instances[who];
        let life = it.life;
        if it.request.take_if(|request| request.op == op).is_some() {
            let lag = self.chance.lag(who, op);
            self.push(lag, Event::Turn { who, life, input: Input::Answer { op, result } });
        }
    }

    // ---- the server ----

    /// Does something to the server, and judges what it did to the lease.
    fn serve(&mut self, cause: Cause, act: impl FnOnce(&mut Server, Nanos)) {
        let (before, end) = (self.server.held(), self.server.lease_ends());
        act(&mut self.server, self.now);
        let after = self.server.held();
        if before != after {
            self.lease_ended(before, cause, &after);
            self.lease_won(&after);
        }
        match self.server.lease_ends() {
            Some(at) if Some(at) != end => self.push_at(at.max(self.now), Event::LeaseEnds),
            _ => {}
        }
    }

    fn lease_ended(&mut self, before: Held, cause: Cause, after: &Held) {
        let now = self.now;
        let Some((holder, token)) = before else { return };
        self.note(|| format!("server: the lease of {holder} ends: {cause:?}"));
        if after.is_none() {
            self.judge.vacant_since = Some(now);
        }
        let Some(token) = token else { return };
        let Some(it) = self.instances.iter().find(|it| it.id == holder) else { return };
        let outlives = match it.proof {
            Some(proof) if proof.token == token && it.is_leader(now) => it.real(proof.until) - now,
            _ => 0,
        };
        let (works, overran) = match it.work {
            Some(work) if work.token == token => (true, work.overran),
            _ => (false, false),
        };
        let ttl = nanos(it.ttl());
        let wants = works && !overran || it.is_leader(now);
        self.judge.lease_ended(now, token, cause, outlives, ttl);
        self.judge.holds(now, cause != Cause::Released || !works, || {
            format!("{holder} releases the lease while its work runs")
        });
        let calm = self.plan.climate == Climate::Calm;
        self.judge.holds(now, !(calm && cause == Cause::Expired && wants), || {
            format!("{holder} lets its lease expire, though nothing keeps it from renewing")
        });
    }

    fn lease_won(&mut self, after: &Held) {
        let now = self.now;
        let Some((holder, token)) = after else { return };
        let Some(token) = *token else {
            self.judge.vacant_since = None;
            return;
        };
        self.note(|| format!("server: {holder} wins token {token}"));
        self.judge.won(now, token);
        if self.plan.climate == Climate::Calm
            && let Some(since) = self.judge.vacant_since
        {
            // Those who were there, and free to contend, when the lease ended.
            let able = self.instances.iter().filter(|it| {
                let rests = it.last_demotion.is_some_and(|(at, reason)| {
                    reason != Reason::Stopped && at + nanos(it.settings.timing.wait) * 2 > since
                });
                it.machine.is_some() && it.born_at + 20 * MS < since && it.work.is_none() && !rests
            });
            let worst = able.map(|it| (nanos(it.settings.timing.jitter), nanos(it.ttl()))).min();
            if let Some((jitter, ttl)) = worst {
                self.judge.taken_over(now, jitter, ttl);
            }
        }
        self.judge.vacant_since = None;
    }

    // ---- faults ----

    fn fault_begins(&mut self, fault: usize) {
        let now = self.now;
        let fault_ends = now + self.plan.faults[fault].lasts;
        let kind = self.plan.faults[fault].kind.clone();
        let lasts = fault_ends - now;
        self.judge.figures.faults += 1;
        self.note(|| format!("fault: {kind:?} for {:.3} ms", millis(lasts)));
        self.push_at(fault_ends, Event::End(fault));
        match kind {
            Kind::Pause(who) => self.pause(who, lasts),
            Kind::Stall(who) => {
                let it = &mut self.instances[who];
                it.driver_at = it.driver_at.max(fault_ends);
                it.stopping = None;
            }
            Kind::Crash(who) => self.killed(who),
            Kind::Stop(who) => {
                let it = &mut self.instances[who];
                let able = it.machine.is_some() && now >= it.awake_at.max(it.driver_at);
                it.stopping = able.then_some(now);
                self.tell(who, Input::Stop);
            }
            Kind::StepDown(who) => self.tell(who, Input::StepDown { pause: Duration::from_nanos(lasts) }),
            Kind::WorkEnds(who) => {
                let it = &self.instances[who];
                if let Some(work) = it.work.filter(|work| !work.is_leaving) {
                    self.returned(who, it.life, work.token);
                }
            }
            Kind::Weather(who, weather) => self.instances[who].weather = weather,
            Kind::HoleOut(who) => {
                let it = &mut self.instances[who];
                it.hole_out = it.hole_out.max(fault_ends);
            }
            Kind::HoleIn(who) => {
                let it = &mut self.instances[who];
                it.hole_in = it.hole_in.max(fault_ends);
            }
            Kind::Reset(who) => self.reset(who),
            Kind::Deaf(who) => {
                let it = &mut self.instances[who];
                it.deaf_until = it.deaf_until.max(fault_ends);
                self.tell(who, Input::WakeLost);
            }
            Kind::ForgedWake(who) => {
                let token = (1 << 52) + now;
                self.tell(who, Input::Wake { token });
            }
            Kind::Freeze => self.server.frozen_until = self.server.frozen_until.max(fault_ends),
            Kind::Restart => self.go_down(),
            Kind::Refuse(class) => self.server.refuses = Some(class),
            Kind::GoCrash => self.go_dies(),
            Kind::GoStop => self.go_stops(),
            Kind::LoseData => {
                self.go_down();
                self.judge.term_lost = true;
                self.serve(Cause::Outside, |server, _| server.keys = Default::default());
            }
            Kind::DeleteLease => self.serve(Cause::Outside, |server, _| server.keys.lease = None),
            Kind::DeleteTerm => {
                self.judge.term_lost = true;
                self.serve(Cause::Outside, |server, _| server.keys.term = None);
            }
            Kind::Overwrite => self.serve(Cause::Outside, |server, now| server.overwrite(now, lasts)),
            Kind::Jump(by) => {
                self.judge.clock_back |= by < 0;
                self.serve(Cause::Outside, |server, now| {
                    server.jump(by);
                    server.expire(now);
                });
                if let Some(at) = self.server.lease_ends() {
                    self.push_at(at.max(now), Event::LeaseEnds);
                }
            }
        }
    }

    fn fault_ends(&mut self, fault: usize) {
        match self.plan.faults[fault].kind {
            Kind::Crash(who) => self.born(who),
            Kind::Stop(who) => {
                self.check_stop(who);
                self.born(who);
            }
            Kind::Weather(who, _) => self.instances[who].weather = Weather::default(),
            Kind::Deaf(who) => self.tell(who, Input::WakeBack),
            Kind::Restart | Kind::LoseData => {
                self.server.outages -= 1;
                for who in 0..self.instances.len() {
                    self.tell(who, Input::WakeBack);
                }
            }
            Kind::Refuse(_) => self.server.refuses = None,
            Kind::GoCrash | Kind::GoStop => self.go_comes(),
            _ => {}
        }
    }

    /// Gives an instance an input from outside.
    fn tell(&mut self, who: usize, input: Input) {
        let life = self.instances[who].life;
        let lag = self.chance.lag(who, self.instances[who].turns);
        self.push(lag, Event::Turn { who, life, input });
    }

    fn reset(&mut self, who: usize) {
        let op = self.instances[who].request.map(|request| request.op);
        if let Some(op) = op {
            self.answered(who, op, Err(passing(Outcome::Unknown)));
        }
        self.tell(who, Input::WakeLost);
        let life = self.instances[who].life;
        self.push(4 * SOON, Event::Turn { who, life, input: Input::WakeBack });
    }

    fn go_down(&mut self) {
        self.server.outages += 1;
        self.server.boot += 1;
        for who in 0..self.instances.len() {
            let op = self.instances[who].request.map(|request| request.op);
            if let Some(op) = op {
                self.answered(who, op, Err(passing(Outcome::Unknown)));
            }
            self.tell(who, Input::WakeLost);
        }
    }

    // ---- the Go version ----

    fn go_turn(&mut self, life: u64) {
        let Some(go) = self.go.as_mut().filter(|go| go.alive && go.life == life) else { return };
        go.op += 1;
        let ask = if go.leads { GoAsk::Renew } else { GoAsk::Acquire };
        let pause = if go.leads { nanos(go.ttl) / 2 } else { go.wait };
        let (id, ttl, op) = (go.id.clone(), go.ttl, go.op);
        if self.server.outages > 0 {
            go.leads = false;
            let wait = go.wait;
            return self.push(wait, Event::GoTurn { life });
        }
        let packet = Packet { who: GO, life, op, id, ttl, ask: Ask::Go(ask), reply: Some(SOON) };
        let boot = self.server.boot;
        self.push(SOON, Event::Arrive { packet, boot });
        self.push(pause, Event::GoTurn { life });
    }

    fn go_answered(&mut self, life: u64, result: &Result<Answer, StoreError>) {
        let Some(go) = self.go.as_mut().filter(|go| go.alive && go.life == life) else { return };
        let leads = matches!(result, Ok(Answer::Released));
        if leads && !go.leads {
            // Its next turn was set for a follower.
            let pause = nanos(go.ttl) / 2;
            go.life += 1;
            let life = go.life;
            self.push(pause, Event::GoTurn { life });
        }
        if let Some(go) = &mut self.go {
            go.leads = leads;
        }
    }

    fn go_dies(&mut self) {
        if let Some(go) = &mut self.go {
            (go.alive, go.leads) = (false, false);
            go.life += 1;
        }
    }

    fn go_stops(&mut self) {
        let Some(go) = self.go.as_ref().filter(|go| go.alive) else { return };
        let (id, ttl, life, op) = (go.id.clone(), go.ttl, go.life, go.op);
        let packet = Packet { who: GO, life, op, id, ttl, ask: Ask::Go(GoAsk::Release), reply: None };
        let boot = self.server.boot;
        self.push(SOON, Event::Arrive { packet, boot });
        self.go_dies();
    }

    fn go_comes(&mut self) {
        let Some(go) = self.go.as_mut().filter(|go| !go.alive) else { return };
        go.alive = true;
        go.life += 1;
        go.id = format!("go-{}", go.life).as_str().into();
        let life = go.life;
        self.push(SOON, Event::GoTurn { life });
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
