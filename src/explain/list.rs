//! The lists that are checked before all limits.

use crate::list::ListAction;
use crate::when::{Condition, Description};

/// A list of requests, and whether it contains this one.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ListExplanation {
    /// The effect of the list.
    pub kind: ListKind,
    /// The condition in words, as in `address is in a list of 3 networks`.
    pub condition: String,
    /// Whether the request is on the list.
    pub matches: bool,
}

/// The effect of a list on the requests that match it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum ListKind {
    /// Rejects the requests. See [`always_reject`](crate::Builder::always_reject).
    Rejects(ListAction),
    /// Exempts the requests from all limits. See [`never_limit`](crate::Builder::never_limit).
    Exempts,
}

impl ListExplanation {
    pub(crate) fn new(kind: ListKind, condition: &dyn Condition, matches: bool) -> Self {
        Self { kind, condition: Description(condition).to_string(), matches }
    }
}
