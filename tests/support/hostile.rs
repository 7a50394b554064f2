//! A server that greets like Redis, and at one point of the conversation does what no Redis does.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use redis::{Parser, Value, from_redis_value_ref};

/// How long a connection waits for its client to read or to write, so that its thread ends.
const PATIENCE: Duration = Duration::from_secs(2);

/// How much is sent at once of what is sent for ever.
const POUR: usize = 64 * 1024;

pub(crate) const HELLO: &str = "%2\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n";

/// Somebody else holds the lease, for ten seconds more.
pub(crate) const HELD: &str = "*4\r\n$4\r\nheld\r\n$3\r\nyou\r\n:10000\r\n$0\r\n\r\n";

/// Where in the conversation it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Before anything was read.
    Accepted,
    /// In the place of the reply to HELLO.
    Greeting,
    /// In the place of the reply to an operation.
    Operation,
    /// In the place of the reply to a renewal; before, the lease is won.
    Renewal,
    /// In the place of the reply to SUBSCRIBE.
    Subscription,
    /// After that, where wakes are awaited.
    Listening,
}

/// What the server does then.
#[derive(Clone)]
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    /// What is sent first.
    pub(crate) head: String,
    pub(crate) then: Then,
}

#[derive(Clone)]
pub(crate) enum Then {
    /// Closes the connection.
    Close,
    /// Says nothing more.
    Silence,
    /// Sends this for ever, as fast as it is read.
    Pour(&'static str),
    /// Sends this for ever, a byte at a time.
    Trickle(&'static str, Duration),
    /// Sends what this gives, for ever: given the wake channel and how much it was asked before.
    Make(fn(&str, u64) -> String),
}

/// The server. Dropping it ends its threads, once their clients have closed.
pub(crate) struct Hostile {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    attack: Attack,
    stage: Stage,
    ends: AtomicBool,
    connections: AtomicU64,
    bytes: AtomicU64,
}

impl Hostile {
    pub(crate) fn start(attack: &Attack, stage: Stage) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared {
            attack: attack.clone(),
            stage,
            ends: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        });
        let of_thread = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            let mut clients = Vec::new();
            while let Ok((stream, _)) = listener.accept() {
                if of_thread.ends.load(Ordering::SeqCst) {
                    break;
                }
                of_thread.connections.fetch_add(1, Ordering::SeqCst);
                let shared = Arc::clone(&of_thread);
                // A client that is gone ends its conversation.
                clients.push(thread::spawn(move || drop(shared.converse(stream))));
                clients.retain(|client| !client.is_finished());
            }
            clients
                .into_iter()
                .for_each(|client| client.join().expect("a conversation ends without a panic"));
        });
        Self { address, shared, thread: Some(thread) }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    /// How many connections were made.
    pub(crate) fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// How many bytes the attack has sent.
    pub(crate) fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::SeqCst)
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        // The thread waits for a client; this is one.
        TcpStream::connect(self.address).ok();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("a hostile server ends without a panic");
        }
    }
}

impl Shared {
    fn converse(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        if self.stage == Stage::Accepted {
            return self.attack(&mut stream, "");
        }
        let mut parser = Parser::new();
        loop {
            let command = parser.parse_value(&mut stream).map_err(io::Error::other)?;
            let words: Vec<String> = from_redis_value_ref(&command).map_err(io::Error::other)?;
            // A renewal is told by its three arguments after two keys.
            let renews = words.len() == 8;
            match (&*words[0], self.stage) {
                ("HELLO", Stage::Greeting) | ("EVAL", Stage::Operation) => {
                    return self.attack(&mut stream, "");
                }
                ("EVAL", Stage::Renewal) if renews => return self.attack(&mut stream, ""),
                ("EVAL", Stage::Renewal) if words.len() == 9 => {
                    let token = words[7].parse::<u64>().map_err(io::Error::other)? + 1;
                    let token = format!("${}\r\n{token}\r\n", token.to_string().len());
                    stream.write_all(format!("*3\r\n$3\r\nwon\r\n{token}{token}").as_bytes())?;
                }
                ("SUBSCRIBE", Stage::Subscription) => return self.attack(&mut stream, &words[1]),
                ("SUBSCRIBE", stage) => {
                    let channel = format!("${}\r\n{}\r\n", words[1].len(), words[1]);
                    stream.write_all(format!(">3\r\n$9\r\nsubscribe\r\n{channel}:1\r\n").as_bytes())?;
                    if stage == Stage::Listening {
                        return self.attack(&mut stream, &words[1]);
                    }
                }
                ("HELLO", _) => stream.write_all(HELLO.as_bytes())?,
                _ => stream.write_all(HELD.as_bytes())?,
            }
        }
    }

    fn attack(&self, stream: &mut TcpStream, channel: &str) -> io::Result<()> {
        let send = |stream: &mut TcpStream, bytes: &[u8]| {
            self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            stream.write_all(bytes)
        };
        send(stream, self.attack.head.as_bytes())?;
        match &self.attack.then {
            Then::Close => {}
            Then::Silence => drop(stream.read_to_end(&mut Vec::new())?),
            Then::Pour(bytes) => {
                let bytes = bytes.repeat(POUR / bytes.len() + 1);
                while !self.ends.load(Ordering::SeqCst) {
                    send(stream, bytes.as_bytes())?;
                }
            }
            Then::Trickle(bytes, every) => {
                for byte in bytes.bytes().cycle().take_while(|_| !self.ends.load(Ordering::SeqCst)) {
                    send(stream, &[byte])?;
                    thread::sleep(*every);
                }
            }
            Then::Make(make) => {
                let mut made = 0;
                while !self.ends.load(Ordering::SeqCst) {
                    send(stream, make(channel, made).as_bytes())?;
                    made += 1;
                }
            }
        }
        Ok(())
    }
}
