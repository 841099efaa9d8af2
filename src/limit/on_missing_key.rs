//! The policy for requests without a key.

use crate::key::KeyError;

/// The policy of a limit for requests without a key. Set it with
/// [`Limit::on_missing_key`](crate::Limit::on_missing_key).
///
/// It does not apply to [ambiguous](crate::key::KeyError::Ambiguous) keys: those requests are always rejected.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum OnMissingKey {
    /// Rejects the request: with 400, or with 500 if the server provides the key for no request.
    #[default]
    Reject,
    /// Does not apply the limit to the request.
    Skip,
    /// Charges one bucket for all requests without a key: that of [`key::Shared`](crate::key::Shared).
    Share,
}

impl OnMissingKey {
    /// Returns whether a request whose key is missing for this reason is charged to the shared bucket.
    pub(crate) fn shares(self, error: KeyError) -> bool {
        self == Self::Share && !matches!(error, KeyError::NotApplicable | KeyError::Ambiguous)
    }
}
