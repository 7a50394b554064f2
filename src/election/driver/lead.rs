//! The lead work: the user's code that runs only while leading, on a thread for each term.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::Receiver;

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
    /// Whether there is, or was, work: without any nothing has to be waited for.
    used: Arc<AtomicBool>,
    threads: Arc<Mutex<Vec<Thread>>>,
}

impl Lead {
    pub(crate) fn new(owner: Owner, work: Option<Arc<dyn Fn(Leadership) + Send + Sync>>) -> Self {
        let used = Arc::new(AtomicBool::new(work.is_some()));
        Self { owner, work, used, threads: Arc::default() }
    }

    /// Lead work may run on a caller's thread from now on.
    pub(crate) fn use_from_now_on(&self) {
        self.used.store(true, Ordering::Release);
    }

    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
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
        let mut threads = self.threads();
        // At most one of them still runs, for a term does not begin while the work of an earlier one does.
        threads.retain(|thread| !thread.has_ended());
        threads.push(thread);
        Ok(true)
    }

    /// What disconnects when each of the threads has ended.
    pub(crate) fn ended(&self) -> Vec<Receiver<()>> {
        self.threads().iter().map(Thread::ended).collect()
    }

    /// Joins the threads that have ended.
    pub(crate) fn join_ended(&self) {
        let ended: Vec<_> = self.threads().extract_if(.., |thread| thread.has_ended()).collect();
        ended.into_iter().for_each(Thread::join);
    }

    fn threads(&self) -> MutexGuard<'_, Vec<Thread>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
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
