//! The channels to the listeners. Nothing here ever waits for one.

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use crate::election::error::Error;
use crate::election::event::{Demotion, Event, Leader};
use crate::election::leadership::Leadership;

/// How many events a subscription holds.
const EVENTS: usize = 256;
/// What is kept free in a subscription for its end: `Missed`, the two events that tell the present
/// state, and `Stopped`.
const RESERVE: usize = 4;
/// A subscription that is behind is told `Missed` when it has lost this many events, and at each
/// doubling: only by sending is it found out that its listener is gone.
const FIRST_PROBE: u64 = 1 << 12;
/// Room for those.
const PROBES: usize = u64::BITS as usize - FIRST_PROBE.trailing_zeros() as usize;
/// The capacity of a subscription's channel.
pub(crate) const SUBSCRIPTION: usize = EVENTS + PROBES + RESERVE;
/// From so many subscriptions on, and at each doubling, it is found out which have been dropped.
const FIRST_CENSUS: usize = 16;
/// How many errors `on_error` holds.
const ERRORS: usize = 16;

/// The receiving ends of the three channels that every elector has.
#[derive(Clone, Debug)]
pub(crate) struct Inlets {
    pub(crate) promote: Receiver<Leadership>,
    pub(crate) demote: Receiver<Demotion>,
    pub(crate) error: Receiver<Error>,
}

/// The sending ends of everything that one election tells.
pub(crate) struct Outlets {
    subscriptions: Vec<Subscription>,
    /// How many subscriptions make the next census.
    census: usize,
    promote: Newest<Leadership>,
    demote: Newest<Demotion>,
    error: Newest<Error>,
    /// The last `Promoted` or `Demoted`.
    role: Option<Event>,
    leader: Option<Leader>,
}

impl Outlets {
    pub(crate) fn new() -> (Self, Inlets) {
        let (promote, demote, error) = (Newest::new(1), Newest::new(1), Newest::new(ERRORS));
        let inlets = Inlets {
            promote: promote.receiver.clone(),
            demote: demote.receiver.clone(),
            error: error.receiver.clone(),
        };
        let (subscriptions, census) = (Vec::new(), FIRST_CENSUS);
        (Self { subscriptions, census, promote, demote, error, role: None, leader: None }, inlets)
    }

    /// Adds a subscription, which begins with the present state.
    pub(crate) fn subscribe(&mut self, sender: Sender<Event>) {
        let mut subscription = Subscription { sender, lost: 0, untold: 0, gone: false };
        let leading = self.role.as_ref().filter(|role| matches!(role, Event::Promoted(_)));
        for event in leading.cloned().into_iter().chain([Event::LeaderChanged(self.leader.clone())]) {
            subscription.push(event);
        }
        self.subscriptions.push(subscription);
        if self.subscriptions.len() >= self.census {
            self.take_census();
        }
    }

    /// Forgets the subscriptions that were dropped, also where nothing changes for long. Only by sending
    /// is that found out, so all are told once more who leads.
    fn take_census(&mut self) {
        let present = Event::LeaderChanged(self.leader.clone());
        for subscription in &mut self.subscriptions {
            subscription.offer(&present);
        }
        self.subscriptions.retain(|subscription| !subscription.gone);
        self.census = FIRST_CENSUS.max(2 * self.subscriptions.len());
    }

    /// Tells an event to everybody.
    pub(crate) fn tell(&mut self, event: &Event) {
        // What was missed is told with the state before this event, which follows.
        self.catch_up();
        match event {
            // A demotion that nobody has read is contradicted now, and the other way round.
            Event::Promoted(leadership) => {
                self.demote.clear();
                self.promote.push(leadership.clone());
                self.role = Some(event.clone());
            }
            Event::Demoted(demotion) => {
                self.promote.clear();
                self.demote.push(demotion.clone());
                self.role = Some(event.clone());
            }
            Event::LeaderChanged(leader) => self.leader.clone_from(leader),
            Event::Error(error) => self.error.push(error.clone()),
            Event::Missed { .. } | Event::Stopped => {}
        }
        for subscription in &mut self.subscriptions {
            subscription.offer(event);
        }
    }

    /// Whether a subscription is behind: it has missed something and was not told the state since.
    pub(crate) fn is_lagging(&self) -> bool {
        self.subscriptions.iter().any(|subscription| subscription.lost > 0)
    }

    /// Tells subscriptions that have room again what they missed, and forgets those that are gone.
    pub(crate) fn catch_up(&mut self) {
        self.recover(PROBES + 2 * RESERVE);
        self.subscriptions.retain(|subscription| !subscription.gone);
    }

    /// Tells the last event, for which there is always room.
    pub(crate) fn stopped(&mut self) {
        self.recover(RESERVE);
        for subscription in &mut self.subscriptions {
            subscription.push(Event::Stopped);
        }
    }

    /// Tells what was missed, and the present state, where there is that much room.
    fn recover(&mut self, room: usize) {
        let present = [self.role.clone(), Some(Event::LeaderChanged(self.leader.clone()))];
        for subscription in &mut self.subscriptions {
            if subscription.lost > 0 && subscription.room() >= room {
                subscription.lost = 0;
                subscription.tell_missed();
                for event in present.iter().flatten() {
                    subscription.push(event.clone());
                }
            }
        }
    }
}

struct Subscription {
    sender: Sender<Event>,
    /// How many events were lost since this subscription fell behind.
    lost: u64,
    /// How many of those no `Missed` has told of.
    untold: u64,
    /// Whether nobody listens any more.
    gone: bool,
}

impl Subscription {
    /// Sends an event if there is room for it and nothing was lost before it.
    fn offer(&mut self, event: &Event) {
        if self.lost == 0 && self.room() > PROBES + RESERVE {
            return self.push(event.clone());
        }
        self.lost = self.lost.saturating_add(1);
        self.untold = self.untold.saturating_add(1);
        if self.lost >= FIRST_PROBE && self.lost.is_power_of_two() {
            self.tell_missed();
        }
    }

    fn tell_missed(&mut self) {
        let count = std::mem::take(&mut self.untold);
        if count > 0 {
            self.push(Event::Missed { count });
        }
    }

    fn room(&self) -> usize {
        // Only this end sends, so there is never less room than it says.
        SUBSCRIPTION.saturating_sub(self.sender.len())
    }

    fn push(&mut self, event: Event) {
        // There is room. What fails is that the other end was dropped.
        self.gone |= self.sender.try_send(event).is_err();
    }
}

/// A channel that keeps its newest entries.
struct Newest<T> {
    sender: Sender<T>,
    receiver: Receiver<T>,
}

impl<T> Newest<T> {
    fn new(capacity: usize) -> Self {
        let (sender, receiver) = bounded(capacity);
        Self { sender, receiver }
    }

    fn push(&self, mut entry: T) {
        while let Err(TrySendError::Full(refused)) = self.sender.try_send(entry) {
            // The oldest makes room, unless a listener has just taken it.
            self.receiver.try_recv().ok();
            entry = refused;
        }
    }

    fn clear(&self) {
        while self.receiver.try_recv().is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::election::clock::Instant;
    use crate::election::event::Reason;

    fn demoted(token: u64) -> Event {
        Event::Demoted(Demotion { token, reason: Reason::Lost, at: Instant::from_millis(0) })
    }

    fn leader(token: u64) -> Event {
        Event::LeaderChanged(Some(Leader { id: "other".into(), token: Some(token) }))
    }

    /// What a subscription received, shown by its essence.
    fn received(receiver: &Receiver<Event>) -> Vec<String> {
        receiver.try_iter().map(|event| shown(&event)).collect()
    }

    fn shown(event: &Event) -> String {
        match event {
            Event::Demoted(demotion) => format!("demoted {}", demotion.token),
            Event::LeaderChanged(leader) => format!("leader {:?}", leader.as_ref().and_then(|l| l.token)),
            Event::Missed { count } => format!("missed {count}"),
            Event::Stopped => "stopped".into(),
            other => format!("{other:?}"),
        }
    }

    fn subscribed() -> (Outlets, Receiver<Event>) {
        let (mut outlets, _) = Outlets::new();
        let (sender, receiver) = bounded(SUBSCRIPTION);
        outlets.subscribe(sender);
        assert_eq!(received(&receiver), ["leader None"], "it begins with the present state");
        (outlets, receiver)
    }

    #[test]
    fn a_subscription_that_slept_is_told_how_much_it_missed_and_then_the_present_state() {
        let (mut outlets, receiver) = subscribed();
        for token in 1..=1000 {
            outlets.tell(&demoted(token));
        }
        outlets.tell(&leader(7));
        assert!(outlets.is_lagging());
        let before = received(&receiver);
        assert_eq!(before.first().map(String::as_str), Some("demoted 1"));
        assert_eq!(before.len(), EVENTS);
        outlets.catch_up();
        let missed = 1001 - before.len();
        assert_eq!(
            received(&receiver),
            [format!("missed {missed}"), "demoted 1000".into(), "leader Some(7)".into()]
        );
        assert!(!outlets.is_lagging());
        outlets.tell(&leader(8));
        assert_eq!(received(&receiver), ["leader Some(8)"]);
    }

    #[test]
    fn a_full_subscription_still_has_room_for_its_end() {
        let (mut outlets, receiver) = subscribed();
        for token in 1..=1000 {
            outlets.tell(&demoted(token));
        }
        outlets.stopped();
        drop(outlets);
        let events = received(&receiver);
        assert_eq!(events.len(), EVENTS + RESERVE);
        assert_eq!(events[EVENTS..], ["missed 744", "demoted 1000", "leader None", "stopped"]);
        assert!(receiver.recv().is_err(), "nothing follows");
    }

    #[test]
    fn what_was_missed_is_told_before_what_comes_next() {
        let (mut outlets, receiver) = subscribed();
        for token in 1..=300 {
            outlets.tell(&demoted(token));
        }
        assert_eq!(received(&receiver).len(), EVENTS);
        outlets.tell(&demoted(301));
        assert_eq!(received(&receiver), ["missed 44", "demoted 300", "leader None", "demoted 301"]);
    }

    #[test]
    fn a_listener_that_never_reads_has_its_losses_summed_in_few_events() {
        let (mut outlets, receiver) = subscribed();
        let sent = 100_000;
        for token in 1..=sent {
            outlets.tell(&demoted(token));
        }
        outlets.stopped();
        let (mut missed, mut rest) = (0, 0);
        for event in receiver.try_iter() {
            match event {
                Event::Missed { count } => missed += count,
                _ => rest += 1,
            }
        }
        // Beside the events themselves stand the present state and the end.
        assert_eq!(missed + rest, sent + 3);
    }

    #[test]
    fn a_dropped_subscription_is_forgotten_even_if_it_was_full() {
        let (mut outlets, receiver) = subscribed();
        for token in 1..=1000 {
            outlets.tell(&demoted(token));
        }
        drop(receiver);
        for token in 1001..=1000 + FIRST_PROBE {
            outlets.tell(&demoted(token));
        }
        outlets.catch_up();
        assert!(outlets.subscriptions.is_empty());
    }

    #[test]
    fn dropped_subscriptions_are_forgotten_also_where_nothing_changes() {
        let (mut outlets, kept) = subscribed();
        for _ in 0..1000 {
            let (sender, receiver) = bounded(SUBSCRIPTION);
            outlets.subscribe(sender);
            drop(receiver);
        }
        assert!(outlets.subscriptions.len() <= FIRST_CENSUS, "{} are kept", outlets.subscriptions.len());
        assert!(received(&kept).iter().all(|event| event == "leader None"), "nothing but the present state");
    }

    #[test]
    fn the_newest_entries_stay_and_nobody_waits() {
        let newest = Newest::new(3);
        for entry in 0..100 {
            newest.push(entry);
        }
        assert_eq!(newest.receiver.try_iter().collect::<Vec<_>>(), [97, 98, 99]);
    }
}
