//! Users who may do no more than an election needs, and how they log in.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{io, thread};

use taskrunner::election::{
    Builder, Credentials, Elector, Error, ErrorKind, Operation, Reason, RedisStore, RenewError, Strict,
    inspect,
};

use crate::support::{Server, eventually, unique_group};

/// Longer than anything takes that is to happen.
const CAP: Duration = Duration::from_secs(30);

const MS: Duration = Duration::from_millis(1);

/// What a user needs, as the documentation of `RedisStore` has it.
const KEYS: [&str; 2] = ["~taskrunner:leader:*", "~{taskrunner:leader:*"];
const CHANNELS: [&str; 2] = ["resetchannels", "&taskrunner:leader:*"];
const IN_SCRIPTS: [&str; 9] =
    ["+get", "+set", "+del", "+pttl", "+pexpire", "+hset", "+hdel", "+hmget", "+time"];
const COMMANDS: [&str; 3] = ["+eval", "+publish", "+subscribe"];
pub(crate) const OF_STRICT: [&str; 2] = ["+info", "+wait"];
pub(crate) const OF_CLUSTER: [&str; 1] = ["+asking"];
pub(crate) const OF_SENTINEL: [&str; 3] = ["-@all", "+sentinel|get-master-addr-by-name", "+sentinel|master"];

pub(crate) fn rights() -> Vec<&'static str> {
    [&KEYS[..], &CHANNELS, &["-@all"], &COMMANDS, &IN_SCRIPTS].concat()
}

fn without(right: &str) -> Vec<&'static str> {
    rights().into_iter().filter(|other| *other != right).collect()
}

/// A user's name that goes into a URL as it is.
fn user_without(right: &str) -> String {
    right
        .chars()
        .map(|c| {
            if c.is_alphanumeric() {
                c
            } else if c == '{' {
                'b'
            } else {
                'x'
            }
        })
        .collect()
}

/// Makes a user of exactly these rights, whose password is its name.
pub(crate) fn set_user(server: &Server, user: &str, rights: &[&str]) {
    server.command(&["ACL", "DELUSER", user]);
    let password = format!(">{user}");
    let command = [&["ACL", "SETUSER", user, "on", &password], rights].concat();
    assert_eq!(server.command(&command).text(), "OK");
}

fn url(server: &Server, user: &str) -> String {
    server.url().replace("redis://", &format!("redis://{user}:{user}@"))
}

fn builder(url: &str, group: &str) -> Builder {
    Elector::builder(RedisStore::open(url).expect("a good url"), group)
}

#[track_caller]
pub(crate) fn leads(elector: &Elector) -> u64 {
    elector.wait_for_leadership(CAP).unwrap_or_else(|error| panic!("{}", error.to_chain())).token()
}

#[track_caller]
pub(crate) fn follows(elector: &Elector) {
    eventually(CAP, || match elector.status().leader {
        Some(leader) if leader.id != elector.id() => Ok(()),
        other => Err(other),
    });
}

/// Waits until the elector has had this many more renewals answered.
#[track_caller]
pub(crate) fn renews(elector: &Elector, times: u64) {
    let from = elector.status().counters.renewals;
    eventually(CAP, || match elector.status().counters.renewals {
        now if now >= from + times => Ok(()),
        now => Err(now - from),
    });
}

#[test]
fn the_documentation_names_the_rights_that_are_tested() {
    let text = include_str!("../src/election/store/redis/mod.rs");
    for right in rights().into_iter().chain(OF_STRICT).chain(OF_CLUSTER).chain(OF_SENTINEL) {
        assert!(text.contains(right), "{right}");
    }
}

#[test]
fn an_election_works_with_exactly_the_rights_that_are_documented() {
    let server = Server::start();
    set_user(&server, "svc", &rights());
    let (group, url) = (unique_group("rights"), url(&server, "svc"));
    let start = |ttl| builder(&url, &group).ttl(ttl).wait(2 * CAP).start().expect("good options");
    let first = start(2000 * MS);
    let before = leads(&first);
    renews(&first, 1);
    // Only the wake brings the second one to the lead in time.
    let second = start(2 * CAP);
    follows(&second);
    let mut admin = server.admin();
    let channel = format!("{}:wake", first.key());
    eventually(CAP, || match admin.command(&["PUBSUB", "NUMSUB", &channel]).list()[1].int() {
        2 => Ok(()),
        listeners => Err(listeners),
    });
    first.stop().expect("released");
    assert!(leads(&second) > before);
    let store = RedisStore::open(&url).expect("a good url");
    assert_eq!(inspect(&store, &group).expect("it may look").leader.expect("one leads").id, second.id());
    second.stop().expect("released");
    // And where the last one vanished: a lease that ends by itself.
    admin.command(&["SET", second.key(), "foreign", "PX", "300"]);
    let third = start(2000 * MS);
    leads(&third);
    for elector in [&first, &second, &third] {
        let errors: Vec<_> = elector.on_error().try_iter().map(|error| error.to_chain()).collect();
        assert!(errors.is_empty(), "{errors:?}");
    }
}

#[test]
fn a_database_and_strict_need_the_rights_that_are_documented_for_them() {
    let server = Server::start();
    set_user(&server, "all", &[&rights()[..], &OF_STRICT, &["+select"]].concat());
    let group = unique_group("more");
    let elector = builder(&format!("{}/3", url(&server, "all").trim_end_matches('/')), &group);
    let ttl = 500 * MS;
    let strict = |replicas| Strict::replicas(replicas).longest_ttl(ttl);
    let elector = elector.ttl(ttl).strict(strict(0)).start().expect("good options");
    leads(&elector);
    elector.stop().expect("released");
    for (right, replicas, database) in [("select", 0, "3"), ("info", 0, ""), ("wait", 1, "")] {
        let user = format!("no-{right}");
        let held = [&rights()[..], &OF_STRICT, &["+select"]].concat();
        set_user(&server, &user, &[&held[..], &[&format!("-{right}")]].concat());
        let url = format!("{}{database}", url(&server, &user));
        let elector = builder(&url, &unique_group(right)).ttl(ttl).wait(100 * MS).strict(strict(replicas));
        let elector = elector.start().expect("good options");
        expect_named(&elector, right, &[right, &right.to_uppercase()], None);
        assert!(!elector.is_leader(), "without {right}");
    }
}

/// That an error of kind configuration names it, again and again and no more often than every wait (of 100 ms).
#[track_caller]
pub(crate) fn expect_named(elector: &Elector, right: &str, names: &[&str], operation: Option<Operation>) {
    let (errors, from) = (elector.on_error(), Instant::now());
    let next = || errors.recv_deadline(from + CAP).unwrap_or_else(|_| panic!("{right}: no such error"));
    let told = std::iter::repeat_with(next);
    let fits = |error: &Error| operation.is_none() || error.operation() == operation;
    for error in told.filter(fits).take(4) {
        let chain = error.to_chain();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{right}: {chain}");
        assert!(names.iter().any(|name| chain.contains(name)), "{chain:?} does not name {right}");
    }
    assert!(from.elapsed() >= 100 * MS, "{right}: a hot loop");
}

#[test]
fn each_right_that_is_missing_is_named_and_leaves_the_lease_to_those_who_have_it() {
    let server = Server::start();
    thread::scope(|scope| {
        for right in [&KEYS[..], &["+eval"], &IN_SCRIPTS].concat() {
            let server = &server;
            scope.spawn(move || {
                let (user, group) = (user_without(right), unique_group("missing"));
                set_user(server, &user, &without(right));
                let limited = builder(&url(server, &user), &group).ttl(300 * MS).wait(100 * MS).start();
                let limited = limited.expect("good options");
                let name = right.trim_start_matches('+');
                expect_named(&limited, right, &[name], Some(Operation::Acquire));
                let other = builder(&server.url(), &group).ttl(300 * MS).start().expect("good options");
                leads(&other);
                renews(&other, 1);
                assert_eq!(limited.status().counters.promotions, 0, "without {right}");
            });
        }
    });
}

#[test]
fn a_missing_right_for_wakes_is_named_and_costs_no_more_than_time() {
    let server = Server::start();
    for (right, names) in [("+subscribe", "subscribe"), (CHANNELS[1], CHANNELS[1])] {
        let user = user_without(right);
        set_user(&server, &user, &without(right));
        let elector = builder(&url(&server, &user), &unique_group("wakes")).wait(100 * MS).start();
        let elector = elector.expect("good options");
        leads(&elector);
        let error = elector.on_error().recv_timeout(CAP).expect("it is told");
        let chain = error.to_chain();
        assert_eq!(
            (error.kind(), error.operation()),
            (ErrorKind::Configuration, Some(Operation::Wake)),
            "{chain}"
        );
        assert!(chain.contains(names), "{chain}");
        elector.stop().expect("released");
    }
    // Told by a warning only, for the release itself has succeeded.
    set_user(&server, "mute", &without("+publish"));
    let elector = builder(&url(&server, "mute"), &unique_group("mute")).start().expect("good options");
    leads(&elector);
    elector.stop().expect("released");
    assert_eq!(server.command(&["EXISTS", elector.key()]).int(), 0);
}

/// Two never lead, and the lease comes to the one who has the rights.
#[test]
fn whichever_right_is_taken_from_a_leader_another_one_leads_after_it() {
    let server = Server::start();
    thread::scope(|scope| {
        for right in [&KEYS[..], &["+eval"], &IN_SCRIPTS].concat() {
            let server = &server;
            scope.spawn(move || {
                let (user, group) = (user_without(right), unique_group("taken"));
                set_user(server, &user, &rights());
                let limited = builder(&url(server, &user), &group).ttl(1000 * MS).wait(100 * MS).start();
                let limited = limited.expect("good options");
                let before = leads(&limited);
                let other = builder(&server.url(), &group).ttl(1000 * MS).wait(100 * MS).start();
                let other = other.expect("good options");
                follows(&other);
                let demotions = limited.on_demote();
                set_user(server, &user, &without(right));
                if ["+set", "+hset", "+time", "+del"].contains(&right) {
                    // Renewals go on without it, and it may be that it cannot release.
                    limited.stop().ok();
                }
                let demotion = demotions.recv_timeout(CAP).expect("the term ends");
                assert_eq!(demotion.token, before, "{right}");
                let after = leads(&other);
                assert!(!limited.is_leader() && after > before, "{right}: there are two");
            });
        }
    });
}

/// A password that a test changes, and a function that knows it.
#[derive(Clone)]
struct Vault(Arc<Mutex<String>>);

impl Vault {
    fn give(&self) -> io::Result<Credentials> {
        Ok(Credentials::new(Some("svc"), &self.0.lock().expect("no panic")))
    }
}

/// Changes the password and throws out who logged in with the old one.
fn rotate(server: &Server, password: &str) {
    let password = format!(">{password}");
    assert_eq!(server.command(&["ACL", "SETUSER", "svc", "resetpass", &password]).text(), "OK");
    server.command(&["CLIENT", "KILL", "USER", "svc"]);
}

#[test]
fn a_password_that_changes_mid_term_costs_nothing_where_a_function_knows_the_new_one() {
    let server = Server::start();
    set_user(&server, "svc", &rights());
    let vault = Vault(Arc::new(Mutex::new("svc".to_owned())));
    let (known, ttl) = (vault.clone(), 3000 * MS);
    // The URL's are not used.
    let url = server.url().replace("redis://", "redis://nobody:nothing@");
    let store = RedisStore::open(&url).expect("a good url").with_credentials(move || known.give());
    let (group, retry) = (unique_group("rotated"), RenewError::Retry);
    let elector = Elector::builder(store, &group).ttl(ttl).renew_error(retry).start().expect("good options");
    let leadership = elector.wait_for_leadership(CAP).expect("leads");
    for password in ["second-secret", "third-secret"] {
        password.clone_into(&mut vault.0.lock().expect("no panic"));
        rotate(&server, password);
        renews(&elector, 2);
        assert!(leadership.is_valid());
    }
    // One that is not told of it.
    let old = Elector::builder(
        RedisStore::open(&server.url().replace("redis://", "redis://svc:third-secret@")).expect("a good url"),
        unique_group("not-told"),
    );
    let old = old.ttl(ttl).wait(100 * MS).renew_error(retry).start().expect("good options");
    leads(&old);
    "fourth-secret".clone_into(&mut vault.0.lock().expect("no panic"));
    rotate(&server, "fourth-secret");
    expect_named(&old, "the password", &["WRONGPASS"], None);
    let demotion = old.on_demote().recv_timeout(CAP).expect("the lease cannot be renewed");
    assert_eq!(demotion.reason, Reason::Expired);
    renews(&elector, 1);
    assert!(leadership.is_valid());
    let shown = format!("{:?} {:?}", old.on_error().try_iter().collect::<Vec<_>>(), vault.give());
    assert!(!shown.contains("secret"), "{shown}");
}

#[test]
fn a_function_for_credentials_that_fails_panics_or_hangs_is_bounded_and_its_last_answer_used() {
    let server = Server::start();
    set_user(&server, "svc", &rights());
    let (hold, held) = crossbeam_channel::bounded::<()>(0);
    let (calls, running, most) =
        (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (called, ran, high) = (Arc::clone(&calls), Arc::clone(&running), Arc::clone(&most));
    let store = RedisStore::open(&server.url()).expect("a good url").with_credentials(move || {
        high.fetch_max(ran.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let call = called.fetch_add(1, Ordering::SeqCst);
        let result = match call % 4 {
            // The first two are those of the connections.
            _ if call < 2 => Ok(Credentials::new(Some("svc"), "svc")),
            1 => Err(io::Error::other("the vault is sealed")),
            2 => {
                ran.fetch_sub(1, Ordering::SeqCst);
                panic!("the vault is broken")
            }
            3 => {
                held.recv().ok();
                Err(io::Error::other("the vault was away"))
            }
            _ => Err(io::Error::other("the vault is empty")),
        };
        ran.fetch_sub(1, Ordering::SeqCst);
        result
    });
    let elector =
        Elector::builder(store, unique_group("vault")).ttl(3000 * MS).renew_error(RenewError::Retry);
    let elector = elector.start().expect("good options");
    let leadership = elector.wait_for_leadership(CAP).expect("leads");
    for _ in 0..4 {
        let before = calls.load(Ordering::SeqCst);
        server.command(&["CLIENT", "KILL", "USER", "svc"]);
        renews(&elector, 1);
        assert!(calls.load(Ordering::SeqCst) > before || running.load(Ordering::SeqCst) == 1);
        assert!(leadership.is_valid(), "after {before} calls");
    }
    eventually(CAP, || match running.load(Ordering::SeqCst) {
        1 => Ok(()),
        running => {
            server.command(&["CLIENT", "KILL", "USER", "svc"]);
            Err(running)
        }
    });
    renews(&elector, 1);
    assert_eq!(most.load(Ordering::SeqCst), 1, "two calls at once");
    let stopped = elector.stop().expect_err("a call is running");
    assert_eq!(stopped.kind(), ErrorKind::Overrun, "{}", stopped.to_chain());
    drop(hold);
    eventually(CAP, || match running.load(Ordering::SeqCst) {
        0 => Ok(()),
        running => Err(running),
    });
    elector.stop().expect("the thread has ended, and the lease was released");
}

#[test]
fn a_function_for_credentials_that_has_given_none_yet_is_an_error_that_may_pass() {
    let server = Server::start();
    let (hold, held) = crossbeam_channel::bounded::<()>(0);
    type Give = Box<dyn Fn() -> io::Result<Credentials> + Send + Sync>;
    let cases: [(&str, Give); 3] = [
        ("sealed", Box::new(|| Err(io::Error::other("the vault is sealed")))),
        ("panicked", Box::new(|| panic!("the vault is broken"))),
        (
            "took longer",
            Box::new(move || {
                held.recv().ok();
                Err(io::Error::other("it was away"))
            }),
        ),
    ];
    for (part, give) in cases {
        let store = RedisStore::open(&server.url()).expect("a good url").with_credentials(give);
        let elector = Elector::builder(store, unique_group("none")).ttl(2000 * MS).wait(100 * MS).start();
        let elector = elector.expect("good options");
        let error = elector.on_error().recv_timeout(CAP).expect("it is told");
        let chain = error.to_chain();
        assert_eq!(
            (error.kind(), error.operation()),
            (ErrorKind::Passing, Some(Operation::Connect)),
            "{chain}"
        );
        assert!(chain.contains("asking for the credentials") && chain.contains(part), "{chain}");
    }
    // The thread that waits ends with the test.
    drop(hold);
}
