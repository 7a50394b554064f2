//! The user's callbacks, on a thread of their own.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crossbeam_channel::Receiver;

use super::{Command, Commands};
use crate::election::error::Error;
use crate::election::event::{Demotion, Event, Reason};
use crate::election::leadership::Leadership;

/// The name of the error hook in the error that tells of its panic.
const ON_ERROR: &str = "on_error";

type Hook<T> = Option<Box<dyn FnMut(T) + Send>>;

/// What the user wants to have called.
#[derive(Default)]
pub(crate) struct Hooks {
    pub(crate) promote: Hook<Leadership>,
    pub(crate) demote: Hook<Demotion>,
    pub(crate) error: Hook<Error>,
}

impl Hooks {
    pub(crate) fn is_empty(&self) -> bool {
        self.promote.is_none() && self.demote.is_none() && self.error.is_none()
    }

    /// Calls the hooks in the order of the events, until the elector has ended.
    ///
    /// It reads a subscription as any listener does. After it fell behind, it goes on with the present
    /// state: each term that it has told begins once and ends once.
    pub(crate) fn run(mut self, events: &Receiver<Event>, commands: &Commands) {
        let mut told: Option<u64> = None;
        for event in events {
            match event {
                Event::Promoted(leadership) if told != Some(leadership.token()) => {
                    if let Some(token) = told.replace(leadership.token()) {
                        // Its end was missed, and with it the reason.
                        let missed = Demotion { token, reason: Reason::Lost, at: leadership.since() };
                        call("on_demote", &mut self.demote, missed, commands);
                    }
                    call("on_promote", &mut self.promote, leadership, commands);
                }
                Event::Demoted(demotion) => {
                    // Of terms that were missed altogether, nothing is told.
                    if let Some(token) = told.take() {
                        call("on_demote", &mut self.demote, Demotion { token, ..demotion }, commands);
                    }
                }
                // A panic of the error hook must not call it again: it would never end.
                Event::Error(error) if !error.is_panic_of(ON_ERROR) => {
                    call(ON_ERROR, &mut self.error, error, commands);
                }
                _ => {}
            }
        }
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks")
            .field("promote", &self.promote.is_some())
            .field("demote", &self.demote.is_some())
            .field("error", &self.error.is_some())
            .finish()
    }
}

fn call<T>(name: &'static str, hook: &mut Hook<T>, argument: T, commands: &Commands) {
    let Some(hook) = hook else { return };
    // A hook is called again after a panic; what it left behind is its own affair.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| hook(argument))) {
        commands.send(Command::Report(Error::panicked(name, message_of(&*panic))));
    }
}

/// What a panic says, where it says it as text.
pub(crate) fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
