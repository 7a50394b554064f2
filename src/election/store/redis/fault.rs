//! What an error reply means: by its code, and by its text where the code does not tell.

use std::borrow::Cow;

use redis::ServerError;

use super::slot::SLOTS;
use super::url::Address;
use crate::election::store::{Class, Node, Redirect};

/// The most characters of a text from the server that are kept. Those of its own errors are below 600.
const LONGEST_TEXT: usize = 1000;

/// The codes that tell, whether they stand at the reply's beginning or, raised inside a script on
/// Redis 6.2, as `-NAME` or `NAME` somewhere in its text.
const CODES: &[(&str, Class)] = &[
    ("READONLY", Class::WrongNode),
    ("MASTERDOWN", Class::WrongNode),
    ("MOVED", Class::WrongNode),
    ("ASK", Class::WrongNode),
    ("LOADING", Class::Passing),
    ("BUSY", Class::Passing),
    ("TRYAGAIN", Class::Passing),
    ("CLUSTERDOWN", Class::Passing),
    ("OOM", Class::Passing),
    ("NOREPLICAS", Class::Passing),
    ("MISCONF", Class::Passing),
    ("UNKILLABLE", Class::Passing),
    ("NOAUTH", Class::Configuration),
    ("WRONGPASS", Class::Configuration),
    ("NOPERM", Class::Configuration),
    ("WRONGTYPE", Class::Configuration),
    ("CROSSSLOT", Class::Configuration),
    ("NOPROTO", Class::Configuration),
    // Our own scripts' word for a term key that they cannot count on from.
    ("BADTERM", Class::Configuration),
    // And for a data set that they cannot tell from another.
    ("NOLINEAGE", Class::Configuration),
    // And for more replicas than an instance was told of.
    ("SURPLUS", Class::Configuration),
];

/// The phrases that tell where the code is only ERR. A right that is missing inside a script never
/// has the code NOPERM. Lower case; compared so.
const PHRASES: &[(&str, Class)] = &[
    ("max number of clients", Class::Passing),
    ("can't run this command", Class::Configuration),
    ("acl failure in script", Class::Configuration),
    ("no permissions", Class::Configuration),
    ("can't access at least one of the keys", Class::Configuration),
    ("invalid username-password", Class::Configuration),
    ("invalid password", Class::Configuration),
    ("without any password configured", Class::Configuration),
    ("no password is set", Class::Configuration),
    ("unknown command", Class::Configuration),
    ("unknown redis command", Class::Configuration),
    ("db index is out of range", Class::Configuration),
    ("select is not allowed in cluster mode", Class::Configuration),
    ("error compiling script", Class::Configuration),
];

/// What a user lacks where the server's text names it badly or not at all. In lower case, as what is searched for.
const RIGHTS: &[(&str, &str)] = &[
    (
        "can't run this command",
        "the server does not say which one: the scripts need get, set, del, pttl, pexpire, hset, hdel, hmget and time, and info under strict",
    ),
    ("channel", "the user needs the channels &taskrunner:leader:*"),
    (" key", "the user needs the keys ~taskrunner:leader:* and ~{taskrunner:leader:*"),
];

/// Whether trying again can help after this error, and its text as it may be shown.
pub(super) fn classify(error: &ServerError) -> (Class, String) {
    let code = error.code();
    let details = error.details().unwrap_or_default();
    let named = if code == "ERR" || code.starts_with('@') {
        // The server's own word, not one that it quotes.
        details.split_whitespace().map(|word| word.trim_start_matches('-')).find_map(class_of_code)
    } else {
        class_of_code(code)
    };
    let class = named.unwrap_or_else(|| {
        let details = details.to_lowercase();
        let told = PHRASES.iter().find(|(phrase, _)| details.contains(phrase));
        told.map_or(Class::Passing, |(_, class)| *class)
    });
    let mut text = shown(code, details);
    let details = details.to_lowercase();
    let is_right =
        code == "NOPERM" || ["can't ", "acl failure"].iter().any(|phrase| details.contains(phrase));
    if let Some((_, lacks)) = RIGHTS.iter().find(|(phrase, _)| is_right && details.contains(phrase)) {
        text.push_str(&format!(" ({lacks})"));
    }
    (class, text)
}

/// Where the operation may be sent that the server at this address answered with this error.
pub(super) fn redirect(error: &ServerError, from: &Address) -> Option<Redirect> {
    match error.code() {
        "MOVED" => to_node(error.details()?, from, false).map(|(slot, node)| Redirect::Moved { slot, node }),
        "ASK" => to_node(error.details()?, from, true).map(|(slot, node)| Redirect::Ask { slot, node }),
        "TRYAGAIN" => Some(Redirect::Later),
        "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | "READONLY" => Some(Redirect::Elsewhere),
        _ => None,
    }
}

/// A slot and a node, as in `3999 127.0.0.1:6381`. Without a host it is the one that says so.
fn to_node(details: &str, from: &Address, asking: bool) -> Option<(u16, Node)> {
    let (slot, address) = details.split_once(' ')?;
    let slot = slot.parse().ok().filter(|slot| *slot < SLOTS)?;
    // A host of IP version 6 has colons itself, with or without brackets around it.
    let (host, port) = address.rsplit_once(':')?;
    let host = match (host, from) {
        ("", Address::Tcp { host, .. }) => host,
        (host, _) => host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host),
    };
    let Address::Tcp { host, port } = Address::named(host, port)? else { return None };
    Some((slot, Node { host: host.into(), port, asking }))
}

/// Whether this error of the handshake refuses the user or the password.
pub(super) fn is_login(error: &ServerError) -> bool {
    let details = error.details().unwrap_or_default().to_lowercase();
    matches!(error.code(), "NOAUTH" | "WRONGPASS" | "NOPERM")
        || ["invalid username-password", "invalid password"].iter().any(|phrase| details.contains(phrase))
}

/// Whether the server does not know the command, or not in this form.
pub(super) fn is_unknown_command(error: &ServerError) -> bool {
    let details = error.details().unwrap_or_default().to_lowercase();
    error.code() == "NOPROTO"
        || error.code() == "ERR"
            && (details.starts_with("unknown command") || details.starts_with("syntax error"))
}

fn class_of_code(code: &str) -> Option<Class> {
    CODES.iter().find(|(name, _)| *name == code).map(|(_, class)| *class)
}

/// The reply's text. A server repeats the arguments of a command that it does not know: a password,
/// where that was AUTH or HELLO.
fn shown(code: &str, details: &str) -> String {
    let details = details.split(", with args beginning with").next().unwrap_or_default();
    let text = if details.is_empty() { code.to_owned() } else { format!("{code} {details}") };
    shortened(&text).into_owned()
}

/// A text from the server as it is told: no longer than anybody reads. Listeners that are behind may keep
/// hundreds of them.
pub(super) fn shortened(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(LONGEST_TEXT) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redis::Value;

    use Class::{Configuration, Passing, WrongNode};

    fn error(text: &str) -> ServerError {
        match redis::parse_redis_value(format!("-{text}\r\n").as_bytes()) {
            Ok(Value::ServerError(error)) => error,
            other => panic!("{text:?} is no error reply: {other:?}"),
        }
    }

    /// As taken from Redis 6.2.14, 7.0.15 and 8.2.3 and Valkey 8.1.8 and 9.1.2; those of a cluster and the
    /// last two are not.
    const TEXTS: &[(&str, Class)] = &[
        // 6.2, inside a script: under pcall, and raised.
        ("@user_script: 7: -READONLY You can't write against a read only replica.", WrongNode),
        (
            "ERR Error running script (call to f_1f8f4cfba6f3375f8c4ec02b9de4361a5dea5c64): @user_script:1: @user_script: 1: -READONLY You can't write against a read only replica.",
            WrongNode,
        ),
        ("@user_script: 7: -NOREPLICAS Not enough good replicas to write.", Passing),
        (
            "@user_script: 7: -MISCONF Redis is configured to save RDB snapshots, but it is currently not able to persist on disk. Commands that may modify the data set are disabled, because this instance is configured to report errors during writes if RDB snapshotting fails (stop-writes-on-bgsave-error option). Please check the Redis logs for details about the RDB error.",
            Passing,
        ),
        ("@user_script: 1: -OOM command not allowed when used memory > 'maxmemory'.", Passing),
        (
            "ERR Error running script (call to f_1f8f4cfba6f3375f8c4ec02b9de4361a5dea5c64): @user_script:1: @user_script: 1: -OOM command not allowed when used memory > 'maxmemory'.",
            Passing,
        ),
        (
            "ERR Error running script (call to f_146ac13e76984fae6ac3f109dc125acecf7f1518): @user_script:11: WRONGTYPE Operation against a key holding the wrong kind of value",
            Configuration,
        ),
        (
            "@user_script: 7: The user executing the script can't run this command or subcommand",
            Configuration,
        ),
        (
            "ERR Error running script (call to f_146ac13e76984fae6ac3f109dc125acecf7f1518): @user_script:41: @user_script: 41: The user executing the script can't run this command or subcommand",
            Configuration,
        ),
        (
            "ERR Error running script (call to f_694a5fe1ddb97a4c6a1bf299d9537c7d3d0f84e7): @user_script:1: Script killed by user with SCRIPT KILL...",
            Passing,
        ),
        ("NOPERM this user has no permissions to access one of the keys used as arguments", Configuration),
        ("NOPERM this user has no permissions to run the 'eval' command or its subcommand", Configuration),
        ("ERR unknown command `HDEL`, with args beginning with: `BAR`, ", Configuration),
        // 7.0 and later.
        ("READONLY You can't write against a read only replica.", WrongNode),
        (
            "READONLY You can't write against a read only replica. script: 1f8f4cfba6f3375f8c4ec02b9de4361a5dea5c64, on @user_script:1.",
            WrongNode,
        ),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", WrongNode),
        ("MOVED 3999 127.0.0.1:6381", WrongNode),
        ("ASK 3999 127.0.0.1:6381", WrongNode),
        ("NOREPLICAS Not enough good replicas to write.", Passing),
        (
            "MISCONF Valkey is configured to save RDB snapshots, but it's currently unable to persist to disk. Commands that may modify the data set are disabled, because this instance is configured to report errors during writes if RDB snapshotting fails (stop-writes-on-bgsave-error option). Please check the Valkey logs for details about the RDB error.",
            Passing,
        ),
        ("OOM command not allowed when used memory > 'maxmemory'. script: on @user_script:1.", Passing),
        ("LOADING Redis is loading the dataset in memory", Passing),
        ("LOADING Valkey is loading the dataset in memory", Passing),
        ("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", Passing),
        ("CLUSTERDOWN The cluster is down", Passing),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Passing),
        ("ERR max number of clients reached", Passing),
        ("ERR Script killed by user with SCRIPT KILL. script: on @user_script:1.", Passing),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", Configuration),
        (
            "WRONGTYPE Operation against a key holding the wrong kind of value script: on @user_script:11.",
            Configuration,
        ),
        ("ERR The user executing the script can't run this command or subcommand", Configuration),
        (
            "ERR The user executing the script can't run this command or subcommand script: 146ac13e76984fae6ac3f109dc125acecf7f1518, on @user_script:41.",
            Configuration,
        ),
        (
            "ERR ACL failure in script: User nohdel has no permissions to run the 'hdel' command",
            Configuration,
        ),
        (
            "ERR ACL failure in script: User noset has no permissions to run the 'set' command script: on @user_script:41.",
            Configuration,
        ),
        ("NOPERM No permissions to access a key", Configuration),
        ("NOPERM User noeval has no permissions to run the 'eval' command", Configuration),
        ("NOAUTH Authentication required.", Configuration),
        (
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time",
            Configuration,
        ),
        ("WRONGPASS invalid username-password pair or user is disabled.", Configuration),
        (
            "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
            Configuration,
        ),
        ("ERR DB index is out of range", Configuration),
        ("ERR SELECT is not allowed in cluster mode", Configuration),
        ("ERR unknown command 'FOO', with args beginning with: 'BAR' ", Configuration),
        ("ERR Unknown Redis command called from script script: 1f8f4cf, on @user_script:1.", Configuration),
        ("ERR Error compiling script (new function): user_script:1: '=' expected near '1'", Configuration),
        ("CROSSSLOT Keys in request don't hash to the same slot", Configuration),
        ("BADTERM field token of {taskrunner:leader:X}:term is not a number below 2^53 - 1", Configuration),
        ("ERR something that no version says", Passing),
        ("WHATEVER new code", Passing),
    ];

    #[test]
    fn every_text_of_every_version_has_its_class() {
        for (text, class) in TEXTS {
            assert_eq!(classify(&error(text)).0, *class, "{text}");
        }
    }

    #[test]
    fn a_redirect_is_read_or_it_is_none() {
        let from = Address::named("answers", "7000").expect("an address");
        let node = |host: &str, port, asking| Node { host: host.into(), port, asking };
        let moved = |slot, host| Some(Redirect::Moved { slot, node: node(host, 6381, false) });
        let ask = |slot, host| Some(Redirect::Ask { slot, node: node(host, 6381, true) });
        for (text, expected) in [
            ("MOVED 3999 127.0.0.1:6381", moved(3999, "127.0.0.1")),
            ("MOVED 0 leases-1.internal:6381", moved(0, "leases-1.internal")),
            ("MOVED 16383 :6381", moved(16383, "answers")),
            ("MOVED 1 2001:db8::7:6381", moved(1, "2001:db8::7")),
            ("MOVED 1 [2001:db8::7]:6381", moved(1, "2001:db8::7")),
            ("ASK 3999 127.0.0.1:6381", ask(3999, "127.0.0.1")),
            ("ASK 3999 :6381", ask(3999, "answers")),
            ("TRYAGAIN Multiple keys request during rehashing of slot", Some(Redirect::Later)),
            ("CLUSTERDOWN The cluster is down", Some(Redirect::Elsewhere)),
            ("LOADING Redis is loading the dataset in memory", Some(Redirect::Elsewhere)),
            ("MOVED 16384 h:6381", None),
            ("MOVED -1 h:6381", None),
            ("MOVED x h:6381", None),
            ("MOVED 1 h:0", None),
            ("MOVED 1 h:65536", None),
            ("MOVED 1 h:+1", None),
            ("MOVED 1 h:", None),
            ("MOVED 1 h", None),
            // Of a node that does not know its name.
            ("MOVED 1 ?:6381", None),
            ("MOVED 1 a b:6381", None),
            ("MOVED 1 a,b:6381", None),
            ("MOVED 1", None),
            ("MOVED", None),
            ("ASK", None),
            ("NOPERM No permissions to access a key", None),
        ] {
            assert_eq!(redirect(&error(text), &from), expected, "{text}");
        }
        let long = format!("MOVED 1 {}:6381", "h".repeat(300));
        assert_eq!(redirect(&error(&long), &from), None);
        let socket = Address::Unix("/run/s".into());
        assert_eq!(redirect(&error("MOVED 1 :6381"), &socket), None);
    }

    #[test]
    fn a_right_that_the_server_does_not_name_is_named() {
        for (text, _) in TEXTS {
            let shown = classify(&error(text)).1;
            let lacks = [
                ("can't run this command", "hmget"),
                ("access a key", "~{taskrunner:leader:*"),
                ("of the keys", "~{taskrunner:leader:*"),
                ("access a channel", "&taskrunner:leader:*"),
            ];
            for (phrase, right) in lacks {
                assert_eq!(text.contains(phrase), shown.contains(right) && text.contains(phrase), "{shown}");
            }
            let is_right = lacks.iter().any(|(phrase, _)| text.contains(phrase));
            assert!(is_right || !shown.contains("needs the") && !shown.contains("scripts need"), "{shown}");
        }
    }

    #[test]
    fn the_arguments_of_an_unknown_command_are_not_repeated() {
        for text in [
            "ERR unknown command `AUTH`, with args beginning with: `hunter2`, ",
            "ERR unknown command 'AUTH', with args beginning with: 'user' 'hunter2' ",
        ] {
            let shown = classify(&error(text)).1;
            assert!(shown.contains("AUTH") && !shown.contains("hunter2"), "{shown}");
        }
    }

    #[test]
    fn a_text_that_nobody_reads_to_its_end_is_cut() {
        let long = "ü".repeat(20_000);
        for text in [format!("ERR {long}"), long.clone(), format!("WRONGTYPE {long}")] {
            let shown = classify(&error(&text)).1;
            assert!(text.starts_with(shown.strip_suffix('…').expect("it is cut")), "{shown}");
            assert!(shown.len() < 4 * LONGEST_TEXT, "{} bytes", shown.len());
        }
        let whole = "x".repeat(LONGEST_TEXT);
        assert_eq!(shortened(&whole), whole);
    }

    #[test]
    fn an_old_server_is_told_from_one_that_refuses() {
        for (text, unknown) in [
            ("ERR unknown command `HELLO`, with args beginning with: `3`, ", true),
            ("ERR unknown command 'HELLO', with args beginning with: '3' ", true),
            ("ERR unknown command 'HELLO'", true),
            ("NOPROTO unsupported protocol version", true),
            ("ERR Syntax error in HELLO option 'SETNAME'", true),
            ("WRONGPASS invalid username-password pair or user is disabled.", false),
            ("LOADING Redis is loading the dataset in memory", false),
            ("ERR max number of clients reached", false),
        ] {
            assert_eq!(is_unknown_command(&error(text)), unknown, "{text}");
        }
    }
}
