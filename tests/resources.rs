//! What electors that come and go leave behind: nothing. Each test has a process of its own to count in.

#![allow(clippy::print_stderr, reason = "a test that measures shows its figures")]

use std::env;
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use rand::RngExt;
use taskrunner::election::{Builder, Elector, RedisStore, inspect};

use crate::support::process::{fd_count, rss_kb, thread_names};
use crate::support::server::free_port;
use crate::support::{
    Admin, Campaign, Server, eventually, in_own_process, in_own_process_within, median, unique_group,
};

/// Longer than anything takes that is to happen.
const CAP: Duration = Duration::from_secs(30);

const MS: Duration = Duration::from_millis(1);

const CYCLES: usize = 1000;

/// How much resident memory may come to a process in [`CYCLES`] cycles, in kB: a buffer, a channel or a thread's
/// record of 1 kB that stayed in each would be twice as much. Threads that end in another order than before leave
/// the allocator with a few pages more.
const RSS_BOUND_KB: u64 = 512;

fn builder(url: &str, group: &str) -> Builder {
    Elector::builder(RedisStore::open(url).expect("a good url"), group).ttl(100 * MS).wait(50 * MS)
}

/// The connections of electors that the server has.
fn our_clients(admin: &mut Admin) -> usize {
    admin.command(&["CLIENT", "LIST"]).text().matches(" name=taskrunner ").count()
}

/// Runs the cycle many times, and checks that it leaves no thread, no descriptor and no memory.
fn expect_flat(what: &str, cycles: usize, mut cycle: impl FnMut()) {
    // The first ones make what the process keeps: a thread-local generator, the allocator's arenas.
    (0..cycles / 5).for_each(|_| cycle());
    let count = || (thread_names(process::id()).len(), fd_count(process::id()));
    let ours = || thread_names(process::id()).iter().any(|name| name.starts_with("tr-"));
    eventually(CAP, || if ours() { Err("a thread is listed after it was joined") } else { Ok(()) });
    let (before, memory, from) = (count(), rss_kb(process::id()), Instant::now());
    (0..cycles).for_each(|_| cycle());
    let took = from.elapsed();
    let after = eventually(CAP, || match count() {
        // Something of the first ones may have been ending still.
        now if now.0 <= before.0 && now.1 <= before.1 => Ok(now),
        now => Err(format!("{what}: {now:?} threads and descriptors, {before:?} before")),
    });
    let grown = rss_kb(process::id()).saturating_sub(memory);
    eprintln!(
        "{what}: {cycles} cycles in {took:?}; {after:?} threads and descriptors; {memory} kB + {grown} kB"
    );
    assert!(grown < RSS_BOUND_KB, "{what}: {grown} kB more after {cycles} cycles");
}

#[test]
fn a_thousand_electors_that_come_and_go_leave_nothing_behind_with_redis_up() {
    in_own_process(
        "resources::a_thousand_electors_that_come_and_go_leave_nothing_behind_with_redis_up",
        || {
            let server = Server::start();
            let (group, mut admin) = (unique_group("up"), server.admin());
            let start = || builder(&server.url(), &group).start().expect("good options");
            expect_flat("never started", CYCLES, || drop(builder(&server.url(), &group)));
            expect_flat("led and stopped", CYCLES, || {
                let elector = start();
                elector.wait_for_leadership(CAP).expect("leads");
                elector.stop().expect("released");
            });
            // At whatever it is: the dial, the handshake, the attempt, or the dial for the wakes.
            expect_flat("stopped at once", CYCLES, || _ = start().stop());
            expect_flat("dropped at a random moment", CYCLES, || {
                let elector = start();
                thread::sleep(Duration::from_micros(rand::rng().random_range(0..2000)));
                drop(elector);
            });
            eventually(CAP, || match our_clients(&mut admin) {
                0 => Ok(()),
                clients => Err(clients),
            });
        },
    );
}

#[test]
fn a_thousand_electors_that_come_and_go_leave_nothing_behind_with_redis_down() {
    in_own_process(
        "resources::a_thousand_electors_that_come_and_go_leave_nothing_behind_with_redis_down",
        || {
            let (url, group) = (format!("redis://127.0.0.1:{}/", free_port()), unique_group("down"));
            let start = || builder(&url, &group).start().expect("no server is needed to start");
            expect_flat("refused and stopped", CYCLES, || {
                let elector = start();
                elector.on_error().recv_timeout(CAP).expect("nobody listens there");
                elector.stop().expect("there is nothing to release");
            });
            expect_flat("dropped", CYCLES, || drop(start()));
        },
    );
}

#[test]
fn electors_that_come_and_go_leave_nothing_behind_with_a_server_that_never_answers() {
    in_own_process(
        "resources::electors_that_come_and_go_leave_nothing_behind_with_a_server_that_never_answers",
        || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
            let address = listener.local_addr().expect("it is bound");
            let (url, group) = (format!("redis://{address}/"), unique_group("silent"));
            thread::spawn(move || {
                // Each is read to its end, so that its descriptor is ours for as long as it is the elector's.
                let read = |mut stream: TcpStream| stream.read_to_end(&mut Vec::new());
                for stream in listener.incoming().flatten() {
                    thread::spawn(move || read(stream).ok());
                }
            });
            expect_flat("unanswered", CYCLES / 10, || {
                let elector = builder(&url, &group).start().expect("no server is needed to start");
                elector.on_error().recv_timeout(CAP).expect("nobody answers");
                // An attempt in flight may win yet, as far as the elector knows.
                _ = elector.stop();
            });
        },
    );
}

/// How long [`soak`] runs, in seconds.
const SOAK_SECONDS: &str = "SOAK_SECONDS";

/// What is sampled of the candidates and of their server, each second.
#[derive(Clone, Copy, Debug)]
struct Sample {
    threads: usize,
    descriptors: usize,
    kilobytes: u64,
    clients: usize,
}

/// What one looks at in a sample.
type Figure = fn(&Sample) -> u64;

impl Sample {
    fn of(candidates: &[Campaign], admin: &mut Admin) -> Self {
        let pids = || candidates.iter().map(Campaign::pid);
        Self {
            threads: pids().map(|pid| thread_names(pid).len()).sum(),
            descriptors: pids().map(fd_count).sum(),
            kilobytes: pids().map(rss_kb).sum(),
            clients: our_clients(admin),
        }
    }
}

/// Three candidates in processes of their own change the leader all the time, and none of them grows.
#[test]
fn soak() {
    let seconds = env::var(SOAK_SECONDS).map_or(3, |text| text.parse().expect("a number of seconds"));
    let cap = Duration::from_secs(seconds) + 3 * CAP;
    // The harness keeps every line of a candidate, so nothing of this process is judged but by its cap.
    in_own_process_within(cap, "resources::soak", || {
        let server = Server::start();
        let (group, mut admin) = (unique_group("soak"), server.admin());
        let store = RedisStore::open(&server.url()).expect("a good url");
        let key = inspect(&store, &group).expect("the server answers").key;
        let args = ["--ttl", "300ms", "--wait", "200ms"];
        let candidates: Vec<_> = (0..3).map(|_| Campaign::start(&group, &server.url(), &args)).collect();
        for candidate in &candidates {
            candidate.wait_for(|line| line.is("leader"), CAP);
        }
        let token = |admin: &mut Admin| admin.command(&["HGET", &format!("{{{key}}}:term"), "token"]);
        let every = Duration::from_secs(1).min(Duration::from_secs(seconds) / 10);
        let (from, mut samples, mut changes) = (Instant::now(), Vec::new(), 0);
        let (mut last, mut sampled_at) = (token(&mut admin), Instant::now());
        while from.elapsed() < Duration::from_secs(seconds) || samples.len() < 4 {
            // As an eviction would. The leader finds out by its next renewal, and all contend.
            admin.command(&["DEL", &key]);
            let before = last;
            last = eventually(CAP, || match token(&mut admin) {
                token if token != before => Ok(token),
                token => Err(token),
            });
            changes += 1;
            // The first terms make what a process keeps.
            if changes > 5 && sampled_at.elapsed() >= every {
                sampled_at = Instant::now();
                samples.push(Sample::of(&candidates, &mut admin));
            }
        }
        let (first, second) = samples.split_at(samples.len() / 2);
        let middle = |samples: &[Sample], of: Figure| median(&samples.iter().map(of).collect::<Vec<_>>());
        let figures: [(&str, Figure, u64); 4] = [
            ("threads", |sample| sample.threads as u64, 0),
            ("descriptors", |sample| sample.descriptors as u64, 0),
            ("clients", |sample| sample.clients as u64, 0),
            // Of three processes.
            ("kB", |sample| sample.kilobytes, 3 * RSS_BOUND_KB),
        ];
        eprintln!("{changes} terms in {:?}, {} samples", from.elapsed(), samples.len());
        for (what, of, slack) in figures {
            let (first, second) = (middle(first, of), middle(second, of));
            eprintln!("{what}: {first} in the first half, {second} in the second");
            assert!(second <= first + slack, "{what} grew from {first} to {second}");
        }
    });
}
