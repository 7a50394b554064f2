//! How long nobody leads when a leader gives the lease back: with wakes, without them, and after a blip of its network.

#![allow(clippy::print_stderr, reason = "the figures measured are told beside the test's output")]

use std::thread;
use std::time::Duration;

use super::group::{
    CAP, end, id_and_key, lease_end_us, ms, next_leader, now_us, promotions, troubles, us,
    wait_until_following, wait_until_remaining,
};
use crate::support::history::assert_one_leader_at_a_time;
use crate::support::{Admin, Campaign, Proxy, Server, eventually, median, unique_group};

/// Waits until so many connections are subscribed to the wakes of the group.
#[track_caller]
fn wait_for_listeners(admin: &mut Admin, key: &str, count: usize) {
    let (channel, count) = (format!("{key}:wake"), i64::try_from(count).expect("a few"));
    eventually(CAP, || match admin.command(&["PUBSUB", "NUMSUB", &channel]).list()[1].int() {
        listeners if listeners == count => Ok(()),
        listeners => Err(listeners),
    });
}

/// Waits until every candidate but the leader knows this term: then none of them has anything to ask for.
#[track_caller]
fn wait_until_all_know(candidates: &[Campaign], token: u64) {
    for candidate in candidates {
        candidate.wait_for(|line| line.is("leader") && line.token() == Some(token), CAP);
    }
}

#[test]
fn one_follower_leads_within_milliseconds_of_a_terminated_leaders_release() {
    terminate_the_leader_over_and_over(1);
}

#[test]
fn one_of_ten_followers_leads_within_milliseconds_of_a_terminated_leaders_release() {
    terminate_the_leader_over_and_over(10);
}

fn terminate_the_leader_over_and_over(followers: usize) {
    const ROUNDS: usize = 20;
    /// What is promised: two round trips, and the jitter of up to 5 ms that one follower waits, or the least of
    /// those of several.
    const MEDIAN_US: u64 = 5_000;
    const WORST_US: u64 = 20_000;

    let server = Server::start();
    let mut admin = server.admin();
    let group = unique_group("handover");
    // All defaults: a lease of 5 s, so that what is fast is fast by the wake.
    let start = || Campaign::start(&group, &server.url(), &[]);
    let mut living: Vec<_> = (0..=followers).map(|_| start()).collect();
    let mut ended = Vec::new();
    let mut leader = next_leader(&living, 0);
    let (_, key) = id_and_key(&living[0]);
    let mut delays_us = Vec::new();
    for _ in 0..ROUNDS {
        wait_until_all_know(&living, leader.token);
        wait_for_listeners(&mut admin, &key, living.len());
        let mut terminated = living.remove(leader.index);
        terminated.terminate();
        let demoted = terminated.wait_event(0, "demoted", CAP);
        assert_eq!((demoted.text("reason"), demoted.token()), ("stopped", Some(leader.token)));
        let next = next_leader(&living, leader.token);
        // The release is sent right after the term's end.
        let delay_us = next.at_us.checked_sub(demoted.number("ended_us"));
        delays_us.push(delay_us.expect("nobody is promoted before the other one's end"));
        assert_eq!(terminated.wait_exit(CAP).code(), Some(0));
        ended.push(terminated);
        living.push(start());
        leader = next;
    }
    for candidate in &living {
        let lines = troubles(candidate);
        assert!(lines.is_empty(), "{}: {lines:?}", candidate.name());
    }
    ended.append(&mut living);
    assert_one_leader_at_a_time(&end(&mut ended));
    // One more than were terminated: each time there was exactly one next leader, with a larger token.
    assert_eq!(promotions(&ended).len(), ROUNDS + 1);

    let (middle, worst) = (median(&delays_us), delays_us.iter().copied().max().unwrap_or_default());
    eprintln!(
        "handover on SIGTERM, {followers} followers: median {:.1} ms, worst {:.1} ms of {ROUNDS} after the term's end",
        ms(middle),
        ms(worst),
    );
    assert!(middle <= MEDIAN_US, "the median is {middle} µs: {delays_us:?}");
    assert!(worst <= WORST_US, "the worst is {worst} µs: {delays_us:?}");
}

#[test]
fn without_wakes_a_terminated_leader_is_followed_at_the_end_of_the_lease_that_it_last_renewed() {
    const TTL: Duration = Duration::from_secs(1);
    const ROUNDS: u32 = 10;
    /// After the last renewal: the ttl, the jitter, and what is promised beside them.
    const LATE: Duration = Duration::from_millis(5 + 10);

    for followers in [1, 10] {
        let server = Server::start();
        let mut admin = server.admin();
        // Nobody may send or hear a wake: no connection of that kind exists, and each release is silent.
        admin.command(&["ACL", "SETUSER", "mute", "on", ">pass", "~*", "resetchannels", "+@all"]);
        let url = server.url().replace("redis://", "redis://mute:pass@");
        let group = unique_group("no-wakes");
        // The wait is too long to be what brings a takeover.
        let start = || Campaign::start(&group, &url, &["--ttl", "1s", "--wait", "60s"]);
        let mut living: Vec<_> = (0..=followers).map(|_| start()).collect();
        let mut ended = Vec::new();
        let mut leader = next_leader(&living, 0);
        let (_, key) = id_and_key(&living[0]);
        let mut late_us = Vec::new();
        for round in 0..ROUNDS {
            wait_until_all_know(&living, leader.token);
            // Each end comes at another moment between two renewals, and clear of both.
            let part = f64::from(round + 1) / f64::from(ROUNDS + 2);
            let remaining = TTL.mul_f64(1.0 - part / 2.0);
            let end_us = wait_until_remaining(&mut admin, &key, TTL, remaining);
            let mut terminated = living.remove(leader.index);
            terminated.terminate();
            assert_eq!(terminated.wait_exit(CAP).code(), Some(0));
            let ended_us = terminated.wait_event(0, "demoted", CAP).number("ended_us");
            let next = next_leader(&living, leader.token);
            assert!(next.at_us >= ended_us, "{next:?}");
            // A follower that was about to ask anyway may be earlier; it has asked after the release.
            late_us.push(next.at_us.saturating_sub(end_us));
            ended.push(terminated);
            living.push(start());
            leader = next;
        }
        ended.append(&mut living);
        assert_one_leader_at_a_time(&end(&mut ended));
        assert_eq!(promotions(&ended).len(), ROUNDS as usize + 1);
        let worst = late_us.iter().copied().max().unwrap_or_default();
        eprintln!(
            "handover on SIGTERM without wakes, {followers} followers: median {:.1} ms, worst {:.1} ms of {ROUNDS} \
             after the end of the last renewal's lease",
            ms(median(&late_us)),
            ms(worst),
        );
        assert!(worst <= us(LATE), "{late_us:?}");
    }
}

const BLIP_TTL: Duration = Duration::from_secs(1);

/// Cuts the proxy's connections at the next renewal of the leader behind it, and refuses new ones for 0.3 ttl.
/// Returns when a connection was possible again.
///
/// `sent`: the renewal has been sent and its reply is lost; else it cannot be sent.
fn blip(proxy: &Proxy, admin: &mut Admin, key: &str, sent: bool) -> u64 {
    // Half of the ttl is left when the leader renews.
    wait_until_remaining(admin, key, BLIP_TTL, BLIP_TTL * 11 / 20);
    if sent {
        let before = proxy.traffic().to_server.bytes;
        proxy.hold_replies();
        eventually(CAP, || match proxy.traffic().to_server.bytes {
            bytes if bytes > before => Ok(()),
            bytes => Err(bytes),
        });
    }
    proxy.refuse(true);
    proxy.reset_all();
    thread::sleep(BLIP_TTL * 3 / 10);
    proxy.pass();
    let again_us = now_us();
    proxy.refuse(false);
    again_us
}

#[test]
fn after_a_blip_at_the_renewal_another_instance_leads_as_soon_as_the_network_works() {
    const ROUNDS: usize = 10;
    /// The release is tried every 25 ms, and wakes the follower within its jitter.
    const MEDIAN_US: u64 = 50_000;

    let server = Server::start();
    let mut admin = server.admin();
    let (mut leaderless_us, mut after_us) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let proxy = Proxy::to(&server);
        let group = unique_group("blip");
        let args = ["--ttl", "1s", "--wait", "60s", "--sample", "5ms"];
        let behind = Campaign::start(&group, &proxy.url(), &args).named("behind the proxy");
        let leader = next_leader(std::slice::from_ref(&behind), 0);
        let direct = Campaign::start(&group, &server.url(), &args).named("direct");
        wait_until_following(&direct);
        let (_, key) = id_and_key(&behind);
        wait_for_listeners(&mut admin, &key, 2);
        let mut candidates = [behind, direct];
        let again_us = blip(&proxy, &mut admin, &key, round % 2 == 1);
        let next = next_leader(&candidates, leader.token);
        assert_eq!(next.index, 1, "{next:?}");
        let demoted = candidates[0].wait_event(0, "demoted", CAP);
        assert_eq!((demoted.text("reason"), demoted.token()), ("renew_error", Some(leader.token)));
        assert!(demoted.number("ended_us") < again_us, "it is during the blip that the renewal fails");
        leaderless_us.push(next.at_us - demoted.number("ended_us"));
        after_us.push(next.at_us.saturating_sub(again_us));
        let other = id_and_key(&candidates[1]).0;
        candidates[0].wait_for(|line| line.is("leader") && line.value["id"] == *other, CAP);
        assert_one_leader_at_a_time(&end(&mut candidates));
        assert_eq!(promotions(&candidates).len(), 2);
    }
    let middle = median(&after_us);
    eprintln!(
        "a blip of 0.3 ttl at the renewal: nobody leads for {:.1} ms in the median, and once the network works for \
         {:.1} ms, worst {:.1} ms of {ROUNDS}",
        ms(median(&leaderless_us)),
        ms(middle),
        ms(after_us.iter().copied().max().unwrap_or_default()),
    );
    assert!(middle < MEDIAN_US, "the median is {middle} µs: {after_us:?}");
}

#[test]
fn a_leader_that_retries_has_nothing_to_tell_of_a_blip_at_its_renewal() {
    const ROUNDS: usize = 10;

    let server = Server::start();
    let mut admin = server.admin();
    let proxy = Proxy::to(&server);
    let group = unique_group("retried");
    let args = ["--ttl", "1s", "--sample", "5ms", "--on-renew-error", "retry"];
    let behind = Campaign::start(&group, &proxy.url(), &args).named("behind the proxy");
    let leader = next_leader(std::slice::from_ref(&behind), 0);
    let direct = Campaign::start(&group, &server.url(), &args).named("direct");
    wait_until_following(&direct);
    let (_, key) = id_and_key(&behind);
    let mut candidates = [behind, direct];
    for round in 0..ROUNDS {
        let before_us = lease_end_us(&mut admin, &key).expect("a leader has a lease");
        blip(&proxy, &mut admin, &key, round % 2 == 1);
        // The renewal that was lost with its reply counts in Redis; the one after the blip is another one.
        let again_us = now_us() + us(BLIP_TTL * 9 / 10);
        eventually(CAP, || match lease_end_us(&mut admin, &key) {
            Some(end_us) if end_us > before_us.max(again_us) => Ok(()),
            other => Err(other),
        });
    }
    for candidate in &candidates {
        let lines = troubles(candidate);
        assert!(lines.is_empty(), "{}: {lines:?}", candidate.name());
    }
    assert_one_leader_at_a_time(&end(&mut candidates));
    let terms = promotions(&candidates);
    assert!(matches!(terms[..], [one] if one.token == leader.token), "{terms:?}");
    eprintln!("a blip of 0.3 ttl at the renewal, with retry: no event in {ROUNDS}");
}
