//! A server that loses its data: the lease that it forgets is still led by.

#![allow(clippy::print_stderr, reason = "the figures measured are told beside the test's output")]

use super::*;
use crate::support::Server;

const TTL: Duration = Duration::from_millis(300);

/// The followers ask all the time, so that one comes before the leader's next renewal.
const WAIT: Duration = Duration::from_millis(20);

#[test]
fn a_restart_without_persistence_never_has_two_leaders_under_strict() {
    lose("a restart without persistence", Server::restart);
}

#[test]
fn flushall_never_has_two_leaders_under_strict() {
    lose("FLUSHALL", |server| _ = server.command(&["FLUSHALL"]));
}

fn lose(what: &str, lose: fn(&mut Server)) {
    for strict in [None, Some(0)] {
        let mut server = Server::start();
        let mut candidates = Candidates::new("data-loss", TTL, WAIT, strict);
        for name in ["one", "two", "three"] {
            candidates.add(name, &server.url());
        }
        let mut taken_us = Vec::new();
        for _ in 0..rounds(5) {
            let old = candidates.leader();
            candidates.wait_for_some_moment();
            lose(&mut server);
            taken_us.push(candidates.take_over(old, now_us(), candidates.longest_takeover()));
        }
        let worst_us = candidates.judge();
        // The leader learns of it at its next renewal, half a ttl after the last one, or by its deadline.
        assert!(worst_us <= us(TTL), "two leaders for {:.1} ms", ms(worst_us));
        eprintln!(
            "{what}, ttl {TTL:?}, {}: the next leader {}; two leaders for {:.1} ms at most",
            candidates.kind(),
            figures(&taken_us),
            ms(worst_us),
        );
    }
}
