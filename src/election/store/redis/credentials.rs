//! Who logs in at a server.

use std::fmt;
use std::io;
use std::sync::Arc;

use super::aside::Aside;
use super::wire::Patience;
use crate::election::store::{Lookups, StoreError};

/// A user and a password for a server.
///
/// The password is never shown: not by `Debug`, in an error or in a log.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub(super) user: Option<String>,
    pub(super) password: String,
}

impl Credentials {
    /// This user, or the server's default user, with this password.
    #[must_use]
    pub fn new(user: Option<&str>, password: &str) -> Self {
        Self { user: user.map(str::to_owned), password: password.to_owned() }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Where credentials come from that can change.
#[derive(Clone)]
pub(super) struct Source(Arc<Give>);

type Give = dyn Fn() -> io::Result<Credentials> + Send + Sync;

impl Source {
    pub(super) fn new(give: impl Fn() -> io::Result<Credentials> + Send + Sync + 'static) -> Self {
        Self(Arc::new(give))
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}

/// What the connections of one elector log in with. Clones share the calls to the source.
#[derive(Clone, Debug)]
pub(super) struct Login {
    source: Option<Source>,
    calls: Aside<Credentials>,
}

impl Login {
    /// The threads of a source's calls are counted there.
    pub(super) fn new(source: Option<Source>, running: Lookups) -> Self {
        Self { source, calls: Aside::new(running) }
    }

    /// The credentials for the next connection: those of the source, if there is one, and else these.
    pub(super) fn credentials(
        &self,
        of_url: Option<&Credentials>,
        patience: &Patience<'_>,
    ) -> Result<Option<Credentials>, StoreError> {
        let Some(source) = &self.source else { return Ok(of_url.cloned()) };
        let source = Arc::clone(&source.0);
        self.calls.ask("tr-credentials", "asking for the credentials", move || source(), patience).map(Some)
    }
}
