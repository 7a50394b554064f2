//! A function of the user's whose answer is waited for no longer than the budget allows: on a thread of its own.
//!
//! Such a function cannot be bounded nor stopped. The system's look-up of a name is one, too: it takes ten seconds
//! and more when the name servers are silent.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use super::wire::{Broken, Patience};
use crate::election::store::{Class, Lookups, Outcome, StoreError};

/// Of the time left, a call gets one part in this many while there is an answer of an earlier one: the rest is
/// for using that.
const PARTS: usize = 2;

/// The calls of one elector's connections: at most one is under way, and the last good answer is kept. Clones share
/// both.
#[derive(Debug)]
pub(super) struct Aside<T> {
    state: Arc<Mutex<State<T>>>,
    running: Lookups,
}

impl<T> Clone for Aside<T> {
    fn clone(&self) -> Self {
        Self { state: Arc::clone(&self.state), running: self.running.clone() }
    }
}

#[derive(Debug)]
struct State<T> {
    under_way: Option<Arc<UnderWay<T>>>,
    last_good: Option<T>,
}

/// What a call said; shared by all who wait for it.
type Answer<T> = Result<T, Arc<io::Error>>;

/// A call that has not been taken note of yet.
#[derive(Debug)]
struct UnderWay<T> {
    /// Readable, at its end, once the thread has ended.
    ended: UnixStream,
    /// Empty when the thread ended by a panic.
    answer: Arc<OnceLock<Answer<T>>>,
}

/// Held by the thread of a call; dropping it, on unwind too, tells the session.
struct Running {
    running: Lookups,
    _ended: UnixStream,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.running.ended();
    }
}

impl<T: Clone + Send + Sync + 'static> Aside<T> {
    /// Its threads are counted there.
    pub(super) fn new(running: Lookups) -> Self {
        Self { state: Arc::new(Mutex::new(State { under_way: None, last_good: None })), running }
    }

    /// What the function answers; the last good answer, if it answers with an error or not in time.
    ///
    /// `doing` says for an error what it is called for, and `thread` is its thread's name.
    pub(super) fn ask(
        &self,
        thread: &str,
        doing: &str,
        call: impl FnOnce() -> io::Result<T> + Send + 'static,
        patience: &Patience<'_>,
    ) -> Result<T, StoreError> {
        let last_good = self.state().last_good.clone();
        let share = patience.share(if last_good.is_none() { 1 } else { PARTS });
        match (self.call(thread, doing, call, &share), last_good) {
            (Err(error), Some(last_good)) => {
                log::debug!("{error}; using what the last time gave");
                Ok(last_good)
            }
            (answer, _) => answer,
        }
    }

    fn call(
        &self,
        thread: &str,
        doing: &str,
        call: impl FnOnce() -> io::Result<T> + Send + 'static,
        patience: &Patience<'_>,
    ) -> Result<T, StoreError> {
        let under_way = self
            .under_way(thread, call)
            .map_err(|error| failed(format!("no thread could be started for {doing}")).with_source(error))?;
        if let Err(broken) = patience.readable(&under_way.ended) {
            let allowed = patience.allowed();
            return Err(match broken {
                Broken::Io(error) => failed(format!("could not wait for {doing}")).with_source(error),
                _ => failed(format!("{doing} took longer than the {allowed:?} allowed")),
            });
        }
        let mut state = self.state();
        // Whoever comes first takes note of it; the next to ask begins another.
        state.under_way.take_if(|other| Arc::ptr_eq(other, &under_way));
        match under_way.answer.get() {
            Some(Ok(answer)) => {
                state.last_good = Some(answer.clone());
                Ok(answer.clone())
            }
            Some(Err(error)) => Err(failed(format!("{doing} failed")).with_source(Arc::clone(error))),
            None => Err(failed(format!("{doing} panicked"))),
        }
    }

    /// The call to wait for. One that is stuck is waited for rather than doubled: threads must not pile up
    /// behind it.
    fn under_way(
        &self,
        thread: &str,
        call: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<Arc<UnderWay<T>>> {
        let mut state = self.state();
        if let Some(under_way) = &state.under_way {
            return Ok(Arc::clone(under_way));
        }
        let under_way = Arc::new(self.begin(thread, call)?);
        state.under_way = Some(Arc::clone(&under_way));
        Ok(under_way)
    }

    /// Whether a call runs that has not answered.
    pub(super) fn is_under_way(&self) -> bool {
        self.state().under_way.as_ref().is_some_and(|call| call.answer.get().is_none())
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the thread of a call. It is not joined: nothing can end a call that is stuck.
    fn begin(
        &self,
        thread: &str,
        call: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<UnderWay<T>> {
        let (ended, far) = UnixStream::pair()?;
        let answer = Arc::new(OnceLock::new());
        let slot = Arc::clone(&answer);
        let running = Running { running: self.running.begun(), _ended: far };
        thread::Builder::new().name(thread.to_owned()).spawn(move || {
            // Moved in first, so that it is dropped last: after the answer is there.
            let _running = running;
            if slot.set(call().map_err(Arc::new)).is_err() {
                unreachable!("nobody else answers");
            }
        })?;
        Ok(UnderWay { ended, answer })
    }
}

fn failed(message: String) -> StoreError {
    StoreError::new(Outcome::NotSent, Class::Passing, message)
}
