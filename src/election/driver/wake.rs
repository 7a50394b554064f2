//! The thread that listens for wakes. The election goes on without it, only later.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, unbounded};

use super::Message;
use super::thread::{Owner, Place, Thread};
use crate::election::clock::Instant;
use crate::election::error::Error;
use crate::election::key::Group;
use crate::election::store::{Bell, Budget, Class, Heard, Listener};

/// The first back-off after the connection was lost; it doubles with each further failure.
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
/// The longest back-off.
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);

enum Order {
    Add(Group, Duration),
    Remove(Group),
    /// The connection may be half open: make another.
    Remake,
}

/// The driver's end of the listening thread.
pub(super) struct Wakes {
    orders: Sender<Order>,
    waiting: Arc<Waiting>,
    thread: Thread,
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
        inbox: Sender<Message>,
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
        Ok(Self { orders, waiting, thread })
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
    pub(super) fn end(self) {
        drop(self.orders);
        self.waiting.interrupt();
        self.thread.join();
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
    inbox: Sender<Message>,
    groups: Vec<Group>,
    /// The longest `wait` of these groups.
    wait: Duration,
}

impl Ear {
    fn run(mut self) {
        let mut failures = 0_u32;
        loop {
            // In this order: an order that comes after the look into the channel ends the wait.
            let budget = self.waiting.begin();
            if !self.follow_orders() {
                return;
            }
            if self.groups.is_empty() {
                match self.orders.recv() {
                    Ok(order) => self.follow(order),
                    Err(_) => return,
                }
                continue;
            }
            let heard = match self.listener.next(&self.groups, &budget) {
                Ok(Heard::Nothing) => continue,
                Ok(Heard::Listening) => {
                    failures = 0;
                    Message::Listening
                }
                Ok(Heard::Wake { lease, token }) => Message::Wake { lease, token },
                Err(_) if budget.remaining().is_none() => continue,
                Err(error) => {
                    log::debug!("the wake connection: {error}");
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
                Ok(order) => self.follow(order),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn follow(&mut self, order: Order) {
        match order {
            Order::Add(group, wait) => {
                self.groups.push(group);
                self.wait = self.wait.max(wait);
            }
            Order::Remove(group) => self.groups.retain(|other| *other != group),
            Order::Remake => self.listener.reset(),
        }
    }

    /// Waits before the next connection; false when the thread is to end.
    fn pause(&mut self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        loop {
            match self.orders.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(order) => self.follow(order),
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }
}
