//! What has gone wrong in other implementations and can be shown on a store alone, each under its id in
//! `tests/REGRESSIONS.md`.

use std::sync::Barrier;

use super::*;

fn on_every_store(test: impl Fn(&Ground<'_>)) {
    let memory = MemoryStore::with_manual_clock();
    test(&Ground {
        open: &|| open(&memory),
        listen: &|| listen(&memory),
        elapse: &|time| memory.advance(time),
    });
    let server = Server::start();
    let redis = store(&server.url());
    let elapse = |time| thread::sleep(time + Duration::from_millis(5));
    test(&Ground { open: &|| open(&redis), listen: &|| listen(&redis), elapse: &elapse });
}

/// B12, B18, B40: an instance that had led renewed, overwrote or deleted whatever lease it found.
#[test]
fn nothing_that_another_instance_or_an_earlier_term_sends_moves_the_leases_end() {
    on_every_store(|ground| {
        let group = group();
        let (mut a, mut b) = (ground.candidate(&group, "a"), ground.candidate(&group, "b"));
        let old = a.win();
        answers(a.release(old), Answer::Released);
        let token = b.win();
        // Whatever of these counted would make the lease longer, or end it.
        a.ttl = TTL * 1000;
        for result in [a.acquire_above(0), a.renew(old), a.renew(token), a.release(old), a.release(token)] {
            assert_eq!(held(result).holder.as_str(), "b");
        }
        // An earlier term of the holder itself.
        let newer = b.win();
        b.ttl = TTL * 1000;
        for result in [b.renew(token), b.release(token)] {
            assert_eq!(held(result).token, Some(newer));
        }
        let holding = held(a.look());
        assert_eq!((holding.holder.as_str(), holding.token), ("b", Some(newer)));
        assert!(holding.remaining.is_some_and(|left| !left.is_zero() && left <= TTL), "{holding:?}");
    });
}

/// B20: a renewal that found no lease made one, and its holder never heard of the gap.
#[test]
fn a_renewal_after_a_gap_makes_no_lease_whoever_led_in_the_gap() {
    on_every_store(|ground| {
        for another in [false, true] {
            let group = group();
            let (mut a, mut b) = (ground.candidate(&group, "a"), ground.candidate(&group, "b"));
            let mut last = a.win();
            let token = last;
            a.ttl = Duration::from_millis(100);
            assert!(matches!(a.renew(token), Ok(Answer::Renewed { .. })));
            (ground.elapse)(a.ttl);
            if another {
                last = b.win();
                answers(b.release(last), Answer::Released);
            }
            answers(a.renew(token), Answer::Vacant);
            answers(b.look(), Answer::Vacant);
            assert!(a.win() > last);
        }
    });
}

/// B40: the holder was compared in one command and the lease deleted in another.
#[test]
fn a_release_never_deletes_what_another_has_written_meanwhile() {
    const ROUNDS: u32 = 1000;
    let server = Server::start();
    let (mut a, mut admin) = (candidate(&server.url(), "a"), server.admin());
    let lease = a.group.lease().to_owned();
    // Which of the two comes first is open in each round.
    let barrier = Barrier::new(2);
    for _ in 0..ROUNDS {
        let token = a.win();
        let result = thread::scope(|scope| {
            scope.spawn(|| {
                barrier.wait();
                assert_eq!(admin.command(&["SET", &lease, "foreign"]).text(), "OK");
            });
            barrier.wait();
            a.release(token)
        });
        if !matches!(result, Ok(Answer::Released)) {
            assert_eq!(held(result).holder.as_str(), "foreign");
        }
        assert_eq!(admin.command(&["GET", &lease]).text(), "foreign");
        admin.command(&["DEL", &lease]);
    }
}

/// B57, B59, B60: an expiry that was zero, negative or missing deleted the lease, or kept everybody out for ever.
#[test]
fn every_lease_has_an_expiry_of_at_most_its_ttl_also_after_somebody_took_that_away() {
    let server = Server::start();
    // The shortest and the longest, and one that is no whole number of milliseconds.
    for ttl in [Duration::from_millis(100), Duration::from_nanos(100_999_999), Duration::from_secs(86_400)] {
        let mut a = candidate(&server.url(), "a");
        let end = |a: &Candidate| {
            let left = server.command(&["PTTL", a.group.lease()]).int();
            // A short lease may be over by now; what must never be is one that does not end.
            assert!(
                left == -2 || (0..=ttl.as_millis() as i64).contains(&left),
                "{ttl:?}: {left} ms are left"
            );
        };
        a.ttl = ttl;
        let token = a.win();
        end(&a);
        a.renew(token).expect("an answer");
        end(&a);
    }
    let mut a = candidate(&server.url(), "a");
    let token = a.win();
    for _ in 0..2 {
        assert_eq!(server.command(&["PERSIST", a.group.lease()]), Reply::Int(1));
        answers(a.renew(token), Answer::Renewed { left: TTL });
        assert!((1..=30_000).contains(&server.command(&["PTTL", a.group.lease()]).int()));
    }
    // The own leftover, too, gets an expiry with its new term.
    server.command(&["PERSIST", a.group.lease()]);
    a.win();
    assert!((1..=30_000).contains(&server.command(&["PTTL", a.group.lease()]).int()));
}
