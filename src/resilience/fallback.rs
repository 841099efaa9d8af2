//! Applies the fallback policies to a request that the store did not decide.

use super::client::StoreClient;
use super::operation::Operation;
use crate::decision::Decision;
use crate::error::StoreError;
use crate::recorder::{Event, Fallback};
use crate::store::Charge;

impl StoreClient {
    /// Decides charges by the policies after the store failed to acquire them.
    ///
    /// # Errors
    ///
    /// Returns `error` when a policy rejects the request.
    pub(crate) fn fall_back_to_acquire(
        &self,
        error: StoreError,
        charges: &[Charge<'_>],
    ) -> Result<Decision, StoreError> {
        self.fall_back(Operation::Acquire, error, charges)
    }

    pub(super) fn fall_back(
        &self,
        operation: Operation,
        error: StoreError,
        charges: &[Charge<'_>],
    ) -> Result<Decision, StoreError> {
        let (to, decision) = self.local.fall_back(operation, charges);
        self.report_event(&Event::FellBack { to });
        match to {
            Fallback::Rejected => Err(error),
            Fallback::Allowed | Fallback::DecidedLocally { .. } => decision.ok_or(error),
        }
    }
}
