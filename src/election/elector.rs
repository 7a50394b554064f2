//! The public handle: one instance of a group.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};

use super::driver::{Command, Driver, Election, Inlets, Outlets, SUBSCRIPTION, Subscriber, longest_way_out};
use super::error::{Error, ErrorKind};
use super::event::{Demotion, Event};
use super::key::{Group, InstanceId};
use super::leadership::{Leadership, Standing};
use super::options::{Options, RenewError, Timing};
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
    driver: Mutex<Option<Driver>>,
    own_threads: [thread::ThreadId; 2],
    lookups: Lookups,
}

impl Elector {
    /// Begins to describe an elector of this group on this store.
    #[must_use]
    pub fn builder(store: impl LeaseStore, group: impl Into<String>) -> Builder {
        Builder { store: Box::new(store), group: group.into(), name: None, options: Options::default() }
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
        if self.is_own_thread() {
            return Ok(());
        }
        match answer.recv_timeout(longest_way_out(&self.timing) + SLACK) {
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
        if self.is_own_thread() {
            return Ok(());
        }
        let left = self.join(longest_way_out(&self.timing) + SLACK) + self.lookups.running();
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

    /// Waits for the threads to end, and says how many have not at the end of `limit`.
    fn join(&self, limit: Duration) -> usize {
        let driver = || self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        // Waited for without the lock, so that calls at the same time all wait for no longer than this.
        let ended = driver().as_ref().map(Driver::ended);
        let running = ended.is_some_and(|ended| ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout));
        if running {
            return self.own_threads.len();
        }
        if let Some(driver) = driver().take() {
            driver.join();
        }
        0
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

    /// Whether this is a thread of this elector, which must not wait for itself.
    fn is_own_thread(&self) -> bool {
        self.own_threads.contains(&thread::current().id())
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
        let session = self.store.open().map_err(|error| {
            Error::spawn(
                "could not open a session with the store; too many files may be open",
                Some(Arc::new(error)),
            )
        })?;
        let lookups = session.lookups();
        let driver = Driver::start(session)?;
        let standing = Arc::new(Standing::new(driver.commands(ELECTION)));
        let (outlets, inlets) = Outlets::new();
        let (for_driver, own_threads) = (Arc::clone(&standing), driver.threads);
        driver.add(Election::new(ELECTION, group.clone(), id.clone(), timing, for_driver, outlets));
        driver.close();
        let driver = Mutex::new(Some(driver));
        Ok(Elector { standing, inlets, group, id, timing, driver, own_threads, lookups })
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
