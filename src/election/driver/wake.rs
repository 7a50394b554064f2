//! The thread that listens for wakes. The election goes on without it, only later.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, unbounded};

use super::thread::{Owner, Place, Thread};
use super::{Inbox, Message};
use crate::election::clock::Instant;
use crate::election::error::Error;
use crate::election::key::Group;
use crate::election::store::{Bell, Budget, Class, Heard, Listener, Outcome, StoreError};

/// The first back-off after the connection was lost; it doubles with each further failure.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
/// The longest back-off.
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);

enum Order {
    Add(Group, Duration),
    Remove(Group),
    /// The connection may be half open: make another.
    Remake,
    End,
}

/// The driver's end of the listening thread.
pub(super) struct Wakes {
    orders: Sender<Order>,
    waiting: Arc<Waiting>,
    /// There until it is joined.
    thread: Option<Thread>,
}

/// The budget of the wait that the thread is in, to be ended from outside.
struct Waiting {
    budget: Mutex<Arc<Budget>>,
    bell: Bell,
}

impl Wakes {
    pub(super) fn start(
        owner: Owner,
        listener: Box<dyn Listener>,
        inbox: Inbox<Message>,
    ) -> Result<Self, Error> {
        let bell = listener.bell();
        let budget = Mutex::new(Arc::new(Budget::new(Instant::NEVER, &bell)));
        let waiting = Arc::new(Waiting { budget, bell });
        // Few orders come, and never faster than elections begin and end.
        let (orders, work) = unbounded();
        let of_thread = Arc::clone(&waiting);
        let ear = Ear {
            listener,
            waiting: of_thread,
            orders: work,
            inbox,
            groups: Vec::new(),
            wait: Duration::ZERO,
        };
        let thread = Thread::spawn(owner, Place::Engine, "tr-wake", move || ear.run())?;
        Ok(Self { orders, waiting, thread: Some(thread) })
    }

    /// Listens for a group's wakes, too. Without the right to, it asks again after `wait`.
    pub(super) fn add(&self, group: &Group, wait: Duration) {
        self.order(Order::Add(group.clone(), wait));
    }

    pub(super) fn remove(&self, group: &Group) {
        self.order(Order::Remove(group.clone()));
    }

    pub(super) fn remake(&self) {
        self.order(Order::Remake);
    }

    fn order(&self, order: Order) {
        // A thread that has died is missed by nobody: wakes only save time.
        self.orders.send(order).ok();
        self.waiting.interrupt();
    }

    /// Ends the thread out of whatever it waits for, and waits for that.
    pub(super) fn end(mut self) {
        self.order(Order::End);
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
    }
}

impl Drop for Wakes {
    /// Also the driver that died must not leave the thread behind.
    fn drop(&mut self) {
        self.order(Order::End);
    }
}

impl Waiting {
    /// Begins a wait without end. What is ordered from now on interrupts it.
    fn begin(&self) -> Arc<Budget> {
        let budget = Arc::new(Budget::new(Instant::NEVER, &self.bell));
        *self.budget.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&budget);
        budget
    }

    fn interrupt(&self) {
        self.budget.lock().unwrap_or_else(PoisonError::into_inner).shorten(Instant::now());
    }
}

/// The listening thread.
struct Ear {
    listener: Box<dyn Listener>,
    waiting: Arc<Waiting>,
    orders: Receiver<Order>,
    inbox: Inbox<Message>,
    groups: Vec<Group>,
    /// The longest `wait` of these groups.
    wait: Duration,
}

impl Ear {
    fn run(mut self) {
        let _obituary = Obituary(self.inbox.clone());
        let mut failures = 0_u32;
        // Since when it listens or has listened last.
        let mut listening_since = Instant::now();
        loop {
            // In this order: an order that comes after the look into the channel ends the wait.
            let budget = self.waiting.begin();
            if !self.follow_orders() {
                return;
            }
            if self.groups.is_empty() {
                self.listener.reset();
                match self.orders.recv() {
                    Ok(order) if self.follow(&order) => continue,
                    _ => return,
                }
            }
            let heard = match self.listener.next(&self.groups, &budget) {
                Ok(Heard::Nothing) => continue,
                Ok(Heard::Listening) => {
                    listening_since = Instant::now();
                    Message::Listening
                }
                Ok(Heard::Wake { lease, token }) => Message::Wake { lease, token },
                Err(error) => {
                    log::debug!("the wake connection: {error}");
                    // One that breaks as soon as it is made is no success.
                    if listening_since.elapsed() > LONGEST_BACKOFF {
                        failures = 0;
                    }
                    let pause = match error.class() {
                        Class::Configuration => self.wait,
                        // Spread, so that instances do not come back in step.
                        _ => FIRST_BACKOFF
                            .saturating_mul(1 << failures.min(10))
                            .min(LONGEST_BACKOFF)
                            .mul_f64(rand::random()),
                    };
                    failures = failures.saturating_add(1);
                    if self.inbox.send(Message::WakeLost(error)).is_err() || !self.pause(pause) {
                        return;
                    }
                    continue;
                }
            };
            if self.inbox.send(heard).is_err() {
                return;
            }
        }
    }

    /// Does what has been ordered so far; false when there is nobody left to order anything.
    fn follow_orders(&mut self) -> bool {
        loop {
            match self.orders.try_recv() {
                Ok(order) if self.follow(&order) => {}
                Err(TryRecvError::Empty) => return true,
                Ok(_) | Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    /// Does what is ordered; false if that is to end.
    fn follow(&mut self, order: &Order) -> bool {
        match order {
            Order::End => return false,
            Order::Add(group, wait) => {
                self.groups.push(group.clone());
                self.wait = self.wait.max(*wait);
            }
            Order::Remove(group) => {
                // One of them only: another election of this driver may be of the same group.
                if let Some(at) = self.groups.iter().position(|other| other == group) {
                    self.groups.remove(at);
                }
            }
            Order::Remake => self.listener.reset(),
        }
        true
    }

    /// Waits before the next connection; false when the thread is to end.
    fn pause(&mut self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        loop {
            match self.orders.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(order) if self.follow(&order) => {}
                Err(RecvTimeoutError::Timeout) => return true,
                Ok(_) | Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }
}

/// Tells the driver when the thread has panicked: nobody waits for wakes any more that never come.
struct Obituary(Inbox<Message>);

impl Drop for Obituary {
    fn drop(&mut self) {
        if std::thread::panicking() {
            log::error!("the thread that listens for wakes has died; takeovers come at the lease's end only");
            let error = StoreError::new(Outcome::NotSent, Class::Passing, "the listening thread has died");
            // A driver that has ended needs no telling.
            self.0.send(Message::WakeLost(error)).ok();
        }
    }
}
