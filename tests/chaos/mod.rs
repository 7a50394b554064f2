//! The chaos run: candidates in processes of their own, one server, and everything that can go wrong, drawn from a
//! seed. `tests/chaos.sh` runs it for longer.
//!
//! `CHAOS_SEED` draws the same faults again, `CHAOS_SECONDS` says for how long there are any, and `CHAOS_DIR`
//! where the processes' lines and the faults are kept; without it they are kept only if something is wrong.

#![allow(clippy::print_stderr, reason = "the figures are told beside the test's output")]

mod judge;
mod record;
mod resource;
mod schedule;
mod stage;

use std::env;
use std::fmt::Debug;
use std::fs;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use self::judge::Verdict;
use self::record::Record;
use self::stage::Stage;

/// Short, so that there are many terms.
const TTL: Duration = Duration::from_millis(600);
const WAIT: Duration = Duration::from_millis(700);

#[test]
fn two_never_lead_at_once_and_an_old_token_never_writes_whatever_goes_wrong() {
    let seed: u64 = variable("CHAOS_SEED").unwrap_or_else(rand::random);
    let seconds: u64 = variable("CHAOS_SECONDS").unwrap_or(20);
    let again = format!("CHAOS_SEED={seed} CHAOS_SECONDS={seconds}");
    eprintln!("chaos: {again}");
    let kept: Option<PathBuf> = variable("CHAOS_DIR");
    // Removed at the end only, so that it is there after a panic, too.
    let dir = kept.clone().unwrap_or_else(|| {
        tempfile::Builder::new().prefix("taskrunner-chaos-").tempdir().expect("one can be made").keep()
    });
    eprintln!("the lines are in {}", dir.display());

    let faults = schedule::draw(seed, Duration::from_secs(seconds));
    let mut stage = Stage::set(Record::new(&dir));
    stage.play(&faults);
    let verdict = Verdict::of(stage.end());

    eprintln!("seed:                  {seed}\nseconds:               {seconds}\n{verdict}");
    let wrong = &verdict.wrong;
    assert!(wrong.is_empty(), "{again}, lines in {}:\n{}", dir.display(), wrong.join("\n"));
    if kept.is_none() {
        fs::remove_dir_all(&dir).expect("the own directory can be removed");
    }
}

#[track_caller]
fn variable<T: FromStr<Err: Debug>>(name: &str) -> Option<T> {
    let text = env::var(name).ok().filter(|text| !text.is_empty())?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name} is {text}: {error:?}")))
}

fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_micros().try_into().unwrap_or(u64::MAX)
}
