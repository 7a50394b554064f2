//! Never two leaders at once, and one again soon: with a network that swallows, delays or cuts, and with a server
//! that stands still, loses its data or becomes a replica.

#![allow(clippy::print_stderr, reason = "the figures measured are told beside the test's output")]

use std::thread;
use std::time::Duration;

use super::group::{
    CAP, CLOCKS_US, Promoted, end, id_and_key, lease_end_us, ms, next_leader, now_us, promotions, troubles,
    us, wait_for_renewal, wait_until_following, wait_until_remaining,
};
use crate::support::history::{assert_one_leader_at_a_time, overlaps, violations};
use crate::support::{Admin, Campaign, Proxy, Reply, Server, median, unique_group};

/// The stop margin is a twentieth of the ttl unless it is set.
fn stop_margin(ttl: Duration) -> Duration {
    ttl / 20
}

/// One candidate behind the proxy, which leads, and one connected directly, which follows.
struct Pair {
    candidates: [Campaign; 2],
    leader: Promoted,
    key: String,
}

impl Pair {
    fn start(server: &Server, proxy: &Proxy, args: &[&str]) -> Self {
        let group = unique_group("pair");
        let behind = Campaign::start(&group, &proxy.url(), args).named("behind the proxy");
        let leader = next_leader(std::slice::from_ref(&behind), 0);
        let direct = Campaign::start(&group, &server.url(), args).named("direct");
        wait_until_following(&direct);
        let (_, key) = id_and_key(&behind);
        Self { candidates: [behind, direct], leader, key }
    }

    /// Waits for the end of the first one's term, which must be its deadline: the stop margin before the end
    /// of the lease, `end_us`. Returns how late it was told, and the term that follows.
    #[track_caller]
    fn wait_for_expiry(&self, end_us: u64, ttl: Duration) -> (u64, Promoted) {
        let demoted = self.candidates[0].wait_event(0, "demoted", CAP);
        assert_eq!((demoted.text("reason"), demoted.token()), ("expired", Some(self.leader.token)));
        let ended_us = demoted.number("ended_us");
        // Redis counts the ttl from when the renewal arrived, the leader from before it was sent.
        assert!(
            ended_us + us(stop_margin(ttl)) <= end_us + CLOCKS_US,
            "the lease ended at {end_us}: {}",
            demoted.value
        );
        let next = next_leader(&self.candidates, self.leader.token);
        assert_eq!(next.index, 1, "{next:?}");
        // No reading after the end is true, says the judge; this one shows that there was one to judge.
        self.candidates[0]
            .wait_for(|line| line.is("sample") && line.at_us() >= ended_us && line.token().is_none(), CAP);
        (demoted.at_us().saturating_sub(ended_us), next)
    }
}

#[test]
fn a_leader_behind_a_black_hole_demotes_itself_at_its_deadline() {
    const TTL: Duration = Duration::from_millis(600);
    const ROUNDS: u32 = 6;
    /// How late the demotion may be told: what waking a thread takes on a busy machine.
    const LATE_US: u64 = 20_000;

    let server = Server::start();
    let mut admin = server.admin();
    let (mut late_us, mut taken_us) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let proxy = Proxy::to(&server);
        // With either policy: retrying ends at the same deadline, and so does the one renewal of the other.
        let policy = ["demote", "retry"][round as usize % 2];
        let args = ["--ttl", "600ms", "--wait", "600ms", "--sample", "5ms", "--on-renew-error", policy];
        let mut pair = Pair::start(&server, &proxy, &args);
        // Each hole opens at another moment between two renewals.
        thread::sleep(TTL / 2 * round / ROUNDS);
        proxy.hold();
        let end_us = lease_end_us(&mut admin, &pair.key).expect("a leader has a lease");
        let (late, next) = pair.wait_for_expiry(end_us, TTL);
        late_us.push(late);
        taken_us.push(next.at_us.saturating_sub(end_us));
        // What was held is executed now, and must not count for anything.
        proxy.pass();
        let behind_id = id_and_key(&pair.candidates[1]).0;
        pair.candidates[0].wait_for(|line| line.is("leader") && line.value["id"] == *behind_id, CAP);
        assert_one_leader_at_a_time(&end(&mut pair.candidates));
        assert_eq!(promotions(&pair.candidates).len(), 2);
    }
    let worst = late_us.iter().copied().max().unwrap_or_default();
    eprintln!(
        "demotion behind a black hole: median {:.1} ms, worst {:.1} ms of {ROUNDS} after the deadline; \
         the next leader: worst {:.1} ms after the lease's end",
        ms(median(&late_us)),
        ms(worst),
        ms(taken_us.iter().copied().max().unwrap_or_default()),
    );
    assert!(worst <= LATE_US, "{late_us:?}");
}

#[test]
fn the_deadline_counts_from_the_send_however_late_the_replies_come() {
    const TTL: Duration = Duration::from_secs(1);

    let server = Server::start();
    let mut admin = server.admin();
    let proxy = Proxy::to(&server);
    let mut pair = Pair::start(&server, &proxy, &["--ttl", "1s", "--wait", "1s", "--sample", "5ms"]);
    let mut end_us = lease_end_us(&mut admin, &pair.key).expect("a leader has a lease");
    proxy.delay_replies(TTL * 3 / 10);
    for _ in 0..2 {
        end_us = wait_for_renewal(&mut admin, &pair.key, end_us);
    }
    // The reply has reached the leader, and the next renewal comes half a ttl after this one. Would the deadline
    // count from the reply, it would lie a quarter of a ttl after the lease's end.
    thread::sleep(TTL * 4 / 10);
    proxy.hold();
    let end_us = lease_end_us(&mut admin, &pair.key).expect("a leader has a lease");
    pair.wait_for_expiry(end_us, TTL);
    assert_one_leader_at_a_time(&end(&mut pair.candidates));
}

#[test]
fn connections_that_are_killed_while_idle_cost_nothing() {
    const TTL: Duration = Duration::from_secs(1);
    const ROUNDS: u32 = 5;

    let server = Server::start();
    let mut admin = server.admin();
    let group = unique_group("killed-idle");
    let start = || Campaign::start(&group, &server.url(), &["--ttl", "1s"]);
    let leader = start();
    let token = leader.wait_event(0, "promoted", CAP).token();
    let follower = start();
    wait_until_following(&follower);
    let (id, key) = id_and_key(&leader);
    let mut end_us = lease_end_us(&mut admin, &key).expect("a leader has a lease");
    for _ in 0..ROUNDS {
        // A quarter of a ttl after a renewal. The follower asks when the lease would have ended without one,
        // which is about when the leader renews.
        wait_until_remaining(&mut admin, &key, TTL, TTL * 3 / 4);
        let killed = admin.command(&["CLIENT", "KILL", "TYPE", "normal"]).int();
        assert!(killed >= 1, "the leader at least has a connection");
        end_us = wait_for_renewal(&mut admin, &key, end_us);
    }
    for candidate in [&leader, &follower] {
        let lines = troubles(candidate);
        assert!(lines.is_empty(), "{}: {lines:?}", candidate.name());
    }
    assert_eq!(admin.command(&["GET", &key]).text(), id);
    assert_eq!(promotions(&[leader, follower]).iter().map(|it| Some(it.token)).collect::<Vec<_>>(), [token]);
}

#[test]
fn connections_that_the_server_closes_for_idleness_cost_nothing() {
    // The server closes a connection that was idle for more than one whole second, which takes it up to 2.1 s.
    // With the default ttl of 5 s a renewal comes every 2.5 s.
    const RENEWALS: u64 = 3;

    let server = Server::with(&["--timeout", "1"]);
    let proxy = Proxy::to(&server);
    let group = unique_group("closed-idle");
    let leader = Campaign::start(&group, &proxy.url(), &["--ttl", "5s"]);
    let token = leader.wait_event(0, "promoted", CAP).token();
    let follower = Campaign::start(&group, &server.url(), &["--ttl", "5s"]);
    wait_until_following(&follower);
    let (_, key) = id_and_key(&leader);
    // Asked all the time, this connection is never idle.
    let mut admin = server.admin();
    let mut end_us = lease_end_us(&mut admin, &key).expect("a leader has a lease");
    for _ in 0..RENEWALS {
        end_us = wait_for_renewal(&mut admin, &key, end_us);
    }
    let connections = proxy.traffic().connections;
    assert!(connections > RENEWALS, "{connections} connections: the server has closed none");
    for candidate in [&leader, &follower] {
        let lines = troubles(candidate);
        assert!(lines.is_empty(), "{}: {lines:?}", candidate.name());
    }
    assert_eq!(promotions(&[leader, follower]).iter().map(|it| Some(it.token)).collect::<Vec<_>>(), [token]);
}

/// Three candidates that sample, on a server that fails.
struct Trio {
    candidates: Vec<Campaign>,
    leader: Promoted,
    key: String,
}

impl Trio {
    const TTL: Duration = Duration::from_millis(600);
    const WAIT: Duration = Duration::from_millis(600);

    fn start(server: &Server, group: &str, args: &[&str]) -> Self {
        let mut trio = Self {
            candidates: Vec::new(),
            leader: Promoted { token: 0, index: 0, at_us: 0 },
            key: String::new(),
        };
        trio.add(server, group, args);
        trio.leader = next_leader(&trio.candidates, 0);
        trio.key = id_and_key(&trio.candidates[0]).1;
        for _ in 0..2 {
            trio.add(server, group, args);
            wait_until_following(trio.candidates.last().expect("one was added"));
        }
        trio
    }

    fn add(&mut self, server: &Server, group: &str, args: &[&str]) {
        let all: Vec<_> =
            ["--ttl", "600ms", "--wait", "600ms", "--sample", "5ms"].iter().chain(args).copied().collect();
        self.candidates.push(Campaign::start(group, &server.url(), &all));
    }

    /// Waits for a moment between two renewals, each round for another one, and returns the lease's end.
    fn wait_between_renewals(&self, admin: &mut Admin, round: u32) -> u64 {
        let remaining = Self::TTL / 20 * [19, 16, 13][round as usize % 3];
        wait_until_remaining(admin, &self.key, Self::TTL, remaining)
    }

    /// Waits for a leader after the fault, which must come within ttl + wait of the fault's end and must stay:
    /// it renews, and nobody else leads. Returns how long it took.
    #[track_caller]
    fn wait_for_recovery(&mut self, admin: &mut Admin, fault_ended_us: u64) -> u64 {
        let next = next_leader(&self.candidates, self.leader.token);
        let taken_us = next.at_us.saturating_sub(fault_ended_us);
        // A lease that an answer lost in the fault has won ends within a ttl, and a candidate contends at
        // least once per wait.
        assert!(taken_us <= us(Self::TTL + Self::WAIT), "no leader for {taken_us} µs after the fault");
        let (id, _) = id_and_key(&self.candidates[next.index]);
        for _ in 0..2 {
            let end_us = lease_end_us(admin, &self.key).expect("a leader has a lease");
            wait_for_renewal(admin, &self.key, end_us);
            assert_eq!(admin.command(&["GET", &self.key]).text(), id);
        }
        self.leader = next;
        taken_us
    }

    /// The old leader told that its term ended by its deadline: a stop margin before the lease's end.
    #[track_caller]
    fn assert_expired_by(&self, index: usize, token: u64, end_us: u64, reasons: &[&str]) {
        let demoted =
            self.candidates[index].wait_for(|line| line.is("demoted") && line.token() == Some(token), CAP);
        assert!(reasons.contains(&demoted.text("reason")), "{}", demoted.value);
        assert!(
            demoted.number("ended_us") + us(stop_margin(Self::TTL)) <= end_us + CLOCKS_US,
            "the lease ended at {end_us}: {}",
            demoted.value
        );
    }
}

#[test]
fn a_frozen_server_ends_the_term_and_elects_one_leader_once_it_goes_on() {
    const ROUNDS: u32 = 3;

    let server = Server::start();
    let mut admin = server.admin();
    let mut trio = Trio::start(&server, &unique_group("frozen"), &[]);
    let mut taken_us = Vec::new();
    for round in 0..ROUNDS {
        let old = trio.leader;
        let end_us = trio.wait_between_renewals(&mut admin, round);
        server.freeze();
        thread::sleep(Trio::TTL * 3);
        trio.assert_expired_by(old.index, old.token, end_us, &["expired"]);
        let thawed_us = now_us();
        server.thaw();
        taken_us.push(trio.wait_for_recovery(&mut admin, thawed_us));
    }
    assert_one_leader_at_a_time(&end(&mut trio.candidates));
    assert_eq!(promotions(&trio.candidates).len(), ROUNDS as usize + 1);
    report("a server frozen for 3 ttls", &taken_us);
}

#[test]
fn a_paused_server_ends_the_term_and_elects_one_leader_once_it_goes_on() {
    const ROUNDS: u32 = 3;

    let server = Server::start();
    let mut admin = server.admin();
    let mut trio = Trio::start(&server, &unique_group("paused"), &[]);
    let mut taken_us = Vec::new();
    for round in 0..ROUNDS {
        let old = trio.leader;
        let end_us = trio.wait_between_renewals(&mut admin, round);
        let pause = Trio::TTL * 2;
        let paused = admin.command(&["CLIENT", "PAUSE", &pause.as_millis().to_string(), "ALL"]);
        assert_eq!(paused.text(), "OK");
        let pause_ends_us = now_us() + us(pause);
        trio.assert_expired_by(old.index, old.token, end_us, &["expired"]);
        // It is answered when the pause is over, for it is paused itself.
        admin.command(&["PING"]);
        taken_us.push(trio.wait_for_recovery(&mut admin, pause_ends_us));
    }
    assert_one_leader_at_a_time(&end(&mut trio.candidates));
    assert_eq!(promotions(&trio.candidates).len(), ROUNDS as usize + 1);
    report("CLIENT PAUSE ALL for 2 ttls", &taken_us);
}

#[test]
fn a_server_that_is_down_for_two_ttls_and_comes_back_empty_elects_one_leader_with_a_larger_token() {
    const ROUNDS: u32 = 3;

    let mut server = Server::start();
    let mut trio = Trio::start(&server, &unique_group("down"), &[]);
    let mut taken_us = Vec::new();
    for round in 0..ROUNDS {
        let old = trio.leader;
        let end_us = trio.wait_between_renewals(&mut server.admin(), round);
        server.kill();
        trio.assert_expired_by(old.index, old.token, end_us, &["renew_error", "expired"]);
        thread::sleep(Trio::TTL * 2);
        server.restart();
        let back_us = now_us();
        taken_us.push(trio.wait_for_recovery(&mut server.admin(), back_us));
    }
    assert_one_leader_at_a_time(&end(&mut trio.candidates));
    assert_eq!(promotions(&trio.candidates).len(), ROUNDS as usize + 1);
    report("a server down for 2 ttls and back empty", &taken_us);
}

#[test]
fn a_server_that_restarts_empty_has_two_leaders_for_less_than_a_ttl_and_tokens_that_increase() {
    const ROUNDS: u32 = 4;

    let mut overlap_us = Vec::new();
    let mut taken_us = Vec::new();
    for round in 0..ROUNDS {
        let mut server = Server::start();
        let group = unique_group("restarted");
        let mut trio = Trio::start(&server, &group, &[]);
        let old = trio.leader;
        trio.wait_between_renewals(&mut server.admin(), round);
        server.restart();
        let back_us = now_us();
        // The others believe that the lease goes on; a newcomer finds it gone, and wins at once.
        trio.add(&server, &group, &[]);
        taken_us.push(trio.wait_for_recovery(&mut server.admin(), back_us));
        // The next renewal tells the old leader; and without any answer its deadline would end the term.
        let demoted = trio.candidates[old.index].wait_event(0, "demoted", CAP);
        let reasons = ["lost", "renew_error", "expired"];
        assert!(reasons.contains(&demoted.text("reason")), "{}", demoted.value);

        let histories = end(&mut trio.candidates);
        let two = overlaps(&histories);
        // Two leaders are all that may be wrong, and only the old one with the new one.
        assert_eq!(violations(&histories).len(), two.len(), "{:#?}", violations(&histories));
        for overlap in &two {
            let (low, high) =
                (overlap.tokens.0.min(overlap.tokens.1), overlap.tokens.0.max(overlap.tokens.1));
            assert_eq!((low, high), (old.token, trio.leader.token), "{overlap}");
        }
        // The old leader's last renewal was answered before the server ended, and counts from before that.
        let most = two.iter().map(|it| it.to_us - it.from_us).max().unwrap_or_default();
        assert!(most <= us(Trio::TTL - stop_margin(Trio::TTL)), "{two:?}");
        overlap_us.push(most);
    }
    eprintln!(
        "two leaders after a restart without data, ttl 600 ms: median {:.1} ms, worst {:.1} ms of {ROUNDS}",
        ms(median(&overlap_us)),
        ms(overlap_us.iter().copied().max().unwrap_or_default()),
    );
    report("a server restarted empty", &taken_us);
}

fn report(fault: &str, taken_us: &[u64]) {
    eprintln!(
        "a leader again after {fault}, ttl and wait 600 ms: median {:.1} ms, worst {:.1} ms of {}",
        ms(median(taken_us)),
        ms(taken_us.iter().copied().max().unwrap_or_default()),
        taken_us.len(),
    );
}

#[test]
fn a_server_that_becomes_a_replica_is_a_wrong_node_and_demotes() {
    become_a_replica("demote", "renew_error");
}

#[test]
fn a_server_that_becomes_a_replica_is_a_wrong_node_until_the_deadline_when_retrying() {
    become_a_replica("retry", "expired");
}

fn become_a_replica(policy: &str, reason: &str) {
    let server = Server::start();
    let mut admin = server.admin();
    let mut trio = Trio::start(&server, &unique_group("replica"), &["--on-renew-error", policy]);
    let old = trio.leader;
    // A master that cannot be reached leaves the data alone, so a stale "no" or "yes" could be read.
    let end_us = trio.wait_between_renewals(&mut admin, 1);
    assert_eq!(admin.command(&["REPLICAOF", "127.0.0.1", "1"]).text(), "OK");
    trio.assert_expired_by(old.index, old.token, end_us, &[reason]);
    for candidate in &trio.candidates {
        candidate.wait_event(0, "error", CAP);
    }
    // The lease's own end changes nothing: a replica elects nobody.
    while now_us() < end_us + us(Trio::TTL) {
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(promotions(&trio.candidates).len(), 1);
    let back_us = now_us();
    assert_eq!(admin.command(&["REPLICAOF", "NO", "ONE"]), Reply::Text("OK".to_owned()));
    let taken_us = trio.wait_for_recovery(&mut admin, back_us);
    for line in trio.candidates.iter().flat_map(troubles) {
        match line.event() {
            "error" => assert_eq!(line.text("kind"), "wrong_node", "{}", line.value),
            _ => assert_eq!((line.event(), line.text("reason")), ("demoted", reason), "{}", line.value),
        }
    }
    assert_one_leader_at_a_time(&end(&mut trio.candidates));
    report(&format!("REPLICAOF, --on-renew-error {policy}"), &[taken_us]);
}

#[test]
fn a_leader_that_retries_survives_resets_for_three_tenths_of_a_ttl_without_a_word() {
    const TTL: Duration = Duration::from_secs(1);
    const ROUNDS: u32 = 5;

    let server = Server::start();
    let mut admin = server.admin();
    let proxy = Proxy::to(&server);
    let args = ["--ttl", "1s", "--wait", "1s", "--sample", "5ms", "--on-renew-error", "retry"];
    let mut pair = Pair::start(&server, &proxy, &args);
    for _ in 0..ROUNDS {
        // The renewal is due when a half is left. It fails, and so does all that is tried until a quarter or a
        // little more is left, a fifth of the ttl before the deadline.
        let end_us = wait_until_remaining(&mut admin, &pair.key, TTL, TTL * 12 / 20);
        proxy.refuse(true);
        proxy.reset_all();
        thread::sleep(TTL * 3 / 10);
        proxy.refuse(false);
        wait_for_renewal(&mut admin, &pair.key, end_us);
    }
    for candidate in &pair.candidates {
        let lines = troubles(candidate);
        assert!(lines.is_empty(), "{}: {lines:?}", candidate.name());
    }
    let histories = end(&mut pair.candidates);
    assert_one_leader_at_a_time(&histories);
    assert_eq!(promotions(&pair.candidates).len(), 1);
    assert!(histories[0].proven().iter().all(|proven| proven.token == pair.leader.token));
}
