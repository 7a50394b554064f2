//! A TCP proxy that does to a connection what a bad network does.
//!
//! One thread moves all bytes. Whatever a method asks for has happened when it returns: after `hold()` not one
//! more byte is forwarded, and [`Proxy::traffic`] has counted every byte that was sent before it was called.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{AddressFamily, SocketType, connect, connect_unspec};

use super::server::{Server, free_port};

/// How long a change may take to be in force; it takes microseconds unless the proxy's thread has died.
const CAP: Duration = Duration::from_secs(10);

/// What happens to the bytes of one direction. Every flow keeps their order, and also the place of a closed or
/// reset connection's end among them; a change applies to what is still waiting, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Forwarded at once.
    Pass,
    /// Kept. The sockets stay open, and the sender can go on sending.
    Hold,
    /// Each chunk is forwarded this long after it came.
    Delay(Duration),
    /// One byte at a time, each this long after the one before.
    Trickle(Duration),
    /// Thrown away.
    Discard,
    /// Forwarded at once, a part of the chunks changed: by the random numbers that follow from this seed.
    Mangle(u64),
}

/// What has come through, or was kept from it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// How many connections clients have made.
    pub(crate) connections: u64,
    /// How many of them exist now.
    pub(crate) open: usize,
    /// From the clients to the server.
    pub(crate) to_server: Count,
    /// From the server to the clients.
    pub(crate) to_client: Count,
    /// When the last byte came from a client.
    pub(crate) last_client_byte: Option<Instant>,
}

/// The bytes of one direction as they came, whether or not they were forwarded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) bytes: u64,
    /// How often bytes were there to be read: about the number of commands, or of replies.
    pub(crate) chunks: u64,
}

/// The proxy. Dropping it closes its connections and ends its thread.
pub(crate) struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    waker: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// A proxy to a server, which passes everything.
    pub(crate) fn to(server: &Server) -> Self {
        Self::start(server.address())
    }

    /// A proxy to whatever listens, or does not, on an address.
    pub(crate) fn start(target: SocketAddr) -> Self {
        let (port, listener) = (0..20)
            .find_map(|_| {
                let port = free_port();
                Some((port, listen(port).ok()?))
            })
            .expect("one of 20 free ports can be listened on");
        let (waker, woken) = UnixStream::pair().expect("a pair of sockets can be made");
        waker.set_nonblocking(true).expect("a socket can be non-blocking");
        woken.set_nonblocking(true).expect("a socket can be non-blocking");
        let shared = Arc::new(Shared::default());
        let pump = Pump {
            target,
            port,
            listener: Some(listener),
            woken,
            shared: Arc::clone(&shared),
            settings: Settings::default(),
            connections: Vec::new(),
            traffic: Traffic::default(),
            mangler: None,
        };
        let thread = thread::Builder::new()
            .name("fault-proxy".to_owned())
            .spawn(move || pump.run())
            .expect("a thread can be spawned");
        Self { port, shared, waker, thread: Some(thread) }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Everything passes, in both directions; what was kept goes out now.
    pub(crate) fn pass(&self) {
        self.set(Flow::Pass, Flow::Pass);
    }

    /// A black hole: connections are made and stay open, and nothing arrives.
    pub(crate) fn hold(&self) {
        self.set(Flow::Hold, Flow::Hold);
    }

    /// Commands arrive and are executed, their replies do not come.
    pub(crate) fn hold_replies(&self) {
        self.set(Flow::Pass, Flow::Hold);
    }

    /// Each chunk is late by `delay`, in both directions: a round trip takes twice as long.
    pub(crate) fn delay(&self, delay: Duration) {
        self.set(Flow::Delay(delay), Flow::Delay(delay));
    }

    /// Commands arrive at once, their replies late by `delay`.
    pub(crate) fn delay_replies(&self, delay: Duration) {
        self.set(Flow::Pass, Flow::Delay(delay));
    }

    /// Commands arrive at once, their replies byte by byte.
    pub(crate) fn trickle_replies(&self, every: Duration) {
        self.set(Flow::Pass, Flow::Trickle(every));
    }

    /// Commands arrive as they are, of their replies some with bytes changed, lost, doubled or put in.
    pub(crate) fn mangle_replies(&self, seed: u64) {
        self.set(Flow::Pass, Flow::Mangle(seed));
    }

    /// Sets both directions.
    pub(crate) fn set(&self, to_server: Flow, to_client: Flow) {
        self.request(|settings| (settings.to_server, settings.to_client) = (to_server, to_client));
    }

    /// Ends every connection by a reset, on both sides. What was kept is lost; new connections are accepted.
    pub(crate) fn reset_all(&self) {
        self.request(|settings| settings.end = Some(End::Reset));
    }

    /// Ends every connection by closing it, on both sides. What was kept is lost; new connections are accepted.
    pub(crate) fn close_all(&self) {
        self.request(|settings| settings.end = Some(End::Close));
    }

    /// Refuses new connections, or accepts them again. Those that exist are not touched.
    pub(crate) fn refuse(&self, refuse: bool) {
        self.request(|settings| settings.refuse = refuse);
    }

    /// Connects to another address from now on. Connections that exist are not touched.
    pub(crate) fn retarget(&self, target: SocketAddr) {
        self.request(|settings| settings.target = Some(target));
    }

    /// What has come until now: also bytes and connections that the proxy had not looked at before.
    pub(crate) fn traffic(&self) -> Traffic {
        self.request(|_| {})
    }

    /// Changes the settings and waits until they are in force.
    fn request(&self, change: impl FnOnce(&mut Settings)) -> Traffic {
        let mut state = self.shared.lock();
        change(&mut state.settings);
        state.requested += 1;
        let number = state.requested;
        self.wake();
        let (state, timeout) = self
            .shared
            .applied
            .wait_timeout_while(state, CAP, |state| state.applied < number)
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!timeout.timed_out(), "the proxy's thread does not answer");
        state.traffic
    }

    fn wake(&self) {
        // If the buffer is full, it is full of wake-ups.
        (&self.waker).write_all(&[1]).ok();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.wake();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed, and has failed the request that waited for it.
            thread.join().ok();
        }
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    applied: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct State {
    settings: Settings,
    requested: u64,
    applied: u64,
    stop: bool,
    traffic: Traffic,
}

#[derive(Clone, Copy)]
struct Settings {
    to_server: Flow,
    to_client: Flow,
    refuse: bool,
    /// Where to connect to instead of where the proxy was made for.
    target: Option<SocketAddr>,
    /// How to end the connections that exist; done once.
    end: Option<End>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { to_server: Flow::Pass, to_client: Flow::Pass, refuse: false, target: None, end: None }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Close,
    Reset,
}

/// One direction of one connection.
#[derive(Default)]
struct Pipe {
    chunks: VecDeque<(Instant, VecDeque<u8>)>,
    /// How the sender ended, and when.
    end: Option<(Instant, End)>,
    /// When the last byte went out.
    sent: Option<Instant>,
    /// The receiver waits for room in its buffer.
    full: bool,
    /// Nothing will go out any more.
    done: bool,
}

struct Connection {
    client: TcpStream,
    server: TcpStream,
    connecting: bool,
    to_server: Pipe,
    to_client: Pipe,
}

/// What the proxy's thread owns.
struct Pump {
    target: SocketAddr,
    port: u16,
    listener: Option<TcpListener>,
    woken: UnixStream,
    shared: Arc<Shared>,
    settings: Settings,
    connections: Vec<Connection>,
    traffic: Traffic,
    /// The random numbers of a flow to the clients that mangles.
    mangler: Option<(u64, StdRng)>,
}

impl Pump {
    fn run(mut self) {
        loop {
            let (number, stop) = {
                let mut state = self.shared.lock();
                self.settings = Settings { end: state.settings.end.take(), ..state.settings };
                (state.requested, state.stop)
            };
            if stop {
                self.unlisten();
                return self.connections.drain(..).for_each(Connection::close);
            }
            if self.shared.lock().applied < number {
                self.apply(number);
            }
            let next = self.forward();
            let timeout = next.map(|due| due.saturating_duration_since(Instant::now()));
            self.look(timeout, true);
        }
    }

    /// Puts the settings in force and answers the request.
    fn apply(&mut self, number: u64) {
        // What was sent before the request belongs before it. Reading forwards nothing. The bound is for a
        // client that sends faster than it is read.
        for _ in 0..1000 {
            if !self.look(Some(Duration::ZERO), false) {
                break;
            }
        }
        match self.settings.end.take() {
            Some(End::Reset) => self.connections.drain(..).for_each(Connection::reset),
            Some(End::Close) => self.connections.drain(..).for_each(Connection::close),
            None => {}
        }
        self.mangler = match (self.settings.to_client, self.mangler.take()) {
            (Flow::Mangle(seed), Some(mangler)) if mangler.0 == seed => Some(mangler),
            (Flow::Mangle(seed), _) => Some((seed, StdRng::seed_from_u64(seed))),
            _ => None,
        };
        if self.settings.refuse {
            self.unlisten();
        } else if self.listener.is_none() {
            let listener = listen(self.port).expect("the proxy's own port is free");
            self.listener = Some(listener);
        }
        self.traffic.open = self.connections.len();
        let mut state = self.shared.lock();
        state.applied = number;
        state.traffic = self.traffic;
        self.shared.applied.notify_all();
    }

    /// Forwards what is due, and returns when the next bytes are.
    fn forward(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let settings = self.settings;
        let mut next: Option<Instant> = None;
        self.connections.retain_mut(|connection| {
            let mut due = connection.to_client.forward(&connection.client, settings.to_client, now);
            if !connection.connecting {
                let other = connection.to_server.forward(&connection.server, settings.to_server, now);
                due = earliest(due, other);
            }
            // A receiver that is gone is a sender that is gone.
            connection.to_server.end_with(&connection.to_client, now);
            connection.to_client.end_with(&connection.to_server, now);
            next = earliest(next, due);
            !(connection.to_server.done && connection.to_client.done)
        });
        next
    }

    /// Waits for sockets and takes what comes; returns whether anything came.
    fn look(&mut self, timeout: Option<Duration>, write: bool) -> bool {
        let read = |wanted| if wanted { PollFlags::IN } else { PollFlags::empty() };
        let room = |wanted| if wanted && write { PollFlags::OUT } else { PollFlags::empty() };
        let mut fds = vec![PollFd::new(&self.woken, PollFlags::IN)];
        if let Some(listener) = &self.listener {
            fds.push(PollFd::new(listener, PollFlags::IN));
        }
        let first = fds.len();
        let mut sides = Vec::new();
        for (index, connection) in self.connections.iter().enumerate() {
            let Connection { connecting, to_server, to_client, .. } = connection;
            let client = read(to_server.end.is_none()) | room(to_client.full);
            let server =
                read(to_client.end.is_none() && !connecting) | room(to_server.full) | room(*connecting);
            // The poll reports a closed socket whether asked or not, so one of which nothing is wanted is left out.
            for (stream, flags, side) in
                [(&connection.client, client, Side::Client), (&connection.server, server, Side::Server)]
            {
                if !flags.is_empty() {
                    fds.push(PollFd::new(stream, flags));
                    sides.push((index, side));
                }
            }
        }
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(1000),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) | Err(Errno::INTR) => return false,
            Ok(_) => {}
            Err(error) => panic!("poll: {error}"),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        if ready[0] {
            while matches!(self.woken.read(&mut [0; 64]), Ok(1..)) {}
        }
        for (&(index, side), _) in sides.iter().zip(&ready[first..]).filter(|(_, ready)| **ready) {
            let mangler = self.mangler.as_mut().filter(|_| matches!(side, Side::Server));
            self.connections[index].take(side, &mut self.traffic, mangler.map(|(_, random)| random));
        }
        if first == 2 && ready[1] {
            self.accept();
        }
        ready[1..].contains(&true)
    }

    /// Closing the listener is not enough: see [`reset`].
    fn unlisten(&mut self) {
        if let Some(listener) = self.listener.take() {
            rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).ok(); // Not every system knows it.
        }
    }

    fn accept(&mut self) {
        while let Some(Ok((client, _))) = self.listener.as_ref().map(TcpListener::accept) {
            self.traffic.connections += 1;
            client.set_nonblocking(true).expect("a socket can be non-blocking");
            client.set_nodelay(true).ok(); // A client that is gone already is noticed when it is read.
            // Connecting must not hold up the others: a server's backlog may be full.
            let target = self.settings.target.unwrap_or(self.target);
            let server = stream_socket(target).map(TcpStream::from).expect("a socket can be made");
            server.set_nonblocking(true).expect("a socket can be non-blocking");
            let mut connection = Connection {
                client,
                server,
                connecting: true,
                to_server: Pipe::default(),
                to_client: Pipe::default(),
            };
            match connect(&connection.server, &target) {
                Ok(()) | Err(Errno::INPROGRESS) => {}
                Err(_) => connection.fail(),
            }
            self.connections.push(connection);
        }
    }
}

#[derive(Clone, Copy)]
enum Side {
    Client,
    Server,
}

impl Connection {
    /// Takes what a socket has: bytes, its end, or the outcome of the connect.
    fn take(&mut self, side: Side, traffic: &mut Traffic, mangler: Option<&mut StdRng>) {
        let (stream, pipe, count) = match side {
            Side::Client => (&self.client, &mut self.to_server, &mut traffic.to_server),
            Side::Server => (&self.server, &mut self.to_client, &mut traffic.to_client),
        };
        if matches!(side, Side::Server) && self.connecting {
            match stream.take_error() {
                Ok(None) => {
                    self.connecting = false;
                    stream.set_nodelay(true).ok(); // As above.
                }
                _ => self.fail(),
            }
            return;
        }
        if pipe.end.is_some() {
            return;
        }
        let mut buffer = [0; 16 * 1024];
        let read = { stream }.read(&mut buffer);
        let now = Instant::now();
        match read {
            Ok(0) => pipe.end = Some((now, End::Close)),
            Ok(length) => {
                let mut chunk = buffer[..length].to_vec();
                if let Some(random) = mangler {
                    mangle(&mut chunk, random);
                }
                pipe.chunks.push_back((now, chunk.into()));
                count.bytes += length as u64;
                count.chunks += 1;
                if matches!(side, Side::Client) {
                    traffic.last_client_byte = Some(now);
                }
            }
            Err(error) if is_passing(&error) => {}
            Err(_) => pipe.end = Some((now, End::Reset)),
        }
    }

    /// The server cannot be reached: to the client that is a reset, when the flow lets it through.
    fn fail(&mut self) {
        self.connecting = false;
        self.to_client.end.get_or_insert((Instant::now(), End::Reset));
        self.to_server.done = true;
    }

    fn reset(self) {
        reset(&self.client);
        reset(&self.server);
    }

    fn close(self) {
        for stream in [&self.client, &self.server] {
            stream.shutdown(Shutdown::Both).ok(); // The other side may have closed first.
        }
    }
}

impl Pipe {
    /// Writes what is due; returns when the next byte, or the end, is.
    fn forward(&mut self, mut to: &TcpStream, flow: Flow, now: Instant) -> Option<Instant> {
        if flow == Flow::Discard {
            self.chunks.clear();
        }
        self.full = false;
        while let Some((arrived, bytes)) = self.chunks.front_mut().filter(|_| !self.done) {
            let (due, length) = match flow {
                Flow::Hold => return None,
                Flow::Delay(delay) => (*arrived + delay, bytes.len()),
                Flow::Trickle(every) => ((*arrived).max(self.sent.unwrap_or(*arrived)) + every, 1),
                Flow::Pass | Flow::Discard | Flow::Mangle(_) => (now, bytes.len()),
            };
            if due > now {
                return Some(due);
            }
            match to.write(&bytes.make_contiguous()[..length]) {
                Ok(written) => {
                    bytes.drain(..written);
                    self.sent = Some(now);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_passing(&error) => {
                    self.full = true;
                    return None;
                }
                Err(_) => {
                    self.done = true;
                    return None;
                }
            }
            if bytes.is_empty() {
                self.chunks.pop_front();
            }
        }
        let (ended, end) = self.end.filter(|_| !self.done)?;
        match flow {
            Flow::Hold => return None,
            Flow::Delay(delay) if ended + delay > now => return Some(ended + delay),
            _ => {}
        }
        self.done = true;
        match end {
            End::Close => {
                to.shutdown(Shutdown::Write).ok(); // The other side may have closed first.
            }
            End::Reset => reset(to),
        }
        None
    }

    /// Ends this direction where the other one shows that the connection is broken: it could not be written to,
    /// or was told of a reset.
    fn end_with(&mut self, other: &Self, now: Instant) {
        if !other.done {
            return;
        }
        match other.end {
            Some((_, End::Close)) if other.chunks.is_empty() => {}
            Some((_, End::Reset)) => self.done = true,
            _ => {
                self.end.get_or_insert((now, End::Reset));
            }
        }
    }
}

/// Bytes that mean something in a reply.
const MEANT: &[u8] = b"\r\n$*:>-_09x";

/// Leaves three of four chunks as they are, for a conversation is to go on for a while.
fn mangle(chunk: &mut Vec<u8>, random: &mut StdRng) {
    let (one, other) = (random.random_range(0..chunk.len()), random.random_range(0..chunk.len()));
    let (from, to) = (one.min(other), one.max(other) + 1);
    match random.random_range(0..20) {
        0 => chunk[one] = random.random(),
        1 => chunk[one] ^= 1 << random.random_range(0..8),
        2 => drop(chunk.drain(from..to)),
        3 => drop(chunk.splice(from..from, chunk[from..to].to_vec())),
        4 => chunk.insert(one, MEANT[random.random_range(0..MEANT.len())]),
        _ => {}
    }
}

fn listen(port: u16) -> io::Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Resets a connection now.
///
/// Dropping the socket is not enough. While another test starts a process, there is a moment in which that
/// process has a copy of every descriptor of this one, and the connection lives on in it.
fn reset(stream: &TcpStream) {
    // A socket that is gone cannot be reset.
    set_socket_linger(stream, Some(Duration::ZERO)).ok();
    connect_unspec(stream).ok();
}

fn earliest(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// A socket for the address, which no process that a test starts meanwhile inherits: the connection would
/// stay open there.
#[cfg(target_os = "linux")]
fn stream_socket(target: SocketAddr) -> Result<OwnedFd, Errno> {
    let flags = rustix::net::SocketFlags::CLOEXEC;
    rustix::net::socket_with(family(target), SocketType::STREAM, flags, None)
}

/// As on Linux, but for the moment between the two calls.
#[cfg(not(target_os = "linux"))]
fn stream_socket(target: SocketAddr) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket(family(target), SocketType::STREAM, None)?;
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
    Ok(socket)
}

fn family(target: SocketAddr) -> AddressFamily {
    if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// Whether the socket works and there is only nothing to do now.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
