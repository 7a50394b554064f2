//! What is kept of a run: a file of lines for each process and for the faults, and what the judge needs of them.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::schedule::Kind;
use crate::support::history::Fault;
use crate::support::{Campaign, History};

/// The records of a run.
pub(super) struct Record {
    dir: PathBuf,
    pub(super) histories: Vec<History>,
    pub(super) faults: Vec<Told>,
    /// What went wrong that no fault explains.
    pub(super) troubles: Vec<String>,
}

/// A fault that has happened.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) kind: &'static Kind,
    /// Whose process or network it met; none for the server's.
    pub(super) seat: Option<usize>,
    /// The process that it met, or `redis`.
    pub(super) target: String,
    pub(super) at_us: u64,
    pub(super) until_us: u64,
}

impl Told {
    /// For the judge of histories, which says which time without a leader it explains.
    pub(super) fn to_fault(&self) -> Fault {
        let Self { kind, target, at_us, until_us, .. } = self;
        Fault { kind: kind.name.to_owned(), target: Some(target.clone()), at_us: *at_us, until_us: *until_us }
    }
}

impl Record {
    pub(super) fn new(dir: &Path) -> Self {
        fs::create_dir_all(dir).expect("the directory can be made");
        // Lines of another run would be taken for lines of this one.
        let mut there = fs::read_dir(dir).expect("the directory can be read");
        assert!(there.next().is_none(), "{} is not empty", dir.display());
        let faults = dir.join("faults.jsonl");
        File::create(faults).expect("the directory is writable");
        Self { dir: dir.to_owned(), histories: Vec::new(), faults: Vec::new(), troubles: Vec::new() }
    }

    /// Keeps what a process has printed; it has ended.
    pub(super) fn add_candidate(&mut self, candidate: &Campaign) {
        let name = candidate.name();
        let mut text = String::new();
        for line in candidate.lines() {
            text.push_str(&line.value.to_string());
            text.push('\n');
            // None of the faults is one of configuration or of roles.
            if line.is("error") && line.text("kind") != "passing" {
                self.troubles.push(format!("{name}: {}", line.value));
            }
        }
        let file = self.dir.join(format!("{name}.jsonl"));
        fs::write(file, text).expect("the directory is writable");
        self.histories.push(candidate.history());
    }

    pub(super) fn add_fault(&mut self, fault: Told) {
        let Told { kind, target, at_us, until_us, .. } = &fault;
        let (name, loses_data) = (kind.name, kind.loses_data());
        let line = json!({
            "event": "fault", "kind": name, "target": target, "at_us": at_us, "until_us": until_us,
            "loses_data": loses_data,
        });
        let file = File::options().append(true).open(self.dir.join("faults.jsonl"));
        writeln!(file.expect("the file was created"), "{line}").expect("the directory is writable");
        self.faults.push(fault);
    }

    /// Whether a fault of the server or of this seat was under way at or after that time.
    pub(super) fn has_met(&self, seat: usize, at_us: u64) -> bool {
        self.faults.iter().any(|it| it.until_us >= at_us && it.seat.is_none_or(|met| met == seat))
    }

    pub(super) fn trouble(&mut self, trouble: String) {
        self.troubles.push(trouble);
    }
}
