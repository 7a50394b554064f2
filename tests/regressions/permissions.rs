//! Users who may do a part of what an election needs.

use std::thread;
use std::time::Instant;

use taskrunner::election::{ErrorKind, Event, Operation, Reason, RenewError};

use super::{CAP, MS, builder, demotion, holder, leads, next};
use crate::support::{Server, eventually, unique_group};

const RIGHTS: [&str; 6] = [
    ">pass",
    "~taskrunner:leader:*",
    "~{taskrunner:leader:*",
    "resetchannels",
    "&taskrunner:leader:*",
    "+@all",
];

/// What an elector cannot do without; SELECT and HELLO are told at once, with the connection.
const NEEDED: [&str; 10] = ["eval", "get", "set", "pexpire", "pttl", "del", "hdel", "hset", "hmget", "time"];

fn set_user(server: &Server, rights: &[&str]) {
    let command = ["ACL", "SETUSER", "svc", "on"].iter().chain(rights).copied().collect::<Vec<_>>();
    assert_eq!(server.command(&command).text(), "OK");
}

fn url(server: &Server) -> String {
    server.url().replace("redis://", "redis://svc:pass@")
}

/// B103: who could win and not renew was elected and lost the lease over and over.
#[test]
fn whichever_right_is_missing_nobody_is_elected_who_cannot_stay() {
    let server = Server::start();
    thread::scope(|scope| {
        for missing in NEEDED {
            let server = &server;
            scope.spawn(move || {
                let user = format!("svc-{missing}");
                let lacks = format!("-{missing}");
                let set = |rights: &[&str]| {
                    let command = [&["ACL", "SETUSER", &user, "on"], rights].concat();
                    assert_eq!(server.command(&command).text(), "OK");
                };
                set(&[&RIGHTS[..], &[&lacks]].concat());
                let url = server.url().replace("redis://", &format!("redis://{user}:pass@"));
                let elector = builder(&url, &unique_group(missing))
                    .ttl(300 * MS)
                    .wait(100 * MS)
                    .start()
                    .expect("good options");
                let errors = elector.on_error();
                for _ in 0..5 {
                    let error = errors.recv_timeout(CAP).expect("it is told each time");
                    let chain = error.to_chain();
                    assert_eq!(error.kind(), ErrorKind::Configuration, "{chain}");
                    assert_eq!(error.operation(), Some(Operation::Acquire), "{chain}");
                }
                set(&["+@all"]);
                leads(&elector);
                let promotions = elector.status().counters.promotions;
                assert_eq!(promotions, 1, "without {missing} it was elected, too");
            });
        }
    });
}

/// B103, B102: a right that is taken away mid-term was taken for the loss of the lease.
#[test]
fn a_right_that_is_taken_away_and_given_back_in_time_costs_a_leader_that_retries_nothing() {
    for gives_back in [true, false] {
        let server = Server::start();
        set_user(&server, &RIGHTS);
        let ttl = if gives_back { 6000 * MS } else { 600 * MS };
        let elector = builder(&url(&server), &unique_group("mid-term"))
            .ttl(ttl)
            .wait(200 * MS)
            .renew_error(RenewError::Retry)
            .start()
            .expect("good options");
        let (events, leadership) = (elector.events(), leads(&elector));
        let renewals = elector.status().counters.renewals;
        let due = Instant::now() + ttl / 2;
        set_user(&server, &["-pexpire"]);
        if gives_back {
            // Not a wait for anything: the renewal and its first repetitions fall into this time.
            thread::sleep(due.saturating_duration_since(Instant::now()) + 300 * MS);
            assert_eq!(elector.status().counters.renewals, renewals, "it was renewed without the right");
            set_user(&server, &["+pexpire"]);
            eventually(CAP, || match elector.status().counters.renewals {
                now if now > renewals => Ok(()),
                now => Err(now),
            });
            assert!(leadership.is_valid());
            continue;
        }
        let demoted = next(&events, "demoted", demotion);
        assert_eq!(demoted, (leadership.token(), Reason::Expired), "a missing right is no loss");
        let error = next(&events, "of the renewal", |event| match event {
            Event::Error(error) => Some(error.clone()),
            _ => None,
        });
        assert_eq!((error.kind(), error.operation()), (ErrorKind::Configuration, Some(Operation::Renew)));
        // It released what it could not keep, and others may have it.
        let mut admin = server.admin();
        eventually(CAP, || holder(&mut admin, elector.key()).map_or(Ok(()), Err));
        set_user(&server, &["+@all"]);
        assert!(leads(&elector).token() > leadership.token());
        elector.stop().expect("released");
    }
}
