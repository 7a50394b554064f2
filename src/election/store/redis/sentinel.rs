//! Sentinels, and which server they say is the primary.

use std::sync::atomic::{AtomicUsize, Ordering};

use redis::{Value, cmd};

use super::dial::Dialer;
use super::fault::{self, shortened};
use super::url::{Address, Target};
use super::wire::{Patience, Wire};
use crate::election::store::{Class, StoreError};

/// The sentinels that watch one primary, shared by all sessions of one store and its clones.
#[derive(Debug)]
pub(super) struct Sentinels {
    sentinels: Vec<Target>,
    /// What they call the primary.
    master: String,
    /// The one that is asked first: what it said last was right.
    first: AtomicUsize,
}

impl Sentinels {
    /// There is at least one.
    pub(super) fn new(sentinels: Vec<Target>, master: String) -> Self {
        Self { sentinels, master, first: AtomicUsize::new(0) }
    }
}

impl Dialer {
    /// A connection to the server that a sentinel names, and that says itself that it is a primary.
    ///
    /// A server that several sentinels name is tried once, so that a dead one costs its share of the time once.
    pub(super) fn dial_by_sentinels(
        &mut self,
        sentinels: &Sentinels,
        patience: &Patience<'_>,
    ) -> Result<Wire, StoreError> {
        let count = sentinels.sentinels.len();
        let first = sentinels.first.load(Ordering::Relaxed);
        let (mut tried, mut of_server, mut of_sentinel) = (Vec::new(), None, None);
        for number in 0..count {
            let index = first.wrapping_add(number) % count;
            let left = count - number - 1;
            // One share for each sentinel that is left, and one for the server.
            let asked = self.ask(&sentinels.sentinels[index], &sentinels.master, &patience.share(left + 2));
            let address = match asked {
                Ok(address) => address,
                Err(error) => {
                    log::debug!("{error}");
                    of_sentinel = to_tell(of_sentinel, error);
                    continue;
                }
            };
            if tried.contains(&address) {
                continue;
            }
            self.target.address = address.clone();
            tried.push(address);
            let share = if left == 0 { *patience } else { patience.share(2) };
            match self.dial_server(&share) {
                Ok(wire) => {
                    sentinels.first.store(index, Ordering::Relaxed);
                    return Ok(wire);
                }
                Err(error) => of_server = to_tell(of_server, error),
            }
        }
        Err(of_server.or(of_sentinel).expect("there is a sentinel, and it named a server or failed"))
    }

    /// Asks one sentinel for the address of the primary.
    fn ask(&self, sentinel: &Target, master: &str, patience: &Patience<'_>) -> Result<Address, StoreError> {
        self.to_sentinel(sentinel).reach(patience, |dialer, wire, share| dialer.ask_over(wire, master, share))
    }

    fn ask_over(
        &mut self,
        mut wire: Wire,
        master: &str,
        patience: &Patience<'_>,
    ) -> Result<Address, StoreError> {
        let auth = self.auth();
        let auths = auth.iter().len();
        let question = cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(master).take();
        let commands: Vec<_> = auth.into_iter().chain([question]).collect();
        let mut replies = self.exchange(&mut wire, &commands, patience)?.into_iter();
        self.expect_no_error("AUTH", replies.by_ref().take(auths))?;
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
