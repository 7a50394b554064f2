//! Random values of the protocol, how a server writes them, and how that goes wrong on the way.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use redis::{PushKind, Value, VerbatimFormat};

/// The ways in which nothing is written.
pub(super) const NILS: &[&str] = &["_\r\n", "$-1\r\n", "*-1\r\n"];

/// What stands in the place of a length, or anywhere, to do harm.
const ODD: &[&str] = &[
    "",
    "?",
    "-1",
    "-2",
    "+1",
    "0",
    "00000003",
    "65536",
    "65537",
    "999999",
    "99999999999999999999",
    "18446744073709551615",
    "9223372036854775807",
    "-9223372036854775808",
    "1e9",
    " 1",
    "\r",
    "\n",
    "\r\n",
    "\0",
    "ü",
    "\u{feff}",
    "$",
    "*",
    ">",
    "|",
    ";4\r\nabcd\r\n",
    "*1\r\n",
    "|1\r\n",
    "_\r\n",
    "+OK\r\n",
];

/// Text of one line: a line ends where CR and LF stand together, so each may stand alone.
fn line() -> impl Strategy<Value = String> {
    let chars = prop_oneof![8 => any::<char>().prop_filter("no LF", |c| *c != '\n'), 1 => Just('\r')];
    vec(chars, 0..20).prop_map(|chars| chars.into_iter().collect())
}

fn leaf() -> impl Strategy<Value = Value> {
    let error = ("[A-Z]{1,9}", proptest::option::of(line())).prop_map(|(code, details)| {
        let text = details.map_or(code.clone(), |details| format!("{code} {details}"));
        redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).expect("an error reply")
    });
    let number = prop::num::f64::NORMAL | prop::num::f64::ZERO | prop::num::f64::INFINITE;
    let format = prop_oneof![
        Just(VerbatimFormat::Text),
        Just(VerbatimFormat::Markdown),
        "[0-9][a-z]{2}".prop_map(VerbatimFormat::Unknown)
    ];
    prop_oneof![
        Just(Value::Okay),
        Just(Value::Nil),
        any::<i64>().prop_map(Value::Int),
        any::<bool>().prop_map(Value::Boolean),
        number.prop_map(Value::Double),
        "-?[0-9]{1,40}".prop_map(|digits| Value::BigNumber(digits.into_bytes())),
        line().prop_filter("that is another value", |line| line != "OK").prop_map(Value::SimpleString),
        error,
        vec(any::<u8>(), 0..40).prop_map(Value::BulkString),
        // Strings that look like the protocol.
        vec(select(ODD), 0..6).prop_map(|parts| Value::BulkString(parts.concat().into_bytes())),
        (format, any::<String>()).prop_map(|(format, text)| Value::VerbatimString { format, text }),
    ]
}

/// Any value at all.
pub(super) fn value() -> impl Strategy<Value = Value> {
    leaf().prop_recursive(6, 48, 6, |inner| {
        let pairs = || vec((inner.clone(), inner.clone()), 0..4);
        let kind = prop_oneof![
            Just(PushKind::Message),
            Just(PushKind::Subscribe),
            "[a-z]{1,8}[0-9]".prop_map(PushKind::Other)
        ];
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::Array),
            vec(inner.clone(), 0..6).prop_map(Value::Set),
            pairs().prop_map(Value::Map),
            (kind, vec(inner.clone(), 0..5)).prop_map(|(kind, data)| Value::Push { kind, data }),
            (pairs(), inner)
                .prop_map(|(attributes, data)| Value::Attribute { data: Box::new(data), attributes }),
        ]
    })
}

/// The value as a server sends it; `nil` is how it writes nothing.
pub(super) fn encode(value: &Value, nil: &str) -> Vec<u8> {
    let mut out = Vec::new();
    write(value, nil, &mut out);
    out
}

fn write(value: &Value, nil: &str, out: &mut Vec<u8>) {
    let string = |kind: char, bytes: &[u8], out: &mut Vec<u8>| {
        out.extend(format!("{kind}{}\r\n", bytes.len()).bytes());
        out.extend(bytes);
        out.extend(b"\r\n");
    };
    let head = |kind: char, count: usize, out: &mut Vec<u8>| out.extend(format!("{kind}{count}\r\n").bytes());
    let simple = |kind: char, text: &str, out: &mut Vec<u8>| out.extend(format!("{kind}{text}\r\n").bytes());
    match value {
        Value::Nil => out.extend(nil.bytes()),
        Value::Okay => simple('+', "OK", out),
        Value::Int(number) => simple(':', &number.to_string(), out),
        Value::Boolean(true) => simple('#', "t", out),
        Value::Boolean(false) => simple('#', "f", out),
        Value::Double(number) => simple(',', &number.to_string(), out),
        Value::BigNumber(digits) => simple('(', &String::from_utf8_lossy(digits), out),
        Value::SimpleString(text) => simple('+', text, out),
        Value::ServerError(error) => match error.details() {
            Some(details) => simple('-', &format!("{} {details}", error.code()), out),
            None => simple('-', error.code(), out),
        },
        Value::BulkString(bytes) => string('$', bytes, out),
        Value::VerbatimString { format, text } => {
            let format = match format {
                VerbatimFormat::Text => "txt",
                VerbatimFormat::Markdown => "mkd",
                VerbatimFormat::Unknown(format) => format,
                other => panic!("no such format is made here: {other:?}"),
            };
            string('=', format!("{format}:{text}").as_bytes(), out);
        }
        Value::Array(items) | Value::Set(items) => {
            head(if matches!(value, Value::Array(_)) { '*' } else { '~' }, items.len(), out);
            items.iter().for_each(|item| write(item, nil, out));
        }
        Value::Push { kind, data } => {
            head('>', data.len() + 1, out);
            let kind = match kind {
                PushKind::Message => "message",
                PushKind::Subscribe => "subscribe",
                PushKind::Other(kind) => kind,
                other => panic!("no such push is made here: {other:?}"),
            };
            string('$', kind.as_bytes(), out);
            data.iter().for_each(|item| write(item, nil, out));
        }
        Value::Map(pairs) => {
            head('%', pairs.len(), out);
            pairs.iter().flat_map(|(key, value)| [key, value]).for_each(|item| write(item, nil, out));
        }
        Value::Attribute { data, attributes } => {
            head('|', attributes.len(), out);
            attributes.iter().flat_map(|(key, value)| [key, value]).for_each(|item| write(item, nil, out));
            write(data, nil, out);
        }
        other => panic!("no such value is made here: {other:?}"),
    }
}

/// What a server sends, or a part of it.
pub(super) fn encoded() -> impl Strategy<Value = Vec<u8>> {
    (value(), select(NILS)).prop_map(|(value, nil)| encode(&value, nil))
}

/// Something that was sent, and then changed, cut, doubled or filled up on the way.
pub(super) fn mutated(sent: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let mutation = (0..6, any::<Index>(), any::<Index>(), any::<u8>(), select(ODD));
    (sent, vec(mutation, 0..4)).prop_map(|(mut bytes, mutations)| {
        for (what, one, other, byte, odd) in mutations {
            if bytes.is_empty() {
                break;
            }
            let (one, other) = (one.index(bytes.len()), other.index(bytes.len()));
            let (from, to) = (one.min(other), one.max(other));
            match what {
                0 => bytes[one] = byte,
                1 => bytes.truncate(one),
                2 => drop(bytes.drain(from..to)),
                3 => drop(bytes.splice(from..from, bytes[from..to].to_vec())),
                4 => drop(bytes.splice(from..from, odd.bytes())),
                _ => {
                    // The first number from there on, be it a length or not.
                    let is_digit = |byte: &u8| byte.is_ascii_digit();
                    let Some(at) = bytes[from..].iter().position(is_digit) else { continue };
                    let digits = bytes[from + at..].iter().take_while(|byte| is_digit(byte)).count();
                    bytes.splice(from + at..from + at + digits, odd.bytes());
                }
            }
        }
        bytes
    })
}
