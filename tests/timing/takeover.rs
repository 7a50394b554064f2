//! One leader after another: who follows when the leader is killed, stops, or stands still.

#![allow(clippy::print_stderr, reason = "the figures measured are told beside the test's output")]

use std::thread;
use std::time::Duration;

use super::group::{
    CAP, end, id_and_key, lease_end_us, ms, next_leader, now_us, promotions, troubles, us, wait_for_renewal,
    wait_until_following,
};
use crate::support::history::assert_one_leader_at_a_time;
use crate::support::{Campaign, Line, Proxy, Reply, Server, eventually, median, unique_group};

#[test]
fn of_two_processes_one_leads_and_takes_over_at_the_end_of_a_killed_ones_lease() {
    kill_the_leader_over_and_over(2);
}

#[test]
fn of_ten_processes_one_leads_and_takes_over_at_the_end_of_a_killed_ones_lease() {
    kill_the_leader_over_and_over(10);
}

fn kill_the_leader_over_and_over(size: usize) {
    const TTL: Duration = Duration::from_millis(500);
    const ROUNDS: u32 = 20;
    /// The median that is promised; the jitter is 5 ms of it.
    const MEDIAN_US: u64 = 10_000;

    let server = Server::start();
    let mut admin = server.admin();
    let group = unique_group("takeover");
    // The jitter is the default, 5 ms.
    let start = || Campaign::start(&group, &server.url(), &["--ttl", "500ms"]);
    let mut living: Vec<_> = (0..size).map(|_| start()).collect();
    let mut dead = Vec::new();
    let mut leader = next_leader(&living, 0);
    let (_, key) = id_and_key(&living[0]);
    let mut delays_us = Vec::new();
    for round in 0..ROUNDS {
        // Each crash comes at another moment between two renewals.
        thread::sleep(TTL / 2 * round / ROUNDS);
        let mut killed = living.remove(leader.index);
        killed.kill9();
        // What the leader sent before its end has been executed when a later command is answered.
        admin.command(&["PING"]);
        let end_us = lease_end_us(&mut admin, &key).expect("a killed leader leaves its lease behind");
        living.push(start());
        let next = next_leader(&living, leader.token);
        let delay_us = next.at_us.checked_sub(end_us);
        delays_us.push(delay_us.expect("nobody is promoted before the lease's end"));
        dead.push(killed);
        leader = next;
    }
    for candidate in dead.iter().chain(&living) {
        let lines = troubles(candidate);
        assert!(lines.is_empty(), "{}: {lines:?}", candidate.name());
    }
    dead.append(&mut living);
    let histories = end(&mut dead);
    assert_one_leader_at_a_time(&histories);
    // One more than were killed: each time there was exactly one next leader.
    let terms = promotions(&dead);
    assert_eq!(terms.len(), ROUNDS as usize + 1, "{terms:?}");

    let (middle, worst) = (median(&delays_us), delays_us.iter().copied().max().unwrap_or_default());
    eprintln!(
        "takeover after kill -9, {size} candidates: median {:.1} ms, worst {:.1} ms of {ROUNDS} after the lease's end",
        ms(middle),
        ms(worst),
    );
    assert!(middle <= MEDIAN_US, "the median is {middle} µs: {delays_us:?}");
}

#[test]
fn a_terminated_leader_says_so_ends_with_status_0_and_gives_the_lease_back() {
    const TTL: Duration = Duration::from_secs(1);
    const WAIT: Duration = Duration::from_millis(500);
    const ROUNDS: usize = 5;

    let server = Server::start();
    let mut admin = server.admin();
    let group = unique_group("handover");
    let start =
        || Campaign::start(&group, &server.url(), &["--ttl", "1s", "--wait", "500ms", "--sample", "5ms"]);
    let mut living: Vec<_> = (0..3).map(|_| start()).collect();
    let mut ended = Vec::new();
    let mut leader = next_leader(&living, 0);
    let (_, key) = id_and_key(&living[0]);
    let mut vacant_us = Vec::new();
    for _ in 0..ROUNDS {
        let mut stopped = living.remove(leader.index);
        let (id, _) = id_and_key(&stopped);
        // The others have asked since this term began, so none of them is about to ask anyway.
        for follower in &living {
            follower.wait_for(|line| line.is("leader") && line.token() == Some(leader.token), CAP);
        }
        stopped.terminate();
        let status = stopped.wait_exit(CAP);
        let holder = admin.command(&["GET", &key]);
        assert!(holder == Reply::Nil || holder.text() != id, "the lease is still the stopped one's");
        assert_eq!(status.code(), Some(0), "{status}");
        assert_eq!(stopped.lines().last().map(|line| line.event().to_owned()).as_deref(), Some("stopped"));
        let demoted = stopped.wait_event(0, "demoted", CAP);
        assert_eq!((demoted.text("reason"), demoted.token()), ("stopped", Some(leader.token)));
        assert!(stopped.events().iter().all(|line| !line.is("error")), "{:?}", stopped.events());

        let next = next_leader(&living, leader.token);
        living.push(start());
        // A follower attempts at least once per wait, and a lease given back is free. The ttl is the bound
        // of the case that the release was lost.
        let gap_us = next.at_us.saturating_sub(demoted.at_us());
        assert!(gap_us <= us(TTL + WAIT), "nobody led for {gap_us} µs");
        vacant_us.push(gap_us);
        ended.push(stopped);
        leader = next;
    }
    ended.append(&mut living);
    assert_one_leader_at_a_time(&end(&mut ended));
    assert_eq!(promotions(&ended).len(), ROUNDS + 1);
    let worst = vacant_us.iter().copied().max().unwrap_or_default();
    eprintln!(
        "hand-over on SIGTERM, 3 candidates, wait 500 ms: median {:.1} ms, worst {:.1} ms of {ROUNDS}",
        ms(median(&vacant_us)),
        ms(worst),
    );
}

/// The first reading after the gap in which `during_us` lies. The lines are not in order with each other.
#[track_caller]
fn first_reading_after_the_gap(candidate: &Campaign, during_us: u64) -> Line {
    let gap = candidate.wait_for(
        |line| line.is("gap") && line.number("prev_us") <= during_us && during_us <= line.at_us(),
        CAP,
    );
    // The reading that ended the gap has the time of the gap's line, and comes right after it.
    candidate.wait_for(|line| line.is("sample") && line.at_us() == gap.at_us(), CAP)
}

#[test]
fn a_leader_that_stood_still_for_two_ttls_knows_at_the_first_look_that_it_leads_no_more() {
    const TTL: Duration = Duration::from_millis(600);
    const ROUNDS: u32 = 4;

    let server = Server::start();
    let group = unique_group("standstill");
    let args = ["--ttl", "600ms", "--wait", "600ms", "--sample", "5ms"];
    let mut candidates: Vec<_> = (0..3).map(|_| Campaign::start(&group, &server.url(), &args)).collect();
    let mut leader = next_leader(&candidates, 0);
    let mut late_us = Vec::new();
    for round in 0..ROUNDS {
        // Each time at another moment between two renewals.
        thread::sleep(TTL / 2 * round / ROUNDS);
        let stopped = &candidates[leader.index];
        let mark = stopped.mark();
        let frozen_us = now_us();
        stopped.freeze();
        thread::sleep(TTL * 2);
        let next = next_leader(&candidates, leader.token);
        let thawed_us = now_us();
        stopped.thaw();
        assert!(next.at_us < thawed_us, "somebody else led while the leader stood still");
        assert_ne!(next.index, leader.index);

        let reading = first_reading_after_the_gap(stopped, frozen_us + us(TTL));
        assert!(!reading.value["leader"].as_bool().expect("a reading tells it"), "{}", reading.value);
        assert!(reading.at_us() >= thawed_us, "{}", reading.value);
        let demoted = stopped.wait_event(mark, "demoted", CAP);
        assert_eq!((demoted.text("reason"), demoted.token()), ("expired", Some(leader.token)));
        // The term ended at its deadline, while the process stood still.
        assert!(demoted.number("ended_us") < frozen_us + us(TTL), "{}", demoted.value);
        late_us.push(demoted.at_us().saturating_sub(thawed_us));
        leader = next;
    }
    assert_one_leader_at_a_time(&end(&mut candidates));
    let worst = late_us.iter().copied().max().unwrap_or_default();
    eprintln!("demotion told after SIGCONT: worst {:.1} ms of {ROUNDS}", ms(worst));
}

#[test]
fn a_renewals_reply_that_lay_there_while_the_leader_stood_still_does_not_revive_the_term() {
    const TTL: Duration = Duration::from_millis(600);

    let server = Server::start();
    let mut admin = server.admin();
    let proxy = Proxy::to(&server);
    let group = unique_group("buffered");
    let args = ["--ttl", "600ms", "--wait", "600ms", "--sample", "5ms"];
    let mut candidates = vec![Campaign::start(&group, &proxy.url(), &args).named("behind the proxy")];
    let leader = next_leader(&candidates, 0);
    candidates.push(Campaign::start(&group, &server.url(), &args).named("direct"));
    wait_until_following(&candidates[1]);
    let (_, key) = id_and_key(&candidates[0]);

    proxy.hold_replies();
    let end_us = lease_end_us(&mut admin, &key).expect("a leader has a lease");
    let end_us = wait_for_renewal(&mut admin, &key, end_us);
    candidates[0].freeze();
    // The reply lies in the kernel's buffer when the process wakes.
    proxy.pass();
    thread::sleep(TTL * 2);
    let next = next_leader(&candidates, leader.token);
    candidates[0].thaw();

    assert_eq!(next.index, 1);
    assert!(next.at_us >= end_us, "the renewal counted in Redis");
    let reading = first_reading_after_the_gap(&candidates[0], end_us);
    assert!(!reading.value["leader"].as_bool().expect("a reading tells it"), "{}", reading.value);
    let demoted = candidates[0].wait_event(0, "demoted", CAP);
    assert_eq!((demoted.text("reason"), demoted.token()), ("expired", Some(leader.token)));
    assert_one_leader_at_a_time(&end(&mut candidates));
}

#[test]
fn an_acquires_reply_that_comes_later_than_its_deadline_promotes_nobody() {
    const TTL: Duration = Duration::from_millis(600);
    const WAIT: Duration = Duration::from_millis(600);

    let server = Server::start();
    let mut admin = server.admin();
    let proxy = Proxy::to(&server);
    let group = unique_group("late-win");
    let args = ["--ttl", "600ms", "--wait", "600ms", "--sample", "5ms"];
    let mut first = Campaign::start(&group, &server.url(), &args).named("first");
    let leader = first.wait_event(0, "promoted", CAP);
    let late = Campaign::start(&group, &proxy.url(), &args).named("behind the proxy");
    wait_until_following(&late);
    let (late_id, key) = id_and_key(&late);

    // Now that it is connected: its next attempt wins, and it hears of that when the lease has ended.
    proxy.delay_replies(TTL * 3 / 2);
    first.kill9();
    // The lease is taken away instead of waited for: an attempt that came a moment before its end would lose, and
    // while the replies are kept there is no second one.
    admin.command(&["DEL", &key]);
    eventually(CAP, || match admin.command(&["GET", &key]) {
        Reply::Text(holder) if holder == late_id => Ok(()),
        other => Err(other),
    });
    let won_us = now_us();
    let other = Campaign::start(&group, &server.url(), &args).named("other");
    let next = other.wait_event(0, "promoted", CAP);
    // What nobody leads with is held for no longer than a ttl, and a follower's attempt comes within a wait.
    let taken_us = next.at_us().saturating_sub(won_us);
    assert!(taken_us <= us(TTL + WAIT), "the lease was held for {taken_us} µs");
    assert!(next.token() > leader.token());
    // The candidate hears of its failure at the latest when the replies come.
    let error = late.wait_event(0, "error", CAP);
    assert_eq!(error.text("kind"), "passing", "{}", error.value);
    proxy.pass();
    let next_id = id_and_key(&other).0;
    late.wait_for(|line| line.is("leader") && line.value["id"] == *next_id, CAP);
    assert!(late.events().iter().all(|line| !line.is("promoted")), "{:?}", late.events());
    assert_one_leader_at_a_time(&end(&mut [first, late, other]));
}

#[test]
fn an_acquires_reply_that_lay_there_while_the_candidate_stood_still_promotes_nobody() {
    let server = Server::start();
    let mut admin = server.admin();
    let proxy = Proxy::to(&server);
    let group = unique_group("buffered-win");
    let args = ["--ttl", "600ms", "--wait", "600ms", "--sample", "5ms"];
    let mut first = Campaign::start(&group, &server.url(), &args).named("first");
    first.wait_event(0, "promoted", CAP);
    let late = Campaign::start(&group, &proxy.url(), &args).named("behind the proxy");
    wait_until_following(&late);
    let (late_id, key) = id_and_key(&late);

    proxy.hold_replies();
    first.kill9();
    // The lease is taken away instead of waited for: an attempt that came a moment before its end would lose, and
    // while the replies are kept there is no second one.
    admin.command(&["DEL", &key]);
    eventually(CAP, || match admin.command(&["GET", &key]) {
        Reply::Text(holder) if holder == late_id => Ok(()),
        other => Err(other),
    });
    late.freeze();
    let term = format!("{{{key}}}:term");
    let won: u64 = admin.command(&["HGET", &term, "token"]).text().parse().expect("a token is a number");
    // The reply lies in the kernel's buffer when the process wakes, after the end of what it won.
    proxy.pass();
    eventually(CAP, || match admin.command(&["GET", &key]) {
        Reply::Nil => Ok(()),
        other => Err(other),
    });
    late.thaw();
    // Alone as it is, it wins again, and that term it may have.
    let promoted = late.wait_event(0, "promoted", CAP);
    assert!(promoted.token() > Some(won), "{}, while {won} came too late", promoted.value);
    assert_one_leader_at_a_time(&end(&mut [first, late]));
}
