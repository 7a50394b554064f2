//! The network, and the I/O threads at its ends.

use super::super::chance::{Chance, Fate};
use super::super::judge::Cause;
use super::super::plan::{Climate, MS, Nanos, Weather, nanos};
use super::super::server::{Ask, GoAsk};
use super::{Event, Packet, SOON, World, passing};
use crate::election::machine::Input;
use crate::election::store::{Action, Answer, Outcome, StoreError};

impl<C: Chance> World<'_, C> {
    pub(super) fn depart(&mut self, who: usize, life: u64, op: u64) {
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

    pub(super) fn arrive(&mut self, packet: Packet, boot: u64) {
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

    pub(super) fn wake(&mut self, token: u64) {
        for who in 0..self.instances.len() {
            let it = &self.instances[who];
            if self.now >= it.deaf_until && self.now >= it.hole_in && it.machine.is_some() {
                let (life, turns) = (it.life, it.turns);
                let takes = 2 * SOON + self.chance.lag(who, turns);
                self.push(takes, Event::Turn { who, life, input: Input::Wake { token } });
            }
        }
    }

    pub(super) fn reply(
        &mut self,
        who: usize,
        life: u64,
        op: u64,
        result: Result<Answer, StoreError>,
        boot: u64,
    ) {
        let it = &self.instances[who];
        if !self.lives(who, life) || boot != self.server.boot {
            return;
        }
        if self.now < it.awake_at {
            return self.push_at(it.awake_at, Event::Reply { who, life, op, result, boot });
        }
        self.answered(who, op, result);
    }

    pub(super) fn timeout(&mut self, who: usize, life: u64, op: u64) {
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
    pub(super) fn answered(&mut self, who: usize, op: u64, result: Result<Answer, StoreError>) {
        let it = &mut self.instances[who];
        let life = it.life;
        if it.request.take_if(|request| request.op == op).is_some() {
            let lag = self.chance.lag(who, op);
            self.push(lag, Event::Turn { who, life, input: Input::Answer { op, result } });
        }
    }
}
