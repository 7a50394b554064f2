//! Elections on the two nodes of a real cluster.

use super::*;
use crate::election::inspect;
use crate::server::Reply;

const SLOTS: u16 = 16384;
/// The groups whose slots are at the one node and at the other.
const GROUPS: [&str; 2] = ["example", "my-app-coordinator"];

/// Two nodes that share the slots, the lower half at the first.
struct Cluster {
    nodes: [Server; 2],
}

impl Cluster {
    fn start() -> Self {
        // A node that is frozen must not be taken for a failed one in the middle of a test.
        let args = ["--cluster-enabled", "yes", "--cluster-node-timeout", "120000"];
        let nodes = [(); 2].map(|()| Server::with(&args));
        for (node, slots) in nodes.iter().zip([0..SLOTS / 2, SLOTS / 2..SLOTS]) {
            let slots: Vec<_> = slots.map(|slot| slot.to_string()).collect();
            let command: Vec<_> =
                ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(|slot| &**slot)).collect();
            assert_eq!(node.command(&command), Reply::Text("OK".into()));
        }
        // Else both begin with the same epoch, and settle that first.
        nodes[1].command(&["CLUSTER", "SET-CONFIG-EPOCH", "2"]);
        nodes[0].command(&["CLUSTER", "MEET", "127.0.0.1", &nodes[1].port().to_string()]);
        for node in &nodes {
            eventually(|| {
                let info = node.command(&["CLUSTER", "INFO"]);
                info.text().contains("cluster_state:ok") && info.text().contains("cluster_slots_ok:16384")
            });
        }
        Self { nodes }
    }

    fn store(&self) -> RedisStore {
        RedisStore::cluster(self.nodes.each_ref().map(Server::url)).expect("good URLs")
    }

    /// At which node the lease of this group is.
    fn slot_of(&self, group: &str) -> (usize, i64) {
        let group = Group::new(group).expect("a good name");
        let slot = self.nodes[0].command(&["CLUSTER", "KEYSLOT", group.lease()]).int();
        (usize::from(slot >= i64::from(SLOTS / 2)), slot)
    }
}

fn elector(store: &RedisStore, group: &str) -> Elector {
    Elector::builder(store.clone(), group)
        .ttl(Duration::from_secs(4))
        .wait(Duration::from_secs(1))
        .start()
        .expect("good options")
}

/// Waits for so many more renewals.
fn renews(elector: &Elector, times: u64) {
    let before = elector.status().counters.renewals;
    eventually(|| elector.status().counters.renewals >= before + times);
}

#[test]
fn a_frozen_node_holds_up_no_groups_but_its_own() {
    let cluster = Cluster::start();
    assert_eq!(GROUPS.map(|group| cluster.slot_of(group).0), [0, 1], "one group at each node");
    let driver = start_driver(&cluster.store());
    let timing = Options { ttl: Duration::from_secs(4), wait: Duration::from_secs(1), ..Options::default() };
    let timing = timing.check().expect("good options");
    let elections = [0, 1].map(|number| {
        let standing = Arc::new(Standing::new(driver.commands(number as u64)));
        let (outlets, inlets) = Outlets::new();
        let group = Group::new(GROUPS[number]).expect("a good name");
        let id = InstanceId::random(None).expect("an id");
        let of_driver = Arc::clone(&standing);
        driver.add(Election::new(number as u64, group, id, timing, of_driver, outlets, no_lead()));
        (standing, inlets)
    });
    driver.close();
    for (standing, _) in &elections {
        standing.wait(Some(CAP)).expect("leads");
    }
    // A node has a lane of its own from the first renewal on.
    eventually(|| driver.threads() == 3 + 2);
    let [(moving, of_moving), (held, of_held)] = &elections;
    cluster.nodes[1].freeze();
    let demotion = of_held.demote.recv_timeout(CAP).expect("its lease cannot be renewed");
    assert_eq!(demotion.reason, Reason::Expired);
    let renewals = moving.status().counters.renewals;
    eventually(|| moving.status().counters.renewals > renewals + 2);
    assert!(moving.is_leader() && of_moving.demote.is_empty() && of_moving.error.is_empty());
    cluster.nodes[1].thaw();
    held.wait(Some(CAP)).expect("leads again");
    assert!(of_moving.demote.is_empty() && of_moving.error.is_empty());
    (0..2).for_each(|number| driver.commands(number).send(Command::Stop));
    driver.ended().recv_timeout(CAP).expect_err("nothing is sent");
    driver.join();
    for (standing, _) in &elections {
        standing.ended().expect("stopped").expect("released");
    }
}

fn ok(node: &Server, command: &[&str]) {
    assert_eq!(node.command(command), Reply::Text("OK".into()), "{command:?}");
}

/// Moves the keys of a group to the other node, and leaves it at that: the slot is still the first one's. In between
/// happens what is given. Returns the ids of the two.
fn half_move([from, to]: [&Server; 2], group: &Group, slot: &str, in_between: impl FnOnce()) -> [String; 2] {
    let ids = [from, to].map(|node| node.command(&["CLUSTER", "MYID"]).text().to_owned());
    ok(to, &["CLUSTER", "SETSLOT", slot, "IMPORTING", &ids[0]]);
    ok(from, &["CLUSTER", "SETSLOT", slot, "MIGRATING", &ids[1]]);
    in_between();
    for key in [group.term(), group.lease()] {
        ok(from, &["MIGRATE", "127.0.0.1", &to.port().to_string(), key, "0", "5000"]);
    }
    ids
}

#[test]
fn a_slot_that_is_moved_key_by_key_keeps_its_leader() {
    let cluster = Cluster::start();
    let name = GROUPS[0];
    let (group, (_, slot)) = (Group::new(name).expect("a good name"), cluster.slot_of(name));
    let (slot, [from, to]) = (slot.to_string(), &cluster.nodes);
    let elector = elector(&cluster.store(), name);
    let leadership = elector.wait_for_leadership(CAP).expect("leads");
    let ids = half_move([from, to], &group, &slot, || renews(&elector, 1));
    // It is asked for at the other node, and the first one still says so each time.
    renews(&elector, 2);
    for node in [to, from] {
        ok(node, &["CLUSTER", "SETSLOT", &slot, "NODE", &ids[1]]);
    }
    renews(&elector, 2);
    assert!(leadership.is_valid() && elector.on_demote().is_empty(), "{:?}", elector.status().last_error);
    assert_eq!(elector.status().counters.errors, 0, "{:?}", elector.status().last_error);
    elector.stop().expect("the cluster answers");
    assert_eq!(to.command(&["EXISTS", group.lease()]), Reply::Int(0));
}

#[test]
fn a_release_at_one_node_wakes_a_follower_that_listens_at_the_other_and_anybody_can_look() {
    let cluster = Cluster::start();
    let day = Duration::from_secs(24 * 60 * 60);
    let mut urls = cluster.nodes.each_ref().map(Server::url);
    let stores = [(); 2].map(|()| {
        urls.reverse();
        RedisStore::cluster(&urls).expect("good URLs")
    });
    for group in GROUPS {
        let [one, two] = stores.each_ref().map(|store| {
            let builder = Elector::builder(store.clone(), group).ttl(day).wait(day);
            builder.start().expect("good options")
        });
        eventually(|| one.is_leader() || two.is_leader());
        let (leader, follower) = if one.is_leader() { (one, two) } else { (two, one) };
        eventually(|| follower.status().leader.is_some());
        for store in &stores {
            let found = inspect(store, group).expect("the cluster answers");
            assert_eq!(found.leader.expect("it is led").id, leader.id());
        }
        assert_eq!(follower.current_leader().expect("it answers").leader.expect("it is led").id, leader.id());
        // It has heard nothing yet, for it may not listen yet; what was missed is made up for by a look then.
        leader.stop().expect("the cluster answers");
        follower.wait_for_leadership(CAP).expect("nothing but the wake comes before a day");
    }
}

#[test]
fn a_user_of_the_documented_rights_keeps_its_leader_while_a_slot_is_moved() {
    let cluster = Cluster::start();
    for node in &cluster.nodes {
        let rights = "ACL SETUSER leases on >leases ~taskrunner:leader:* ~{taskrunner:leader:* resetchannels \
            &taskrunner:leader:* -@all +eval +get +set +del +pttl +pexpire +hset +hdel +hmget +time +publish +subscribe +asking";
        let rights: Vec<_> = rights.split_whitespace().collect();
        assert_eq!(node.command(&rights), Reply::Text("OK".into()));
    }
    let urls = cluster.nodes.each_ref().map(|node| node.url().replace("redis://", "redis://leases:leases@"));
    let name = GROUPS[0];
    let (group, (_, slot)) = (Group::new(name).expect("a good name"), cluster.slot_of(name));
    let (slot, [from, to]) = (slot.to_string(), &cluster.nodes);
    let elector = elector(&RedisStore::cluster(urls).expect("good URLs"), name);
    elector.wait_for_leadership(CAP).expect("leads");
    half_move([from, to], &group, &slot, || renews(&elector, 1));
    let errors = elector.on_error();
    let renewals = elector.status().counters.renewals;
    eventually(|| elector.status().counters.renewals >= renewals + 2 || !errors.is_empty());
    if let Ok(error) = errors.try_recv() {
        panic!("{}", error.to_chain());
    }
}
