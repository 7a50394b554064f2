//! What the server does to the lease, and what the promises say of it.

use super::super::chance::Chance;
use super::super::judge::Cause;
use super::super::plan::{Climate, MS, Nanos, nanos};
use super::super::server::{Held, Server, is_parked};
use super::{Event, World};
use crate::election::event::Reason;

impl<C: Chance> World<'_, C> {
    /// Does something to a server, and judges what it did to the lease; its replicas are to do the same.
    pub(super) fn serve(&mut self, node: usize, cause: Cause, act: impl FnOnce(&mut Server, Nanos)) {
        let server = &mut self.servers.nodes[node].server;
        let (keys, before, end) = (server.keys.clone(), server.held(), server.lease_ends());
        act(server, self.now);
        let (after, ends, is_changed) = (server.held(), server.lease_ends(), server.keys != keys);
        if before != after {
            self.lease_ended(before, cause, &after);
            // A term that data from the past bring back was won long ago.
            if cause != Cause::Outside || self.plan.climate != Climate::Failover {
                self.lease_won(&after);
            }
        }
        match ends {
            Some(at) if Some(at) != end => self.push_at(at.max(self.now), Event::LeaseEnds { node }),
            _ => {}
        }
        if is_changed && self.servers.nodes[node].follows.is_none() {
            self.servers.changed(node, keys);
            for replica in self.servers.replicas_of(node) {
                self.replicate(replica);
            }
        }
    }

    pub(super) fn lease_ended(&mut self, before: Held, cause: Cause, after: &Held) {
        let now = self.now;
        let Some((holder, token)) = before else { return };
        self.note(|| format!("server: the lease of {holder} ends: {cause:?}"));
        if after.is_none() {
            self.judge.vacant_since = Some(now);
        }
        // Where leases are lost, and there is more than one, who leads is judged, and not by which lease.
        let Some(token) = token.filter(|_| self.plan.climate != Climate::Failover) else { return };
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

    pub(super) fn lease_won(&mut self, after: &Held) {
        let now = self.now;
        let Some((holder, token)) = after else { return };
        let Some(token) = *token else {
            self.judge.figures.holds += u64::from(is_parked(holder));
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
                it.machine.is_some()
                    && it.born_at.max(it.free_at) + 20 * MS < since
                    && it.work.is_none()
                    && !rests
            });
            let worst = able.map(|it| (nanos(it.settings.timing.jitter), nanos(it.ttl()))).min();
            if let Some((jitter, ttl)) = worst {
                self.judge.taken_over(now, jitter, ttl);
            }
        }
        self.judge.vacant_since = None;
    }
}
