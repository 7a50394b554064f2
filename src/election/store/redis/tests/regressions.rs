//! What has gone wrong in other implementations and takes the bytes of a request to show, each under its id in
//! `tests/REGRESSIONS.md`.

use super::*;
use crate::election::store::strict::{Call, Ledger};
use crate::server::{Reply, Server};

/// B60: a client that died between two commands left a lease without expiry, which kept everybody out for ever.
#[test]
fn a_request_that_is_cut_after_any_byte_does_nothing_and_the_whole_one_sets_the_expiry() {
    let server = Server::start();
    let mut admin = server.admin();
    let operation = |action| Operation { ttl: Duration::from_secs(3600), ..operation(action) };
    let acquire = operation(Action::Acquire { attempt: 1, floor: 0 });
    let mut bytes = Vec::new();
    pack(&acquire, &Ledger::default().call(&acquire, Instant::now()), &mut bytes);
    let send = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(server.address()).expect("the server listens");
        stream.set_read_timeout(Some(CAP)).expect("a timeout");
        stream.write_all(bytes).expect("the server reads");
        stream.shutdown(std::net::Shutdown::Write).expect("connected");
        // The server closes once it has read all there is.
        stream.read_to_end(&mut Vec::new()).expect("the end");
    };
    let (lease, term) = (acquire.group.lease(), acquire.group.term());
    for length in 0..bytes.len() {
        send(&bytes[..length]);
        assert_eq!(admin.command(&["EXISTS", lease, term]), Reply::Int(0), "after {length} bytes");
    }
    send(&bytes);
    assert!((1..=3_600_000).contains(&admin.command(&["PTTL", lease]).int()));
    let token = admin.command(&["HGET", term, "token"]).text().parse().expect("a token is a number");
    // A renewal that is cut leaves the end where it was.
    assert_eq!(admin.command(&["PEXPIRE", lease, "7200000"]), Reply::Int(1));
    bytes.clear();
    pack(&operation(Action::Renew { token }), &Call::Renew { token, strict: None }, &mut bytes);
    for length in 0..bytes.len() {
        send(&bytes[..length]);
    }
    assert!(admin.command(&["PTTL", lease]).int() > 3_600_000, "half a renewal was executed");
    send(&bytes);
    assert!((1..=3_600_000).contains(&admin.command(&["PTTL", lease]).int()), "the whole one was not");
}
