//! Any command line at all.
//!
//! How often each is tried, and how to try more, stands in `tests/support/cases.rs`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use clap::Parser;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::{Args, complaint};
use crate::cases::cases;
use crate::lines::one_line;

/// A part of every password here, which is part of nothing else.
const SECRET: &str = "Zq9Xw";

const WORDS: &[&str] = &[
    "demo",
    "campaign",
    "status",
    "run",
    "campain",
    "help",
    "--group",
    "--group=g",
    "g",
    "--redis",
    "--ttl",
    "--ttl=1s",
    "--wait",
    "--jitter",
    "--stop-margin",
    "--strict",
    "--longest-ttl",
    "--on-renew-error",
    "demote",
    "retry",
    "--id",
    "--sample",
    "--format",
    "text",
    "json",
    "--format=yaml",
    "--help",
    "-h",
    "-V",
    "--version",
    "--",
    "-",
    "",
    "=",
    "--=",
    "--redis=",
    "--rediss",
    "--grup",
    "-g",
    "-xyz",
    "1s",
    "5",
    "0ms",
    "-5ms",
    "99999999999999999999s",
    "1y 1M",
    "584554530872years",
    "18446744073709551615ns",
    "1.5s",
    "\u{0}",
    "\n",
    "Usage:",
    "\nUsage: x",
    "ü",
    "'",
    "\"",
];

/// A URL with a password in it: in one of the forms that are read, with anything around the password.
fn url() -> impl Strategy<Value = String> {
    let odd = || prop_oneof![Just(String::new()), any::<String>(), select(WORDS).prop_map(str::to_owned)];
    let form = select(
        &[
            ("redis://:", "@h"),
            ("redis://user:", "@h:6379/0"),
            ("REDIS://user:", "@h"),
            ("valkey://user:", "@h"),
            ("unix:///run/s.sock?pass=", "&db=1"),
            ("redis+unix:///s?user=u&pass=", ""),
            ("rediss://u:", "@h"),
            ("redis:/u:", "@h"),
            ("/run/s.sock?pass=", "&db=1"),
        ][..],
    );
    (form, odd(), odd())
        .prop_map(|((head, tail), before, after)| format!("{head}{before}{SECRET}{after}{tail}"))
}

/// One argument: a good one, one that is nearly good, a URL in any place, or bytes.
fn argument() -> impl Strategy<Value = OsString> {
    let word = || select(WORDS).prop_map(str::to_owned);
    let bytes = || vec(any::<u8>().prop_filter("no argument has a NUL", |byte| *byte != 0), 0..6);
    prop_oneof![
        8 => word().prop_map(OsString::from),
        2 => (word(), word()).prop_map(|(option, value)| format!("{option}={value}").into()),
        3 => url().prop_map(OsString::from),
        2 => (word(), url()).prop_map(|(option, url)| format!("{option}={url}").into()),
        1 => (select(&["-", "--", "---", "--redis", "-h"][..]), url())
            .prop_map(|(dashes, url)| format!("{dashes}{url}").into()),
        1 => (bytes(), url(), bytes())
            .prop_map(|(before, url, after)| OsString::from_vec([before, url.into_bytes(), after].concat())),
        1 => bytes().prop_map(OsString::from_vec),
        1 => any::<String>().prop_map(OsString::from),
    ]
}

proptest! {
    #![proptest_config(cases(2))]

    #[test]
    fn any_command_line_is_read_or_refused_without_a_password(arguments in vec(argument(), 0..8)) {
        let commands = [None, Some("campaign"), Some("status"), Some("demo")];
        for command in commands {
            let line = ["taskrunner".into()].into_iter().chain(command.map(OsString::from));
            let Err(error) = Args::try_parse_from(line.chain(arguments.clone())) else { continue };
            // What is shown of it: one line, or the help.
            let shown = if error.use_stderr() { one_line(&complaint(&error)) } else { error.to_string() };
            prop_assert!(!shown.contains(SECRET), "{}", shown);
            prop_assert!(!error.use_stderr() || !shown.contains('\n'), "{}", shown);
        }
    }
}
