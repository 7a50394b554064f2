//! A cluster: which node has which slot, as far as anybody has said, and sessions that learn it.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::dial::Dialer;
use super::session::RedisSession;
use super::slot::slot;
use super::url::Address;
use crate::election::key::Group;
use crate::election::store::{
    Answer, Bell, Budget, Class, Lookups, Node, Nodes, Operation, Outcome, Redirect, Session, StoreError,
};

/// How many nodes beside the seeds are remembered: more than most clusters have, so that a node that lies
/// fills no memory.
const MOST_NAMED: usize = 64;

/// What is known of a cluster, shared by all sessions of one store and its clones.
#[derive(Debug)]
pub(super) struct Routes {
    seeds: Vec<Node>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Of the slots of groups that somebody here asked for, so that there are no more than those.
    slots: HashMap<u16, Node>,
    /// Nodes that a redirect has named, the newest last. They are asked when no seed is left.
    named: VecDeque<Node>,
}

impl Routes {
    /// Nothing but the nodes that a user has named; there is at least one.
    pub(super) fn new(seeds: Vec<Node>) -> Self {
        Self { seeds, known: Mutex::default() }
    }

    /// The nodes that can be asked for any slot.
    pub(super) fn anybody(&self) -> Vec<Node> {
        self.seeds.iter().chain(&self.known().named).cloned().collect()
    }

    fn of(&self, slot: u16) -> Option<Node> {
        self.known().slots.get(&slot).cloned()
    }

    fn learn(&self, slot: u16, node: &Node) {
        log::debug!("slot {slot} is at the cluster node {node}");
        let known = &mut *self.known();
        known.slots.insert(slot, node.clone());
        if !self.seeds.contains(node) && !known.named.contains(node) {
            known.named.push_back(node.clone());
            if known.named.len() > MOST_NAMED {
                known.named.pop_front();
            }
        }
    }

    /// Forgets which slots a node has: it may not have them any more.
    fn forget(&self, node: &Node) {
        self.known().slots.retain(|_, other| other != node);
    }

    /// Forgets a node that is none, or refuses us: something else may have its address now. A seed goes on to be
    /// asked, and another node once it is named again.
    pub(super) fn dismiss(&self, node: &Node) {
        self.forget(node);
        self.known().named.retain(|other| other != node);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A session with one node of a cluster, or with any, which learns from what it is told.
#[derive(Debug)]
pub(super) struct ClusterSession {
    session: RedisSession,
    nodes: Arc<ClusterNodes>,
    /// The one node; without one each new connection is to another.
    node: Option<Node>,
}

/// The nodes of a cluster as one elector reaches them.
#[derive(Debug)]
struct ClusterNodes {
    routes: Arc<Routes>,
    dialer: Dialer,
}

impl ClusterSession {
    /// A session with any node. It fails where the system refuses a descriptor.
    pub(super) fn new(dialer: Dialer, routes: Arc<Routes>) -> io::Result<Self> {
        let nodes = Arc::new(ClusterNodes { routes, dialer: dialer.twin() });
        Ok(Self { session: RedisSession::new(dialer)?, nodes, node: None })
    }

    /// Takes note that the node which happened to be asked has the group, so that it is asked over a session of
    /// its own from now on.
    fn note_served(&self, group: &Group) {
        if let (None, Address::Tcp { host, port }) = (&self.node, self.session.address()) {
            let node = Node { host: host.as_str().into(), port: *port, asking: false };
            self.nodes.routes.learn(slot_of(group), &node);
        }
    }

    /// Takes note of what an error says of the way, and leaves in it where the operation may go instead.
    fn heed(&mut self, group: &Group, error: StoreError) -> StoreError {
        let routes = &self.nodes.routes;
        match error.redirect() {
            Some(Redirect::Moved { slot: named, node }) if *named == slot_of(group) => {
                routes.learn(*named, node);
                return error;
            }
            Some(Redirect::Ask { slot: named, .. }) if *named == slot_of(group) => return error,
            Some(Redirect::Later) => return error,
            Some(Redirect::Elsewhere) | None => {}
            // Of a slot that was not asked for: whatever it means, it is not followed.
            Some(_) => return error.with_redirect(None),
        }
        let is_unreached = error.outcome() == Outcome::NotSent;
        if error.redirect().is_none() && error.outcome() == Outcome::Refused {
            return error;
        }
        // It was not reached, gave no answer, or does not serve anybody: another one may know more.
        self.session.forget_wire();
        match &self.node {
            Some(node) if error.class() == Class::Configuration => routes.dismiss(node),
            Some(node) => routes.forget(node),
            None => {}
        }
        match is_unreached && !error.is_of_login() {
            true => error.with_redirect(Some(Redirect::Elsewhere)),
            false => error,
        }
    }
}

impl Session for ClusterSession {
    fn execute(&mut self, batch: &[Operation], budget: &Budget) -> Vec<Result<Answer, StoreError>> {
        let results = self.session.execute(batch, budget);
        let heeded = results.into_iter().zip(batch).map(|(result, Operation { group, .. })| match result {
            Ok(answer) => {
                self.note_served(group);
                Ok(answer)
            }
            Err(error) => Err(self.heed(group, error)),
        });
        heeded.collect()
    }

    fn bell(&self) -> Bell {
        self.session.bell()
    }

    fn lookups(&self) -> Lookups {
        self.session.lookups()
    }

    fn nodes(&self) -> Option<Arc<dyn Nodes>> {
        Some(Arc::clone(&self.nodes) as Arc<dyn Nodes>)
    }
}

impl Nodes for ClusterNodes {
    fn of(&self, group: &Group) -> Option<Node> {
        self.routes.of(slot_of(group))
    }

    fn open(&self, node: &Node) -> io::Result<Box<dyn Session>> {
        let mut session = ClusterSession::new(self.dialer.to_node(node), Arc::clone(&self.routes))?;
        session.node = Some(node.clone());
        Ok(Box::new(session))
    }
}

fn slot_of(group: &Group) -> u16 {
    slot(group.lease().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: &str) -> Node {
        Node { host: host.into(), port: 7000, asking: false }
    }

    #[test]
    fn a_node_that_names_a_million_others_fills_no_memory() {
        let routes = Routes::new(vec![node("seed")]);
        for number in 0..1_000_000_u32 {
            routes.learn((number % 7) as u16, &node(&number.to_string()));
        }
        assert_eq!(routes.anybody().len(), 1 + MOST_NAMED);
        assert_eq!(routes.anybody()[0], node("seed"));
        assert_eq!(routes.known().slots.len(), 7);
    }

    #[test]
    fn all_slots_of_a_node_are_forgotten_together_and_it_may_still_be_asked() {
        let routes = Routes::new(vec![node("seed")]);
        for (slot, host) in [(1, "a"), (2, "b"), (3, "a")] {
            routes.learn(slot, &node(host));
        }
        routes.forget(&node("a"));
        assert_eq!([1, 2, 3].map(|slot| routes.of(slot)), [None, Some(node("b")), None]);
        assert_eq!(routes.anybody(), [node("seed"), node("a"), node("b")]);
    }
}
