//! A connection on which nothing waits longer than its batch's budget.
//!
//! The socket is non-blocking and every wait is a `poll` on the socket and on the session's bell. A
//! timeout of the socket itself would not do: it holds per read rather than per operation, is coarse, and
//! another thread cannot shorten it.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use redis::Value;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType};

use super::frame::{self, Inbox};
use super::tls::{Tls, Tunnel};
use crate::election::clock::Instant;
use crate::election::store::budget::{BellEnd, Budget};

/// The longest single poll; some systems refuse more than `i32::MAX` milliseconds. It is repeated.
const LONGEST_POLL: Duration = Duration::from_secs(24 * 60 * 60);

/// How long after a Unix socket's full backlog it is tried again: such a connect is refused rather than
/// queued, and nothing tells when there is room.
const BACKLOG_PAUSE: Duration = Duration::from_millis(5);

/// How much is read at once; the replies of a usual batch fit.
const READ_SIZE: usize = 4096;

/// How many reads may pass until a connection at rest has nothing more to say. After a handshake with TLS
/// a server sends what is no reply.
const QUIET_READS: usize = 16;

/// Why a connection is of no use any more.
#[derive(Debug)]
pub(super) enum Broken {
    /// The time allowed was over.
    Late,
    /// The server closed it.
    Closed,
    /// The system reported an error.
    Io(io::Error),
    /// The server sent this, and no reply.
    Garbage(&'static str),
    /// This, which does not pass by itself.
    Misconfigured(String),
}

impl From<Errno> for Broken {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

/// The time that a step may take: what its batch's budget has left, or an earlier end of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience<'a> {
    budget: &'a Budget,
    bell: &'a BellEnd,
    began: Instant,
    until: Instant,
}

impl<'a> Patience<'a> {
    /// All the time of a budget, from now on.
    pub(super) fn new(budget: &'a Budget, bell: &'a BellEnd) -> Self {
        Self { budget, bell, began: Instant::now(), until: Instant::NEVER }
    }

    /// What is left, in so many parts: one of them.
    pub(super) fn share(&self, parts: usize) -> Self {
        let parts = u32::try_from(parts).unwrap_or(u32::MAX).max(1);
        self.at_most(self.remaining().unwrap_or_default() / parts)
    }

    /// This much, if there is that much left.
    pub(super) fn at_most(&self, limit: Duration) -> Self {
        let now = Instant::now();
        Self { began: now, until: self.until.min(now + limit), ..*self }
    }

    /// What is left; none when it is over.
    pub(super) fn remaining(&self) -> Option<Duration> {
        let left = self.end().saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// How much it was when it began, as shortened since: for messages, in whole milliseconds.
    pub(super) fn allowed(&self) -> Duration {
        let allowed = self.end().saturating_duration_since(self.began);
        Duration::from_millis(u64::try_from(allowed.as_millis()).unwrap_or(u64::MAX).max(1))
    }

    fn end(&self) -> Instant {
        self.until.min(self.budget.until())
    }

    /// Waits until the descriptor is readable, or closed.
    pub(super) fn readable(&self, fd: impl AsFd) -> Result<(), Broken> {
        self.wait(Some((fd.as_fd(), PollFlags::IN)))
    }

    fn writable(&self, fd: impl AsFd) -> Result<(), Broken> {
        self.wait(Some((fd.as_fd(), PollFlags::OUT)))
    }

    /// Waits for the descriptor and the bell until the end, which the bell may have brought nearer.
    fn wait(&self, awaited: Option<(BorrowedFd<'_>, PollFlags)>) -> Result<(), Broken> {
        loop {
            let left = self.remaining().ok_or(Broken::Late)?.min(LONGEST_POLL);
            let timeout = Timespec::try_from(left).expect("a day fits into a timespec");
            let (fd, flags) = awaited.unwrap_or((self.bell.as_fd(), PollFlags::IN));
            let mut fds = [
                PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(fd, flags),
            ];
            match poll(&mut fds, Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let (rang, ready) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
            if rang {
                self.bell.silence();
            }
            if ready && awaited.is_some() {
                return Ok(());
            }
        }
    }
}

/// A connected socket and the bytes that came over it and are not used yet.
#[derive(Debug)]
pub(super) struct Wire {
    socket: Socket,
    tunnel: Option<Box<Tunnel>>,
    inbox: Inbox,
}

impl Wire {
    /// Connects to an address.
    pub(super) fn tcp(address: SocketAddr, patience: &Patience<'_>) -> Result<Self, Broken> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket(family)?;
        // A batch is one write and must not wait for the acknowledgement of the one before.
        net::sockopt::set_tcp_nodelay(&socket, true)?;
        // A connection at rest would otherwise never notice that its server is gone.
        net::sockopt::set_socket_keepalive(&socket, true)?;
        match net::connect(&socket, &address) {
            Ok(()) => {}
            Err(Errno::INPROGRESS | Errno::INTR) => {
                patience.writable(&socket)?;
                net::sockopt::socket_error(&socket)??;
            }
            Err(errno) => return Err(errno.into()),
        }
        Ok(Self::new(socket))
    }

    /// Connects to a Unix socket.
    pub(super) fn unix(path: &Path, patience: &Patience<'_>) -> Result<Self, Broken> {
        let address = SocketAddrUnix::new(path)?;
        let socket = socket(AddressFamily::UNIX)?;
        loop {
            match net::connect(&socket, &address) {
                Ok(()) => return Ok(Self::new(socket)),
                Err(Errno::INTR) if patience.remaining().is_some() => {}
                Err(Errno::AGAIN | Errno::INTR) => {
                    match patience.at_most(BACKLOG_PAUSE).wait(None) {
                        Err(Broken::Late) if patience.remaining().is_some() => {}
                        Err(broken) => return Err(broken),
                        Ok(()) => {}
                    };
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// A connection over a socket that is connected and does not block.
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket: Socket { fd: socket, writes: 0 }, tunnel: None, inbox: Inbox::default() }
    }

    /// The same connection, encrypted from now on, with a server that proves to be this host.
    pub(super) fn encrypted(
        mut self,
        tls: &Tls,
        host: &str,
        patience: &Patience<'_>,
    ) -> Result<Self, Broken> {
        self.tunnel = Some(Box::new(tls.tunnel(host)?));
        let shaken = self.handshake(patience);
        if let (Err(_), Some(tunnel)) = (&shaken, &mut self.tunnel) {
            // The server is told why, if it takes that at once.
            net::send(&self.socket.fd, &tunnel.outgoing(), SEND_FLAGS).ok();
        }
        shaken.map(|()| self)
    }

    fn handshake(&mut self, patience: &Patience<'_>) -> Result<(), Broken> {
        while self.tunnel.as_ref().is_some_and(|tunnel| tunnel.is_handshaking()) {
            self.flush(patience)?;
            patience.readable(&self.socket.fd)?;
            self.read()?;
            if self.is_closed() {
                return Err(Broken::Closed);
            }
        }
        self.flush(patience)
    }

    /// How many writes were made on this connection.
    pub(super) fn writes(&self) -> usize {
        self.socket.writes
    }

    /// Whether nothing has come that nobody asked for: no value, no close, no error.
    pub(super) fn is_quiet(&mut self) -> bool {
        for _ in 0..QUIET_READS {
            if !self.inbox.is_empty() || self.is_closed() {
                return false;
            }
            let mut fds = [PollFd::new(&self.socket.fd, PollFlags::IN)];
            // An interrupted poll leaves it to the next read to find out.
            if matches!(poll(&mut fds, Some(&Timespec::default())), Ok(0) | Err(Errno::INTR)) {
                return true;
            }
            // Over TLS there is more than replies.
            if self.tunnel.is_none() || self.read().is_err() {
                return false;
            }
        }
        false
    }

    /// Sends all of it, in one write if the system takes it. An error comes with how much was sent, or may
    /// have been.
    pub(super) fn send(&mut self, bytes: &[u8], patience: &Patience<'_>) -> Result<(), (usize, Broken)> {
        // What TLS itself has to say is not counted.
        self.flush(patience).map_err(|broken| (0, broken))?;
        let Some(tunnel) = &mut self.tunnel else { return self.socket.send(bytes, patience) };
        let mut before = 0;
        for record in bytes.chunks(Tunnel::RECORD) {
            tunnel.seal(record);
            // The other side cannot use a record without its end, but that is not for us to prove.
            self.socket
                .send(&tunnel.outgoing(), patience)
                .map_err(|(sent, broken)| (before + if sent == 0 { 0 } else { record.len() }, broken))?;
            before += record.len();
        }
        Ok(())
    }

    /// The next reply. What a server pushes without being asked is passed over.
    pub(super) fn receive(&mut self, patience: &Patience<'_>) -> Result<Value, Broken> {
        loop {
            match self.receive_any(patience)? {
                Value::Push { .. } => {}
                value => return Ok(value),
            }
        }
    }

    /// The next value, whether it was asked for or pushed.
    pub(super) fn receive_any(&mut self, patience: &Patience<'_>) -> Result<Value, Broken> {
        loop {
            match self.inbox.take() {
                Ok(Some(value)) => return Ok(value),
                Ok(None) if self.is_closed() => return Err(Broken::Closed),
                Ok(None) => {}
                Err(what @ frame::TLS) => {
                    return Err(Broken::Misconfigured(format!(
                        "the server sent {what}: begin the URL with rediss://"
                    )));
                }
                Err(what) => return Err(Broken::Garbage(what)),
            }
            // Waiting first also bounds a server that sends without end.
            patience.readable(&self.socket.fd)?;
            self.read()?;
            // It may have asked for new keys.
            self.flush(patience)?;
        }
    }

    fn read(&mut self) -> Result<(), Broken> {
        let mut buffer = [0; READ_SIZE];
        let read = self.socket.read(&mut buffer)?;
        match &mut self.tunnel {
            Some(tunnel) => tunnel.open(read, &mut self.inbox),
            None => {
                self.inbox.add(read);
                Ok(())
            }
        }
    }

    /// Sends what TLS itself has to say.
    fn flush(&mut self, patience: &Patience<'_>) -> Result<(), Broken> {
        let Some(tunnel) = &mut self.tunnel else { return Ok(()) };
        self.socket.send(&tunnel.outgoing(), patience).map_err(|(_, broken)| broken)
    }

    fn is_closed(&self) -> bool {
        self.tunnel.as_ref().is_some_and(|tunnel| tunnel.is_closed())
    }
}

/// The bytes as they go over the network.
#[derive(Debug)]
struct Socket {
    fd: OwnedFd,
    writes: usize,
}

impl Socket {
    fn send(&mut self, bytes: &[u8], patience: &Patience<'_>) -> Result<(), (usize, Broken)> {
        let mut sent = 0;
        while sent < bytes.len() {
            if patience.remaining().is_none() {
                return Err((sent, Broken::Late));
            }
            self.writes += 1;
            match net::send(&self.fd, &bytes[sent..], SEND_FLAGS) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => patience.writable(&self.fd).map_err(|broken| (sent, broken))?,
                Err(errno) => return Err((sent, errno.into())),
            }
        }
        Ok(())
    }

    /// What has come; nothing, if it was ready and then not: the caller waits again.
    fn read<'b>(&self, buffer: &'b mut [u8]) -> Result<&'b [u8], Broken> {
        match net::recv(&self.fd, &mut *buffer, RecvFlags::empty()) {
            Ok((0, _)) => Err(Broken::Closed),
            Ok((count, _)) => Ok(&buffer[..count]),
            Err(Errno::AGAIN | Errno::INTR) => Ok(&[]),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// No SIGPIPE for a connection that the server closed; Apple's systems have a socket option for that.
#[cfg(not(target_vendor = "apple"))]
const SEND_FLAGS: SendFlags = SendFlags::NOSIGNAL;
#[cfg(target_vendor = "apple")]
const SEND_FLAGS: SendFlags = SendFlags::empty();

/// A non-blocking socket that a child process does not inherit.
#[cfg(not(target_vendor = "apple"))]
fn socket(family: AddressFamily) -> Result<OwnedFd, Errno> {
    use rustix::net::SocketFlags;
    net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

#[cfg(target_vendor = "apple")]
fn socket(family: AddressFamily) -> Result<OwnedFd, Errno> {
    let socket = net::socket(family, SocketType::STREAM, None)?;
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    net::sockopt::set_socket_nosigpipe(&socket, true)?;
    Ok(socket)
}
