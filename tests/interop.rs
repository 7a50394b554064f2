//! One group together with what is not ours: instances of another implementation, operators, users with few
//! rights, other databases.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use taskrunner::election::{
    Builder, Elector, ErrorKind, Event, MemoryStore, Operation, Reason, RedisStore, RenewError,
};

use crate::support::{Admin, Reply, Server, eventually, unique_group};

/// Longer than anything takes that is to happen, on the slowest machine.
const CAP: Duration = Duration::from_secs(30);

const MS: Duration = Duration::from_millis(1);

/// What the Go implementation sends to renew and to release: both check the lease's value and nothing else.
const GO_RENEW: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) else return 0 end";
const GO_RELEASE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// What the server's own clock says in µs when the lease ends. Inside a script its time stands still.
const LEASE_END: &str = "local now = redis.call('TIME')
    return (now[1] * 1000 + math.floor(now[2] / 1000) + redis.call('PTTL', KEYS[1])) * 1000";

/// An instance of the Go implementation: it knows the lease key, and neither the term key nor the wake.
struct GoInstance {
    connection: Admin,
    key: String,
    id: &'static str,
    ttl: Duration,
}

impl GoInstance {
    fn new(connection: Admin, key: &str, id: &'static str, ttl: Duration) -> Self {
        Self { connection, key: key.to_owned(), id, ttl }
    }

    #[track_caller]
    fn acquire(&mut self) -> bool {
        let ttl = self.ttl.as_millis().to_string();
        match self.connection.command(&["SET", &self.key, self.id, "NX", "PX", &ttl]) {
            Reply::Nil => false,
            reply => reply.text() == "OK",
        }
    }

    #[track_caller]
    fn renew(&mut self) -> bool {
        let ttl = self.ttl.as_millis().to_string();
        self.connection.command(&["EVAL", GO_RENEW, "1", &self.key, self.id, &ttl]).int() == 1
    }

    #[track_caller]
    fn release(&mut self) -> bool {
        self.connection.command(&["EVAL", GO_RELEASE, "1", &self.key, self.id]).int() == 1
    }
}

fn builder(url: &str, group: &str) -> Builder {
    Elector::builder(RedisStore::open(url).expect("a good url"), group)
}

/// The lease key of a group, without an elector that contends on the test's server.
fn key_of(group: &str) -> String {
    Elector::builder(MemoryStore::new(), group).start().expect("good options").key().to_owned()
}

fn term_of(key: &str) -> String {
    format!("{{{key}}}:term")
}

/// Waits for an event that `pick` takes, and throws away those before it.
#[track_caller]
fn next<T>(events: &Receiver<Event>, what: &str, mut pick: impl FnMut(&Event) -> Option<T>) -> T {
    let until = Instant::now() + CAP;
    let mut seen = Vec::new();
    loop {
        match events.recv_deadline(until) {
            Ok(event) => match pick(&event) {
                Some(found) => return found,
                None => seen.push(event),
            },
            Err(error) => panic!("no event {what} within {CAP:?} ({error}); these came: {seen:?}"),
        }
    }
}

#[track_caller]
fn next_leader(events: &Receiver<Event>, id: &str) -> Option<u64> {
    next(events, &format!("that {id} leads"), |event| match event {
        Event::LeaderChanged(Some(leader)) if leader.id == id => Some(leader.token),
        _ => None,
    })
}

/// Takes errors of an elector that was started at `started`. Each must be of kind configuration and name one of
/// the causes, and they must lie `wait` apart: `nth` counts from the elector's first one.
#[track_caller]
fn expect_configuration_errors(
    elector: &Elector,
    started: Instant,
    wait: Duration,
    nths: std::ops::RangeInclusive<u32>,
    causes: &[&str],
) {
    for nth in nths {
        // The channel of the wakes has an error of its own, told at its own times.
        let told = || elector.on_error().recv_timeout(CAP).expect("an error is told");
        let error = std::iter::repeat_with(told).find(|error| error.operation() != Some(Operation::Wake));
        let error = error.expect("told() never ends");
        let chain = error.to_chain();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{chain}");
        assert!(causes.iter().any(|cause| chain.contains(cause)), "{chain} names none of {causes:?}");
        // The first comes at once. Each other comes `wait` after the one before, so never earlier than this.
        assert!(started.elapsed() >= wait * (nth - 1), "error {nth} came after {:?}", started.elapsed());
    }
}

fn calls(admin: &mut Admin, command: &str) -> u32 {
    let info = admin.command(&["INFO", "commandstats"]);
    let prefix = format!("cmdstat_{command}:calls=");
    let line = info.text().lines().find_map(|line| line.strip_prefix(&prefix));
    line.and_then(|line| line.split(',').next()).map_or(0, |calls| calls.parse().expect("a number"))
}

/// Waits until an elector's lease was renewed after this call began.
#[track_caller]
fn wait_for_renewal(admin: &mut Admin, key: &str) {
    let pttl = |admin: &mut Admin| admin.command(&["PTTL", key]).int();
    let mut last = pttl(admin);
    eventually(CAP, || {
        let now = pttl(admin);
        let renewed = now > last;
        last = now;
        if renewed { Ok(()) } else { Err(now) }
    });
}

#[test]
fn a_lease_written_by_a_plain_set_is_respected_until_it_ends_and_is_then_won() {
    let server = Server::start();
    let group = unique_group("plain-set");
    let key = key_of(&group);
    let mut admin = server.admin();
    assert_eq!(admin.command(&["SET", &key, "foreign", "NX", "PX", "1500"]).text(), "OK");
    let end_us = admin.command(&["EVAL", LEASE_END, "1", &key]).int();
    let elector = builder(&server.url(), &group).start().expect("good options");
    let events = elector.events();
    assert_eq!(next_leader(&events, "foreign"), None, "a foreign holder has no token");
    assert!(!elector.is_leader());
    let leadership = elector.wait_for_leadership(CAP).expect("leads in the end");
    // Both times are the server's, so this holds however late the test looks.
    let since_us: i64 = admin.command(&["HGET", &term_of(&key), "since"]).text().parse().expect("a number");
    assert!(since_us > end_us, "won {} µs before the lease ended", end_us - since_us);
    assert_eq!(admin.command(&["GET", &key]).text(), elector.id());
    assert_eq!(next_leader(&events, elector.id()), Some(leadership.token()));
    elector.stop().expect("released");
}

#[test]
fn nothing_that_another_implementation_sends_takes_the_lease_from_a_leader() {
    let server = Server::start();
    let group = unique_group("go-loses");
    let elector = builder(&server.url(), &group).ttl(2000 * MS).start().expect("good options");
    let token = elector.wait_for_leadership(CAP).expect("leads").token();
    let hour = Duration::from_secs(3600);
    let mut go = GoInstance::new(server.admin(), elector.key(), "go", hour);
    let mut admin = server.admin();
    // Through two renewals, so that the leader has found out by itself if anything was changed.
    for _ in 0..2 {
        assert!(!go.acquire() && !go.renew() && !go.release());
        assert_eq!(admin.command(&["GET", elector.key()]).text(), elector.id());
        let left = admin.command(&["PTTL", elector.key()]).int();
        assert!((1..=2000).contains(&left), "{left} ms are left of a lease of 2 s");
        wait_for_renewal(&mut admin, elector.key());
    }
    assert_eq!(elector.leadership().map(|leadership| leadership.token()), Some(token));
    assert!(elector.on_demote().is_empty() && elector.on_error().is_empty());
    elector.stop().expect("released");
    assert!(go.acquire(), "after the release it is another's turn");
}

#[test]
fn a_foreign_holder_that_renews_keeps_the_lease_and_hands_it_over_by_its_release() {
    let server = Server::start();
    let group = unique_group("go-holds");
    let mut go = GoInstance::new(server.admin(), &key_of(&group), "go", 2000 * MS);
    assert!(go.acquire());
    let elector = builder(&server.url(), &group).wait(100 * MS).start().expect("good options");
    let events = elector.events();
    assert_eq!(next_leader(&events, "go"), None);
    let until = Instant::now() + 3000 * MS;
    while Instant::now() < until {
        // Far more often than at half the ttl, for the machine may be busy.
        thread::sleep(200 * MS);
        assert!(go.renew(), "the lease of a holder that renews was taken");
        assert!(!elector.is_leader());
    }
    assert!(elector.on_promote().is_empty());
    let key = elector.key().to_owned();
    let mut admin = server.admin();
    assert!(go.release());
    let leadership = elector.wait_for_leadership(CAP).expect("the lease is free");
    assert_eq!(admin.command(&["GET", &key]).text(), elector.id());
    assert!(!go.renew() && !go.release(), "what comes late touches nothing");
    assert!(leadership.is_valid());
}

#[test]
fn a_lease_that_an_operator_deletes_is_lost_and_won_anew_with_a_larger_token() {
    let server = Server::start();
    let group = unique_group("operator");
    let elector = builder(&server.url(), &group).ttl(1000 * MS).start().expect("good options");
    let events = elector.events();
    let before = elector.wait_for_leadership(CAP).expect("leads");
    let mut admin = server.admin();
    for (what, script) in
        [("deleted", GO_RELEASE), ("given to another", "redis.call('SET', KEYS[1], 'other', 'PX', 50)")]
    {
        let leadership = elector.wait_for_leadership(CAP).expect("leads");
        admin.command(&["EVAL", script, "1", elector.key(), elector.id()]);
        let demotion = next(&events, "demoted", |event| match event {
            Event::Demoted(demotion) => Some(demotion.clone()),
            _ => None,
        });
        assert_eq!((demotion.token, demotion.reason), (leadership.token(), Reason::Lost), "{what}");
        assert!(!leadership.is_valid());
        let after = next(&events, "promoted", |event| match event {
            Event::Promoted(leadership) => Some(leadership.clone()),
            _ => None,
        });
        assert!(after.token() > leadership.token(), "{what}");
        assert!(after.token() > before.token() && !before.is_valid());
        assert_eq!(admin.command(&["GET", elector.key()]).text(), elector.id());
        let recorded = admin.command(&["HGET", &term_of(elector.key()), "token"]);
        assert_eq!(recorded.text(), after.token().to_string());
    }
}

#[test]
fn a_mixed_group_has_one_holder_and_starves_nobody() {
    const TERMS: usize = 5;
    let server = Server::start();
    let group = unique_group("mixed");
    let (ttl, wait) = (600 * MS, 50 * MS);
    let elector = builder(&server.url(), &group).ttl(ttl).wait(wait).start().expect("good options");
    let events = elector.events();
    let mut go = GoInstance::new(server.admin(), elector.key(), "go", ttl);
    let (done, is_done) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let elector = &elector;
        let go_terms = scope.spawn(move || {
            let mut terms = 0;
            loop {
                let asked = Instant::now();
                if go.acquire() {
                    terms += 1;
                    // The lease is its own for a ttl from when it asked. A reading that is true after a stall
                    // that is longer proves nothing.
                    let leads = elector.is_leader();
                    assert!(!leads || asked.elapsed() > ttl, "both hold the lease");
                    thread::sleep(ttl / 2);
                    go.renew();
                    thread::sleep(ttl / 4);
                    go.release();
                }
                if is_done.recv_timeout(wait) != Err(mpsc::RecvTimeoutError::Timeout) {
                    return terms;
                }
            }
        });
        let mut tokens = Vec::new();
        let started = Instant::now();
        let mut seen_go = 0;
        while tokens.len() < TERMS || seen_go < TERMS {
            assert!(started.elapsed() < 2 * CAP, "{} terms of ours, {seen_go} of the other", tokens.len());
            match events.recv_timeout(CAP).expect("the lease changes hands") {
                Event::Promoted(leadership) => {
                    tokens.push(leadership.token());
                    // A term of about a ttl, so that it was renewed, unless it is lost before.
                    leadership.lost().recv_timeout(ttl).expect_err("nothing is ever sent there");
                    elector.step_down(wait).expect("the server answers");
                }
                Event::LeaderChanged(Some(leader)) if leader.id == "go" => {
                    assert_eq!(leader.token, None, "a token of an earlier term was taken for the other's");
                    seen_go += 1;
                }
                Event::Error(error) => panic!("{}", error.to_chain()),
                _ => {}
            }
        }
        drop(done);
        let go_terms = go_terms.join().expect("no panic");
        assert!(go_terms >= TERMS, "{go_terms} terms of the other");
        assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    });
}

/// Puts two foreign instances through a whole handover on a server on which ours can do nothing.
#[track_caller]
fn others_elect(elector: &Elector, connect: impl Fn() -> Admin) {
    let [mut one, mut two] =
        ["one", "two"].map(|id| GoInstance::new(connect(), elector.key(), id, Duration::from_secs(60)));
    assert!(one.acquire() && !two.acquire());
    assert!(one.renew() && !two.renew() && !two.release());
    assert!(!elector.is_leader());
    assert!(one.release() && two.acquire() && !one.acquire() && two.release());
}

#[test]
fn a_term_key_of_the_wrong_type_is_a_configuration_error_and_starves_nobody() {
    let server = Server::start();
    let group = unique_group("wrong-type");
    let (key, wait) = (key_of(&group), 100 * MS);
    let mut admin = server.admin();
    admin.command(&["SET", &term_of(&key), "not a hash"]);
    let started = Instant::now();
    let elector = builder(&server.url(), &group).wait(wait).start().expect("good options");
    expect_configuration_errors(&elector, started, wait, 1..=5, &["WRONGTYPE"]);
    assert_eq!(admin.command(&["EXISTS", &key]).int(), 0, "a lease was left behind");
    others_elect(&elector, || server.admin());
    // Four commands of the others stand among ours, and one of ours may be on its way.
    let sent = calls(&mut admin, "eval");
    let most = (started.elapsed().as_millis() / wait.as_millis()) as u32 + 6;
    assert!(sent <= most, "{sent} scripts in {:?}: a hot loop", started.elapsed());
    expect_configuration_errors(&elector, started, wait, 6..=7, &["WRONGTYPE"]);
    assert_eq!(admin.command(&["EXISTS", &key]).int(), 0, "a lease was left behind");
    assert_eq!(admin.command(&["GET", &term_of(&key)]).text(), "not a hash");
    admin.command(&["DEL", &term_of(&key)]);
    elector.wait_for_leadership(CAP).expect("leads once somebody has put it right");
}

#[test]
fn a_user_with_too_few_rights_is_a_configuration_error_and_starves_nobody() {
    const GO_RIGHTS: [&str; 8] =
        [">pw", "~taskrunner:leader:*", "+set", "+get", "+pexpire", "+del", "+eval", "+evalsha"];
    // The texts differ between the versions of the server.
    let commands = ["can't run this command", "ACL failure in script"];
    for (more, causes) in [
        // The term key is out of reach.
        (&[][..], &["ermissions"][..]),
        // The term key is there, and no command for it.
        (&["~{taskrunner:leader:*"], &commands),
        // All that an acquire reads with, and nothing that it writes the term with.
        (&["~{taskrunner:leader:*", "+hdel", "+hmget", "+time", "+pttl"], &commands),
    ] {
        let server = Server::start();
        let mut admin = server.admin();
        let set_user = |admin: &mut Admin, rights: &[&str]| {
            let command = ["ACL", "SETUSER", "go", "on"].iter().chain(rights).copied().collect::<Vec<_>>();
            assert_eq!(admin.command(&command).text(), "OK");
        };
        set_user(&mut admin, &GO_RIGHTS);
        set_user(&mut admin, more);
        let (group, wait) = (unique_group("rights"), 100 * MS);
        let url = format!("redis://go:pw@127.0.0.1:{}", server.port());
        let started = Instant::now();
        let elector = builder(&url, &group).wait(wait).start().expect("good options");
        expect_configuration_errors(&elector, started, wait, 1..=4, causes);
        assert_eq!(admin.command(&["EXISTS", elector.key()]).int(), 0, "a lease was left behind: {more:?}");
        others_elect(&elector, || {
            let mut connection = server.admin();
            assert_eq!(connection.command(&["AUTH", "go", "pw"]).text(), "OK");
            connection
        });
        expect_configuration_errors(&elector, started, wait, 5..=6, causes);
        assert_eq!(admin.command(&["EXISTS", elector.key()]).int(), 0, "a lease was left behind: {more:?}");
        assert_eq!(admin.command(&["EXISTS", &term_of(elector.key())]).int(), 0, "half a term: {more:?}");
        set_user(&mut admin, &["~{taskrunner:leader:*", "+hdel", "+hmget", "+hset", "+time", "+pttl"]);
        elector.wait_for_leadership(CAP).expect("leads once it has the rights");
        elector.stop().expect("released, though it may not publish");
        assert_eq!(admin.command(&["EXISTS", elector.key()]).int(), 0);
    }
}

#[test]
fn a_lease_without_expiry_is_a_configuration_error_that_names_key_and_holder() {
    let server = Server::start();
    let group = unique_group("unending");
    let (key, wait) = (key_of(&group), 100 * MS);
    let mut admin = server.admin();
    admin.command(&["SET", &key, "forever"]);
    let started = Instant::now();
    let elector = builder(&server.url(), &group).wait(wait).start().expect("good options");
    expect_configuration_errors(&elector, started, wait, 1..=3, &["held by forever without an expiry"]);
    expect_configuration_errors(&elector, started, wait, 4..=5, &[&key]);
    let sent = calls(&mut admin, "eval");
    let most = (started.elapsed().as_millis() / wait.as_millis()) as u32 + 2;
    assert!(sent <= most, "{sent} scripts in {:?}: a hot loop", started.elapsed());
    assert!(!elector.is_leader());
    assert_eq!(admin.command(&["GET", &key]).text(), "forever");
    assert_eq!(admin.command(&["PTTL", &key]).int(), -1);
    admin.command(&["DEL", &key]);
    elector.wait_for_leadership(CAP).expect("leads once the key is gone");
}

#[test]
fn two_databases_elect_separately_and_a_key_appears_in_its_own_only() {
    let server = Server::start();
    let group = unique_group("databases");
    let mut admins = [server.admin(), server.admin()];
    assert_eq!(admins[1].command(&["SELECT", "3"]).text(), "OK");
    // A connection may be killed while it is in use, and that is a renewal error.
    let electors = ["0", "3"].map(|database| {
        builder(&format!("{}{database}", server.url()), &group)
            .ttl(3000 * MS)
            .renew_error(RenewError::Retry)
            .start()
            .expect("good options")
    });
    let mut tokens =
        electors.each_ref().map(|elector| elector.wait_for_leadership(CAP).expect("leads").token());
    let expect_own_keys = |admins: &mut [Admin; 2]| {
        for (admin, elector) in admins.iter_mut().zip(&electors) {
            assert_eq!(admin.command(&["GET", elector.key()]).text(), elector.id());
            assert_eq!(admin.command(&["DBSIZE"]).int(), 2, "a lease key and a term key");
        }
        let info = admins[0].command(&["INFO", "keyspace"]);
        let used: Vec<_> = info.text().lines().filter_map(|line| Some(line.split_once(':')?.0)).collect();
        assert_eq!(used, ["db0", "db3"]);
    };
    expect_own_keys(&mut admins);
    for round in 0..3 {
        // The next operation of each goes over a new connection: a renewal, and in the end an acquire.
        assert!(admins[0].command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).int() >= 2);
        admins[1] = server.admin();
        admins[1].command(&["SELECT", "3"]);
        if round == 2 {
            let [other, own] = &mut admins;
            own.command(&["DEL", electors[1].key()]);
            let lost = electors[1].on_demote().recv_timeout(CAP).expect("the lease was deleted");
            assert_eq!(lost.reason, Reason::Lost);
            let again = electors[1].wait_for_leadership(CAP).expect("leads again").token();
            assert!(again > tokens[1]);
            tokens[1] = again;
            wait_for_renewal(other, electors[0].key());
        }
        for (admin, elector) in admins.iter_mut().zip(&electors) {
            wait_for_renewal(admin, elector.key());
        }
        expect_own_keys(&mut admins);
        for (elector, token) in electors.iter().zip(tokens) {
            assert_eq!(
                elector.leadership().map(|leadership| leadership.token()),
                Some(token),
                "round {round}"
            );
        }
    }
    for elector in &electors {
        elector.stop().expect("released");
    }
    let info = admins[0].command(&["INFO", "keyspace"]);
    assert_eq!(info.text().matches("keys=1,").count(), 2, "only the term keys stay: {}", info.text());
}

/// The connections of electors, but for those that only listen for wakes.
fn our_clients(admin: &mut Admin) -> Vec<String> {
    let list = admin.command(&["CLIENT", "LIST"]);
    let ours = |line: &&str| line.contains(" name=taskrunner ") && !line.contains(" cmd=subscribe ");
    list.text().lines().filter(ours).map(str::to_owned).collect()
}

#[test]
fn user_and_password_of_a_url_are_percent_encoded() {
    let server = Server::with(&["--requirepass", "p@ss:w/r%d#?"]);
    let mut admin = server.admin();
    assert_eq!(admin.command(&["AUTH", "p@ss:w/r%d#?"]).text(), "OK");
    let rights = ["ACL", "SETUSER", "us/er@x:", "on", ">s&c=r+t %41", "~*", "&*", "+@all"];
    assert_eq!(admin.command(&rights).text(), "OK");
    let (port, socket) = (server.port(), server.socket());
    let socket = socket.display();
    for (url, user) in [
        (format!("redis://:p%40ss%3Aw%2Fr%25d%23%3F@127.0.0.1:{port}"), "default"),
        (format!("redis://us%2Fer%40x%3A:s%26c%3Dr%2Bt%20%2541@127.0.0.1:{port}/0"), "us/er@x:"),
        (format!("unix://{socket}?pass=p%40ss%3Aw%2Fr%25d%23%3F"), "default"),
        (format!("redis+unix://{socket}?user=us%2Fer%40x%3A&pass=s%26c%3Dr%2Bt%20%2541&db=5"), "us/er@x:"),
    ] {
        let elector = builder(&url, &unique_group("login")).start().expect("good options");
        elector.wait_for_leadership(CAP).unwrap_or_else(|error| panic!("{url}: {}", error.to_chain()));
        let clients = our_clients(&mut admin);
        assert!(clients.len() == 1 && clients[0].contains(&format!(" user={user} ")), "{url}: {clients:?}");
        elector.stop().expect("released");
        eventually(CAP, || match our_clients(&mut admin) {
            clients if clients.is_empty() => Ok(()),
            clients => Err(clients),
        });
    }
    let wrong = format!("redis://us%2Fer%40x%3A:hunter2@127.0.0.1:{port}");
    let elector = builder(&wrong, &unique_group("login")).start().expect("good options");
    let error = elector.on_error().recv_timeout(CAP).expect("an error is told");
    assert_eq!((error.kind(), error.operation()), (ErrorKind::Configuration, Some(Operation::Connect)));
    let shown = format!("{} {error:?} {elector:?}", error.to_chain());
    assert!(shown.contains("WRONGPASS") && !shown.contains("hunter2"), "{shown}");
}

#[test]
fn a_unix_socket_elects_together_with_a_port() {
    let server = Server::start();
    let group = unique_group("unix");
    let (ttl, wait) = (2000 * MS, 50 * MS);
    let unix = builder(&server.unix_url(), &group).ttl(ttl).wait(wait).start().expect("good options");
    let first = unix.wait_for_leadership(CAP).expect("leads").token();
    let tcp = builder(&server.url(), &group).ttl(ttl).wait(wait).start().expect("good options");
    assert_eq!(next_leader(&tcp.events(), unix.id()), Some(first));
    let clients = our_clients(&mut server.admin());
    let path = server.socket().display().to_string();
    assert_eq!(clients.iter().filter(|client| client.contains(&path)).count(), 1, "{clients:?}");
    unix.stop().expect("released");
    assert!(tcp.wait_for_leadership(CAP).expect("leads").token() > first);
}

#[test]
fn a_password_changed_mid_term_ends_the_term_at_the_next_reconnect_and_not_before() {
    let server = Server::start();
    let mut admin = server.admin();
    let set_password = |admin: &mut Admin, password: &str| {
        let command =
            ["ACL", "SETUSER", "svc", "on", "resetpass", &format!(">{password}"), "~*", "&*", "+@all"];
        assert_eq!(admin.command(&command).text(), "OK");
    };
    set_password(&mut admin, "old-secret");
    let url = format!("redis://svc:old-secret@127.0.0.1:{}", server.port());
    let group = unique_group("password");
    let (ttl, wait) = (1500 * MS, 100 * MS);
    let elector = builder(&url, &group).ttl(ttl).wait(wait).start().expect("good options");
    let token = elector.wait_for_leadership(CAP).expect("leads").token();
    // The one that listens for wakes may log in a moment after the leader was elected.
    eventually(CAP, || match admin.command(&["CLIENT", "LIST"]).text().matches(" user=svc ").count() {
        2 => Ok(()),
        connections => Err(connections),
    });
    set_password(&mut admin, "new-secret");
    for _ in 0..2 {
        wait_for_renewal(&mut admin, elector.key());
    }
    assert_eq!(elector.leadership().map(|leadership| leadership.token()), Some(token));
    assert!(elector.on_error().is_empty());

    let killed = Instant::now();
    // The one for operations and the one that listens for wakes.
    assert_eq!(admin.command(&["CLIENT", "KILL", "USER", "svc"]).int(), 2);
    let demotion = elector.on_demote().recv_timeout(CAP).expect("demoted");
    assert_eq!((demotion.token, demotion.reason), (token, Reason::RenewError));
    // The renewal's and the release's errors come at once; what follows is `wait` apart.
    expect_configuration_errors(&elector, killed, Duration::ZERO, 1..=2, &["WRONGPASS"]);
    expect_configuration_errors(&elector, killed, wait, 1..=4, &["WRONGPASS"]);
    assert!(!elector.is_leader());
    set_password(&mut admin, "old-secret");
    assert!(elector.wait_for_leadership(CAP).expect("leads again").token() > token);
    for error in elector.on_error().try_iter() {
        assert!(!error.to_chain().contains("secret"), "{}", error.to_chain());
    }
}
