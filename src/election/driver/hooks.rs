//! The user's callbacks, on a thread of their own.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crossbeam_channel::Receiver;

use super::{Command, Commands};
use crate::election::error::Error;
use crate::election::event::{Demotion, Event};
use crate::election::leadership::Leadership;

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
    /// state: a term that it has told begins once and ends once.
    pub(crate) fn run(mut self, events: &Receiver<Event>, commands: &Commands) {
        let mut told = None;
        // What the error hook's own panic is told as: that must not call it again.
        let mut own_panic: Option<Error> = None;
        for event in events {
            match event {
                Event::Promoted(leadership) if told != Some(leadership.token()) => {
                    told = Some(leadership.token());
                    call("on_promote", &mut self.promote, leadership, commands);
                }
                Event::Demoted(demotion) if told.is_some() => {
                    told = None;
                    call("on_demote", &mut self.demote, demotion, commands);
                }
                Event::Error(error) if !own_panic.as_ref().is_some_and(|own| own.is(&error)) => {
                    own_panic = call("on_error", &mut self.error, error, commands).or(own_panic);
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

/// Calls a hook; what it panicked with is told to everybody, and returned.
fn call<T>(name: &'static str, hook: &mut Hook<T>, argument: T, commands: &Commands) -> Option<Error> {
    let hook = hook.as_mut()?;
    // A hook is called again after a panic; what it left behind is its own affair.
    let panic = catch_unwind(AssertUnwindSafe(|| hook(argument))).err()?;
    let error = Error::panicked(name, message_of(&*panic));
    commands.send(Command::Report(error.clone()));
    Some(error)
}

/// What a panic says, where it says it as text.
pub(crate) fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
