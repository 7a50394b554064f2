//! Logins and TLS where there is more than one server: in clusters, with Sentinels, and with replicas.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use taskrunner::election::{
    Builder, Credentials, Elector, ErrorKind, MemoryStore, RedisStore, RenewError, Strict, Tls,
};

use crate::acl::{
    OF_CLUSTER, OF_SENTINEL, OF_STRICT, expect_named, follows, leads, renews, rights, set_user,
};
use crate::support::cluster::join;
use crate::support::replicas::{ARGS, wait_for_replicas};
use crate::support::tls::{Authority, ONLY_TLS, TlsServer, Validity, is_here};
use crate::support::{Campaign, Replicas, Reply, Server, eventually, unique_group};

/// Longer than anything takes that is to happen.
const CAP: Duration = Duration::from_secs(60);

const MS: Duration = Duration::from_millis(1);

/// Of a lease that a busy machine, too, renews in time.
const TTL: Duration = Duration::from_secs(10);

const CLUSTER: [&str; 2] = ["--cluster-enabled", "yes"];

fn builder(store: &RedisStore, group: &str) -> Builder {
    Elector::builder(store.clone(), group)
}

/// Makes a user of these rights, and leaves nobody else who could elect.
fn only_svc(server: &Server, rights: &[&str]) {
    set_user(server, "svc", rights);
    assert_eq!(server.command(&["ACL", "SETUSER", "default", "-eval"]).text(), "OK");
}

fn svc() -> io::Result<Credentials> {
    Ok(Credentials::new(Some("svc"), "svc"))
}

/// Two nodes, each with half of the slots.
fn two_nodes(rights: &[&str]) -> [Server; 2] {
    let nodes = [(); 2].map(|()| Server::with(&CLUSTER));
    join(&nodes.each_ref().map(|node| (node, node.port())));
    nodes.iter().for_each(|node| only_svc(node, rights));
    nodes
}

/// A cluster of which the first node is known, and the user to everybody.
fn cluster(nodes: &[Server; 2]) -> RedisStore {
    RedisStore::open(&format!("redis-cluster://svc:svc@{}", nodes[0].address())).expect("a good url")
}

fn of_cluster() -> Vec<&'static str> {
    [&rights()[..], &OF_CLUSTER].concat()
}

/// Throws a leader out, whose next renewal goes over a new connection to this node.
#[track_caller]
fn disconnect(node: &Server) {
    assert!(node.command(&["CLIENT", "KILL", "USER", "svc"]).int() > 0);
}

/// A group that this one of two nodes has, and its slot.
fn group_at(node: &Server, index: i64) -> (String, String) {
    let slot = |group: &str| {
        let elector = Elector::builder(MemoryStore::new(), group).start().expect("good options");
        node.command(&["CLUSTER", "KEYSLOT", elector.key()]).int()
    };
    let groups = std::iter::repeat_with(|| unique_group("node")).map(|group| (slot(&group), group));
    let (slot, group) =
        groups.take(1000).find(|(slot, _)| slot / 8192 == index).expect("half of them are there");
    (group, slot.to_string())
}

/// Two electors, of which the second is woken by the first.
fn hands_over(store: &RedisStore, group: &str) -> u64 {
    let start = || builder(store, group).ttl(2 * CAP).wait(2 * CAP).start().expect("good options");
    let first = start();
    let before = leads(&first);
    let second = start();
    follows(&second);
    first.stop().expect("released");
    // Its own next attempt would come only after the end of the test.
    let after = leads(&second);
    assert!(after > before);
    second.stop().expect("released");
    for elector in [first, second] {
        let errors: Vec<_> = elector.on_error().try_iter().map(|error| error.to_chain()).collect();
        assert!(errors.is_empty(), "{errors:?}");
    }
    after
}

#[test]
fn an_election_in_a_cluster_needs_the_rights_of_one_server_and_asking_while_its_slot_moves() {
    let nodes = two_nodes(&of_cluster());
    for index in [0, 1] {
        hands_over(&cluster(&nodes), &group_at(&nodes[0], index).0);
    }
    let (group, slot) = group_at(&nodes[0], 0);
    let elector = builder(&cluster(&nodes), &group).ttl(TTL).wait(100 * MS).renew_error(RenewError::Retry);
    let elector = elector.start().expect("good options");
    let leadership = elector.wait_for_leadership(CAP).expect("leads");
    // The keys have moved, and the node that has the slot still sends everybody after them.
    let ids = nodes.each_ref().map(|node| node.command(&["CLUSTER", "MYID"]).text().to_owned());
    nodes[1].command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[0]]);
    nodes[0].command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[1]]);
    let term = format!("{{{}}}:term", elector.key());
    for key in [elector.key(), &term] {
        let moved =
            nodes[0].command(&["MIGRATE", "127.0.0.1", &nodes[1].port().to_string(), key, "0", "5000"]);
        assert_eq!(moved.text(), "OK");
    }
    renews(&elector, 1);
    assert!(leadership.is_valid());
    assert_eq!(nodes[1].command(&["ACL", "SETUSER", "svc", "-asking"]).text(), "OK");
    expect_named(&elector, "asking", &["asking"], None);
}

#[test]
fn strict_with_a_replica_needs_the_rights_that_are_documented_for_it() {
    let servers = Replicas::start(1);
    only_svc(&servers.master, &[&rights()[..], &OF_STRICT].concat());
    let store = RedisStore::open(&servers.master.url()).expect("a good url").with_credentials(svc);
    let ttl = 1000 * MS;
    let group = unique_group("strict");
    let start = || {
        let strict = Strict::replicas(1).longest_ttl(ttl);
        builder(&store, &group).ttl(ttl).wait(100 * MS).strict(strict).start().expect("good options")
    };
    let first = start();
    let before = leads(&first);
    let second = start();
    follows(&second);
    renews(&first, 2);
    first.stop().expect("released");
    assert!(leads(&second) > before);
    // A replica on a busy machine may not acknowledge in time.
    let errors = [first, second].map(|elector| elector.on_error());
    assert!(
        errors.iter().flat_map(|errors| errors.try_iter()).all(|error| error.kind() == ErrorKind::Passing)
    );
}

#[test]
fn a_function_for_credentials_that_fails_panics_or_hangs_has_no_way_to_a_node_cut() {
    let nodes = two_nodes(&rights());
    let group = group_at(&nodes[0], 1).0;
    let (hold, held) = crossbeam_channel::bounded::<()>(0);
    let does = Arc::new(AtomicUsize::new(0));
    let doing = Arc::clone(&does);
    let store = RedisStore::cluster([nodes[0].url()]).expect("a good url").with_credentials(move || {
        match doing.load(Ordering::SeqCst) {
            0 => svc(),
            1 => Err(io::Error::other("the vault is sealed")),
            2 => panic!("the vault is broken"),
            _ => held.recv().map_err(io::Error::other).and_then(|()| svc()),
        }
    });
    let elector = builder(&store, &group).ttl(TTL).renew_error(RenewError::Retry);
    let elector = elector.start().expect("good options");
    let leadership = elector.wait_for_leadership(CAP).expect("leads");
    for what in 1..=3 {
        does.store(what, Ordering::SeqCst);
        disconnect(&nodes[1]);
        renews(&elector, 1);
        assert!(leadership.is_valid(), "{what}");
    }
    let stopped = elector.stop().expect_err("a call is running");
    assert_eq!(stopped.kind(), ErrorKind::Overrun, "{}", stopped.to_chain());
    assert_eq!(nodes[1].command(&["EXISTS", elector.key()]), Reply::Int(0), "it is released");
    // Of somebody who has nothing to fall back on: an error in time, and not a wait for ever.
    let other = builder(&store, &unique_group("none")).ttl(2000 * MS).wait(100 * MS).start();
    let other = other.expect("good options");
    let error = other.on_error().recv_timeout(CAP).expect("it is told");
    assert_eq!(error.kind(), ErrorKind::Passing);
    let chain = error.to_chain();
    assert!(chain.contains("asking for the credentials took longer"), "{chain}");
    drop(hold);
}

/// A primary and its replica, and the lines of a sentinel that watches them.
fn watched(servers: [&Server; 2], ports: [u16; 2]) -> String {
    let port = ports[0].to_string();
    assert_eq!(servers[1].command(&["REPLICAOF", "127.0.0.1", &port]).text(), "OK");
    // A sentinel looks again for replicas only after ten seconds.
    wait_for_replicas(servers[0], 1);
    format!(
        "sentinel monitor mymaster 127.0.0.1 {port} 1\n\
         sentinel down-after-milliseconds mymaster 1500\n\
         sentinel failover-timeout mymaster 3000\n"
    )
}

/// Waits until the sentinel knows of the replica.
fn knows_the_replica(sentinel: &Server) {
    eventually(CAP, || {
        let reply = sentinel.command(&["SENTINEL", "REPLICAS", "mymaster"]);
        let known = |it: &Reply| it.list().iter().any(|it| *it == Reply::Text("slave".to_owned()));
        match &reply {
            Reply::List(replicas) if replicas.len() == 1 && known(&replicas[0]) => Ok(()),
            _ => Err(reply),
        }
    });
}

/// Of two electors one leads after the primary has died, on the server that was its replica.
fn survives_the_primary(store: &RedisStore, primary: &mut Server) {
    let group = unique_group("failover");
    let before = hands_over(store, &group);
    let start = || builder(store, &group).ttl(2000 * MS).wait(200 * MS).start().expect("good options");
    let electors = [start(), start()];
    eventually(CAP, || electors.iter().find_map(Elector::leadership).ok_or("nobody leads"));
    primary.kill();
    let lost = electors.each_ref().map(Elector::on_demote);
    eventually(CAP, || if lost.iter().any(|lost| !lost.is_empty()) { Ok(()) } else { Err("it leads on") });
    let after = eventually(CAP, || electors.iter().find_map(Elector::leadership).ok_or("nobody leads"));
    assert!(after.token() > before);
}

#[test]
fn a_user_of_a_sentinel_needs_one_right_and_has_nothing_to_do_with_the_servers_user() {
    let mut servers = [(); 2].map(|()| Server::with(&ARGS));
    let ports = servers.each_ref().map(Server::port);
    let sentinel = Server::configured(&watched(servers.each_ref(), ports), &["--sentinel"]);
    knows_the_replica(&sentinel);
    servers.iter().for_each(|server| only_svc(server, &rights()));
    set_user(&sentinel, "watch", &OF_SENTINEL);
    assert_eq!(sentinel.command(&["ACL", "SETUSER", "default", "-sentinel"]).text(), "OK");
    let url = |login: &str| format!("redis://{login}{}", sentinel.address());
    let store =
        |login| RedisStore::sentinel([url(login)], "mymaster").expect("a good url").with_credentials(svc);
    for (login, part) in [("", "sentinel"), ("watch:wrong@", "WRONGPASS"), ("svc:svc@", "WRONGPASS")] {
        let refused = builder(&store(login), &unique_group("refused")).wait(100 * MS).start();
        expect_named(&refused.expect("good options"), login, &[part], None);
    }
    survives_the_primary(&store("watch:watch@"), &mut servers[0]);
}

fn trusting(authority: &Authority) -> Tls {
    Tls::default().with_ca(authority.pem()).expect("a good certificate")
}

#[test]
fn a_cluster_that_has_tls_only_is_led_in_on_every_node_and_taken_over_in_after_a_crash() {
    if !is_here() {
        return;
    }
    let authority = Authority::new();
    let args = [&ONLY_TLS[..], &CLUSTER, &["--tls-cluster", "yes", "--tls-auth-clients", "yes"]].concat();
    let nodes = [(); 2].map(|()| TlsServer::start(&authority, &args));
    join(&nodes.each_ref().map(|node| (&node.server, node.tls_port)));
    nodes.iter().for_each(|node| only_svc(&node.server, &rights()));
    let url = format!("rediss-cluster://svc:svc@127.0.0.1:{}", nodes[0].tls_port);
    let (certificate, key) = authority.sign(&["client"], Validity::Now);
    let tls = trusting(&authority).with_client_certificate(certificate, key).expect("they belong together");
    let store = RedisStore::open(&url).expect("a good url").with_tls(tls);
    let (certificate, key) = authority.sign_files(&["client"], Validity::Now);
    let file = |path: &std::path::Path| path.to_str().expect("a path of the harness").to_owned();
    let files = [authority.file(), certificate, key].map(|path| file(&path));
    for index in [0, 1] {
        let group = group_at(&nodes[0].server, index).0;
        let before = hands_over(&store, &group);
        let args = ["--ttl", "1s", "--tls-ca", &files[0], "--tls-cert", &files[1], "--tls-key", &files[2]];
        let mut dying = Campaign::start(&group, &url, &args);
        let token = dying.wait_for(|line| line.is("promoted"), CAP).token().expect("a token");
        dying.kill9();
        let next = builder(&store, &group).start().expect("good options");
        assert!(before < token && token < leads(&next));
        next.stop().expect("released");
    }
}

#[test]
fn sentinels_that_have_tls_only_lead_to_a_primary_that_has_too_and_to_the_next_one() {
    if !is_here() {
        return;
    }
    let authority = Authority::new();
    let args = [&ONLY_TLS[..], &ARGS].concat();
    let mut servers = [(); 2].map(|()| TlsServer::start(&authority, &args));
    let lines = watched(servers.each_ref().map(|it| &it.server), servers.each_ref().map(|it| it.tls_port));
    let sentinel = TlsServer::sentinel(&authority, &lines);
    knows_the_replica(&sentinel.server);
    servers.iter().for_each(|server| only_svc(&server.server, &rights()));
    let url = format!("rediss://127.0.0.1:{}", sentinel.tls_port);
    let store = RedisStore::sentinel([&url], "mymaster").expect("a good url");
    let store = store.with_tls(trusting(&authority)).with_credentials(svc);
    survives_the_primary(&store, &mut servers[0].server);
}
