//! The public handle: one instance of a group.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};

use super::builder::Builder;
use super::clock::Instant;
use super::driver::{
    Command, Driver, Inlets, Lead, Owner, Place, Returning, SUBSCRIPTION, Subscriber, Thread, longest_way_out,
};
use super::error::{Error, ErrorKind};
use super::event::{Demotion, Event};
use super::key::{Group, InstanceId};
use super::leadership::{Leadership, Standing};
use super::options::Timing;
use super::status::{Inspection, Status};
use super::store::{LeaseStore, Lookups};

/// What the end of a call may take beside the waits that are counted: threads that are woken on a
/// busy machine.
const SLACK: Duration = Duration::from_millis(500);
/// What a thread that has nothing left to do may take to end.
const WAKING: Duration = Duration::from_millis(100);

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
    pub(super) standing: Arc<Standing>,
    pub(super) inlets: Inlets,
    pub(super) group: Group,
    pub(super) id: InstanceId,
    pub(super) timing: Timing,
    pub(super) owner: Owner,
    pub(super) lead: Lead,
    pub(super) running: Mutex<Running>,
    pub(super) lookups: Lookups,
    /// Whether a caller of `stop()` was told how it went.
    pub(super) told: AtomicBool,
}

/// The threads that are still to be joined.
#[derive(Default)]
pub(super) struct Running {
    pub(super) driver: Option<Driver>,
    pub(super) hooks: Option<Thread>,
}

impl Elector {
    /// Begins to describe an elector of this group on this store.
    #[must_use]
    pub fn builder(store: impl LeaseStore, group: impl Into<String>) -> Builder {
        Builder::new(Box::new(store), group.into())
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
    /// stopped; what [`stop`](Self::stop) returned if that was an error; [`Dead`](ErrorKind::Dead);
    /// [`Overrun`](ErrorKind::Overrun) while the lead work of an earlier term outlives its grace, for until it
    /// returns this instance does not contend.
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
    /// steps down and does not contend for one `wait`. If it panics, so does this call; the instance then
    /// steps down likewise, and contends again: drop or stop it, unless `run` is called anew.
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
                    let mut returning = Returning::new(commands, token);
                    returning.panicked("its message went on to the caller of run()");
                    self.owner.within(Place::LeadWork, || work(leadership));
                    returning.wait();
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
    /// then, for two call limits (at most 4 s) at most, and with lead work for its grace before that. Called
    /// from the lead work itself it returns at once, for the release waits for the work.
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
    /// It blocks for two call limits (at most 4 s) at most, and with lead work for its grace before
    /// that; with a store that answers, for about a round trip after the work has returned. A hook that is
    /// being called is waited for in the same time. On a machine so busy that a thread gets no processor it may
    /// take 0.6 s more. After it has returned nothing more is sent in this instance's name.
    ///
    /// It may be called from any thread, more than once and at the same time; later calls return what the
    /// first did, but that threads may have ended meanwhile. Called from the lead work it returns at once,
    /// before anything has ended, for it would wait for itself; from a hook it waits for all but that hook.
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
        let until = Instant::now() + self.longest_way_out();
        let left = self.join(until, place == Some(Place::Hook)) + self.lookups.running();
        self.told.store(true, Ordering::Relaxed);
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
        let has_ended = |ended: Receiver<()>, until: Instant| {
            let left = until.saturating_duration_since(Instant::now());
            ended.recv_timeout(left) != Err(RecvTimeoutError::Timeout)
        };
        let running = || self.running.lock().unwrap_or_else(PoisonError::into_inner);
        // Waited for without the lock, so that calls at the same time all wait for no longer than this.
        let driver = running().driver.as_ref().map(Driver::ended);
        let has_driver = driver.is_some_and(|driver| !has_ended(driver, until + SLACK));
        let driver_left = running().driver.as_ref().filter(|_| has_driver).map_or(0, Driver::threads);
        if !has_driver && let Some(driver) = running().driver.take() {
            driver.join();
        }
        // A hook's own thread ends after the driver, when the hook has returned: also where the driver has used
        // all the time up, trying to release the lease, a thread that is in no hook is not counted.
        let until = until.max(Instant::now() + WAKING);
        let hooks = running().hooks.as_ref().filter(|_| !by_hook).map(Thread::ended);
        let hooks_left = hooks.is_some_and(|hooks| !has_ended(hooks, until));
        if !by_hook
            && !hooks_left
            && let Some(hooks) = running().hooks.take()
        {
            hooks.join();
        }
        let works = self.lead.ended();
        let works_left = works.into_iter().filter(|work| !has_ended(work.clone(), until)).count();
        self.lead.join_ended();
        driver_left + usize::from(hooks_left) + works_left
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
    /// As [`stop`](Elector::stop), but that what it would return is logged, if nobody was told before.
    fn drop(&mut self) {
        let told = self.told.load(Ordering::Relaxed);
        if let Err(error) = self.stop()
            && !told
        {
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
