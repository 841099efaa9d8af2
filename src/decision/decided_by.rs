//! The part of a limiter that decided a request.

/// The part of a limiter that decided a request, and how. See [`OnStoreError`](crate::OnStoreError).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum DecidedBy {
    /// The store, without waiting, in this process.
    Memory,
    /// The store, for which the request waited, such as Redis.
    Store,
    /// A remembered denial of the store: its wait is not over, so the database was not called. See
    /// [`Store::decide_at_once`](crate::Store::decide_at_once).
    RememberedDenial,
    /// This process, by tokens that it has [leased](crate::Limit::leased) from the store: the store was not called.
    Lease,
    /// This process, by its share of the limits, because the store failed.
    Local,
    /// Nothing: the store failed and the policy allows the request without counting it, or no limit applies to it. The
    /// decision has no outcomes.
    Unlimited,
}

impl DecidedBy {
    /// Returns the name in metrics, such as `remembered_denial`. It is `fallback` if the store failed.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Store => "store",
            Self::RememberedDenial => "remembered_denial",
            Self::Lease => "lease",
            Self::Local | Self::Unlimited => "fallback",
        }
    }

    /// Returns whether the store decided, rather than the policies for its failure.
    pub(crate) const fn is_store(self) -> bool {
        matches!(self, Self::Memory | Self::Store | Self::RememberedDenial | Self::Lease)
    }
}
