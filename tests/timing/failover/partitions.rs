//! A replica that is promoted beside a master that lives on.

#![allow(clippy::print_stderr, reason = "the figures measured are told beside the test's output")]

use super::*;
use crate::support::{Proxy, Replicas};

const TTL: Duration = Duration::from_millis(600);
const WAIT: Duration = Duration::from_millis(300);

/// How long to look for a leader that must not be.
const QUIET: Duration = Duration::from_secs(2);

/// The master, a leader and a follower there, and one replica are cut off from the other replica, which is promoted.
#[test]
fn under_strict_the_smaller_side_of_a_partition_has_no_leader_and_the_other_one_goes_on() {
    for strict in [None, Some(2)] {
        let rig = Replicas::start(2);
        let mut candidates = Candidates::new("partition", TTL, WAIT, strict);
        candidates.add("old", &rig.master.url());
        let leader = candidates.leader();
        candidates.add("old too", &rig.master.url());
        candidates.add("new", &rig.replica(1).url());
        candidates.wait_for_some_moment();
        rig.cut(1);
        let mark = candidates.all[2].mark();
        rig.promote(1);
        if strict.is_some() {
            // What is asked there is refused for lack of acknowledgements, again and again.
            candidates.all[2].wait_for_after(
                mark,
                |line| line.is("error") && line.text("kind") == "passing",
                CAP,
            );
            thread::sleep(QUIET);
            assert_eq!(candidates.leader().token, leader.token);
            assert_eq!(promotions(&candidates.all).len(), 1);
        } else {
            next_leader(&candidates.all, leader.token);
            thread::sleep(QUIET);
        }
        // The other side's master takes it back.
        rig.follow(1, &rig.master);
        rig.heal(1);
        if strict.is_some() {
            assert_eq!(candidates.leader().token, leader.token, "nothing of this is seen there");
        }
        told(&mut candidates, "a partition of some seconds");
    }
}

/// Both replicas turn away from the master, which lives on with its leader.
#[test]
fn under_strict_a_leader_that_the_replicas_have_left_ends_before_the_next_one_leads() {
    for strict in [None, Some(2)] {
        let rig = Replicas::start(2);
        let mut candidates = Candidates::new("left", TTL, WAIT, strict);
        candidates.add("old", &rig.master.url());
        let leader = candidates.leader();
        candidates.add("old too", &rig.master.url());
        candidates.add("new", &rig.replica(0).url());
        candidates.wait_for_some_moment();
        rig.promote(0);
        rig.follow(1, rig.replica(0));
        let next = next_leader(&candidates.all, leader.token);
        assert_eq!(candidates.all[next.index].name(), "new");
        if strict.is_some() {
            let demoted = candidates.all[0].wait_event(0, "demoted", CAP);
            assert!(demoted.number("ended_us") < next.at_us, "{}", demoted.value);
            thread::sleep(QUIET);
            assert_eq!(promotions(&candidates.all).len(), 2, "the old master elects nobody");
        }
        told(&mut candidates, "replicas that turn to another master");
    }
}

/// A lease is handed over by its release, and a replica that did not hear of it is promoted: it still has the
/// lease of the instance that released it, which asks there and finds its own id.
#[test]
fn under_strict_an_own_leftover_on_a_promoted_replica_is_no_second_leader() {
    const TTL: Duration = Duration::from_secs(3);

    for strict in [None, Some(2)] {
        let rig = Replicas::start(2);
        let proxy = Proxy::to(&rig.master);
        let mut candidates = Candidates::new("leftover", TTL, WAIT, strict);
        candidates.add("first", &proxy.url());
        let first = candidates.leader();
        candidates.add("second", &rig.master.url());
        wait_until_following(&candidates.all[1]);
        // Right after a renewal, so that the leader is cut off before the next one, and the replica has the lease for
        // long after the leader has noticed.
        let key = candidates.key();
        eventually(CAP, || match rig.replica(1).command(&["PTTL", &key]).int() {
            left if left > 2_700 => Ok(()),
            left => Err(left),
        });
        rig.cut(1);
        // The leader fails to renew, demotes itself, and releases the lease once the server can be reached.
        proxy.refuse(true);
        proxy.reset_all();
        candidates.all[0].wait_event(0, "demoted", CAP);
        // From here on it asks for the lease at the replica, which is a master now.
        rig.promote(1);
        let leftover = rig.replica(1).command(&["GET", &key]);
        proxy.refuse(false);
        let second = next_leader(&candidates.all, first.token);
        assert_eq!(candidates.all[second.index].name(), "second");
        let mark = candidates.all[0].mark();
        proxy.retarget(rig.replica(1).address());
        proxy.reset_all();
        assert_eq!(leftover.text(), id_and_key(&candidates.all[0]).0);
        if strict.is_some() {
            // It finds its own lease, and nobody who acknowledges that it takes it.
            candidates.all[0].wait_for_after(
                mark,
                |line| line.is("error") && line.text("operation") == "acquire",
                CAP,
            );
            assert_eq!(candidates.leader().token, second.token);
            // With a replica there it has the majority, and the second loses it.
            rig.follow(0, rig.replica(1));
        }
        let third = next_leader(&candidates.all, second.token);
        assert_eq!(candidates.all[third.index].name(), "first");
        told(&mut candidates, "an own leftover on a promoted replica");
    }
}

/// Judges the candidates. Those that are not strict show that there was a danger.
fn told(candidates: &mut Candidates, what: &str) {
    // Readings for the judge.
    thread::sleep(QUIET / 4);
    let worst_us = candidates.judge();
    eprintln!("{what}, {}: two leaders for {:.1} ms at most", candidates.kind(), ms(worst_us));
    assert_eq!(worst_us > 0, candidates.strict.is_none());
}
