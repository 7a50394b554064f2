//! Strict: when a win or a renewal counts, and when a lease is parked first.

use super::*;
use crate::election::store::redis::pack;
use crate::election::store::strict::Call;

/// The longest ttl of a group where it is waited out.
const LONGEST: Duration = Duration::from_millis(100);

impl Candidate {
    fn strict(mut self, replicas: u32) -> Self {
        self.strict = Some(Strictness { replicas, longest: self.ttl });
        self
    }

    /// The same in a group whose leases are short.
    fn briefly(mut self) -> Self {
        self.ttl = LONGEST;
        self.strict(0)
    }

    /// Finds that the lease must be parked first; for how long.
    #[track_caller]
    fn park(&mut self) -> Duration {
        let holding = held(self.acquire_above(0));
        assert_eq!((holding.holder.as_str(), holding.token), (&*format!("hold/{}", self.id), None));
        assert!(holding.is_parked());
        holding.remaining.expect("a hold ends")
    }

    /// Wins once the hold of the group's first start is over.
    #[track_caller]
    fn win_after_the_hold(&mut self, elapse: impl Fn(Duration)) -> u64 {
        let hold = self.park();
        elapse(hold);
        self.win()
    }

    /// The same, without the wait.
    #[track_caller]
    fn first_win(&mut self, server: &Server) -> u64 {
        self.park();
        self.end(server);
        self.win()
    }

    /// The lease or the hold is over, as if its time had passed.
    fn end(&self, server: &Server) {
        server.command(&["DEL", self.group.lease()]);
        server.command(&["HSET", self.group.term(), "until", "0"]);
    }
}

/// What every store does.
pub(super) fn contract(ground: &Ground<'_>) {
    the_first_start_is_a_hold_and_the_next_term_is_not(ground);
    a_hold_keeps_everybody_out_and_ends_by_itself(ground);
    an_instance_that_is_not_strict_is_followed_by_a_hold(ground);
}

fn the_first_start_is_a_hold_and_the_next_term_is_not(ground: &Ground<'_>) {
    let group = group();
    let (mut a, mut b) = (ground.candidate(&group, "a").briefly(), ground.candidate(&group, "b").briefly());
    let first = a.win_after_the_hold(ground.elapse);
    assert_eq!(held(b.acquire_above(0)).strict, a.strict);
    answers(a.release(first), Answer::Released);
    let second = b.win();
    assert!(second > first);
    (ground.elapse)(LONGEST);
    assert!(a.win() > second, "a lease that ended by itself");
}

fn a_hold_keeps_everybody_out_and_ends_by_itself(ground: &Ground<'_>) {
    let group = group();
    let (mut a, mut b) = (ground.candidate(&group, "a").briefly(), ground.candidate(&group, "b"));
    let begun = Instant::now();
    let hold = a.park();
    assert!(hold <= LONGEST && hold >= LONGEST / 2, "{hold:?}");
    let results = [a.acquire_above(0), a.renew(1), a.release(1), a.look(), b.acquire_above(0), b.look()];
    if begun.elapsed() >= LONGEST {
        // On a machine this slow the hold may have ended meanwhile.
        return;
    }
    results.into_iter().for_each(|result| assert!(held(result).is_parked()));
    (ground.elapse)(hold);
    // A late attempt is a ghost also where its instance has only parked.
    a.attempt = 0;
    answers(a.acquire_above(0), Answer::Ghost);
    a.win();
}

fn an_instance_that_is_not_strict_is_followed_by_a_hold(ground: &Ground<'_>) {
    let group = group();
    let (mut a, mut b) = (ground.candidate(&group, "a").briefly(), ground.candidate(&group, "b"));
    let token = a.win_after_the_hold(ground.elapse);
    answers(a.release(token), Answer::Released);
    let token = b.win();
    assert_eq!(held(a.acquire_above(0)).strict, None);
    answers(b.release(token), Answer::Released);
    assert!(a.win_after_the_hold(ground.elapse) > token);
}

/// The server is another one from now on, with the same data: as after a restart, or a promotion.
fn change_lineage(server: &Server) {
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    server.command(&["REPLICAOF", "NO", "ONE"]);
}

fn eventually(mut holds: impl FnMut() -> bool) {
    let from = Instant::now();
    while !holds() {
        assert!(from.elapsed() < BUDGET, "not within {BUDGET:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A replica that has all of it and follows.
fn replica_of(server: &Server) -> Server {
    // The default is to wait for 5 s for more replicas.
    server.command(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
    let replica = Server::with(&["--replicaof", "127.0.0.1", &server.port().to_string()]);
    let is_up = || replica.command(&["INFO", "replication"]).text().contains("master_link_status:up");
    eventually(is_up);
    // The primary counts it once it has acknowledged something.
    eventually(|| server.command(&["WAIT", "1", "100"]).int() >= 1);
    replica
}

fn lineage(server: &Server) -> String {
    let info = server.command(&["INFO", "replication"]);
    let id = info.text().lines().find_map(|line| line.strip_prefix("master_replid:"));
    id.expect("every server tells it").to_owned()
}

#[test]
fn on_another_data_set_also_an_own_leftover_is_parked() {
    let server = Server::start();
    let mut a = candidate(&server.url(), "a").strict(0);
    let first = a.first_win(&server);
    change_lineage(&server);
    a.park();
    assert_eq!(server.command(&["GET", a.group.lease()]).text(), "hold/a");
    assert!(matches!(a.renew(first), Ok(Answer::Held(holding)) if holding.is_parked()));
    a.end(&server);
    assert!(a.win() > first);
}

#[test]
fn a_lease_that_lives_on_is_recorded_once_its_renewals_were_acknowledged_for_the_longest_ttl() {
    let server = Server::start();
    let mut a = candidate(&server.url(), "a").strict(0);
    let token = a.first_win(&server);
    let (term, old) = (a.group.term().to_owned(), lineage(&server));
    assert_eq!(server.command(&["HGET", &term, "lineage"]).text(), old);
    change_lineage(&server);
    let new = lineage(&server);
    assert_ne!(new, old);
    for _ in 0..2 {
        assert!(matches!(a.renew(token), Ok(Answer::Renewed { .. })));
    }
    let recorded = server.command(&["HGET", &term, "lineage"]);
    assert_eq!(recorded.text(), old, "what the old data set granted may last");
    // As if the longest ttl had passed since.
    a.strict = Some(Strictness { replicas: 0, longest: Duration::ZERO });
    assert!(matches!(a.renew(token), Ok(Answer::Renewed { .. })));
    assert_eq!(server.command(&["HGET", &term, "lineage"]).text(), new);
    answers(a.release(token), Answer::Released);
    a.win();
}

#[test]
fn what_is_settled_is_what_was_parked_here_and_begins_its_hold_anew() {
    let server = Server::start();
    let a = candidate(&server.url(), "a").strict(0);
    let here = lineage(&server);
    let (lease, term) = (a.group.lease(), a.group.term());
    let settle = |lineage: &str| {
        let mut packed = Vec::new();
        let call = Call::Settle { lineage: lineage.into(), strict: a.strict.expect("it is strict") };
        pack(&a.operation(Action::Look), &call, &mut packed);
        let Ok(redis::Value::Array(words)) = redis::parse_redis_value(&packed) else { panic!("a command") };
        let words = words.iter().map(|word| match word {
            redis::Value::BulkString(word) => String::from_utf8(word.clone()).expect("text"),
            word => panic!("{word:?}"),
        });
        let words: Vec<_> = words.collect();
        server.command(&words.iter().map(String::as_str).collect::<Vec<_>>());
        server.command(&["HGET", term, "lineage"])
    };
    for (value, lineage, settles) in
        [("hold/a", &*here, true), ("hold/b", &here, false), ("a", &here, false), ("hold/a", "other", false)]
    {
        server.command(&["DEL", term]);
        server.command(&["SET", lease, value, "PX", "1000"]);
        let recorded = settle(lineage);
        let left = server.command(&["PTTL", lease]).int();
        assert_eq!(recorded == Reply::Text(here.clone()), settles, "{value} on {lineage}: {recorded:?}");
        assert_eq!(left > 1000, settles, "{value} on {lineage}: {left} ms left");
    }
}

#[test]
fn a_lease_that_is_gone_before_its_time_is_waited_out_by_all_but_its_own_instance() {
    let server = Server::start();
    let mut a = candidate(&server.url(), "a").strict(0);
    let mut b = candidate(&server.url(), "b").strict(0);
    b.group = a.group.clone();
    let first = a.first_win(&server);
    server.command(&["DEL", a.group.lease()]);
    let left = b.park();
    assert!(left <= TTL && left > TTL / 2, "what was left of the lease: {left:?}");
    b.end(&server);
    let second = b.win();
    assert!(second > first);

    // Its own instance knows that it leads no more.
    server.command(&["DEL", b.group.lease()]);
    let third = b.win();
    assert!(third > second);

    // And tells the others, once it has been told itself.
    server.command(&["DEL", b.group.lease()]);
    answers(b.renew(third), Answer::Vacant);
    assert_ne!(server.command(&["HGET", b.group.term(), "until"]).text(), "0", "a reply can be lost");
    answers(b.release(third), Answer::Vacant);
    assert!(a.win() > third);
}

#[test]
fn a_hold_whose_key_is_deleted_is_waited_out_by_the_next_one() {
    let server = Server::start();
    let (mut a, mut b) = (candidate(&server.url(), "a"), candidate(&server.url(), "b"));
    b.group = a.group.clone();
    (a, b) = (a.strict(0), b.strict(0));
    // There has been no term yet, whose ttl might be recorded.
    let whole = a.park();
    server.command(&["DEL", a.group.lease()]);
    assert!(b.park() > whole / 2, "what is left of the hold");
    server.command(&["DEL", a.group.lease()]);
    assert!(a.park() > whole / 2, "the first hold was its own, and no term of its own");
}

#[test]
fn too_few_acknowledgements_are_an_error_and_leave_no_lease_and_no_wake() {
    let server = Server::start();
    let replica = replica_of(&server);
    let mut a = candidate(&server.url(), "a").strict(1);
    let token = a.first_win(&server);
    replica.freeze();
    let error = a.renew(token).expect_err("nobody acknowledges it");
    assert_eq!((error.outcome(), error.class()), (Outcome::Unknown, Class::Passing));
    assert!(error.to_string().contains("1 of the 1 replicas"), "{error}");

    let groups = [a.group.clone()];
    let mut listener = listen(&store(&server.url()));
    hears(&mut *listener, &groups, Heard::Listening);
    let message = refused(a.acquire_above(0), Class::Passing);
    assert!(message.contains("only 0 did in time"), "{message}");
    assert_absent(&server, a.group.lease());
    hears_nothing(&mut *listener, &groups);
    replica.thaw();
    eventually(|| matches!(a.acquire_above(0), Ok(Answer::Won { .. })));
}

#[test]
fn a_hold_that_too_few_have_acknowledged_is_told_and_is_not_the_last() {
    let server = Server::start();
    let replica = replica_of(&server);
    let mut a = candidate(&server.url(), "a").strict(1);
    replica.freeze();
    for _ in 0..2 {
        let message = refused(a.acquire_above(0), Class::Passing);
        assert!(message.contains("only 0 did in time"), "{message}");
        assert!(held(a.look()).is_parked());
        assert_eq!(server.command(&["HEXISTS", a.group.term(), "lineage"]), Reply::Int(0));
    }
    // Once they do, the same hold is settled and begins anew; nobody waits for another one.
    server.command(&["PEXPIRE", a.group.lease(), "15000"]);
    replica.thaw();
    eventually(|| matches!(a.acquire_above(0), Ok(Answer::Held(_))));
    assert!(server.command(&["PTTL", a.group.lease()]).int() > 15_000);
    a.end(&server);
    a.win();
    assert_eq!(server.command(&["HGET", a.group.term(), "lineage"]).text(), lineage(&server));
}

#[test]
fn more_replicas_than_were_told_are_refused() {
    let server = Server::start();
    let mut a = candidate(&server.url(), "a").strict(1);
    let (_one, _two) = (replica_of(&server), replica_of(&server));
    let message = refused(a.acquire_above(0), Class::Configuration);
    assert!(message.contains("2 replicas") && message.contains("counts on 1"), "{message}");
    assert_absent(&server, a.group.lease());
    a.strict = Some(Strictness { replicas: 2, longest: TTL });
    let token = a.first_win(&server);
    // Also where one comes while somebody leads.
    a.strict = Some(Strictness { replicas: 1, longest: TTL });
    refused(a.renew(token), Class::Configuration);
}

#[test]
fn who_knows_of_a_shorter_longest_ttl_waits_for_the_longer_one() {
    let server = Server::start();
    let mut a = candidate(&server.url(), "a").strict(0);
    let mut b = candidate(&server.url(), "b").briefly();
    b.group = a.group.clone();
    a.first_win(&server);
    assert_eq!(held(b.acquire_above(0)).strict, a.strict, "and can tell that it is not alike");
    server.command(&["DEL", a.group.lease()]);
    assert!(b.park() > TTL / 2, "a lease that is gone before its time");
    b.end(&server);
    change_lineage(&server);
    assert!(b.park() > TTL / 2, "another data set");
}

#[test]
fn a_user_who_may_not_do_what_strict_needs_is_told_which_and_leads_nothing() {
    let server = Server::start();
    let _replica = replica_of(&server);
    let mut a = candidate(&server.url(), "a").strict(1);
    a.first_win(&server);
    for (right, named) in [("info", "master_replid"), ("wait", "WAIT")] {
        let without = format!("-{right}");
        let user = ["ACL", "SETUSER", right, "on", ">pass", "~*", "&*", "+@all", &without];
        server.command(&user);
        let url = server.url().replace("redis://", &format!("redis://{right}:pass@"));
        let mut b = candidate(&url, "b").strict(1);
        b.group = a.group.clone();
        b.end(&server);
        let message = refused(b.acquire_above(0), Class::Configuration);
        assert!(message.contains(named), "{message}");
        assert_absent(&server, b.group.lease());
    }
}
