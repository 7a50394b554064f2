//! What replies and messages are taken for.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use redis::{PushKind, Value};

use super::values::{encode, mutated, value};
use crate::cases::cases;
use crate::election::clock::Instant;
use crate::election::key::{Group, InstanceId};
use crate::election::store::redis::Access;
use crate::election::store::redis::dial::Dialer;
use crate::election::store::redis::listener::wake;
use crate::election::store::redis::script::said;
use crate::election::store::redis::url::Target;
use crate::election::store::redis::wire::{Patience, Wire};
use crate::election::store::strict::Ledger;
use crate::election::store::{Action, Answer, Bell, Budget, Class, Heard, Operation, Outcome};
use crate::election::term::LONGEST_TOKEN;

/// What the scripts say, what they nearly say, and numbers at the edges.
const WORDS: &[&str] = &[
    "won",
    "renewed",
    "released",
    "held",
    "vacant",
    "ghost",
    "WON",
    "won ",
    "wo",
    "",
    "me",
    "you",
    "0",
    "1",
    "41",
    "42",
    "43",
    "042",
    "+42",
    "-42",
    " 42",
    "42.0",
    "4e1",
    "9007199254740990",
    "9007199254740991",
    "18446744073709551616",
    "nan",
];

/// What each script says, and wins of a token that was seen before.
const SHAPES: &[&[&str]] = &[
    &["won", "42", "40"],
    &["won", "41", "40"],
    &["won", "0", "40"],
    &["won", "9007199254740990", "0"],
    &["renewed", "900"],
    &["renewed", "-1"],
    &["released"],
    &["vacant"],
    &["ghost"],
    &["held", "you", "900", "41"],
    &["held", "me", "-1", ""],
];

fn bulk(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

/// A value that is an answer, or one step from it.
fn near() -> impl Strategy<Value = Value> {
    let word = || {
        prop_oneof![
            16 => select(WORDS).prop_map(bulk),
            2 => select(WORDS).prop_map(|word| Value::SimpleString(word.to_owned())),
            4 => select(&[-2, -1, 0, 1, 900, i64::MIN, i64::MAX][..]).prop_map(Value::Int),
            1 => value(),
        ]
    };
    let shape = select(SHAPES);
    // The remaining ttl is a number, all else a string.
    let shaped = shape.prop_map(|words| {
        let number = |at| at == if words[0] == "held" { 2 } else { 1 } && words[0] != "won";
        let item = |(at, word): (usize, &&str)| match word.parse() {
            Ok(left) if number(at) => Value::Int(left),
            _ => bulk(word),
        };
        words.iter().enumerate().map(item).collect::<Vec<_>>()
    });
    let changed = (shaped.clone(), any::<prop::sample::Index>(), 0..3, word()).prop_map(
        |(mut items, at, how, word)| {
            let at = at.index(items.len());
            match how {
                0 => items[at] = word,
                1 => items.insert(at, word),
                _ => drop(items.remove(at)),
            }
            Value::Array(items)
        },
    );
    prop_oneof![
        2 => shaped.prop_map(Value::Array),
        4 => changed,
        4 => vec(word(), 0..5).prop_map(Value::Array),
        1 => vec(word(), 0..5).prop_map(Value::Set),
        1 => vec(word(), 0..5).prop_map(|data| Value::Push { kind: PushKind::Message, data }),
        2 => value(),
    ]
}

const FLOOR: u64 = 41;

fn action() -> impl Strategy<Value = Action> {
    select(
        &[
            Action::Acquire { attempt: 7, floor: FLOOR },
            Action::Renew { token: 42 },
            Action::Release { token: 42 },
            Action::Look,
        ][..],
    )
}

fn group() -> Group {
    Group::new("example").expect("a good name")
}

/// The token that a value is, if it is one.
fn token(value: &Value) -> Option<u64> {
    let Value::BulkString(digits) = value else { return None };
    let digits = std::str::from_utf8(digits).ok()?;
    let is_token = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|token| is_token && *token <= LONGEST_TOKEN)
}

/// Whether this is the one reply that says yes to the action, and the answer is what it says.
fn is_yes(action: Action, reply: &Value, said: &Answer, ttl: Duration) -> bool {
    let Value::Array(items) = reply else { return false };
    match (action, &items[..], said) {
        (Action::Acquire { .. }, [word, won, time], Answer::Won { token: told, .. }) => {
            *word == bulk("won") && token(won) == Some(*told) && *told > FLOOR && token(time).is_some()
        }
        (Action::Renew { .. }, [word, Value::Int(left)], Answer::Renewed { left: told }) => {
            let expected = if *left == -1 { ttl.as_millis() } else { left.unsigned_abs().into() };
            *word == bulk("renewed") && *left >= -1 && told.as_millis() == expected
        }
        // With what the server had against waking the followers.
        (
            Action::Release { .. },
            [word] | [word, Value::BulkString(_) | Value::SimpleString(_)],
            Answer::Released,
        ) => *word == bulk("released"),
        _ => false,
    }
}

proptest! {
    #![proptest_config(cases(16))]

    #[test]
    fn nothing_but_the_exact_reply_to_it_says_yes_to_an_operation(reply in near(), action in action()) {
        let ttl = Duration::from_secs(5);
        let operation = Operation { group: group(), id: InstanceId::from("me"), ttl, action, strict: None };
        let call = Ledger::default().call(&operation, Instant::now());
        let answer = |reply: &Value| said(&operation, &call, reply).map(|said| said.answer);
        let said = answer(&reply);
        let yes = |answer: &Answer| {
            matches!(answer, Answer::Won { .. } | Answer::Renewed { .. } | Answer::Released)
        };
        if let Some(said) = said.as_ref().filter(|said| yes(said)) {
            prop_assert!(is_yes(action, &reply, said, ttl), "{:?} to {:?} taken for {:?}", reply, action, said);
        }
        // And the exact one does, so that the above is not true of nothing.
        let exact = match action {
            Action::Acquire { .. } => vec![bulk("won"), bulk("42"), bulk("42")],
            Action::Renew { .. } => vec![bulk("renewed"), Value::Int(0)],
            Action::Release { .. } => vec![bulk("released")],
            Action::Look => vec![bulk("vacant")],
        };
        prop_assert!(action == Action::Look || answer(&Value::Array(exact)).is_some_and(|said| yes(&said)));
    }

    #[test]
    fn only_a_token_told_on_the_channel_of_a_group_is_a_wake(message in message()) {
        let groups = [Group::new("other").expect("a good name"), group()];
        let data = match &message {
            Value::Push { kind: PushKind::Message, data } => &data[..],
            Value::Array(items) if items.first().is_some_and(|word| is_text(word, "message")) => &items[1..],
            _ => &[],
        };
        let channel = |group: &Group| format!("{}:wake", group.lease());
        let expected = data.first().and_then(|name| {
            let group = groups.iter().find(|group| is_text(name, &channel(group)))?;
            let payload = match data.get(1)? {
                Value::SimpleString(text) => &bulk(text),
                payload => payload,
            };
            Some(Heard::Wake { lease: group.lease().to_owned(), token: token(payload)? })
        });
        prop_assert_eq!(wake(&message, &groups), expected);
    }
}

fn is_text(value: &Value, text: &str) -> bool {
    *value == bulk(text) || *value == Value::SimpleString(text.to_owned())
}

/// A message of any shape, often one of a wake.
fn message() -> impl Strategy<Value = Value> {
    let channel = |name: &str| format!("{}:wake", Group::new(name).expect("a good name").lease());
    let group = group();
    let others = [group.lease(), &channel("foreign"), ":wake", "message", ""].map(str::to_owned);
    let names: Vec<_> = std::iter::repeat_n(channel("example"), 5).chain(others).collect();
    let name = select(names).prop_map(|name| bulk(&name));
    let payload = prop_oneof![4 => select(WORDS).prop_map(bulk), 1 => value()];
    let simple = payload.prop_map(|payload| match payload {
        Value::BulkString(bytes) if bytes.len() == 1 => {
            Value::SimpleString(String::from_utf8_lossy(&bytes).into_owned())
        }
        payload => payload,
    });
    let kind = select(&["message", "message", "message", "subscribe", "smessage", "pmessage", ""][..]);
    let data = (kind, name, vec(simple, 0..3));
    prop_oneof![
        4 => (data, any::<bool>()).prop_map(|((kind, name, rest), pushed)| {
            let data: Vec<_> = [name].into_iter().chain(rest).collect();
            match (pushed, kind) {
                (false, kind) => Value::Array([bulk(kind)].into_iter().chain(data).collect()),
                (true, "message") => Value::Push { kind: PushKind::Message, data },
                (true, "subscribe") => Value::Push { kind: PushKind::Subscribe, data },
                (true, kind) => Value::Push { kind: PushKind::Other(kind.to_owned()), data },
            }
        }),
        1 => value(),
    ]
}

/// What a server may say to HELLO, SELECT and ROLE, or to other things that it took them for.
fn greeting() -> impl Strategy<Value = Value> {
    let role = select(&["master", "primary", "slave", "replica", "sentinel", "Master", ""][..]);
    let error = select(
        &[
            "ERR unknown command 'HELLO'",
            "ERR syntax error",
            "NOPROTO unsupported protocol version",
            "NOPERM no",
            "NOAUTH no",
            "LOADING no",
            "MOVED 1 h:1",
            "ASK",
            "",
            " ",
        ][..],
    );
    let field = prop_oneof![
        role.clone().prop_map(|role| (bulk("role"), bulk(role))),
        select(&["standalone", "cluster", "sentinel"][..]).prop_map(|mode| (bulk("mode"), bulk(mode))),
        (value(), value()),
    ];
    prop_oneof![
        3 => vec(field, 0..4).prop_map(Value::Map),
        3 => (role, vec(value(), 0..3))
            .prop_map(|(role, rest)| Value::Array([bulk(role)].into_iter().chain(rest).collect())),
        2 => error.prop_map(|text| {
            redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).expect("an error reply")
        }),
        2 => Just(Value::Okay),
        1 => value(),
    ]
}

proptest! {
    #![proptest_config(cases(4))]

    #[test]
    fn only_a_primary_or_a_server_that_may_not_say_passes_the_handshake(
        sent in mutated(vec(greeting(), 0..5).prop_map(|values| {
            values.iter().flat_map(|value| encode(value, "_\r\n")).collect()
        })),
        logs_in in any::<bool>(),
    ) {
        let url = if logs_in { "redis://user:hunter2@h/3" } else { "redis://h" };
        let mut dialer = Dialer::new(Target::parse(url).expect("a good URL"), Access::default());
        let (mut server, client) = UnixStream::pair().expect("a socket pair");
        client.set_nonblocking(true).expect("a socket can be non-blocking");
        // All of it is there before anything was asked, and then the connection ends: nothing waits.
        server.write_all(&sent).expect("it fits into the buffer");
        server.shutdown(Shutdown::Write).expect("a socket can be shut down");
        let (bell, end) = Bell::new().expect("a socket pair");
        let budget = Budget::new(Instant::now() + Duration::from_secs(20), &bell);
        match dialer.shake_hands(Wire::new(client.into()), &Patience::new(&budget, &end)) {
            Ok(_) => {
                let says = |text: &[u8]| sent.windows(text.len()).any(|part| part == text);
                prop_assert!(
                    says(b"master") || says(b"primary") || says(b"NOPERM") || says(b"ERR"),
                    "{:?}", String::from_utf8_lossy(&sent)
                );
            }
            Err(error) => {
                prop_assert_eq!(error.outcome(), Outcome::NotSent);
                prop_assert!(error.to_string().len() < 8_000);
                let known = [Class::Passing, Class::WrongNode, Class::Configuration];
                prop_assert!(known.contains(&error.class()));
            }
        }
    }
}
