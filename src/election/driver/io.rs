//! A thread that owns a session with the store.

use std::sync::Arc;

use crossbeam_channel::Receiver;

use super::lanes::Way;
use super::{Inbox, Message};
use crate::election::store::{Budget, Operation, Session};

/// Operations that go to the store together.
pub(super) struct Batch {
    pub(super) operations: Vec<Operation>,
    pub(super) budget: Arc<Budget>,
}

/// Executes batches until their sender is lost.
pub(super) fn run(
    mut session: Box<dyn Session>,
    way: &Way,
    batches: &Receiver<Batch>,
    answers: Inbox<Message>,
) {
    let mut obituary = Obituary { answers, due: true };
    for batch in batches {
        let results = session.execute(&batch.operations, &batch.budget);
        let (way, operations) = (way.clone(), batch.operations);
        if obituary.answers.send(Message::Answers { way, operations, results }).is_err() {
            break;
        }
    }
    obituary.due = false;
}

/// Tells the driver when this thread ends by a panic.
struct Obituary {
    answers: Inbox<Message>,
    due: bool,
}

impl Drop for Obituary {
    fn drop(&mut self) {
        if self.due {
            // A driver that has ended needs no telling.
            self.answers.send(Message::IoEnded).ok();
        }
    }
}
