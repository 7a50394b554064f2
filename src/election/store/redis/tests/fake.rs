//! A server that answers every connection by one rule, and tells what it was asked.

use super::*;

/// Nothing is sent, and the connection stays open.
pub(super) const SILENCE: &[u8] = b"";

/// A server. It answers until the process ends, for a test may leave connections open.
pub(super) struct Fake {
    pub(super) address: SocketAddr,
    asked: Receiver<Vec<String>>,
}

impl Fake {
    /// A server that answers each command with what the rule says, however many connections there are.
    pub(super) fn new(rule: impl FnMut(&[String]) -> Vec<u8> + Send + 'static) -> Self {
        Self::on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port"), rule)
    }

    pub(super) fn on(listener: TcpListener, rule: impl FnMut(&[String]) -> Vec<u8> + Send + 'static) -> Self {
        let address = listener.local_addr().expect("an address");
        let (ask, asked) = unbounded();
        let rule = Arc::new(std::sync::Mutex::new(rule));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut peer, rule, ask) = (
                    Peer { stream: stream.expect("a client"), parser: Parser::new() },
                    Arc::clone(&rule),
                    ask.clone(),
                );
                thread::spawn(move || {
                    while let Some(words) = peer.command() {
                        let reply = rule.lock().expect("no rule panics")(&words);
                        ask.send(words).ok();
                        peer.send(&reply);
                    }
                });
            }
        });
        Self { address, asked }
    }

    /// The commands that have come, by their first words.
    pub(super) fn asked(&self) -> Vec<String> {
        self.asked.try_iter().map(|mut words| words.remove(0)).collect()
    }

    pub(super) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }
}

/// An address at which nobody listens.
pub(super) fn nobody() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .expect("a free port")
}

/// HELLO's reply.
pub(super) fn hello(mode: &str, role: &str) -> Vec<u8> {
    let (mode_length, role_length) = (mode.len(), role.len());
    format!("%2\r\n$4\r\nmode\r\n${mode_length}\r\n{mode}\r\n$4\r\nrole\r\n${role_length}\r\n{role}\r\n")
        .into_bytes()
}
