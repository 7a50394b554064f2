//! Where it happens: one server, and candidates that are each behind a proxy of their own.

use std::process::ExitStatus;
use std::thread;
use std::time::{Duration, Instant};

use super::record::{Record, Told};
use super::resource::{Ledgers, Resource};
use super::schedule::{Act, CANDIDATES, Fault, HOLE, Kind, OnData, OnNetwork, OnProcess, OnServer};
use super::{TTL, WAIT, now_us};
use crate::support::{Admin, Campaign, Flow, Line, Proxy, Reply, Server, unique_group};

/// Longer than anything takes that is to happen, on the slowest machine.
const CAP: Duration = Duration::from_secs(30);

/// How often is looked for a process that has ended.
const LOOK: Duration = Duration::from_millis(5);

/// The stage with its actors.
pub(super) struct Stage {
    server: Server,
    resource: Resource,
    seats: Vec<Seat>,
    group: String,
    key: String,
    under_way: Vec<UnderWay>,
    record: Record,
    /// How many faults found their target in trouble already.
    passed_over: usize,
    /// How long the longest exit after a SIGTERM took.
    longest_exit: Duration,
    /// How many could not give their lease back when they were asked to end.
    unreleased: usize,
}

/// A candidate's place: when its process ends, another one takes it.
struct Seat {
    proxy: Proxy,
    candidate: Option<Campaign>,
    /// How many processes have had it.
    started: usize,
}

/// What a fault holds: no other one meets the same before it is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Process(usize),
    Network(usize),
    Server,
}

struct UnderWay {
    kind: &'static Kind,
    place: Place,
    target: String,
    from: Instant,
    at_us: u64,
    /// When it is over; of a process that was asked to end, when is looked whether it has.
    until: Instant,
}

/// What is left when all is over.
pub(super) struct Played {
    pub(super) record: Record,
    pub(super) ledgers: Ledgers,
    pub(super) processes: usize,
    pub(super) passed_over: usize,
    pub(super) longest_exit: Duration,
    pub(super) unreleased: usize,
    /// How long it took after the last fault until one led and everyone knew who.
    pub(super) recovered: Option<Duration>,
}

impl Stage {
    /// Starts everything, and returns when there is a leader.
    pub(super) fn set(record: Record) -> Self {
        // Killed, it comes back with its data: what a client was told has been handed to the kernel before. To
        // wait for the disk would guard against the death of the machine only, and tie the run to its speed.
        let server = Server::with(&["--appendonly", "yes", "--appendfsync", "no"]);
        let resource = Resource::start(&server.dir().join("resource.sock"));
        let seats = (0..CANDIDATES)
            .map(|_| Seat { proxy: Proxy::to(&server), candidate: None, started: 0 })
            .collect();
        let mut stage = Self {
            server,
            resource,
            seats,
            group: unique_group("chaos"),
            key: String::new(),
            under_way: Vec::new(),
            record,
            passed_over: 0,
            longest_exit: Duration::ZERO,
            unreleased: 0,
        };
        (0..CANDIDATES).for_each(|seat| stage.start(seat));
        let first = stage.seats[0].candidate.as_ref().expect("it was started");
        stage.key = first.wait_event(0, "started", CAP).text("key").to_owned();
        assert!(stage.wait_for_agreement().is_some(), "nobody leads before the first fault");
        stage
    }

    /// Lets the faults happen, each at its time, and waits until the last one is over.
    pub(super) fn play(&mut self, faults: &[Fault]) {
        let from = Instant::now();
        for fault in faults {
            self.wait_until(from + fault.at);
            self.begin(fault);
        }
        while let Some(next) = self.next_end() {
            self.wait_until(next);
        }
    }

    /// Waits for a leader that all know, and ends all candidates.
    pub(super) fn end(mut self) -> Played {
        let recovered = self.wait_for_agreement();
        let from = Instant::now();
        let at_us = now_us();
        for seat in &self.seats {
            if let Some(candidate) = &seat.candidate {
                candidate.terminate();
            }
        }
        for seat in 0..CANDIDATES {
            if let Some(mut candidate) = self.seats[seat].candidate.take() {
                let status = candidate.wait_exit(CAP);
                self.longest_exit = self.longest_exit.max(from.elapsed());
                self.judge_exit(seat, &candidate, status, at_us);
                self.record.add_candidate(&candidate);
            }
        }
        Played {
            record: self.record,
            ledgers: self.resource.end(),
            processes: self.seats.iter().map(|seat| seat.started).sum(),
            passed_over: self.passed_over,
            longest_exit: self.longest_exit,
            unreleased: self.unreleased,
            recovered,
        }
    }

    fn start(&mut self, seat: usize) {
        let Seat { proxy, candidate, started } = &mut self.seats[seat];
        let name = format!("c{seat}-{started}");
        let policy = ["demote", "retry"][seat % 2];
        let [ttl, wait] = [TTL, WAIT].map(|time| format!("{}ms", time.as_millis()));
        let args = ["--ttl", &ttl, "--wait", &wait, "--sample", "4ms", "--on-renew-error", policy];
        let args = [&args[..], &["--id", &name, "--write-token", self.resource.path()]].concat();
        *started += 1;
        *candidate = Some(Campaign::start(&self.group, &proxy.url(), &args).named(&name));
    }

    /// Waits, and sees to what is over or has ended meanwhile.
    fn wait_until(&mut self, time: Instant) {
        loop {
            let now = Instant::now();
            self.notice_deaths();
            while let Some(index) = self.under_way.iter().position(|it| it.until <= now) {
                let over = self.under_way.swap_remove(index);
                self.finish(over);
            }
            if now >= time {
                return;
            }
            let next = self.next_end().map_or(time, |end| end.min(time));
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }

    fn next_end(&self) -> Option<Instant> {
        self.under_way.iter().map(|it| it.until).min()
    }

    /// A candidate that ends unasked is a fault of ours.
    fn notice_deaths(&mut self) {
        for seat in 0..CANDIDATES {
            let asked = self.under_way.iter().any(|it| it.place == Place::Process(seat));
            let Some(candidate) = self.seats[seat].candidate.as_mut().filter(|_| !asked) else { continue };
            if let Some(status) = candidate.try_exit() {
                self.record.trouble(format!("{} ended: {status}\n{}", candidate.name(), candidate.stderr()));
                self.record.add_candidate(candidate);
                self.start(seat);
            }
        }
    }

    fn begin(&mut self, fault: &Fault) {
        let Fault { kind, lasts, .. } = *fault;
        let seat = if fault.leader { self.leader() } else { None }.unwrap_or(fault.candidate);
        let place = match kind.act {
            Act::Process(_) => Place::Process(seat),
            Act::Network(_) => Place::Network(seat),
            Act::Server(_) | Act::Data(_) => Place::Server,
        };
        if self.is_held(place) {
            self.passed_over += 1;
            return;
        }
        let target = match (place, &self.seats[seat].candidate) {
            (Place::Server, _) => "redis".to_owned(),
            (_, Some(candidate)) => candidate.name().to_owned(),
            // Killed a moment ago; what is to come next will find the network like this.
            (_, None) => format!("c{seat}-{}", self.seats[seat].started),
        };
        let (from, at_us) = (Instant::now(), now_us());
        match kind.act {
            Act::Process(act) => self.act_on_process(act, seat),
            Act::Network(act) => act_on_network(act, &self.seats[seat].proxy, lasts),
            Act::Server(act) => self.act_on_server(act, lasts),
            Act::Data(act) => self.act_on_data(act, lasts),
        }
        let until = Instant::now() + lasts;
        self.under_way.push(UnderWay { kind, place, target, from, at_us, until });
    }

    fn is_held(&self, place: Place) -> bool {
        self.under_way.iter().any(|it| it.place == place)
    }

    /// Who holds the lease, if the server can tell.
    fn leader(&self) -> Option<usize> {
        if self.is_held(Place::Server) {
            return None;
        }
        let Reply::Text(id) = self.server.command(&["GET", &self.key]) else { return None };
        let name = id.split('/').next();
        self.seats.iter().position(|seat| seat.candidate.as_ref().map(Campaign::name) == name)
    }

    fn act_on_process(&mut self, act: OnProcess, seat: usize) {
        // A seat is empty only while a fault holds it.
        let candidate = self.seats[seat].candidate.as_mut().expect("the seat is taken");
        match act {
            OnProcess::Kill => {
                candidate.kill9();
                self.record.add_candidate(candidate);
                self.seats[seat].candidate = None;
            }
            OnProcess::Terminate => candidate.terminate(),
            OnProcess::Freeze => candidate.freeze(),
        }
    }

    fn act_on_server(&mut self, act: OnServer, lasts: Duration) {
        let say = |words: &[&str]| say(&mut self.server.admin(), words);
        match act {
            OnServer::Freeze => self.server.freeze(),
            OnServer::Restart => self.server.kill(),
            OnServer::Pause => say(&["CLIENT", "PAUSE", &lasts.as_millis().to_string(), "ALL"]),
            OnServer::FlushScripts => say(&["SCRIPT", "FLUSH"]),
            OnServer::KillClients => {
                say(&["CLIENT", "KILL", "TYPE", "normal"]);
                say(&["CLIENT", "KILL", "TYPE", "pubsub"]);
            }
        }
    }

    fn act_on_data(&self, act: OnData, lasts: Duration) {
        let say = |words: &[&str]| say(&mut self.server.admin(), words);
        match act {
            OnData::DeleteLease => say(&["DEL", &self.key]),
            OnData::OverwriteLease => {
                say(&["SET", &self.key, "a-third-party", "PX", &lasts.as_millis().to_string()]);
            }
            OnData::DeleteTerm => say(&["DEL", &format!("{{{}}}:term", self.key)]),
            OnData::FlushAll => say(&["FLUSHALL"]),
        }
    }

    /// Takes the fault back.
    fn finish(&mut self, mut over: UnderWay) {
        match (over.kind.act, over.place) {
            (Act::Process(OnProcess::Kill), Place::Process(seat)) => self.start(seat),
            (Act::Process(OnProcess::Terminate), Place::Process(seat)) => {
                let candidate = self.seats[seat].candidate.as_mut().expect("nobody else ends it");
                let Some(status) = candidate.try_exit() else {
                    assert!(over.from.elapsed() < CAP, "{candidate:?} did not stop within {CAP:?}");
                    over.until = Instant::now() + LOOK;
                    return self.under_way.push(over);
                };
                self.longest_exit = self.longest_exit.max(over.from.elapsed());
                let candidate = self.seats[seat].candidate.take().expect("it was there just now");
                self.judge_exit(seat, &candidate, status, over.at_us);
                self.record.add_candidate(&candidate);
                self.start(seat);
            }
            (Act::Process(OnProcess::Freeze), Place::Process(seat)) => {
                self.seats[seat].candidate.as_ref().expect("nobody else ends it").thaw();
            }
            (Act::Network(OnNetwork::Refuse), Place::Network(seat)) => self.seats[seat].proxy.refuse(false),
            (Act::Network(OnNetwork::LateReplies), Place::Network(seat)) => {
                self.seats[seat].proxy.hold();
                let (from, at_us, target) = (Instant::now(), now_us(), over.target.clone());
                let until = from + TTL;
                self.under_way.push(UnderWay { kind: &HOLE, target, from, at_us, until, ..over });
            }
            (Act::Network(_), Place::Network(seat)) => self.seats[seat].proxy.pass(),
            (Act::Server(OnServer::Freeze), _) => self.server.thaw(),
            (Act::Server(OnServer::Restart), _) => self.server.restart(),
            // A pause ends by itself, and the others have no length or end by themselves.
            _ => {}
        }
        let until_us = now_us();
        let UnderWay { kind, place, target, at_us, .. } = over;
        let seat = match place {
            Place::Process(seat) | Place::Network(seat) => Some(seat),
            Place::Server => None,
        };
        self.record.add_fault(Told { kind, seat, target, at_us, until_us });
    }

    /// A candidate that is asked to end does so with success, but where it could not give its lease back in time.
    fn judge_exit(&mut self, seat: usize, candidate: &Campaign, status: ExitStatus, at_us: u64) {
        let said = candidate.stderr();
        let hampered = self.is_held(Place::Server)
            || self.is_held(Place::Network(seat))
            || self.record.has_met(seat, at_us)
            // A machine that stands still is a fault, too.
            || said.contains("took longer than");
        match status.code() {
            Some(0) => {}
            Some(1) if hampered => self.unreleased += 1,
            _ => {
                let name = candidate.name();
                self.record.trouble(format!("{name}, asked to end at {at_us}: {status}\n{said}"));
            }
        }
    }

    /// How long it took until one is read to lead and all have been told that it does.
    fn wait_for_agreement(&self) -> Option<Duration> {
        let (from, from_us) = (Instant::now(), now_us());
        let leads = |line: &Line| line.is("sample") && line.token().is_some() && line.at_us() >= from_us;
        while from.elapsed() < TTL + WAIT + CAP {
            let mut told: Vec<Option<u64>> = Vec::new();
            let mut read = None;
            for candidate in self.seats.iter().filter_map(|seat| seat.candidate.as_ref()) {
                let lines = candidate.lines();
                told.push(lines.iter().rfind(|line| line.is("leader")).and_then(Line::token));
                read = read.or(lines.iter().rfind(|line| leads(line)).and_then(Line::token));
            }
            if read.is_some() && told.len() == CANDIDATES && told.iter().all(|token| *token == read) {
                return Some(from.elapsed());
            }
            // Seldom, for the candidates need the cores, too.
            thread::sleep(Duration::from_millis(20));
        }
        None
    }
}

fn act_on_network(act: OnNetwork, proxy: &Proxy, lasts: Duration) {
    match act {
        OnNetwork::Hole => proxy.hold(),
        OnNetwork::HoldCommands => proxy.set(Flow::Hold, Flow::Pass),
        OnNetwork::HoldReplies => proxy.hold_replies(),
        // Later by far than the stop margin, and in time for a renewal that is not tried again.
        OnNetwork::LateReplies => proxy.delay_replies(TTL / 4),
        // A long one is a little late, a short one is not over before anything has come through.
        OnNetwork::Delay => proxy.delay(lasts / 8),
        OnNetwork::Trickle => proxy.trickle_replies(Duration::from_millis(1)),
        OnNetwork::Reset => proxy.reset_all(),
        OnNetwork::Close => proxy.close_all(),
        OnNetwork::Refuse => proxy.refuse(true),
    }
}

#[track_caller]
fn say(admin: &mut Admin, words: &[&str]) {
    let reply = admin.command(words);
    assert!(!matches!(reply, Reply::Error(_)), "{words:?}: {reply:?}");
}
