//! A cluster that moves the group's slot to another node.

use super::super::group::troubles;
use super::*;
use crate::support::Cluster;

const TTL: Duration = Duration::from_millis(600);

#[test]
fn a_slot_that_moves_leaves_the_leader_its_lease() {
    // Under strict, too: the renewals go on, and what was recorded of the data set moves with the term.
    for strict in [None, Some(2)] {
        let rig = Cluster::start();
        let mut candidates = Candidates::new("slot", TTL, Duration::from_millis(50), strict);
        candidates.add("one", &rig.url());
        let leader = candidates.leader();
        for name in ["two", "three"] {
            candidates.add(name, &rig.url());
            wait_until_following(candidates.all.last().expect("one was added"));
        }
        let slot = rig.slot(&candidates.key());
        for _ in 0..rounds(5) {
            candidates.wait_for_some_moment();
            let from = rig.master_of(slot);
            // For a while the lease and its term are on two nodes, then both on one that does not have the slot yet.
            rig.migrate(slot, from, (from + 1) % 3, TTL / 5);
            // Two renewals at the new place.
            thread::sleep(TTL);
            assert_eq!(rig.master_of(slot), (from + 1) % 3);
        }
        let troubles: Vec<_> = candidates.all.iter().flat_map(troubles).collect();
        assert!(troubles.is_empty(), "{troubles:?}");
        assert_eq!(candidates.leader().token, leader.token);
        assert_eq!(candidates.judge(), 0);
    }
}
