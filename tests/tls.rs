//! Elections over TLS with a server that has it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use taskrunner::election::{Builder, Elector, ErrorKind, Operation, Reason, RedisStore, Tls};

use crate::support::process::{fd_count, thread_names};
use crate::support::tls::{Authority, TlsServer, Validity, is_here};
use crate::support::{Campaign, Server, eventually, in_own_process, unique_group};

/// Longer than anything takes that is to happen.
const CAP: Duration = Duration::from_secs(30);

const MS: Duration = Duration::from_millis(1);

fn trusting(authority: &Authority) -> Tls {
    Tls::default().with_ca(authority.pem()).expect("a good certificate")
}

fn builder(url: &str, tls: Tls, group: &str) -> Builder {
    Elector::builder(RedisStore::open(url).expect("a good url").with_tls(tls), group)
}

/// That it is told again and again what is wrong, no more often than every wait, and that nobody leads.
#[track_caller]
fn expect_refused(what: &str, url: &str, tls: Tls, parts: &[&str]) {
    let wait = 100 * MS;
    let elector = builder(url, tls, &unique_group("refused")).wait(wait).start().expect("good options");
    let (errors, from) = (elector.on_error(), Instant::now());
    for _ in 0..4 {
        let error = errors.recv_timeout(CAP).expect("it is told each time");
        let chain = error.to_chain();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{what}: {chain}");
        assert_eq!(error.operation(), Some(Operation::Connect), "{what}: {chain}");
        for part in parts {
            assert!(chain.contains(part), "{what}: {chain:?} lacks {part:?}");
        }
    }
    // Two of the four may be of the two connections of one round.
    assert!(from.elapsed() >= wait, "{what}: a hot loop");
    assert!(!elector.is_leader());
    elector.stop().expect("there is nothing to release");
}

#[test]
fn a_server_that_proves_its_name_or_its_address_is_led_by_with_tls_1_2_and_1_3() {
    if !is_here() {
        return;
    }
    let authority = Authority::new();
    for version in ["TLSv1.2", "TLSv1.3"] {
        let server = TlsServer::start(&authority, &["--tls-protocols", version]);
        for url in [server.url(), format!("valkeys://localhost:{}/3", server.tls_port)] {
            let elector = builder(&url, trusting(&authority), &unique_group("name")).start();
            let elector = elector.expect("good options");
            elector.wait_for_leadership(CAP).unwrap_or_else(|error| panic!("{url}: {}", error.to_chain()));
            elector.stop().expect("released");
        }
    }
}

#[test]
fn a_certificate_that_proves_nothing_is_refused_with_what_is_wrong_and_what_to_do() {
    if !is_here() {
        return;
    }
    let authority = Authority::new();
    let good = TlsServer::start(&authority, &[]);
    let bad = |names: &[&str], validity| TlsServer::named(&authority, names, validity, &[]);
    let local = ["127.0.0.1"];
    let (elsewhere, past, future) =
        (bad(&["elsewhere.test"], Validity::Now), bad(&local, Validity::Past), bad(&local, Validity::Future));
    let trusted = || trusting(&authority);
    for (what, server, tls, parts) in [
        ("another authority", &good, trusting(&Authority::new()), &["UnknownIssuer", "with_ca"][..]),
        ("the system's authorities", &good, Tls::default(), &["with_ca"]),
        ("another name", &elsewhere, trusted(), &["elsewhere.test", "as its certificate does"]),
        ("expired", &past, trusted(), &["expired", "clock"]),
        ("not valid yet", &future, trusted(), &["not valid yet", "clock"]),
    ] {
        expect_refused(what, &server.url(), tls, parts);
    }
    // Without the TLS of the test, the URL alone asks for it.
    let plain = RedisStore::open(&good.url()).expect("a good url");
    let elector = Elector::builder(plain, unique_group("url")).start().expect("good options");
    let error = elector.on_error().recv_timeout(CAP).expect("it is told");
    assert_eq!(error.kind(), ErrorKind::Configuration, "{}", error.to_chain());
    drop(elector);
}

#[test]
fn a_client_certificate_is_shown_and_one_that_is_missing_or_not_trusted_is_told() {
    if !is_here() {
        return;
    }
    let authority = Authority::new();
    let shows = |signer: &Authority| {
        let (certificate, key) = signer.sign(&["client"], Validity::Now);
        trusting(&authority).with_client_certificate(certificate, key).expect("a good certificate")
    };
    for version in ["TLSv1.2", "TLSv1.3"] {
        let server = TlsServer::start(&authority, &["--tls-auth-clients", "yes", "--tls-protocols", version]);
        let elector = builder(&server.url(), shows(&authority), &unique_group("client")).start();
        elector.expect("good options").wait_for_leadership(CAP).expect("leads");
        let advice = &["client certificate"][..];
        expect_refused("none", &server.url(), trusting(&authority), advice);
        expect_refused("of another authority", &server.url(), shows(&Authority::new()), advice);
    }
}

#[test]
fn what_is_no_certificate_or_no_key_is_refused_at_once_and_a_key_is_never_shown() {
    let authority = Authority::new();
    let (certificate, key) = authority.sign(&["client"], Validity::Now);
    let (_, other) = authority.sign(&["client"], Validity::Now);
    let mangled = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let secret = key.lines().nth(1).expect("a line of the key").to_owned();
    let with_ca = |pem: &str| Tls::default().with_ca(pem);
    let with_client = |cert: &str, key: &str| Tls::default().with_client_certificate(cert, key);
    for (refused, part) in [
        (with_ca(""), "certificate authority has no certificate"),
        (with_ca(&key), "certificate authority has no certificate"),
        (with_ca(mangled), "certificate authority cannot be used"),
        (with_client("", &key), "client certificate has no certificate"),
        (with_client(&certificate, &certificate), "no private key"),
        (with_client(&certificate, &other), "client certificate cannot be used"),
        (with_client(mangled, &key), "client certificate cannot be used"),
    ] {
        let error = refused.expect_err(part);
        assert_eq!(error.kind(), ErrorKind::Configuration);
        let shown = format!("{error:?} {}", error.to_chain());
        assert!(shown.contains(part) && !shown.contains(&secret), "{shown:?} lacks {part:?}");
    }
    let tls = with_client(&certificate, &key).expect("they belong together");
    let store = RedisStore::open("rediss://leases.internal").expect("a good url").with_tls(tls.clone());
    assert!(!format!("{tls:?} {store:?}").contains(&secret));
}

#[test]
fn a_port_that_speaks_otherwise_than_the_url_says_is_told() {
    if !is_here() {
        return;
    }
    let authority = Authority::new();
    let server = TlsServer::start(&authority, &[]);
    let plain_to_tls = format!("redis://127.0.0.1:{}/", server.tls_port);
    let elector =
        Elector::builder(RedisStore::open(&plain_to_tls).expect("a good url"), unique_group("plain"));
    let elector = elector.wait(100 * MS).start().expect("good options");
    for _ in 0..3 {
        let error = elector.on_error().recv_timeout(CAP).expect("it is told");
        let chain = error.to_chain();
        // A server may be gone for a moment; only one that says TLS by itself is known to want it.
        assert!(chain.contains("TLS") && chain.contains("rediss://"), "{chain}");
    }
    // A server without TLS reads lines, and answers only once it has found one in what came.
    let tls_to_plain = format!("rediss://127.0.0.1:{}/", server.server.port());
    let elector = builder(&tls_to_plain, trusting(&authority), &unique_group("tls"));
    let elector = elector.ttl(600 * MS).wait(100 * MS).start().expect("good options");
    for _ in 0..3 {
        let chain = elector.on_error().recv_timeout(CAP).expect("it is told").to_chain();
        let told = ["does not speak TLS", "without TLS on this port"].iter().any(|part| chain.contains(part));
        assert!(told, "{chain}");
    }
    // What says something else, and at once.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let other = listener.local_addr().expect("it is bound");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            stream.read(&mut [0; 1024]).and_then(|_| stream.write_all(b"-ERR what?\r\n")).ok(); // It may be gone.
        }
    });
    expect_refused("no TLS", &format!("rediss://{other}/"), trusting(&authority), &["does not speak TLS"]);
}

#[test]
fn an_election_over_tls_has_takeovers_wakes_and_a_clean_stop() {
    if !is_here() {
        return;
    }
    let authority = Authority::new();
    let (certificate, key) = authority.sign_files(&["client"], Validity::Now);
    let shown = authority.sign(&["client"], Validity::Now);
    // The server's own certificate and key are read when it starts.
    let server = TlsServer::start(&authority, &["--tls-auth-clients", "yes"]);
    let group = unique_group("election");
    // It dies without a word: its certificate is that of the server, which the authority has signed, too.
    let file = |path: &std::path::Path| path.to_str().expect("a path of the harness").to_owned();
    let (ca, certificate, key) = (file(&authority.file()), file(&certificate), file(&key));
    let args = ["--ttl", "1s", "--tls-ca", &ca, "--tls-cert", &certificate, "--tls-key", &key];
    let mut dying = Campaign::start(&group, &server.url(), &args);
    dying.wait_for(|line| line.is("promoted"), CAP);
    let tls = trusting(&authority).with_client_certificate(shown.0, shown.1).expect("good");
    // Only a wake, and no attempt of its own, can bring the second one to the lead in time.
    let start = |ttl| builder(&server.url(), tls.clone(), &group).ttl(ttl).wait(2 * CAP).start();
    let first = start(2 * CAP).expect("good options");
    eventually(CAP, || first.status().leader.map(|_| ()).ok_or("it does not follow"));
    dying.kill9();
    let term = first.wait_for_leadership(CAP).expect("takes over at the lease's end");
    let second = start(2 * CAP).expect("good options");
    eventually(CAP, || second.status().leader.map(|_| ()).ok_or("it does not follow"));
    // Its wake connection is there, too.
    let mut admin = server.server.admin();
    let channel = format!("{}:wake", first.key());
    eventually(CAP, || match admin.command(&["PUBSUB", "NUMSUB", &channel]).list()[1].int() {
        2 => Ok(()),
        listeners => Err(listeners),
    });
    first.stop().expect("released");
    assert!(second.wait_for_leadership(CAP).expect("woken").token() > term.token());
    second.stop().expect("released");
}

#[test]
fn a_lease_is_renewed_over_tls_on_one_connection_that_rests_in_between() {
    if !is_here() {
        return;
    }
    let authority = Authority::new();
    for version in ["TLSv1.2", "TLSv1.3"] {
        let server = TlsServer::start(&authority, &["--tls-protocols", version]);
        let elector = builder(&server.url(), trusting(&authority), &unique_group("rests"));
        let elector = elector.ttl(1000 * MS).jitter(Duration::ZERO).start().expect("good options");
        let term = elector.wait_for_leadership(CAP).expect("leads");
        let mut admin = server.server.admin();
        let mut connections = || {
            let info = admin.command(&["INFO", "stats"]);
            let line = info.text().lines().find(|line| line.starts_with("total_connections_received"));
            line.expect("it is told").to_owned()
        };
        // The wake connection is made beside the first renewal.
        let renewed = |times| {
            eventually(CAP, || match elector.status().counters.renewals {
                renewals if renewals >= times => Ok(()),
                renewals => Err(renewals),
            });
        };
        renewed(1);
        let before = connections();
        renewed(4);
        if term.is_valid() {
            // A busy machine may have ended the term.
            assert_eq!(connections(), before, "{version}: each renewal dials");
        }
        assert!(elector.on_demote().try_iter().all(|demotion| demotion.reason == Reason::Expired));
    }
}

#[test]
fn electors_over_tls_that_come_and_go_leave_no_thread_and_no_descriptor() {
    if !is_here() {
        return;
    }
    in_own_process("tls::electors_over_tls_that_come_and_go_leave_no_thread_and_no_descriptor", || {
        let authority = Authority::new();
        let server = TlsServer::start(&authority, &[]);
        let plain = Server::start();
        let group = unique_group("come-and-go");
        let counts = || (thread_names(process::id()).len(), fd_count(process::id()));
        let cycle = |tls: &Tls| {
            let elector = builder(&server.url(), tls.clone(), &group).start().expect("good options");
            elector.wait_for_leadership(CAP).expect("leads");
            elector.stop().expect("released");
            // Those of a handshake that fails, and of one that is cut off.
            let refused = builder(&server.url(), Tls::default(), &group).start().expect("good options");
            refused.on_error().recv_timeout(CAP).expect("it is not trusted");
            drop(refused);
            let url = plain.url().replace("redis://", "rediss://");
            drop(builder(&url, tls.clone(), &group).start().expect("good options"));
        };
        let tls = trusting(&authority);
        (0..10).for_each(|_| cycle(&tls));
        let ours = || thread_names(process::id()).iter().any(|name| name.starts_with("tr-"));
        eventually(CAP, || if ours() { Err("a thread is listed after it was joined") } else { Ok(()) });
        let before = counts();
        (0..50).for_each(|_| cycle(&tls));
        eventually(CAP, || if counts() == before { Ok(()) } else { Err((counts(), before)) });
    });
}

#[test]
fn what_the_system_trusts_is_read_within_the_time_of_a_dial_and_used_once_it_is_read() {
    if !is_here() {
        return;
    }
    let authority = Authority::new();
    let server = TlsServer::start(&authority, &[]);
    // Reading it takes until somebody writes.
    let directory = tempfile::tempdir().expect("a directory");
    let pipe = directory.path().join("authorities.pem");
    assert!(process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo is there").success());
    let mut command = process::Command::new(env!("CARGO_BIN_EXE_taskrunner"));
    command.args(["campaign", "--format", "json", "--ttl", "2s", "--group", &unique_group("authorities")]);
    command.args(["--redis", &server.url()]).env("SSL_CERT_FILE", &pipe).env_remove("SSL_CERT_DIR");
    let mut campaign = Campaign::spawn(command);
    for _ in 0..3 {
        let error = campaign.wait_event(campaign.mark(), "error", CAP);
        assert!(
            error.text("message").contains("reading the certificate authorities"),
            "{}",
            error.text("message")
        );
        assert!(error.text("message").contains("took longer"), "{}", error.text("message"));
    }
    std::fs::write(&pipe, authority.pem()).expect("it is read");
    campaign.wait_event(0, "promoted", CAP);
    campaign.terminate();
    assert!(campaign.wait_exit(CAP).success());
}

#[test]
fn a_key_whose_lines_were_joined_is_refused_and_not_shown() {
    let (certificate, key) = Authority::new().sign(&["client"], Validity::Now);
    let secret = key.lines().nth(1).expect("a line of the key");
    let in_numbers = format!("{:?}", secret.as_bytes());
    let in_numbers = in_numbers.trim_matches(['[', ']']);
    for (what, joined) in
        [("as an escaped text", key.replace('\n', "\\n")), ("by spaces", key.replace('\n', " "))]
    {
        let as_key = Tls::default().with_client_certificate(&certificate, &joined).expect_err(what);
        let as_certificate = Tls::default().with_client_certificate(&joined, &key).expect_err(what);
        let as_authority = Tls::default().with_ca(&joined).expect_err(what);
        for error in [as_key, as_certificate, as_authority] {
            let shown = format!("{error:?} {}", error.to_chain());
            assert!(!shown.contains(secret) && !shown.contains(in_numbers), "{what}: the key is shown");
            assert!(shown.contains("if the lines were joined, keep the line ends"), "{what}: {shown}");
        }
    }
}
