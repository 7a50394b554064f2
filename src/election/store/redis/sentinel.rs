//! Sentinels, and which server they say is the primary.

use std::cmp::Reverse;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::{Value, cmd};

use super::dial::{Dialer, field};
use super::fault::{self, shortened};
use super::url::{Address, Target};
use super::wire::{Patience, Wire};
use crate::election::clock::Instant;
use crate::election::store::{Class, StoreError};

/// How long a sentinel that used up its share of the time is not asked where it can be done without: a failover's
/// dials together pay for it once, and one that answers again is soon heard again.
const REST: Duration = Duration::from_secs(10);

/// The sentinels that watch one primary, shared by all sessions of one store and its clones.
#[derive(Debug)]
pub(super) struct Sentinels {
    all: Vec<Sentinel>,
    /// What they call the primary.
    master: String,
}

#[derive(Debug)]
struct Sentinel {
    target: Target,
    /// When it last used up its share without an answer; none if it did not the last time.
    silent_at: Mutex<Option<Instant>>,
}

/// A server that sentinels name.
#[derive(Debug)]
struct Named {
    address: Address,
    /// The highest that one of them knows; zero if none tells.
    epoch: u64,
    /// How many name it.
    sentinels: usize,
}

impl Sentinels {
    /// There is at least one.
    pub(super) fn new(sentinels: Vec<Target>, master: String) -> Self {
        let all = sentinels.into_iter().map(|target| Sentinel { target, silent_at: Mutex::default() });
        Self { all: all.collect(), master }
    }

    /// All, with when they were silent: those that were come last.
    fn in_order(&self) -> Vec<(&Sentinel, Option<Instant>)> {
        let mut all: Vec<_> = self.all.iter().map(|it| (it, it.silent_at())).collect();
        all.sort_by_key(|(_, silent_at)| silent_at.is_some());
        all
    }

    /// Whether a sentinel is not asked, where so many have answered: it rests, and they are more than half of all.
    fn spares(&self, silent_at: Option<Instant>, answered: usize, now: Instant) -> bool {
        let rests = silent_at.is_some_and(|at| now.saturating_duration_since(at) < REST);
        rests && answered > self.all.len() / 2
    }
}

impl Sentinel {
    fn silent_at(&self) -> Option<Instant> {
        *self.silent_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, silent_at: Option<Instant>) {
        *self.silent_at.lock().unwrap_or_else(PoisonError::into_inner) = silent_at;
    }
}

impl Dialer {
    /// A connection to a server that sentinels name, and that says itself that it is a primary.
    ///
    /// For some seconds after a failover some sentinels still name the old primary, which may live again and take
    /// itself for one. So all are asked, and the server of the newest configuration is dialled first. They are asked
    /// again after each dial: one that was stopped can go on in the middle of it, when another is promoted already.
    /// A server that was dialled in vain is not dialled again.
    pub(super) fn dial_by_sentinels(
        &mut self,
        sentinels: &Sentinels,
        patience: &Patience<'_>,
    ) -> Result<Wire, StoreError> {
        let (mut failed, mut kept, mut of_server) = (Vec::new(), None, None);
        // Each may name another one; then one is promoted, and is confirmed.
        for _ in 0..sentinels.all.len() + 2 {
            let (mut named, of_sentinel) = self.ask_all(sentinels, patience);
            named.retain(|it| !failed.contains(&it.address));
            // The first of equals stays the first.
            named.sort_by_key(|it| Reverse((it.epoch, it.sentinels)));
            let Some(Named { address, .. }) = named.first() else {
                return Err(of_server.or(of_sentinel).expect("a server or a sentinel has failed"));
            };
            if let Some(wire) = kept.take_if(|_| self.target.address == *address) {
                return Ok(wire);
            }
            self.target.address = address.clone();
            // One share for each server that is left, and one for asking again.
            match self.dial_server(&patience.share(named.len() + 1)) {
                Ok(wire) => kept = Some(wire),
                Err(error) => {
                    failed.push(address.clone());
                    kept = None;
                    of_server = to_tell(of_server, error);
                }
            }
        }
        Err(of_server
            .unwrap_or_else(|| self.not_sent(Class::Passing, "is one of too many that the Sentinels name")))
    }

    /// Asks the sentinels which server is the primary. With the answers comes the error that is told if no server
    /// is named.
    fn ask_all(&self, sentinels: &Sentinels, patience: &Patience<'_>) -> (Vec<Named>, Option<StoreError>) {
        let (mut named, mut refused, mut answered) = (Vec::<Named>::new(), None, 0);
        for (number, (sentinel, silent_at)) in sentinels.in_order().into_iter().enumerate() {
            if sentinels.spares(silent_at, answered, Instant::now()) {
                continue;
            }
            // One share for each sentinel that is left, and one for the servers.
            let share = patience.share(sentinels.all.len() - number + 1);
            let asked = self.ask(&sentinel.target, &sentinels.master, &share);
            sentinel.note((asked.is_err() && share.remaining().is_none()).then(Instant::now));
            match asked {
                Ok((address, epoch)) => {
                    answered += 1;
                    match named.iter_mut().find(|it| it.address == address) {
                        Some(it) => (it.epoch, it.sentinels) = (it.epoch.max(epoch), it.sentinels + 1),
                        None => named.push(Named { address, epoch, sentinels: 1 }),
                    }
                }
                Err(error) => {
                    log::debug!("{error}");
                    refused = to_tell(refused, error);
                }
            }
        }
        (named, refused)
    }

    /// Asks one sentinel for the address of the primary, and for the epoch of the configuration that names it.
    fn ask(
        &self,
        sentinel: &Target,
        master: &str,
        patience: &Patience<'_>,
    ) -> Result<(Address, u64), StoreError> {
        self.to_sentinel(sentinel).reach(patience, |dialer, wire, share| dialer.ask_over(wire, master, share))
    }

    fn ask_over(
        &mut self,
        mut wire: Wire,
        master: &str,
        patience: &Patience<'_>,
    ) -> Result<(Address, u64), StoreError> {
        let auth = self.auth();
        let auths = auth.iter().len();
        // While it fails over, only the second tells the promoted server. In this order no old server is told with
        // a new epoch, whatever happens between the two.
        let questions =
            ["MASTER", "GET-MASTER-ADDR-BY-NAME"].map(|it| cmd("SENTINEL").arg(it).arg(master).take());
        let commands: Vec<_> = auth.into_iter().chain(questions).collect();
        let mut replies = self.exchange(&mut wire, &commands, patience)?.into_iter();
        self.expect_no_error("AUTH", replies.by_ref().take(auths))?;
        // A user may lack the right to ask for it.
        let epoch = replies.next().and_then(|reply| field(&reply, "config-epoch")?.parse().ok());
        match replies.next().unwrap_or_default() {
            Value::ServerError(error) if fault::is_unknown_command(&error) => Err(self.not_sent(
                Class::Configuration,
                "is no Sentinel; name the Sentinels, not the servers that they watch",
            )),
            Value::ServerError(error) => Err(self.refused("SENTINEL GET-MASTER-ADDR-BY-NAME", &error)),
            Value::Nil => Err(self.not_sent(
                Class::Configuration,
                &format!("is a Sentinel that watches no primary of the name {:?}", shortened(master)),
            )),
            reply => named(&reply)
                .map(|address| (address, epoch.unwrap_or_default()))
                .ok_or_else(|| self.not_sent(Class::Passing, "gave an address that is none for the primary")),
        }
    }
}

/// Which error is told: what has to be put right, rather than what may pass by itself.
pub(super) fn to_tell(old: Option<StoreError>, new: StoreError) -> Option<StoreError> {
    old.filter(|old| old.class() == Class::Configuration).or(Some(new))
}

/// The address that a reply of host and port names.
fn named(reply: &Value) -> Option<Address> {
    let Value::Array(items) = reply else { return None };
    let [Value::BulkString(host), Value::BulkString(port)] = &items[..] else { return None };
    Address::named(str::from_utf8(host).ok()?, str::from_utf8(port).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentinel_is_spared_while_it_rests_and_more_than_half_have_answered() {
        let moment = Duration::from_nanos(1);
        for (all, answered, silent_for, is_spared) in [
            (3, 2, Some(Duration::ZERO), true),
            (3, 2, Some(REST - moment), true),
            (3, 2, Some(REST), false),
            (3, 2, None, false),
            (3, 1, Some(Duration::ZERO), false),
            (2, 1, Some(Duration::ZERO), false),
            (4, 2, Some(Duration::ZERO), false),
            (5, 3, Some(Duration::ZERO), true),
            (1, 0, Some(Duration::ZERO), false),
        ] {
            let sentinel = Target::parse("redis://h").expect("a good URL");
            let sentinels = Sentinels::new(vec![sentinel; all], "m".to_owned());
            let silent_at = Instant::now();
            let now = silent_at + silent_for.unwrap_or_default();
            let spared = sentinels.spares(silent_for.map(|_| silent_at), answered, now);
            assert_eq!(spared, is_spared, "{answered} of {all} answered, silent for {silent_for:?}");
        }
    }
}
