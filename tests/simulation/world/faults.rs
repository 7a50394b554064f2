//! The faults of the plan, as they begin and end.

use std::time::Duration;

use super::super::chance::Chance;
use super::super::judge::Cause;
use super::super::plan::{Kind, Weather, millis};
use super::{Event, SOON, World, passing};
use crate::election::machine::Input;
use crate::election::store::Outcome;

impl<C: Chance> World<'_, C> {
    pub(super) fn fault_begins(&mut self, fault: usize) {
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

    pub(super) fn fault_ends(&mut self, fault: usize) {
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
    pub(super) fn tell(&mut self, who: usize, input: Input) {
        let life = self.instances[who].life;
        let lag = self.chance.lag(who, self.instances[who].turns);
        self.push(lag, Event::Turn { who, life, input });
    }

    pub(super) fn reset(&mut self, who: usize) {
        let op = self.instances[who].request.map(|request| request.op);
        if let Some(op) = op {
            self.answered(who, op, Err(passing(Outcome::Unknown)));
        }
        self.tell(who, Input::WakeLost);
        let life = self.instances[who].life;
        self.push(4 * SOON, Event::Turn { who, life, input: Input::WakeBack });
    }

    pub(super) fn go_down(&mut self) {
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
}
