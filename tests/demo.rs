//! `taskrunner demo` from outside: what it shows, in which order, and how long it takes.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::eventually;
use crate::support::server::signal;

/// Longer than anything takes that is to happen, on the slowest machine.
const CAP: Duration = Duration::from_secs(30);

/// A demo that does not outlive its test.
struct Demo {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Demo {
    fn start() -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taskrunner"));
        command.arg("demo").env_remove("RUST_LOG").stdin(Stdio::null());
        // There is no server where it could look for one.
        command.env("REDIS_URL", "redis://127.0.0.1:1/");
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program can be started");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, stdout }
    }

    /// The next line; none at the end.
    #[track_caller]
    fn line(&mut self) -> Option<Line> {
        let mut text = String::new();
        self.stdout.read_line(&mut text).expect("a pipe can be read");
        (!text.is_empty()).then(|| Line::parse(&text))
    }

    #[track_caller]
    fn wait(&mut self) -> ExitStatus {
        eventually(CAP, || self.child.try_wait().expect("a child can be waited for").ok_or("it runs"))
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // It has ended unless the test fails.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A line of the timeline: `4.511 s  c    promoted  token 7, ...`.
#[derive(Debug)]
struct Line {
    seconds: f64,
    who: String,
    event: String,
    about: String,
    read: Instant,
}

impl Line {
    #[track_caller]
    fn parse(text: &str) -> Self {
        let line = text.strip_suffix('\n').unwrap_or_else(|| panic!("half a line: {text:?}"));
        // The columns stand one below the other.
        let columns = [(0, 6), (10, 3), (15, 8)].map(|(from, width)| line.get(from..from + width));
        let [Some(seconds), Some(who), Some(event)] = columns else { panic!("no columns: {text:?}") };
        assert!(line.get(6..10) == Some(" s  ") && line.get(23..25) == Some("  "), "{text:?}");
        Self {
            seconds: seconds.trim().parse().unwrap_or_else(|error| panic!("{error}: {text:?}")),
            who: who.trim().to_owned(),
            event: event.trim().to_owned(),
            about: line[25..].to_owned(),
            read: Instant::now(),
        }
    }

    #[track_caller]
    fn token(&self) -> u64 {
        let token = self.about.strip_prefix("token ").and_then(|rest| rest.split(',').next());
        token.and_then(|token| token.parse().ok()).unwrap_or_else(|| panic!("no token in {self:?}"))
    }
}

#[test]
fn the_demo_shows_a_crash_a_clean_stop_and_who_leads_then() {
    let from = Instant::now();
    let mut demo = Demo::start();
    let lines: Vec<Line> = std::iter::from_fn(|| demo.line()).collect();
    let status = demo.wait();
    let took = from.elapsed();
    let mut stderr = String::new();
    demo.child.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("text");
    assert_eq!((status.code(), stderr.as_str()), (Some(0), ""));
    assert!((Duration::from_secs(7)..Duration::from_secs(20)).contains(&took), "{took:?}");

    let events: Vec<&str> = lines.iter().map(|line| line.event.as_str()).collect();
    let story =
        ["start", "promoted", "crash", "promoted", "stop", "demoted", "promoted", "stop", "demoted", "end"];
    assert_eq!(events, story, "{lines:#?}");
    let [_, first, crash, second, stop, stopped, third, last_stop, last_stopped, end] = &lines[..] else {
        unreachable!("as many lines as there are parts of the story");
    };
    // Who they are is left to the election; that it is another one each time is not.
    let mut leaders = [&first.who, &second.who, &third.who];
    leaders.sort();
    assert_eq!(leaders, ["a", "b", "c"], "{lines:#?}");
    assert_eq!(crash.who, first.who);
    assert!([stop, stopped].iter().all(|line| line.who == second.who), "{lines:#?}");
    assert!([last_stop, last_stopped].iter().all(|line| line.who == third.who), "{lines:#?}");
    assert!(first.token() < second.token() && second.token() < third.token(), "{lines:#?}");
    assert_eq!((stopped.token(), last_stopped.token()), (second.token(), third.token()));
    assert!(stopped.about.ends_with(", stopped"), "{stopped:?}");
    assert!(lines.is_sorted_by(|one, next| one.seconds <= next.seconds), "{lines:#?}");

    // The crashed one's lease had more than a second left. Without the wake the next attempt after the stop would
    // come a second later, when the lease was to end as its follower knew it.
    assert!(second.seconds - crash.seconds > 1.0, "{lines:#?}");
    assert!(second.about.contains(" s after the crash") && second.about.contains("after the lease's end"));
    assert!(third.seconds - stop.seconds < 0.75, "{lines:#?}");
    assert!(third.about.contains(" ms after the stop"), "{third:?}");
    assert!(end.about.contains("crash") && end.about.contains("clean stop"), "{end:?}");
    // Each line is there to be read when it happens.
    let early = end.read.saturating_duration_since(crash.read);
    assert!(early > Duration::from_secs(4), "the crash was told {early:?} before the end");
}

#[test]
fn an_interrupt_ends_the_demo_at_once() {
    let mut demo = Demo::start();
    assert!(demo.line().is_some_and(|line| line.event == "start"));
    let from = Instant::now();
    signal(demo.child.id(), Signal::INT);
    let status = demo.wait();
    assert_eq!(status.signal(), Some(Signal::INT.as_raw()), "{status}");
    assert!(from.elapsed() < Duration::from_secs(5), "it took {:?}", from.elapsed());
}
