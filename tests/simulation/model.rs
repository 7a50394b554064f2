//! The model of the scripts against the scripts: the same random commands, on both, with the same answers.

use std::time::{Duration, Instant as Timer};

use super::chance::Seed;
use super::plan::Nanos;
use super::server::{Ask, GoAsk, Server as Model};
use super::{number, seed};
use crate::election::clock::Instant;
use crate::election::key::{Group, InstanceId};
use crate::election::store::sealed::Open;
use crate::election::store::{
    Action, Answer, Budget, Keys, Lease, Operation, RedisStore, Session, StoreError, Term,
};
use crate::server::{Admin, Reply, Server};

/// Far more than a sequence takes, so that a lease ends only when the sequence says so.
const TTL: Duration = Duration::from_secs(3600);
/// The real clock goes on between a command and its model.
const TOLERANCE: Duration = Duration::from_secs(20);
/// More than an operation takes on a busy machine.
const BUDGET: Duration = Duration::from_secs(20);

/// One group on a real server, and its model.
struct Pair<'a> {
    admin: &'a mut Admin,
    session: Box<dyn Session>,
    group: Group,
    model: Model,
    begun: Timer,
}

impl Pair<'_> {
    fn now(&self) -> Nanos {
        u64::try_from(self.begun.elapsed().as_nanos()).expect("no sequence lasts for centuries")
    }

    /// Lets both do an operation; they must say the same, and hold the same then.
    fn act(&mut self, id: &InstanceId, action: Action) -> Result<Answer, StoreError> {
        let operation =
            Operation { group: self.group.clone(), id: id.clone(), ttl: TTL, action, strict: None };
        let budget = Budget::new(Instant::now() + BUDGET, &self.session.bell());
        let real = self.session.execute(&[operation], &budget).remove(0);
        let now = self.now();
        if let Ok(Answer::Won { token, ahead }) = &real {
            // The token tells the server's time, unless it was taken from a larger one.
            let time_us = token - u64::try_from(ahead.as_micros()).expect("not so far ahead");
            self.model.set_time(now, time_us);
        }
        let model = self.model.execute(now, id, TTL, Ask::Ours(action));
        let same = match (&real, &model) {
            (Ok(Answer::Renewed { left: a }), Ok(Answer::Renewed { left: b })) => near(Some(*a), Some(*b)),
            (Ok(Answer::Held(a)), Ok(Answer::Held(b))) => {
                (&a.holder, a.token) == (&b.holder, b.token) && near(a.remaining, b.remaining)
            }
            (Ok(a), Ok(b)) => a == b,
            (Err(a), Err(b)) => (a.outcome(), a.class()) == (b.outcome(), b.class()),
            _ => false,
        };
        assert!(same, "{action:?} of {id}: the scripts say {real:?}, their model {model:?}");
        real
    }

    /// Lets both do what the Go version does.
    fn go(&mut self, id: &str, ask: GoAsk) {
        let (lease, ttl) = (self.group.lease(), TTL.as_millis().to_string());
        let is_own = matches!(self.admin.command(&["GET", lease]), Reply::Text(value) if value == id);
        let done = match ask {
            GoAsk::Acquire => {
                matches!(self.admin.command(&["SET", lease, id, "NX", "PX", &ttl]), Reply::Text(_))
            }
            GoAsk::Renew => is_own && self.admin.command(&["PEXPIRE", lease, &ttl]).int() == 1,
            GoAsk::Release => is_own && self.admin.command(&["DEL", lease]).int() == 1,
        };
        let model = self.model.execute(self.now(), &id.into(), TTL, Ask::Go(ask)).expect("it never refuses");
        assert_eq!(done, model == Answer::Released, "{ask:?} of {id}");
    }

    /// Both keys, as the server has them.
    fn real_keys(&mut self) -> Keys {
        let lease = match self.admin.command(&["GET", self.group.lease()]) {
            Reply::Text(holder) => {
                let left = self.admin.command(&["PTTL", self.group.lease()]).int();
                let expires = u64::try_from(left).ok().map(Duration::from_millis);
                Some(Lease { holder: holder.as_str().into(), expires })
            }
            _ => None,
        };
        let fields = self.admin.command(&["HMGET", self.group.term(), "token", "holder", "attempt", "ttl"]);
        let term = match fields.list() {
            [Reply::Text(token), Reply::Text(holder), Reply::Text(attempt), Reply::Text(ttl)] => Some(Term {
                token: token.parse().expect("a token"),
                holder: holder.as_str().into(),
                attempt: attempt.parse().expect("an attempt"),
                ttl: Duration::from_millis(ttl.parse().expect("a ttl")),
                ..Term::default()
            }),
            _ => None,
        };
        Keys { lease, term }
    }

    fn check_keys(&mut self) {
        let (real, mut model) = (self.real_keys(), self.model.keys.clone());
        let now = self.model.time(self.now());
        let left = |lease: &Lease| lease.expires.map(|end| end.saturating_sub(now));
        assert!(near(real.lease.as_ref().and_then(|it| it.expires), model.lease.as_ref().and_then(left)));
        if let (Some(model), Some(real)) = (&mut model.lease, &real.lease) {
            model.expires = real.expires;
        }
        assert_eq!(real, model, "the server's keys, and the model's");
    }

    /// What happens to the keys by other hands.
    fn meddle(&mut self, choice: u64) {
        let (lease, term) = (self.group.lease(), self.group.term());
        match choice {
            0 => {
                self.admin.command(&["DEL", lease]);
                self.model.keys.lease = None;
            }
            1 => {
                self.admin.command(&["DEL", term]);
                self.model.keys.term = None;
            }
            2 => {
                // Time ends the lease.
                self.admin.command(&["PEXPIRE", lease, "1"]);
                let until = Timer::now() + BUDGET;
                while self.admin.command(&["EXISTS", lease]) != Reply::Int(0) {
                    assert!(Timer::now() < until, "the lease does not end");
                }
                self.model.keys.lease = None;
            }
            3 => {
                self.admin.command(&["SET", lease, "somebody"]);
                self.model.keys.lease = Some(Lease { holder: "somebody".into(), expires: None });
            }
            4 => {
                self.admin.command(&["PERSIST", lease]);
                self.model.keys.lease.iter_mut().for_each(|lease| lease.expires = None);
            }
            _ => {
                // A token right before the last one.
                if let Some(term) = &mut self.model.keys.term {
                    term.token = (1 << 53) - 4;
                    self.admin.command(&["HSET", self.group.term(), "token", &term.token.to_string()]);
                }
            }
        }
    }
}

fn near(real: Option<Duration>, model: Option<Duration>) -> bool {
    match (real, model) {
        (Some(real), Some(model)) => real.abs_diff(model) < TOLERANCE,
        (real, model) => real == model,
    }
}

/// The scripts that the simulated worlds run on do what those on a real server do.
#[test]
fn the_model_of_the_scripts_does_what_the_scripts_do() {
    let sequences = number("MODEL_SEQUENCES").unwrap_or(20);
    let server = Server::start();
    let mut admin = server.admin();
    let store = RedisStore::open(&server.url()).expect("a good URL");
    let (mut dice, mut answers) = (Seed::new(seed("the model of the scripts")), [0; 6]);
    for sequence in 0..sequences {
        let group = Group::new(&format!("model-{sequence}")).expect("a good name");
        let session = store.open().expect("the system has descriptors left");
        let mut pair = Pair { admin: &mut admin, session, group, model: Model::new(), begun: Timer::now() };
        let ids = ["a", "b", "c"].map(InstanceId::from);
        let (mut attempts, mut tokens, mut winner) = ([0; 3], vec![0], 0);
        for _ in 0..200 {
            let who = *dice.pick(&[winner, winner, 0, 1, 2]);
            let token = tokens[tokens.len() - 1 - dice.below(3.min(tokens.len() as u64)) as usize / 2];
            let action = match dice.below(16) {
                0..5 => {
                    // Now and then an attempt that was overtaken.
                    let attempt = (attempts[who] + 2 - dice.below(3)).max(1);
                    attempts[who] = attempts[who].max(attempt);
                    let floor = *dice.pick(&[0, token, token + 1_000_000, token + (1 << 40)]);
                    Action::Acquire { attempt, floor }
                }
                5..9 => Action::Renew { token },
                9..12 => Action::Release { token },
                12 => Action::Look,
                13 => {
                    pair.go("go", *dice.pick(&[GoAsk::Acquire, GoAsk::Renew, GoAsk::Release]));
                    continue;
                }
                _ => {
                    pair.meddle(*dice.pick(&[0, 0, 0, 0, 1, 1, 2, 2, 2, 3, 4, 5]));
                    continue;
                }
            };
            let kind = match pair.act(&ids[who], action) {
                Ok(Answer::Won { token, .. }) => {
                    tokens.push(token);
                    winner = who;
                    0
                }
                Ok(Answer::Renewed { .. }) => 1,
                Ok(Answer::Released) => 2,
                Ok(Answer::Held(_) | Answer::Vacant) => 3,
                Ok(Answer::Ghost) => 4,
                Err(_) => 5,
            };
            answers[kind] += 1;
            pair.check_keys();
        }
    }
    let [won, renewed, released, no, ghosts, refused] = answers;
    println!(
        "won {won}, renewed {renewed}, released {released}, no {no}, ghosts {ghosts}, refused {refused}"
    );
    let least = answers.iter().min().expect("there are kinds");
    assert!(*least > 0, "some answer has never come: {answers:?}");
}
