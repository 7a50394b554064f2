//! The command line of `taskrunner`: leader election on Redis from a shell.

mod args;
mod campaign;
mod demo;
mod lines;
mod sample;
mod status;
mod writer;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use env_logger::Env;

use crate::args::{Args, Command};

/// Why a command ended otherwise than it should. The message is one line.
pub(crate) enum Failure {
    /// What was asked for cannot be done: an option, the URL, the timing. Nothing was started.
    Usage(String),
    /// It failed while it ran.
    Run(String),
}

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return refused(&error),
    };
    let mut out = io::stdout().lock();
    match dispatch(&args.command, &mut out) {
        Ok(code) => code,
        Err(Failure::Usage(message)) => complain(&message, 2),
        Err(Failure::Run(message)) => complain(&message, 1),
    }
}

fn dispatch(command: &Command, out: &mut impl Write) -> Result<ExitCode, Failure> {
    match command {
        Command::Demo => demo::run(out),
        Command::Campaign(options) => campaign::run(options, out),
        Command::Status(options) => status::run(options, out),
    }
}

/// Prints one line, and sees to it that its reader gets it now.
fn print(out: &mut impl Write, mut line: String) -> Result<(), Failure> {
    line.push('\n');
    out.write_all(line.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| failed("cannot write to standard output", &error))
}

fn failed(act: &str, error: &io::Error) -> Failure {
    Failure::Run(format!("{act}: {error}"))
}

/// Lets the library's log out on standard error: from `level` on, unless RUST_LOG says otherwise.
fn start_log(level: &str) {
    // It fails only where there is a logger already, and that one will do.
    env_logger::Builder::from_env(Env::default().default_filter_or(level)).try_init().ok();
}

/// Shows the help or the version where those were asked for, else says in one line what is wrong.
fn refused(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    let shown =
        matches!(error.kind(), DisplayHelp | DisplayHelpOnMissingArgumentOrSubcommand | DisplayVersion);
    if !shown {
        return complain(&args::complaint(error), 2);
    }
    match error.print() {
        Ok(()) if error.use_stderr() => ExitCode::from(2),
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => complain(&format!("cannot write to standard output: {cause}"), 1),
    }
}

fn complain(message: &str, status: u8) -> ExitCode {
    // With standard error gone there is nobody left to tell; the exit status still does.
    writeln!(io::stderr(), "taskrunner: {}", lines::one_line(message)).ok();
    ExitCode::from(status)
}

// How often the properties of the unit tests are tried.
#[cfg(test)]
#[path = "../../../tests/support/cases.rs"]
mod cases;
