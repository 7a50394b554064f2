//! Tests that count the threads, descriptors or memory of their process need one of their own.

#![allow(clippy::print_stderr, reason = "what the other process printed is told beside the test's output")]

use std::env;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// Names the test whose body the process is to run.
pub(crate) const VARIABLE: &str = "TASKRUNNER_TEST_OWN_PROCESS";

const CAP: Duration = Duration::from_secs(120);

/// Runs `body` in a new process that runs nothing else, and fails if it fails there.
///
/// `test` is the calling test's path without the crate's name: `"module::test_name"`. In the new process the
/// same test runs again and comes to this call, which runs the body.
#[track_caller]
pub(crate) fn in_own_process(test: &str, body: impl FnOnce()) {
    in_own_process_within(CAP, test, body);
}

/// As [`in_own_process`], with another limit on the time the new process may take.
#[track_caller]
pub(crate) fn in_own_process_within(cap: Duration, test: &str, body: impl FnOnce()) {
    // In a process that was started for another test, starting more would never end.
    match env::var_os(VARIABLE) {
        Some(name) if name == test => return body(),
        Some(name) => panic!("the process of {} cannot run {test}", name.display()),
        None => {}
    }
    // A file never fills up as a pipe would, so no thread has to read along.
    let mut output = tempfile::tempfile().expect("a temporary file can be made");
    let share = || output.try_clone().expect("a file can be shared");
    let mut child = Command::new(env::current_exe().expect("a running test has a file"))
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(VARIABLE, test)
        .stdin(Stdio::null())
        .stdout(share())
        .stderr(share())
        // At the cap the servers that the body started have to go too: they are in its group.
        .process_group(0)
        .spawn()
        .expect("a test can be started again");
    let from = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            break Some(status);
        }
        if from.elapsed() > cap {
            let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            kill_process_group(group.expect("a process id is a positive i32"), Signal::KILL)
                .expect("a group that is not waited for can be killed");
            child.wait().expect("a child can be waited for");
            break None;
        }
        thread::sleep(Duration::from_millis(5));
    };
    let mut bytes = Vec::new();
    output.seek(SeekFrom::Start(0)).expect("a file has a beginning");
    output.read_to_end(&mut bytes).expect("a file can be read");
    let printed = String::from_utf8_lossy(&bytes);
    match status {
        None => panic!("{test} did not end within {cap:?} in its own process:\n{printed}"),
        Some(status) if !status.success() => {
            panic!("{test} failed in its own process ({status}):\n{printed}")
        }
        // A misspelt name matches no test, and no test is a success to the test runner.
        Some(_) => {
            assert!(printed.contains(" 1 passed"), "{test} is no test of this binary:\n{printed}");
            // The figures that the body printed; what the test runner adds begins with these words.
            let runner = ["running ", "test "];
            let figures = printed.lines().map(str::trim).filter(|line| !line.is_empty());
            figures
                .filter(|line| !runner.iter().any(|word| line.starts_with(word)) && *line != "ok")
                .for_each(|line| eprintln!("{line}"));
        }
    }
}
