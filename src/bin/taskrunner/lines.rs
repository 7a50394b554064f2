//! What is printed: one line for each thing that happened, as JSON or for people to read.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use serde_json::Value;
use taskrunner::election::{ErrorKind, Event};

/// How the lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Text,
    /// One JSON object a line, for programs
    Json,
}

/// Something that happened, and when. Times are Unix microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// For an event the moment at which this program heard of it; for a reading the moment before it.
    pub(crate) at_us: u64,
    pub(crate) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Started {
        id: String,
        key: String,
    },
    Promoted {
        token: u64,
    },
    Demoted {
        token: u64,
        reason: &'static str,
        ended_us: u64,
    },
    /// The holder's id, and its token if it has one.
    Leader(Option<(String, Option<u64>)>),
    Error {
        operation: Option<&'static str>,
        kind: &'static str,
        message: String,
    },
    Missed {
        count: u64,
    },
    Stopped,
    /// One reading. A token is there exactly while this instance leads.
    Sample {
        token: Option<u64>,
        done_us: u64,
        prev_us: Option<u64>,
    },
    /// There were no readings from `prev_us` to the line's time.
    Gap {
        leader: bool,
        prev_us: u64,
    },
}

impl Line {
    /// The line of something that happens now.
    pub(crate) fn now(what: What) -> Self {
        Self { at_us: unix_us(SystemTime::now()), what }
    }

    /// The line of an event that was received now; none for a kind of event that is not printed.
    pub(crate) fn of_event(event: Event) -> Option<Self> {
        let at_us = unix_us(SystemTime::now());
        let what = match event {
            Event::Promoted(leadership) => What::Promoted { token: leadership.token() },
            Event::Demoted(demotion) => What::Demoted {
                token: demotion.token,
                reason: demotion.reason.as_str(),
                ended_us: unix_us(demotion.at.to_system_time()),
            },
            Event::LeaderChanged(leader) => What::Leader(leader.map(|leader| (leader.id, leader.token))),
            Event::Error(error) => What::Error {
                operation: error.operation().map(|operation| operation.as_str()),
                kind: kind(error.kind()),
                message: error.to_chain(),
            },
            Event::Missed { count } => What::Missed { count },
            Event::Stopped => What::Stopped,
            _ => return None,
        };
        Some(Self { at_us, what })
    }

    /// The line as it is printed, without its end.
    pub(crate) fn render(&self, format: Format) -> String {
        match format {
            Format::Json => self.json(),
            Format::Text => self.text(),
        }
    }

    fn json(&self) -> String {
        let object = |event| Object::new("event", event).field("at_us", self.at_us);
        let object = match &self.what {
            What::Started { id, key } => {
                object("started").field("id", id.as_str()).field("key", key.as_str())
            }
            What::Promoted { token } => object("promoted").field("token", *token),
            What::Demoted { token, reason, ended_us } => {
                object("demoted").field("token", *token).field("reason", *reason).field("ended_us", *ended_us)
            }
            What::Leader(leader) => {
                let (id, token) = match leader {
                    Some((id, token)) => (Some(id.as_str()), *token),
                    None => (None, None),
                };
                object("leader").field("id", id).field("token", token)
            }
            What::Error { operation, kind, message } => object("error")
                .field("operation", *operation)
                .field("kind", *kind)
                .field("message", one_line(message)),
            What::Missed { count } => object("missed").field("count", *count),
            What::Stopped => object("stopped"),
            What::Sample { token, done_us, prev_us } => object("sample")
                .field("leader", token.is_some())
                .field("token", *token)
                .field("done_us", *done_us)
                .field("prev_us", *prev_us),
            What::Gap { leader, prev_us } => {
                object("gap").field("leader", *leader).field("prev_us", *prev_us)
            }
        };
        object.end()
    }

    fn text(&self) -> String {
        let (name, told) = match &self.what {
            What::Started { id, key } => ("started", format!("{id}, contending for {key}")),
            What::Promoted { token } => ("promoted", format!("this instance leads, token {token}")),
            What::Demoted { token, reason, ended_us } => {
                ("demoted", format!("{reason}, token {token}, not leading since {}", Time(*ended_us)))
            }
            What::Leader(None) => ("leader", "nobody is known to hold the lease".to_owned()),
            What::Leader(Some((id, None))) => ("leader", format!("{id}, without a token")),
            What::Leader(Some((id, Some(token)))) => ("leader", format!("{id}, token {token}")),
            What::Error { operation: None, kind, message } => ("error", format!("{kind}: {message}")),
            What::Error { operation: Some(operation), kind, message } => {
                ("error", format!("{operation}, {kind}: {message}"))
            }
            What::Missed { count } => ("missed", format!("events that were not printed: {count}")),
            What::Stopped => ("stopped", String::new()),
            What::Sample { token: Some(token), .. } => ("sample", format!("leading, token {token}")),
            What::Sample { token: None, .. } => ("sample", "not leading".to_owned()),
            What::Gap { leader, prev_us } => {
                let then = if *leader { "leading" } else { "not leading" };
                ("gap", format!("no reading since {}, then {then}", Time(*prev_us)))
            }
        };
        let line = format!("{} {name:<9} {told}", Time(self.at_us));
        one_line(line.trim_end())
    }
}

/// The wall clock's time as Unix microseconds; zero before 1970.
pub(crate) fn unix_us(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// The text with every control character written out, so that a message or an id from the server is one
/// line and cannot steer the reader's terminal.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            line.extend(character.escape_default());
        } else {
            line.push(character);
        }
    }
    line
}

fn kind(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Passing => "passing",
        ErrorKind::WrongNode => "wrong_node",
        ErrorKind::Configuration => "configuration",
        ErrorKind::Overrun => "overrun",
        // No event has any of these.
        ErrorKind::Timeout => "timeout",
        ErrorKind::Stopped => "stopped",
        ErrorKind::NotLeading => "not_leading",
        ErrorKind::System => "system",
        ErrorKind::Dead => "dead",
        _ => "other",
    }
}

/// A JSON object whose fields stand in the order in which they were added.
pub(crate) struct Object(String);

impl Object {
    pub(crate) fn new(key: &'static str, value: impl Into<Value>) -> Self {
        Self("{".to_owned()).add(key, value.into())
    }

    pub(crate) fn field(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.0.push(',');
        self.add(key, value.into())
    }

    pub(crate) fn end(mut self) -> String {
        self.0.push('}');
        self.0
    }

    fn add(mut self, key: &'static str, value: Value) -> Self {
        self.0.push_str(&format!("{}:{value}", Value::from(key)));
        self
    }
}

/// A time for people: UTC, RFC 3339.
struct Time(u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// The last microsecond of the year 9999, where the format ends.
        const LAST: u64 = 253_402_300_799_999_999;
        let time = UNIX_EPOCH + Duration::from_micros(self.0.min(LAST));
        humantime::format_rfc3339_micros(time).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 1_800_000_000_123_456;

    fn line(what: What) -> Line {
        Line { at_us: AT, what }
    }

    #[test]
    fn every_line_has_its_fields_in_a_fixed_order() {
        let text = |text: &str| text.to_owned();
        let cases = [
            (
                What::Started { id: text("web-1/AB"), key: text("taskrunner:leader:K") },
                r#"{"event":"started","at_us":1800000000123456,"id":"web-1/AB","key":"taskrunner:leader:K"}"#,
                "2027-01-15T08:00:00.123456Z started   web-1/AB, contending for taskrunner:leader:K",
            ),
            (
                What::Promoted { token: 9_007_199_254_740_990 },
                r#"{"event":"promoted","at_us":1800000000123456,"token":9007199254740990}"#,
                "2027-01-15T08:00:00.123456Z promoted  this instance leads, token 9007199254740990",
            ),
            (
                What::Demoted { token: 7, reason: "expired", ended_us: AT - 1 },
                r#"{"event":"demoted","at_us":1800000000123456,"token":7,"reason":"expired","ended_us":1800000000123455}"#,
                "2027-01-15T08:00:00.123456Z demoted   expired, token 7, not leading since 2027-01-15T08:00:00.123455Z",
            ),
            (
                What::Leader(None),
                r#"{"event":"leader","at_us":1800000000123456,"id":null,"token":null}"#,
                "2027-01-15T08:00:00.123456Z leader    nobody is known to hold the lease",
            ),
            (
                What::Leader(Some((text("G"), None))),
                r#"{"event":"leader","at_us":1800000000123456,"id":"G","token":null}"#,
                "2027-01-15T08:00:00.123456Z leader    G, without a token",
            ),
            (
                What::Leader(Some((text("B"), Some(8)))),
                r#"{"event":"leader","at_us":1800000000123456,"id":"B","token":8}"#,
                "2027-01-15T08:00:00.123456Z leader    B, token 8",
            ),
            (
                What::Error { operation: Some("renew"), kind: "passing", message: text("no \"answer\"") },
                r#"{"event":"error","at_us":1800000000123456,"operation":"renew","kind":"passing","message":"no \"answer\""}"#,
                "2027-01-15T08:00:00.123456Z error     renew, passing: no \"answer\"",
            ),
            (
                What::Error { operation: None, kind: "overrun", message: text("late") },
                r#"{"event":"error","at_us":1800000000123456,"operation":null,"kind":"overrun","message":"late"}"#,
                "2027-01-15T08:00:00.123456Z error     overrun: late",
            ),
            (
                What::Missed { count: 3 },
                r#"{"event":"missed","at_us":1800000000123456,"count":3}"#,
                "2027-01-15T08:00:00.123456Z missed    events that were not printed: 3",
            ),
            (
                What::Stopped,
                r#"{"event":"stopped","at_us":1800000000123456}"#,
                "2027-01-15T08:00:00.123456Z stopped",
            ),
            (
                What::Sample { token: Some(7), done_us: AT + 2, prev_us: None },
                r#"{"event":"sample","at_us":1800000000123456,"leader":true,"token":7,"done_us":1800000000123458,"prev_us":null}"#,
                "2027-01-15T08:00:00.123456Z sample    leading, token 7",
            ),
            (
                What::Sample { token: None, done_us: AT, prev_us: Some(AT - 5000) },
                r#"{"event":"sample","at_us":1800000000123456,"leader":false,"token":null,"done_us":1800000000123456,"prev_us":1800000000118456}"#,
                "2027-01-15T08:00:00.123456Z sample    not leading",
            ),
            (
                What::Gap { leader: true, prev_us: AT - 1 },
                r#"{"event":"gap","at_us":1800000000123456,"leader":true,"prev_us":1800000000123455}"#,
                "2027-01-15T08:00:00.123456Z gap       no reading since 2027-01-15T08:00:00.123455Z, then leading",
            ),
        ];
        for (what, json, text) in cases {
            let line = line(what);
            assert_eq!(line.render(Format::Json), json);
            assert_eq!(line.render(Format::Text), text);
            serde_json::from_str::<Value>(json).unwrap_or_else(|error| panic!("{json}: {error}"));
        }
    }

    #[test]
    fn what_the_server_says_stays_in_one_line_and_off_the_terminal() {
        let error = line(What::Error {
            operation: Some("connect"),
            kind: "passing",
            message: "two\nlines\u{1b}[2J".to_owned(),
        });
        let leader = line(What::Leader(Some(("evil\r\u{9b}1m".to_owned(), None))));
        for format in [Format::Json, Format::Text] {
            let rendered = error.render(format);
            assert!(!rendered.contains(char::is_control), "{rendered:?}");
        }
        assert!(!leader.render(Format::Text).contains(char::is_control));
        let parsed: Value = serde_json::from_str(&leader.render(Format::Json)).expect("valid JSON");
        assert_eq!(parsed["id"], "evil\r\u{9b}1m", "an id is data, and arrives as it was");
    }

    #[test]
    fn times_that_cannot_be_shown_are_shown_as_the_nearest() {
        assert_eq!(unix_us(UNIX_EPOCH - Duration::from_secs(1)), 0);
        let last = Line { at_us: u64::MAX, what: What::Stopped }.render(Format::Text);
        assert_eq!(last, "9999-12-31T23:59:59.999999Z stopped");
    }
}
