//! One master with two replicas, and three sentinels that watch it.

use std::time::Duration;

use super::replicas::{ARGS, is_followed, ok, replication, wait_for_replicas};
use super::{Server, eventually};

/// The name under which the sentinels know the master.
pub(crate) const MASTER: &str = "mymaster";

/// How long a failover, or coming back after one, may take on the slowest machine.
const CAP: Duration = Duration::from_secs(60);

const SERVERS: usize = 3;

/// The servers and their sentinels.
pub(crate) struct Sentinels {
    servers: Vec<Server>,
    sentinels: Vec<Server>,
    /// The servers that cannot be asked: killed or frozen.
    away: [bool; SERVERS],
}

impl Sentinels {
    /// Starts them all, and waits until the sentinels know everybody. A master that does not answer for 1.5 s
    /// is down; of one that was promoted a moment ago, sentinels on a busy machine may hear only after a second.
    pub(crate) fn start() -> Self {
        let servers: Vec<_> = (0..SERVERS).map(|_| Server::with(&ARGS)).collect();
        let port = servers[0].port().to_string();
        servers[1..].iter().for_each(|replica| ok(replica, &["REPLICAOF", "127.0.0.1", &port]));
        let mut it = Self { servers, sentinels: Vec::new(), away: [false; SERVERS] };
        // A sentinel looks again for replicas only after ten seconds, so they have to be there when it starts.
        wait_for_replicas(&it.servers[0], 2);
        let lines = format!(
            "sentinel monitor {MASTER} 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds {MASTER} 1500\n\
             sentinel failover-timeout {MASTER} 3000\n\
             sentinel parallel-syncs {MASTER} 2\n"
        );
        it.sentinels = (0..3).map(|_| Server::configured(&lines, &["--sentinel"])).collect();
        it.wait_until_whole();
        it
    }

    /// The URL with the sentinels' addresses.
    pub(crate) fn url(&self) -> String {
        let addresses: Vec<_> = self.sentinels.iter().map(|it| it.address().to_string()).collect();
        format!("redis-sentinel://{}/{MASTER}", addresses.join(","))
    }

    pub(crate) fn sentinel(&self, index: usize) -> &Server {
        &self.sentinels[index]
    }

    pub(crate) fn server(&self, index: usize) -> &Server {
        &self.servers[index]
    }

    /// The server that most sentinels name as the master.
    pub(crate) fn master(&self) -> usize {
        eventually(CAP, || {
            let mut named: Vec<_> = self.sentinels.iter().map(master_of).collect();
            named.sort_unstable();
            // Of three, what two name is in the middle.
            let ports = named.clone();
            match self.servers.iter().position(|server| server.port() == ports[1]) {
                Some(index) if ports[0] == ports[1] || ports[1] == ports[2] => Ok(index),
                _ => Err(named),
            }
        })
    }

    /// Ends the server as a crash would.
    pub(crate) fn kill(&mut self, index: usize) {
        self.away[index] = true;
        self.servers[index].kill();
    }

    /// Starts the server again, empty and as a master, which is what its configuration says.
    pub(crate) fn restart(&mut self, index: usize) {
        self.servers[index].restart();
        self.away[index] = false;
    }

    /// Stops the server where it is.
    pub(crate) fn freeze(&mut self, index: usize) {
        self.away[index] = true;
        self.servers[index].freeze();
    }

    pub(crate) fn thaw(&mut self, index: usize) {
        self.servers[index].thaw();
        self.away[index] = false;
    }

    /// Waits until all are there: every sentinel knows the others and names one master, which has two replicas
    /// in step. A master that came back is made a replica only ten seconds later.
    #[track_caller]
    pub(crate) fn wait_until_whole(&self) {
        assert_eq!(self.away, [false; SERVERS], "a server is away");
        eventually(CAP, || {
            let master = &self.servers[self.master()];
            let known: Vec<_> = self.sentinels.iter().map(state).collect();
            let whole = known.iter().all(|it| *it == ("master".to_owned(), 2, 2));
            if whole && is_followed(master, 2) { Ok(()) } else { Err((known, replication(master))) }
        });
    }
}

/// The port of the master that the sentinel names.
fn master_of(sentinel: &Server) -> u16 {
    let reply = sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER]);
    reply.list()[1].text().parse().expect("a port is a number")
}

/// What the sentinel says of the master: its flags, and how many replicas and other sentinels there are.
fn state(sentinel: &Server) -> (String, u32, u32) {
    let reply = sentinel.command(&["SENTINEL", "MASTER", MASTER]);
    let field = |name| {
        let mut pairs = reply.list().chunks_exact(2);
        let pair = pairs.find(|pair| pair[0].text() == name);
        pair.unwrap_or_else(|| panic!("no {name} in {reply:?}"))[1].text().to_owned()
    };
    let number = |name| field(name).parse().expect("a number");
    (field("flags"), number("num-slaves"), number("num-other-sentinels"))
}
