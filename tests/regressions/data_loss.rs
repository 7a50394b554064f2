//! Servers that lose what they were told: by a failover, a deletion, or a client that is gone.

use taskrunner::election::{Elector, ErrorKind, MemoryStore, Reason};

use super::{CAP, MS, Name, builder, demotion, follows, holder, key_of, leads, next, term_of};
use crate::support::{Campaign, Proxy, Reply, Server, eventually, unique_group};

/// B67: the lease was acknowledged by a primary that died before it told its replica, which was then promoted.
#[test]
fn a_lease_that_the_promoted_replica_never_heard_of_is_lost_and_the_next_token_is_larger() {
    let (mut primary, replica) = (Server::start(), Server::start());
    let group = unique_group("promoted");
    let port = primary.port().to_string();
    replica.command(&["REPLICAOF", "127.0.0.1", &port]);
    // Once it has been in step, the replica is cut off, so that it misses what comes.
    eventually(CAP, || match replica.command(&["INFO", "replication"]) {
        Reply::Text(info) if info.contains("master_link_status:up") => Ok(()),
        info => Err(info),
    });
    replica.command(&["REPLICAOF", "NO", "ONE"]);

    let name = Name::of(&primary);
    let old = name.builder(&group).ttl(4000 * MS).start().expect("good options");
    let events = old.events();
    let first = leads(&old);
    // Nobody there knows of the lease, nor of its token.
    let new = builder(&replica.url(), &group).ttl(4000 * MS).start().expect("good options");
    let second = leads(&new);
    assert!(second.token() > first.token(), "{} after {}", second.token(), first.token());
    name.move_to(&replica);
    primary.kill();
    // It asks the promoted one, which says that the lease is another's: no error, and no retries as a leader.
    let demoted = next(&events, "demoted", demotion);
    assert_eq!(demoted, (first.token(), Reason::Lost));
    follows(&old);
    assert!(!first.is_valid() && second.is_valid(), "it took nothing back");
    assert_eq!(holder(&mut replica.admin(), new.key()).as_deref(), Some(new.id()));
}

/// B69: the counter began anew with the server's data, so that clients refused the next leader.
#[test]
fn tokens_grow_whatever_part_of_the_data_is_lost() {
    let server = Server::start();
    let group = unique_group("emptied");
    let mut admin = server.admin();
    let mut last = 0;
    for loss in ["FLUSHALL", "both", "term", "nothing"] {
        // An instance that has seen no token of an earlier term.
        let elector = builder(&server.url(), &group).ttl(1000 * MS).start().expect("good options");
        let (events, token) = (elector.events(), leads(&elector).token());
        assert!(token > last, "{token} after {last}, and before {loss} is lost");
        let (lease, term) = (elector.key().to_owned(), term_of(elector.key()));
        match loss {
            "FLUSHALL" => _ = admin.command(&["FLUSHALL"]),
            "both" => assert_eq!(admin.command(&["UNLINK", &lease, &term]).int(), 2),
            // As an eviction may: the lease stands, and nothing says under which token.
            "term" => assert_eq!(admin.command(&["UNLINK", &term]).int(), 1),
            _ => {}
        }
        if loss != "nothing" {
            let lost = next(&events, "demoted", demotion);
            assert_eq!(lost, (token, Reason::Lost), "{loss}");
            let again = leads(&elector).token();
            assert!(again > token, "{again} after {token}, though {loss} was lost");
            last = again;
        }
        elector.stop().expect("released");
        // Nobody who saw a token is left, and nothing of it on the server.
        admin.command(&["FLUSHALL"]);
    }
}

/// B69: candidates that lost advanced the epoch all the same.
#[test]
fn attempts_that_lose_leave_the_term_and_the_lease_as_they_were() {
    const CANDIDATES: usize = 10;
    let server = Server::start();
    let group = unique_group("losing");
    // Renewed for the first time long after the test.
    let leader = builder(&server.url(), &group).ttl(CAP * 4).start().expect("good options");
    let leadership = leads(&leader);
    let mut admin = server.admin();
    let mut data = || {
        let term = admin.command(&["HGETALL", &term_of(leader.key())]);
        (term, admin.command(&["GET", leader.key()]), admin.command(&["PEXPIRETIME", leader.key()]))
    };
    let before = data();
    let candidates: Vec<_> = (0..CANDIDATES)
        .map(|_| builder(&server.url(), &group).wait(10 * MS).start().expect("good options"))
        .collect();
    for candidate in &candidates {
        eventually(CAP, || match candidate.status().counters.attempts {
            20.. => Ok(()),
            attempts => Err(attempts),
        });
    }
    assert_eq!(data(), before);
    assert!(leadership.is_valid());
}

/// B72: an acquire that was given up was executed all the same, and nobody served what it had won.
#[test]
fn what_a_dead_candidate_wins_by_an_attempt_that_comes_late_ends_after_a_ttl() {
    let server = Server::start();
    let mut admin = server.admin();
    let proxy = Proxy::to(&server);
    let group = unique_group("ghost");
    // Nobody asks within the cap, unless because a lease ends.
    let args = ["--ttl", "2s", "--wait", "120s"];
    let key = key_of(&group);
    admin.command(&["SET", &key, "foreign", "PX", "5000"]);
    let mut ghost = Campaign::start(&group, &proxy.url(), &args);
    let id = ghost.wait_event(0, "started", CAP).text("id").to_owned();
    ghost.wait_for(|line| line.is("leader") && line.value["id"] == "foreign", CAP);
    // It asks when the other's lease ends, over the connection that it has, and nothing of it arrives.
    proxy.hold();
    let before = proxy.traffic().to_server.bytes;
    eventually(CAP, || match proxy.traffic().to_server.bytes {
        // An attempt carries its script; whatever else it may send by then is shorter.
        bytes if bytes > before + 1000 => Ok(()),
        bytes => Err(bytes),
    });
    ghost.kill9();
    eventually(CAP, || holder(&mut admin, &key).map_or(Ok(()), Err));
    proxy.pass();
    eventually(CAP, || match holder(&mut admin, &key) {
        Some(holder) if holder == id => Ok(()),
        other => Err(other),
    });
    let field = |name: &str| -> u64 {
        server.command(&["HGET", &term_of(&key), name]).text().parse().expect("a number")
    };
    let (won, won_us) = (field("token"), field("since"));
    let next = Campaign::start(&group, &server.url(), &args);
    let promoted = next.wait_event(0, "promoted", CAP);
    assert!(promoted.token() > Some(won));
    // Both times are the server's own.
    let vacant_us = field("since") - won_us;
    assert!(vacant_us >= 2_000_000, "the lease was taken {vacant_us} µs after it was won, before its end");
}

/// B112: a leader that stood still between its check and its write wrote although another one led.
#[test]
fn a_resource_that_compares_tokens_refuses_the_write_of_an_earlier_term() {
    // What the README's SQL does.
    struct Resource {
        token: u64,
        written_by: &'static str,
    }
    impl Resource {
        fn write(&mut self, token: u64, by: &'static str) -> bool {
            let accepted = token >= self.token;
            if accepted {
                (self.token, self.written_by) = (token, by);
            }
            accepted
        }
    }
    let mut resource = Resource { token: 0, written_by: "nobody" };
    let store = MemoryStore::new();
    let (cuttable, switch) = store.with_switch();
    let builder = |store: MemoryStore| Elector::builder(store, "fenced").ttl(300 * MS).wait(100 * MS);
    let old = builder(cuttable).start().expect("good options");
    let first = leads(&old);
    first.check().expect("it leads");
    assert!(resource.write(first.token(), "old"));
    // From here on the old leader is between its next check and its write.
    switch.cut();
    let new = builder(store).start().expect("good options");
    let second = leads(&new);
    assert!(resource.write(second.token(), "new"));
    assert!(!resource.write(first.token(), "old"), "the write of an earlier term");
    assert_eq!(resource.written_by, "new");
    assert_eq!(first.check().expect_err("another one leads").kind(), ErrorKind::NotLeading);
    assert!(first.remaining().is_zero() && old.leadership().is_none());
}
