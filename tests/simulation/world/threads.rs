//! An instance's threads: what the driver does with the machine's outputs, and what readers and lead work see.

use super::super::chance::{Chance, Mishap};
use super::super::instance::{Proof, Request, Told, Work};
use super::super::judge::Cause;
use super::super::plan::{Climate, MS, Nanos, millis, nanos};
use super::{Event, SOON, World};
use crate::election::clock::Instant;
use crate::election::event::Reason;
use crate::election::key::InstanceId;
use crate::election::machine::{Input, Machine, Moment, Output};
use crate::election::store::{Action, Answer};

impl<C: Chance> World<'_, C> {
    /// Puts an event off while the thread that would see it stands still.
    pub(super) fn postpone(&mut self, who: usize, event: impl FnOnce(Nanos) -> Event) -> bool {
        let it = &self.instances[who];
        let able_at = it.awake_at.max(it.driver_at);
        if self.now < able_at {
            self.push_at(able_at, event(able_at - self.now));
        }
        self.now < able_at
    }

    pub(super) fn born(&mut self, who: usize) {
        self.killed(who);
        let now = self.now;
        let dice = self.chance.dice(who, self.instances[who].turns);
        let it = &mut self.instances[who];
        let id: InstanceId = format!("{who}-{}", it.life).as_str().into();
        let moment = Moment { at: it.local(now), dice };
        it.machine = Some(Machine::new(id.clone(), it.settings.timing, moment));
        it.id = id;
        (it.born_at, it.awake_at, it.driver_at, it.told) = (now, now, now, Told::Nothing);
        (it.last_demotion, it.request, it.seen) = (None, None, 0);
        (it.ledger, it.concluded) = Default::default();
        self.set_alarm(who);
    }

    /// Ends the process, whatever it was at.
    pub(super) fn killed(&mut self, who: usize) {
        self.note(|| format!("{who}: a new life"));
        self.end_proof(who);
        let it = &mut self.instances[who];
        it.life += 1;
        (it.machine, it.work, it.stopping) = (None, None, None);
    }

    pub(super) fn turn(&mut self, who: usize, input: Input) {
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
        self.see(who, &input);
        self.apply(who, moment, out);
        self.check_no(who, &input);
        if let Some(mishap) = self.chance.mishap(who) {
            self.mishap(who, mishap);
        }
        self.set_alarm(who);
    }

    /// Notes the token that an answer tells: promise 4 holds for what this instance has seen also where the server
    /// has lost it, and its clock was set back.
    pub(super) fn see(&mut self, who: usize, input: &Input) {
        let Input::Answer { op, result: Ok(answer) } = input else { return };
        let it = &mut self.instances[who];
        let told = match answer {
            Answer::Won { token, .. } => Some(*token),
            Answer::Held(holding) => holding.token,
            _ => None,
        };
        if it.asked.is_some_and(|(request, _)| request.op == *op) {
            it.seen = it.seen.max(told.unwrap_or(0));
        }
    }

    /// Whoever is told by the store that the lease is not its own leads no more.
    pub(super) fn check_no(&mut self, who: usize, input: &Input) {
        let Input::Answer { op, result: Ok(Answer::Held(_) | Answer::Vacant) } = input else { return };
        let it = &self.instances[who];
        let asked = it
            .asked
            .is_some_and(|(request, _)| request.op == *op && matches!(request.action, Action::Renew { .. }));
        let leads = asked && it.is_leader(self.now);
        self.judge.holds(self.now, !leads, || format!("instance {who} leads on after a no"));
    }

    /// No instance asks over and over: not more often than a release is tried.
    pub(super) fn check_rate(&mut self, who: usize) {
        let now = self.now;
        let it = &mut self.instances[who];
        let ttl = nanos(it.ttl());
        if now >= it.sends.1 + ttl {
            it.sends = (0, now);
        }
        it.sends.0 += 1;
        let most = ttl / (20 * MS) + 50;
        self.judge.holds(now, it.sends.0 <= most, || format!("instance {who} asks over and over"));
    }

    pub(super) fn set_alarm(&mut self, who: usize) {
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

    pub(super) fn mishap(&mut self, who: usize, mishap: Mishap) {
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

    pub(super) fn pause(&mut self, who: usize, lasts: Nanos) {
        let until = self.now + lasts;
        let it = &mut self.instances[who];
        it.awake_at = it.awake_at.max(until);
        it.stopping = None;
    }

    /// Does what the machine says, as the driver does.
    pub(super) fn apply(&mut self, who: usize, moment: Moment, outputs: Vec<Output>) {
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
                Output::Left { unreleased } => {
                    // In a calm world only the work can keep it from that.
                    let excused = unreleased.as_ref().is_none_or(|lease| lease.overrun);
                    let calm = self.plan.climate == Climate::Calm;
                    self.judge.holds(now, !calm || excused, || format!("{who} leaves its lease behind"));
                    self.instances[who].leaves_lease = unreleased.is_some();
                }
                Output::Leader(_)
                | Output::Failed { .. }
                | Output::Unending { .. }
                | Output::Unlike { .. }
                | Output::FarAhead { .. } => {}
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

    pub(super) fn send(&mut self, who: usize, wanted_at: Instant, op: u64, action: Action, until: Instant) {
        let now = self.now;
        let it = &mut self.instances[who];
        let is_over = it.told == Told::Stopped;
        self.judge.holds(now, !is_over, || format!("instance {who} sends {action:?} after it has stopped"));
        if let Action::Acquire { floor, .. } = action {
            let seen = it.seen;
            self.judge.holds(now, floor >= seen, || {
                format!("instance {who} asks for a token above {floor}, and has seen {seen}")
            });
        }
        let it = &mut self.instances[who];
        let contends = matches!(action, Action::Acquire { .. });
        self.judge.holds(now, !contends || it.work.is_none(), || {
            format!("instance {who} contends while the work of an earlier term runs")
        });
        let request = Request { op, action, until };
        (it.request, it.asked) = (Some(request), Some((request, wanted_at)));
        let life = it.life;
        let due = it.real(until).max(now);
        self.check_rate(who);
        let lag = self.chance.lag(who, op);
        self.push(lag, Event::Depart { who, life, op });
        self.push_at(due, Event::Timeout { who, life, op });
    }

    pub(super) fn shorten(&mut self, who: usize, op: u64, until: Instant) {
        let it = &mut self.instances[who];
        let Some(request) = it.request.as_mut().filter(|request| request.op == op) else { return };
        request.until = request.until.min(until);
        let (life, due) = (it.life, it.real(until).max(self.now));
        self.push_at(due, Event::Timeout { who, life, op });
    }

    pub(super) fn promoted(&mut self, who: usize, token: u64, until: Instant) -> Option<Input> {
        let now = self.now;
        self.judge.promoted(now, token);
        for other in (0..self.instances.len()).filter(|other| *other != who) {
            if self.instances[other].is_leader(now) {
                self.judge.both(now, || format!("{who} is promoted while {other} leads"));
            }
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
    pub(super) fn check_works(&mut self, who: usize) {
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
    pub(super) fn check_proof(&mut self, who: usize) {
        let it = &self.instances[who];
        let timing = &it.settings.timing;
        let asked_at = it.asked.map_or(Instant::NEVER, |(_, at)| at);
        let latest = asked_at + (timing.ttl - timing.stop_margin);
        let in_time = it.proof.is_none_or(|proof| proof.until <= latest);
        self.judge.holds(self.now, in_time, || {
            format!("{who} counts its deadline from after the request was sent")
        });
        let Some(proof) = it.proof.filter(|_| it.is_leader(self.now)) else { return };
        let (outlives, ttl) = (it.real(proof.until) - self.now, nanos(it.ttl()));
        self.judge.proved(self.now, proof.token, outlives, ttl);
    }

    pub(super) fn demoted(&mut self, who: usize, token: u64, reason: Reason) {
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
    pub(super) fn end_proof(&mut self, who: usize) {
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
                self.judge.overlap(self.now, from, to, ttl);
            }
        }
    }

    pub(super) fn stopped(&mut self, who: usize) {
        self.check_stop(who);
        let it = &mut self.instances[who];
        it.told = Told::Stopped;
        it.machine = None;
        if self.plan.climate == Climate::Calm && !it.leaves_lease {
            // Nothing kept it from giving back what it had, or it says so.
            let asks = it.request.is_some_and(|request| request.action != Action::Look);
            let lasts = self
                .servers
                .primary()
                .lease_ends()
                .is_none_or(|at| at > self.now + nanos(it.ttl()) / 100 + 2 * MS);
            let holds =
                asks || lasts && self.servers.primary().held().is_some_and(|(holder, _)| holder == it.id);
            self.judge.holds(self.now, !holds, || format!("instance {who} stops and leaves its lease"));
        }
    }

    /// Promise 8: an instance that nothing keeps from it stops within lead grace + 2 call limits.
    pub(super) fn check_stop(&mut self, who: usize) {
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
    pub(super) fn returned(&mut self, who: usize, life: u64, token: u64) {
        let it = &mut self.instances[who];
        if it.life != life || it.work.is_none_or(|work| work.token != token) {
            return;
        }
        if self.now < it.awake_at {
            let at = it.awake_at;
            return self.push_at(at, Event::Returned { who, life, token });
        }
        (it.work, it.free_at) = (None, self.now);
        let lag = self.chance.lag(who, self.instances[who].turns);
        self.push(lag, Event::Turn { who, life, input: Input::LeadReturned { token } });
    }
}
