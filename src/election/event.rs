//! What an elector tells its listeners.

use std::fmt;

use super::clock::Instant;
use super::error::Error;
use super::leadership::Leadership;

/// One change, as a subscription receives it.
///
/// As emitted, `Promoted` and `Demoted` alternate strictly, beginning with `Promoted`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// This instance has become the leader.
    Promoted(Leadership),
    /// This instance leads no more; [`is_leader`](super::Elector::is_leader) has been false since
    /// [`Demotion::at`].
    Demoted(Demotion),
    /// Another holder is known, this instance included; none when nobody is known to hold the lease.
    LeaderChanged(Option<Leader>),
    /// A store operation failed and will be tried again, or something overran its time.
    Error(Error),
    /// This subscription fell behind: so many events stood here. The present state follows.
    Missed {
        /// How many events were lost.
        count: u64,
    },
    /// The elector has stopped. Nothing follows.
    Stopped,
}

/// The end of a term.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Demotion {
    /// The token of the term that ended.
    pub token: u64,
    /// Why it ended.
    pub reason: Reason,
    /// From when on `is_leader()` was false. The deadline itself when the reason is
    /// [`Expired`](Reason::Expired).
    pub at: Instant,
}

/// Why a term ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The deadline came before a renewal was answered.
    Expired,
    /// The store says that the lease is no longer this term's.
    Lost,
    /// A renewal failed, and the policy is [`RenewError::Demote`](super::RenewError::Demote).
    RenewError,
    /// The user asked for it.
    SteppedDown,
    /// The lead work ended by itself.
    LeadEnded,
    /// The elector was stopped.
    Stopped,
}

impl Reason {
    /// The reason's name on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Lost => "lost",
            Self::RenewError => "renew_error",
            Self::SteppedDown => "stepped_down",
            Self::LeadEnded => "lead_ended",
            Self::Stopped => "stopped",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Who leads, as the store says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The instance id, with its name if it was given one.
    pub id: String,
    /// The term's token; none for a holder that keeps no token, as a Go instance.
    pub token: Option<u64>,
}

impl Leader {
    /// The name that the instance was given, if it was: what stands before the last slash of its id.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.id.rsplit_once('/').map(|(name, _)| name)
    }
}
