//! Leader election: one instance of a group holds a lease and is the leader.

mod builder;
mod clock;
mod driver;
mod elector;
mod error;
mod event;
mod key;
mod leadership;
mod machine;
mod options;
mod status;
mod store;
mod term;

// The machine among faults; it lies with the other proofs.
#[cfg(test)]
#[path = "../../tests/simulation/mod.rs"]
mod simulation;

pub use builder::Builder;
pub use clock::Instant;
pub use elector::Elector;
pub use error::{Error, ErrorKind, Operation};
pub use event::{Demotion, Event, Leader, Reason};
pub use leadership::Leadership;
pub use options::{RenewError, Strict};
pub use status::{Counters, Inspection, Role, Status, inspect};
#[cfg(feature = "tls")]
pub use store::Tls;
pub use store::{Credentials, LeaseStore, MemoryStore, RedisStore, Switch};
