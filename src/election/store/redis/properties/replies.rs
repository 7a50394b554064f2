//! Where replies begin and end.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use redis::Value;

use super::values::{NILS, encode, encoded, mutated, value};
use crate::cases::cases;
use crate::election::store::redis::frame::{Inbox, LONGEST_REPLY, Scanner};

/// What an inbox made of some bytes: its values, its error if it came to one, and how many bytes are left.
#[derive(Debug, PartialEq)]
struct Read {
    /// As shown: a number that is none does not equal itself.
    values: Vec<String>,
    end: Result<usize, &'static str>,
}

/// Reads the bytes in pieces of these sizes, over and over.
fn read(mut bytes: &[u8], sizes: &[usize]) -> Read {
    let (mut inbox, mut values) = (Inbox::default(), Vec::new());
    for size in sizes.iter().cycle() {
        let (piece, rest) = bytes.split_at(bytes.len().min(*size));
        inbox.add(piece);
        bytes = rest;
        loop {
            match inbox.take() {
                Ok(Some(value)) => values.push(format!("{value:?}")),
                Ok(None) => break,
                Err(error) => return Read { values, end: Err(error) },
            }
        }
        assert!(inbox.len() <= LONGEST_REPLY, "{} bytes are kept of what is no reply yet", inbox.len());
        if bytes.is_empty() {
            break;
        }
    }
    Read { values, end: Ok(inbox.len()) }
}

/// Bytes of any kind, and some that go on for longer than is read.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let sent = || vec(encoded(), 1..4).prop_map(|values| values.concat());
    let alphabet = select(&b"+-:_,#($!=*~>%|;0123459?\r\ntfx\0\xff"[..]);
    let endless = (mutated(sent()), vec(any::<u8>(), 0..3), 1..LONGEST_REPLY + 10_000);
    prop_oneof![
        vec(any::<u8>(), 0..300),
        vec(alphabet, 0..300),
        mutated(sent()),
        endless.prop_map(|(head, body, length)| {
            let body = if body.is_empty() { &head } else { &body };
            head.iter().chain(body.iter().cycle()).take(length).copied().collect()
        }),
    ]
}

/// How many bytes come at once: some one by one, others as many as the system gives.
fn sizes() -> impl Strategy<Value = Vec<usize>> {
    vec(prop_oneof![Just(1), 1..20_usize, 1..5_000_usize, Just(4096)], 1..8)
}

proptest! {
    #![proptest_config(cases(4))]

    #[test]
    fn what_is_read_of_any_bytes_does_not_depend_on_how_they_were_split(bytes in bytes(), sizes in sizes()) {
        let whole = read(&bytes, &[usize::MAX]);
        prop_assert_eq!(&read(&bytes, &sizes), &whole);
        if let Ok(left) = whole.end {
            prop_assert!(left <= bytes.len());
        }
    }

    #[test]
    fn every_value_ends_exactly_where_it_ends_whatever_follows(
        value in value(),
        nil in select(NILS),
        mut tail in prop_oneof![vec(any::<u8>(), 0..50), mutated(encoded())],
    ) {
        let sent = encode(&value, nil);
        let stream = [&sent[..], &tail].concat();
        prop_assert_eq!(Scanner::default().scan(&stream), Ok(Some(sent.len())));
        let mut inbox = Inbox::default();
        for end in 0..sent.len() {
            prop_assert_eq!(inbox.take(), Ok(None), "after {} bytes", end);
            inbox.add(&sent[end..=end]);
        }
        inbox.add(&tail);
        // What belongs to it and is none of it is read over.
        let expected = match value {
            Value::Attribute { data, .. } => *data,
            value => value,
        };
        prop_assert_eq!(inbox.take(), Ok(Some(expected)));
        prop_assert_eq!(inbox.len(), tail.len());
        // And the next one begins there.
        let mut next = Inbox::default();
        next.add(&std::mem::take(&mut tail));
        prop_assert_eq!(format!("{:?}", inbox.take()), format!("{:?}", next.take()));
    }

    #[test]
    fn a_value_that_was_changed_on_the_way_is_a_value_or_an_error(
        bytes in mutated(encoded()),
        sizes in sizes(),
    ) {
        let outcome = read(&bytes, &sizes);
        // Whatever was made of it has not become more than there was: the shortest value has three bytes.
        let used = bytes.len() - outcome.end.unwrap_or(0);
        prop_assert!(outcome.values.len() <= used / 3, "{:?}", outcome);
    }
}

#[test]
fn the_largest_replies_of_every_kind_are_read_or_refused() {
    let line = |kind: char| format!("{kind}{}\r\n", "x".repeat(LONGEST_REPLY - 3)).into_bytes();
    let many = |kind: char, count: usize, item: &str| {
        [format!("{kind}{count}\r\n").into_bytes(), item.repeat(LONGEST_REPLY / item.len()).into_bytes()]
            .concat()
    };
    let deep = |head: &str| [head.repeat(16_000).as_bytes(), b":1\r\n"].concat();
    for bytes in [
        line('+'),
        line('-'),
        line('('),
        line(':'),
        line(','),
        format!("${}\r\n{}\r\n", 65_520, "x".repeat(65_520)).into_bytes(),
        format!("={}\r\ntxt:{}\r\n", 65_520, "x".repeat(65_516)).into_bytes(),
        many('*', 21_840, "_\r\n"),
        many('~', 21_840, "_\r\n"),
        many('>', 21_840, "+\r\n"),
        many('%', 10_920, "_\r\n"),
        many('|', 10_919, "_\r\n"),
        many('*', 13_000, "$-1\r\n"),
        many('*', 10_000, "*0\r\n"),
        deep("*1\r\n"),
        deep("|0\r\n"),
        deep("%1\r\n_\r\n"),
    ] {
        let outcome = read(&bytes, &[4096]);
        assert_eq!(outcome, read(&bytes, &[1]), "{:?}", String::from_utf8_lossy(&bytes[..10]));
        assert!(outcome.values.len() <= 1 || outcome.end.is_ok());
    }
}
