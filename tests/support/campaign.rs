//! A candidate in a process of its own: `taskrunner campaign`, and what it prints.

#![allow(clippy::print_stderr, reason = "a failing test shows its candidates' lines beside its own output")]

use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::Value;

use super::history::History;
use super::server::{freeze, signal, thaw};

/// How many of the last lines a failure shows.
const SHOWN: usize = 40;

/// A line of the candidate.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) value: Value,
    /// When this process had read it.
    pub(crate) arrived: Instant,
    /// The same as Unix microseconds, to compare with the times in lines.
    pub(crate) arrived_us: u64,
}

impl Line {
    pub(crate) fn event(&self) -> &str {
        self.value["event"].as_str().unwrap_or_default()
    }

    pub(crate) fn is(&self, event: &str) -> bool {
        self.event() == event
    }

    #[track_caller]
    pub(crate) fn at_us(&self) -> u64 {
        self.number("at_us")
    }

    pub(crate) fn token(&self) -> Option<u64> {
        self.value["token"].as_u64()
    }

    /// A number that the line must have.
    #[track_caller]
    pub(crate) fn number(&self, name: &str) -> u64 {
        self.value[name].as_u64().unwrap_or_else(|| panic!("no number {name} in {}", self.value))
    }

    /// A text that the line must have.
    #[track_caller]
    pub(crate) fn text(&self, name: &str) -> &str {
        self.value[name].as_str().unwrap_or_else(|| panic!("no text {name} in {}", self.value))
    }
}

/// A running candidate. Dropping it kills it, and shows its last lines if the test is failing.
pub(crate) struct Campaign {
    name: String,
    child: Child,
    status: Option<ExitStatus>,
    output: Arc<Output>,
    readers: Vec<JoinHandle<()>>,
}

impl Campaign {
    /// Starts a candidate of the group, with more arguments as on the command line: `&["--ttl", "1s"]`.
    pub(crate) fn start(group: &str, url: &str, args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taskrunner"));
        command.args(["campaign", "--group", group, "--redis", url, "--format", "json"]).args(args);
        Self::spawn(command)
    }

    /// Starts a command that prints JSON lines.
    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut child = command
            .env_remove("REDIS_URL")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program can be started");
        let output = Arc::new(Output::default());
        let stdout = child.stdout.take().expect("stdout is a pipe");
        let stderr = child.stderr.take().expect("stderr is a pipe");
        let readers = vec![
            spawn_reader("campaign-out", &output, move |output| output.read_lines(stdout)),
            spawn_reader("campaign-err", &output, move |output| output.read_log(stderr)),
        ];
        Self { name: format!("process {}", child.id()), child, status: None, output, readers }
    }

    /// A name for messages; the process's id unless it is set.
    #[must_use]
    pub(crate) fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn pid(&self) -> u32 {
        assert!(self.status.is_none(), "{} has ended", self.name);
        self.child.id()
    }

    /// All lines until now.
    pub(crate) fn lines(&self) -> Vec<Line> {
        self.output.lock().lines.clone()
    }

    /// The lines until now but for the readings.
    pub(crate) fn events(&self) -> Vec<Line> {
        let mut lines = self.lines();
        lines.retain(|line| !line.is("sample") && !line.is("gap"));
        lines
    }

    /// How many lines there are: what [`wait_for_after`](Self::wait_for_after) is to skip.
    pub(crate) fn mark(&self) -> usize {
        self.output.lock().lines.len()
    }

    /// What the process has written to standard error.
    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().log).into_owned()
    }

    /// What the process said, for the judge. Complete once the process has been waited for.
    pub(crate) fn history(&self) -> History {
        let state = self.output.lock();
        History::new(&self.name, state.lines.iter().map(|line| &line.value))
    }

    /// The first line that fits, whether it is there already or comes within `cap`.
    #[track_caller]
    pub(crate) fn wait_for(&self, fits: impl FnMut(&Line) -> bool, cap: Duration) -> Line {
        self.wait_for_after(0, fits, cap)
    }

    /// The first line that fits and is not among the first `mark`.
    #[track_caller]
    pub(crate) fn wait_for_after(
        &self,
        mark: usize,
        mut fits: impl FnMut(&Line) -> bool,
        cap: Duration,
    ) -> Line {
        let until = Instant::now() + cap;
        let mut looked = mark;
        let mut state = self.output.lock();
        loop {
            if let Some(line) = state.lines.iter().skip(looked).find(|line| fits(line)) {
                return line.clone();
            }
            looked = state.lines.len().max(mark);
            let left = until.saturating_duration_since(Instant::now());
            if state.ended || !state.strange.is_empty() || left.is_zero() {
                let why = match &state.strange[..] {
                    [] if state.ended => "its output ended".to_owned(),
                    [] => format!("{cap:?} have passed"),
                    strange => format!("it printed what is no JSON: {strange:?}"),
                };
                drop(state); // The report below looks at it again.
                panic!("{} did not print the line waited for: {why}\n{}", self.name, self.report());
            }
            state = self.output.grown.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The first line of this event that is not among the first `mark`.
    #[track_caller]
    pub(crate) fn wait_event(&self, mark: usize, event: &str, cap: Duration) -> Line {
        self.wait_for_after(mark, |line| line.is(event), cap)
    }

    /// Ends the process as a crash would, and reads what it had printed.
    pub(crate) fn kill9(&mut self) {
        if self.status.is_none() {
            self.child.kill().expect("a child can be killed");
            self.status = Some(self.child.wait().expect("a child can be waited for"));
        }
        self.join();
    }

    /// Stops the process where it is; returns when every thread of it stands still.
    pub(crate) fn freeze(&self) {
        freeze(self.pid());
    }

    pub(crate) fn thaw(&self) {
        thaw(self.pid());
    }

    /// Asks the process to end (SIGTERM).
    pub(crate) fn terminate(&self) {
        signal(self.pid(), Signal::TERM);
    }

    /// How the process has ended, if it has; then all that it had printed is read.
    pub(crate) fn try_exit(&mut self) -> Option<ExitStatus> {
        self.status = self.status.or(self.child.try_wait().expect("a child can be waited for"));
        self.status.inspect(|_| self.join())
    }

    /// Waits for the end of the process, and reads what it had printed.
    #[track_caller]
    pub(crate) fn wait_exit(&mut self, cap: Duration) -> ExitStatus {
        let from = Instant::now();
        loop {
            if let Some(status) = self.try_exit() {
                return status;
            }
            if from.elapsed() > cap {
                panic!("{} did not end within {cap:?}\n{}", self.name, self.report());
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// The readers end with the process's output.
    fn join(&mut self) {
        for reader in self.readers.drain(..) {
            reader.join().ok(); // A panic of theirs has been printed, and the lines are missing.
        }
    }

    /// The last lines and standard error.
    fn report(&self) -> String {
        let state = self.output.lock();
        let skipped = state.lines.len().saturating_sub(SHOWN);
        let lines: Vec<_> = state.lines[skipped..].iter().map(|line| line.value.to_string()).collect();
        let log = String::from_utf8_lossy(&state.log);
        format!(
            "--- {}, after {skipped} lines ---\n{}\n--- stderr ---\n{log}---",
            self.name,
            lines.join("\n")
        )
    }
}

impl Drop for Campaign {
    fn drop(&mut self) {
        if self.status.is_none() {
            // SIGKILL ends a stopped process as well. Nobody is left to tell if it fails.
            self.child.kill().ok();
            self.child.wait().ok();
        }
        self.join();
        if thread::panicking() {
            eprintln!("{}", self.report());
        }
    }
}

impl fmt::Debug for Campaign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Campaign({})", self.name)
    }
}

#[derive(Default)]
struct Output {
    state: Mutex<State>,
    grown: Condvar,
}

#[derive(Default)]
struct State {
    lines: Vec<Line>,
    /// Lines that are no JSON.
    strange: Vec<String>,
    log: Vec<u8>,
    ended: bool,
}

impl Output {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_lines(&self, stdout: impl Read) {
        // A process that was killed may leave half a line, which is no line.
        let mut stdout = BufReader::new(stdout);
        let mut text = String::new();
        while stdout.read_line(&mut text).is_ok() && text.ends_with('\n') {
            let arrived = Instant::now();
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let mut state = self.lock();
            match serde_json::from_str(&text) {
                Ok(value) => {
                    let arrived_us = since.as_micros().try_into().unwrap_or(u64::MAX);
                    state.lines.push(Line { value, arrived, arrived_us });
                }
                Err(_) => state.strange.push(text.clone()),
            }
            drop(state);
            self.grown.notify_all();
            text.clear();
        }
        self.lock().ended = true;
        self.grown.notify_all();
    }

    fn read_log(&self, mut stderr: impl Read) {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = stderr.read(&mut buffer) {
            self.lock().log.extend_from_slice(&buffer[..length]);
        }
    }
}

fn spawn_reader(
    name: &str,
    output: &Arc<Output>,
    read: impl FnOnce(&Output) + Send + 'static,
) -> JoinHandle<()> {
    let output = Arc::clone(output);
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || read(&output))
        .expect("a thread can be spawned")
}
