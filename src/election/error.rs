//! The error of every fallible call, and of [`Event::Error`](super::Event::Error).

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::machine::Unreleased;
use super::store::{Class, StoreError};

/// The source of an error; shared, for an error is cloned to every subscription.
type Source = Arc<dyn StdError + Send + Sync>;

/// What went wrong, where, and (in its message) what to do about it.
///
/// Branch on [`kind`](Error::kind). "Somebody else leads" is never an error.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    operation: Option<Operation>,
    /// Which callback has panicked, if one has.
    panicked: Option<&'static str>,
    message: String,
    source: Option<Source>,
}

/// What a caller can do about an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The store could not be reached, did not answer in time, or cannot serve just now. It is tried again.
    Passing,
    /// The server is a replica, or not the cluster node of this group. It is tried again on a new connection.
    WrongNode,
    /// An option, the URL, a password, a right or a key's type. It stays until somebody changes it.
    Configuration,
    /// Something of ours or of the user's still ran at the end of the time it was given.
    Overrun,
    /// The time that the caller gave ran out.
    Timeout,
    /// The elector has been stopped.
    Stopped,
    /// A hook or the lead work has panicked.
    Panicked,
    /// This instance does not lead, or no longer.
    NotLeading,
    /// The system refused a thread or random bytes.
    System,
    /// A thread of the elector has panicked. It never leads again; drop it.
    Dead,
}

/// What was being done when an [`Error`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Name look-up, dialling and handshake. Nothing was sent of what was to be done over the connection.
    Connect,
    /// Trying to win the lease.
    Acquire,
    /// Extending the lease that this instance holds.
    Renew,
    /// Giving the lease back.
    Release,
    /// Listening for releases by other instances.
    Wake,
    /// Reading who holds the lease.
    Look,
}

impl Operation {
    /// The operation's name in events and on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Acquire => "acquire",
            Self::Renew => "renew",
            Self::Release => "release",
            Self::Wake => "wake",
            Self::Look => "look",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Error {
    /// What a caller can do about it.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The store operation that failed, if it was one.
    #[must_use]
    pub fn operation(&self) -> Option<Operation> {
        self.0.operation
    }

    /// This error's message and its sources' in one line, from the outermost in.
    #[must_use]
    pub fn to_chain(&self) -> String {
        let mut line = self.to_string();
        let mut source = self.source();
        while let Some(error) = source {
            line.push_str(": ");
            line.push_str(&error.to_string());
            source = error.source();
        }
        line
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::build(kind, None, message.into(), None)
    }

    pub(crate) fn options(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Configuration, message)
    }

    pub(crate) fn spawn(message: impl Into<String>, source: Option<Source>) -> Self {
        Self::build(ErrorKind::System, None, message.into(), source)
    }

    pub(crate) fn stopped() -> Self {
        Self::new(ErrorKind::Stopped, "the elector has been stopped; build a new one to contend again")
    }

    pub(crate) fn dead() -> Self {
        Self::new(ErrorKind::Dead, "a thread of the elector has panicked; it leads no more, build a new one")
    }

    pub(crate) fn timeout(waited: Duration) -> Self {
        Self::new(ErrorKind::Timeout, format!("this instance did not become the leader within {waited:?}"))
    }

    pub(crate) fn not_leading(token: u64) -> Self {
        Self::new(
            ErrorKind::NotLeading,
            format!("the leadership with token {token} has ended; stop its work"),
        )
    }

    /// A callback of the user's has panicked.
    pub(crate) fn panicked(what: &'static str, message: &str) -> Self {
        let message = format!("{what} panicked: {message}");
        let (kind, operation, source) = (ErrorKind::Panicked, None, None);
        Self(Arc::new(Inner { kind, operation, panicked: Some(what), message, source }))
    }

    /// Lead work was to begin for a term that has some.
    pub(crate) fn works_already(token: u64) -> Self {
        let message = format!(
            "lead work runs already under token {token}; use either lead() or one call of run() at a time"
        );
        Self::new(ErrorKind::Configuration, message)
    }

    /// Whether it tells of a panic of this callback.
    pub(crate) fn is_panic_of(&self, what: &str) -> bool {
        self.0.panicked == Some(what)
    }

    /// A session with the store could not be opened.
    pub(crate) fn session(error: std::io::Error) -> Self {
        Self::spawn(
            "could not open a session with the store; too many files may be open",
            Some(Arc::new(error)),
        )
    }

    /// A look-up of the leader that failed in its store.
    pub(crate) fn looked_up(group: &str, error: StoreError) -> Self {
        Self::store(Operation::Look, group, error)
    }

    /// The store answered an operation in a way that somebody has to look into.
    pub(crate) fn refused(operation: Operation, message: String) -> Self {
        Self::build(ErrorKind::Configuration, Some(operation), message, None)
    }

    pub(crate) fn overrun(token: u64, since: Duration) -> Self {
        let message = format!(
            "the lead work under token {token} still runs {since:?} after its term ended; \
             this instance does not contend until it returns",
        );
        Self::new(ErrorKind::Overrun, message)
    }

    /// Threads still run at the end of a stop, which may have gone wrong otherwise, too.
    pub(crate) fn threads_left(group: &str, threads: usize, stop: Option<Self>) -> Self {
        let message = format!(
            "stopped the elector of group {group:?}, but {threads} of its threads did not end in time"
        );
        Self::build(ErrorKind::Overrun, None, message, stop.map(|error| Arc::new(error) as Source))
    }

    /// A lease was left to expire.
    pub(crate) fn unreleased(group: &str, lease: Unreleased, ends_in: Duration) -> Self {
        let Unreleased { token, overrun, error, .. } = lease;
        let (kind, why) = match &error {
            _ if overrun => (ErrorKind::Overrun, "its lead work still runs"),
            Some(error) => (error.class().into(), "the release failed"),
            None => (ErrorKind::Passing, "the store did not answer in time"),
        };
        let message = match token {
            Some(token) => format!(
                "the lease of group {group:?} with token {token} was not released, for {why}; it ends by \
                 itself within {ends_in:?}",
            ),
            None => format!(
                "an attempt in group {group:?} was not answered and may have won the lease, which was not \
                 released, for {why}; it would end by itself within {ends_in:?}",
            ),
        };
        let source = error.map(|error| Arc::new(error) as Source);
        Self::build(kind, Some(Operation::Release), message, source)
    }

    /// An operation of an election that failed in its store.
    pub(crate) fn store(operation: Operation, group: &str, error: StoreError) -> Self {
        let kind = error.class().into();
        let object = match operation {
            Operation::Connect => "connect to the store of",
            Operation::Acquire => "acquire the lease of",
            Operation::Renew => "renew the lease of",
            Operation::Release => "release the lease of",
            Operation::Wake => "listen for releases in",
            Operation::Look => "look up the leader of",
        };
        let message = format!("could not {object} group {group:?}");
        Self::build(kind, Some(operation), message, Some(Arc::new(error)))
    }

    fn build(kind: ErrorKind, operation: Option<Operation>, message: String, source: Option<Source>) -> Self {
        Self(Arc::new(Inner { kind, operation, panicked: None, message, source }))
    }
}

impl From<Class> for ErrorKind {
    fn from(class: Class) -> Self {
        match class {
            Class::Passing => Self::Passing,
            Class::WrongNode => Self::WrongNode,
            Class::Configuration => Self::Configuration,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("operation", &self.0.operation)
            .field("message", &self.0.message)
            .field("source", &self.0.source)
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|source| &**source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::election::store::Outcome;

    #[test]
    fn a_chain_names_the_act_the_object_and_the_cause_once_each() {
        let cause = StoreError::new(Outcome::Refused, Class::Configuration, "NOPERM this user may not");
        let error = Error::store(Operation::Renew, "demo", cause);
        assert_eq!(error.kind(), ErrorKind::Configuration);
        assert_eq!(error.operation(), Some(Operation::Renew));
        assert_eq!(error.to_string(), "could not renew the lease of group \"demo\"");
        let chain = error.to_chain();
        assert_eq!(chain.matches("NOPERM").count(), 1, "{chain}");
    }
}
