//! The scripts that carry out the operations: how they are called, and what they answer.

use std::time::Duration;

use redis::Value;

use super::fault::shortened;
use crate::election::key::InstanceId;
use crate::election::store::{Action, Answer, Holding, Operation};
use crate::election::term::parse_token;

const ACQUIRE: &str = include_str!("acquire.lua");
const RENEW: &str = include_str!("renew.lua");
const RELEASE: &str = include_str!("release.lua");
const LOOK: &str = include_str!("look.lua");

/// Appends the command of an operation.
///
/// EVAL with the whole text, always: it is one round trip also after a restart or a failover, when the
/// server knows no script, and needs no right to load one.
pub(super) fn pack(operation: &Operation, out: &mut Vec<u8>) {
    let script = match operation.action {
        Action::Acquire { .. } => ACQUIRE,
        Action::Renew { .. } => RENEW,
        Action::Release { .. } => RELEASE,
        Action::Look => LOOK,
    };
    let mut command = redis::cmd("EVAL");
    command.arg(script).arg(2).arg(operation.group.lease()).arg(operation.group.term());
    let (id, ttl) = (operation.id.as_str(), millis(operation.ttl));
    match operation.action {
        Action::Acquire { attempt, floor } => command.arg(id).arg(ttl).arg(floor).arg(attempt),
        Action::Renew { token } => command.arg(id).arg(token).arg(ttl),
        Action::Release { token } => command.arg(id).arg(token),
        Action::Look => &mut command,
    }
    .write_packed_command(out);
}

/// Reads the script's reply; none when it is not one that this script gives.
pub(super) fn answer(operation: &Operation, reply: &Value) -> Option<Answer> {
    let Value::Array(items) = reply else { return None };
    let (word, rest) = items.split_first()?;
    match (operation.action, text(word)?, rest) {
        (Action::Acquire { floor, .. }, "won", [token, time]) => {
            let (token, time) = (parse_token(text(token)?)?, parse_token(text(time)?)?);
            // The script never gives one that this instance has seen, whatever the server has lost.
            (token > floor).then_some(())?;
            Some(Answer::Won { token, ahead: Duration::from_micros(token.saturating_sub(time)) })
        }
        (Action::Acquire { .. }, "ghost", []) => Some(Answer::Ghost),
        (Action::Renew { .. }, "renewed", [left]) => {
            // It had no expiry, and got one now.
            Some(Answer::Renewed { left: remaining(left)?.unwrap_or(operation.ttl) })
        }
        (Action::Release { .. }, "released", []) => Some(Answer::Released),
        (Action::Renew { .. } | Action::Release { .. } | Action::Look, "vacant", []) => Some(Answer::Vacant),
        (_, "held", [holder, left, token]) => {
            let Value::BulkString(holder) = holder else { return None };
            // Whatever somebody else wrote there: only our own id needs to be told exactly.
            let holder = match holder == operation.id.as_str().as_bytes() {
                true => operation.id.clone(),
                false => InstanceId::from(&*shortened(&String::from_utf8_lossy(holder))),
            };
            Some(Answer::Held(Holding {
                holder,
                // A field that is no token is as good as none. It is empty for a Go instance.
                token: text(token).and_then(parse_token),
                remaining: remaining(left)?,
            }))
        }
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
    use crate::election::key::Group;
    use crate::election::term::LONGEST_TOKEN;

    const ACQUIRES: Action = Action::Acquire { attempt: 7, floor: 41 };
    const RENEWS: Action = Action::Renew { token: 42 };
    const RELEASES: Action = Action::Release { token: 42 };

    fn operation(action: Action) -> Operation {
        let group = Group::new("example").expect("a good name");
        Operation { group, id: InstanceId::from("me"), ttl: Duration::from_millis(5_000), action }
    }

    fn read(action: Action, reply: &str) -> Option<Answer> {
        let reply = redis::parse_redis_value(reply.as_bytes()).expect("a well-formed reply");
        answer(&operation(action), &reply)
    }

    #[test]
    fn the_arguments_are_in_the_order_of_the_scripts() {
        for (action, script, arguments) in [
            (ACQUIRES, ACQUIRE, &["me", "5000", "41", "7"][..]),
            (RENEWS, RENEW, &["me", "42", "5000"]),
            (RELEASES, RELEASE, &["me", "42"]),
            (Action::Look, LOOK, &[]),
        ] {
            let operation = operation(action);
            let mut packed = Vec::new();
            pack(&operation, &mut packed);
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
            Some(Answer::Held(Holding { holder, token, remaining }))
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
            (Action::Look, "*1\r\n$6\r\nvacant\r\n", Some(Answer::Vacant)),
        ] {
            assert_eq!(read(action, reply), expected, "{action:?} {reply:?}");
        }
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
            let Some(Answer::Held(holding)) = answer(&operation, &reply) else { panic!("it is held") };
            assert_eq!(holding.holder == id, is_own);
            assert!(is_own || holding.holder.as_str().len() < 2_000);
        }
    }
}
