//! The wire over TLS, with a server that does what a test tells it to.

use std::io::{Read, Write};
use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use redis::Value;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::*;
use crate::election::store::budget::BellEnd;
use crate::election::store::redis::wire::{Broken, Patience, Wire};

const PONG: &[u8] = b"+PONG\r\n";

type Served = StreamOwned<ServerConnection, TcpStream>;

/// A connection over TLS, and the thread of its server, which has done its handshake.
fn connect<T: Send + 'static>(serve: impl FnOnce(Served) -> T + Send + 'static) -> (Wire, JoinHandle<T>) {
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(["127.0.0.1".to_owned()]).expect("a good name");
    let certificate = params.self_signed(&key).expect("a certificate");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has them")
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).expect("a key"),
        )
        .expect("they belong together");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let server = thread::spawn(move || {
        let mut stream = listener.accept().expect("a client").0;
        stream.set_read_timeout(Some(CAP)).expect("a timeout");
        stream.set_nodelay(true).expect("an option");
        let mut connection = ServerConnection::new(Arc::new(config)).expect("a good configuration");
        while connection.is_handshaking() {
            connection.complete_io(&mut stream).expect("a handshake");
        }
        serve(StreamOwned::new(connection, stream))
    });
    let tls = Tls::default().with_ca(certificate.pem()).expect("a good certificate");
    let wire =
        with_patience(LONG, |patience| Wire::tcp(address, patience)?.encrypted(&tls, "127.0.0.1", patience));
    (wire.expect("a handshake"), server)
}

fn with_patience<T>(time: Duration, act: impl FnOnce(&Patience<'_>) -> T) -> T {
    let (bell, end): (_, BellEnd) = crate::election::store::Bell::new().expect("descriptors");
    act(&Patience::new(&Budget::new(Instant::now() + time, &bell), &end))
}

fn receive(wire: &mut Wire) -> std::result::Result<Value, Broken> {
    with_patience(LONG, |patience| wire.receive_any(patience))
}

/// Waits until the server's bytes have come, whatever they are.
fn wait_for_bytes(wire: &mut Wire, from: &Receiver<()>) -> bool {
    from.recv_timeout(CAP).expect("the server has sent them");
    // What was sent over the loopback is there, but another thread may have to carry it.
    let until = Instant::now() + Duration::from_millis(200);
    while Instant::now() < until && wire.is_quiet() {
        thread::yield_now();
    }
    wire.is_quiet()
}

#[test]
fn a_connection_is_quiet_among_tickets_and_not_after_a_reply_that_nobody_asked_for_or_a_close() {
    for says_farewell in [None, Some(false), Some(true)] {
        let (told, sent) = unbounded();
        let (go, may_go) = unbounded::<()>();
        let (mut wire, server) = connect(move |mut stream: Served| {
            // The tickets of TLS 1.3 went out with the handshake.
            stream.flush().expect("the client reads");
            told.send(()).expect("the test waits");
            may_go.recv_timeout(CAP).expect("the test goes on");
            match says_farewell {
                None => stream.write_all(PONG).expect("the client is there"),
                Some(says) => {
                    if says {
                        stream.conn.send_close_notify();
                        stream.flush().expect("the client is there");
                    }
                    stream.sock.shutdown(std::net::Shutdown::Write).expect("a connection");
                }
            }
            told.send(()).expect("the test waits");
            stream
        });
        assert!(wait_for_bytes(&mut wire, &sent), "tickets are no reply");
        go.send(()).expect("the server waits");
        sent.recv_timeout(CAP).expect("it is sent");
        let from = Instant::now();
        while wire.is_quiet() {
            assert!(from + CAP > Instant::now(), "{says_farewell:?} is not noticed");
        }
        match (says_farewell, receive(&mut wire)) {
            (None, Ok(Value::SimpleString(text))) => assert_eq!(text, "PONG"),
            (Some(_), Err(Broken::Closed)) => {}
            (_, other) => panic!("{says_farewell:?}: {other:?}"),
        }
        drop(server.join().expect("no panic"));
    }
}

#[test]
fn a_reply_that_comes_byte_by_byte_or_together_with_the_farewell_is_read() {
    let (mut wire, server) = connect(|mut stream: Served| {
        let mut sealed = Vec::new();
        stream.conn.writer().write_all(PONG).expect("there is room");
        stream.conn.writer().write_all(PONG).expect("there is room");
        stream.conn.write_tls(&mut sealed).expect("a vector takes all");
        for byte in sealed {
            stream.sock.write_all(&[byte]).expect("the client reads");
        }
        stream.conn.writer().write_all(PONG).expect("there is room");
        stream.conn.send_close_notify();
        stream.conn.write_tls(&mut stream.sock).expect("the client reads");
        stream
    });
    for _ in 0..3 {
        assert!(matches!(receive(&mut wire), Ok(Value::SimpleString(text)) if text == "PONG"));
    }
    assert!(matches!(receive(&mut wire), Err(Broken::Closed)), "the socket is open still");
    drop(server.join().expect("no panic"));
}

/// What is told as not sent must not have arrived, however the connection ended.
#[test]
fn what_may_have_been_sent_is_never_told_as_less_than_what_the_server_could_read() {
    let (mut wire, server) = connect(|mut stream: Served| {
        // Nothing is read until the client has given up.
        thread::sleep(2 * SHORT);
        let mut read = 0;
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            read += count;
        }
        read
    });
    let batch = vec![b'x'; 64 << 20];
    let (sent, broken) =
        with_patience(SHORT, |patience| wire.send(&batch, patience)).expect_err("it is too much");
    assert!(matches!(broken, Broken::Late), "{broken:?}");
    drop(wire);
    let arrived = server.join().expect("no panic");
    assert!(0 < arrived && arrived <= sent && sent < batch.len(), "{arrived} arrived, {sent} were told");
}

#[test]
fn a_connection_that_is_cut_before_anything_was_sent_says_so() {
    let (mut wire, server) = connect(|stream: Served| drop(stream));
    server.join().expect("no panic");
    // The first write may be taken by a kernel that has not heard of the end yet, and the second is not.
    let sent = with_patience(LONG, |patience| {
        loop {
            match wire.send(b"x", patience) {
                Ok(()) => {}
                Err((sent, Broken::Io(_))) => return sent,
                Err(other) => panic!("{other:?}"),
            }
        }
    });
    assert_eq!(sent, 0);
}

/// Bytes that are no record of TLS any more.
#[test]
fn what_is_no_record_ends_a_connection() {
    let (mut wire, server) = connect(|mut stream: Served| {
        stream.sock.write_all(b"+PONG\r\n").expect("the client is there");
        stream
    });
    assert!(matches!(receive(&mut wire), Err(Broken::Garbage(_))));
    drop(server.join().expect("no panic"));
}
