//! The model of the scripts against the scripts: the same random commands, on both, with the same answers.

use std::time::{Duration, Instant as Timer, SystemTime, UNIX_EPOCH};

use super::chance::Seed;
use super::plan::Nanos;
use super::server::{Ask, GoAsk, Server as Model};
use super::{number, seed};
use crate::election::clock::Instant;
use crate::election::key::{Group, InstanceId};
use crate::election::store::sealed::Open;
use crate::election::store::strict::{Ledger, Lineage, Strictness, followed};
use crate::election::store::{
    Action, Answer, Budget, Class, Keys, Lease, Operation, RedisStore, Session, StoreError, Term,
};
use crate::server::{Admin, Reply, Server};

/// Far more than a sequence takes, so that a lease ends only when the sequence says so.
const TTL: Duration = Duration::from_secs(3600);
/// The real clock goes on between a command and its model.
const TOLERANCE: Duration = Duration::from_secs(20);
/// More than an operation takes on a busy machine.
const BUDGET: Duration = Duration::from_secs(20);

/// So short that replicas are waited for a millisecond. What is won for it is taken back for want of them.
const SHORT: Duration = Duration::from_millis(8);

/// Who asks, and how.
#[derive(Clone, Copy)]
struct Manner<'a> {
    id: &'a InstanceId,
    ttl: Duration,
    strict: Option<Strictness>,
}

/// One group on a real server, and its model.
struct Pair<'a> {
    admin: &'a mut Admin,
    session: Box<dyn Session>,
    group: Group,
    model: Model,
    /// Of the model's session.
    ledger: Ledger,
    begun: Timer,
    /// When the last term was won, as the server has it.
    since: String,
}

impl<'a> Pair<'a> {
    fn new(server: &Server, admin: &'a mut Admin, name: &str) -> Self {
        let store = RedisStore::open(&server.url()).expect("a good URL");
        let session = store.open().expect("the system has descriptors left");
        let mut model = Model::new();
        let info = admin.command(&["INFO", "replication"]);
        let lineage = info.text().lines().find_map(|line| line.strip_prefix("master_replid:"));
        model.lineage = Lineage::from(lineage.expect("the server tells it").trim());
        let mut pair = Self {
            admin,
            session,
            group: Group::new(name).expect("a good name"),
            model,
            ledger: Ledger::default(),
            begun: Timer::now(),
            since: String::new(),
        };
        pair.set_clock();
        pair
    }

    fn now(&self) -> Nanos {
        u64::try_from(self.begun.elapsed().as_nanos()).expect("no sequence lasts for centuries")
    }

    /// Sets the model's clock to the server's: to when the last term was won, if that was just now. Returns the moment
    /// at which it shows that.
    fn set_clock(&mut self) -> Nanos {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
        let mut time_us = u64::try_from(unix.as_micros()).expect("this century");
        if let Reply::Text(since) = self.admin.command(&["HGET", self.group.term(), "since"])
            && since != self.since
        {
            time_us = since.parse().expect("a time");
            self.since = since;
        }
        let now = self.now();
        self.model.set_time(now, time_us);
        now
    }

    /// Lets both do an operation; they must say the same, and hold the same then.
    fn act(&mut self, Manner { id, ttl, strict }: Manner<'_>, action: Action) -> Result<Answer, StoreError> {
        let operation = Operation { group: self.group.clone(), id: id.clone(), ttl, action, strict };
        let budget = Budget::new(Instant::now() + BUDGET, &self.session.bell());
        let real = self.session.execute(std::slice::from_ref(&operation), &budget).remove(0);
        let (now, time) = (self.set_clock(), Instant::now());
        let mut ask = |call| self.model.execute(now, id, ttl, &Ask::Ours(call));
        let said = ask(self.ledger.call(&operation, time));
        // The server has no replicas.
        let concluded = self.ledger.conclude(&operation, said, &Ok(0), time);
        let model = match concluded.then {
            Some(call) => followed(concluded.result, ask(call)),
            None => concluded.result,
        };
        let same = match (&real, &model) {
            (Ok(Answer::Renewed { left: a }), Ok(Answer::Renewed { left: b })) => near(Some(*a), Some(*b)),
            (Ok(Answer::Held(a)), Ok(Answer::Held(b))) => {
                (&a.holder, a.token, a.strict) == (&b.holder, b.token, b.strict)
                    && near(a.remaining, b.remaining)
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
        let model = self.model.execute(self.now(), &id.into(), TTL, &Ask::Go(ask)).expect("it never refuses");
        assert_eq!(done, model.answer == Answer::Released, "{ask:?} of {id}");
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
        const FIELDS: [&str; 8] =
            ["token", "holder", "attempt", "ttl", "lineage", "until", "replicas", "longest"];
        let command = [&["HMGET", self.group.term()], &FIELDS[..]].concat();
        let fields: Vec<_> = self
            .admin
            .command(&command)
            .list()
            .iter()
            .map(|field| match field {
                Reply::Text(text) => Some(text.clone()),
                _ => None,
            })
            .collect();
        let number = |field: usize| fields[field].as_ref().map(|text| text.parse().expect("a number"));
        let millis = |field| number(field).map(Duration::from_millis);
        let term = fields[1].as_ref().map(|holder| Term {
            token: number(0).unwrap_or(0),
            holder: holder.as_str().into(),
            attempt: number(2).expect("each holder has one"),
            ttl: millis(3).unwrap_or_default(),
            lineage: fields[4].as_deref().map(Lineage::from),
            until: millis(5),
            strict: number(6)
                .zip(millis(7))
                .map(|(replicas, longest)| Strictness { replicas: replicas as u32, longest }),
        });
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
        if let (Some(model), Some(real)) = (&mut model.term, &real.term)
            && near(model.until, real.until)
        {
            model.until = real.until;
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
                // It was promised for no longer.
                if let Some(until) = self.model.keys.term.as_mut().and_then(|term| term.until.as_mut()) {
                    *until = Duration::ZERO;
                    self.admin.command(&["HSET", term, "until", "0"]);
                }
            }
            3 => {
                self.admin.command(&["SET", lease, "somebody"]);
                self.model.keys.lease = Some(Lease { holder: "somebody".into(), expires: None });
            }
            4 => {
                self.admin.command(&["PERSIST", lease]);
                self.model.keys.lease.iter_mut().for_each(|lease| lease.expires = None);
            }
            5 => {
                // Another data set has taken the place of that in which the lease was acknowledged.
                if let Some(term) = &mut self.model.keys.term {
                    term.lineage = Some("elsewhere".into());
                    self.admin.command(&["HSET", self.group.term(), "lineage", "elsewhere"]);
                }
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
    // It looks this often whether replicas have been waited for long enough.
    admin.command(&["CONFIG", "SET", "hz", "500"]);
    let (mut dice, mut answers) = (Seed::new(seed("the model of the scripts")), [0; 8]);
    for sequence in 0..sequences {
        let mut pair = Pair::new(&server, &mut admin, &format!("model-{sequence}"));
        let ids = ["a", "b", "c"].map(InstanceId::from);
        let (mut attempts, mut tokens, mut winner) = ([0; 3], vec![0], 0);
        for _ in 0..200 {
            let who = *dice.pick(&[winner, winner, 0, 1, 2]);
            let token = tokens[tokens.len() - 1 - dice.below(3.min(tokens.len() as u64)) as usize / 2];
            let (mut ttl, mut strict) = (TTL, dice.below(3) > 0);
            let (mut replicas, mut longest) = (0, TTL);
            let action = match dice.below(16) {
                0..5 => {
                    // Now and then an attempt that was overtaken, or that no replica acknowledges.
                    let attempt = (attempts[who] + 2 - dice.below(3)).max(1);
                    attempts[who] = attempts[who].max(attempt);
                    let floor = *dice.pick(&[0, token, token + 1_000_000, token + (1 << 40)]);
                    if dice.below(16) == 0 {
                        (ttl, strict, replicas) = (SHORT, true, 1);
                    }
                    Action::Acquire { attempt, floor }
                }
                5..9 => {
                    // The one before it may vouch for the data set.
                    longest = *dice.pick(&[Duration::ZERO, TTL]);
                    Action::Renew { token }
                }
                9..12 => Action::Release { token },
                12 => Action::Look,
                13 => {
                    pair.go("go", *dice.pick(&[GoAsk::Acquire, GoAsk::Renew, GoAsk::Release]));
                    continue;
                }
                _ => {
                    pair.meddle(*dice.pick(&[0, 0, 0, 0, 1, 1, 2, 2, 2, 3, 4, 5, 5, 6]));
                    continue;
                }
            };
            let strict = strict.then_some(Strictness { replicas, longest });
            let kind = match pair.act(Manner { id: &ids[who], ttl, strict }, action) {
                Ok(Answer::Won { token, .. }) => {
                    tokens.push(token);
                    winner = who;
                    0
                }
                Ok(Answer::Renewed { .. }) => 1,
                Ok(Answer::Released) => 2,
                Ok(Answer::Held(holding)) if holding.is_parked() => 3,
                Ok(Answer::Held(_) | Answer::Vacant) => 4,
                Ok(Answer::Ghost) => 5,
                Err(error) if error.class() == Class::Passing => 6,
                Err(_) => 7,
            };
            answers[kind] += 1;
            pair.check_keys();
            if kind == 3 && dice.below(2) == 0 {
                pair.meddle(2);
            }
        }
    }
    let kinds = ["won", "renewed", "released", "parked", "no", "ghosts", "taken back", "refused"];
    println!("{:?}", kinds.iter().zip(answers).collect::<Vec<_>>());
    assert!(answers.iter().all(|count| *count > 0), "some answer has never come");
}
