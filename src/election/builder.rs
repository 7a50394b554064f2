//! The description of an elector, and its start.

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crossbeam_channel::bounded;

use super::driver::{Driver, Election, Hooks, Lead, Outlets, Owner, Place, SUBSCRIPTION, Thread};
use super::elector::{Elector, Running};
use super::error::Error;
use super::event::Demotion;
use super::key::{Group, InstanceId};
use super::leadership::{Leadership, Standing};
use super::options::{Options, RenewError, Strict};
use super::store::LeaseStore;
use super::store::strict::HOLD;

/// The number of the one election that an elector's driver runs.
const ELECTION: u64 = 0;
/// The longest name of an instance; it is part of every answer about the holder.
const LONGEST_NAME: usize = 256;

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
    pub(super) fn new(store: Box<dyn LeaseStore>, group: String) -> Self {
        let (options, hooks) = (Options::default(), Hooks::default());
        Self { store, group, name: None, options, hooks, lead: None }
    }

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

    /// Makes sure that a lease which Redis loses has no second leader; see [`Strict`] for what it costs.
    ///
    /// Defaults to not being strict.
    #[must_use]
    pub fn strict(mut self, strict: Strict) -> Self {
        self.options.strict = Some(strict);
        self
    }

    /// A name that is shown before the random part of the instance's id. Two instances may have the
    /// same. At most 256 bytes, without control characters, and not `hold`, by which a parked lease is known.
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
    /// an error of kind [`Overrun`](super::ErrorKind::Overrun) is told, and this instance does not contend until it
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
    /// [`Elector::step_down`] and [`Elector::stop`]. Each promotion that it is told is followed by the
    /// demotion. A hook that is more than 256 events behind goes on with the present state: terms that began
    /// and ended meanwhile are not told, and where only the end was missed its reason is
    /// [`Lost`](super::Reason::Lost). Defaults to nothing.
    ///
    /// # Examples
    ///
    /// A hook that needs the elector is given a weak reference, for the elector owns the hook: with a strong
    /// one neither would ever be dropped.
    ///
    /// ```
    /// use std::sync::{Arc, OnceLock, Weak};
    /// use taskrunner::election::{Elector, MemoryStore};
    ///
    /// let cell: Arc<OnceLock<Weak<Elector>>> = Arc::default();
    /// let of_hook = Arc::clone(&cell);
    /// let elector = Elector::builder(MemoryStore::new(), "demo")
    ///     .on_promote(move |leadership| {
    ///         // Not there yet: the promotion came before the next line of the program.
    ///         let elector = of_hook.wait().upgrade();
    ///         println!("token {} of {:?}", leadership.token(), elector.map(|elector| elector.status()));
    ///     })
    ///     .start()?;
    /// let elector = Arc::new(elector);
    /// cell.set(Arc::downgrade(&elector)).expect("set once");
    /// elector.stop()?;
    /// # Ok::<(), taskrunner::election::Error>(())
    /// ```
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
    /// [`Configuration`](super::ErrorKind::Configuration) for a value that does not fit, with the numbers and
    /// the rule; [`System`](super::ErrorKind::System) if a thread could not be spawned.
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
        Ok(Elector {
            standing,
            inlets,
            group,
            id,
            timing,
            owner,
            lead,
            running,
            lookups,
            told: AtomicBool::new(false),
        })
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
    if name == HOLD.trim_end_matches('/') {
        return Err(Error::options(
            "the instance's name must not be hold: a lease that is parked is known by it",
        ));
    }
    if name.is_empty() || name.len() > LONGEST_NAME || name.chars().any(char::is_control) {
        return Err(Error::options(format!(
            "the instance's name has {} bytes; it must have from 1 to {LONGEST_NAME}, and no control characters",
            name.len(),
        )));
    }
    Ok(())
}
