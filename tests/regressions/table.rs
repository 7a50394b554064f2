//! The tables of `tests/REGRESSIONS.md` and of the README's promises name tests that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A row of the table: the report's id, what has become of it, and the paths in the last column.
struct Row<'a> {
    id: &'a str,
    verdict: &'a str,
    tests: Vec<&'a str>,
}

fn rows(table: &str) -> Vec<Row<'_>> {
    let rows = table.lines().filter(|line| line.starts_with("| B") || line.starts_with("| L")).map(|line| {
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
    assert!(rows.len() > 90, "only {} rows were read", rows.len());
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

#[test]
fn every_promise_of_the_readme_is_linked_to_tests_that_exist() {
    let readme = include_str!("../../README.md");
    let (_, section) =
        readme.split_once("### What would fail if it were not so").expect("the section is there");
    let rows = (1..=7).map(|promise| {
        let row = section.lines().find(|line| line.starts_with(&format!("| {promise} |")));
        row.unwrap_or_else(|| panic!("no row for promise {promise}"))
    });
    for row in rows {
        let links: Vec<_> = row.split("[`").skip(1).filter_map(|link| link.split_once("`](")).collect();
        assert!(links.len() >= 2, "{row}");
        for (name, rest) in links {
            let file = rest.split(')').next().expect("a link has an end");
            let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file));
            let source = source.unwrap_or_else(|error| panic!("{file}: {error}"));
            assert!(source.contains(&format!("fn {name}(")), "there is no {name} in {file}");
        }
    }
}
