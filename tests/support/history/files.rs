//! Histories from files: what the program `check-history` does.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::leaderless::Fault;
use super::report::Report;
use super::{History, Log};

/// Judges the lines in the files, `-` being `input`, and writes the report to `out`; true if nothing is wrong.
///
/// A file holds the lines of one process and is named after it. If a process was started again, and its lines were
/// appended, each `started` begins another process. Lines of several processes that were mixed are told apart by a
/// field `process`. Lines of the event `fault` may stand anywhere; a file with `faults` in its name has no others.
///
/// # Errors
///
/// A message for the user if a file cannot be read, if there are no lines of any process, or if the report cannot
/// be written.
pub(crate) fn check(files: &[PathBuf], input: &mut dyn BufRead, out: &mut dyn Write) -> Result<bool, String> {
    let mut found = Found::default();
    for path in files {
        let name = name(path, files);
        let only_faults = path.file_name().is_some_and(|name| name.to_string_lossy().contains("faults"));
        let failed = |error: &dyn Display| format!("cannot read {}: {error}", path.display());
        if path == Path::new("-") {
            found.read(&name, only_faults, input).map_err(|error| failed(&error))?;
        } else {
            let file = File::open(path).map_err(|error| failed(&error))?;
            found.read(&name, only_faults, &mut BufReader::new(file)).map_err(|error| failed(&error))?;
        }
    }
    if found.histories.is_empty() {
        return Err("there are no lines of any process".to_owned());
    }
    let mut report = Report::new(&found.histories, &found.faults);
    report.malformed.append(&mut found.malformed);
    write!(out, "{report}").map_err(|error| format!("cannot write the report: {error}"))?;
    Ok(report.is_clean())
}

/// The file's stem, or all of its path if another one has the same.
fn name(path: &Path, files: &[PathBuf]) -> String {
    if path == Path::new("-") {
        return "stdin".to_owned();
    }
    let alike = files.iter().filter(|other| other.file_stem() == path.file_stem()).count();
    match path.file_stem() {
        Some(stem) if alike == 1 => stem.to_string_lossy().into_owned(),
        _ => path.display().to_string(),
    }
}

/// What the files hold.
#[derive(Default)]
struct Found {
    histories: Vec<History>,
    faults: Vec<Fault>,
    /// Lines of faults that are none.
    malformed: Vec<String>,
}

impl Found {
    fn read(&mut self, name: &str, only_faults: bool, input: &mut dyn BufRead) -> std::io::Result<()> {
        let mut processes = Processes { file: name, running: BTreeMap::new() };
        let mut number = 0_usize;
        let mut text = Vec::new();
        while input.read_until(b'\n', &mut text)? > 0 {
            number += 1;
            match parse(&text) {
                Parsed::Line(line) if line["event"] == "fault" => match fault(&line) {
                    Some(fault) => self.faults.push(fault),
                    None => self.malformed.push(format!("{name}: line {number}: no fault: {line}")),
                },
                Parsed::Line(line) if only_faults => {
                    self.malformed.push(format!("{name}: line {number}: no fault: {line}"));
                }
                Parsed::Line(line) => self.histories.extend(processes.push(&line)),
                // A process that was killed may leave half a line, which is no line.
                Parsed::None if text.ends_with(b"\n") => {
                    let text = String::from_utf8_lossy(&text);
                    self.malformed.push(format!("{name}: line {number}: no JSON: {}", text.trim_end()));
                }
                Parsed::None | Parsed::Blank => {}
            }
            text.clear();
        }
        self.histories.extend(processes.running.into_values().map(|(_, log)| log.judge()));
        Ok(())
    }
}

enum Parsed {
    Line(Value),
    Blank,
    None,
}

fn parse(text: &[u8]) -> Parsed {
    let text = text.trim_ascii();
    if text.is_empty() {
        return Parsed::Blank;
    }
    let object = |text| serde_json::from_slice(text).ok().filter(Value::is_object);
    // Half a line of a process that was killed may have the first line of the next one behind it.
    let behind = || {
        let begins = (1..text.len()).filter(|at| text[*at] == b'{');
        begins.filter_map(|at| object(&text[at..])).find(|line| line["event"] == "started")
    };
    object(text).or_else(behind).map_or(Parsed::None, Parsed::Line)
}

fn fault(line: &Value) -> Option<Fault> {
    let at_us = line["at_us"].as_u64()?;
    let until_us = match &line["until_us"] {
        // Done in a moment, such as a kill.
        Value::Null => at_us,
        until_us => until_us.as_u64()?,
    };
    let target = match &line["target"] {
        Value::Null => None,
        target => Some(target.as_str()?.to_owned()),
    };
    let kind = line["kind"].as_str()?.to_owned();
    (at_us <= until_us).then_some(Fault { kind, target, at_us, until_us })
}

/// The processes of one file whose lines may go on, and how often each was started.
struct Processes<'a> {
    file: &'a str,
    running: BTreeMap<String, (usize, Log)>,
}

impl Processes<'_> {
    /// Takes a line; the history that it brings to an end, if it does.
    fn push(&mut self, line: &Value) -> Option<History> {
        let name = match line["process"].as_str() {
            Some(process) => format!("{}/{process}", self.file),
            None => self.file.to_owned(),
        };
        let (starts, log) = self.running.entry(name.clone()).or_insert_with(|| (0, Log::new(&name)));
        let mut ended = None;
        if line["event"] == "started" {
            *starts += 1;
            if *starts > 1 {
                let next = Log::new(&format!("{name}#{starts}"));
                ended = Some(std::mem::replace(log, next).judge());
            }
        }
        log.push(line);
        ended
    }
}
