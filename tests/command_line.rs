//! What a user of the command line meets besides the election: bad options, passwords, signals, a closed pipe.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::server::{free_port, signal};
use crate::support::{Campaign, Reply, Server, eventually, unique_group};

/// Longer than anything takes that is to happen, on the slowest machine.
const CAP: Duration = Duration::from_secs(30);

fn taskrunner(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_taskrunner"));
    command.args(args).env_remove("REDIS_URL").env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// Runs the command to its end, and fails if it was not refused in one line without the password `hunter2`.
/// Returns the line.
#[track_caller]
fn refused(command: Command) -> String {
    fails(command, 2)
}

/// As [`refused`], with another exit status.
#[track_caller]
fn fails(mut command: Command, code: i32) -> String {
    let mut child =
        Process(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts"));
    let status = child.wait();
    let (mut stdout, mut stderr) = (String::new(), String::new());
    child.0.stdout.take().expect("a pipe").read_to_string(&mut stdout).expect("text");
    child.0.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("text");
    assert_eq!((status.code(), stdout.as_str()), (Some(code), ""), "{command:?}: {stderr}");
    let line = stderr.strip_suffix('\n').unwrap_or_default();
    assert!(line.starts_with("taskrunner: ") && !line.contains('\n'), "{command:?}: {stderr:?}");
    assert!(!line.contains("hunter2"), "{command:?}: {line}");
    line.to_owned()
}

/// A process that does not outlive its test. What would run on is a candidate that was not refused.
struct Process(Child);

impl Process {
    #[track_caller]
    fn wait(&mut self) -> ExitStatus {
        eventually(CAP, || self.0.try_wait().expect("a child can be waited for").ok_or("it runs"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended unless the test fails.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The arguments of a candidate, but for those given.
fn campaign<'a>(more: &[&'a str]) -> Vec<&'a str> {
    ["campaign", "--group", "example"].iter().chain(more).copied().collect()
}

#[test]
fn a_bad_option_is_refused_with_the_numbers_and_the_rule() {
    let longest = "101days 1ms";
    let cases: &[(&[&str], &[&str])] = &[
        (&["--ttl", "0s"], &["ttl (0ns)", "100ms"]),
        (&["--ttl", "99ms"], &["ttl (99ms)", "100ms"]),
        (&["--ttl", "99999us"], &["ttl (99.999ms)", "100ms"]),
        (&["--ttl", "1day 1ms"], &["ttl (86400.001s)", "one day"]),
        (&["--ttl", longest], &["ttl (", "one day"]),
        (&["--ttl", "500000000000years"], &["ttl", "one day"]),
        (&["--ttl", "99999999999999999999s"], &["--ttl"]),
        (&["--ttl", "99999999999999999years"], &["--ttl"]),
        (&["--ttl", "5"], &["--ttl", "'5'"]),
        (&["--ttl", "soon"], &["--ttl", "'soon'"]),
        (&["--ttl", ""], &["--ttl"]),
        (&["--ttl=-1s"], &["--ttl", "'-1s'"]),
        (&["--wait", "0s"], &["wait (0ns)", "10ms"]),
        (&["--wait", "9999us"], &["wait (9.999ms)", "10ms"]),
        (&["--wait", "99999999999999999999s"], &["--wait"]),
        // A twentieth of the ttl is the margin, so a fifth is left for the jitter.
        (
            &["--ttl", "1s", "--jitter", "201ms"],
            &["jitter (201ms)", "stop margin (50ms)", "250ms", "ttl (1s)"],
        ),
        (&["--jitter", "1000years"], &["jitter (", "ttl (5s)"]),
        (&["--ttl", "1s", "--strict", "2", "--longest-ttl", "999ms"], &["longest ttl (999ms)", "ttl (1s)"]),
        (&["--strict", "1001"], &["replicas (1001)", "1000"]),
        (&["--strict=-1"], &["--strict", "-1"]),
        (&["--longest-ttl", "9s"], &["--strict"]),
        (&["--ttl", "1s", "--stop-margin", "19ms"], &["stop margin (19ms)", "20ms", "ttl (1s)"]),
        (&["--ttl", "1s", "--stop-margin", "251ms"], &["stop margin (251ms)", "250ms", "ttl (1s)"]),
        (&["--ttl", "1s", "--stop-margin", "250ms"], &["jitter (5ms)", "stop margin (250ms)", "250ms"]),
        (&["--stop-margin", "0s"], &["stop margin (0ns)", "100ms", "ttl (5s)"]),
        (&["--stop-margin", "1000years"], &["stop margin (", "ttl (5s)"]),
        (&["--on-renew-error", "panic"], &["--on-renew-error", "demote", "retry"]),
        (&["--format", "yaml"], &["--format", "text", "json"]),
        (&["--sample", "0s"], &["--sample"]),
        (&["--id", ""], &["--id", "empty"]),
        (&["--id", "two\nlines"], &["--id", "control"]),
        (&["--group"], &["--group"]),
        (&["--colour"], &["--colour"]),
        (&["more"], &["more"]),
    ];
    for (args, parts) in cases {
        let line = refused(taskrunner(&campaign(args)));
        for part in *parts {
            assert!(line.contains(part), "{args:?}: {line:?} lacks {part:?}");
        }
    }
}

#[test]
fn an_instances_name_is_not_longer_than_256_bytes() {
    let line = refused(taskrunner(&campaign(&["--id", &"n".repeat(257)])));
    assert!(line.contains("257") && line.contains("256"), "{line}");
}

#[test]
fn a_group_must_be_named() {
    assert!(refused(taskrunner(&["campaign"])).contains("--group"));
    assert!(refused(taskrunner(&["campaign", "--group", ""])).contains("empty"));
}

#[test]
fn a_bad_url_is_refused_and_its_password_not_shown() {
    for (url, part) in [
        ("", "empty"),
        ("hunter2@host", "no scheme"),
        ("http://u:hunter2@host", "scheme"),
        ("rediss://u:hunter2@", "no host"),
        ("redis-cluster://u:hunter2@host/1", "names a database"),
        ("redis+cluster://u:hunter2@one,", "no host"),
        ("redis://u:hunter2@one:1,two:2", "several hosts"),
        ("redis+sentinel://u:hunter2@host", "name the primary"),
        ("redis://u:hunter2@", "no host"),
        ("redis://u:hunter2@host:port", "cannot be parsed"),
        ("redis://u:hunter2@host:70000", "cannot be parsed"),
        ("redis://u:hun/hunter2@host", "cannot be parsed"),
        ("redis://u:hunter2@host/-1", "negative"),
        ("redis://u:hunter2@host/99999999999999999999", "database"),
        ("unix:///?pass=hunter2", "no socket path"),
        ("unix://run/redis.sock?pass=hunter2", "three slashes"),
    ] {
        let line = refused(taskrunner(&campaign(&["--redis", url])));
        assert!(line.contains(part), "{url}: {line:?} lacks {part:?}");
        if !url.is_empty() {
            let mut by_variable = taskrunner(&campaign(&[]));
            by_variable.env("REDIS_URL", url);
            let line = refused(by_variable);
            assert!(line.contains(part), "REDIS_URL={url}: {line:?} lacks {part:?}");
        }
    }
    // A URL in a wrong place is shown like any bad argument, but for its password.
    refused(taskrunner(&campaign(&["redis://u:hunter2@host"])));
    refused(taskrunner(&campaign(&["--ttl", "redis://u:hunter2@host"])));
    refused(taskrunner(&["redis://u:hunter2@host"]));
}

#[test]
fn help_and_version_are_no_errors() {
    for (args, part) in [
        (&["--help"][..], "campaign"),
        (&["campaign", "--help"], "--on-renew-error"),
        (&["status", "--help"], "--format"),
        (&["demo", "--help"], "no server"),
        (&["--version"], env!("CARGO_PKG_VERSION")),
    ] {
        let output: Output = taskrunner(args).output().expect("it starts");
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains(part), "{args:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{args:?}: {output:?}");
    }
    // Without any argument nothing was asked for.
    let output = taskrunner(&[]).output().expect("it starts");
    assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(2), true), "{output:?}");
}

/// What `status` prints, whose exit status must be 0, and nothing on standard error.
#[track_caller]
fn status(server: &Server, group: &str, format: &str) -> String {
    let args = ["status", "--group", group, "--redis", &server.url(), "--format", format];
    let output = taskrunner(&args).output().expect("it starts");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[track_caller]
fn status_json(server: &Server, group: &str) -> Value {
    let printed = status(server, group, "json");
    assert_eq!(printed.lines().count(), 1, "{printed:?}");
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{error}: {printed:?}"))
}

#[test]
fn status_says_who_holds_the_lease_and_for_how_long() {
    let server = Server::start();
    let key = "taskrunner:leader:YNEZYJZJOMFH7AD67ODHNKJNZNXYUP4P";
    let none = format!(
        "{{\"group\":\"example\",\"key\":\"{key}\",\"holder\":null,\"token\":null,\"remaining_ms\":null}}\n"
    );
    assert_eq!(status(&server, "example", "json"), none);
    let none = format!("group      example\nkey        {key}\nholder     nobody\n");
    assert_eq!(status(&server, "example", "text"), none);

    let mut ours = Campaign::start("example", &server.url(), &["--id", "web-1", "--ttl", "60s"]);
    let id = ours.wait_event(0, "started", CAP).text("id").to_owned();
    let token = ours.wait_event(0, "promoted", CAP).number("token");
    let found = status_json(&server, "example");
    assert!(id.starts_with("web-1/"));
    assert_eq!((found["holder"].as_str(), found["token"].as_u64()), (Some(id.as_str()), Some(token)));
    let remaining = found["remaining_ms"].as_u64();
    assert!(remaining.is_some_and(|ms| (1..=60_000).contains(&ms)), "{found}");
    let text = status(&server, "example", "text");
    assert!(text.contains(&format!("holder     {id}\ntoken      {token}\nremaining  ")), "{text}");
    ours.terminate();
    ours.wait_exit(CAP);
    assert_eq!(status_json(&server, "example")["holder"], Value::Null, "a stopped instance holds nothing");

    // A lease that is parked has no holder.
    server.command(&["SET", key, "hold/web-1/x", "PX", "60000"]);
    let found = status_json(&server, "example");
    assert_eq!((&found["holder"], &found["token"]), (&Value::Null, &Value::Null), "{found}");
    assert!(found["remaining_ms"].as_u64().is_some_and(|ms| ms > 1), "{found}");
    assert!(status(&server, "example", "text").contains("holder     nobody\nparked     "));
    server.command(&["DEL", key]);

    // The term of the instance before must not lend its token to an instance of the Go version.
    server.command(&["SET", key, "GO", "PX", "60000"]);
    let found = status_json(&server, "example");
    assert_eq!((found["holder"].as_str(), &found["token"]), (Some("GO"), &Value::Null));
    assert!(found["remaining_ms"].as_u64().is_some_and(|ms| (1..=60_000).contains(&ms)), "{found}");
    assert!(status(&server, "example", "text").contains("token      none\n"));

    server.command(&["SET", key, "two\nlines\u{1b}[2J"]);
    let found = status_json(&server, "example");
    assert_eq!(
        (found["holder"].as_str(), &found["remaining_ms"]),
        (Some("two\nlines\u{1b}[2J"), &Value::Null)
    );
    let text = status(&server, "example", "text");
    assert!(text.contains("remaining  without expiry\n") && !text.contains('\u{1b}'), "{text:?}");
    assert_eq!(text.lines().count(), 5, "{text:?}");
}

#[test]
fn status_fails_in_time_and_in_one_line_where_redis_does_not_answer() {
    let server = Server::with(&["--requirepass", "hunter2"]);
    let ask = |url: &str| fails(taskrunner(&["status", "--group", "example", "--redis", url]), 1);
    assert!(ask(&nowhere()).contains("refused"));
    let line = ask(&format!("redis://:hunter2-wrong@127.0.0.1:{}/", server.port()));
    assert!(line.contains("WRONGPASS"), "an answer, but none about the group: {line}");
    server.freeze();
    let from = Instant::now();
    ask(&server.url());
    // 2 s, and what a busy machine takes to start a process and to end it.
    let took = from.elapsed();
    assert!((Duration::from_secs(2)..Duration::from_secs(8)).contains(&took), "{took:?}");
}

#[test]
fn status_refuses_bad_arguments_before_it_asks() {
    let ask = |args: &[&str]| refused(taskrunner(&[&["status"], args].concat()));
    assert!(ask(&[]).contains("--group"));
    assert!(ask(&["--group", ""]).contains("empty"));
    assert!(ask(&["--group", "example", "--redis", "http://u:hunter2@host"]).contains("scheme"));
    assert!(ask(&["--group", "example", "--format", "yaml"]).contains("text, json"));
    assert!(refused(taskrunner(&["demo", "--group", "example"])).contains("--group"));
}

/// A URL at which nobody listens.
fn nowhere() -> String {
    format!("redis://127.0.0.1:{}/", free_port())
}

#[test]
fn the_first_line_is_started_with_the_id_and_the_groups_key() {
    let named = Campaign::start("example", &nowhere(), &["--id", "web-1", "--wait", "584554531years"]);
    let unnamed = Campaign::start("grüße", &nowhere(), &[]);
    for (candidate, name, key) in [
        (&named, "web-1/", "taskrunner:leader:YNEZYJZJOMFH7AD67ODHNKJNZNXYUP4P"),
        (&unnamed, "", "taskrunner:leader:ZVLMWCWEK2IHGGX62577MZSV37PYK5W2"),
    ] {
        let first = candidate.wait_for(|_| true, CAP);
        assert_eq!((first.event(), first.text("key")), ("started", key));
        let random = first.text("id").strip_prefix(name).expect("the name stands first");
        // 16 bytes in base32, with the padding that the Go side's ids have.
        let digits = random.strip_suffix("======").expect("padding");
        assert!(
            digits.len() == 26 && digits.bytes().all(|it| matches!(it, b'A'..=b'Z' | b'2'..=b'7')),
            "{random}"
        );
        // A server that does not answer is told by events: the candidate has started all the same.
        let error = candidate.wait_for(|line| line.is("error"), CAP);
        assert_eq!((error.text("operation"), error.text("kind")), ("connect", "passing"));
    }
}

#[test]
fn a_password_appears_nowhere_in_the_output_nor_in_the_finest_log() {
    let server = Server::with(&["--requirepass", "hunter2-right"]);
    let url = |password: &str| format!("redis://:{password}@127.0.0.1:{}/", server.port());
    let start = |password: &str| {
        let args = ["campaign", "--group", "password", "--format", "json", "--redis", &url(password)];
        let mut command = taskrunner(&args);
        command.env("RUST_LOG", "trace");
        Campaign::spawn(command)
    };
    let mut wrong = start("hunter2-wrong");
    let mut right = start("hunter2-right");
    let error = wrong.wait_for(|line| line.is("error"), CAP);
    assert_eq!(error.text("kind"), "configuration", "{}", error.value);
    right.wait_for(|line| line.is("promoted"), CAP);
    for candidate in [&mut wrong, &mut right] {
        candidate.terminate();
        candidate.wait_exit(CAP);
        let log = candidate.stderr();
        assert!(log.contains("TRACE") || log.contains("DEBUG"), "there is a log: {log:?}");
        let lines: Vec<Value> = candidate.lines().into_iter().map(|line| line.value).collect();
        for output in [log, format!("{lines:?}")] {
            assert!(!output.contains("hunter2"), "{output}");
        }
    }
}

#[test]
fn a_closed_standard_output_ends_the_process_which_gives_the_lease_back() {
    let server = Server::start();
    let group = unique_group("closed-output");
    let url = server.url();
    let args = ["campaign", "--group", &group, "--redis", &url, "--format", "json", "--sample", "20ms"];
    let mut command = taskrunner(&args);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut process = Process(child);
    let mut stdout = BufReader::new(process.0.stdout.take().expect("a pipe"));
    let mut key = None;
    loop {
        let mut text = String::new();
        stdout.read_line(&mut text).expect("a line");
        let line: Value = serde_json::from_str(&text).expect("JSON");
        match line["event"].as_str() {
            Some("started") => key = line["key"].as_str().map(str::to_owned),
            Some("promoted") => break,
            _ => {}
        }
    }
    let key = key.expect("started comes first");
    assert_ne!(server.command(&["GET", &key]), Reply::Nil);
    drop(stdout);

    // A reading is printed every 100 ms, so the next write comes soon.
    let status = process.wait();
    let mut stderr = String::new();
    process.0.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("text");
    assert_eq!(status.code(), Some(1), "{status}: {stderr}");
    assert!(stderr.contains("standard output") && stderr.lines().count() == 1, "{stderr:?}");
    assert_eq!(server.command(&["GET", &key]), Reply::Nil, "the lease was given back");
}

#[test]
fn a_second_signal_ends_the_process_while_the_first_one_waits_for_redis() {
    for [first, second] in [[Signal::TERM, Signal::TERM], [Signal::INT, Signal::TERM]] {
        let server = Server::start();
        // Two call limits of 2 s are what the release may take here.
        let mut candidate = Campaign::start(&unique_group("two-signals"), &server.url(), &["--ttl", "5s"]);
        candidate.wait_for(|line| line.is("promoted"), CAP);
        server.freeze();
        signal(candidate.pid(), first);
        let demoted = candidate.wait_for(|line| line.is("demoted"), CAP);
        assert_eq!(demoted.text("reason"), "stopped");
        signal(candidate.pid(), second);
        let status = candidate.wait_exit(CAP);
        assert_eq!(status.signal(), Some(second.as_raw()), "{status}");
        assert!(candidate.lines().iter().all(|line| !line.is("stopped")), "it did not get so far");
    }
}

#[test]
fn one_interrupt_stops_a_candidate_as_sigterm_does() {
    let server = Server::start();
    let mut candidate = Campaign::start(&unique_group("interrupt"), &server.url(), &[]);
    candidate.wait_for(|line| line.is("promoted"), CAP);
    signal(candidate.pid(), Signal::INT);
    assert_eq!(candidate.wait_exit(CAP).code(), Some(0));
    assert!(candidate.lines().last().is_some_and(|line| line.is("stopped")));
}
