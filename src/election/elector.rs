//! The public handle: one instance of a group.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};

use super::clock::Instant;
use super::driver::{
    Command, Driver, Election, Hooks, Inlets, Lead, Outlets, Owner, Place, Returning, SUBSCRIPTION,
    Subscriber, Thread, longest_way_out,
};
use super::error::{Error, ErrorKind};
use super::event::{Demotion, Event};
use super::key::{Group, InstanceId};
use super::leadership::{Leadership, Standing};
use super::options::{Options, RenewError, Timing};
use super::status::{Inspection, Status};
use super::store::{LeaseStore, Lookups};

/// The number of the one election that an elector's driver runs.
const ELECTION: u64 = 0;
/// What the end of a call may take beside the waits that are counted: threads that are woken on a
/// busy machine.
const SLACK: Duration = Duration::from_millis(500);
/// The longest name of an instance; it is part of every answer about the holder.
const LONGEST_NAME: usize = 256;

/// One instance of a group: it contends for the group's lease, and leads while it can prove that it
/// holds it.
///
/// All methods may be called from any thread. Nothing has to be read, called or polled for the
/// election to go on.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use taskrunner::election::{Elector, MemoryStore};
///
/// let store = MemoryStore::new();
/// let one = Elector::builder(store.clone(), "demo").start()?;
/// one.wait_for_leadership(Duration::from_secs(1))?;
/// let two = Elector::builder(store, "demo").ttl(Duration::from_secs(1)).start()?;
/// assert!(one.is_leader() && !two.is_leader());
/// one.stop()?;
/// assert!(!one.is_leader());
/// # Ok::<(), taskrunner::election::Error>(())
/// ```
pub struct Elector {
    standing: Arc<Standing>,
    inlets: Inlets,
    group: Group,
    id: InstanceId,
    timing: Timing,
    owner: Owner,
    lead: Lead,
    running: Mutex<Running>,
    lookups: Lookups,
}

/// The threads that are still to be joined.
#[derive(Default)]
struct Running {
    driver: Option<Driver>,
    hooks: Option<Thread>,
}

impl Elector {
    /// Begins to describe an elector of this group on this store.
    #[must_use]
    pub fn builder(store: impl LeaseStore, group: impl Into<String>) -> Builder {
        Builder {
            store: Box::new(store),
            group: group.into(),
            name: None,
            options: Options::default(),
            hooks: Hooks::default(),
            lead: None,
        }
    }

    /// Whether this instance leads now: its deadline is compared with the clock.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.standing.is_leader()
    }

    /// The present term of this instance, if it leads now. Never blocks.
    #[must_use]
    pub fn leadership(&self) -> Option<Leadership> {
        self.standing.leadership()
    }

    /// Waits until this instance leads: for `timeout` at most, or with `None` until the elector ends.
    ///
    /// # Errors
    ///
    /// [`Timeout`](ErrorKind::Timeout); [`Stopped`](ErrorKind::Stopped) once the elector has been
    /// stopped; what [`stop`](Self::stop) returned if that was an error; [`Dead`](ErrorKind::Dead).
    pub fn wait_for_leadership(&self, timeout: impl Into<Option<Duration>>) -> Result<Leadership, Error> {
        self.standing.wait(timeout.into())
    }

    /// A new subscription to all events. It begins with the present state: `Promoted` if this instance
    /// leads, and `LeaderChanged`.
    ///
    /// It holds 256 events. A listener that falls behind receives [`Event::Missed`] in the place of
    /// what was lost, and then the present state. After [`Event::Stopped`] the channel disconnects;
    /// if a thread of the elector has died it disconnects without.
    #[must_use]
    pub fn events(&self) -> Receiver<Event> {
        let (sender, receiver) = bounded(SUBSCRIPTION);
        let subscriber = Subscriber::new(sender, Arc::clone(&self.standing));
        self.standing.commands.send(Command::Subscribe(subscriber));
        receiver
    }

    /// The promotions: it holds the newest one that no demotion contradicts.
    ///
    /// All receivers of one elector share the channel: each promotion is received once. Use
    /// [`events`](Self::events) for a listener of its own.
    #[must_use]
    pub fn on_promote(&self) -> Receiver<Leadership> {
        self.inlets.promote.clone()
    }

    /// The demotions: it holds the newest one that no promotion contradicts. Shared as
    /// [`on_promote`](Self::on_promote) is.
    #[must_use]
    pub fn on_demote(&self) -> Receiver<Demotion> {
        self.inlets.demote.clone()
    }

    /// The errors: it holds the 16 newest. Shared as [`on_promote`](Self::on_promote) is.
    #[must_use]
    pub fn on_error(&self) -> Receiver<Error> {
        self.inlets.error.clone()
    }

    /// Runs the work whenever this instance leads, on the calling thread, until the elector has stopped.
    ///
    /// The work must return when its term ends: [`Leadership::lost`] and [`Leadership::check`] tell. It is
    /// waited for as the work of [`Builder::lead`] is. If it returns while the term stands, the instance
    /// steps down and does not contend for one `wait`. If it panics, so does this call.
    ///
    /// # Errors
    ///
    /// [`Configuration`](ErrorKind::Configuration) if lead work is running already;
    /// [`Overrun`](ErrorKind::Overrun) and [`Dead`](ErrorKind::Dead) as
    /// [`wait_for_leadership`](Self::wait_for_leadership); what [`stop`](Self::stop) returned if that was
    /// an error. A stopped elector is none.
    pub fn run(&self, mut work: impl FnMut(Leadership)) -> Result<(), Error> {
        let commands = &self.standing.commands;
        self.lead.use_from_now_on();
        loop {
            let leadership = match self.wait_for_leadership(None) {
                Ok(leadership) => leadership,
                Err(error) if error.kind() == ErrorKind::Stopped => return Ok(()),
                Err(error) => return Err(error),
            };
            let (granted, answer) = bounded(1);
            let token = leadership.token();
            commands.send(Command::LeadBegan { token, granted });
            match answer.recv() {
                Ok(Ok(())) => {
                    let _returning = Returning { commands, token };
                    self.owner.within(Place::LeadWork, || work(leadership));
                }
                Ok(Err(error)) if error.kind() == ErrorKind::NotLeading => {}
                Ok(Err(error)) => return Err(error),
                // The driver has ended; the next wait says how.
                Err(_) => {}
            }
        }
    }

    /// The state of this instance, as of now. Never blocks.
    #[must_use]
    pub fn status(&self) -> Status {
        self.standing.status()
    }

    /// Asks the store who leads. It blocks for about a round trip, and for two call limits (at most 4 s)
    /// at most.
    ///
    /// # Errors
    ///
    /// What kept the store from answering; [`Timeout`](ErrorKind::Timeout), [`Stopped`](ErrorKind::Stopped)
    /// and [`Dead`](ErrorKind::Dead).
    pub fn current_leader(&self) -> Result<Inspection, Error> {
        let (done, answer) = bounded(1);
        self.standing.commands.send(Command::Look { done });
        match answer.recv_timeout(self.timing.call_limit * 2 + SLACK) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Disconnected) => Err(self.end_error()),
            Err(RecvTimeoutError::Timeout) => {
                let message =
                    format!("the store did not say in time who leads group {:?}", self.group.name());
                Err(Error::new(ErrorKind::Timeout, message))
            }
        }
    }

    /// Gives leadership up, if this instance leads, and does not contend for `pause`.
    ///
    /// When it returns `Ok`, this instance does not lead and has released the lease. It blocks until
    /// then, for two call limits (at most 4 s) at most.
    ///
    /// # Errors
    ///
    /// What kept the lease from being released: it then ends by itself, within ttl, and this instance
    /// does not lead all the same. [`Stopped`](ErrorKind::Stopped) and [`Dead`](ErrorKind::Dead).
    pub fn step_down(&self, pause: Duration) -> Result<(), Error> {
        let (done, answer) = bounded(1);
        self.standing.commands.send(Command::StepDown { pause, done });
        if matches!(self.owner.place(), Some(Place::Engine | Place::LeadWork)) {
            return Ok(());
        }
        match answer.recv_timeout(self.longest_way_out() + SLACK) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Disconnected) => Err(self.end_error()),
            Err(RecvTimeoutError::Timeout) => Err(Error::new(
                ErrorKind::Timeout,
                format!(
                    "stepped down, but the lease of group {:?} is not released yet; it ends by itself within {:?}",
                    self.group.name(),
                    self.timing.ttl,
                ),
            )),
        }
    }

    /// Ends the election: leadership ends, the lease is released if it is ours, the threads end.
    ///
    /// It blocks for two call limits (at most 4 s) at most; with a store that answers, for about a
    /// round trip. After it has returned nothing more is sent in this instance's name. It may be
    /// called from any thread, more than once and at the same time; later calls return what the first
    /// did, but that threads may have ended meanwhile. On a thread of the elector itself it returns at once.
    ///
    /// # Errors
    ///
    /// What kept the lease from being released: it then ends by itself, within ttl.
    /// [`Overrun`](ErrorKind::Overrun) if a thread still runs: it counts them.
    /// [`Dead`](ErrorKind::Dead) if a thread of the elector has panicked.
    pub fn stop(&self) -> Result<(), Error> {
        // A driver that has ended has stopped.
        self.standing.commands.send(Command::Stop);
        let place = self.owner.place();
        if matches!(place, Some(Place::Engine | Place::LeadWork)) {
            return Ok(());
        }
        let until = Instant::now() + self.longest_way_out() + SLACK;
        let left = self.join(until, place == Some(Place::Hook)) + self.lookups.running();
        let threads_left = |stop| Error::threads_left(self.group.name(), left, stop);
        match self.standing.ended() {
            Some(Err(error)) if left == 0 || error.kind() == ErrorKind::Dead => Err(error),
            Some(Ok(())) if left == 0 => Ok(()),
            Some(outcome) => Err(threads_left(outcome.err())),
            None => {
                // The driver is held up. Whatever it does later, this instance does not lead.
                let error = threads_left(None);
                self.standing.end(Err(error.clone()));
                Err(error)
            }
        }
    }

    /// Waits for the threads to end, and says how many have not by then.
    fn join(&self, until: Instant, by_hook: bool) -> usize {
        let has_ended = |ended: Receiver<()>| {
            let left = until.saturating_duration_since(Instant::now());
            ended.recv_timeout(left) != Err(RecvTimeoutError::Timeout)
        };
        let running = || self.running.lock().unwrap_or_else(PoisonError::into_inner);
        // Waited for without the lock, so that calls at the same time all wait for no longer than this.
        let driver = running().driver.as_ref().map(Driver::ended);
        if driver.is_some_and(|driver| !has_ended(driver)) {
            return Driver::THREADS;
        }
        if let Some(driver) = running().driver.take() {
            driver.join();
        }
        // A hook's own thread ends when the hook has returned.
        let hooks = running().hooks.as_ref().filter(|_| !by_hook).map(Thread::ended);
        let hooks_left = hooks.is_some_and(|hooks| !has_ended(hooks));
        if !by_hook
            && !hooks_left
            && let Some(hooks) = running().hooks.take()
        {
            hooks.join();
        }
        let works = self.lead.ended();
        let works_left = works.into_iter().filter(|work| !has_ended(work.clone())).count();
        self.lead.join_ended();
        usize::from(hooks_left) + works_left
    }

    /// The id of this instance: the lease's value while it leads.
    #[must_use]
    pub fn id(&self) -> &str {
        self.id.as_str()
    }

    /// The name of the group.
    #[must_use]
    pub fn group(&self) -> &str {
        self.group.name()
    }

    /// The lease key of the group.
    #[must_use]
    pub fn key(&self) -> &str {
        self.group.lease()
    }

    /// The longest that the way out of a term takes.
    fn longest_way_out(&self) -> Duration {
        let grace = if self.lead.is_used() { self.timing.lead_grace } else { Duration::ZERO };
        grace + longest_way_out(&self.timing)
    }

    fn end_error(&self) -> Error {
        if self.standing.has_stopped() { Error::stopped() } else { Error::dead() }
    }
}

impl Drop for Elector {
    /// As [`stop`](Elector::stop), but that what it would return is logged.
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            log::warn!("dropping an elector: {}", error.to_chain());
        }
    }
}

impl fmt::Debug for Elector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Elector")
            .field("group", &self.group.name())
            .field("id", &self.id)
            .field("standing", &self.standing)
            .finish_non_exhaustive()
    }
}

/// What an [`Elector`] is to be; made by [`Elector::builder`].
///
/// All durations may be any value: what does not fit is refused by [`start`](Builder::start).
pub struct Builder {
    store: Box<dyn LeaseStore>,
    group: String,
    name: Option<String>,
    options: Options,
    hooks: Hooks,
    lead: Option<Arc<dyn Fn(Leadership) + Send + Sync>>,
}

impl Builder {
    /// How long the lease lasts if it is not renewed: the time in which a group notices that its
    /// leader is gone. From 100 ms to one day; truncated to whole milliseconds.
    ///
    /// Defaults to 5 s.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// The longest time between two attempts of a follower, and how long an instance stands back
    /// after a demotion on an error. At least 10 ms.
    ///
    /// Defaults to 6 s.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.options.wait = wait;
        self
    }

    /// Renewals and attempts come up to this much later than planned, evenly spread, so that
    /// instances do not act in step. Together with the stop margin at most a quarter of ttl.
    ///
    /// Defaults to 5 ms.
    #[must_use]
    pub fn jitter(mut self, jitter: Duration) -> Self {
        self.options.jitter = jitter;
        self
    }

    /// How long before the lease's end the leader stops claiming it. It covers clocks that run at
    /// different rates, and gives the work time to stop. From a fiftieth to a quarter of ttl.
    ///
    /// Defaults to a twentieth of ttl.
    #[must_use]
    pub fn stop_margin(mut self, margin: Duration) -> Self {
        self.options.stop_margin = Some(margin);
        self
    }

    /// What the leader does when a renewal fails.
    ///
    /// Defaults to [`RenewError::Demote`].
    #[must_use]
    pub fn renew_error(mut self, policy: RenewError) -> Self {
        self.options.renew_error = policy;
        self
    }

    /// A name that is shown before the random part of the instance's id. Two instances may have the
    /// same. At most 256 bytes, without control characters.
    ///
    /// Defaults to none.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The lead work: runs on a thread of its own for each term, and only while the term stands.
    ///
    /// It must return when its term ends: [`Leadership::lost`] and [`Leadership::check`] tell. On the way
    /// out of a term it is waited for, up to [`lead_grace`](Self::lead_grace), before the lease is released:
    /// so no other instance's work runs beside it. If it outlives its grace the lease is left to expire,
    /// an error of kind [`Overrun`](ErrorKind::Overrun) is told, and this instance does not contend until it
    /// has returned. If it returns or panics while the term stands, the instance steps down, and does not
    /// contend for one `wait`.
    ///
    /// Defaults to none.
    #[must_use]
    pub fn lead(mut self, work: impl Fn(Leadership) + Send + Sync + 'static) -> Self {
        self.lead = Some(Arc::new(work));
        self
    }

    /// How long a stop or a step down waits for the lead work. May be any value.
    ///
    /// Defaults to ttl.
    #[must_use]
    pub fn lead_grace(mut self, grace: Duration) -> Self {
        self.options.lead_grace = Some(grace);
        self
    }

    /// Calls this on each promotion, on the hooks' thread.
    ///
    /// Hooks are called one after the other, in the order of the events. A hook may take its time, block
    /// or panic (which is told as an error): the election goes on all the same. It may call
    /// [`Elector::step_down`] and [`Elector::stop`]. One that is more than 256 events behind goes on with
    /// the present state. Defaults to nothing.
    #[must_use]
    pub fn on_promote(mut self, hook: impl FnMut(Leadership) + Send + 'static) -> Self {
        self.hooks.promote = Some(Box::new(hook));
        self
    }

    /// Calls this on each demotion, as [`on_promote`](Self::on_promote). Defaults to nothing.
    #[must_use]
    pub fn on_demote(mut self, hook: impl FnMut(Demotion) + Send + 'static) -> Self {
        self.hooks.demote = Some(Box::new(hook));
        self
    }

    /// Calls this on each error, as [`on_promote`](Self::on_promote). Defaults to nothing.
    #[must_use]
    pub fn on_error(mut self, hook: impl FnMut(Error) + Send + 'static) -> Self {
        self.hooks.error = Some(Box::new(hook));
        self
    }

    /// Checks the options and spawns the threads. It does no network I/O: a store that cannot be
    /// reached is told by events, and tried again.
    ///
    /// # Errors
    ///
    /// [`Configuration`](ErrorKind::Configuration) for a value that does not fit, with the numbers and
    /// the rule; [`System`](ErrorKind::System) if a thread could not be spawned.
    pub fn start(self) -> Result<Elector, Error> {
        let timing = self.options.check()?;
        let group = Group::new(&self.group)?;
        if let Some(name) = &self.name {
            check_name(name)?;
        }
        let id = InstanceId::random(self.name.as_deref())?;
        let (session, listener) = self.store.open_both().map_err(Error::session)?;
        let lookups = session.lookups();
        let owner = Owner::new();
        let driver = Driver::start(owner, session, listener)?;
        let standing = Arc::new(Standing::new(driver.commands(ELECTION)));
        let (mut outlets, inlets) = Outlets::new();
        let mut hooks_thread = None;
        if !self.hooks.is_empty() {
            let (sender, events) = bounded(SUBSCRIPTION);
            outlets.subscribe(sender);
            let (hooks, commands) = (self.hooks, standing.commands.clone());
            let body = move || hooks.run(&events, &commands);
            // Without an election to come, the driver's threads end.
            let spawned = Thread::spawn(owner, Place::Hook, "tr-hooks", body).inspect_err(|_| driver.close());
            hooks_thread = Some(spawned?);
        }
        let lead = Lead::new(owner, self.lead);
        let for_driver = Arc::clone(&standing);
        let election =
            Election::new(ELECTION, group.clone(), id.clone(), timing, for_driver, outlets, lead.clone());
        driver.add(election);
        driver.close();
        let running = Mutex::new(Running { driver: Some(driver), hooks: hooks_thread });
        Ok(Elector { standing, inlets, group, id, timing, owner, lead, running, lookups })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("group", &self.group)
            .field("name", &self.name)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    if name.is_empty() || name.len() > LONGEST_NAME || name.chars().any(char::is_control) {
        return Err(Error::options(format!(
            "the instance's name has {} bytes; it must have from 1 to {LONGEST_NAME}, and no control characters",
            name.len(),
        )));
    }
    Ok(())
}
