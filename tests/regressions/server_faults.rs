//! What passes by itself: a server that is busy, loads, cannot save, or is a replica for a while.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Instant;

use taskrunner::election::{ErrorKind, Event, Operation, Reason, RenewError};
use tempfile::TempDir;

use super::{CAP, MS, builder, demotion, leads, next, wait_for_errors};
use crate::support::{Reply, Server, eventually, unique_group};

/// A fault that a server can have for a while, and that passes.
struct Fault {
    name: &'static str,
    /// The code of the error that it answers with meanwhile.
    code: &'static str,
    kind: ErrorKind,
    begin: fn(&Server, &Path),
    end: fn(&Server),
}

fn config(server: &Server, name: &str, value: &str) {
    assert_eq!(server.command(&["CONFIG", "SET", name, value]).text(), "OK");
}

/// Runs a script that does not end, and waits until others are told so.
fn keep_busy(server: &Server, _: &Path) {
    config(server, "lua-time-limit", "20");
    let mut admin = server.admin_within(CAP);
    // Its reply is never read; the connection ends with the admin, and the script does not.
    admin.send(&["EVAL", "while true do end", "0"]).expect("sent");
    let mut other = server.admin_within(CAP);
    eventually(CAP, || match other.command(&["PING"]) {
        Reply::Error(error) if error.starts_with("BUSY") => Ok(()),
        reply => Err(reply),
    });
}

fn kill_script(server: &Server) {
    let mut admin = server.admin_within(CAP);
    assert_eq!(admin.command(&["SCRIPT", "KILL"]).text(), "OK");
    // It ends a moment later.
    eventually(CAP, || match admin.command(&["PING"]) {
        Reply::Text(_) => Ok(()),
        reply => Err(reply),
    });
}

/// Takes away the directory that the server saves to.
fn fail_to_save(server: &Server, dir: &Path) {
    let mut admin = server.admin();
    fs::remove_dir_all(dir).expect("a directory of the test's");
    config(server, "save", "3600 1");
    admin.command(&["BGSAVE"]);
    eventually(CAP, || match admin.command(&["SET", "any", "thing"]) {
        Reply::Error(error) if error.starts_with("MISCONF") => Ok(()),
        reply => Err(reply),
    });
}

/// A server that saves to a directory which may be taken away.
fn server_with_directory() -> (Server, TempDir) {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let server = Server::with(&["--dir", dir.path().to_str().expect("a path in ASCII")]);
    (server, dir)
}

const FAULTS: &[Fault] = &[
    Fault {
        name: "a script that does not end",
        code: "BUSY",
        kind: ErrorKind::Passing,
        begin: keep_busy,
        end: kill_script,
    },
    Fault {
        name: "too few replicas",
        code: "NOREPLICAS",
        kind: ErrorKind::Passing,
        begin: |server, _| config(server, "min-replicas-to-write", "1"),
        end: |server| config(server, "min-replicas-to-write", "0"),
    },
    Fault {
        name: "a disk that cannot be written",
        code: "MISCONF",
        kind: ErrorKind::Passing,
        begin: fail_to_save,
        end: |server| config(server, "stop-writes-on-bgsave-error", "no"),
    },
    Fault {
        name: "a replica",
        code: "READONLY",
        kind: ErrorKind::WrongNode,
        begin: |server, _| _ = server.command(&["REPLICAOF", "127.0.0.1", "1"]),
        end: |server| _ = server.command(&["REPLICAOF", "NO", "ONE"]),
    },
    Fault {
        name: "a replica without its primary",
        code: "MASTERDOWN",
        kind: ErrorKind::WrongNode,
        begin: |server, _| {
            config(server, "replica-serve-stale-data", "no");
            server.command(&["REPLICAOF", "127.0.0.1", "1"]);
        },
        end: |server| _ = server.command(&["REPLICAOF", "NO", "ONE"]),
    },
];

/// B64: what passes by itself was told as fatal, and one instance only could lead afterwards.
#[test]
fn a_fault_that_passes_before_the_deadline_costs_a_leader_that_retries_nothing() {
    thread::scope(|scope| {
        for fault in FAULTS {
            scope.spawn(|| {
                let (server, dir) = server_with_directory();
                // A renewal is due 5 s after each other, and 4.5 s remain to get one through.
                let elector = builder(&server.url(), &unique_group("passes"))
                    .ttl(10_000 * MS)
                    .renew_error(RenewError::Retry)
                    .start()
                    .expect("good options");
                let (events, leadership) = (elector.events(), leads(&elector));
                let renewals = elector.status().counters.renewals;
                let attempted = Instant::now() + 5_000 * MS;
                (fault.begin)(&server, dir.path());
                // Not a wait for anything: the renewal and its first repetitions fall into the fault.
                thread::sleep(attempted.saturating_duration_since(Instant::now()) + 800 * MS);
                let status = elector.status();
                assert_eq!(status.counters.renewals, renewals, "{}: it did not last", fault.name);
                assert!(leadership.is_valid(), "{}", fault.name);
                (fault.end)(&server);
                eventually(CAP, || match elector.status().counters.renewals {
                    now if now > renewals => Ok(()),
                    now => Err(now),
                });
                assert!(leadership.is_valid(), "{}: {:?}", fault.name, elector.status());
                elector.stop().expect("released");
                let told: Vec<_> = events.iter().filter(|event| matches!(event, Event::Error(_))).collect();
                assert!(told.is_empty(), "{}: {told:?}", fault.name);
            });
        }
    });
}

/// B64, where it takes longer.
#[test]
fn a_fault_that_outlasts_the_lease_ends_the_term_and_another_follows_once_it_has_passed() {
    thread::scope(|scope| {
        for fault in FAULTS {
            scope.spawn(|| {
                let (server, dir) = server_with_directory();
                let elector = builder(&server.url(), &unique_group("outlasts"))
                    .ttl(600 * MS)
                    .wait(300 * MS)
                    .renew_error(RenewError::Retry)
                    .start()
                    .expect("good options");
                let (events, errors) = (elector.events(), elector.on_error());
                let token = leads(&elector).token();
                (fault.begin)(&server, dir.path());
                let demoted = next(&events, "demoted", demotion);
                assert_eq!(demoted, (token, Reason::Expired), "{}: it was never lost", fault.name);
                // It goes on trying, and says each time what is the matter.
                wait_for_errors(&elector, 5);
                (fault.end)(&server);
                assert!(leads(&elector).token() > token, "{}", fault.name);
                let (mut told, mut named) = (0, 0);
                for error in errors.try_iter().filter(|error| error.operation() != Some(Operation::Wake)) {
                    let chain = error.to_chain();
                    // A server that has just got busy does not answer at all.
                    assert!(
                        matches!(error.kind(), ErrorKind::Passing) || error.kind() == fault.kind,
                        "{chain}"
                    );
                    told += 1;
                    named += usize::from(chain.contains(fault.code) || chain.contains("is a replica"));
                }
                assert!(named > 0 && told >= 4, "{}: {named} of {told} name {}", fault.name, fault.code);
            });
        }
    });
}

/// B64: a server that loads its data answers, and answers LOADING.
#[test]
fn a_server_that_loads_its_data_is_waited_for_and_gives_the_lease_back() {
    let mut server = Server::with(&["--key-load-delay", "10000", "--rdbcompression", "no"]);
    let elector = builder(&server.url(), &unique_group("loads"))
        .ttl(12_000 * MS)
        .wait(300 * MS)
        .renew_error(RenewError::Retry)
        .start()
        .expect("good options");
    let leadership = leads(&elector);
    let follower = builder(&server.url(), elector.group()).wait(300 * MS).start().expect("good options");
    // It loads for two seconds, and looks for clients after each 2 MB.
    let fill = "local value = string.rep('x', 100000)
        for n = 1, 200 do redis.call('SET', 'key' .. n, value) end
        return redis.call('DBSIZE')";
    assert_eq!(server.command(&["EVAL", fill, "0"]).int(), 202);
    // For the harness has the server save nothing by itself.
    assert_eq!(server.command(&["SAVE"]).text(), "OK");
    let events = follower.events();
    // Returns when all is loaded.
    server.restart();
    let loading = next(&events, "that tells of LOADING", |event| match event {
        Event::Error(error) if error.to_chain().contains("LOADING") => Some(error.clone()),
        _ => None,
    });
    assert_eq!(loading.kind(), ErrorKind::Passing, "{}", loading.to_chain());
    // The wake connection is back, and so the leader asks.
    let renewals = elector.status().counters.renewals;
    eventually(CAP, || match elector.status().counters.renewals {
        now if now > renewals => Ok(()),
        now => Err(now),
    });
    assert!(leadership.is_valid() && elector.on_demote().is_empty());
    let told = elector.on_error().try_iter().find(|error| error.operation() != Some(Operation::Wake));
    assert!(told.is_none(), "{told:?}");
}
