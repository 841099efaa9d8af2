//! Decisions that allow a request.

use std::ops::Deref;

use super::{Decision, Receipt};

/// A [`Decision`] that allows the request. There is nothing to check, so it need not be used.
///
/// Returned by methods that return an error for a denial, such as [`Limiter::try_acquire`](crate::Limiter::try_acquire)
/// and [`Limiter::wait`](crate::Limiter::wait). It dereferences to the decision.
#[derive(Clone, Debug)]
pub struct AllowedDecision(pub(crate) Decision);

impl AllowedDecision {
    /// Returns the receipt of the request's charges. See [`Decision::into_receipt`].
    pub fn into_receipt(self) -> Receipt {
        self.0.into_receipt()
    }
}

impl Deref for AllowedDecision {
    type Target = Decision;

    fn deref(&self) -> &Decision {
        &self.0
    }
}
