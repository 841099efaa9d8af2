//! Errors of stores, and of configurations.

mod position;
pub(crate) mod validation;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::text::exact;

#[cfg(feature = "rules")]
pub(crate) use self::position::Position;
pub(crate) use self::position::RulePosition;
pub use self::validation::ConfigError;
pub(crate) use self::validation::{Fault, or_panic};

/// A failure of a store. It is not a denial: [`OnStoreError`](crate::OnStoreError) decides what happens to the request.
///
/// The message includes the causes. It is for operators. For clients, use [`response`](Self::response).
/// With the feature `axum`, the error implements Axum's `IntoResponse`, so that a handler can return it.
///
/// [`kind`](Self::kind) classifies the failure, and [`source`](std::error::Error::source) returns the cause, for
/// example the error of the database's client. `Debug` shows the message too.
///
/// ```
/// use tower_ratelimit::{StoreError, StoreErrorKind};
///
/// let error = StoreError::new("the cable is out");
/// assert_eq!(error.kind(), StoreErrorKind::Failed);
/// assert_eq!(error.to_string(), "the rate limit store could not decide: the cable is out");
/// ```
pub struct StoreError(Box<Details>);

/// Boxed, because results without an error are moved, too.
struct Details {
    kind: StoreErrorKind,
    /// What happened, as a sentence about the store.
    what: Cow<'static, str>,
    source: Option<Source>,
    node: Option<Node>,
    /// Whether the store works, but could not decide one request, so that no breaker counts the error.
    is_of_one_request: bool,
    /// Whether the database was certainly not called.
    was_not_sent: bool,
}

type Source = Box<dyn std::error::Error + Send + Sync>;

/// The kinds of [`StoreError`].
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The store failed. The error's [`source`](std::error::Error::source) is the cause.
    Failed,
    /// The store did not answer within the [deadline](crate::Builder::deadline).
    TimedOut,
    /// The store was not called, because too many requests are waiting for it. Does not affect the
    /// [circuit breaker](crate::CircuitBreaker).
    QueueFull,
    /// The store gave up, because other requests changed or held a key of the request. Does not affect
    /// the [circuit breaker](crate::CircuitBreaker). Only a [`CasStore`](crate::store::CasStore) returns it.
    Contention,
    /// The store was not called, because the [circuit breaker](crate::CircuitBreaker) is open.
    BreakerOpen,
    /// The store does not support [overrides](crate::LimitHandle#overrides), or it counts the limit in a
    /// [sketch](crate::store::Sketch), which supports neither refunds and resets, nor a [size](crate::Limit::size_by)
    /// of another algorithm or period.
    NotSupported,
    /// The store has its [maximum](crate::MemoryStore::max_overrides) of [overrides](crate::LimitHandle#overrides).
    Full,
    /// The store was not called, because the caller's arguments are invalid, for example an override of a limit that is
    /// not [overridable](crate::Limit::overridable). The message names the value and the remedy.
    InvalidCall,
}

impl StoreError {
    fn of(kind: StoreErrorKind, what: impl Into<Cow<'static, str>>) -> Self {
        let is_of_one_request =
            matches!(kind, StoreErrorKind::NotSupported | StoreErrorKind::Full | StoreErrorKind::InvalidCall);
        let was_not_sent = matches!(kind, StoreErrorKind::QueueFull | StoreErrorKind::BreakerOpen);
        Self(Box::new(Details { kind, what: what.into(), source: None, node: None, is_of_one_request, was_not_sent }))
    }

    fn with_source(mut self, source: impl Into<Source>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Wraps the cause of a failure of the store. It counts for the [circuit breaker](crate::CircuitBreaker).
    pub fn new(source: impl Into<Source>) -> Self {
        Self::of(StoreErrorKind::Failed, "could not decide").with_source(source)
    }

    /// Wraps the cause why a working store can't decide one request, such as invalid data under its keys. It does not
    /// count for the [circuit breaker](crate::CircuitBreaker).
    pub fn of_one_request(source: impl Into<Source>) -> Self {
        let mut error = Self::new(source);
        error.0.is_of_one_request = true;
        error
    }

    /// Sets the node that failed, for stores [with several](crate::Store::node).
    #[must_use]
    pub fn at(mut self, node: Node) -> Self {
        self.0.node = Some(node);
        self
    }

    /// Returns the node that failed, if the store has several and the node is known.
    #[must_use]
    pub const fn node(&self) -> Option<&Node> {
        self.0.node.as_ref()
    }

    /// Returns the kind of failure.
    #[must_use]
    pub const fn kind(&self) -> StoreErrorKind {
        self.0.kind
    }

    /// Returns whether the error concerns one request rather than the store.
    pub(crate) const fn is_of_one_request(&self) -> bool {
        self.0.is_of_one_request
    }

    /// Returns whether the database was certainly not called.
    pub(crate) const fn was_not_sent(&self) -> bool {
        self.0.was_not_sent
    }

    /// Wraps the cause why the database was certainly not called.
    #[cfg(feature = "redis")]
    pub(crate) fn not_sent(source: impl Into<Source>) -> Self {
        let mut error = Self::new(source);
        error.0.was_not_sent = true;
        error
    }

    /// Returns whether other requests were in the way, which does not show whether the store works.
    pub(crate) const fn is_inconclusive(&self) -> bool {
        matches!(self.0.kind, StoreErrorKind::QueueFull | StoreErrorKind::Contention)
    }

    /// Creates the error of a store that can't be used at all, for this reason. `at` is its address, if there is one.
    #[cfg(feature = "redis")]
    pub(crate) fn unusable(at: Option<String>, source: impl Into<Source>) -> Self {
        let at = at.map_or_else(String::new, |at| format!("at {at} "));
        Self::of(StoreErrorKind::Failed, at + "can't be used").with_source(source)
    }

    pub(crate) fn timed_out(deadline: Duration) -> Self {
        let deadline = exact(deadline);
        let what =
            format!("did not answer within {deadline}: check its load and the network, or raise `Builder::deadline`");
        Self::of(StoreErrorKind::TimedOut, what)
    }

    /// Wraps the description of the queue that is full.
    #[cfg(feature = "redis")]
    pub(crate) fn queue_full(source: impl Into<Source>) -> Self {
        let what = "was not called, because too many requests are waiting for it";
        Self::of(StoreErrorKind::QueueFull, what).with_source(source)
    }

    /// Returns an error outside a Tokio runtime, where timers would panic.
    pub(crate) fn check_runtime() -> Result<(), Self> {
        let what = "there is no Tokio runtime to measure deadlines and delays: await this within one";
        Handle::try_current().map(drop).map_err(|_| Self::of_one_request(what))
    }

    pub(crate) fn contention() -> Self {
        Self::of(
            StoreErrorKind::Contention,
            concat!(
                "gave up, because other requests changed or held a key of the request: too many requests charge it at ",
                "once, or the store is slow"
            ),
        )
    }

    pub(crate) fn breaker_open(node: Option<Node>) -> Self {
        let what = "was not called, because its circuit breaker is open after repeated failures";
        let mut error = Self::of(StoreErrorKind::BreakerOpen, what);
        (error.0.node, error.0.was_not_sent) = (node, true);
        error
    }

    pub(crate) fn not_supported() -> Self {
        Self::of(
            StoreErrorKind::NotSupported,
            concat!(
                "does not support overrides: use a store of this crate, or forward `access_override` to the store ",
                "that yours wraps"
            ),
        )
    }

    /// Creates the error of a refund or reset of keys that are counted in a sketch.
    pub(crate) fn counted_in_sketch() -> Self {
        Self::of(
            StoreErrorKind::NotSupported,
            concat!(
                "counts some of these keys in a sketch, which can't lower a count: their usage ends with the window, ",
                "unless `MemoryStore::max_keys` has room for them"
            ),
        )
    }

    /// Creates the error of a request for which a limit has a size that the store was not prepared for.
    pub(crate) fn not_prepared(limit: &str) -> Self {
        Self::of(
            StoreErrorKind::NotSupported,
            format!(
                "can't count the limit {limit:?} at a size of another algorithm or period: let its sizes differ in \
                 their tokens only, or use a store without a sketch"
            ),
        )
    }

    pub(crate) fn full(max: usize) -> Self {
        Self::of(
            StoreErrorKind::Full,
            format!("has {max} overrides, its maximum: remove some, or raise `MemoryStore::max_overrides`"),
        )
    }

    /// Describes the invalid argument of a call, and the remedy.
    pub(crate) fn invalid_call(what: impl ToString) -> Self {
        Self::of(StoreErrorKind::InvalidCall, what.to_string())
    }

    /// Wraps the cause why the publication of rules was not confirmed.
    #[cfg(all(feature = "redis", feature = "rules"))]
    pub(crate) fn not_published(source: Self) -> Self {
        let what = "did not confirm that the rules were published: publish them again";
        Self::of(source.kind(), what).with_source(source)
    }
}

impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.0.kind, &self.0.node) {
            // The caller's mistake.
            (StoreErrorKind::InvalidCall, _) => {}
            (_, Some(node)) => write!(f, "the rate limit store at {node} ")?,
            (_, None) => f.write_str("the rate limit store ")?,
        }
        f.write_str(&self.0.what)?;
        let mut source = std::error::Error::source(self);
        let mut previous = String::new();
        while let Some(error) = source {
            let text = printable(&error.to_string());
            // Some errors include the message of their cause.
            if !previous.ends_with(&text) {
                write!(f, ": {text}")?;
                previous = text;
            }
            source = error.source();
        }
        Ok(())
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

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
        f.write_str(&printable(&self.0))
    }
}

/// Returns text from a client, a file or a server as terminals and logs may show it. Escapes all characters that are not
/// printable, such as line breaks, escape codes and marks that change the direction of text, and leaves out what follows
/// 1,000 characters.
pub(crate) fn printable(text: &str) -> String {
    let (mut printed, mut characters) = (String::new(), text.chars());
    for character in characters.by_ref().take(1_000) {
        match character {
            '"' | '\'' | '\\' => printed.push(character),
            _ => printed.extend(character.escape_debug()),
        }
    }
    printed + if characters.next().is_some() { "…" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_printable_characters_are_written() {
        let text = "a \"b\" 'c' \\ é 日本\n\r\t\u{1b}[2J\u{7f}\u{9b}\u{202e}\u{2066}\u{200f}\u{2028}\u{feff}\0";
        let printed =
            "a \"b\" 'c' \\ é 日本\\n\\r\\t\\u{1b}[2J\\u{7f}\\u{9b}\\u{202e}\\u{2066}\\u{200f}\\u{2028}\\u{feff}\\0";
        assert_eq!(printable(text), printed);
        assert_eq!(printable(printed), printed, "texts that contain others are escaped once");
    }

    #[test]
    fn long_text_is_cut() {
        let text = "é".repeat(1_000);
        assert_eq!(printable(&text), text);
        assert_eq!(printable(&format!("{text}!")), format!("{text}…"));
    }
}
