//! The faults of the plan, as they begin and end.

use std::time::Duration;

use super::super::chance::Chance;
use super::super::judge::Cause;
use super::super::plan::{Kind, Old, Sides, Weather, millis};
use super::{Event, SOON, World};
use crate::election::machine::Input;
use crate::election::store::Keys;

impl<C: Chance> World<'_, C> {
    pub(super) fn fault_begins(&mut self, fault: usize) {
        let now = self.now;
        let fault_ends = now + self.plan.faults[fault].lasts;
        let kind = self.plan.faults[fault].kind.clone();
        let lasts = fault_ends - now;
        let primary = self.servers.primary;
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
            Kind::Freeze => {
                let server = self.servers.primary();
                server.frozen_until = server.frozen_until.max(fault_ends);
            }
            Kind::Restart => {
                self.struck[fault] = Some(primary);
                self.go_down(primary);
            }
            Kind::Refuse(class) => {
                self.struck[fault] = Some(primary);
                self.servers.primary().refuses = Some(class);
            }
            Kind::GoCrash => self.go_dies(),
            Kind::GoStop => self.go_stops(),
            Kind::LoseData => {
                self.struck[fault] = Some(primary);
                self.go_down(primary);
                self.lose(primary, |keys| *keys = Keys::default());
            }
            Kind::Rewind(steps) => {
                self.struck[fault] = Some(primary);
                self.go_down(primary);
                let past = self.servers.nodes[primary].past(steps);
                self.lose(primary, |keys| *keys = past);
            }
            Kind::Flush => self.lose(primary, |keys| *keys = Keys::default()),
            Kind::DeleteLease => {
                self.serve(primary, Cause::Outside, |server, _| server.keys.lease = None);
            }
            Kind::DeleteTerm => self.lose(primary, |keys| keys.term = None),
            Kind::Overwrite => {
                self.serve(primary, Cause::Outside, |server, now| server.overwrite(now, lasts));
            }
            Kind::Jump(by) => {
                self.judge.clock_back |= by < 0;
                self.serve(primary, Cause::Outside, |server, now| {
                    server.jump(by);
                    server.expire(now);
                });
                if let Some(at) = self.servers.primary().lease_ends() {
                    self.push_at(at.max(now), Event::LeaseEnds { node: primary });
                }
            }
            Kind::Failover { old, cut, .. } => {
                if let Some(sides) = cut {
                    // The old primary is on the far side.
                    self.servers.cut(fault, Sides { nodes: sides.nodes | 1 << primary, ..sides });
                }
                self.fail_over(fault, old);
            }
            Kind::Split(sides) => self.servers.cut(fault, sides),
            Kind::Slow(node, lag) => self.servers.nodes[node].lag = lag,
            Kind::Empty(node) => {
                let it = &mut self.servers.nodes[node];
                if it.follows.is_some() {
                    it.is_idle = true;
                    it.link += 1;
                    it.server.keys = Keys::default();
                }
            }
            Kind::Stray(who, node) => self.instances[who].view = node,
        }
    }

    pub(super) fn fault_ends(&mut self, fault: usize) {
        match self.plan.faults[fault].kind {
            Kind::Crash(who) => self.born(who),
            Kind::Stop(who) => {
                self.check_stop(who);
                self.born(who);
            }
            Kind::Weather(who, _) => self.instances[who].weather = Weather::default(),
            Kind::Deaf(who) => self.tell(who, Input::WakeBack),
            Kind::Restart | Kind::LoseData | Kind::Rewind(_) => {
                if let Some(node) = self.struck[fault].take() {
                    self.come_up(node);
                    self.rejoin();
                }
            }
            Kind::Refuse(_) => {
                if let Some(node) = self.struck[fault].take() {
                    self.servers.nodes[node].server.refuses = None;
                }
            }
            Kind::Failover { old, .. } => {
                self.servers.heal(fault);
                if let Some(node) = self.struck[fault].take()
                    && old != Old::Alive
                {
                    self.come_up(node);
                }
                self.rejoin();
            }
            Kind::Split(_) => {
                self.servers.heal(fault);
                self.rejoin();
            }
            Kind::Slow(node, _) => self.servers.nodes[node].lag = 0,
            Kind::Empty(node) => {
                self.servers.nodes[node].is_idle = false;
                self.replicate(node);
            }
            Kind::Stray(who, _) => self.learn(who),
            Kind::GoCrash | Kind::GoStop => self.go_comes(),
            _ => {}
        }
    }

    /// Gives an instance an input from outside.
    pub(super) fn tell(&mut self, who: usize, input: Input) {
        let life = self.instances[who].life;
        let lag = self.chance.lag(who, self.instances[who].turns);
        self.push(lag, Event::Turn { who, life, input });
    }

    pub(super) fn reset(&mut self, who: usize) {
        self.fails(who);
        self.tell(who, Input::WakeLost);
        let life = self.instances[who].life;
        self.push(4 * SOON, Event::Turn { who, life, input: Input::WakeBack });
    }

    /// The server has lost something of what it had.
    fn lose(&mut self, node: usize, what: impl FnOnce(&mut Keys)) {
        self.judge.term_lost = true;
        self.serve(node, Cause::Outside, |server, _| what(&mut server.keys));
    }
}
