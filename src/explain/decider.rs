//! The part of a limiter that would decide a request.

use std::fmt;

use crate::recorder::Fallback;
use crate::resilience::PreviewSource;

/// The part of a limiter that would decide a request.
#[derive(Clone, Debug, Eq, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Decider {
    /// The store.
    #[non_exhaustive]
    Store {
        /// Its [name](crate::Store::name), such as `memory` or `10.0.0.5:6379`.
        name: Option<String>,
    },
    /// This process, which remembers a denial of the store until its wait is over. See
    /// [`Store::remembered`](crate::Store::remembered).
    RememberedDenial,
    /// The local store of this process, by its share of the limits. See
    /// [`OnStoreError::DecideLocally`](crate::OnStoreError::DecideLocally).
    #[non_exhaustive]
    LocalShare {
        /// The reason why the store does not decide.
        error: String,
    },
    /// The policy that allows requests uncounted. See [`OnStoreError::Allow`](crate::OnStoreError::Allow).
    #[non_exhaustive]
    AllowPolicy {
        /// The reason why the store does not decide.
        error: String,
    },
    /// The policy that rejects requests. See [`OnStoreError::Reject`](crate::OnStoreError::Reject).
    #[non_exhaustive]
    RejectPolicy {
        /// The reason why the store does not decide.
        error: String,
    },
    /// A list, or the policy for missing keys, before any limit is decided.
    Head,
    /// Nothing: no limit applies.
    Nobody,
}

impl Decider {
    pub(crate) fn new(source: &PreviewSource, store: Option<String>) -> Self {
        match source {
            PreviewSource::Store => Self::Store { name: store },
            PreviewSource::Remembered => Self::RememberedDenial,
            PreviewSource::Policies(fallback, error) => {
                let error = error.to_string();
                match fallback {
                    Fallback::DecidedLocally { .. } => Self::LocalShare { error },
                    Fallback::Allowed => Self::AllowPolicy { error },
                    Fallback::Rejected => Self::RejectPolicy { error },
                }
            }
        }
    }
}

impl fmt::Display for Decider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store { name: Some(name) } => write!(f, "decided by the store ({name})"),
            Self::Store { name: None } => f.write_str("decided by the store"),
            Self::RememberedDenial => f.write_str("decided by a remembered denial"),
            Self::LocalShare { error } => write!(f, "decided by the local share of the limits: {error}"),
            Self::AllowPolicy { error } => write!(f, "not counted: {error}"),
            Self::RejectPolicy { error } => write!(f, "not decided: {error}"),
            Self::Head => f.write_str("without a decision of the limits"),
            Self::Nobody => f.write_str("no limit applies"),
        }
    }
}
