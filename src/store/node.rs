//! The nodes of a store that distributes its keys over several servers.

use std::fmt;
use std::sync::Arc;

/// One of several servers that a store distributes its keys over, identified by its name.
///
/// ```
/// use tower_ratelimit::store::Node;
///
/// let node = Node::new("10.0.0.7:6379");
/// assert_eq!(node.name(), "10.0.0.7:6379");
/// assert_eq!(node, Node::new(node.name()));
/// ```
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Node(Arc<str>);

impl Node {
    /// Creates a node with a name, such as its address. Logs and events show the name, so it must contain no secrets.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
