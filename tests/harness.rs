//! The harness's own tests: a fault that is none, or a judge that never finds anything, would make every other
//! test pass.

mod topologies;

use std::fmt::Debug;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

use crate::support::own_process;
use crate::support::process::{fd_count, rss_kb, thread_names};
use crate::support::{
    Admin, Campaign, Flow, Proxy, Reply, Server, eventually, in_own_process, in_own_process_within, median,
    unique_group,
};

/// Longer than anything takes that is to happen, on the slowest machine.
const CAP: Duration = Duration::from_secs(20);

/// How long to look for something that must not happen.
const QUIET: Duration = Duration::from_millis(150);

/// The message of the panic that `act` must end in.
#[track_caller]
pub(crate) fn panic_of<T: Debug>(act: impl FnOnce() -> T) -> String {
    let payload = catch_unwind(AssertUnwindSafe(act)).expect_err("a panic was expected");
    payload.downcast::<String>().map(|text| *text).expect("a panic with a formatted message")
}

#[track_caller]
fn times_out(result: io::Result<Reply>) {
    let error = result.expect_err("no reply was expected");
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
}

fn connect(proxy: &Proxy) -> Admin {
    Admin::tcp(proxy.port(), CAP).expect("the proxy accepts")
}

fn pong() -> Reply {
    Reply::Text("PONG".to_owned())
}

// Servers.

#[test]
fn a_server_answers_on_its_port_and_on_its_socket() {
    let server = Server::start();
    let mut tcp = Admin::tcp(server.port(), CAP).expect("the port accepts");
    assert_eq!(tcp.command(&["SET", "key", "value"]), Reply::Text("OK".to_owned()));
    assert_eq!(server.command(&["GET", "key"]).text(), "value");
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}/", server.port()));
    assert!(server.unix_url().ends_with("/redis.sock"), "{}", server.unix_url());
    assert!(fs::exists(format!("/proc/{}", server.pid())).expect("/proc can be looked at"));
}

#[test]
fn a_server_takes_more_arguments_and_persists_nothing() {
    let server = Server::with(&["--maxmemory", "3mb"]);
    let mut admin = server.admin();
    let text = |text: &str| Reply::Text(text.to_owned());
    for (name, value) in [("maxmemory", "3145728"), ("save", ""), ("appendonly", "no")] {
        let reply = admin.command(&["CONFIG", "GET", name]);
        assert_eq!(reply.list(), [text(name), text(value)]);
    }
}

#[test]
fn servers_do_not_share_anything() {
    let (one, other) = (Server::start(), Server::start());
    assert_ne!(one.port(), other.port());
    one.command(&["SET", "key", "value"]);
    assert_eq!(other.command(&["GET", "key"]), Reply::Nil);
}

#[test]
fn a_server_that_cannot_start_fails_the_test_with_its_log() {
    let message = panic_of(|| Server::with(&["--no-such-option", "1"]));
    assert!(message.contains("no-such-option"), "{message}");
}

#[test]
fn a_frozen_server_answers_once_it_is_thawed() {
    let server = Server::start();
    let mut before = server.admin_within(QUIET);
    let mut other = server.admin();
    server.freeze();
    times_out(before.try_command(&["SET", "key", "value"]));
    // The kernel goes on accepting, so a connect proves nothing.
    let mut during = Admin::tcp(server.port(), QUIET).expect("the port accepts");
    times_out(during.try_command(&["PING"]));
    server.thaw();
    assert_eq!(other.command(&["PING"]), pong());
    // A command that was given up is executed all the same.
    assert_eq!(other.command(&["GET", "key"]).text(), "value");
    assert!(before.try_command(&["PING"]).is_err(), "a late reply must not be taken for the next one");
}

#[test]
fn a_killed_server_comes_back_empty_on_its_port() {
    let mut server = Server::start();
    let mut admin = server.admin();
    admin.command(&["SET", "key", "value"]);
    let (port, pid) = (server.port(), server.pid());
    server.kill();
    admin.try_command(&["PING"]).expect_err("the connection went with the server");
    let error = TcpStream::connect(server.address()).expect_err("nobody listens");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    server.restart();
    assert_eq!(server.port(), port);
    assert_ne!(server.pid(), pid);
    assert_eq!(Admin::tcp(port, CAP).expect("the port accepts").command(&["GET", "key"]), Reply::Nil);
}

#[test]
fn a_restart_waits_for_its_port() {
    let mut server = Server::start();
    server.kill();
    let taken = TcpListener::bind(server.address()).expect("the port is free");
    thread::scope(|scope| {
        let restart = scope.spawn(|| server.restart());
        thread::sleep(QUIET);
        assert!(!restart.is_finished(), "the port is still taken");
        drop(taken);
    });
    assert_eq!(server.command(&["PING"]), pong());
}

#[test]
fn a_dropped_server_is_gone_also_when_it_was_frozen() {
    let server = Server::start();
    let (pid, dir) = (server.pid(), server.dir().to_owned());
    server.freeze();
    drop(server);
    assert!(!fs::exists(format!("/proc/{pid}")).expect("/proc can be looked at"));
    assert!(!dir.exists());
}

#[test]
fn every_kind_of_reply_is_read() {
    let server = Server::start();
    let mut admin = server.admin();
    assert_eq!(admin.command(&["GET", "nothing"]), Reply::Nil);
    assert_eq!(admin.command(&["INCR", "number"]).int(), 1);
    assert_eq!(admin.command(&["SET", "text", "two\r\nlines"]).text(), "OK");
    assert_eq!(admin.command(&["GET", "text"]).text(), "two\r\nlines");
    assert!(
        matches!(admin.command(&["LPUSH", "text", "1"]), Reply::Error(error) if error.starts_with("WRONGTYPE"))
    );
    let nested = admin.command(&["EVAL", "return {1, {'a', false}, redis.status_reply('ok')}", "0"]);
    let text = |text: &str| Reply::Text(text.to_owned());
    assert_eq!(nested.list(), [Reply::Int(1), Reply::List(vec![text("a"), Reply::Nil]), text("ok")]);
}

#[test]
fn messages_are_read_as_they_come() {
    let server = Server::start();
    let mut subscriber = server.admin();
    assert_eq!(subscriber.command(&["SUBSCRIBE", "news"]).list()[2].int(), 1);
    assert_eq!(server.command(&["PUBLISH", "news", "hello"]).int(), 1);
    assert_eq!(subscriber.read().expect("a message comes").list()[2].text(), "hello");
}

// The proxy.

#[test]
fn a_proxy_passes_and_counts() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    assert_eq!(proxy.traffic(), Default::default());
    let before = Instant::now();
    let mut client = connect(&proxy);
    assert_eq!(client.command(&["PING"]), pong());
    assert_eq!(client.command(&["PING"]), pong());
    let traffic = proxy.traffic();
    assert_eq!((traffic.connections, traffic.open), (1, 1));
    assert_eq!((traffic.to_server.bytes, traffic.to_server.chunks), (28, 2));
    assert_eq!((traffic.to_client.bytes, traffic.to_client.chunks), (14, 2));
    assert!(traffic.last_client_byte.is_some_and(|at| at > before && at <= Instant::now()));
    thread::sleep(QUIET);
    assert_eq!(proxy.traffic(), traffic, "nothing comes from nobody");
    drop(client);
    eventually(CAP, || match proxy.traffic() {
        traffic if traffic.open == 0 => Ok(()),
        traffic => Err(traffic),
    });
}

#[test]
fn a_proxy_has_counted_what_was_sent_before_it_is_asked() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    for hold in [false, true] {
        if hold {
            proxy.hold();
        }
        let mut client = connect(&proxy);
        for _ in 0..100 {
            let before = proxy.traffic().to_server.bytes;
            client.send(&["PING"]).expect("the connection is open");
            assert_eq!(proxy.traffic().to_server.bytes, before + 14);
        }
    }
}

#[test]
fn a_large_reply_passes_whole() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let value = "0123456789".repeat(300_000);
    let mut client = connect(&proxy);
    assert_eq!(client.command(&["SET", "key", &value]).text(), "OK");
    assert!(client.command(&["GET", "key"]).text() == value, "3 MB came back changed");
    // Also to a client that reads only after all of it has come to the proxy, more than fits into the kernel.
    let before = proxy.traffic().to_client.bytes;
    for _ in 0..8 {
        client.send(&["GET", "key"]).expect("the connection is open");
    }
    eventually(CAP, || match proxy.traffic().to_client.bytes - before {
        24_000_000.. => Ok(()),
        less => Err(less),
    });
    for _ in 0..8 {
        assert!(client.read().expect("the reply comes").text() == value, "3 MB came back changed");
    }
    let count = proxy.traffic();
    assert!(count.to_server.bytes > 3_000_000 && count.to_client.bytes > 3_000_000, "{count:?}");
}

#[test]
fn a_black_hole_keeps_connections_and_bytes() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let mut client = connect(&proxy);
    assert_eq!(client.command(&["PING"]), pong());
    proxy.hold();
    client.send(&["INCR", "number"]).expect("the connection is open");
    client.send(&["INCR", "number"]).expect("the connection is open");
    let mut late = Admin::tcp(proxy.port(), QUIET).expect("connections are made");
    times_out(late.try_command(&["INCR", "number"]));
    assert_eq!(server.command(&["GET", "number"]), Reply::Nil, "nothing arrived");
    assert_eq!(proxy.traffic().open, 2);
    proxy.pass();
    let both = [client.read(), client.read()].map(|reply| reply.expect("the reply comes now").int());
    assert!(both[0] < both[1], "{both:?}");
    eventually(CAP, || match server.command(&["GET", "number"]) {
        Reply::Text(text) if text == "3" => Ok(()),
        other => Err(other),
    });
}

#[test]
fn a_black_hole_also_swallows_the_end_of_a_connection() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let mut client = connect(&proxy);
    let id = client.command(&["CLIENT", "ID"]).int().to_string();
    let mut admin = server.admin();
    let mut lives = || !admin.command(&["CLIENT", "LIST", "ID", &id]).text().is_empty();
    proxy.hold();
    client.send(&["SET", "key", "value"]).expect("the connection is open");
    drop(client);
    thread::sleep(QUIET);
    assert!(lives(), "the server must not hear of it");
    proxy.pass();
    eventually(CAP, || if lives() { Err("still connected") } else { Ok(()) });
    assert_eq!(server.command(&["GET", "key"]).text(), "value", "what came before the end arrived before it");
}

#[test]
fn held_replies_are_those_of_executed_commands() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let mut client = connect(&proxy);
    let mut impatient = Admin::tcp(proxy.port(), QUIET).expect("the proxy accepts");
    proxy.hold_replies();
    client.send(&["SET", "key", "value"]).expect("the connection is open");
    eventually(CAP, || match server.command(&["GET", "key"]) {
        Reply::Text(_) => Ok(()),
        other => Err(other),
    });
    times_out(impatient.try_command(&["PING"]));
    proxy.pass();
    assert_eq!(client.read().expect("the reply comes now").text(), "OK");
}

#[test]
fn delays_add_up_and_keep_the_order() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let mut client = connect(&proxy);
    let delay = Duration::from_millis(60);
    proxy.delay(delay);
    let from = Instant::now();
    for number in 1..=3 {
        client.send(&["SET", "key", &number.to_string()]).expect("the connection is open");
        client.send(&["GET", "key"]).expect("the connection is open");
    }
    let replies: Vec<_> = (0..6).map(|_| client.read().expect("the replies come")).collect();
    assert!(from.elapsed() >= 2 * delay, "{:?}", from.elapsed());
    let texts: Vec<_> = replies.iter().map(Reply::text).collect();
    assert_eq!(texts, ["OK", "1", "OK", "2", "OK", "3"]);

    proxy.delay_replies(CAP);
    client.send(&["SET", "key", "4"]).expect("the connection is open");
    eventually(CAP / 2, || match server.command(&["GET", "key"]) {
        Reply::Text(text) if text == "4" => Ok(()),
        other => Err(other),
    });
    // A change applies to what waits.
    let from = Instant::now();
    proxy.pass();
    assert_eq!(client.read().expect("the reply comes now").text(), "OK");
    assert!(from.elapsed() < CAP / 2, "{:?}", from.elapsed());
}

#[test]
fn trickled_replies_come_byte_by_byte() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let mut client = TcpStream::connect(proxy.address()).expect("the proxy accepts");
    client.set_read_timeout(Some(CAP)).expect("a timeout can be set");
    let every = Duration::from_millis(15);
    proxy.trickle_replies(every);
    let from = Instant::now();
    client.write_all(b"PING\r\n").expect("the connection is open");
    let mut bytes = [0; 7];
    for count in 1..=7 {
        client.read_exact(&mut bytes[count as usize - 1..count as usize]).expect("a byte comes");
        assert!(from.elapsed() >= every * count, "byte {count} after {:?}", from.elapsed());
    }
    assert_eq!(&bytes, b"+PONG\r\n");
}

#[test]
fn discarded_bytes_never_come_and_later_ones_do() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let mut client = connect(&proxy);
    let bytes = proxy.traffic().to_client.bytes;
    proxy.set(Flow::Pass, Flow::Discard);
    client.send(&["ECHO", "one"]).expect("the connection is open");
    eventually(CAP, || match proxy.traffic().to_client.bytes {
        now if now > bytes => Ok(()),
        now => Err(now),
    });
    proxy.pass();
    assert_eq!(client.command(&["ECHO", "two"]).text(), "two");
}

#[test]
fn a_reset_reaches_both_sides_and_new_connections_work() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let mut admin = Admin::tcp(proxy.port(), CAP).expect("the proxy accepts");
    let id = admin.command(&["CLIENT", "ID"]).int().to_string();
    proxy.reset_all();
    let error = admin.read().expect_err("the connection is gone");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    eventually(CAP, || match server.command(&["CLIENT", "LIST", "ID", &id]) {
        Reply::Text(list) if list.is_empty() => Ok(()),
        other => Err(other),
    });
    assert_eq!(connect(&proxy).command(&["PING"]), pong());
    assert_eq!(proxy.traffic().connections, 2);
}

#[test]
fn a_close_is_no_reset() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let mut client = connect(&proxy);
    assert_eq!(client.command(&["PING"]), pong());
    proxy.close_all();
    let error = client.read().expect_err("the connection is gone");
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof, "{error}");
}

#[test]
fn the_servers_end_of_a_connection_reaches_the_client() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let mut client = connect(&proxy);
    let id = client.command(&["CLIENT", "ID"]).int().to_string();
    assert_eq!(server.command(&["CLIENT", "KILL", "ID", &id]).int(), 1);
    client.read().expect_err("the connection is gone");
}

#[test]
fn a_refusing_proxy_keeps_its_connections_and_its_port() {
    let server = Server::start();
    let proxy = Proxy::to(&server);
    let mut client = connect(&proxy);
    for _ in 0..3 {
        proxy.refuse(true);
        let error = TcpStream::connect(proxy.address()).expect_err("connections are refused");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        assert_eq!(client.command(&["PING"]), pong());
        proxy.refuse(false);
        assert_eq!(connect(&proxy).command(&["PING"]), pong());
    }
}

#[test]
fn a_server_that_is_gone_is_a_reset_unless_the_proxy_holds() {
    let mut server = Server::start();
    let proxy = Proxy::to(&server);
    server.kill();
    // The reset may come before the connect is over.
    let reply = Admin::tcp(proxy.port(), CAP).and_then(|mut client| client.try_command(&["PING"]));
    reply.expect_err("there is no server");
    proxy.hold();
    let mut client = Admin::tcp(proxy.port(), QUIET).expect("a black hole accepts");
    times_out(client.try_command(&["PING"]));
    server.restart();
    proxy.pass();
    assert_eq!(connect(&proxy).command(&["PING"]), pong());
}

#[test]
fn a_dropped_proxy_leaves_neither_thread_nor_socket() {
    in_own_process("harness::a_dropped_proxy_leaves_neither_thread_nor_socket", || {
        let server = Server::start();
        let (threads, sockets) = (thread_names(process::id()), fd_count(process::id()));
        for end in [Proxy::pass, Proxy::hold, Proxy::reset_all] {
            let proxy = Proxy::to(&server);
            let mut client = connect(&proxy);
            assert_eq!(client.command(&["PING"]), pong());
            assert!(thread_names(process::id()).contains(&"fault-proxy".to_owned()));
            end(&proxy);
            let from = Instant::now();
            drop(proxy);
            assert!(from.elapsed() < CAP, "{:?}", from.elapsed());
            drop(client);
            assert_eq!(fd_count(process::id()), sockets);
            // A thread that was joined is listed for another moment.
            eventually(CAP, || match thread_names(process::id()) {
                names if names == threads => Ok(()),
                names => Err(names),
            });
        }
    });
}

// Candidates, by programs that only print.

/// A shell that prints the lines it is given.
fn shell(script: &str) -> Campaign {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    Campaign::spawn(command)
}

#[test]
fn the_lines_of_a_candidate_are_waited_for() {
    let mut campaign = shell(
        r#"echo '{"event":"started","at_us":1}'; echo told >&2; read -r _ < /dev/null
        for token in 1 2; do echo '{"event":"promoted","at_us":'$token'000,"token":'$token'}'; done
        echo '{"event":"sample","at_us":2500,"done_us":2501,"leader":true,"token":2,"prev_us":null}'
        exit 3"#,
    )
    .named("a");
    let first = campaign.wait_for(|line| line.is("promoted"), CAP);
    assert_eq!((first.token(), first.at_us()), (Some(1), 1000));
    let second = campaign.wait_for_after(2, |line| line.is("promoted"), CAP);
    assert_eq!(second.token(), Some(2));
    assert!(second.arrived >= first.arrived && second.arrived_us >= first.arrived_us);
    campaign.wait_event(0, "sample", CAP);
    assert_eq!(campaign.wait_exit(CAP).code(), Some(3));
    assert_eq!((campaign.lines().len(), campaign.events().len(), campaign.mark()), (4, 3, 4));
    assert_eq!(campaign.stderr(), "told\n");
    assert_eq!(campaign.history().promotions().len(), 2);
    // A line that cannot come any more is not waited for.
    let from = Instant::now();
    let message = panic_of(|| campaign.wait_for(|line| line.is("stopped"), 2 * CAP));
    assert!(from.elapsed() < CAP, "{:?}", from.elapsed());
    assert!(message.contains("its output ended") && message.contains(r#""token":2"#), "{message}");
    assert!(message.contains("told"), "{message}");
}

#[test]
fn a_line_that_does_not_come_and_one_that_is_no_json_fail_the_test() {
    let silent = shell("exec sleep 100");
    let message = panic_of(|| silent.wait_for(|_| true, QUIET));
    assert!(message.contains("have passed"), "{message}");
    let strange = shell("echo oops; exec sleep 100");
    let from = Instant::now();
    let message = panic_of(|| strange.wait_for(|_| true, 2 * CAP));
    assert!(message.contains("oops") && from.elapsed() < CAP, "{message}");
}

#[test]
fn half_a_line_of_a_killed_candidate_is_none() {
    let mut campaign =
        shell(r#"echo '{"event":"started","at_us":1}'; printf '{"event":"pro'; exec sleep 100"#);
    campaign.wait_event(0, "started", CAP);
    campaign.kill9();
    assert_eq!(campaign.lines().len(), 1);
    let message = panic_of(|| campaign.wait_event(1, "promoted", CAP));
    assert!(message.contains("its output ended"), "{message}");
    assert_eq!(campaign.wait_exit(CAP).code(), None);
}

#[test]
fn a_frozen_candidate_says_nothing_until_it_is_thawed() {
    // The trap makes the shell's end on SIGTERM its own.
    let mut campaign = shell(
        r#"trap 'echo "{\"event\":\"stopped\",\"at_us\":9}"; exit 0' TERM
        while :; do echo '{"event":"sample"}'; sleep 0.01; done"#,
    );
    campaign.wait_event(0, "sample", CAP);
    campaign.freeze();
    // What it had written before may still be on its way.
    thread::sleep(QUIET);
    let mark = campaign.mark();
    campaign.terminate();
    thread::sleep(QUIET);
    assert_eq!(campaign.mark(), mark);
    campaign.thaw();
    campaign.wait_event(mark, "stopped", CAP);
    assert_eq!(campaign.wait_exit(CAP).code(), Some(0));
}

#[test]
fn a_dropped_candidate_is_gone() {
    let campaign = shell("exec sleep 100");
    let pid = campaign.pid();
    campaign.freeze();
    drop(campaign);
    assert!(!fs::exists(format!("/proc/{pid}")).expect("/proc can be looked at"));
}

// Processes.

#[test]
fn a_body_runs_in_a_process_of_its_own() {
    let mut ran = false;
    in_own_process("harness::a_body_runs_in_a_process_of_its_own", || ran = true);
    // This line runs in both.
    assert_eq!(ran, env::var_os(own_process::VARIABLE).is_some());
}

#[test]
fn a_body_that_fails_fails_the_test_with_its_output() {
    let test = "harness::a_body_that_fails_fails_the_test_with_its_output";
    // In the process of its own the panic comes here as it was, and the assertion fails that process.
    let message = panic_of(|| in_own_process(test, || panic!("{test}: the body's own words")));
    assert!(message.contains("failed in its own process"), "{message}");
    assert!(message.contains("the body's own words"), "{message}");
}

#[test]
fn a_body_that_is_never_run_fails_the_test() {
    let message = panic_of(|| in_own_process("harness::no_such_test", || {}));
    assert!(message.contains("is no test"), "{message}");
}

#[test]
fn a_body_that_does_not_end_is_ended_with_what_it_started() {
    let test = "harness::a_body_that_does_not_end_is_ended_with_what_it_started";
    let (sender, receiver) = mpsc::channel();
    let message = panic_of(|| {
        in_own_process_within(Duration::from_secs(2), test, || {
            let mut child = Command::new("sleep").arg("100").spawn().expect("sleep can be started");
            writeln!(io::stdout(), "started {}.", child.id()).expect("the output is a file");
            sender.send(()).expect("this process has the receiver");
            child.wait().expect("a child can be waited for");
        });
    });
    assert!(receiver.try_recv().is_err(), "the body ran here");
    assert!(message.contains("did not end"), "{message}");
    let pid = message
        .split_once("started ")
        .and_then(|(_, rest)| rest.split_once('.'))
        .expect("the pid was printed")
        .0;
    eventually(CAP, || match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) if name == "sleep\n" => Err(name),
        _ => Ok(()),
    });
}

#[test]
fn threads_descriptors_and_memory_are_counted() {
    in_own_process("harness::threads_descriptors_and_memory_are_counted", || {
        let pid = process::id();
        let (threads, files, memory) = (thread_names(pid).len(), fd_count(pid), rss_kb(pid));
        let (end, ended) = mpsc::channel::<()>();
        let thread = thread::Builder::new()
            .name("a-thread-of-the-test".to_owned())
            .spawn(move || ended.recv().is_err())
            .expect("a thread can be spawned");
        eventually(CAP, || match thread_names(pid) {
            // The kernel keeps 15 bytes, and a new thread is named a moment after it began.
            names if names.contains(&"a-thread-of-the".to_owned()) && names.len() == threads + 1 => Ok(()),
            names => Err(names),
        });
        drop(end);
        assert!(thread.join().expect("the thread does not panic"));
        let file = fs::File::open("/dev/null").expect("/dev/null can be opened");
        assert_eq!(fd_count(pid), files + 1);
        drop(file);
        assert_eq!(fd_count(pid), files);
        let bytes = vec![1_u8; 32 << 20];
        assert!(rss_kb(pid) >= memory + (30 << 10), "{memory} {}", rss_kb(pid));
        drop(bytes);
    });
}

// Small things.

#[test]
fn small_things_do_what_they_say() {
    assert_eq!(median(&[5, 1, 9]), 5);
    assert_eq!(median(&[4, 1, 2, 3]), 3);
    assert_ne!(unique_group("a"), unique_group("a"));
    let mut looks = 0;
    let mut look = || {
        looks += 1;
        if looks < 3 { Err(looks) } else { Ok(looks) }
    };
    assert_eq!(eventually(CAP, &mut look), 3);
    let message = panic_of(|| eventually(QUIET, || Err::<(), _>("the last look")));
    assert!(message.contains("the last look"), "{message}");
}
