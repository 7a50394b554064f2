//! What every store must do, run on each of them, and what only a real server can show.

mod regressions;
mod strict;

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use super::sealed::Open;
use super::strict::Strictness;
use super::{
    Action, Answer, Budget, Class, Heard, Holding, Listener, MemoryStore, Operation, Outcome, RedisStore,
    Session, StoreError,
};
use crate::election::clock::Instant;
use crate::election::key::{Group, InstanceId};
use crate::election::term::LONGEST_TOKEN;
use crate::server::{Reply, Server};

const TTL: Duration = Duration::from_secs(30);

/// More than any operation takes on a busy machine; a session that hangs fails the test by it.
const BUDGET: Duration = Duration::from_secs(20);

/// The budget of a wait that nothing is to end.
const SHORT: Duration = Duration::from_millis(50);

type Result = std::result::Result<Answer, StoreError>;

/// A store to test on: sessions that share their leases, listeners to their releases, and a way to let time pass
/// for the leases.
struct Ground<'a> {
    open: &'a dyn Fn() -> Box<dyn Session>,
    listen: &'a dyn Fn() -> Box<dyn Listener>,
    elapse: &'a dyn Fn(Duration),
}

/// One instance that contends for one group, over a session of its own.
struct Candidate {
    session: Box<dyn Session>,
    group: Group,
    id: InstanceId,
    ttl: Duration,
    attempt: u64,
    strict: Option<Strictness>,
}

/// A group that no other test uses.
fn group() -> Group {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("contract-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    Group::new(&name).expect("a good name")
}

impl Ground<'_> {
    fn candidate(&self, group: &Group, id: &str) -> Candidate {
        let (group, id) = (group.clone(), InstanceId::from(id));
        Candidate { session: (self.open)(), group, id, ttl: TTL, attempt: 0, strict: None }
    }
}

impl Candidate {
    fn operation(&self, action: Action) -> Operation {
        Operation {
            group: self.group.clone(),
            id: self.id.clone(),
            ttl: self.ttl,
            action,
            strict: self.strict,
        }
    }

    fn act(&mut self, action: Action) -> Result {
        let operation = self.operation(action);
        let mut results = execute(&mut *self.session, &[operation]);
        assert_eq!(results.len(), 1, "one result per operation");
        results.remove(0)
    }

    fn acquire_above(&mut self, floor: u64) -> Result {
        self.attempt += 1;
        self.act(Action::Acquire { attempt: self.attempt, floor })
    }

    #[track_caller]
    fn win(&mut self) -> u64 {
        match self.acquire_above(0) {
            Ok(Answer::Won { token, .. }) => token,
            other => panic!("the lease was to be won: {other:?}"),
        }
    }

    fn renew(&mut self, token: u64) -> Result {
        self.act(Action::Renew { token })
    }

    fn release(&mut self, token: u64) -> Result {
        self.act(Action::Release { token })
    }

    fn look(&mut self) -> Result {
        self.act(Action::Look)
    }

    /// Wins a term and gives it back; returns what is heard of it.
    #[track_caller]
    fn come_and_go(&mut self) -> Heard {
        let token = self.win();
        answers(self.release(token), Answer::Released);
        Heard::Wake { lease: self.group.lease().to_owned(), token }
    }
}

/// What a listener hears next, within this time.
fn heard(
    listener: &mut dyn Listener,
    groups: &[Group],
    within: Duration,
) -> std::result::Result<Heard, StoreError> {
    let budget = Budget::new(Instant::now() + within, &listener.bell());
    listener.next(groups, &budget)
}

#[track_caller]
fn hears(listener: &mut dyn Listener, groups: &[Group], expected: Heard) {
    match heard(listener, groups, BUDGET) {
        Ok(heard) => assert_eq!(heard, expected),
        Err(error) => panic!("{expected:?} was to be heard: {error:?}"),
    }
}

/// Waits for the whole of a short budget in vain.
#[track_caller]
fn hears_nothing(listener: &mut dyn Listener, groups: &[Group]) {
    let from = Instant::now();
    match heard(listener, groups, SHORT) {
        Ok(heard) => assert_eq!(heard, Heard::Nothing),
        Err(error) => panic!("nothing was to be heard: {error:?}"),
    }
    assert!(from.elapsed() >= SHORT, "it waited for {:?} only", from.elapsed());
}

fn execute(session: &mut dyn Session, batch: &[Operation]) -> Vec<Result> {
    let budget = Budget::new(Instant::now() + BUDGET, &session.bell());
    session.execute(batch, &budget)
}

#[track_caller]
fn answers(result: Result, expected: Answer) {
    match result {
        Ok(answer) => assert_eq!(answer, expected),
        Err(error) => panic!("{expected:?} was to be answered: {error:?}"),
    }
}

#[track_caller]
fn held(result: Result) -> Holding {
    match result {
        Ok(Answer::Held(holding)) => holding,
        other => panic!("the lease was to be held: {other:?}"),
    }
}

#[track_caller]
fn refused(result: Result, class: Class) -> String {
    match result {
        Err(error) => {
            assert_eq!((error.outcome(), error.class()), (Outcome::Refused, class), "{error}");
            error.to_string()
        }
        Ok(answer) => panic!("it was to be refused: {answer:?}"),
    }
}

/// Runs the whole contract.
fn contract(ground: &Ground<'_>) {
    one_holder_at_a_time(ground);
    renewing_takes_the_id_and_the_token(ground);
    releasing_takes_the_id_and_the_token(ground);
    a_leftover_of_ones_own_is_a_new_term(ground);
    a_late_attempt_is_a_ghost(ground);
    tokens_grow_and_end_at_the_longest(ground);
    a_lease_ends_after_its_ttl(ground);
    nobody_is_nobody(ground);
    strict::contract(ground);
    a_batch_keeps_its_groups_apart(ground);
    a_listener_says_first_that_it_listens_and_then_hears_each_release(ground);
    a_listener_hears_nothing_of_other_groups_and_nothing_that_is_no_release(ground);
    a_listener_hears_of_all_its_groups_and_of_those_it_is_given_later(ground);
    a_wait_for_a_wake_is_ended_by_another_thread(ground);
    a_listener_that_was_reset_listens_anew(ground);
}

fn one_holder_at_a_time(ground: &Ground<'_>) {
    let group = group();
    let (mut a, mut b) = (ground.candidate(&group, "a"), ground.candidate(&group, "b"));
    let token = a.win();
    for result in [b.acquire_above(0), b.look(), b.renew(token), b.release(token)] {
        let holding = held(result);
        assert_eq!((holding.holder.as_str(), holding.token), ("a", Some(token)));
        let left = holding.remaining.expect("an expiry");
        assert!(!left.is_zero() && left <= TTL, "{left:?}");
    }
    answers(a.release(token), Answer::Released);
    assert!(b.win() > token);
}

fn renewing_takes_the_id_and_the_token(ground: &Ground<'_>) {
    let group = group();
    let mut a = ground.candidate(&group, "a");
    let token = a.win();
    let Ok(Answer::Renewed { left }) = a.renew(token) else { panic!("the holder renews") };
    assert!(!left.is_zero() && left <= TTL, "{left:?}");
    assert_eq!(held(a.renew(token - 1)).token, Some(token));
    assert_eq!(held(a.renew(token + 1)).token, Some(token));
    assert_eq!(held(ground.candidate(&group, "b").renew(token)).holder.as_str(), "a");
    // The refused ones changed nothing.
    assert!(matches!(a.renew(token), Ok(Answer::Renewed { .. })));
}

fn releasing_takes_the_id_and_the_token(ground: &Ground<'_>) {
    let group = group();
    let mut a = ground.candidate(&group, "a");
    let token = a.win();
    assert_eq!(held(ground.candidate(&group, "b").release(token)).holder.as_str(), "a");
    assert_eq!(held(a.release(token + 1)).token, Some(token));
    assert_eq!(held(a.look()).token, Some(token));
    answers(a.release(token), Answer::Released);
    answers(a.release(token), Answer::Vacant);
}

fn a_leftover_of_ones_own_is_a_new_term(ground: &Ground<'_>) {
    let group = group();
    let mut a = ground.candidate(&group, "a");
    let (old, new) = (a.win(), a.win());
    assert!(new > old);
    // Late operations of the old term cannot touch the new one.
    assert_eq!(held(a.renew(old)).token, Some(new));
    assert_eq!(held(a.release(old)).token, Some(new));
    assert!(matches!(a.renew(new), Ok(Answer::Renewed { .. })));
}

fn a_late_attempt_is_a_ghost(ground: &Ground<'_>) {
    let group = group();
    let (mut a, mut b) = (ground.candidate(&group, "a"), ground.candidate(&group, "b"));
    a.attempt = 9;
    let token = a.win();
    for attempt in [9, 10] {
        // As numbers: as text, 9 is larger than 10.
        answers(a.act(Action::Acquire { attempt, floor: 0 }), Answer::Ghost);
    }
    assert_eq!(held(a.look()).token, Some(token));
    answers(a.release(token), Answer::Released);
    answers(a.act(Action::Acquire { attempt: 10, floor: 0 }), Answer::Ghost);
    answers(a.look(), Answer::Vacant);
    // The number is counted for the instance that won last, and for no other.
    let token = b.win();
    assert_eq!(held(a.act(Action::Acquire { attempt: 10, floor: 0 })).holder.as_str(), "b");
    answers(b.release(token), Answer::Released);
    assert!(matches!(a.act(Action::Acquire { attempt: 10, floor: 0 }), Ok(Answer::Won { .. })));
}

fn tokens_grow_and_end_at_the_longest(ground: &Ground<'_>) {
    let group = group();
    let mut a = ground.candidate(&group, "a");
    let message = refused(a.acquire_above(LONGEST_TOKEN), Class::Configuration);
    assert!(message.contains("token"), "{message}");
    answers(a.look(), Answer::Vacant);
    let first = a.win();
    // A floor far ahead of the time, as of an instance that saw the token of a server with a wrong clock.
    let floor = first + 1_000_000_000_000;
    match a.acquire_above(floor) {
        Ok(Answer::Won { token, ahead }) => {
            assert_eq!(token, floor + 1);
            // Ahead of the time now, which is a little later than at the first token.
            assert!(
                ahead > Duration::from_secs(900_000) && ahead <= Duration::from_micros(1_000_000_000_001),
                "{ahead:?}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert!(a.win() > floor + 1);
    let Ok(Answer::Won { token, .. }) = a.acquire_above(LONGEST_TOKEN - 1) else {
        panic!("one token is left")
    };
    assert_eq!(token, LONGEST_TOKEN);
    assert!(matches!(a.renew(token), Ok(Answer::Renewed { .. })));
    refused(a.acquire_above(0), Class::Configuration);
    assert_eq!(held(a.look()).token, Some(LONGEST_TOKEN), "nothing was written");
}

fn a_lease_ends_after_its_ttl(ground: &Ground<'_>) {
    let group = group();
    let (mut a, mut b) = (ground.candidate(&group, "a"), ground.candidate(&group, "b"));
    a.ttl = Duration::from_millis(100);
    let token = a.win();
    (ground.elapse)(a.ttl);
    answers(b.look(), Answer::Vacant);
    answers(a.renew(token), Answer::Vacant);
    answers(a.release(token), Answer::Vacant);
    assert!(b.win() > token);
    assert_eq!(held(a.renew(token)).holder.as_str(), "b");
}

fn nobody_is_nobody(ground: &Ground<'_>) {
    let mut a = ground.candidate(&group(), "a");
    for action in [Action::Renew { token: 1 }, Action::Release { token: 1 }, Action::Look] {
        answers(a.act(action), Answer::Vacant);
    }
}

fn a_batch_keeps_its_groups_apart(ground: &Ground<'_>) {
    let (mut a, mut b) = (ground.candidate(&group(), "a"), ground.candidate(&group(), "b"));
    let mine = a.win();
    // Tokens are apart within a group only: two groups may win in the same microsecond.
    let Ok(Answer::Won { token: other, .. }) = b.acquire_above(mine) else { panic!("nobody holds it") };
    b.session = (ground.open)();
    a.attempt += 1;
    let batch = [
        a.operation(Action::Renew { token: mine }),
        b.operation(Action::Renew { token: mine }),
        b.operation(Action::Release { token: other }),
        b.operation(Action::Look),
        a.operation(Action::Acquire { attempt: a.attempt, floor: 0 }),
        a.operation(Action::Release { token: mine }),
    ];
    let results = execute(&mut *a.session, &batch);
    assert_eq!(results.len(), batch.len());
    assert!(matches!(results[0], Ok(Answer::Renewed { .. })), "{results:?}");
    assert_eq!(held(results[1].clone()).token, Some(other));
    answers(results[2].clone(), Answer::Released);
    answers(results[3].clone(), Answer::Vacant);
    let Ok(Answer::Won { token, .. }) = results[4] else { panic!("{results:?}") };
    assert_eq!(held(results[5].clone()).token, Some(token));
    assert!(execute(&mut *a.session, &[]).is_empty());
}

fn a_listener_says_first_that_it_listens_and_then_hears_each_release(ground: &Ground<'_>) {
    let group = group();
    let (mut a, mut b) = (ground.candidate(&group, "a"), ground.candidate(&group, "b"));
    let groups = [group];
    a.come_and_go();
    let mut listener = (ground.listen)();
    hears(&mut *listener, &groups, Heard::Listening);
    // What came before is not heard, and what comes between two waits is.
    let wakes = [a.come_and_go(), b.come_and_go()];
    for wake in wakes {
        hears(&mut *listener, &groups, wake);
    }
    hears_nothing(&mut *listener, &groups);
    let wake = thread::scope(|scope| {
        // It comes while the listener waits.
        let releasing = scope.spawn(|| a.come_and_go());
        let heard = heard(&mut *listener, &groups, BUDGET).expect("a wake");
        assert_eq!(heard, releasing.join().expect("no panic"));
        heard
    });
    assert!(matches!(wake, Heard::Wake { .. }));
}

fn a_listener_hears_nothing_of_other_groups_and_nothing_that_is_no_release(ground: &Ground<'_>) {
    let (mut mine, mut other) = (ground.candidate(&group(), "a"), ground.candidate(&group(), "a"));
    let groups = [mine.group.clone()];
    let mut listener = (ground.listen)();
    hears(&mut *listener, &groups, Heard::Listening);
    other.come_and_go();
    let token = mine.win();
    assert!(matches!(mine.renew(token), Ok(Answer::Renewed { .. })));
    // A release of a term that is not the lease's is none.
    assert_eq!(held(mine.release(token + 1)).token, Some(token));
    hears_nothing(&mut *listener, &groups);
    answers(mine.release(token), Answer::Released);
    hears(&mut *listener, &groups, Heard::Wake { lease: groups[0].lease().to_owned(), token });
}

fn a_listener_hears_of_all_its_groups_and_of_those_it_is_given_later(ground: &Ground<'_>) {
    let mut all: Vec<_> = (0..3).map(|_| ground.candidate(&group(), "a")).collect();
    let groups: Vec<_> = all.iter().map(|candidate| candidate.group.clone()).collect();
    let mut listener = (ground.listen)();
    hears(&mut *listener, &groups[..2], Heard::Listening);
    let wakes = [all[1].come_and_go(), all[0].come_and_go()];
    for wake in wakes {
        hears(&mut *listener, &groups[..2], wake);
    }
    // It may have to listen anew for the third; then it says so.
    let again = heard(&mut *listener, &groups, SHORT).expect("it listens");
    assert!(matches!(again, Heard::Listening | Heard::Nothing), "{again:?}");
    for candidate in &mut all {
        let wake = candidate.come_and_go();
        hears(&mut *listener, &groups, wake);
    }
    let again = heard(&mut *listener, &groups[2..], SHORT).expect("it listens");
    assert!(matches!(again, Heard::Listening | Heard::Nothing), "{again:?}");
    all[0].come_and_go();
    let wake = all[2].come_and_go();
    hears(&mut *listener, &groups[2..], wake);
}

fn a_wait_for_a_wake_is_ended_by_another_thread(ground: &Ground<'_>) {
    let mut a = ground.candidate(&group(), "a");
    let groups = [a.group.clone()];
    let mut listener = (ground.listen)();
    hears(&mut *listener, &groups, Heard::Listening);
    let budget = Budget::new(Instant::now() + BUDGET, &listener.bell());
    let (ending, ended) = thread::scope(|scope| {
        let ending = scope.spawn(|| {
            // Nothing tells that the other thread waits; the outcome is the same if it does not yet.
            thread::sleep(SHORT);
            let at = Instant::now();
            budget.shorten(at);
            at
        });
        let heard = listener.next(&groups, &budget).expect("no error");
        assert_eq!(heard, Heard::Nothing);
        (ending.join().expect("no panic"), Instant::now())
    });
    assert!(ended.saturating_duration_since(ending) < BUDGET / 10, "it was ended late");
    // The next wait is not ended by what ended this one, and hears what came between them.
    let wake = a.come_and_go();
    hears(&mut *listener, &groups, wake);
}

fn a_listener_that_was_reset_listens_anew(ground: &Ground<'_>) {
    let mut a = ground.candidate(&group(), "a");
    let groups = [a.group.clone()];
    let mut listener = (ground.listen)();
    hears(&mut *listener, &groups, Heard::Listening);
    a.come_and_go();
    listener.reset();
    a.come_and_go();
    hears(&mut *listener, &groups, Heard::Listening);
    hears_nothing(&mut *listener, &groups);
    let wake = a.come_and_go();
    hears(&mut *listener, &groups, wake);
}

#[test]
fn the_memory_store_keeps_the_contract() {
    let store = MemoryStore::with_manual_clock();
    contract(&Ground {
        open: &|| open(&store),
        listen: &|| listen(&store),
        elapse: &|time| store.advance(time),
    });
}

#[test]
fn over_a_connection_that_is_cut_nothing_is_done_and_the_listener_is_told_once() {
    let store = MemoryStore::with_manual_clock();
    let (cuttable, switch) = store.with_switch();
    let group = group();
    let candidate = |store, id| {
        Ground { open: &|| open(store), listen: &|| listen(store), elapse: &|_| {} }.candidate(&group, id)
    };
    let (mut a, mut b) = (candidate(&cuttable, "a"), candidate(&store, "b"));
    let mut listener = cuttable.listen().expect("the system has descriptors left");
    let hear = |listener: &mut Box<dyn Listener>, limit| {
        listener.next(std::slice::from_ref(&group), &Budget::new(Instant::now() + limit, &listener.bell()))
    };
    let lost = |heard: std::result::Result<Heard, StoreError>| {
        let error = heard.expect_err("the connection was cut");
        assert_eq!((error.outcome(), error.class()), (Outcome::NotSent, Class::Passing), "{error}");
    };
    assert_eq!(hear(&mut listener, BUDGET).expect("it listens"), Heard::Listening);
    let token = a.win();
    let from = Instant::now();
    // Whether the listener waits by then or not, it is told; it most likely does.
    let moment = Duration::from_millis(20);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| hear(&mut listener, BUDGET));
        thread::sleep(moment);
        switch.cut();
        lost(waiting.join().expect("no panic"));
    });
    for action in [
        Action::Renew { token },
        Action::Release { token },
        Action::Look,
        Action::Acquire { attempt: 2, floor: 0 },
    ] {
        let error = a.act(action).expect_err("the connection is cut");
        assert_eq!((error.outcome(), error.class()), (Outcome::NotSent, Class::Passing), "{error}");
    }
    assert_eq!(held(b.look()).token, Some(token), "the lease is as it was");
    store.advance(TTL);
    let second = b.win();
    answers(b.release(second), Answer::Released);
    assert_eq!(hear(&mut listener, moment).expect("told already"), Heard::Nothing);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| hear(&mut listener, BUDGET));
        thread::sleep(moment);
        switch.mend();
        assert_eq!(waiting.join().expect("no panic").expect("it is whole"), Heard::Listening);
    });
    assert!(from.elapsed() < BUDGET, "it looked only when its time was over");
    assert_eq!(hear(&mut listener, moment).expect("it listens"), Heard::Nothing, "it was missed");
    let third = a.win();
    assert!(third > second && second > token);

    // However short it was, something may have been missed.
    switch.cut();
    switch.mend();
    lost(hear(&mut listener, BUDGET));
    assert_eq!(hear(&mut listener, BUDGET).expect("it is whole"), Heard::Listening);
    answers(a.release(third), Answer::Released);
    let wake = Heard::Wake { lease: group.lease().to_owned(), token: third };
    assert_eq!(hear(&mut listener, BUDGET).expect("it listens"), wake);
}

#[test]
fn the_redis_store_keeps_the_contract_over_tcp_and_over_a_unix_socket() {
    let server = Server::start();
    for url in [server.url(), server.unix_url()] {
        let store = store(&url);
        // The server's own clock expires the lease, at its next millisecond; nothing announces it.
        let elapse = |time| thread::sleep(time + Duration::from_millis(5));
        contract(&Ground { open: &|| open(&store), listen: &|| listen(&store), elapse: &elapse });
    }
}

#[test]
fn a_listener_whose_server_restarts_says_so_and_then_listens_again() {
    let mut server = Server::start();
    for over_unix in [false, true] {
        let url = if over_unix { server.unix_url() } else { server.url() };
        let (mut a, mut listener) = (candidate(&url, "a"), listen(&store(&url)));
        let groups = [a.group.clone()];
        hears(&mut *listener, &groups, Heard::Listening);
        let wake = a.come_and_go();
        hears(&mut *listener, &groups, wake);
        server.kill();
        // Once for the connection that was lost, and then for each that is refused.
        for _ in 0..3 {
            let error = heard(&mut *listener, &groups, BUDGET).expect_err("the server is gone");
            assert_eq!(error.class(), Class::Passing, "{error}");
        }
        server.restart();
        hears(&mut *listener, &groups, Heard::Listening);
        let wake = a.come_and_go();
        hears(&mut *listener, &groups, wake);
    }
}

#[test]
fn a_listener_without_the_right_to_listen_says_so_and_listens_once_it_has_it() {
    let server = Server::start();
    let group = group();
    server.command(&["ACL", "SETUSER", "deaf", "on", ">pass", "~*", "resetchannels", "+@all"]);
    let url = server.url().replace("redis://", "redis://deaf:pass@");
    let mut listener = listen(&store(&url));
    let groups = [group.clone()];
    let refused = |listener: &mut dyn Listener| {
        let error = heard(listener, &groups, BUDGET).expect_err("no right");
        assert_eq!((error.outcome(), error.class()), (Outcome::Refused, Class::Configuration), "{error}");
        assert!(error.to_string().contains("SUBSCRIBE"), "{error}");
    };
    refused(&mut *listener);
    server.command(&["ACL", "SETUSER", "deaf", "&taskrunner:leader:*"]);
    hears(&mut *listener, &groups, Heard::Listening);
    let mut a = candidate(&server.url(), "a");
    a.group = group;
    let wake = a.come_and_go();
    hears(&mut *listener, &groups, wake);
    // Redis closes what has lost its right.
    server.command(&["ACL", "SETUSER", "deaf", "resetchannels"]);
    let error = heard(&mut *listener, &groups, BUDGET).expect_err("closed");
    assert_eq!(error.class(), Class::Passing, "{error}");
    refused(&mut *listener);
}

fn open(store: &impl Open) -> Box<dyn Session> {
    store.open().expect("the system has descriptors left")
}

fn listen(store: &impl Open) -> Box<dyn Listener> {
    store.listen().expect("the system has descriptors left")
}

fn store(url: &str) -> RedisStore {
    RedisStore::open(url).expect("a good URL")
}

fn candidate(url: &str, id: &str) -> Candidate {
    let (session, id) = (open(&store(url)), InstanceId::from(id));
    Candidate { session, group: group(), id, ttl: TTL, attempt: 0, strict: None }
}

#[track_caller]
fn assert_absent(server: &Server, key: &str) {
    assert_eq!(server.command(&["EXISTS", key]), Reply::Int(0), "{key} was written");
}

#[test]
fn a_foreign_lease_is_held_whatever_it_says_and_for_ever_without_expiry() {
    let server = Server::start();
    let mut a = candidate(&server.url(), "a");
    // A term of an earlier holder must not lend its token to a Go instance.
    let token = a.win();
    answers(a.release(token), Answer::Released);
    for value in ["go-instance", ""] {
        server.command(&["SET", a.group.lease(), value]);
        for result in [a.acquire_above(0), a.renew(token), a.release(token), a.look()] {
            let holding = held(result);
            assert_eq!((holding.holder.as_str(), holding.token, holding.remaining), (value, None, None));
        }
    }
    server.command(&["SET", a.group.lease(), "go-instance", "PX", "5000"]);
    assert!(held(a.acquire_above(0)).remaining.is_some());
}

#[test]
fn a_failing_operation_does_not_disturb_the_others_of_its_batch() {
    let server = Server::start();
    let (mut a, bad) = (candidate(&server.url(), "a"), candidate(&server.url(), "b"));
    server.command(&["SET", bad.group.term(), "no hash"]);
    let acquire = Action::Acquire { attempt: 1, floor: 0 };
    let batch =
        [bad.operation(acquire), a.operation(acquire), bad.operation(acquire), a.operation(Action::Look)];
    let results = execute(&mut *a.session, &batch);
    let Ok(Answer::Won { token, .. }) = results[1] else { panic!("{results:?}") };
    refused(results[0].clone(), Class::Configuration);
    refused(results[2].clone(), Class::Configuration);
    assert_eq!(held(results[3].clone()).token, Some(token));
    assert_absent(&server, bad.group.lease());
}

#[test]
fn a_win_writes_the_term_in_full_and_the_lease_with_its_expiry() {
    let server = Server::start();
    let mut a = candidate(&server.url(), "a");
    let token = a.win().to_string();
    let field = |name| server.command(&["HGET", a.group.term(), name]).text().to_owned();
    assert_eq!((field("token"), field("holder"), field("since")), (token.clone(), "a".to_owned(), token));
    assert_eq!((field("ttl"), field("attempt")), ("30000".to_owned(), "1".to_owned()));
    assert_eq!(server.command(&["PTTL", a.group.term()]), Reply::Int(-1));
    assert_eq!(server.command(&["GET", a.group.lease()]).text(), "a");
    assert!((1..=30_000).contains(&server.command(&["PTTL", a.group.lease()]).int()));
}

#[test]
fn a_server_out_of_memory_still_elects_renews_and_releases() {
    let server = Server::with(&["--maxmemory", "1", "--maxmemory-policy", "noeviction"]);
    assert!(matches!(server.command(&["SET", "a", "b"]), Reply::Error(e) if e.starts_with("OOM")));
    let mut a = candidate(&server.url(), "a");
    let token = a.win();
    assert!(matches!(a.renew(token), Ok(Answer::Renewed { .. })));
    answers(a.release(token), Answer::Released);
}

#[test]
fn a_demoted_server_answers_wrong_node_and_never_no() {
    let server = Server::start();
    let mut a = candidate(&server.url(), "a");
    let token = a.win();
    // The lease is gone here, as it could be by a stale copy: "no" would be the answer of a primary.
    server.command(&["DEL", a.group.lease()]);
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    // Over the connection made before, where one is left, and then over new ones.
    for action in
        [Action::Renew { token }, Action::Release { token }, Action::Acquire { attempt: 2, floor: 0 }]
    {
        let error = a.act(action).expect_err("a replica does not answer");
        assert_eq!(error.class(), Class::WrongNode, "{action:?}: {error}");
        assert_ne!(error.outcome(), Outcome::Unknown, "{action:?}: {error}");
    }
    server.command(&["REPLICAOF", "NO", "ONE"]);
    a.attempt = 2;
    a.win();
}

#[test]
fn a_kept_connection_to_a_demoted_server_is_refused_by_the_script_itself() {
    let server = Server::start();
    for action in
        [Action::Renew { token: 1 }, Action::Release { token: 1 }, Action::Acquire { attempt: 5, floor: 0 }]
    {
        let mut a = candidate(&server.url(), "a");
        a.win();
        server.command(&["DEL", a.group.lease()]);
        server.command(&["REPLICAOF", "127.0.0.1", "1"]);
        let message = refused(a.act(action), Class::WrongNode);
        assert!(message.contains("READONLY"), "{message}");
        server.command(&["REPLICAOF", "NO", "ONE"]);
    }
}

#[test]
fn a_key_of_the_wrong_type_is_told_and_nothing_is_written() {
    let server = Server::start();
    let mut a = candidate(&server.url(), "a");
    server.command(&["RPUSH", a.group.lease(), "x"]);
    for result in [a.acquire_above(0), a.renew(1), a.release(1), a.look()] {
        assert!(refused(result, Class::Configuration).contains("WRONGTYPE"));
    }
    assert_absent(&server, a.group.term());
    let mut b = candidate(&server.url(), "b");
    server.command(&["RPUSH", b.group.term(), "x"]);
    for result in [b.acquire_above(0), b.renew(1), b.release(1)] {
        assert!(refused(result, Class::Configuration).contains("WRONGTYPE"));
    }
    assert_absent(&server, b.group.lease());
}

#[test]
fn a_term_key_with_a_bad_token_is_named_and_nothing_is_written() {
    let server = Server::start();
    let mut a = candidate(&server.url(), "a");
    for token in ["", "x", "1.79e+15", "-1", " 1", "9007199254740991", &"9".repeat(400)] {
        server.command(&["HSET", a.group.term(), "token", token]);
        let message = refused(a.acquire_above(0), Class::Configuration);
        assert!(message.contains(a.group.term()), "{token:?}: {message}");
        assert_absent(&server, a.group.lease());
    }
}

#[test]
fn the_rights_of_the_go_side_alone_leave_no_lease_behind() {
    let server = Server::start();
    let rights = ["+set", "+get", "+pexpire", "+del", "+eval", "+evalsha"];
    let login = ["ACL", "SETUSER", "go", "on", ">pass", "~taskrunner:leader:*"];
    server.command(&[&login[..], &rights].concat());
    let url = server.url().replace("redis://", "redis://go:pass@");
    let mut a = candidate(&url, "a");
    refused(a.acquire_above(0), Class::Configuration);
    assert_absent(&server, a.group.lease());
    // With the term key's pattern too, and with each one of the other rights missing.
    server.command(&["ACL", "SETUSER", "go", "~{taskrunner:leader:*"]);
    refused(a.acquire_above(0), Class::Configuration);
    assert_absent(&server, a.group.lease());
    // The last three are no right of an acquire's own: who cannot renew or release must not win.
    for missing in ["-set", "-hset", "-hmget", "-hdel", "-get", "-time", "-pttl", "-pexpire", "-del"] {
        server.command(&["ACL", "SETUSER", "go", "+@all", missing]);
        refused(a.acquire_above(0), Class::Configuration);
        assert_absent(&server, a.group.lease());
    }
    server.command(&["ACL", "SETUSER", "go", "+@all"]);
    let token = a.win();
    server.command(&["ACL", "SETUSER", "go", "-pexpire", "-del"]);
    refused(a.renew(token), Class::Configuration);
    refused(a.release(token), Class::Configuration);
    assert_eq!(held(a.look()).token, Some(token));
    // Nor does it win again where it finds its own lease, which is left to expire.
    server.command(&["PEXPIRE", a.group.lease(), "10000"]);
    for missing in ["-del", "-pttl", "-set"] {
        server.command(&["ACL", "SETUSER", "go", "+@all", missing]);
        refused(a.acquire_above(0), Class::Configuration);
        assert!(server.command(&["PTTL", a.group.lease()]).int() <= 10_000, "{missing}: it lives longer");
    }
}

#[test]
fn the_rights_that_the_documentation_names_are_enough() {
    let server = Server::start();
    server.command(&[
        "ACL",
        "SETUSER",
        "tr",
        "on",
        ">p@ss",
        "~taskrunner:leader:*",
        "~{taskrunner:leader:*",
        "resetchannels",
        "&taskrunner:leader:*",
        "+eval",
        "+hdel",
        "+get",
        "+hmget",
        "+pttl",
        "+time",
        "+hset",
        "+set",
        "+pexpire",
        "+del",
        "+publish",
    ]);
    let mut a = candidate(&server.url().replace("redis://", "redis://tr:p%40ss@"), "a");
    let token = a.win();
    assert!(matches!(a.renew(token), Ok(Answer::Renewed { .. })));
    assert_eq!(held(a.look()).token, Some(token));
    answers(a.release(token), Answer::Released);
}

#[test]
fn too_few_replicas_pass() {
    let server = Server::with(&["--min-replicas-to-write", "1"]);
    let mut a = candidate(&server.url(), "a");
    assert!(refused(a.acquire_above(0), Class::Passing).contains("NOREPLICAS"));
    assert_absent(&server, a.group.lease());
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    a.win();
}

#[test]
fn a_release_wakes_with_its_token_and_needs_no_right_to() {
    let server = Server::start();
    let mut a = candidate(&server.url(), "a");
    let channel = format!("{}:wake", a.group.lease());
    let mut subscriber = server.admin();
    subscriber.command(&["SUBSCRIBE", &channel]);
    let token = a.win();
    answers(a.release(token), Answer::Released);
    let message = subscriber.read().expect("a message");
    let texts: Vec<_> = message.list().iter().map(Reply::text).collect();
    assert_eq!(texts, ["message", &channel, &token.to_string()]);

    server.command(&["ACL", "SETUSER", "mute", "on", ">pass", "~*", "resetchannels", "+@all"]);
    let mut b = candidate(&server.url().replace("redis://", "redis://mute:pass@"), "b");
    let token = b.win();
    answers(b.release(token), Answer::Released);
    assert_absent(&server, b.group.lease());
}

#[test]
fn a_login_that_is_refused_is_a_matter_of_configuration() {
    let server = Server::with(&["--requirepass", "secret"]);
    for (login, what) in [("", "NOAUTH"), (":wrong-one@", "WRONGPASS"), ("nobody:secret@", "WRONGPASS")] {
        let mut a = candidate(&server.url().replace("redis://", &format!("redis://{login}")), "a");
        let error = a.look().expect_err("no login");
        assert_eq!((error.outcome(), error.class()), (Outcome::NotSent, Class::Configuration), "{error}");
        assert!(error.to_string().contains(what) && !format!("{error:?}").contains("wrong-one"), "{error}");
    }
    for login in [":secret@", "default:secret@"] {
        candidate(&server.url().replace("redis://", &format!("redis://{login}")), "a").win();
    }
    let mut a = candidate(&format!("{}77", server.url().replace("redis://", "redis://:secret@")), "a");
    let error = a.look().expect_err("no such database");
    assert_eq!((error.outcome(), error.class()), (Outcome::NotSent, Class::Configuration), "{error}");
    let mut a = candidate(&format!("{}?db=3&pass=secret", server.unix_url()), "a");
    a.win();
    let mut admin = server.admin();
    admin.command(&["AUTH", "secret"]);
    admin.command(&["SELECT", "3"]);
    assert_eq!(admin.command(&["EXISTS", a.group.lease()]), Reply::Int(1));
}
