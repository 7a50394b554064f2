//! The network, and the I/O threads at its ends.

use super::super::chance::{Chance, Fate};
use super::super::instance::Request;
use super::super::judge::Cause;
use super::super::plan::{Climate, MS, Nanos, Weather, nanos};
use super::super::server::{Ask, GoAsk};
use super::{Event, GO, Packet, SOON, World, passing};
use crate::election::machine::Input;
use crate::election::store::strict::{Call, Said, Wait, followed};
use crate::election::store::{Answer, Outcome, StoreError};

/// Marks the number of what follows from an answer.
const FOLLOWS: u64 = 1 << 40;

impl<C: Chance> World<'_, C> {
    pub(super) fn depart(&mut self, who: usize, life: u64, op: u64) {
        let now = self.now;
        if !self.lives(who, life) {
            return;
        }
        let it = &mut self.instances[who];
        let Some(request) = it.request.filter(|request| request.op == op) else { return };
        let awake_at = it.awake_at;
        if now < awake_at {
            return self.push_at(awake_at, Event::Depart { who, life, op });
        }
        if it.local(now) >= request.until {
            return;
        }
        it.asks = it.view;
        if self.servers.nodes[it.view].server.outages > 0 {
            return self.answered(who, op, Err(passing(Outcome::NotSent)));
        }
        let operation = it.operation(request.action);
        let call = it.ledger.call(&operation, it.local(now));
        self.transmit(who, op, call, Wait::of(&[operation]));
    }

    /// Sends a call to the server that the instance has turned to.
    fn transmit(&mut self, who: usize, op: u64, call: Call, wait: Option<Wait>) {
        let now = self.now;
        let it = &self.instances[who];
        let (ttl, id, life, node) = (it.ttl(), it.id.clone(), it.life, it.asks);
        let (weather, hole_out, hole_in) = (it.weather, it.hole_out, it.hole_in);
        // What follows from an answer has a fate of its own.
        let number = if it.concluded.is_some() { op | FOLLOWS } else { op };
        let weather = if self.plan.climate == Climate::Calm { Weather::default() } else { weather };
        let Fate { mut request, mut reply, copy } = self.chance.fate(who, number, weather, nanos(ttl));
        self.through(who, number, &mut request, hole_out.max(self.cut_until(who, node)));
        self.through(who, number, &mut reply, hole_in);
        let packet = Packet { who, life, op, id, ttl, ask: Ask::Ours(call), node, wait, reply };
        let boot = self.servers.nodes[node].server.boot;
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

    /// A hole swallows, or its packets are sent again after it.
    fn through(&mut self, who: usize, number: u64, way: &mut Option<Nanos>, hole: Nanos) {
        if self.now < hole {
            let (kept, waits) = (self.chance.survives(who, number), hole - self.now);
            *way = way.filter(|_| kept).map(|takes| waits + takes);
        }
    }

    /// When an instance reaches this server again.
    pub(super) fn cut_until(&self, who: usize, node: usize) -> Nanos {
        let faults = self.servers.between(who, node).map(|fault| &self.plan.faults[fault]);
        faults.map(|fault| fault.at + fault.lasts).max().unwrap_or(0)
    }

    pub(super) fn arrive(&mut self, packet: Packet, boot: u64) {
        let (now, node) = (self.now, packet.node);
        let server = &self.servers.nodes[node].server;
        if boot != server.boot {
            return;
        }
        if now < server.frozen_until {
            let thaw = server.frozen_until;
            return self.push_at(thaw, Event::Arrive { packet, boot });
        }
        self.judge.figures.commands += 1;
        let cause = match packet.ask {
            Ask::Ours(Call::Release { .. }) | Ask::Go(GoAsk::Release) => Cause::Released,
            _ => Cause::Renewed,
        };
        let mut result = Ok(Answer::Vacant.into());
        // What has expired since is no doing of this request.
        self.serve(node, Cause::Expired, |server, now| server.expire(now));
        self.serve(node, cause, |server, now| {
            result = server.execute(now, &packet.id, packet.ttl, &packet.ask);
        });
        self.note(|| format!("server {node}: {} {:?} -> {result:?}", packet.who, packet.ask));
        if let (Ask::Ours(Call::Release { token, wake: true }), Ok(Said { answer: Answer::Released, .. })) =
            (&packet.ask, &result)
        {
            self.wake(node, *token);
        }
        self.await_replicas(packet, result);
    }

    /// Sends the reply, once so many replicas have acknowledged the request.
    pub(super) fn send_reply(&mut self, packet: Packet, result: Result<Said, StoreError>, acknowledged: u32) {
        let (who, node) = (packet.who, packet.node);
        let mut reply = packet.reply;
        if who != GO {
            self.through(who, packet.op, &mut reply, self.cut_until(who, node));
        }
        if let Some(takes) = reply {
            let boot = self.servers.nodes[node].server.boot;
            self.push(takes, Event::Reply { packet, result, acknowledged, boot });
        }
    }

    fn wake(&mut self, node: usize, token: u64) {
        for who in 0..self.instances.len() {
            let it = &self.instances[who];
            let hears = it.view == node && self.now >= self.cut_until(who, node);
            if hears && self.now >= it.deaf_until && self.now >= it.hole_in && it.machine.is_some() {
                let (life, turns) = (it.life, it.turns);
                let takes = 2 * SOON + self.chance.lag(who, turns);
                self.push(takes, Event::Turn { who, life, input: Input::Wake { token } });
            }
        }
    }

    pub(super) fn reply(
        &mut self,
        packet: Packet,
        result: Result<Said, StoreError>,
        acknowledged: u32,
        boot: u64,
    ) {
        let Packet { who, life, op, node, .. } = packet;
        if !self.lives(who, life) || boot != self.servers.nodes[node].server.boot {
            return;
        }
        let it = &mut self.instances[who];
        if self.now < it.awake_at {
            let at = it.awake_at;
            return self.push_at(at, Event::Reply { packet, result, acknowledged, boot });
        }
        let Some(request) = it.request.filter(|request| request.op == op) else { return };
        if let Some(concluded) = it.concluded.take() {
            return self.answered(who, op, followed(concluded.result, result));
        }
        let operation = it.operation(request.action);
        let mut concluded = it.ledger.conclude(&operation, result, &Ok(acknowledged), it.local(self.now));
        match concluded.then.take() {
            None => self.answered(who, op, concluded.result),
            Some(call) => {
                it.concluded = Some(concluded);
                self.transmit(who, op, call, None);
            }
        }
    }

    pub(super) fn timeout(&mut self, who: usize, life: u64, op: u64) {
        let it = &self.instances[who];
        if !self.lives(who, life) {
            return;
        }
        if self.now < it.awake_at {
            return self.push_at(it.awake_at, Event::Timeout { who, life, op });
        }
        if it.request.is_some_and(|request| request.op == op && it.local(self.now) >= request.until) {
            self.fails(who);
        }
    }

    /// There will be no answer to the request under way.
    pub(super) fn fails(&mut self, who: usize) {
        let it = &mut self.instances[who];
        let Some(Request { op, action, .. }) = it.request else { return };
        let unknown = || Err(passing(Outcome::Unknown));
        let result = match it.concluded.take() {
            Some(concluded) => followed(concluded.result, unknown()),
            None => it.ledger.conclude(&it.operation(action), unknown(), &Ok(0), it.local(self.now)).result,
        };
        self.answered(who, op, result);
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
}
