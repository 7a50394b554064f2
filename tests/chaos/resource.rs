//! What the leaders write to: one ledger refuses older tokens, the other takes what comes.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use super::now_us;

/// Ends the resource's thread; no token is written like this.
const END: &[u8] = b"end";

/// A resource that is written to by a socket.
pub(super) struct Resource {
    path: PathBuf,
    thread: JoinHandle<Ledgers>,
}

impl Resource {
    pub(super) fn start(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).expect("the directory is writable");
        let thread = thread::Builder::new()
            .name("chaos-resource".to_owned())
            .spawn(move || take(&socket))
            .expect("a thread can be spawned");
        Self { path: path.to_owned(), thread }
    }

    pub(super) fn path(&self) -> &str {
        self.path.to_str().expect("a temporary directory has a name of text")
    }

    /// What has been written.
    pub(super) fn end(self) -> Ledgers {
        let socket = UnixDatagram::unbound().expect("a socket can be opened");
        socket.send_to(END, &self.path).expect("the resource listens");
        self.thread.join().expect("the resource's thread does not panic")
    }
}

fn take(socket: &UnixDatagram) -> Ledgers {
    let mut ledgers = Ledgers::default();
    let mut buffer = [0; 64];
    loop {
        let length = socket.recv(&mut buffer).expect("a bound socket can be read");
        if &buffer[..length] == END {
            return ledgers;
        }
        let text = String::from_utf8_lossy(&buffer[..length]);
        match text.strip_suffix('\n').and_then(|token| token.parse().ok()) {
            Some(token) => ledgers.write(now_us(), token),
            None => ledgers.strange.push(text.into_owned()),
        }
    }
}

/// A write that has landed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Write {
    pub(super) at_us: u64,
    pub(super) token: u64,
}

/// The two ledgers; every write goes to both.
#[derive(Debug, Default)]
pub(super) struct Ledgers {
    /// What has landed where a token that is smaller than the largest one seen is refused.
    pub(super) fenced: Vec<Write>,
    highest: u64,
    pub(super) refused: usize,
    /// What has landed where nothing is compared: all of it.
    pub(super) unfenced: Vec<Write>,
    /// What is no token.
    pub(super) strange: Vec<String>,
}

impl Ledgers {
    fn write(&mut self, at_us: u64, token: u64) {
        let write = Write { at_us, token };
        self.unfenced.push(write);
        if token < self.highest {
            self.refused += 1;
            return;
        }
        self.highest = token;
        self.fenced.push(write);
    }
}

/// The writes that landed after one of a later term.
pub(super) fn stale(landed: &[Write]) -> Vec<Write> {
    let mut latest = 0;
    landed
        .iter()
        .filter(|write| {
            latest = latest.max(write.token);
            write.token < latest
        })
        .copied()
        .collect()
}

#[test]
fn a_write_of_an_old_term_is_refused_by_one_ledger_and_lands_in_the_other() {
    let cases: &[(&[u64], &[u64])] = &[
        (&[], &[]),
        (&[5, 5, 7, 9], &[]),
        (&[5, 7, 5, 7], &[5]),
        (&[5, 9, 5, 7, 9, 8, 10], &[5, 7, 8]),
        (&[9, 5, 5, 6], &[5, 5, 6]),
    ];
    for (written, old) in cases {
        let mut ledgers = Ledgers::default();
        written.iter().for_each(|token| ledgers.write(0, *token));
        let found: Vec<u64> = stale(&ledgers.unfenced).iter().map(|write| write.token).collect();
        assert_eq!(found, *old, "{written:?}");
        assert_eq!(ledgers.refused, old.len(), "{written:?}");
        assert_eq!(ledgers.fenced.len() + ledgers.refused, written.len(), "{written:?}");
        assert!(stale(&ledgers.fenced).is_empty(), "{written:?}: {:?}", ledgers.fenced);
    }
}
