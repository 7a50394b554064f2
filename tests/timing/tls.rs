//! The bounds of what goes over TLS.

use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use taskrunner::election::{Builder, Elector, ErrorKind, Reason, RedisStore, RenewError, Tls};

use crate::support::tls::{Authority, TlsServer, is_here};
use crate::support::{Server, eventually, unique_group};

/// Longer than anything takes that is to happen.
const CAP: Duration = Duration::from_secs(30);

const MS: Duration = Duration::from_millis(1);

/// What a busy machine may add.
const SLACK: Duration = Duration::from_millis(500);

fn builder(url: &str, tls: Tls) -> Builder {
    let store = RedisStore::open(url).expect("a good url").with_tls(tls);
    Elector::builder(store, unique_group("tls")).ttl(1000 * MS).wait(100 * MS)
}

/// The call limit is half the ttl.
#[test]
fn a_handshake_that_is_not_answered_takes_no_longer_than_a_call() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let silent = listener.local_addr().expect("it is bound");
    let plain = Server::start();
    for address in [silent, plain.address()] {
        let from = Instant::now();
        let elector = builder(&format!("rediss://{address}/"), Tls::default()).start().expect("good options");
        let error = elector.on_error().recv_timeout(CAP).expect("it is told");
        let (took, chain) = (from.elapsed(), error.to_chain());
        assert!(took < 500 * MS + SLACK, "{took:?}: {chain}");
        // A plain server answers if it finds a line in what it got.
        assert!(chain.contains("TLS") && chain.contains("this port"), "{chain}");
        if address == silent {
            assert_eq!(error.kind(), ErrorKind::Passing, "{chain}");
        }
        let from = Instant::now();
        elector.stop().ok();
        assert!(from.elapsed() < 1000 * MS + SLACK, "{:?}", from.elapsed());
    }
}

#[test]
fn a_server_that_is_frozen_mid_lease_ends_the_term_on_time_and_elects_again_once_it_goes_on() {
    if !is_here() {
        return;
    }
    let authority = Authority::new();
    let server = TlsServer::start(&authority, &[]);
    let tls = Tls::default().with_ca(authority.pem()).expect("a good certificate");
    for policy in [RenewError::Demote, RenewError::Retry] {
        let elector = builder(&server.url(), tls.clone()).renew_error(policy).start().expect("good options");
        let before = elector.wait_for_leadership(CAP).expect("leads");
        let renewals = || elector.status().counters.renewals;
        let from = renewals();
        eventually(CAP, || if renewals() > from { Ok(()) } else { Err(renewals()) });
        server.server.freeze();
        let (demotions, frozen) = (elector.on_demote(), Instant::now());
        let demotion = demotions.recv_timeout(CAP).expect("the term ends");
        let took = frozen.elapsed();
        assert!(took < 1000 * MS + SLACK && !elector.is_leader(), "{policy:?}: {took:?}");
        assert!(matches!(demotion.reason, Reason::Expired | Reason::RenewError), "{demotion:?}");
        server.server.thaw();
        assert!(elector.wait_for_leadership(CAP).expect("leads again").token() > before.token());
        elector.stop().expect("released");
    }
}
