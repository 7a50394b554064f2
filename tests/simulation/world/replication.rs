//! What the servers tell each other, and who of them is the primary.

use super::super::chance::Chance;
use super::super::plan::{Kind, MS, Nanos, Old};
use super::{Event, Packet, World};
use crate::election::machine::Input;
use crate::election::store::strict::Said;
use crate::election::store::{Keys, StoreError};

/// A request that was executed, and whose reply waits for replicas.
#[derive(Debug)]
pub(super) struct Waiting {
    number: u64,
    /// How many there have to be.
    replicas: u32,
    offset: u64,
    /// Which connection it came over, and in which reign of the primary.
    boot: u64,
    link: u64,
    packet: Packet,
    result: Result<Said, StoreError>,
}

impl<C: Chance> World<'_, C> {
    /// Sends a replica all that its primary has. It arrives after what was sent before.
    pub(super) fn replicate(&mut self, to: usize) {
        let it = &self.servers.nodes[to];
        let Some(from) = it.follows else { return };
        let primary = &self.servers.nodes[from];
        if it.is_idle || primary.server.outages > 0 || self.servers.is_cut(from, to) {
            return;
        }
        let (offset, reign, keys) = (primary.offset, primary.link, primary.server.keys.clone());
        let at = self.now + self.lag_of(to, offset << 1);
        // Nothing is on its way for long after the last fault.
        let latest = self.plan.quiet_at.max(self.now + MS);
        let it = &mut self.servers.nodes[to];
        it.busy_until = it.busy_until.max(at).min(latest);
        let (at, link) = (it.busy_until, it.link);
        self.push_at(at, Event::Replicate { to, link, from, reign, offset, keys });
    }

    /// How long something takes between a replica and its primary.
    fn lag_of(&mut self, replica: usize, number: u64) -> Nanos {
        let it = &self.servers.nodes[replica];
        let takes = self.chance.replication(replica, it.link << 32 | number) + it.lag;
        // After the last fault nothing is slow.
        if self.now < self.plan.quiet_at { takes } else { takes.min(MS) }
    }

    pub(super) fn replicated(
        &mut self,
        to: usize,
        link: u64,
        (from, reign): (usize, u64),
        offset: u64,
        keys: Keys,
    ) {
        let it = &mut self.servers.nodes[to];
        if it.link != link || it.server.outages > 0 {
            return;
        }
        it.server.keys = keys;
        let takes = self.lag_of(to, offset << 1 | 1);
        if !self.servers.is_cut(from, to) {
            self.push(takes, Event::Acknowledge { to: from, reign, by: to, offset });
        }
    }

    pub(super) fn acknowledged(&mut self, to: usize, reign: u64, by: usize, offset: u64) {
        let primary = &mut self.servers.nodes[to];
        if primary.link != reign {
            return;
        }
        let thaw = primary.server.frozen_until;
        if self.now < thaw {
            return self.push_at(thaw, Event::Acknowledge { to, reign, by, offset });
        }
        primary.acknowledge(by, offset);
        let nodes = &self.servers.nodes;
        let is_done =
            |it: &mut Waiting| it.packet.node == to && nodes[to].count(it.offset, to) >= it.replicas;
        let done: Vec<_> = self.waiting.extract_if(.., is_done).collect();
        done.into_iter().for_each(|it| self.waited(it));
    }

    /// A request was executed; its reply may have to wait.
    pub(super) fn await_replicas(&mut self, packet: Packet, result: Result<Said, StoreError>) {
        let node = &self.servers.nodes[packet.node];
        let (offset, boot, link) = (node.offset, node.server.boot, node.link);
        let number = self.pushed;
        let Some(wait) = packet.wait.filter(|_| result.is_ok() && packet.reply.is_some()) else {
            return self.send_reply(packet, result, 0);
        };
        let waiting = Waiting { number, replicas: wait.replicas, offset, boot, link, packet, result };
        if node.count(offset, waiting.packet.node) >= wait.replicas {
            return self.waited(waiting);
        }
        self.waiting.push(waiting);
        self.push(wait.limit.as_nanos() as u64, Event::WaitEnds { number });
    }

    pub(super) fn wait_ends(&mut self, number: u64) {
        let Some(at) = self.waiting.iter().position(|it| it.number == number) else { return };
        let thaw = self.servers.nodes[self.waiting[at].packet.node].server.frozen_until;
        if self.now < thaw {
            return self.push_at(thaw, Event::WaitEnds { number });
        }
        let waiting = self.waiting.swap_remove(at);
        self.waited(waiting);
    }

    fn waited(&mut self, Waiting { boot, link, offset, packet, result, .. }: Waiting) {
        let node = &self.servers.nodes[packet.node];
        if node.server.boot == boot {
            // A primary that has become a replica ends the wait.
            let count = if node.link == link { node.count(offset, packet.node) } else { 0 };
            self.note(|| format!("server {}: {count} replicas have what {} asked", packet.node, packet.who));
            self.send_reply(packet, result, count);
        }
    }

    /// Ends the connections of a server.
    pub(super) fn disconnect(&mut self, node: usize) {
        self.servers.nodes[node].server.boot += 1;
        for who in 0..self.instances.len() {
            let it = &self.instances[who];
            if it.request.is_some() && it.asks == node {
                self.fails(who);
            }
            if self.instances[who].view == node {
                self.tell(who, Input::WakeLost);
            }
        }
    }

    pub(super) fn go_down(&mut self, node: usize) {
        self.servers.nodes[node].server.outages += 1;
        self.disconnect(node);
    }

    /// A server that was gone is there again, with another data set, and with what is left of the old one.
    pub(super) fn come_up(&mut self, node: usize) {
        let it = &mut self.servers.nodes[node];
        it.server.outages -= 1;
        if it.server.outages > 0 {
            return;
        }
        it.link += 1;
        if it.follows.is_none() {
            it.forget_acknowledgements();
            self.servers.renew_lineage(node);
            self.servers.replicas_of(node).into_iter().for_each(|replica| self.replicate(replica));
        } else {
            self.replicate(node);
        }
        for who in 0..self.instances.len() {
            if self.instances[who].view == node {
                self.tell(who, Input::WakeBack);
            }
        }
    }

    /// The primary of a fault is to be replaced: when, and who is told of it when.
    pub(super) fn fail_over(&mut self, fault: usize, old: Old) {
        let primary = self.servers.primary;
        self.struck[fault] = Some(primary);
        self.servers.keep_untold(fault, primary);
        if old != Old::Alive {
            self.go_down(primary);
        }
        let time = self.plan.faults[fault].lasts;
        let after = self.chance.within(fault, PROMOTION, time / 2);
        self.push(after, Event::Promote { fault });
        if let Old::Back(_) = old {
            let after = self.chance.within(fault, RETURN, time);
            self.push(after, Event::ComeBack { fault });
        }
    }

    pub(super) fn promote(&mut self, fault: usize) {
        let Kind::Failover { to, .. } = self.plan.faults[fault].kind else { return };
        let candidates = self.servers.candidates();
        // Another fault may have replaced it already.
        let is_due = self.struck[fault] == Some(self.servers.primary);
        let Some(&chosen) = candidates.get(to % candidates.len().max(1)).filter(|_| is_due) else { return };
        self.judge.figures.failovers += 1;
        self.note(|| format!("server {chosen} becomes the primary"));
        self.servers.promote(chosen);
        self.serve(chosen, super::Cause::Expired, |server, now| server.expire(now));
        let plan = &self.plan.faults[fault];
        let rest = (plan.at + plan.lasts).saturating_sub(self.now);
        for node in 0..self.servers.nodes.len() {
            let after = self.chance.within(fault, node, rest);
            self.push(after, Event::Attach { node });
        }
        for who in 0..self.instances.len() {
            let after = self.chance.within(fault, INSTANCES + who, rest);
            self.push(after, Event::Learn { who });
        }
    }

    /// A primary that was killed and replaced comes back before it is told.
    pub(super) fn come_back(&mut self, fault: usize) {
        let (Some(node), Kind::Failover { old: Old::Back(steps), .. }) =
            (self.struck[fault].take(), &self.plan.faults[fault].kind)
        else {
            return;
        };
        let past = self.servers.nodes[node].past(*steps);
        self.servers.nodes[node].server.keys = past;
        self.note(|| format!("server {node} comes back"));
        self.come_up(node);
    }

    pub(super) fn attach(&mut self, node: usize) {
        if self.servers.attach(node) {
            let primary = self.servers.primary;
            self.note(|| format!("server {node} follows {primary}"));
            // Sentinels end the connections of a server that becomes a replica; the server itself does not.
            if !self.chance.survives(SERVERS + node, self.servers.nodes[node].link) {
                self.disconnect(node);
            }
            self.replicate(node);
        }
    }

    /// An instance finds the primary, if it can.
    pub(super) fn learn(&mut self, who: usize) {
        let primary = self.servers.primary;
        if self.instances[who].view != primary && self.cut_until(who, primary) <= self.now {
            self.instances[who].view = primary;
            self.note(|| format!("{who} turns to server {primary}"));
            self.tell(who, Input::WakeLost);
            self.tell(who, Input::WakeBack);
        }
    }

    /// A fault is over: who was kept from it by that finds the primary, unless it is to be told by another fault.
    pub(super) fn rejoin(&mut self) {
        if self.servers.is_failing_over() {
            return (0..self.servers.nodes.len()).for_each(|node| self.replicate(node));
        }
        for node in 0..self.servers.nodes.len() {
            self.attach(node);
            self.replicate(node);
        }
        (0..self.instances.len()).for_each(|who| self.learn(who));
    }
}

/// Whom a moment within a failover is drawn for, beside the servers.
const PROMOTION: usize = 100;
const RETURN: usize = 101;
const INSTANCES: usize = 110;
/// Where the numbers of servers begin among those of instances.
const SERVERS: usize = 50;
