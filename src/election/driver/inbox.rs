//! The way into the driver: a bounded channel in which nothing stays once the driver has ended.
//!
//! What a channel holds when its receiver is dropped stays there until the last sender has gone, too: what
//! arrived in the very moment that the driver ended would be kept by those who wait for its answer. So the
//! senders hold a receiver as well, and drop what comes too late.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

/// The sending end.
pub(super) struct Inbox<T> {
    sender: Sender<T>,
    left: Receiver<T>,
    closed: Arc<AtomicBool>,
}

/// The driver has ended, and the message was dropped.
#[derive(Debug)]
pub(super) struct Closed;

/// The driver's end. Its drop closes the inbox.
pub(super) struct Messages<T> {
    receiver: Receiver<T>,
    closed: Arc<AtomicBool>,
}

/// An inbox with room for so many messages. Who sends more waits.
pub(super) fn inbox<T>(capacity: usize) -> (Inbox<T>, Messages<T>) {
    let (sender, receiver) = bounded(capacity);
    let closed = Arc::new(AtomicBool::new(false));
    (Inbox { sender, left: receiver.clone(), closed: Arc::clone(&closed) }, Messages { receiver, closed })
}

impl<T> Inbox<T> {
    /// Sends a message, however long there is no room for it.
    pub(super) fn send(&self, message: T) -> Result<(), Closed> {
        // It is connected, for this end holds a receiver. When the driver ends there is room.
        self.sender.send(message).ok();
        self.drop_late()
    }

    /// Sends a message, or drops it if there is no room for so long.
    pub(super) fn send_timeout(&self, message: T, limit: Duration) -> Result<(), Closed> {
        self.sender.send_timeout(message, limit).ok();
        self.drop_late()
    }

    /// Either this end sees here that the inbox was closed, or the driver's end saw the message when it was.
    fn drop_late(&self) -> Result<(), Closed> {
        if !self.closed.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.left.try_iter().for_each(drop);
        Err(Closed)
    }
}

impl<T> Clone for Inbox<T> {
    fn clone(&self) -> Self {
        let (sender, left, closed) = (self.sender.clone(), self.left.clone(), Arc::clone(&self.closed));
        Self { sender, left, closed }
    }
}

impl<T> Messages<T> {
    pub(super) fn recv_timeout(&self, limit: Duration) -> Result<T, RecvTimeoutError> {
        self.receiver.recv_timeout(limit)
    }
}

impl<T> Drop for Messages<T> {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::SeqCst);
        self.receiver.try_iter().for_each(drop);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn nothing_stays_in_an_inbox_that_is_closed_while_many_send() {
        for round in 0..64 {
            // With little room some of them wait for it.
            let (sender, messages) = inbox(1 + round % 8);
            let message = Arc::new(());
            thread::scope(|scope| {
                for _ in 0..4 {
                    let (sender, message) = (sender.clone(), Arc::clone(&message));
                    scope.spawn(move || while sender.send(Arc::clone(&message)).is_ok() {});
                }
                for _ in 0..round {
                    messages.recv_timeout(Duration::from_secs(20)).expect("they send");
                }
                drop(messages);
            });
            sender.send_timeout(Arc::clone(&message), Duration::ZERO).expect_err("it is closed");
            assert_eq!(Arc::strong_count(&message), 1, "round {round}: a message was kept");
        }
    }
}
