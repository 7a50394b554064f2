//! What an elector says about itself and about others: by events, by its status, and by who leads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crossbeam_channel::{Receiver, bounded};
use taskrunner::election::{
    Builder, Elector, Event, Inspection, MemoryStore, Reason, RedisStore, RenewError, Role, inspect,
};

use super::{CAP, MS, builder, follows, leads, next};
use crate::support::{Proxy, Server, eventually, unique_group};

/// B97: the figures that were shown stood still at their last values while the store was gone.
#[test]
fn while_the_store_is_gone_the_status_says_so() {
    for policy in [RenewError::Demote, RenewError::Retry] {
        let (store, switch) = MemoryStore::new().with_switch();
        let elector = Elector::builder(store, "figures").ttl(300 * MS).wait(20 * MS).renew_error(policy);
        let elector = elector.start().expect("good options");
        let token = leads(&elector).token();
        let status = elector.status();
        assert_eq!((status.role, status.token), (Role::Leader, Some(token)));
        switch.cut();
        let then = eventually(CAP, || match elector.status() {
            status if status.token.is_some() || status.role == Role::Leader => Err(format!("{status:?}")),
            status => Ok(status),
        });
        assert!(then.remaining.is_zero() && !elector.is_leader());
        // The time of the last renewal stays, so that its age grows, and the errors are counted.
        let age = then.renewed_at.expect("it has led").elapsed();
        let later = eventually(CAP, || match elector.status() {
            status if status.counters.errors >= then.counters.errors + 5 => Ok(status),
            status => Err(format!("{status:?}")),
        });
        assert_eq!(later.renewed_at, then.renewed_at, "nothing was renewed meanwhile");
        assert!(later.renewed_at.expect("it has led").elapsed() > age);
        assert!(later.last_error.expect("there were some").1.elapsed() < age + CAP);
        switch.mend();
        assert!(leads(&elector).token() > token);
        assert_eq!(elector.status().counters.promotions, 2);
    }
}

type Exit = (&'static str, Reason, fn(Builder) -> Builder, fn(Scene<'_>));

/// What an exit is made with.
struct Scene<'a> {
    elector: Elector,
    server: &'a Server,
    proxy: &'a Proxy,
}

impl Scene<'_> {
    fn command(&self, args: &[&str]) {
        self.server.command(args);
    }

    fn cut(&self) {
        self.proxy.refuse(true);
        self.proxy.reset_all();
    }

    /// It may lead again by the time anybody asks whether it does.
    fn wait_for_demotion(&self) {
        eventually(CAP, || match self.elector.status().counters.demotions {
            0 => Err("no demotion"),
            _ => Ok(()),
        });
    }

    /// Keeps the elector until it was demoted.
    fn keep(self) {
        self.wait_for_demotion();
        self.proxy.refuse(false);
        self.elector.stop().ok(); // The last release may have been refused.
    }
}

/// B98: on some ways out of leadership nobody was told.
#[test]
fn every_way_out_of_a_term_is_told_once_and_says_why() {
    let as_it_is: fn(Builder) -> Builder = |builder| builder;
    let retries: fn(Builder) -> Builder = |builder| builder.renew_error(RenewError::Retry);
    let exits: &[Exit] = &[
        ("another's value", Reason::Lost, as_it_is, |scene| {
            scene.command(&["SET", scene.elector.key(), "foreign", "PX", "60000"]);
            scene.keep();
        }),
        (
            "deleted",
            Reason::Lost,
            |builder| builder.wait(CAP),
            |scene| {
                scene.command(&["DEL", scene.elector.key()]);
                scene.keep();
            },
        ),
        ("cut off", Reason::RenewError, as_it_is, |scene| {
            scene.cut();
            scene.keep();
        }),
        ("cut off, and it retries", Reason::Expired, retries, |scene| {
            scene.cut();
            scene.keep();
        }),
        ("a right is taken away", Reason::RenewError, as_it_is, |scene| {
            scene.command(&["ACL", "SETUSER", "default", "-pexpire"]);
            scene.keep();
        }),
        ("stepped down", Reason::SteppedDown, as_it_is, |scene| {
            scene.elector.step_down(CAP).expect("the server answers");
            scene.keep();
        }),
        ("stepped down by its leadership", Reason::SteppedDown, as_it_is, |scene| {
            leads(&scene.elector).step_down();
            scene.wait_for_demotion();
            scene.elector.step_down(CAP).expect("not at once again");
            scene.keep();
        }),
        (
            "its work returns",
            Reason::LeadEnded,
            |builder| builder.lead(|_| {}).wait(CAP),
            |scene| scene.keep(),
        ),
        (
            "its work panics",
            Reason::LeadEnded,
            |builder| builder.lead(|_| std::panic::panic_any("as planned")).wait(CAP),
            |scene| scene.keep(),
        ),
        ("stopped", Reason::Stopped, as_it_is, |scene| scene.elector.stop().expect("released")),
        ("dropped", Reason::Stopped, as_it_is, |scene| drop(scene.elector)),
        ("dropped by a panic", Reason::Stopped, as_it_is, |scene| {
            let unwound = thread::spawn({
                let elector = scene.elector;
                move || {
                    let _elector = elector;
                    std::panic::panic_any("as planned");
                }
            });
            unwound.join().expect_err("a panic");
        }),
    ];
    thread::scope(|scope| {
        for &(what, reason, build, exit) in exits {
            scope.spawn(move || {
                let server = Server::start();
                let proxy = Proxy::to(&server);
                let elector = build(builder(&proxy.url(), &unique_group("ways-out")).ttl(600 * MS));
                let (told, tells) = bounded(100);
                let elector = elector.on_demote(move |demotion| told.send(demotion).expect("room"));
                let elector = elector.start().expect("good options");
                let events = elector.events();
                let token = next(&events, "promoted", |event| match event {
                    Event::Promoted(leadership) => Some(leadership.token()),
                    _ => None,
                });
                let channel = elector.on_demote();
                exit(Scene { elector, server: &server, proxy: &proxy });
                // All of them have ended with the elector. One whose lease was deleted may have led again meanwhile.
                let (mut promoted, mut by_events) = (vec![token], Vec::new());
                for event in events.iter() {
                    match event {
                        Event::Promoted(leadership) => promoted.push(leadership.token()),
                        Event::Demoted(demotion) => by_events.push(demotion),
                        _ => continue,
                    }
                    let ahead = promoted.len().checked_sub(by_events.len());
                    assert!(ahead.is_some_and(|ahead| ahead <= 1), "{what}: they do not alternate");
                }
                assert_eq!((by_events[0].token, by_events[0].reason), (token, reason), "{what}");
                assert!(
                    by_events.iter().map(|demotion| demotion.token).eq(promoted),
                    "{what}: {by_events:?}"
                );
                assert_eq!(tells.iter().collect::<Vec<_>>(), by_events, "{what}, by the hook");
                // It holds the newest.
                assert_eq!(channel.iter().next().as_ref(), by_events.last(), "{what}, by the channel");
            });
        }
    });
}

/// B101: who leads was an error, or half of one leader and half of another, while leaders changed.
#[test]
fn who_leads_is_a_whole_answer_while_leaders_change() {
    const CHANGES: u64 = 300;
    let server = Server::start();
    let group = unique_group("changes");
    let start = || builder(&server.url(), &group).wait(CAP).start().expect("good options");
    let electors = [start(), start()];
    eventually(CAP, || electors.iter().find_map(Elector::leadership).ok_or("nobody leads"));
    let tokens_of = |elector: &Elector| {
        let events = elector.events();
        thread::spawn(move || tokens(&events))
    };
    let terms = electors.each_ref().map(tokens_of);
    let (is_over, store) = (AtomicBool::new(false), RedisStore::open(&server.url()).expect("a good url"));
    let ask = |ask: &dyn Fn() -> Inspection| {
        let mut answers = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            answers.extend(ask().leader);
        }
        answers
    };
    let answers = thread::scope(|scope| {
        let by_elector = scope.spawn(|| ask(&|| electors[0].current_leader().expect("the server answers")));
        let by_store = scope.spawn(|| ask(&|| inspect(&store, &group).expect("the server answers")));
        // The two that ask end also where this one panics.
        let _over = OnDrop(|| is_over.store(true, Ordering::Relaxed));
        let changes = || electors.iter().map(|elector| elector.status().counters.promotions).sum::<u64>();
        while changes() < CHANGES {
            let leader = eventually(CAP, || electors.iter().find(|it| it.is_leader()).ok_or("nobody leads"));
            // The other one is woken, and leads meanwhile.
            leader.step_down(2 * MS).unwrap_or_else(|error| panic!("{}", error.to_chain()));
        }
        is_over.store(true, Ordering::Relaxed);
        let mut answers = by_elector.join().expect("no panic");
        answers.extend(by_store.join().expect("no panic"));
        answers
    });
    electors.iter().for_each(|elector| elector.stop().expect("released"));
    let terms = terms.map(|terms| terms.join().expect("no panic"));
    assert!(answers.len() > 100, "{} answers are too few to prove anything", answers.len());
    for leader in &answers {
        let which = electors.iter().position(|elector| elector.id() == leader.id).expect("one of the two");
        let token = leader.token.expect("both keep a term");
        // A win that came into a pause was given back and never told, and so it is nobody's here.
        assert!(!terms[1 - which].contains(&token), "{leader:?}: the token of the other one's term");
    }
}

struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// The tokens of the terms that were told, until the elector's end.
fn tokens(events: &Receiver<Event>) -> Vec<u64> {
    let tokens = events.iter().filter_map(|event| match event {
        Event::Promoted(leadership) => Some(leadership.token()),
        Event::Missed { count } => panic!("{count} events were missed"),
        _ => None,
    });
    tokens.collect()
}

/// B97: the lease was kept, and nobody saw that its work had died long ago.
#[test]
fn a_follower_takes_over_from_an_instance_whose_work_has_died() {
    let store = MemoryStore::new();
    let start = |builder: Builder| builder.ttl(CAP * 4).wait(CAP * 4).start().expect("good options");
    let (die, dies) = bounded::<()>(0);
    let dying = start(Elector::builder(store.clone(), "dying").lead(move |_| dies.recv().expect("told to")));
    leads(&dying);
    let other = start(Elector::builder(store, "dying"));
    follows(&other);
    // Its thread panics, for nobody can tell it anything any more.
    drop(die);
    leads(&other);
    assert_eq!(dying.on_demote().recv_timeout(CAP).expect("told").reason, Reason::LeadEnded);
    assert!(dying.on_error().recv_timeout(CAP).expect("told").to_string().contains("panicked"));
}
