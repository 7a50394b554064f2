//! A master and its replicas, each of which replicates through a proxy of its own, so that it can be cut off.
//! Nobody watches them: a test promotes by hand.

use std::time::Duration;

use super::{Proxy, Reply, Server, eventually};

/// How long replicas may take to be in step.
const CAP: Duration = Duration::from_secs(30);

/// What every server with replicas, or of them, is started with: a replica is in step at once after it turned
/// to a master, without the wait for others that would share the snapshot, and the snapshot is never on disk.
pub(crate) const ARGS: [&str; 6] =
    ["--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0", "--repl-backlog-size", "1mb"];

/// One master and replicas of it; the roles are those at the start.
pub(crate) struct Replicas {
    pub(crate) master: Server,
    replicas: Vec<(Proxy, Server)>,
}

impl Replicas {
    /// Starts the servers, and waits until all replicas are in step.
    pub(crate) fn start(count: usize) -> Self {
        let master = Server::with(&ARGS);
        let replicas = (0..count).map(|_| (Proxy::to(&master), Server::with(&ARGS))).collect();
        let it = Self { master, replicas };
        for index in 0..count {
            it.follow(index, &it.master);
        }
        wait_for_replicas(&it.master, count);
        it
    }

    pub(crate) fn replica(&self, index: usize) -> &Server {
        &self.replicas[index].1
    }

    /// Cuts the replica off its master: nothing arrives any more, in either direction, and no end of it.
    pub(crate) fn cut(&self, index: usize) {
        self.replicas[index].0.hold();
    }

    /// Lets the two talk again; first comes what was held.
    pub(crate) fn heal(&self, index: usize) {
        self.replicas[index].0.pass();
    }

    /// Makes the replica a master of its own.
    pub(crate) fn promote(&self, index: usize) {
        ok(self.replica(index), &["REPLICAOF", "NO", "ONE"]);
    }

    /// Makes the replica one of `master`, through its proxy, and does not wait until it is in step.
    pub(crate) fn follow(&self, index: usize, master: &Server) {
        let (proxy, replica) = &self.replicas[index];
        proxy.retarget(master.address());
        // To a replica it is the same master, so that it would keep its connection.
        proxy.reset_all();
        ok(replica, &["REPLICAOF", "127.0.0.1", &proxy.port().to_string()]);
    }
}

/// Waits until so many replicas of the server are in step with it.
#[track_caller]
pub(crate) fn wait_for_replicas(master: &Server, count: usize) {
    eventually(CAP, || match is_followed(master, count) {
        true => Ok(()),
        false => Err(replication(master)),
    });
}

/// Whether so many replicas are in step with the server. It counts one as being online that is not sent anything
/// before its first acknowledgement, which may come a second later; so they have to acknowledge.
pub(super) fn is_followed(master: &Server, count: usize) -> bool {
    let info = replication(master);
    let online = info.lines().filter(|line| line.starts_with("slave") && line.contains("state=online"));
    online.count() == count && acknowledge(master, count)
}

/// Whether at least so many replicas acknowledge everything until now, within a second.
pub(crate) fn acknowledge(master: &Server, count: usize) -> bool {
    let mut admin = master.admin();
    // WAIT is about the time of the connection's last command.
    admin.command(&["PING"]);
    let acknowledged = admin.command(&["WAIT", &count.to_string(), "1000"]);
    matches!(acknowledged, Reply::Int(replicas) if replicas >= count as i64)
}

/// What the server says of its replication.
pub(super) fn replication(server: &Server) -> String {
    match server.command(&["INFO", "replication"]) {
        Reply::Text(info) => info,
        other => panic!("no INFO: {other:?}"),
    }
}

/// Asks the server for what it must agree to.
#[track_caller]
pub(super) fn ok(server: &Server, args: &[&str]) {
    // Some say what there was to do for it.
    assert!(server.command(args).text().starts_with("OK"), "{args:?}");
}
