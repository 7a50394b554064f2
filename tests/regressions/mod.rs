//! What has gone wrong in other libraries for locks and leader election, and must not here: `tests/REGRESSIONS.md`
//! lists the failures, and which tests show that this library does not have them.

mod callbacks;
mod clock;
mod errors;
mod identity;
mod stopping;
mod timing;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use taskrunner::election::{Builder, Elector, MemoryStore, RedisStore};

use crate::support::{Admin, eventually};

/// Longer than anything takes that is to happen, on the slowest machine.
const CAP: Duration = Duration::from_secs(30);

const MS: Duration = Duration::from_millis(1);

fn builder(url: &str, group: &str) -> Builder {
    Elector::builder(RedisStore::open(url).expect("a good url"), group)
}

/// The lease key of a group, without an elector that contends on the test's server.
fn key_of(group: &str) -> String {
    Elector::builder(MemoryStore::new(), group).start().expect("good options").key().to_owned()
}

/// Waits until the elector knows that another one holds the lease, and returns that one's id.
#[track_caller]
fn follows(elector: &Elector) -> String {
    eventually(CAP, || match elector.status().leader {
        Some(leader) if leader.id != elector.id() => Ok(leader.id),
        other => Err(other),
    })
}

/// Waits until the elector has had this many more renewals answered.
#[track_caller]
fn renews(elector: &Elector, times: u64) {
    let from = elector.status().counters.renewals;
    eventually(CAP, || match elector.status().counters.renewals {
        now if now >= from + times => Ok(()),
        now => Err(now - from),
    });
}

/// When the lease ends, in µs of the server's own clock. Inside a script its time stands still.
fn lease_end_us(admin: &mut Admin, key: &str) -> u64 {
    const LEASE_END: &str = "local now = redis.call('TIME')
        return (now[1] * 1000 + math.floor(now[2] / 1000) + redis.call('PTTL', KEYS[1])) * 1000";
    admin.command(&["EVAL", LEASE_END, "1", key]).int().try_into().expect("after 1970")
}

/// What a field of the term key says.
fn term_field(admin: &mut Admin, key: &str, field: &str) -> u64 {
    let value = admin.command(&["HGET", &format!("{{{key}}}:term"), field]);
    value.text().parse().expect("a number")
}

/// A row of the table: the report's id, what has become of it, and the paths in the last column.
struct Row<'a> {
    id: &'a str,
    verdict: &'a str,
    tests: Vec<&'a str>,
}

fn rows(table: &str) -> Vec<Row<'_>> {
    let rows = table.lines().filter(|line| line.starts_with("| B")).map(|line| {
        let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [id, _, verdict, shown] = cells[..] else { panic!("no row of four cells: {line}") };
        let tests = shown.split('`').skip(1).step_by(2).filter(|path| path.contains("::")).collect();
        Row { id, verdict, tests }
    });
    rows.collect()
}

/// The source file that a path of modules leads to, and how many of them lead there; the others are in the file.
fn file_of(modules: &[&str]) -> Option<(PathBuf, usize)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    (1..=modules.len()).rev().find_map(|count| {
        ["src", "tests"].iter().find_map(|top| {
            let path = root.join(top).join(modules[..count].join("/"));
            let files = [path.with_extension("rs"), path.join("mod.rs")];
            files.into_iter().find(|file| file.is_file()).map(|file| (file, count))
        })
    })
}

fn expect_test(path: &str) -> Result<(), String> {
    let parts: Vec<_> = path.split("::").collect();
    let (name, modules) = parts.split_last().expect("a path has a last part");
    let (file, count) = file_of(modules).ok_or(format!("{path}: no file"))?;
    let source = fs::read_to_string(&file).expect("a file that is there can be read");
    let inline = modules[count..].iter().map(|module| format!("mod {module} {{"));
    for wanted in inline.chain([format!("fn {name}(")]) {
        if !source.contains(&wanted) {
            return Err(format!("{path}: no `{wanted}` in {}", file.display()));
        }
    }
    Ok(())
}

#[test]
fn every_named_test_exists() {
    let rows = rows(include_str!("../REGRESSIONS.md"));
    assert!(rows.len() > 40, "only {} rows were read", rows.len());
    let ids: BTreeSet<_> = rows.iter().map(|row| row.id).collect();
    assert_eq!(ids.len(), rows.len(), "an id stands there twice");
    let mut wrong = Vec::new();
    for row in &rows {
        match row.verdict {
            "covered" if row.tests.is_empty() => wrong.push(format!("{} is covered by nothing", row.id)),
            "covered" | "deferred" | "does not apply" => {}
            other => wrong.push(format!("{}: the verdict is {other}", row.id)),
        }
        wrong.extend(row.tests.iter().filter_map(|path| expect_test(path).err()));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
