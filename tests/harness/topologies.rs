//! Servers that replicate, and fail over.

use std::time::Duration;

use crate::support::{Cluster, Replicas, Reply, Sentinels, eventually};

use super::CAP;

#[test]
fn a_replica_that_is_cut_off_hears_nothing_and_can_be_promoted() {
    let rig = Replicas::start(2);
    // WAIT is about what was written on the same connection.
    let mut admin = rig.master.admin();
    let mut acknowledged = |value: &str| {
        admin.command(&["SET", "key", value]);
        admin.command(&["WAIT", "2", "100"]).int()
    };
    let reads = |index: usize, wanted: &str| {
        eventually(CAP, || match rig.replica(index).command(&["GET", "key"]) {
            Reply::Text(text) if text == wanted => Ok(()),
            other => Err(other),
        });
    };
    eventually(CAP, || if acknowledged("both") == 2 { Ok(()) } else { Err("not both") });
    rig.cut(0);
    assert!(acknowledged("one") <= 1, "the one that is cut off has not acknowledged");
    reads(0, "both");
    rig.promote(0);
    rig.replica(0).command(&["SET", "key", "promoted"]);
    rig.follow(1, rig.replica(0));
    reads(1, "promoted");
    rig.follow(0, &rig.master);
    rig.heal(0);
    reads(0, "one");
}

#[test]
fn sentinels_promote_a_replica_and_take_the_old_master_back() {
    let mut rig = Sentinels::start();
    let old = rig.master();
    let write = |rig: &Sentinels| {
        eventually(CAP, || match rig.server(rig.master()).command(&["SET", "key", "value"]) {
            Reply::Text(_) => Ok(()),
            error => Err(error),
        });
    };
    write(&rig);
    rig.freeze(old);
    let new = eventually(CAP, || Some(rig.master()).filter(|it| *it != old).ok_or("the old one"));
    rig.thaw(old);
    rig.wait_until_whole();
    assert_eq!(rig.master(), new);
    write(&rig);
    assert!(matches!(rig.server(old).command(&["SET", "key", "value"]), Reply::Error(_)), "a replica");
}

#[test]
fn a_cluster_moves_a_slot_promotes_a_replica_and_takes_the_old_master_back() {
    let mut rig = Cluster::start();
    let slot = rig.slot("key");
    let old = rig.master_of(slot);
    rig.node(old).command(&["SET", "key", "value"]);
    let target = (0..3).find(|it| *it != old).expect("there are three masters");
    rig.migrate(slot, old, target, Duration::ZERO);
    assert_eq!(rig.master_of(slot), target);
    assert_eq!(rig.node(target).command(&["GET", "key"]).text(), "value");
    let moved = rig.node(old).command(&["GET", "key"]);
    assert!(matches!(&moved, Reply::Error(error) if error.starts_with("MOVED")), "{moved:?}");

    rig.kill(target);
    let new = rig.master_of(slot);
    assert_ne!(new, target);
    rig.restart(target);
    rig.wait_until_whole();
    assert_eq!(rig.master_of(slot), new);
    assert_eq!(rig.node(new).command(&["GET", "key"]).text(), "value");
}
