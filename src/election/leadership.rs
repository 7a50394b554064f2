//! The proof of leadership: a token, and a deadline that is compared with the clock at each call.

use std::fmt;
use std::sync::{Arc, PoisonError};
#[cfg(not(loom))]
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
#[cfg(loom)]
use loom::sync::{Condvar, Mutex, MutexGuard};

use super::clock::Instant;
use super::driver::Commands;
use super::error::{Error, ErrorKind};
use super::status::{Role, Status};

/// One term of this instance as the leader.
///
/// It is cheap to clone and says at each call whether the term still stands; nothing has to run for
/// it to become false. Between a check and the effect of what follows it the term may end all the
/// same: give [`token`](Self::token) to the resource, and let that refuse older tokens.
#[derive(Clone)]
pub struct Leadership {
    standing: Arc<Standing>,
    token: u64,
    since: Instant,
    lost: Receiver<()>,
}

impl Leadership {
    /// The term's fencing token, larger than that of every earlier term of the group.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// When this instance was promoted.
    #[must_use]
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Whether the term stands now: its deadline is compared with the clock.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Goes on only while the term stands: to be called with `?` between the steps of the work.
    ///
    /// # Errors
    ///
    /// [`NotLeading`](super::ErrorKind::NotLeading) once the term has ended.
    pub fn check(&self) -> Result<(), Error> {
        if self.is_valid() { Ok(()) } else { Err(Error::not_leading(self.token)) }
    }

    /// How long the term stands if it is not renewed; zero once it has ended.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.standing.lock().remaining(self.token)
    }

    /// The lost-signal: a channel that never carries a message and disconnects when the term ends.
    ///
    /// It is for `select!`. After a suspend of the machine it may lag by one sleep of the driver's
    /// thread; [`is_valid`](Self::is_valid) never does.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use taskrunner::election::{Elector, MemoryStore};
    ///
    /// let elector = Elector::builder(MemoryStore::new(), "demo").start()?;
    /// let leadership = elector.wait_for_leadership(None)?;
    /// let work = crossbeam_channel::after(Duration::from_millis(10));
    /// crossbeam_channel::select! {
    ///     recv(leadership.lost()) -> _ => println!("lost"),
    ///     recv(work) -> _ => println!("worked"),
    /// }
    /// # Ok::<(), taskrunner::election::Error>(())
    /// ```
    #[must_use]
    pub fn lost(&self) -> &Receiver<()> {
        &self.lost
    }

    /// Gives this term up, if it still stands, and does not contend for one `wait`.
    ///
    /// Returns at once; [`lost`](Self::lost) tells when the term has ended.
    pub fn step_down(&self) {
        self.standing.commands.end_term(self.token);
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership")
            .field("token", &self.token)
            .field("since", &self.since)
            .field("remaining", &self.remaining())
            .finish()
    }
}

/// What an instance's threads and its users share: which term stands until when, and whether the
/// elector has ended.
///
/// The clock is read under the lock by every reader and by the one writer. So once a reader has seen
/// a term's deadline pass, no extension brings the term back. `loom_models` asserts this, and the rest of
/// what is promised here, in every interleaving of threads.
pub(crate) struct Standing {
    state: Mutex<State>,
    changed: Condvar,
    pub(crate) commands: Commands,
}

struct State {
    term: Option<Proof>,
    ended: Option<Result<(), Error>>,
    /// But for what is told of the term, which is computed when it is asked for.
    status: Status,
}

struct Proof {
    token: u64,
    since: Instant,
    until: Instant,
    /// The lost-signal, which fires when this sender is dropped: after the proof was taken out of the state.
    lost: (Sender<()>, Receiver<()>),
}

impl Proof {
    fn remaining(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }
}

impl State {
    fn remaining(&self, token: u64) -> Duration {
        let term = self.term.as_ref().filter(|term| term.token == token);
        term.map_or(Duration::ZERO, Proof::remaining)
    }

    fn leading(&self) -> Option<&Proof> {
        self.term.as_ref().filter(|term| Instant::now() < term.until)
    }
}

impl Standing {
    pub(crate) fn new(commands: Commands) -> Self {
        let state = State { term: None, ended: None, status: Status::default() };
        Self { state: Mutex::new(state), changed: Condvar::new(), commands }
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.lock().leading().is_some()
    }

    pub(crate) fn leadership(self: &Arc<Self>) -> Option<Leadership> {
        self.lock().leading().map(|term| self.leadership_of(term))
    }

    /// Waits until this instance leads, for `timeout` at most.
    pub(crate) fn wait(self: &Arc<Self>, timeout: Option<Duration>) -> Result<Leadership, Error> {
        let deadline = timeout.map_or(Instant::NEVER, |timeout| Instant::now() + timeout);
        let mut state = self.lock();
        loop {
            if let Some(term) = state.leading() {
                return Ok(self.leadership_of(term));
            }
            match &state.ended {
                Some(Ok(())) => return Err(Error::stopped()),
                Some(Err(error)) => return Err(error.clone()),
                None => {}
            }
            if let Some((token, since)) = state.status.overrun {
                return Err(Error::overrun(token, since.elapsed()));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::timeout(timeout.unwrap_or_default()));
            }
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Begins a term. None after the end of the elector: a driver that was held up for so long that `stop()` went
    /// on without it may come here late.
    pub(crate) fn begin(
        self: &Arc<Self>,
        token: u64,
        sent_at: Instant,
        until: Instant,
    ) -> Option<Leadership> {
        let mut state = self.lock();
        if state.ended.is_some() {
            return None;
        }
        state.status.counters.promotions += 1;
        state.status.renewed_at = Some(sent_at);
        let term = Proof { token, since: Instant::now(), until, lost: bounded(0) };
        let leadership = self.leadership_of(&term);
        state.term = Some(term);
        self.changed.notify_all();
        Some(leadership)
    }

    /// Moves the term's deadline; false if it has passed already, for then the term has ended.
    pub(crate) fn extend(&self, sent_at: Instant, until: Instant) -> bool {
        let mut state = self.lock();
        let now = Instant::now();
        let Some(term) = state.term.as_mut().filter(|term| now < term.until) else { return false };
        term.until = until;
        state.status.counters.renewals += 1;
        state.status.renewed_at = Some(sent_at);
        true
    }

    /// Ends the term, then fires the lost-signal, and says from when on the term was ended.
    pub(crate) fn end_term(&self) -> Instant {
        let mut state = self.lock();
        let now = Instant::now();
        state.status.counters.demotions += 1;
        state.status.role = Role::Leaving;
        let term = state.term.take();
        drop(state);
        term.map_or(now, |term| term.until.min(now))
    }

    /// Notes something for the status.
    pub(crate) fn note(&self, note: impl FnOnce(&mut Status)) {
        let mut state = self.lock();
        let overrun = state.status.overrun;
        note(&mut state.status);
        if state.status.overrun != overrun {
            self.changed.notify_all();
        }
    }

    pub(crate) fn status(&self) -> Status {
        let state = self.lock();
        let mut status = state.status.clone();
        // The clock is read once: who is told to lead is told for how long.
        let term = state.term.as_ref().map(|term| (term.token, term.remaining()));
        if let Some((token, remaining)) = term.filter(|(_, remaining)| !remaining.is_zero()) {
            status.role = Role::Leader;
            status.token = Some(token);
            status.remaining = remaining;
        } else if state.ended.is_some() {
            status.role = Role::Stopped;
        }
        status
    }

    /// Ends everything, once: nobody waits any more.
    pub(crate) fn end(&self, outcome: Result<(), Error>) {
        let mut state = self.lock();
        let term = state.term.take();
        state.ended.get_or_insert(outcome);
        self.changed.notify_all();
        drop(state);
        // The lost-signal fires.
        drop(term);
    }

    /// Whether the elector has ended, otherwise than by the death of a thread.
    pub(crate) fn has_stopped(&self) -> bool {
        self.ended().is_some_and(|outcome| outcome.err().map(|error| error.kind()) != Some(ErrorKind::Dead))
    }

    /// How the elector ended, if it has.
    pub(crate) fn ended(&self) -> Option<Result<(), Error>> {
        self.lock().ended.clone()
    }

    fn leadership_of(self: &Arc<Self>, term: &Proof) -> Leadership {
        let (token, since, lost) = (term.token, term.since, term.lost.1.clone());
        Leadership { standing: Arc::clone(self), token, since, lost }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics under this lock; a poisoned one is as consistent as any.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Taken out first: who writes this may be slow, or ask whether this instance leads.
        let (token, ended) = {
            let state = self.lock();
            (state.term.as_ref().map(|term| term.token), state.ended.clone())
        };
        f.debug_struct("Standing").field("token", &token).field("ended", &ended).finish()
    }
}

#[cfg(all(test, loom))]
pub(super) mod loom_models;

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn standing() -> Arc<Standing> {
        Arc::new(Standing::new(Commands::of_nobody()))
    }

    #[test]
    fn a_term_stands_until_its_deadline_without_anybody_ending_it() {
        let standing = standing();
        let leadership = standing.begin(7, Instant::now(), Instant::now() + HOUR).expect("it has not ended");
        assert!(standing.is_leader() && leadership.is_valid());
        assert_eq!(leadership.token(), 7);
        leadership.check().expect("it stands");
        assert!(
            standing.extend(Instant::now(), Instant::now()),
            "a deadline may be set to any instant while the term stands"
        );
        assert!(!standing.is_leader() && !leadership.is_valid());
        assert_eq!(leadership.remaining(), Duration::ZERO);
        let error = leadership.check().expect_err("it has ended");
        assert!(error.to_string().contains("token 7"), "{error}");
    }

    #[test]
    fn no_extension_brings_back_a_term_whose_deadline_has_passed() {
        let standing = standing();
        let leadership = standing.begin(7, Instant::now(), Instant::now()).expect("it has not ended");
        assert!(!standing.extend(Instant::now(), Instant::now() + HOUR));
        assert!(!standing.is_leader() && !leadership.is_valid() && standing.leadership().is_none());
    }

    #[test]
    fn the_end_of_the_elector_ends_its_term_and_no_term_begins_after_it() {
        let standing = standing();
        let first = standing.begin(7, Instant::now(), Instant::now() + HOUR).expect("it has not ended");
        assert!(first.lost().try_recv().is_err_and(|error| error.is_empty()));
        standing.end(Ok(()));
        // As by a driver that was held up, and then comes to an answer that it received long ago.
        assert!(standing.begin(8, Instant::now(), Instant::now() + HOUR).is_none());
        assert!(!standing.is_leader() && standing.leadership().is_none() && !first.is_valid());
        assert!(first.lost().try_recv().is_err_and(|error| error.is_disconnected()));
        standing.wait(None).expect_err("stopped");
    }

    #[test]
    fn the_end_of_an_expired_term_is_its_deadline() {
        let standing = standing();
        let deadline = Instant::now();
        standing.begin(7, Instant::now(), deadline).expect("it has not ended");
        assert_eq!(standing.end_term(), deadline);
        let before = Instant::now();
        standing.begin(8, Instant::now(), before + HOUR).expect("it has not ended");
        let ended = standing.end_term();
        assert!(before <= ended && ended <= Instant::now());
    }

    #[test]
    fn an_earlier_leadership_does_not_become_valid_with_a_later_term() {
        let standing = standing();
        let earlier = standing.begin(7, Instant::now(), Instant::now() + HOUR).expect("it has not ended");
        standing.end_term();
        let later = standing.begin(8, Instant::now(), Instant::now() + HOUR).expect("it has not ended");
        assert!(later.is_valid() && !earlier.is_valid());
    }

    #[test]
    fn waiting_ends_with_the_term_the_timeout_or_the_elector() {
        let standing = standing();
        let timeout = standing.wait(Some(Duration::ZERO)).expect_err("nobody leads");
        assert_eq!(timeout.kind(), ErrorKind::Timeout);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| standing.wait(None));
            standing.begin(7, Instant::now(), Instant::now() + HOUR).expect("it has not ended");
            assert_eq!(waiter.join().expect("no panic").expect("leads").token(), 7);
            standing.end_term();
            let waiter = scope.spawn(|| standing.wait(Some(Duration::MAX)));
            standing.end(Ok(()));
            let stopped = waiter.join().expect("no panic").expect_err("stopped");
            assert_eq!(stopped.kind(), ErrorKind::Stopped);
        });
    }
}
