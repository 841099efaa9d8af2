//! The part of the limiter that made a decision.

/// The part of the limiter that decided a request. See [`OnStoreError`](crate::OnStoreError).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum DecidedBy {
    /// The store.
    Store,
    /// This process, by its share of the limits, because the store failed.
    Local,
    /// Nobody: the store failed and the policy allows the request without counting it, or no limit applies to it. The
    /// decision has no outcomes.
    Nobody,
}
