//! The servers of a world: the primary, its replicas, and what one knows of the other.

use super::plan::{Nanos, Sides};
use super::server::Server;
use crate::election::store::Keys;
use crate::election::store::strict::Lineage;

/// One data set on so many servers.
#[derive(Debug)]
pub(super) struct Servers {
    pub(super) nodes: Vec<Node>,
    /// The primary, as far as most of the world is concerned. An older one may not know.
    pub(super) primary: usize,
    /// How many data sets there have been.
    lineages: u32,
    /// How often a primary was replaced.
    epoch: u32,
    /// Who is cut off from whom, by which fault.
    cuts: Vec<(usize, Sides)>,
    /// Old primaries that are not told before the end of a fault.
    untold: Vec<(usize, usize)>,
    /// How many states of a primary are kept, for one that comes back with old data.
    memory: usize,
}

/// A server, and its part in replication.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) server: Server,
    /// Whom it replicates.
    pub(super) follows: Option<usize>,
    /// Which replacement made it, or the one that it follows, the primary. It never goes back to an earlier one.
    epoch: u32,
    /// Counts whom it has been attached to, and its own reigns; what comes over an earlier attachment is void.
    pub(super) link: u64,
    /// When the last of what is on its way to it arrives: it arrives in order.
    pub(super) busy_until: Nanos,
    /// What replication takes longer, while it is slow.
    pub(super) lag: Nanos,
    /// It was emptied, and has not begun to copy.
    pub(super) is_idle: bool,
    /// How many changes it has made as a primary.
    pub(super) offset: u64,
    /// How many of those each other node has acknowledged.
    acknowledged: Vec<u64>,
    /// Earlier states.
    history: Vec<Keys>,
}

impl Servers {
    /// A primary with so many replicas.
    pub(super) fn new(replicas: usize, memory: usize) -> Self {
        let node = |number| Node {
            server: Server::new(),
            follows: (number > 0).then_some(0),
            epoch: 0,
            link: 0,
            busy_until: 0,
            lag: 0,
            is_idle: false,
            offset: 0,
            acknowledged: vec![0; replicas + 1],
            history: Vec::new(),
        };
        let nodes = (0..=replicas).map(node).collect();
        let mut servers =
            Self { nodes, primary: 0, lineages: 0, epoch: 0, cuts: Vec::new(), untold: Vec::new(), memory };
        for number in 0..=replicas {
            servers.renew_lineage(number);
            servers.nodes[number].server.is_replica = number > 0;
        }
        servers
    }

    pub(super) fn primary(&mut self) -> &mut Server {
        &mut self.nodes[self.primary].server
    }

    /// The server has another data set from now on, whatever is in it.
    pub(super) fn renew_lineage(&mut self, node: usize) {
        self.lineages += 1;
        self.nodes[node].server.lineage = Lineage::from(&*format!("set-{}", self.lineages));
    }

    /// Makes a replica the primary.
    pub(super) fn promote(&mut self, node: usize) {
        self.epoch += 1;
        self.primary = node;
        self.renew_lineage(node);
        let epoch = self.epoch;
        let it = &mut self.nodes[node];
        (it.follows, it.epoch, it.offset, it.is_idle) = (None, epoch, 0, false);
        it.server.is_replica = false;
        it.acknowledged.fill(0);
        it.link += 1;
    }

    /// Has a node follow the primary; false where it does so already, or is not to be told, or is told too late.
    pub(super) fn attach(&mut self, node: usize) -> bool {
        let (primary, epoch) = (self.primary, self.epoch);
        let may = node != primary && self.nodes[node].epoch < epoch && !self.is_cut(node, primary);
        if !may || self.untold.iter().any(|(_, it)| *it == node) {
            return false;
        }
        let it = &mut self.nodes[node];
        (it.follows, it.epoch, it.is_idle) = (Some(primary), epoch, false);
        it.server.is_replica = true;
        it.link += 1;
        self.nodes[primary].acknowledged[node] = 0;
        true
    }

    /// Keeps the node from being told, until the end of the fault.
    pub(super) fn keep_untold(&mut self, fault: usize, node: usize) {
        self.untold.push((fault, node));
    }

    /// Whether a primary is being replaced.
    pub(super) fn is_failing_over(&self) -> bool {
        !self.untold.is_empty()
    }

    pub(super) fn cut(&mut self, fault: usize, sides: Sides) {
        self.cuts.push((fault, sides));
    }

    /// The fault is over.
    pub(super) fn heal(&mut self, fault: usize) {
        self.cuts.retain(|(by, _)| *by != fault);
        self.untold.retain(|(by, _)| *by != fault);
    }

    /// Whether two nodes do not reach each other.
    pub(super) fn is_cut(&self, one: usize, two: usize) -> bool {
        self.cuts.iter().any(|(_, sides)| sides.has_node(one) != sides.has_node(two))
    }

    /// The faults that keep an instance from a node.
    pub(super) fn between(&self, who: usize, node: usize) -> impl Iterator<Item = usize> {
        let cut = self.cuts.iter().filter(move |(_, sides)| sides.has_instance(who) != sides.has_node(node));
        cut.map(|(fault, _)| *fault)
    }

    /// Those that may take the primary's place.
    pub(super) fn candidates(&self) -> Vec<usize> {
        let is_able =
            |node: &usize| self.nodes[*node].follows.is_some() && self.nodes[*node].server.outages == 0;
        (0..self.nodes.len()).filter(is_able).collect()
    }

    pub(super) fn replicas_of(&self, primary: usize) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].follows == Some(primary)).collect()
    }

    /// A primary has changed what it has, which was this before.
    pub(super) fn changed(&mut self, node: usize, before: Keys) {
        let it = &mut self.nodes[node];
        it.offset += 1;
        it.history.insert(0, before);
        it.history.truncate(self.memory);
    }

    /// Whether there is more than one primary, of which one may be gone for the moment.
    pub(super) fn is_forked(&self) -> bool {
        self.nodes.iter().filter(|node| node.follows.is_none()).count() > 1
    }
}

impl Node {
    /// What it had so many changes ago.
    pub(super) fn past(&self, steps: usize) -> Keys {
        let past = self.history.get(steps.min(self.history.len().saturating_sub(1)));
        past.unwrap_or(&self.server.keys).clone()
    }

    pub(super) fn acknowledge(&mut self, by: usize, offset: u64) {
        let known = &mut self.acknowledged[by];
        *known = (*known).max(offset);
    }

    /// How many replicas have acknowledged this change, and all before it.
    pub(super) fn count(&self, offset: u64, own: usize) -> u32 {
        let has = |(node, known): &(usize, &u64)| *node != own && **known >= offset;
        self.acknowledged.iter().enumerate().filter(has).count() as u32
    }

    /// It restarts: it knows nothing of its replicas, and they begin to copy anew.
    pub(super) fn forget_acknowledgements(&mut self) {
        self.acknowledged.fill(0);
        self.offset += 1;
    }
}
