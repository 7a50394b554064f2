//! A Redis Cluster that belongs to one test: three masters with two replicas each.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use super::replicas::{self, is_followed, ok, replication};
use super::{Reply, Server, eventually};

const MASTERS: usize = 3;
const NODES: usize = 3 * MASTERS;
const SLOTS: usize = 16384;

/// How long a failover, or coming back after one, may take on the slowest machine.
const CAP: Duration = Duration::from_secs(60);

/// The nodes. Those from 0 to 2 are the masters at the start.
pub(crate) struct Cluster {
    nodes: Vec<Server>,
    ids: Vec<String>,
    /// The nodes that cannot be asked: killed or frozen.
    away: BTreeSet<usize>,
}

/// A line of `CLUSTER NODES`.
#[derive(Debug)]
struct Known {
    flags: String,
    epoch: u64,
    slots: Vec<(usize, usize)>,
}

impl Cluster {
    /// Starts the nodes and waits until they all agree. A node that does not answer for a second is failing.
    pub(crate) fn start() -> Self {
        let args: Vec<_> = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"]
            .into_iter()
            // However long ago a replica heard of its master, and never for another master.
            .chain(["--cluster-replica-validity-factor", "0", "--cluster-migration-barrier", "3"])
            .chain(replicas::ARGS)
            .collect();
        let nodes: Vec<_> = (0..NODES).map(|_| Server::with(&args)).collect();
        let ids = nodes.iter().map(|it| it.command(&["CLUSTER", "MYID"]).text().to_owned()).collect();
        let it = Self { nodes, ids, away: BTreeSet::new() };
        for (index, node) in it.nodes.iter().enumerate() {
            ok(node, &["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
            if index < MASTERS {
                add_slots(node, index, MASTERS);
            }
            // Gossip would tell them of each other as well, and takes seconds.
            it.nodes[..index].iter().for_each(|other| meet(node, other.port()));
        }
        for (index, node) in it.nodes.iter().enumerate().skip(MASTERS) {
            let master = &it.ids[index % MASTERS];
            eventually(CAP, || match node.command(&["CLUSTER", "REPLICATE", master]) {
                Reply::Text(_) => Ok(()),
                unknown => Err(unknown),
            });
        }
        it.wait_until_whole();
        it
    }

    /// The URL with the addresses of all nodes.
    pub(crate) fn url(&self) -> String {
        let addresses: Vec<_> = self.nodes.iter().map(|it| it.address().to_string()).collect();
        format!("redis-cluster://{}", addresses.join(","))
    }

    pub(crate) fn node(&self, index: usize) -> &Server {
        &self.nodes[index]
    }

    /// The slot of a key.
    pub(crate) fn slot(&self, key: &str) -> usize {
        let (_, node) = self.present().next().expect("a node can be asked");
        let slot = node.command(&["CLUSTER", "KEYSLOT", key]).int();
        slot.try_into().expect("a slot is a small number")
    }

    /// The node that serves the slot: of those that can be asked and claim it, the one with the latest claim.
    pub(crate) fn master_of(&self, slot: usize) -> usize {
        eventually(CAP, || self.claims(slot).ok_or("nobody"))
    }

    fn claims(&self, slot: usize) -> Option<usize> {
        let claims = self.present().filter_map(|(index, node)| {
            let own = known(node).into_iter().find(|it| it.is("myself"))?;
            let serves = own.is("master") && own.slots.iter().any(|it| (it.0..=it.1).contains(&slot));
            serves.then_some((own.epoch, index))
        });
        claims.max().map(|(_, index)| index)
    }

    fn present(&self) -> impl Iterator<Item = (usize, &Server)> {
        self.nodes.iter().enumerate().filter(|(index, _)| !self.away.contains(index))
    }

    /// Ends the node as a crash would.
    pub(crate) fn kill(&mut self, index: usize) {
        self.away.insert(index);
        self.nodes[index].kill();
    }

    /// Starts the node again, without data, as what the cluster says that it is.
    pub(crate) fn restart(&mut self, index: usize) {
        self.wait_until_served();
        self.nodes[index].restart();
        self.away.remove(&index);
    }

    /// Stops the node where it is.
    pub(crate) fn freeze(&mut self, index: usize) {
        self.away.insert(index);
        self.nodes[index].freeze();
    }

    pub(crate) fn thaw(&mut self, index: usize) {
        self.wait_until_served();
        self.nodes[index].thaw();
        self.away.remove(&index);
    }

    /// Waits until every node that can be asked knows a master for every slot. On Redis 8 a replica that hears of
    /// the failover only after the old master came back as a replica goes on replicating from that one for ever.
    fn wait_until_served(&self) {
        eventually(CAP, || {
            let states = self.present().map(|(_, node)| node.command(&["CLUSTER", "INFO"]));
            match states.into_iter().find(|info| !info.text().contains("cluster_state:ok")) {
                None => Ok(()),
                Some(info) => Err(info),
            }
        });
    }

    /// Waits until all nodes are there and agree: every slot is served, three masters have two replicas in step
    /// each, and nobody takes another one for failing.
    #[track_caller]
    pub(crate) fn wait_until_whole(&self) {
        assert!(self.away.is_empty(), "{:?} are away", self.away);
        eventually(CAP, || {
            self.nodes.iter().enumerate().try_for_each(|(index, node)| match defect(node) {
                None => Ok(()),
                Some(defect) => Err(format!("node {index}: {defect}")),
            })
        });
    }

    /// Moves a slot with its keys to another master, as an operator's tool does, with a pause after each key.
    pub(crate) fn migrate(&self, slot: usize, from: usize, to: usize, pause: Duration) {
        let (number, port) = (slot.to_string(), self.nodes[to].port().to_string());
        ok(&self.nodes[to], &["CLUSTER", "SETSLOT", &number, "IMPORTING", &self.ids[from]]);
        ok(&self.nodes[from], &["CLUSTER", "SETSLOT", &number, "MIGRATING", &self.ids[to]]);
        let mut admin = self.nodes[from].admin();
        loop {
            let keys = admin.command(&["CLUSTER", "GETKEYSINSLOT", &number, "1"]);
            let [key] = keys.list() else { break };
            // NOKEY: it has expired meanwhile.
            let moved = admin.command(&["MIGRATE", "127.0.0.1", &port, key.text(), "0", "5000"]);
            assert!(matches!(moved.text(), "OK" | "NOKEY"), "{moved:?}");
            thread::sleep(pause);
        }
        // The new master first, so that there is no moment at which nobody serves the slot.
        for index in [to, from] {
            ok(&self.nodes[index], &["CLUSTER", "SETSLOT", &number, "NODE", &self.ids[to]]);
        }
    }
}

/// Makes one cluster without replicas of these nodes, each of which has its part of the slots and is to be reached,
/// by the others too, at the port.
pub(crate) fn join(nodes: &[(&Server, u16)]) {
    for (index, (node, _)) in nodes.iter().enumerate() {
        ok(node, &["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()]);
        add_slots(node, index, nodes.len());
        nodes[..index].iter().for_each(|(_, port)| meet(node, *port));
    }
    for (node, _) in nodes {
        eventually(CAP, || match node.command(&["CLUSTER", "INFO"]) {
            Reply::Text(info) if info.contains("cluster_state:ok") => Ok(()),
            info => Err(info),
        });
    }
}

/// Gives a node the slots that it has as one of so many masters.
fn add_slots(node: &Server, index: usize, masters: usize) {
    let slots = index * SLOTS / masters..(index + 1) * SLOTS / masters;
    let slots: Vec<_> = slots.map(|slot| slot.to_string()).collect();
    // CLUSTER ADDSLOTSRANGE is newer than 6.2.
    let args: Vec<_> = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str)).collect();
    ok(node, &args);
}

fn meet(node: &Server, port: u16) {
    ok(node, &["CLUSTER", "MEET", "127.0.0.1", &port.to_string()]);
}

impl Known {
    fn is(&self, flag: &str) -> bool {
        self.flags.split(',').any(|it| it == flag)
    }
}

/// What the node knows of itself and of the others.
fn known(node: &Server) -> Vec<Known> {
    let reply = node.command(&["CLUSTER", "NODES"]);
    let lines = reply.text().lines().map(|line| {
        let fields: Vec<_> = line.split(' ').collect();
        let slots = fields[8..].iter().filter(|it| !it.starts_with('[')).map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let number = |text: &str| text.parse().expect("a slot is a number");
            (number(first), number(last))
        });
        Known {
            flags: fields[2].to_owned(),
            epoch: fields[6].parse().expect("an epoch is a number"),
            slots: slots.collect(),
        }
    });
    lines.collect()
}

/// What the node lacks of a cluster that is whole.
fn defect(node: &Server) -> Option<String> {
    let info = node.command(&["CLUSTER", "INFO"]);
    let nodes = known(node);
    let masters = nodes.iter().filter(|it| it.is("master") && !it.slots.is_empty()).count();
    let failing = nodes.iter().any(|it| it.flags.contains("fail") || it.flags.contains("handshake"));
    if !info.text().contains("cluster_state:ok") || nodes.len() != NODES || masters != MASTERS || failing {
        return Some(format!("{info:?} {nodes:?}"));
    }
    let is_master = nodes.iter().any(|it| it.is("myself") && it.is("master"));
    let whole = match is_master {
        true => is_followed(node, NODES / MASTERS - 1),
        false => replication(node).contains("master_link_status:up"),
    };
    (!whole).then(|| replication(node))
}
