//! Where an operation goes in a store that has more than one place for leases.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::{Answer, Budget, Class, Operation, Outcome, Session, StoreError};
use crate::election::clock::Instant;
use crate::election::key::Group;

/// How many redirects of one operation are followed. One is usual, and two where a slot moves meanwhile.
pub(crate) const MOST_REDIRECTS: u32 = 5;

/// How long after a TRYAGAIN an operation is sent again: the keys of its slot are being moved one by one.
const PAUSE: Duration = Duration::from_millis(20);

/// What is told of a slot whose keys were at two nodes until the end.
const HALF_MOVED: &str = "the cluster moves the slot, and the group's two keys stayed at two nodes for all of the time \
    allowed; if nobody goes on with the move, finish it (MIGRATE the rest, then CLUSTER SETSLOT ... NODE at both \
    nodes), or bring the keys back and end it (CLUSTER SETSLOT ... STABLE)";

/// The nodes of a cluster, each of which keeps the leases of some of the groups.
pub trait Nodes: Send + Sync {
    /// The node that keeps the lease of this group; none while that is not known.
    fn of(&self, group: &Group) -> Option<Node>;

    /// A new session with one node, to be owned by one thread. It fails where the system refuses a descriptor.
    fn open(&self, node: &Node) -> io::Result<Box<dyn Session>>;
}

/// A node of a cluster, and whether it is asked for what it is only just being given.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Node {
    pub(crate) host: Arc<str>,
    pub(crate) port: u16,
    /// Each operation has ASKING before it.
    pub(crate) asking: bool,
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Where an operation may be sent of which a node says that nothing was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// To the node that has the slot.
    Moved {
        /// The slot of the operation's keys.
        slot: u16,
        /// Who has it.
        node: Node,
    },
    /// To the node that is being given the slot, this once.
    Ask {
        /// The slot of the operation's keys.
        slot: u16,
        /// Who is being given it.
        node: Node,
    },
    /// To whoever has the slot, a little later.
    Later,
    /// To any other node: this one does not serve it.
    Elsewhere,
}

/// The way of one operation from node to node.
#[derive(Debug, Default)]
pub(crate) struct Trail {
    redirects: u32,
    /// Whether it was sent elsewhere already.
    elsewhere: bool,
}

/// One step of that way.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    /// To which node; none: to the one that has the group, as far as is known then.
    pub(crate) to: Option<Node>,
    /// Not earlier than this.
    pub(crate) at: Instant,
}

impl Trail {
    /// Where an operation goes that failed with this error at `now`, and has time until then.
    ///
    /// An error is the operation's result. What may have been done is never sent again.
    pub(crate) fn follow(
        &mut self,
        error: StoreError,
        now: Instant,
        until: Instant,
    ) -> Result<Hop, StoreError> {
        let Some(redirect) = error.redirect() else { return Err(error) };
        let (to, at) = match redirect {
            Redirect::Moved { node, .. } | Redirect::Ask { node, .. } => {
                if self.redirects == MOST_REDIRECTS {
                    let message = format!(
                        "gave up after {MOST_REDIRECTS} redirects, the next of them to {node}: the cluster's nodes \
                         do not agree on which of them has the slot"
                    );
                    return Err(
                        StoreError::new(Outcome::Refused, Class::WrongNode, message).with_source(error)
                    );
                }
                self.redirects += 1;
                (Some(node.clone()).filter(|node| node.asking), now)
            }
            Redirect::Later => {
                // Each round costs a pause, so that the time allowed bounds them.
                self.redirects = 0;
                (None, now + PAUSE)
            }
            Redirect::Elsewhere if std::mem::replace(&mut self.elsewhere, true) => return Err(error),
            Redirect::Elsewhere => (None, now),
        };
        if at < until {
            return Ok(Hop { to, at });
        }
        if error.redirect() != Some(&Redirect::Later) {
            return Err(error);
        }
        // Where somebody goes on with the move, the next attempt finds both keys at one node.
        Err(StoreError::new(error.outcome(), error.class(), HALF_MOVED).with_source(error))
    }
}

/// Executes one operation on the calling thread, wherever it has to go.
pub(crate) fn execute_one(
    mut session: Box<dyn Session>,
    operation: &Operation,
    until: Instant,
) -> io::Result<Result<Answer, StoreError>> {
    let nodes = session.nodes();
    let mut node = nodes.as_ref().and_then(|nodes| nodes.of(&operation.group));
    let mut trail = Trail::default();
    loop {
        let of_node = nodes.as_ref().zip(node.take()).map(|(nodes, node)| nodes.open(&node));
        let mut of_node = of_node.transpose()?;
        let session = of_node.as_mut().unwrap_or(&mut session);
        let budget = Budget::new(until, &session.bell());
        let result = session.execute(std::slice::from_ref(operation), &budget).pop();
        let result = result.expect("a session gives one result for each operation");
        let (Some(nodes), Err(error)) = (&nodes, &result) else { return Ok(result) };
        let now = Instant::now();
        let hop = match trail.follow(error.clone(), now, until) {
            Ok(hop) => hop,
            Err(error) => return Ok(Err(error)),
        };
        let pause = hop.at.saturating_duration_since(now);
        if !pause.is_zero() {
            // The channel of a timer, which does not disconnect.
            crossbeam_channel::after(pause).recv().ok();
        }
        node = hop.to.or_else(|| nodes.of(&operation.group));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn node(port: u16, asking: bool) -> Node {
        Node { host: "h".into(), port, asking }
    }

    fn refused(redirect: Option<Redirect>) -> StoreError {
        StoreError::new(Outcome::Refused, Class::Passing, "no").with_redirect(redirect)
    }

    #[test]
    fn what_no_node_sends_elsewhere_is_a_result() {
        let now = Instant::now();
        assert!(Trail::default().follow(refused(None), now, now + SECOND).is_err());
    }

    #[test]
    fn redirects_are_followed_up_to_a_number_and_the_last_error_says_so() {
        let now = Instant::now();
        let mut trail = Trail::default();
        for count in 0..MOST_REDIRECTS {
            let asks = count % 2 == 1;
            let redirect = match asks {
                true => Redirect::Ask { slot: 1, node: node(7, true) },
                false => Redirect::Moved { slot: 1, node: node(7, false) },
            };
            let hop = trail.follow(refused(Some(redirect)), now, now + SECOND).expect("it is followed");
            // What was learned is looked up; what is asked once is not learned.
            assert_eq!(hop, Hop { to: asks.then(|| node(7, true)), at: now });
        }
        let moved = Redirect::Moved { slot: 1, node: node(9, false) };
        let error = trail.follow(refused(Some(moved)), now, now + SECOND).expect_err("too many");
        assert_eq!((error.outcome(), error.class()), (Outcome::Refused, Class::WrongNode));
        assert!(error.to_string().contains("5 redirects, the next of them to h:9"), "{error}");
    }

    #[test]
    fn a_slot_that_moves_is_waited_for_as_long_as_there_is_time() {
        let now = Instant::now();
        let mut trail = Trail::default();
        // As on an old server, where each pause is followed by another redirect.
        for _ in 0..100 {
            let ask = Redirect::Ask { slot: 1, node: node(7, true) };
            trail.follow(refused(Some(ask)), now, now + SECOND).expect("it is followed");
            let hop =
                trail.follow(refused(Some(Redirect::Later)), now, now + SECOND).expect("it is followed");
            assert_eq!(hop, Hop { to: None, at: now + PAUSE });
        }
        let error = trail.follow(refused(Some(Redirect::Later)), now, now + PAUSE).expect_err("no time");
        assert_eq!((error.outcome(), error.class()), (Outcome::Refused, Class::Passing));
        assert!(error.to_string().contains("CLUSTER SETSLOT ... STABLE"), "{error}");
        assert_eq!(std::error::Error::source(&error).expect("what the node said").to_string(), "no");
    }

    #[test]
    fn an_operation_goes_elsewhere_once() {
        let now = Instant::now();
        let mut trail = Trail::default();
        let elsewhere = || refused(Some(Redirect::Elsewhere));
        assert_eq!(trail.follow(elsewhere(), now, now + SECOND).expect("once"), Hop { to: None, at: now });
        trail.follow(elsewhere(), now, now + SECOND).expect_err("not twice");
    }
}
