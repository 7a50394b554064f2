//! Clocks: of a process that stood still, of a server that jumps, and the wall's.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use taskrunner::election::{Event, Reason};

use super::{CAP, MS, builder, renews};
use crate::support::{Campaign, Reply, Server, eventually, unique_group};

/// B04: a leader that woke after its lease had gone crashed.
#[test]
fn a_leader_whose_lease_was_deleted_while_it_stood_still_ends_its_term_and_begins_another() {
    let server = Server::start();
    let mut admin = server.admin();
    let args = ["--ttl", "300ms", "--wait", "300ms"];
    let mut lone = Campaign::start(&unique_group("deleted"), &server.url(), &args);
    let key = lone.wait_event(0, "started", CAP).text("key").to_owned();
    let token = lone.wait_event(0, "promoted", CAP).token();
    lone.freeze();
    admin.command(&["DEL", &key]);
    thread::sleep(5 * 300 * MS);
    let mark = lone.mark();
    lone.thaw();
    let demoted = lone.wait_event(mark, "demoted", CAP);
    assert_eq!((demoted.text("reason"), demoted.token()), ("expired", token));
    let again = lone.wait_event(mark, "promoted", CAP);
    assert!(again.token() > token, "{}", again.value);
    lone.terminate();
    assert_eq!(lone.wait_exit(CAP).code(), Some(0));
}

/// B05: the server's clock stepped forward, and every lease ended before its holder knew.
#[test]
fn a_lease_that_the_servers_clock_ended_early_is_lost_at_the_next_renewal_and_not_taken_back() {
    let server = Server::start();
    let mut admin = server.admin();
    let group = unique_group("jumped");
    // The next renewal comes after 3 s: by then somebody else leads, also on a slow machine.
    let start = || builder(&server.url(), &group).ttl(6000 * MS).start().expect("good options");
    let old = start();
    let before = old.wait_for_leadership(CAP).expect("leads");
    renews(&old, 1);
    admin.command(&["PEXPIRE", old.key(), "1"]);
    eventually(CAP, || match admin.command(&["EXISTS", old.key()]) {
        Reply::Int(0) => Ok(()),
        reply => Err(reply),
    });
    let new = start();
    let after = new.wait_for_leadership(CAP).expect("the lease has ended");
    assert!(after.token() > before.token());
    let demotion = old.on_demote().recv_timeout(CAP).expect("the renewal is answered with a no");
    assert_eq!((demotion.token, demotion.reason), (before.token(), Reason::Lost));
    // It does not take back what is now another's.
    let events = old.events();
    renews(&new, 1);
    assert_eq!(admin.command(&["GET", old.key()]).text(), new.id());
    assert!(after.is_valid() && !before.is_valid() && !old.is_leader());
    assert!(!events.try_iter().any(|event| matches!(event, Event::Promoted(_))));
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory of the crate") {
        let path = entry.expect("an entry of it").path();
        // Unit tests may measure with any clock how long something took.
        if path.is_dir() && !path.ends_with("tests") {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// B06: leases were measured with a clock that operators and time servers set.
#[test]
fn no_lease_is_measured_with_the_wall_clock_nor_with_one_that_stands_still_in_a_suspend() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root.join("election"), &mut files);
    assert!(files.len() > 30, "only {} sources were found", files.len());
    let reads_a_clock = |file: &PathBuf| {
        let text = fs::read_to_string(file).expect("a source can be read");
        text.contains("SystemTime") || text.contains("Instant::now()") && !text.contains("clock::Instant")
    };
    let mut readers: Vec<_> = files.iter().filter(|file| reads_a_clock(file)).collect();
    readers.sort();
    let named = |name: &str| root.join("election").join(name);
    // The one shows an instant to people. The other, as Redis does, makes tokens of the time, which only grow.
    assert_eq!(readers, [&named("clock.rs"), &named("store/memory.rs")]);
}
