//! A Redis or Valkey server that belongs to one test.
//!
//! The file stands alone (std, tempfile, and rustix for signals): the unit tests in `src` include it
//! by its path, next to the integration tests.

#![allow(dead_code, reason = "each of the test binaries that include this file uses a part of it")]
#![allow(clippy::print_stderr, reason = "a failing test shows the server's log beside its own output")]

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How long a server may take to answer its first PING, or a process to stop or end.
const CAP: Duration = Duration::from_secs(30);

/// How long [`Admin`] waits for a reply unless it is told otherwise.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The name of a server's configuration file, if it has one.
const CONFIGURATION: &str = "server.conf";

/// How often a start is tried on another port.
const PORTS: u32 = 20;

/// A running server: on a port of 127.0.0.1 and on a Unix socket, without persistence.
///
/// Dropping it kills it, and shows its log if the test is failing.
pub(crate) struct Server {
    dir: TempDir,
    args: Vec<String>,
    port: u16,
    child: Option<Child>,
}

impl Server {
    /// Starts a server and waits until it answers.
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with more arguments, as on its command line: `&["--maxmemory", "2mb"]`.
    pub(crate) fn with(args: &[&str]) -> Self {
        Self::in_dir(temp_dir(), args)
    }

    /// As [`with`](Self::with), with a configuration file of these lines, which the server may rewrite: a
    /// sentinel does not start without one.
    pub(crate) fn configured(lines: &str, args: &[&str]) -> Self {
        let dir = temp_dir();
        fs::write(dir.path().join(CONFIGURATION), lines).expect("the server's directory is writable");
        Self::in_dir(dir, args)
    }

    fn in_dir(dir: TempDir, args: &[&str]) -> Self {
        let mut server =
            Self { dir, args: args.iter().map(|arg| (*arg).to_owned()).collect(), port: 0, child: None };
        for _ in 0..PORTS {
            server.port = free_port();
            match server.spawn() {
                Ok(()) => return server,
                // Another process may have taken the port between the look at it and the start.
                Err(log) if log.contains("Address already in use") => {}
                Err(log) => panic!("the server did not start:\n{log}"),
            }
        }
        panic!("the server found no free port in {PORTS} attempts:\n{}", server.log());
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

    pub(crate) fn unix_url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("redis.sock")
    }

    /// The directory that the server runs in.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("the server runs").id()
    }

    /// Stops the process where it is. Its sockets stay open and the kernel goes on accepting for it.
    pub(crate) fn freeze(&self) {
        freeze(self.pid());
    }

    /// Lets a frozen server go on; what was sent to it meanwhile is executed.
    pub(crate) fn thaw(&self) {
        thaw(self.pid());
    }

    /// Ends the server as a crash would. Its clients' connections are closed by the kernel.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("a child can be killed");
            child.wait().expect("a child can be waited for");
        }
    }

    /// Starts the server again on the same port, empty; kills it first if it runs.
    pub(crate) fn restart(&mut self) {
        self.kill();
        let from = Instant::now();
        while let Err(log) = self.spawn() {
            // The port was given up for a moment, so somebody may be holding it for a moment.
            let taken = log.contains("Address already in use") && from.elapsed() < CAP;
            assert!(taken, "the server did not start again:\n{log}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// A connection for the test's own questions. It uses the Unix socket, so no proxy and no port's
    /// backlog is in its way.
    pub(crate) fn admin(&self) -> Admin {
        self.admin_within(ADMIN_TIMEOUT)
    }

    /// As [`admin`](Self::admin), with another limit on the wait for each reply.
    pub(crate) fn admin_within(&self, timeout: Duration) -> Admin {
        Admin::unix(&self.socket(), timeout).expect("the server's socket accepts")
    }

    /// Asks one question on a connection of its own.
    #[track_caller]
    pub(crate) fn command(&self, args: &[&str]) -> Reply {
        self.admin().command(args)
    }

    /// What the server has printed since its first start.
    pub(crate) fn log(&self) -> String {
        let bytes = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("server.log")
    }

    /// Starts the process on `self.port` and waits for its first answer; returns the log if it ended.
    fn spawn(&mut self) -> Result<(), String> {
        let mut log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .expect("the server's directory is writable");
        // Only what this start prints may be taken for the reason that it failed.
        let printed = log.metadata().map_or(0, |file| file.len()) as usize;
        let mut missing = Vec::new();
        let mut child = None;
        for binary in binaries() {
            let mut command = Command::new(&binary);
            // A file must come before all else.
            let configuration = self.dir.path().join(CONFIGURATION);
            command
                .args(configuration.exists().then_some(configuration))
                .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
                .arg("--unixsocket")
                .arg(self.socket())
                .arg("--dir")
                .arg(self.dir.path())
                .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
                .args(&self.args)
                // A server refuses to start under a locale that the machine does not have.
                .env("LC_ALL", "C")
                .stdin(Stdio::null())
                .stdout(log.try_clone().expect("a file can be shared"))
                .stderr(log.try_clone().expect("a file can be shared"));
            match command.spawn() {
                Ok(spawned) => {
                    child = Some(spawned);
                    break;
                }
                Err(error) => missing.push(format!("{}: {error}", binary.display())),
            }
        }
        let Some(child) = child else {
            panic!("no server to test with ({}); tests/run.sh finds or installs one", missing.join(", "));
        };
        let child = self.child.insert(child);
        let from = Instant::now();
        loop {
            // The server binds its port before its socket: an answer here proves that it has both,
            // which an answer on the port would not (another server may be there).
            let reply = Admin::unix(&self.dir.path().join("redis.sock"), ADMIN_TIMEOUT)
                .and_then(|mut admin| admin.try_command(&["PING"]));
            match reply {
                Ok(Reply::Error(error)) if error.starts_with("LOADING") => {}
                // Any other answer will do: a server with a password answers with an error.
                Ok(_) => return Ok(()),
                Err(_) => {}
            }
            if let Some(status) = child.try_wait().expect("a child can be waited for") {
                self.child = None;
                let log = self.log();
                return Err(format!("{status}\n{}", log.get(printed..).unwrap_or(&log)));
            }
            if from.elapsed() > CAP {
                writeln!(log, "[harness] no answer to PING within {CAP:?}").ok(); // Only a note for the reader.
                panic!("the server does not answer:\n{}", self.log());
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // SIGKILL ends a stopped process as well. Nobody is left to tell if it fails.
            child.kill().ok();
            child.wait().ok();
        }
        if thread::panicking() {
            eprintln!("--- log of the server on port {} ---\n{}---", self.port, self.log());
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server(port {})", self.port)
    }
}

/// What may be started, in order: the user's choice alone, or what the PATH has.
fn binaries() -> Vec<OsString> {
    match env::var_os("REDIS_SERVER") {
        Some(chosen) if !chosen.is_empty() => vec![chosen],
        _ => vec!["redis-server".into(), "valkey-server".into()],
    }
}

/// A directory whose path leaves room for a socket's name: 108 bytes on Linux, 104 elsewhere.
fn temp_dir() -> TempDir {
    let base = env::temp_dir();
    let base = if base.as_os_str().len() > 70 { PathBuf::from("/tmp") } else { base };
    tempfile::Builder::new()
        .prefix("taskrunner-")
        .tempdir_in(base)
        .expect("a temporary directory can be made")
}

/// A port of 127.0.0.1 that nobody listens on now.
///
/// It lies below the range that the system takes ports from, and so does the port of a cluster's bus,
/// 10000 higher. A port of that range could be taken by any outgoing connection while the server is down;
/// a client that knocks at the closed port could even be connected to itself.
pub(crate) fn free_port() -> u16 {
    const FIRST: u32 = 11_000;
    const COUNT: u32 = 10_000;
    static START: OnceLock<u32> = OnceLock::new();
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Test processes that run side by side begin at random places, so they rarely meet.
    let start = *START.get_or_init(|| RandomState::new().build_hasher().finish() as u32 % COUNT);
    for _ in 0..COUNT {
        let offset = (start + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT;
        let port = u16::try_from(FIRST + offset).expect("the range ends below 65536");
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
    panic!("no free port from {FIRST} to {}", FIRST + COUNT - 1);
}

/// Stops a process, and returns once each of its threads stands still.
pub(crate) fn freeze(pid: u32) {
    signal(pid, Signal::STOP);
    let from = Instant::now();
    while !is_frozen(pid) {
        assert!(from.elapsed() < CAP, "process {pid} does not stop");
        thread::yield_now();
    }
}

/// Lets a stopped process go on.
pub(crate) fn thaw(pid: u32) {
    signal(pid, Signal::CONT);
}

/// Sends a signal to a process that this one started and has not waited for, so that the id is still its own.
pub(crate) fn signal(pid: u32, signal: Signal) {
    let target = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process id is a positive i32");
    kill_process(target, signal).unwrap_or_else(|error| panic!("{signal:?} to process {pid}: {error}"));
}

/// Whether every thread of the process is in state T. The signal reaches the threads one by one.
fn is_frozen(pid: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("freezing needs /proc");
    let mut states = tasks.flatten().filter_map(|task| {
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        // The name before the state is in parentheses, and may contain any character itself.
        stat.rsplit_once(')')?.1.trim_start().chars().next()
    });
    states.all(|state| state == 'T')
}

/// A reply of the server, RESP2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    Nil,
    Int(i64),
    /// A simple or a bulk string.
    Text(String),
    /// The text of an error, its code first.
    Error(String),
    List(Vec<Self>),
}

impl Reply {
    /// The text of a string.
    #[track_caller]
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            other => panic!("a string was expected, not {other:?}"),
        }
    }

    /// The value of an integer.
    #[track_caller]
    pub(crate) fn int(&self) -> i64 {
        match self {
            Self::Int(int) => *int,
            other => panic!("an integer was expected, not {other:?}"),
        }
    }

    /// The items of a list.
    #[track_caller]
    pub(crate) fn list(&self) -> &[Self] {
        match self {
            Self::List(items) => items,
            other => panic!("a list was expected, not {other:?}"),
        }
    }
}

/// A client of the test's own, so that no test judges the library by the client the library uses.
pub(crate) struct Admin {
    stream: BufReader<Box<dyn Stream>>,
    broken: bool,
}

trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

impl Admin {
    pub(crate) fn unix(socket: &Path, timeout: Duration) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self { stream: BufReader::new(Box::new(stream)), broken: false })
    }

    pub(crate) fn tcp(port: u16, timeout: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, port).into(), timeout)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self { stream: BufReader::new(Box::new(stream)), broken: false })
    }

    /// Sends a command and returns its reply; an error reply is a reply.
    #[track_caller]
    pub(crate) fn command(&mut self, args: &[&str]) -> Reply {
        self.try_command(args).unwrap_or_else(|error| panic!("{args:?}: {error}"))
    }

    /// As [`command`](Self::command), where the connection may fail. After a failure it is of no more use,
    /// because a late reply would be taken for the next one.
    pub(crate) fn try_command(&mut self, args: &[&str]) -> io::Result<Reply> {
        self.send(args)?;
        self.read()
    }

    /// Sends a command without waiting for its reply.
    pub(crate) fn send(&mut self, args: &[&str]) -> io::Result<()> {
        let mut bytes = format!("*{}\r\n", args.len());
        for arg in args {
            bytes.push_str(&format!("${}\r\n{arg}\r\n", arg.len()));
        }
        self.guarded(|stream| stream.get_mut().write_all(bytes.as_bytes()))
    }

    /// Waits for the next reply or message: of SUBSCRIBE, of MONITOR, of a command that was only sent.
    pub(crate) fn read(&mut self) -> io::Result<Reply> {
        self.guarded(read_reply)
    }

    fn guarded<T>(
        &mut self,
        act: impl FnOnce(&mut BufReader<Box<dyn Stream>>) -> io::Result<T>,
    ) -> io::Result<T> {
        if self.broken {
            return Err(io::Error::other("this connection failed before"));
        }
        let result = act(&mut self.stream);
        self.broken = result.is_err();
        result
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin").field("broken", &self.broken).finish_non_exhaustive()
    }
}

fn read_reply(stream: &mut BufReader<Box<dyn Stream>>) -> io::Result<Reply> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let Some(line) = line.strip_suffix("\r\n") else {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
    };
    let bad = || io::Error::new(io::ErrorKind::InvalidData, format!("no RESP2 reply: {line:?}"));
    let (kind, rest) = line.split_at_checked(1).ok_or_else(bad)?;
    let number = || rest.parse::<i64>().map_err(|_| bad());
    match kind {
        "+" => Ok(Reply::Text(rest.to_owned())),
        "-" => Ok(Reply::Error(rest.to_owned())),
        ":" => Ok(Reply::Int(number()?)),
        "$" => {
            let Ok(length) = usize::try_from(number()?) else { return Ok(Reply::Nil) };
            let mut bytes = vec![0; length + 2];
            stream.read_exact(&mut bytes)?;
            Ok(Reply::Text(String::from_utf8_lossy(&bytes[..length]).into_owned()))
        }
        "*" => {
            let Ok(length) = usize::try_from(number()?) else { return Ok(Reply::Nil) };
            Ok(Reply::List((0..length).map(|_| read_reply(stream)).collect::<io::Result<_>>()?))
        }
        _ => Err(bad()),
    }
}
