//! `taskrunner demo`: an election to watch. Three candidates, a crash, a clean stop, and no server.

use std::fmt;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant as Timer};

use crossbeam_channel::{Receiver, Sender, unbounded};
use taskrunner::election::{Elector, Error, Instant, MemoryStore, Reason, Switch, inspect};

use crate::{Failure, print, start_log};

const GROUP: &str = "demo";
const NAMES: [&str; 3] = ["a", "b", "c"];
/// Stands where a line is about the whole group.
const ALL: &str = "all";
const TTL: Duration = Duration::from_secs(3);
/// How long each of them leads. No multiple of the time between renewals (half the ttl), so that the leader
/// crashes in the middle between two, whatever the machine is busy with; and less than the ttl, so that only
/// the wake explains who leads after the stop.
const TERM: Duration = Duration::from_secs(2);
/// Far longer than any takeover, which takes the ttl at most.
const LONGEST_TAKEOVER: Duration = Duration::from_secs(30);

/// Plays the story: a leader, a crash, the next leader, a clean stop, the next leader, the end.
pub(crate) fn run(out: &mut impl Write) -> Result<ExitCode, Failure> {
    // The lines tell the story. The log has the library's view of it, for those who ask by RUST_LOG.
    start_log("off");
    let mut stage = Stage::set(out)?;
    stage.next_leader()?;
    stage.let_time_pass(TERM)?;

    let crashed = stage.crash()?;
    let after_crash = stage.next_leader()?.saturating_duration_since(crashed);
    stage.let_time_pass(TERM)?;

    let stopped = stage.stop("a clean stop: it releases the lease, which wakes the others")?;
    let after_stop = stage.next_leader()?.saturating_duration_since(stopped);
    stage.let_time_pass(TERM)?;

    stage.stop("a clean stop of the last one")?;
    stage.clear()?;
    let (after_crash, after_stop) = (Span(after_crash), Span(after_stop));
    let shown = format!(
        "all stopped; a crash left no leader until the lease's end ({after_crash}), a clean stop for \
         {after_stop}; tokens grew"
    );
    stage.line(Instant::now(), ALL, "end", &shown)?;
    Ok(ExitCode::SUCCESS)
}

/// The candidates, and the lines about them.
struct Stage<'a, W> {
    out: &'a mut W,
    start: Instant,
    store: MemoryStore,
    candidates: Vec<Candidate>,
    told: Receiver<Told>,
    leader: Option<Leader>,
    /// The one that has crashed. What it goes on to tell is not printed.
    crashed: Option<&'static str>,
    /// What the next promotion follows on.
    cause: Option<Cause>,
}

struct Candidate {
    name: &'static str,
    elector: Elector,
    /// Cuts its connection to the store.
    switch: Switch,
}

/// What a candidate's hook was told, and when that was.
struct Told {
    who: &'static str,
    at: Instant,
    token: u64,
    /// Why the term has ended; none for a promotion.
    ended: Option<Reason>,
}

#[derive(Clone, Copy)]
struct Leader {
    who: &'static str,
    since: Instant,
}

struct Cause {
    what: &'static str,
    at: Instant,
    /// When the lease ends, if it was not released.
    lease_end: Option<Instant>,
}

impl<'a, W: Write> Stage<'a, W> {
    fn set(out: &'a mut W) -> Result<Self, Failure> {
        let (sender, told) = unbounded();
        let mut stage = Self {
            out,
            start: Instant::now(),
            store: MemoryStore::new(),
            candidates: Vec::new(),
            told,
            leader: None,
            crashed: None,
            cause: None,
        };
        let names = NAMES.join(", ");
        let about = format!("{names} contend, on a store in this process; a lease lasts {TTL:?}");
        stage.line(stage.start, ALL, "start", &about)?;
        for name in NAMES {
            let candidate = Candidate::start(name, &stage.store, &sender).map_err(failure)?;
            stage.candidates.push(candidate);
        }
        Ok(stage)
    }

    /// Waits until somebody leads, and returns since when.
    fn next_leader(&mut self) -> Result<Instant, Failure> {
        self.present_leader().map(|leader| leader.since)
    }

    fn present_leader(&mut self) -> Result<Leader, Failure> {
        let until = Timer::now() + LONGEST_TAKEOVER;
        loop {
            match self.leader {
                Some(leader) => return Ok(leader),
                None if Timer::now() >= until => {
                    return Err(Failure::Run(format!("nobody has led for {LONGEST_TAKEOVER:?}")));
                }
                None => self.tell_next(until)?,
            }
        }
    }

    /// Prints what happens meanwhile: nothing, unless the machine stands still for so long that a lease ends.
    fn let_time_pass(&mut self, time: Duration) -> Result<(), Failure> {
        let until = Timer::now() + time;
        while Timer::now() < until {
            self.tell_next(until)?;
        }
        Ok(())
    }

    /// Lets the leader crash, as the others see it, and returns when that was.
    fn crash(&mut self) -> Result<Instant, Failure> {
        let who = self.present_leader()?.who;
        self.crashed = Some(who);
        self.candidate(who).switch.cut();
        let at = Instant::now();
        let left = inspect(&self.store, GROUP).map_err(failure)?.remaining.unwrap_or_default();
        let about = format!(
            "cut off and silent from now on, which to the others is a crash; its lease has {} left",
            Span(left)
        );
        self.line(at, who, "crash", &about)?;
        self.leader = None;
        self.cause = Some(Cause { what: "the crash", at, lease_end: Some(at + left) });
        Ok(at)
    }

    /// Stops the leader, and returns when that was asked for.
    fn stop(&mut self, about: &str) -> Result<Instant, Failure> {
        let who = self.present_leader()?.who;
        let at = Instant::now();
        self.line(at, who, "stop", about)?;
        self.cause = Some(Cause { what: "the stop", at, lease_end: None });
        self.candidate(who).elector.stop().map_err(failure)?;
        // All that its hooks were told has been sent by now.
        self.tell_all()?;
        Ok(at)
    }

    /// Stops those that are left.
    fn clear(&mut self) -> Result<(), Failure> {
        for candidate in &self.candidates {
            let stopped = candidate.elector.stop();
            // The crashed one may miss the store on its way out.
            if Some(candidate.name) != self.crashed {
                stopped.map_err(failure)?;
            }
        }
        self.tell_all()
    }

    fn candidate(&self, name: &str) -> &Candidate {
        self.candidates.iter().find(|candidate| candidate.name == name).expect("all names are of candidates")
    }

    /// Waits for the next thing to tell, until then at most.
    fn tell_next(&mut self, until: Timer) -> Result<(), Failure> {
        // The candidates hold senders, so it does not disconnect.
        match self.told.recv_deadline(until) {
            Ok(told) => self.tell(vec![told]),
            Err(_) => Ok(()),
        }
    }

    fn tell_all(&mut self) -> Result<(), Failure> {
        self.tell(Vec::new())
    }

    /// Prints what was told, and what else there is by now, in the order in which it happened: hooks of
    /// different candidates run on different threads.
    fn tell(&mut self, mut told: Vec<Told>) -> Result<(), Failure> {
        told.extend(self.told.try_iter());
        told.sort_by_key(|told| told.at);
        for Told { who, at, token, ended } in told {
            if Some(who) == self.crashed {
                continue;
            }
            match ended {
                None => {
                    self.leader = Some(Leader { who, since: at });
                    let cause = self.cause.take().map(|cause| cause.before(at)).unwrap_or_default();
                    self.line(at, who, "promoted", &format!("token {token}{cause}"))?;
                }
                Some(reason) => {
                    self.leader.take_if(|leader| leader.who == who);
                    self.line(at, who, "demoted", &format!("token {token}, {reason}"))?;
                }
            }
        }
        Ok(())
    }

    fn line(&mut self, at: Instant, who: &str, event: &str, about: &str) -> Result<(), Failure> {
        let seconds = at.saturating_duration_since(self.start).as_secs_f64();
        print(self.out, format!("{seconds:>6.3} s  {who:<3}  {event:<8}  {about}"))
    }
}

impl Candidate {
    fn start(name: &'static str, store: &MemoryStore, told: &Sender<Told>) -> Result<Self, Error> {
        let (store, switch) = store.with_switch();
        let (promoted, demoted) = (told.clone(), told.clone());
        let elector = Elector::builder(store, GROUP)
            .name(name)
            .ttl(TTL)
            // Nobody listens any more once the story has broken off.
            .on_promote(move |leadership| {
                let (at, token) = (leadership.since(), leadership.token());
                promoted.send(Told { who: name, at, token, ended: None }).ok();
            })
            .on_demote(move |demotion| {
                let (at, token) = (demotion.at, demotion.token);
                demoted.send(Told { who: name, at, token, ended: Some(demotion.reason) }).ok();
            })
            .start()?;
        Ok(Self { name, elector, switch })
    }
}

impl Cause {
    /// How long before the promotion it was.
    fn before(&self, promotion: Instant) -> String {
        let since = |at| Span(promotion.saturating_duration_since(at));
        let Self { what, at, .. } = *self;
        match self.lease_end {
            Some(end) => format!(", {} after {what} and {} after the lease's end", since(at), since(end)),
            None => format!(", {} after {what}", since(at)),
        }
    }
}

/// A time for people.
struct Span(Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        if seconds < 1.0 { write!(f, "{:.1} ms", seconds * 1000.0) } else { write!(f, "{seconds:.3} s") }
    }
}

fn failure(error: Error) -> Failure {
    Failure::Run(error.to_chain())
}
