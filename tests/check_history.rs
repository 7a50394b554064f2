//! Judges what the candidates of a group printed: `check-history FILE...`, with `-` for standard input.
//!
//! A file holds the JSON lines of one `taskrunner campaign --format json --sample 5ms`. Lines of the event `fault`,
//! with `kind`, `target`, `at_us` and `until_us`, tell what was done to the group meanwhile. The exit status is 0 if
//! nothing is wrong, 1 if something is, and 2 if that cannot be told.

#[allow(dead_code, unused_imports, reason = "tests use it as well")]
#[path = "support/history/mod.rs"]
mod history;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let files: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let judged = if files.is_empty() || files[0].as_os_str() == "--help" {
        Err("usage: check-history FILE...".to_owned())
    } else {
        history::check(&files, &mut io::stdin().lock(), &mut io::stdout().lock())
    };
    match judged {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(message) => {
            writeln!(io::stderr(), "{message}").ok(); // The exit status tells it, too.
            ExitCode::from(2)
        }
    }
}
