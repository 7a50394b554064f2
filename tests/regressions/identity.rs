//! Who is who: instances of one name, instances that come back, and keys that are something else.

use taskrunner::election::{Elector, ErrorKind, MemoryStore, Reason};

use super::{CAP, MS, builder, follows, key_of, lease_end_us, renews, term_field};
use crate::support::{Admin, Campaign, Reply, Server, unique_group};

/// B50: the identity was the host's name, and all that had the same one led at once.
#[test]
fn of_instances_with_one_name_one_leads() {
    let store = MemoryStore::new();
    let start = || {
        let builder = Elector::builder(store.clone(), "group").name("web-1").ttl(3000 * MS).wait(50 * MS);
        builder.start().expect("good options")
    };
    let first = start();
    let token = first.wait_for_leadership(CAP).expect("leads").token();
    let others = [start(), start()];
    for other in &others {
        assert_eq!(follows(other), first.id(), "another, though it has the same name");
        assert_ne!(other.id(), first.id());
    }
    // Each of them asks more than once meanwhile.
    renews(&first, 2);
    assert!(others.iter().all(|other| other.status().counters.promotions == 0));
    first.stop().expect("the memory answers");
    let [second, third] = others;
    let led = second.wait_for_leadership(MS * 500).or_else(|_| third.wait_for_leadership(CAP));
    assert!(led.expect("one of them is next").token() > token);
    assert!(!(second.is_leader() && third.is_leader()));
}

/// B51: a process that was started again found its own name in the store, and took itself for the leader.
#[test]
fn a_killed_leader_that_comes_back_under_its_name_waits_for_the_old_lease_and_is_promoted_anew() {
    let server = Server::start();
    let mut admin = server.admin();
    let group = unique_group("comes-back");
    let start = || Campaign::start(&group, &server.url(), &["--ttl", "1500ms", "--id", "web-1"]);
    let mut old = start();
    let token = old.wait_event(0, "promoted", CAP).token();
    let key = old.wait_event(0, "started", CAP).text("key").to_owned();
    old.kill9();
    // What it had sent is executed when a later command is answered.
    admin.command(&["PING"]);
    let end_us = lease_end_us(&mut admin, &key);
    let mut new = start();
    let promoted = new.wait_event(0, "promoted", CAP);
    assert!(promoted.token() > token, "{}", promoted.value);
    // By the server's own clock.
    let since_us = term_field(&mut admin, &key, "since");
    assert!(since_us > end_us, "won {} µs before the old lease's end", end_us.abs_diff(since_us));
    new.terminate();
    new.wait_exit(CAP);
    assert_eq!(new.events().iter().filter(|line| line.is("promoted")).count(), 1);
}

/// B52: a key that held something else was overwritten, deleted, or taken for another leader.
#[test]
fn a_lease_key_that_holds_something_else_is_told_and_left_alone_and_ends_a_term() {
    let server = Server::start();
    let mut admin = server.admin();
    for (kind, write) in [
        ("list", &["RPUSH", "x"][..]),
        ("hash", &["HSET", "x", "y"]),
        ("set", &["SADD", "x"]),
        ("zset", &["ZADD", "1", "x"]),
    ] {
        let group = unique_group("something-else");
        let key = key_of(&group);
        let put = |admin: &mut Admin| {
            // Nobody else writes between the two.
            let reply = admin.command(&["MULTI"]);
            assert_eq!(reply.text(), "OK");
            admin.command(&["DEL", &key]);
            admin.command(&[&[write[0], &key], &write[1..]].concat());
            assert_eq!(admin.command(&["EXEC"]).list()[1], Reply::Int(1));
        };
        let is_told = |elector: &Elector, admin: &mut Admin| {
            let errors = elector.on_error();
            // Three that come after the key was written, beside those that a slow machine may have.
            errors.try_iter().for_each(drop);
            let told = std::iter::repeat_with(|| errors.recv_timeout(CAP).expect("an error is told"));
            for error in told.filter(|error| error.kind() == ErrorKind::Configuration).take(3) {
                assert!(error.to_chain().contains("WRONGTYPE"), "{kind}: {}", error.to_chain());
            }
            assert!(!elector.is_leader());
            assert_eq!(admin.command(&["TYPE", &key]).text(), kind);
        };
        put(&mut admin);
        let elector = builder(&server.url(), &group).ttl(1000 * MS).wait(50 * MS).start();
        let elector = elector.expect("good options");
        is_told(&elector, &mut admin);
        assert_eq!(elector.status().leader, None, "{kind}: nobody leads");
        admin.command(&["DEL", &key]);
        let before = elector.wait_for_leadership(CAP).expect("leads once the key is free");
        // In the middle of a term.
        put(&mut admin);
        let demotion = elector.on_demote().recv_timeout(CAP).expect("the term has ended");
        // A slow machine may come to its deadline first.
        assert!(matches!(demotion.reason, Reason::RenewError | Reason::Expired), "{kind}: {demotion:?}");
        is_told(&elector, &mut admin);
        admin.command(&["DEL", &key]);
        assert!(elector.wait_for_leadership(CAP).expect("leads again").token() > before.token());
        elector.stop().expect("released");
    }
}
