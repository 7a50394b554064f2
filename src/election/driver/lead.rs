//! The lead work: the user's code that runs only while leading, on a thread for each term.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use super::hooks::message_of;
use super::thread::{Owner, Place, Thread};
use super::{Command, Commands};
use crate::election::error::Error;
use crate::election::leadership::Leadership;

/// The lead work, and the threads that run it or have run it.
#[derive(Clone)]
pub(crate) struct Lead {
    owner: Owner,
    work: Option<Arc<dyn Fn(Leadership) + Send + Sync>>,
    threads: Arc<Mutex<Vec<Thread>>>,
}

impl Lead {
    pub(crate) fn new(owner: Owner, work: Option<Arc<dyn Fn(Leadership) + Send + Sync>>) -> Self {
        Self { owner, work, threads: Arc::default() }
    }

    /// Starts the work for a term; false if there is none to start.
    pub(super) fn begin(&self, leadership: Leadership, commands: &Commands) -> Result<bool, Error> {
        let Some(work) = self.work.clone() else { return Ok(false) };
        let (token, commands) = (leadership.token(), commands.clone());
        let thread = Thread::spawn(self.owner, Place::LeadWork, "tr-lead", move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| work(leadership)));
            let panic = outcome.err().map(|panic| Error::panicked("the lead work", message_of(&*panic)));
            commands.send(Command::LeadReturned { token, panic });
        })?;
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        // At most one of them still runs, for a term does not begin while the work of an earlier one does.
        threads.retain(|thread| !thread.has_ended());
        threads.push(thread);
        Ok(true)
    }

    /// Takes the threads, to be waited for.
    pub(crate) fn take_threads(&self) -> Vec<Thread> {
        std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Lead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lead").field("work", &self.work.is_some()).finish_non_exhaustive()
    }
}

/// Tells the driver that the lead work on a caller's thread has returned, however it does.
#[derive(Debug)]
pub(crate) struct Returning<'a> {
    pub(crate) commands: &'a Commands,
    pub(crate) token: u64,
}

impl Drop for Returning<'_> {
    fn drop(&mut self) {
        let panicked = || Error::panicked("the lead work", "its message went on to the caller of run()");
        let panic = std::thread::panicking().then(panicked);
        self.commands.send(Command::LeadReturned { token: self.token, panic });
    }
}

impl fmt::Debug for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Commands")
    }
}
