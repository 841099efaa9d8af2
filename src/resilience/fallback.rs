//! Applies the fallback policies to a request that the store did not decide.

use super::client::StoreClient;
use super::operation::Operation;
use crate::decision::Decision;
use crate::error::StoreError;
use crate::recorder::{Event, Fallback};
use crate::store::{Charge, Resized};

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

    /// Decides by the policies, with the overrides that the store last knew.
    pub(super) fn fall_back(
        &self,
        operation: Operation,
        error: StoreError,
        charges: &[Charge<'_>],
    ) -> Result<Decision, StoreError> {
        let (to, decision) = self.decide_by_policies(operation, charges);
        self.report_event(&Event::FellBack { to });
        match to {
            Fallback::Rejected => Err(error),
            Fallback::Allowed | Fallback::DecidedLocally { .. } => decision.ok_or(error),
        }
    }

    /// Decides by the policies, without a report. The decision is `None` if the request is rejected.
    pub(super) fn decide_by_policies(
        &self,
        operation: Operation,
        charges: &[Charge<'_>],
    ) -> (Fallback, Option<Decision>) {
        let resized =
            Resized::new(charges, |charge| Some(self.store.overrides()?.last_known(charge.spec, charge.key)?.size()));
        let (to, decision) = self.local.fall_back(operation, &resized.charges(charges));
        (to, decision.map(|decision| decision.with_resized(resized.specs())))
    }
}
