//! Servers that are old, or lack what is not needed.

use std::time::Duration;

use taskrunner::election::RedisStore;
use taskrunner::election::inspect;

use super::{CAP, builder, follows, leads};
use crate::support::{Server, eventually, unique_group};

/// B106, B107: a command that is newer than the server, or that its operator has taken away, was needed.
#[test]
fn an_election_needs_none_of_the_commands_that_some_servers_lack() {
    // HELLO is as before Redis 6, and ROLE as with managed servers. SUBSCRIBE and PUBLISH cost only the wake.
    let common = [
        "CLIENT", "CONFIG", "SCRIPT", "EVALSHA", "INFO", "WAIT", "COMMAND", "MONITOR", "KEYS", "SELECT",
        "MULTI", "WATCH", "PING",
    ];
    let without = |more: &[&'static str]| [&common[..], more].concat();
    for (lacks, wakes) in [
        (without(&[]), true),
        (without(&["HELLO"]), true),
        (without(&["HELLO", "ROLE", "AUTH"]), true),
        (without(&["HELLO", "ROLE", "SUBSCRIBE", "PUBLISH"]), false),
    ] {
        let args: Vec<_> = lacks.iter().flat_map(|command| ["--rename-command", command, ""]).collect();
        let server = Server::with(&args);
        let group = unique_group("lacks");
        let ttl = if wakes { CAP * 4 } else { Duration::from_secs(2) };
        let start = || builder(&server.url(), &group).ttl(ttl).wait(CAP * 4).start().expect("good options");
        let leader = start();
        let first = leads(&leader);
        let follower = start();
        follows(&follower);
        if wakes {
            // Only a wake makes the follower lead within the cap, so it has to be listening.
            let listening = format!("{}:wake", leader.key());
            let mut admin = server.admin();
            eventually(CAP, || match admin.command(&["PUBSUB", "NUMSUB", &listening]).list()[1].int() {
                2 => Ok(()),
                count => Err(count),
            });
        } else {
            // Its renewals are what it leads by.
            eventually(CAP, || match leader.status().counters.renewals {
                2.. => Ok(()),
                renewals => Err(renewals),
            });
        }
        leader.stop().expect("released");
        let second = leads(&follower);
        assert!(second.token() > first.token(), "{lacks:?}");
        let store = RedisStore::open(&server.url()).expect("a good url");
        let seen = inspect(&store, &group).expect("the server answers").leader.expect("somebody leads");
        assert_eq!((seen.id.as_str(), seen.token), (follower.id(), Some(second.token())));
        follower.stop().expect("released");
    }
}

/// B106: a server that cannot do what is needed was found out by a failure without a name.
#[test]
fn a_server_without_scripts_is_told_by_name() {
    let server = Server::with(&["--rename-command", "EVAL", ""]);
    let elector = builder(&server.url(), &unique_group("no-eval")).start().expect("good options");
    let error = elector.on_error().recv_timeout(CAP).expect("it is told");
    let chain = error.to_chain();
    assert_eq!(error.kind(), taskrunner::election::ErrorKind::Configuration, "{chain}");
    assert!(chain.contains("unknown command") && chain.contains("EVAL"), "{chain}");
}
