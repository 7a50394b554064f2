//! What can be written where a URL is to stand.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use rustix::net::SocketAddrUnix;

use crate::cases::cases;
use crate::election::ErrorKind;
use crate::election::store::redis::RedisStore;
use crate::election::store::redis::url::{Address, Target, Url};

/// A part of every password here, which is part of nothing else.
const SECRET: &str = "Zq9Xw";

/// What may go wrong in a URL, or mean something there.
const ODD: &[&str] = &[
    "",
    ":",
    "/",
    "//",
    "?",
    "#",
    "@",
    "&",
    "=",
    "%",
    "%4",
    "%zz",
    "%00",
    "%40",
    "%2F",
    "%3F",
    "%ff",
    "%C3%BC",
    "+",
    ",",
    ";",
    "[",
    "]",
    "[::1]",
    "\\",
    " ",
    "\t",
    "\n",
    "\r",
    "\0",
    "\u{7f}",
    "\u{200b}",
    "ü",
    "日本",
    "..",
    "0",
    "1",
    "-1",
    "65535",
    "65536",
    "4294967295",
    "4294967296",
    "9223372036854775808",
    "99999999999999999999",
    "user",
    "pass=",
    "db=",
    "user=",
    "redis://",
    "unix:",
    "h",
    "127.0.0.1",
    "::1",
];

const SCHEMES: &[&str] = &[
    "redis://",
    "redis://",
    "redis://",
    "valkey://",
    "unix://",
    "unix:///",
    "unix:///run/s",
    "redis+unix:///s",
    "valkey+unix:///s",
    "rediss://",
    "valkeys://",
    "redis-cluster://",
    "redis-cluster://",
    "valkey+cluster://",
    "redis-sentinel://",
    "redis-sentinel://",
    "rediss-cluster://",
    "unix-cluster://",
    "REDIS://",
    "redis:",
    "redis:/",
    "unix:",
    "unix:/",
    "http://",
    "file:///",
    "",
    "://",
    " redis://",
    "re\tdis://",
    "redis+unix://",
];

fn odd(most: usize) -> impl Strategy<Value = String> {
    let part =
        prop_oneof![3 => select(ODD).prop_map(str::to_owned), 1 => any::<String>(), 1 => "[a-z0-9]{1,9}"];
    vec(part, 0..most).prop_map(|parts| parts.concat())
}

/// A password, as it should be written and as it should not.
fn password() -> impl Strategy<Value = String> {
    let encoded = vec(any::<u8>(), 0..6)
        .prop_map(|bytes| bytes.iter().map(|byte| format!("%{byte:02X}")).collect::<String>());
    let around = || prop_oneof![encoded.clone(), odd(3), Just(String::new())];
    (around(), around()).prop_map(|(before, after)| format!("{before}{SECRET}{after}"))
}

/// A URL that is good, or goes wrong somewhere; its password stands where a password stands.
fn url() -> impl Strategy<Value = String> {
    let good = || prop_oneof![Just(String::new()), "[a-z]{1,6}", odd(3)];
    let host = prop_oneof![
        select(
            &[
                "h",
                "127.0.0.1",
                "[::1]",
                "localhost",
                "",
                "h:7000",
                "h:",
                "a:1,b:2",
                "a,[::1],b",
                "a,,b",
                "h:0"
            ][..]
        )
        .prop_map(str::to_owned),
        odd(3),
    ];
    let path = prop_oneof![
        select(&["", "/", "/0", "/3", "/-1", "//", "/m", "/m/3"][..]).prop_map(str::to_owned),
        odd(3)
    ];
    let query = prop_oneof![Just(String::new()), odd(3).prop_map(|odd| format!("?{odd}"))];
    let tcp = (select(SCHEMES), good(), password(), host, path, query.clone()).prop_map(
        |(scheme, user, password, host, path, query)| {
            format!("{scheme}{user}:{password}@{host}{path}{query}")
        },
    );
    let unix =
        (select(SCHEMES), good(), good(), password(), select(&["", "&db=1", "&user=u", "&", "&x=1"][..]))
            .prop_map(|(scheme, path, extra, password, more)| {
                format!("{scheme}{path}?{extra}pass={password}{more}")
            });
    prop_oneof![3 => tcp, 2 => unix, 1 => (odd(4), password(), odd(4)).prop_map(|(a, b, c)| a + &b + &c)]
}

fn password_of(target: &Target) -> &str {
    target.credentials.as_ref().map_or("", |credentials| &credentials.password)
}

/// All servers, nodes and Sentinels that a URL names.
fn targets(url: Url) -> Vec<Target> {
    match url {
        Url::Server(target) => vec![target],
        Url::Cluster(targets) => targets,
        Url::Sentinel { sentinels, server, .. } => [sentinels, vec![server]].concat(),
    }
}

fn check(url: &str) -> Result<Option<Vec<Target>>, TestCaseError> {
    let parsed = Url::parse(url).map(targets);
    let again = Url::parse(url).map(targets);
    match (parsed, again) {
        (Ok(targets), Ok(again)) => {
            let whole = |target: &Target| format!("{target:?} {:?}", password_of(target));
            prop_assert!(!targets.is_empty());
            prop_assert_eq!(targets.len(), again.len());
            for (target, again) in targets.iter().zip(&again) {
                prop_assert_eq!(whole(target), whole(again));
                match &target.address {
                    Address::Tcp { host, port } => {
                        prop_assert!(!host.is_empty() && *port != 0, "{:?}", target);
                        let strange = |c: char| c.is_control() || c.is_whitespace() || "/?#@,".contains(c);
                        prop_assert!(!host.contains(strange), "{:?}", target);
                    }
                    Address::Unix(path) => prop_assert!(SocketAddrUnix::new(path).is_ok(), "{:?}", target),
                }
                // No server has more, and none takes a larger number.
                prop_assert!(i32::try_from(target.database).is_ok(), "{:?}", target);
            }
            Ok(Some(targets))
        }
        (Err(error), Err(again)) => {
            prop_assert_eq!(error.kind(), ErrorKind::Configuration);
            prop_assert_eq!(error.to_string(), again.to_string());
            let shown = format!("{error} {error:?} {}", error.to_chain());
            prop_assert!(!shown.contains(SECRET), "{}", shown);
            Ok(None)
        }
        (parsed, again) => panic!("{url:?} is {parsed:?} and then {again:?}"),
    }
}

proptest! {
    #![proptest_config(cases(8))]

    #[test]
    fn any_text_is_a_url_within_bounds_or_an_error(url in any::<String>(), scheme in select(SCHEMES)) {
        check(&url)?;
        check(&format!("{scheme}{url}"))?;
    }

    #[test]
    fn a_url_is_read_within_bounds_or_refused_and_shows_no_password(url in url()) {
        let Some(targets) = check(&url)? else { return Ok(()) };
        // Odd characters may have made a part of a path or of a host of it.
        let is_password = |target: &Target| password_of(target).contains(SECRET);
        if targets.iter().any(is_password) {
            // What is wrong with it as a cluster is found out here.
            let shown = match RedisStore::open(&url) {
                Ok(store) => format!("{store:?}"),
                Err(error) => format!("{error} {error:?} {}", error.to_chain()),
            };
            prop_assert!(!shown.contains(SECRET), "{:?} of {:?}", shown, url);
        }
    }

    #[test]
    fn a_password_of_any_bytes_comes_out_of_a_url_as_it_went_in(
        password in any::<String>(),
        user in any::<String>(),
        form in 0..4_usize,
    ) {
        let encoded = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
        let (user, secret) = (encoded(&user), encoded(&password));
        let url = match form {
            0 => format!("unix:///s?pass={secret}&user={user}"),
            1 => format!("redis://{user}:{secret}@h"),
            2 => format!("redis-cluster://{user}:{secret}@h,i:7000,[::1]"),
            _ => format!("redis-sentinel://{user}:{secret}@h,i:7000/mymaster/3"),
        };
        let targets = check(&url)?.expect("a good URL");
        prop_assert_eq!(targets.len(), [1, 1, 3, 3][form]);
        // In the last form it is the server's, which comes last here, and not the sentinels'.
        for (index, target) in targets.into_iter().enumerate() {
            let expected = if form == 3 && index < 2 { "" } else { &*password };
            prop_assert_eq!(password_of(&target), expected);
        }
    }
}
