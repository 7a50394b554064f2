//! Lead work never runs twice at once, whatever happens to the processes that do it.
//!
//! Three processes contend, and each writes down when its lead work begins, what its checks say and when it ends.
//! What they wrote is judged: two works may be under way at once only where the earlier one outlived its grace or
//! its process stood still while its lease ended. Even there its checks must be false from before the later one's
//! start: that is what it takes to stop a work that does check.

#![allow(clippy::print_stderr, reason = "the figures measured are told beside the test's output")]

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufRead, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{self, Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, bounded};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;
use taskrunner::election::{Elector, ErrorKind, Leadership, RedisStore};

use super::group::{CAP, ms, now_us, us};
use crate::support::server::{freeze, signal, thaw};
use crate::support::{Server, eventually, unique_group};

const TEST: &str = "timing::lead_work::across_three_processes_two_lead_works_are_never_under_way_at_once";

/// Says to a process of this binary that it is to contend and work, and for what.
const VARIABLE: &str = "TASKRUNNER_TEST_LEAD_WORK";

const TTL: Duration = Duration::from_millis(400);
const GRACE: Duration = TTL;
/// How long an instance that stepped down lets the others lead.
const PAUSE: Duration = Duration::from_millis(250);
/// How often the work checks whether it may go on.
const CHECK: Duration = Duration::from_millis(5);
/// How much longer than its grace a work takes that outlives it: the lease, which is renewed until then, ends before
/// the work does.
const OVERRUN: Duration = Duration::from_millis(650);

/// What the lead work is told to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    /// Return while it leads.
    Return,
    Panic,
    /// Take longer than the grace once the term is lost.
    Outlive,
}

impl Told {
    const ALL: [Self; 4] = [Self::Nothing, Self::Return, Self::Panic, Self::Outlive];

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|told| format!("{told:?}") == name)
    }
}

#[test]
fn across_three_processes_two_lead_works_are_never_under_way_at_once() {
    const PROCESSES: usize = 3;
    const ROUNDS: u32 = 200;
    /// Every so many rounds a work outlives its grace on purpose.
    const OUTLIVES_EVERY: u32 = 25;

    if let Ok(job) = env::var(VARIABLE) {
        return contend(&Job::parse(&job));
    }
    let seed: u64 = rand::random();
    eprintln!("lead work: seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let from = Instant::now();
    let server = Server::start();
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let mut job = Job {
        url: server.url(),
        group: unique_group("lead-work"),
        journal: dir.path().join("journal"),
        seed: random.random(),
    };
    let journal = Journal::open(&job.journal);
    let mut reader = Reader::open(&job.journal);
    let mut start = || {
        job.seed = job.seed.wrapping_add(1);
        Worker::start(&job, &dir.path().join("output"))
    };
    let mut living: Vec<_> = (0..PROCESSES).map(|_| start()).collect();
    let mut ending: Vec<Worker> = Vec::new();
    let mut faults: BTreeMap<&str, u32> = BTreeMap::new();
    let mut token = 0;
    for round in 0..ROUNDS {
        let leader = reader.wait_for_work_after(token);
        token = leader.token;
        let index = living.iter().position(|worker| worker.pid() == leader.pid);
        let index = index.expect("the leader is one of those that live");
        // Up to after its first renewal, half a ttl after its start.
        thread::sleep(TTL.mul_f64(random.random_range(0.0..0.7)));
        let outlives = round % OUTLIVES_EVERY == OUTLIVES_EVERY - 1;
        if outlives {
            living[index].tell("Outlive");
            reader.wait_for(|entry| entry.is("told", leader.pid) && entry.at_us > leader.at_us);
        }
        let fault = match random.random_range(0..100) {
            dice if outlives && dice < 50 => "step down",
            _ if outlives => "SIGTERM",
            0..35 => "step down",
            35..55 => "kill -9",
            55..70 => "SIGSTOP",
            70..90 => "SIGTERM",
            90..95 => "return",
            _ => "panic",
        };
        *faults.entry(fault).or_default() += 1;
        match fault {
            "step down" => living[index].tell("step down"),
            "kill -9" => {
                let mut killed = living.remove(index);
                killed.kill();
                // Nothing of it happened later than this.
                journal.write(format_args!("killed {} {token} {}", killed.pid(), now_us()));
                living.push(start());
            }
            "SIGSTOP" => {
                journal.write(format_args!("stopped {} {token} {}", leader.pid, now_us()));
                freeze(leader.pid);
                reader.wait_for_work_after(token);
                // From right at the other one's start to some time into it.
                thread::sleep(TTL.mul_f64(random.random_range(0.0..0.2)));
                thaw(leader.pid);
            }
            "SIGTERM" => {
                let terminated = living.remove(index);
                signal(terminated.pid(), Signal::TERM);
                ending.push(terminated);
                living.push(start());
            }
            "return" => living[index].tell("Return"),
            _ => living[index].tell("Panic"),
        }
    }
    ending.append(&mut living);
    for worker in &mut ending {
        let status = worker.end();
        assert!(
            status.success(),
            "{status}\n{}",
            fs::read_to_string(dir.path().join("output")).unwrap_or_default()
        );
    }
    let verdict = judge(reader.read());
    eprintln!(
        "lead work: {ROUNDS} rounds in {:.0?} ({faults:?}): {} works, at once only {} that outlived their grace \
         and {} that had stood still, for {:.0} ms at most; the shortest time from an end to the next start {:.1} ms",
        from.elapsed(),
        verdict.works,
        verdict.outlived,
        verdict.stood_still,
        ms(verdict.longest_us),
        ms(verdict.shortest_us),
    );
    assert!(verdict.faults.is_empty(), "seed {seed}:\n{}", verdict.faults.join("\n"));
    assert!(verdict.works >= ROUNDS as usize, "each round has one of its own");
    // Without them there was nothing to judge.
    assert!(verdict.outlived > 0 && verdict.stood_still > 0, "{verdict:?}");
}

/// What a process is to contend for, and where it writes.
#[derive(Debug)]
struct Job {
    url: String,
    group: String,
    journal: PathBuf,
    seed: u64,
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}\n{}\n{}", self.url, self.group, self.journal.display(), self.seed)
    }
}

impl Job {
    fn parse(text: &str) -> Self {
        let fields: Vec<_> = text.lines().collect();
        let [url, group, journal, seed] = fields[..] else { panic!("no job: {text:?}") };
        Self {
            url: url.to_owned(),
            group: group.to_owned(),
            journal: journal.into(),
            seed: seed.parse().expect("a number"),
        }
    }
}

/// The body of each of the processes: contends until it is told to end, by SIGTERM or by the end of its input.
fn contend(job: &Job) {
    let journal = Arc::new(Journal::open(&job.journal));
    let told = Arc::new(AtomicU8::new(Told::Nothing as u8));
    let mut random = StdRng::seed_from_u64(job.seed);
    let (of_work, obeyed) = (Arc::clone(&journal), Arc::clone(&told));
    // How long each work takes to end, drawn beforehand: up to a half of the grace.
    let takes: Vec<_> = (0..1000).map(|_| GRACE.mul_f64(random.random_range(0.0..0.5))).collect();
    let of_demotion = Arc::clone(&journal);
    // Held by the work while it runs.
    let working = Arc::new(());
    let of_lead = Arc::clone(&working);
    let elector = Elector::builder(RedisStore::open(&job.url).expect("a good url"), &job.group)
        .ttl(TTL)
        .wait(PAUSE)
        .lead_grace(GRACE)
        .lead(move |leadership| {
            // Dropped also when the work panics.
            let _working = Arc::clone(&of_lead);
            let takes = takes[(leadership.token() % 1000) as usize];
            work(&leadership, &of_work, &obeyed, takes);
        })
        .on_demote(move |demotion| {
            // For whoever has to read a journal.
            of_demotion.write(format_args!(
                "demoted {} {} {} {}",
                process::id(),
                demotion.token,
                now_us(),
                demotion.reason
            ));
        })
        .start()
        .expect("good options");
    let elector = Arc::new(elector);
    let (end, ended) = bounded(2);
    let mut signals = Signals::new([SIGTERM]).expect("a handler can be set");
    let by_signal = end.clone();
    // Neither is waited for: one waits for a signal, the other reads, until the process ends.
    thread::spawn(move || signals.forever().for_each(|_| by_signal.try_send(()).unwrap_or_default()));
    let commanded = Arc::clone(&elector);
    thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if let Some(what) = Told::named(&line) {
                told.store(what as u8, Ordering::Release);
                journal.write(format_args!("told {} 0 {} {line}", process::id(), now_us()));
            } else {
                // What outlives its grace makes this fail, as it must.
                commanded.step_down(PAUSE).ok();
            }
        }
        end.try_send(()).unwrap_or_default();
    });
    ended.recv().expect("one of the threads says so");
    if let Err(error) = elector.stop() {
        assert_eq!(error.kind(), ErrorKind::Overrun, "{}", error.to_chain());
    }
    // A process that ended now would end the work with it: the work that outlives its grace is to be seen.
    eventually(CAP, || match Arc::strong_count(&working) {
        // This one's, and that of the closure that waits for the next term.
        2 => Ok(()),
        works => Err(works - 2),
    });
}

/// The lead work: writes down its start, its checks and its end.
fn work(leadership: &Leadership, journal: &Journal, told: &AtomicU8, takes: Duration) {
    let start_us = now_us();
    let (pid, token) = (process::id(), leadership.token());
    journal.write(format_args!("start {pid} {token} {start_us}"));
    let obeys = || Told::ALL[usize::from(told.load(Ordering::Acquire))];
    let check = || {
        let before_us = now_us();
        let valid = leadership.check().is_ok();
        journal.write(format_args!("check {pid} {token} {before_us} {valid}"));
    };
    while leadership.lost().recv_timeout(CHECK) != Err(RecvTimeoutError::Disconnected) {
        check();
        if matches!(obeys(), Told::Return | Told::Panic) {
            break;
        }
    }
    let ending = Instant::now();
    journal.write(format_args!("ending {pid} {token} {}", now_us()));
    let takes = match obeys() {
        Told::Nothing => takes,
        Told::Outlive => GRACE + OVERRUN,
        Told::Return | Told::Panic => Duration::ZERO,
    };
    while ending.elapsed() < takes {
        check();
        thread::sleep(CHECK.min(takes.saturating_sub(ending.elapsed())));
    }
    check();
    let panics = told.swap(Told::Nothing as u8, Ordering::AcqRel) == Told::Panic as u8;
    journal.write(format_args!("end {pid} {token} {}", now_us()));
    assert!(!panics, "as told");
}

/// The process of an instance. Dropping it kills it.
#[derive(Debug)]
struct Worker {
    child: Child,
    /// None once it was closed, which ends the process.
    input: Option<ChildStdin>,
}

impl Worker {
    fn start(job: &Job, output: &Path) -> Self {
        let output = File::options().create(true).append(true).open(output).expect("a file can be written");
        let mut child = Command::new(env::current_exe().expect("a running test has a file"))
            .args(["--exact", TEST, "--nocapture", "--test-threads=1"])
            .env(VARIABLE, job.to_string())
            // The panics are as planned.
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::piped())
            .stdout(output.try_clone().expect("a file can be shared"))
            .stderr(output)
            .spawn()
            .expect("a test can be started again");
        let input = child.stdin.take();
        Self { child, input }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn tell(&mut self, what: &str) {
        let input = self.input.as_mut().expect("it was not closed");
        writeln!(input, "{what}").expect("the process lives");
    }

    fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }

    /// Waits for its end, which it is told of here if it was not before.
    fn end(&mut self) -> ExitStatus {
        drop(self.input.take());
        eventually(CAP, || self.child.try_wait().expect("a child can be waited for").ok_or("it still runs"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended. Nobody is left to tell if it fails.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A line of the journal: what happened, in which process, in which term, when, and what belongs to it.
#[derive(Debug, Clone)]
struct Entry {
    fields: Vec<String>,
    pid: u32,
    token: u64,
    at_us: u64,
}

impl Entry {
    fn parse(line: &str) -> Self {
        let fields: Vec<_> = line.split(' ').map(str::to_owned).collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        let [Some(pid), Some(token), Some(at_us)] = [number(1), number(2), number(3)] else {
            panic!("no entry: {line:?}")
        };
        Self { pid: pid.try_into().expect("a process id"), token, at_us, fields }
    }

    fn is(&self, what: &str, pid: u32) -> bool {
        self.fields[0] == what && self.pid == pid
    }

    fn last(&self) -> &str {
        self.fields.last().map_or("", String::as_str)
    }
}

/// The file that all processes append to. A line is one write, so lines are whole.
#[derive(Debug)]
struct Journal {
    file: File,
}

impl Journal {
    fn open(path: &Path) -> Self {
        let file = File::options().create(true).append(true).open(path).expect("a file can be written");
        Self { file }
    }

    fn write(&self, line: fmt::Arguments<'_>) {
        (&self.file).write_all(format!("{line}\n").as_bytes()).expect("a file can be written");
    }
}

/// Reads the journal as it grows.
#[derive(Debug)]
struct Reader {
    file: File,
    /// The part of a line that is on its way.
    rest: String,
    entries: Vec<Entry>,
}

impl Reader {
    fn open(path: &Path) -> Self {
        Self { file: File::open(path).expect("the file was made"), rest: String::new(), entries: Vec::new() }
    }

    fn read(&mut self) -> &[Entry] {
        self.file.read_to_string(&mut self.rest).expect("a file can be read");
        while let Some((line, rest)) = self.rest.split_once('\n') {
            self.entries.push(Entry::parse(line));
            self.rest = rest.to_owned();
        }
        &self.entries
    }

    #[track_caller]
    fn wait_for(&mut self, fits: impl Fn(&Entry) -> bool) -> Entry {
        // The newest are the likely ones.
        eventually(CAP, || {
            let entries = self.read();
            let found = entries.iter().rev().find(|entry| fits(entry));
            found.cloned().ok_or_else(|| entries.last().cloned())
        })
    }

    /// The start of the newest work, of a term after this one.
    #[track_caller]
    fn wait_for_work_after(&mut self, token: u64) -> Entry {
        self.wait_for(|entry| entry.fields[0] == "start" && entry.token > token)
    }
}

/// What the journal says of one work.
#[derive(Debug, Default)]
struct Work {
    pid: u32,
    token: u64,
    start_us: u64,
    /// When it began to end: when it saw the lost-signal, or was told to return.
    ending_us: Option<u64>,
    /// Its end; of a process that was killed, when that was dead.
    end_us: Option<u64>,
    /// Before the last check that said yes.
    valid_us: u64,
}

#[derive(Debug, Default)]
struct Verdict {
    faults: Vec<String>,
    works: usize,
    outlived: usize,
    stood_still: usize,
    /// The longest time that two works were under way at once, as they may be.
    longest_us: u64,
    /// The shortest time between the end of a work and the start of the next.
    shortest_us: u64,
}

fn judge(entries: &[Entry]) -> Verdict {
    let mut works: BTreeMap<u64, Work> = BTreeMap::new();
    let mut stops: Vec<(u32, u64)> = Vec::new();
    for entry in entries {
        let Entry { pid, token, at_us, .. } = *entry;
        match entry.fields[0].as_str() {
            "start" => {
                works.insert(token, Work { pid, token, start_us: at_us, ..Work::default() });
            }
            "killed" => {
                let of_it = works.values_mut().filter(|work| work.pid == pid && work.end_us.is_none());
                of_it.for_each(|work| work.end_us = Some(at_us));
            }
            "stopped" => stops.push((pid, at_us)),
            what => {
                let Some(work) = works.get_mut(&token) else { continue };
                match what {
                    "check" if entry.last() == "true" => work.valid_us = at_us,
                    "ending" => work.ending_us = Some(at_us),
                    "end" => work.end_us = Some(at_us),
                    _ => {}
                }
            }
        }
    }
    let works: Vec<_> = works.into_values().collect();
    let mut verdict = Verdict { works: works.len(), shortest_us: u64::MAX, ..Verdict::default() };
    for (index, one) in works.iter().enumerate() {
        let Some(end_us) = one.end_us else {
            verdict.faults.push(format!("the work of term {} never ended: {one:?}", one.token));
            continue;
        };
        if let Some(next) = works.get(index + 1)
            && let Some(between_us) = next.start_us.checked_sub(end_us)
        {
            verdict.shortest_us = verdict.shortest_us.min(between_us);
        }
        for later in &works[index + 1..] {
            if one.valid_us >= later.start_us {
                verdict.faults.push(format!(
                    "a check said yes after the start of a later work:\n  {one:?}\n  {later:?}"
                ));
            }
            if later.start_us < one.start_us {
                verdict.faults.push(format!("a later token began earlier:\n  {one:?}\n  {later:?}"));
            }
            let Some(both_us) = end_us.checked_sub(later.start_us).filter(|both_us| *both_us > 0) else {
                continue;
            };
            verdict.longest_us = verdict.longest_us.max(both_us);
            // Until the end of the grace the lease is renewed, each half a ttl, and then it is left to expire.
            let outlived =
                one.ending_us.is_some_and(|ending_us| ending_us + us(GRACE + TTL / 4) < later.start_us);
            let stood_still = stops
                .iter()
                .any(|(pid, at_us)| *pid == one.pid && one.start_us <= *at_us && *at_us <= later.start_us);
            if stood_still {
                verdict.stood_still += 1;
            } else if outlived {
                verdict.outlived += 1;
            } else {
                verdict
                    .faults
                    .push(format!("two were under way at once for {both_us} µs:\n  {one:?}\n  {later:?}"));
            }
        }
    }
    verdict
}
