//! An instance of the Go version: it polls, looks at the value alone, and has no deadline of its own.

use std::time::Duration;

use super::super::chance::Chance;
use super::super::plan::{Nanos, nanos};
use super::super::server::{Ask, GoAsk};
use super::{Event, GO, Packet, SOON, World};
use crate::election::key::InstanceId;
use crate::election::store::strict::Said;
use crate::election::store::{Answer, StoreError};

/// The Go version's instance.
#[derive(Debug)]
pub(super) struct Go {
    life: u64,
    pub(super) alive: bool,
    id: InstanceId,
    pub(super) leads: bool,
    ttl: Duration,
    wait: Nanos,
    op: u64,
}

impl Go {
    pub(super) fn new(ttl: Duration, wait: Duration) -> Self {
        Self { life: 0, alive: true, id: "go-0".into(), leads: false, ttl, wait: nanos(wait), op: 0 }
    }
}

impl<C: Chance> World<'_, C> {
    pub(super) fn go_turn(&mut self, life: u64) {
        let Some(go) = self.go.as_mut().filter(|go| go.alive && go.life == life) else { return };
        go.op += 1;
        let ask = if go.leads { GoAsk::Renew } else { GoAsk::Acquire };
        let pause = if go.leads { nanos(go.ttl) / 2 } else { go.wait };
        let (id, ttl, op) = (go.id.clone(), go.ttl, go.op);
        if self.servers.primary().outages > 0 {
            go.leads = false;
            let wait = go.wait;
            return self.push(wait, Event::GoTurn { life });
        }
        let packet =
            Packet { who: GO, life, op, id, ttl, ask: Ask::Go(ask), node: 0, wait: None, reply: Some(SOON) };
        let boot = self.servers.primary().boot;
        self.push(SOON, Event::Arrive { packet, boot });
        self.push(pause, Event::GoTurn { life });
    }

    pub(super) fn go_answered(&mut self, life: u64, result: &Result<Said, StoreError>) {
        let Some(go) = self.go.as_mut().filter(|go| go.alive && go.life == life) else { return };
        let leads = matches!(result, Ok(Said { answer: Answer::Released, .. }));
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

    pub(super) fn go_dies(&mut self) {
        if let Some(go) = &mut self.go {
            (go.alive, go.leads) = (false, false);
            go.life += 1;
        }
    }

    pub(super) fn go_stops(&mut self) {
        let Some(go) = self.go.as_ref().filter(|go| go.alive) else { return };
        let (id, ttl, life, op) = (go.id.clone(), go.ttl, go.life, go.op);
        let packet = Packet {
            who: GO,
            life,
            op,
            id,
            ttl,
            ask: Ask::Go(GoAsk::Release),
            node: 0,
            wait: None,
            reply: None,
        };
        let boot = self.servers.primary().boot;
        self.push(SOON, Event::Arrive { packet, boot });
        self.go_dies();
    }

    pub(super) fn go_comes(&mut self) {
        let Some(go) = self.go.as_mut().filter(|go| !go.alive) else { return };
        go.alive = true;
        go.life += 1;
        go.id = format!("go-{}", go.life).as_str().into();
        let life = go.life;
        self.push(SOON, Event::GoTurn { life });
    }
}
