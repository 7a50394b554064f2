//! `taskrunner status`: who leads a group, as Redis says.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use taskrunner::election::{Error, ErrorKind, Inspection, inspect};

use crate::args::Status;
use crate::lines::{Format, Object, one_line};
use crate::{Failure, print, start_log};

/// Asks once, and prints the answer.
pub(crate) fn run(options: &Status, out: &mut impl Write) -> Result<ExitCode, Failure> {
    // What goes wrong is said in one line, and once.
    start_log("off");
    let group = options.target.group.as_str();
    let store = options.target.store().map_err(Failure::Usage)?;
    let found = inspect(&store, group).map_err(failure)?;
    for line in render(group, &found, options.format) {
        print(out, line)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A URL or a group that is refused is for the user to correct; all else came when the store was asked.
fn failure(error: Error) -> Failure {
    match (error.kind(), error.operation()) {
        (ErrorKind::Configuration, None) => Failure::Usage(error.to_chain()),
        _ => Failure::Run(error.to_chain()),
    }
}

fn render(group: &str, found: &Inspection, format: Format) -> Vec<String> {
    let holder = found.leader.as_ref().map(|leader| leader.id.as_str());
    let token = found.leader.as_ref().and_then(|leader| leader.token);
    let remaining_ms = found.remaining.map(whole_ms);
    if format == Format::Json {
        let object = Object::new("group", group)
            .field("key", found.key.as_str())
            .field("holder", holder)
            .field("token", token)
            .field("remaining_ms", remaining_ms);
        return vec![object.end()];
    }
    let mut fields = vec![("group", group.to_owned()), ("key", found.key.clone())];
    match holder {
        None => {
            fields.push(("holder", "nobody".to_owned()));
            fields.extend(remaining_ms.map(|ms| ("parked", format!("{ms} ms, for candidates are strict"))));
        }
        Some(holder) => fields.extend([
            ("holder", holder.to_owned()),
            ("token", token.map_or_else(|| "none".to_owned(), |token| token.to_string())),
            ("remaining", remaining_ms.map_or_else(|| "without expiry".to_owned(), |ms| format!("{ms} ms"))),
        ]),
    }
    fields.into_iter().map(|(name, value)| one_line(&format!("{name:<9}  {value}"))).collect()
}

/// Rounded down, so that no lease is shown longer than it is.
fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
