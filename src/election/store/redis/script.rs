//! The scripts that carry out the operations: how they are called, and what they answer.

use std::time::Duration;

use redis::Value;

use super::fault::shortened;
use crate::election::key::InstanceId;
use crate::election::store::strict::{Acknowledged, Call, HOLD, Lineage, Said, Strictness};
use crate::election::store::{Answer, Holding, Operation};
use crate::election::term::parse_token;

/// Each script begins with what they share.
macro_rules! script {
    ($file:literal) => {
        concat!(include_str!("prelude.lua"), include_str!($file))
    };
}

const ACQUIRE: &str = script!("acquire.lua");
const RENEW: &str = script!("renew.lua");
const RELEASE: &str = script!("release.lua");
const LOOK: &str = script!("look.lua");
const SETTLE: &str = script!("settle.lua");

/// Appends the command of a call, in the name of an operation's instance.
///
/// EVAL with the whole text, always: it is one round trip also after a restart or a failover, when the
/// server knows no script, and needs no right to load one.
pub(crate) fn pack(operation: &Operation, call: &Call, out: &mut Vec<u8>) {
    let script = match call {
        Call::Acquire { .. } => ACQUIRE,
        Call::Renew { .. } => RENEW,
        Call::Release { .. } => RELEASE,
        Call::Look => LOOK,
        Call::Settle { .. } => SETTLE,
    };
    let mut command = redis::cmd("EVAL");
    command.arg(script).arg(2).arg(operation.group.lease()).arg(operation.group.term());
    let (id, ttl) = (operation.id.as_str(), millis(operation.ttl));
    match call {
        Call::Acquire { attempt, floor, strict } => {
            command.arg(id).arg(ttl).arg(floor).arg(attempt);
            if let Some(strict) = strict {
                command.arg(millis(strict.longest)).arg(strict.replicas);
            }
        }
        Call::Renew { token, strict } => {
            command.arg(id).arg(token).arg(ttl);
            if let Some(Acknowledged { replicas, lineage }) = strict {
                command.arg(replicas).arg(lineage.as_ref().map_or("", Lineage::as_str));
            }
        }
        Call::Release { token, wake } => {
            command.arg(id).arg(token).arg(u8::from(*wake));
        }
        Call::Look => {}
        Call::Settle { lineage, strict } => {
            command.arg(id).arg(lineage.as_str()).arg(millis(strict.longest)).arg(strict.replicas);
        }
    }
    command.write_packed_command(out);
}

/// Reads the script's reply; none when it is not one that this script gives.
pub(super) fn said(operation: &Operation, call: &Call, reply: &Value) -> Option<Said> {
    let Value::Array(items) = reply else { return None };
    let (word, rest) = items.split_first()?;
    match (call, text(word)?, rest) {
        (Call::Acquire { floor, strict, .. }, "won", [token, time, lineage @ ..]) => {
            let (token, time) = (parse_token(text(token)?)?, parse_token(text(time)?)?);
            // The script never gives one that this instance has seen, whatever the server has lost.
            (token > *floor).then_some(())?;
            let ahead = Duration::from_micros(token.saturating_sub(time));
            let lineage = lineage_of(lineage, strict.is_some())?;
            Some(Said { answer: Answer::Won { token, ahead }, lineage })
        }
        (Call::Acquire { strict: Some(_), .. }, "parked", [holder, left, lineage @ ..]) => {
            let holding = holding(operation, holder, left)?;
            let is_own = holding.holder.as_str().strip_prefix(HOLD) == Some(operation.id.as_str());
            is_own.then_some(())?;
            let lineage = lineage_of(lineage, !lineage.is_empty())?;
            Some(Said { answer: Answer::Held(holding), lineage })
        }
        (Call::Acquire { .. }, "ghost", []) => Some(Answer::Ghost.into()),
        (Call::Renew { strict, .. }, "renewed", [left, lineage @ ..]) => {
            // It had no expiry, and got one now.
            let left = remaining(left)?.unwrap_or(operation.ttl);
            let lineage = lineage_of(lineage, strict.is_some())?;
            Some(Said { answer: Answer::Renewed { left }, lineage })
        }
        (Call::Release { .. }, "released", []) => Some(Answer::Released.into()),
        (Call::Release { .. }, "released", [refused]) => {
            let (group, why) = (operation.group.name(), shortened(text(refused)?));
            log::warn!(
                "group {group:?}: the lease was released, but the followers could not be woken by PUBLISH: {why}"
            );
            Some(Answer::Released.into())
        }
        (Call::Acquire { .. }, "vacant", []) => None,
        (_, "vacant", []) => Some(Answer::Vacant.into()),
        (_, "held", [holder, left, token, strict @ ..]) => {
            let holding = holding(operation, holder, left)?;
            let strict = match strict {
                [] => None,
                [replicas, longest] => strictness(replicas, longest),
                _ => return None,
            };
            // A field that is no token is as good as none. It is empty for a Go instance.
            let token = text(token).and_then(parse_token);
            Some(Answer::Held(Holding { token, strict, ..holding }).into())
        }
        _ => None,
    }
}

/// Who holds the lease, and for how long.
fn holding(operation: &Operation, holder: &Value, left: &Value) -> Option<Holding> {
    let Value::BulkString(holder) = holder else { return None };
    let own = operation.id.as_str().as_bytes();
    // Whatever somebody else wrote there: only our own id needs to be told exactly.
    let holder = match holder.strip_prefix(HOLD.as_bytes()) {
        _ if holder == own => operation.id.clone(),
        Some(parker) if parker == own => InstanceId::from(&*format!("{HOLD}{}", operation.id)),
        _ => InstanceId::from(&*shortened(&String::from_utf8_lossy(holder))),
    };
    Some(Holding { holder, token: None, remaining: remaining(left)?, strict: None })
}

/// How strict the holder is, as far as its fields are numbers.
fn strictness(replicas: &Value, longest: &Value) -> Option<Strictness> {
    let longest = Duration::from_millis(text(longest)?.parse().ok()?);
    Some(Strictness { replicas: text(replicas)?.parse().ok()?, longest })
}

/// The data set that a reply names at its end, where it is to name one.
fn lineage_of(rest: &[Value], is_named: bool) -> Option<Option<Lineage>> {
    match rest {
        [] if !is_named => Some(None),
        [lineage] if is_named => Some(Some(Lineage::from(text(lineage)?))),
        _ => None,
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        _ => None,
    }
}

/// What PTTL says: milliseconds, or -1 for a key without expiry.
fn remaining(value: &Value) -> Option<Option<Duration>> {
    match value {
        Value::Int(-1) => Some(None),
        Value::Int(millis) => Some(Some(Duration::from_millis(u64::try_from(*millis).ok()?))),
        _ => None,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::election::clock::Instant;
    use crate::election::key::Group;
    use crate::election::store::Action;
    use crate::election::store::strict::Ledger;
    use crate::election::term::LONGEST_TOKEN;

    const ACQUIRES: Action = Action::Acquire { attempt: 7, floor: 41 };
    const RENEWS: Action = Action::Renew { token: 42 };
    const RELEASES: Action = Action::Release { token: 42 };

    fn operation(action: Action) -> Operation {
        let group = Group::new("example").expect("a good name");
        let (id, ttl) = (InstanceId::from("me"), Duration::from_millis(5_000));
        Operation { group, id, ttl, action, strict: None }
    }

    fn strict(action: Action) -> Operation {
        let strict = Some(Strictness { replicas: 3, longest: Duration::from_millis(7_000) });
        Operation { strict, ..operation(action) }
    }

    fn read_as(operation: &Operation, call: &Call, reply: &str) -> Option<Said> {
        let reply = redis::parse_redis_value(reply.as_bytes()).expect("a well-formed reply");
        said(operation, call, &reply)
    }

    fn read(action: Action, reply: &str) -> Option<Answer> {
        let operation = operation(action);
        let said = read_as(&operation, &Ledger::default().call(&operation, Instant::now()), reply)?;
        assert_eq!(said.lineage, None, "only strict names one");
        Some(said.answer)
    }

    #[test]
    fn the_arguments_are_in_the_order_of_the_scripts() {
        let call = |operation: Operation| (Ledger::default().call(&operation, Instant::now()), operation);
        let acknowledged = Acknowledged { replicas: 3, lineage: Some("abc".into()) };
        let renewed = Call::Renew { token: 42, strict: Some(acknowledged) };
        let taken_back = Call::Release { token: 42, wake: false };
        let strictness = strict(ACQUIRES).strict.expect("it is strict");
        let settled = Call::Settle { lineage: "abc".into(), strict: strictness };
        for ((call, operation), script, arguments) in [
            (call(operation(ACQUIRES)), ACQUIRE, &["me", "5000", "41", "7"][..]),
            (call(operation(RENEWS)), RENEW, &["me", "42", "5000"]),
            (call(operation(RELEASES)), RELEASE, &["me", "42", "1"]),
            (call(operation(Action::Look)), LOOK, &[]),
            (call(strict(ACQUIRES)), ACQUIRE, &["me", "5000", "41", "7", "7000", "3"]),
            (call(strict(RENEWS)), RENEW, &["me", "42", "5000", "3", ""]),
            (call(strict(RELEASES)), RELEASE, &["me", "42", "1"]),
            ((renewed, strict(RENEWS)), RENEW, &["me", "42", "5000", "3", "abc"]),
            ((taken_back, strict(ACQUIRES)), RELEASE, &["me", "42", "0"]),
            ((settled, strict(ACQUIRES)), SETTLE, &["me", "abc", "7000", "3"]),
        ] {
            let mut packed = Vec::new();
            pack(&operation, &call, &mut packed);
            let keys = [operation.group.lease(), operation.group.term()];
            let expected = [&["EVAL", script, "2"][..], &keys, arguments].concat();
            let value = redis::parse_redis_value(&packed).expect("a packed command");
            let Value::Array(parts) = value else { panic!("{value:?}") };
            let parts: Vec<_> = parts.iter().map(|part| text(part).expect("text")).collect();
            assert_eq!(parts, expected);
        }
    }

    #[test]
    fn every_reply_that_a_script_gives_is_read() {
        let held = |token, remaining| {
            let holder = InstanceId::from("you");
            Some(Answer::Held(Holding { holder, token, remaining, strict: None }))
        };
        let millis = Duration::from_millis;
        for (action, reply, expected) in [
            (
                ACQUIRES,
                "*3\r\n$3\r\nwon\r\n$2\r\n42\r\n$2\r\n42\r\n",
                Some(Answer::Won { token: 42, ahead: Duration::ZERO }),
            ),
            (
                ACQUIRES,
                "*3\r\n$3\r\nwon\r\n$2\r\n42\r\n$2\r\n40\r\n",
                Some(Answer::Won { token: 42, ahead: Duration::from_micros(2) }),
            ),
            (ACQUIRES, "*1\r\n$5\r\nghost\r\n", Some(Answer::Ghost)),
            (
                ACQUIRES,
                "*4\r\n$4\r\nheld\r\n$3\r\nyou\r\n:900\r\n$2\r\n41\r\n",
                held(Some(41), Some(millis(900))),
            ),
            (ACQUIRES, "*4\r\n$4\r\nheld\r\n$3\r\nyou\r\n:0\r\n$0\r\n\r\n", held(None, Some(millis(0)))),
            (RENEWS, "*4\r\n$4\r\nheld\r\n$3\r\nyou\r\n:-1\r\n$0\r\n\r\n", held(None, None)),
            (RELEASES, "*4\r\n$4\r\nheld\r\n$3\r\nyou\r\n:5\r\n$5\r\n1e+15\r\n", held(None, Some(millis(5)))),
            (
                Action::Look,
                "*4\r\n$4\r\nheld\r\n$3\r\nyou\r\n:5\r\n$16\r\n9007199254740991\r\n",
                held(None, Some(millis(5))),
            ),
            (
                Action::Look,
                "*4\r\n$4\r\nheld\r\n$3\r\nyou\r\n:5\r\n$16\r\n9007199254740990\r\n",
                held(Some(LONGEST_TOKEN), Some(millis(5))),
            ),
            (RENEWS, "*2\r\n$7\r\nrenewed\r\n:1200\r\n", Some(Answer::Renewed { left: millis(1_200) })),
            (RENEWS, "*2\r\n$7\r\nrenewed\r\n:-1\r\n", Some(Answer::Renewed { left: millis(5_000) })),
            (RENEWS, "*1\r\n$6\r\nvacant\r\n", Some(Answer::Vacant)),
            (RELEASES, "*1\r\n$6\r\nvacant\r\n", Some(Answer::Vacant)),
            (RELEASES, "*1\r\n$8\r\nreleased\r\n", Some(Answer::Released)),
            (RELEASES, "*2\r\n$8\r\nreleased\r\n$8\r\nERR no p\r\n", Some(Answer::Released)),
            (Action::Look, "*1\r\n$6\r\nvacant\r\n", Some(Answer::Vacant)),
        ] {
            assert_eq!(read(action, reply), expected, "{action:?} {reply:?}");
        }
    }

    #[test]
    fn under_strict_a_reply_names_the_data_set() {
        let held = |holder: &str, token, millis, strict| {
            let remaining = Some(Duration::from_millis(millis));
            Answer::Held(Holding { holder: holder.into(), token, remaining, strict })
        };
        let known = Strictness { replicas: 3, longest: Duration::from_millis(9) };
        let won = Answer::Won { token: 42, ahead: Duration::ZERO };
        let abc = Some(Lineage::from("abc"));
        let renewed = Answer::Renewed { left: Duration::from_millis(9) };
        for (action, reply, expected) in [
            (ACQUIRES, "*4\r\n$3\r\nwon\r\n$2\r\n42\r\n$2\r\n42\r\n$3\r\nabc\r\n", Some((won, &abc))),
            (ACQUIRES, "*3\r\n$3\r\nwon\r\n$2\r\n42\r\n$2\r\n42\r\n", None),
            (
                ACQUIRES,
                "*4\r\n$6\r\nparked\r\n$7\r\nhold/me\r\n:7\r\n$3\r\nabc\r\n",
                Some((held("hold/me", None, 7, None), &abc)),
            ),
            (
                ACQUIRES,
                "*3\r\n$6\r\nparked\r\n$7\r\nhold/me\r\n:7\r\n",
                Some((held("hold/me", None, 7, None), &None)),
            ),
            (ACQUIRES, "*3\r\n$6\r\nparked\r\n$8\r\nhold/you\r\n:7\r\n", None),
            (ACQUIRES, "*3\r\n$6\r\nparked\r\n$2\r\nme\r\n:7\r\n", None),
            (RENEWS, "*3\r\n$7\r\nrenewed\r\n:9\r\n$3\r\nabc\r\n", Some((renewed, &abc))),
            (RENEWS, "*2\r\n$7\r\nrenewed\r\n:9\r\n", None),
            (RENEWS, "*3\r\n$6\r\nparked\r\n$7\r\nhold/me\r\n:7\r\n", None),
            (
                RENEWS,
                "*6\r\n$4\r\nheld\r\n$3\r\nyou\r\n:5\r\n$2\r\n41\r\n$1\r\n3\r\n$1\r\n9\r\n",
                Some((held("you", Some(41), 5, Some(known)), &None)),
            ),
            (
                ACQUIRES,
                "*4\r\n$4\r\nheld\r\n$8\r\nhold/you\r\n:5\r\n$0\r\n\r\n",
                Some((held("hold/you", None, 5, None), &None)),
            ),
        ] {
            let operation = strict(action);
            let said = read_as(&operation, &Ledger::default().call(&operation, Instant::now()), reply);
            let expected = expected.map(|(answer, lineage)| Said { answer, lineage: lineage.clone() });
            assert_eq!(said, expected, "{action:?} {reply:?}");
        }
        // The same data set named to who did not ask is no answer of these scripts.
        assert_eq!(read(RENEWS, "*3\r\n$7\r\nrenewed\r\n:9\r\n$3\r\nabc\r\n"), None);
    }

    #[test]
    fn no_other_reply_is_taken_for_an_answer() {
        for (action, reply) in [
            (ACQUIRES, "+OK\r\n"),
            (ACQUIRES, ":1\r\n"),
            (ACQUIRES, "$-1\r\n"),
            (ACQUIRES, "*0\r\n"),
            (ACQUIRES, "*1\r\n+won\r\n"),
            (ACQUIRES, "*2\r\n$3\r\nwon\r\n$2\r\n42\r\n"),
            (ACQUIRES, "*3\r\n$3\r\nwon\r\n:42\r\n:42\r\n"),
            (ACQUIRES, "*3\r\n$3\r\nwon\r\n$16\r\n9007199254740991\r\n$2\r\n42\r\n"),
            (ACQUIRES, "*3\r\n$3\r\nwon\r\n$2\r\n42\r\n$3\r\n+42\r\n"),
            // Not above the floor.
            (ACQUIRES, "*3\r\n$3\r\nwon\r\n$2\r\n41\r\n$2\r\n41\r\n"),
            (ACQUIRES, "*3\r\n$3\r\nwon\r\n$1\r\n0\r\n$2\r\n42\r\n"),
            (ACQUIRES, "*1\r\n$6\r\nvacant\r\n"),
            (ACQUIRES, "*1\r\n$8\r\nreleased\r\n"),
            (RENEWS, "*1\r\n$5\r\nghost\r\n"),
            (RENEWS, "*2\r\n$7\r\nrenewed\r\n:-2\r\n"),
            (RENEWS, "*2\r\n$7\r\nrenewed\r\n$1\r\n1\r\n"),
            (RELEASES, "*2\r\n$7\r\nrenewed\r\n:1\r\n"),
            (Action::Look, "*4\r\n$4\r\nheld\r\n$3\r\nyou\r\n:-2\r\n$0\r\n\r\n"),
            (Action::Look, "*3\r\n$4\r\nheld\r\n$3\r\nyou\r\n:5\r\n"),
            (Action::Look, "*4\r\n$4\r\nheld\r\n:1\r\n:5\r\n$0\r\n\r\n"),
        ] {
            assert_eq!(read(action, reply), None, "{action:?} {reply:?}");
        }
    }

    /// B90, B100: a reply of another kind than expected was a success, or a panic.
    #[test]
    fn no_kind_of_reply_but_a_scripts_own_list_is_an_answer_to_anything() {
        let own = ["$3\r\nwon\r\n", "$2\r\n42\r\n"].concat();
        for reply in [
            "+OK\r\n",
            "+QUEUED\r\n",
            "$2\r\nOK\r\n",
            "$-1\r\n",
            "*-1\r\n",
            "_\r\n",
            "#t\r\n",
            "#f\r\n",
            ":0\r\n",
            ":1\r\n",
            ":9223372036854775807\r\n",
            ",1.5\r\n",
            ",inf\r\n",
            "(3492890328409238509324850943850943825024385\r\n",
            "=7\r\ntxt:won\r\n",
            "-ERR won\r\n",
            "*0\r\n",
            "*1\r\n$-1\r\n",
            "*1\r\n:1\r\n",
            "*1\r\n*1\r\n$3\r\nwon\r\n",
            &format!("%1\r\n{own}"),
            &format!("~2\r\n{own}"),
            &format!(">2\r\n{own}"),
        ] {
            for action in [ACQUIRES, RENEWS, RELEASES, Action::Look] {
                assert_eq!(read(action, reply), None, "{action:?} {reply:?}");
            }
        }
    }

    #[test]
    fn a_holder_of_any_length_is_told_in_part_and_the_own_id_is_known_by_all_of_it() {
        let long = "x".repeat(30_000);
        let id = InstanceId::from(&*long);
        for (holder, is_own) in [(long.clone(), true), (format!("{long}y"), false), ("x".into(), false)] {
            let operation = Operation { id: id.clone(), ..operation(Action::Look) };
            let words = [Value::BulkString(b"held".to_vec()), Value::BulkString(holder.into())];
            let rest = [Value::Int(5), Value::BulkString(Vec::new())];
            let reply = Value::Array(words.into_iter().chain(rest).collect());
            let Some(Said { answer: Answer::Held(holding), .. }) = said(&operation, &Call::Look, &reply)
            else {
                panic!("it is held")
            };
            assert_eq!(holding.holder == id, is_own);
            assert!(is_own || holding.holder.as_str().len() < 2_000);
        }
    }
}
