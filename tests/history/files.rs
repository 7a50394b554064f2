//! What the program `check-history` reads and says.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::{bare, leading, promoted, term};
use crate::support::history::check;

fn text(lines: &[Value]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Judges files of these names and contents, and what comes on standard input.
fn judge(files: &[(&str, &str)], input: &str) -> Result<(bool, String), String> {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let mut paths: Vec<PathBuf> = Vec::new();
    for (name, content) in files {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().expect("it is in the directory")).expect("a directory can be made");
        fs::write(&path, content).expect("a file can be written");
        paths.push(path);
    }
    if !input.is_empty() {
        paths.push(PathBuf::from("-"));
    }
    let mut out = Vec::new();
    let clean = check(&paths, &mut input.as_bytes(), &mut out)?;
    Ok((clean, String::from_utf8(out).expect("the report is text")))
}

#[track_caller]
fn judged(files: &[(&str, &str)], input: &str, clean: bool, parts: &[&str]) {
    let (found, shown) = judge(files, input).expect("the files can be read");
    assert_eq!(found, clean, "{shown}");
    for part in parts {
        assert!(shown.contains(part), "{part} in\n{shown}");
    }
}

#[test]
fn each_file_is_a_process_named_after_it() {
    let (a, b) = (text(&term(100, 500, 1)), text(&term(800, 900, 2)));
    judged(&[("a.jsonl", &a), ("b.jsonl", &b)], "", true, &["2 processes, 2 terms", "nothing is wrong"]);
    let early = text(&leading(400, 900, 2));
    let told = "a (token 1) and b (token 2) both led for 99990 µs from 400010";
    judged(&[("a.jsonl", &a), ("b.jsonl", &early)], "", false, &["overlaps: 1", told, "wrong: 1"]);
    // Files of one name in two directories are two, and are told apart.
    judged(&[("x/a", &a), ("y/a", &early)], "", false, &["x/a (token 1) and ", "y/a (token 2) both led"]);
    judged(&[("a", &a)], &early, false, &["a (token 1) and stdin (token 2) both led"]);
}

#[test]
fn a_process_that_was_started_again_is_another_one() {
    let life = |from: u64, token: u64| {
        let mut lines = vec![bare("started", from - 2)];
        lines.extend(leading(from, from + 100, token));
        lines.push(promoted(from, token));
        text(&lines)
    };
    let both = life(100, 1) + &life(500, 2);
    judged(&[("a", &both)], "", true, &["2 processes, 2 terms"]);
    let wrong = life(100, 2) + &life(500, 1);
    judged(&[("a", &wrong)], "", false, &["token 1 of a#2 came after token 2 of a, at 500000"]);
    // It was killed in the middle of a line.
    let torn = life(100, 1) + r#"{"event":"sample","at_us":2"# + &life(500, 2);
    judged(&[("a", &torn)], "", true, &["2 processes, 2 terms"]);
}

#[test]
fn mixed_lines_are_told_apart_by_their_process() {
    let mut lines = Vec::new();
    for (process, from, token) in [("one", 100, 1), ("two", 150, 2)] {
        lines.extend(leading(from, from + 100, token).into_iter().map(|mut line| {
            line["process"] = json!(process);
            line
        }));
    }
    lines.sort_by_key(|line| line["at_us"].as_u64());
    judged(
        &[("all", &text(&lines))],
        "",
        false,
        &["all/one (token 1) and all/two (token 2) both led for 49990"],
    );
}

#[test]
fn only_the_last_line_may_be_half_a_line() {
    let lines = text(&term(100, 500, 1));
    let half = r#"{"event":"sam"#;
    judged(&[("a", &format!("{lines}{half}"))], "", true, &["malformed lines: 0"]);
    for strange in [half, "7", "\u{1}"] {
        let told = format!("a: line 1: no JSON: {strange}");
        judged(&[("a", &format!("{strange}\n{lines}"))], "", false, &["malformed lines: 1", &told]);
    }
    judged(&[("a", &format!("\n{lines}\r\n"))], "", true, &[]);
    // All of a line without its end is a line.
    let lines = format!("{lines}{}", promoted(500, 1));
    judged(&[("a", &lines)], "", false, &["token 1 was given twice"]);
}

#[test]
fn faults_are_read_from_any_file() {
    let terms = text(&term(100, 500, 1)) + &text(&term(800, 900, 2));
    let fault = |at: Value, until: Value| {
        json!({"event": "fault", "kind": "cut", "target": "a", "at_us": at, "until_us": until}).to_string()
            + "\n"
    };
    let good = fault(json!(450_000), json!(700_000));
    for files in
        [&[("a", terms.clone()), ("faults.jsonl", good.clone())][..], &[("a", terms.clone() + &good)]]
    {
        let files: Vec<_> = files.iter().map(|(name, content)| (*name, content.as_str())).collect();
        judged(&files, "", true, &["1 processes", "after a (token 1): expired; meanwhile: cut of a"]);
    }
    judged(&[("a", &terms)], &fault(json!(450_000), Value::Null), true, &["meanwhile: cut of a"]);
    let no_target = r#"{"event":"fault","kind":"restart","at_us":600000}"#;
    judged(&[("a", &terms)], no_target, true, &["meanwhile: restart\n"]);
    for (at, until) in [(json!("now"), Value::Null), (json!(2), json!(1)), (json!(1), json!("later"))] {
        judged(&[("a", &terms)], &fault(at, until), false, &["stdin: line 1: no fault", "wrong: 1"]);
    }
    let other = text(&term(1200, 1300, 3));
    let parts = ["2 processes", "malformed lines: 0"];
    judged(&[("faults/1/a", &terms), ("faults/2/a", &other)], "", true, &parts);
    judged(
        &[("a", &terms), ("my-faults", &terms)],
        "",
        false,
        &["my-faults: line 1: no fault", "1 processes"],
    );
}

#[test]
fn what_cannot_be_read_or_holds_nothing_is_no_judgement() {
    let mut out = Vec::new();
    let message =
        check(&[PathBuf::from("/nowhere/a")], &mut &b""[..], &mut out).expect_err("there is no file");
    assert!(message.starts_with("cannot read /nowhere/a: "), "{message}");
    for nothing in ["", "\n", r#"{"event":"#] {
        let message = judge(&[("a", nothing)], "").expect_err("there is nothing to judge");
        assert_eq!(message, "there are no lines of any process");
    }
    // A report that is not written is none.
    let lines = text(&term(100, 500, 1));
    let message = check(&[PathBuf::from("-")], &mut lines.as_bytes(), &mut &mut [0_u8; 8][..])
        .expect_err("the report is longer than that");
    assert!(message.starts_with("cannot write the report: "), "{message}");
}
