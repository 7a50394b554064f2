//! The lead work: the user's code that runs only while leading, on a thread for each term.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_channel::{Receiver, Sender, bounded};

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
        let commands = commands.clone();
        let thread = Thread::spawn(self.owner, Place::LeadWork, "tr-lead", move || {
            // Made in here: where no thread can be spawned, this is dropped by the driver, which must not
            // wait for room in its own inbox.
            let mut returning = Returning::new(&commands, leadership.token());
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(leadership))) {
                returning.panicked(message_of(&*panic));
            }
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

/// Tells the driver that lead work has returned, however it does.
#[derive(Debug)]
pub(crate) struct Returning {
    commands: Commands,
    token: u64,
    panic: Option<Error>,
    taken: Option<Sender<()>>,
}

impl Returning {
    /// To be dropped by the thread that runs the work of the term with this token.
    pub(crate) fn new(commands: &Commands, token: u64) -> Self {
        Self { commands: commands.clone(), token, panic: None, taken: None }
    }

    /// The work has panicked, unless this is taken back.
    pub(crate) fn panicked(&mut self, message: &str) {
        self.panic = Some(Error::panicked("the lead work", message));
    }

    /// Tells, and waits until the election has taken note: what is asked of it next is not answered as if
    /// the work still ran.
    pub(crate) fn wait(mut self) {
        let (taken, noted) = bounded(0);
        self.panic = None;
        self.taken = Some(taken);
        drop(self);
        noted.recv().expect_err("nothing is sent");
    }
}

impl Drop for Returning {
    fn drop(&mut self) {
        let (token, panic, taken) = (self.token, self.panic.take(), self.taken.take());
        self.commands.send_surely(Command::LeadReturned { token, panic, taken });
    }
}

impl fmt::Debug for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Commands")
    }
}
