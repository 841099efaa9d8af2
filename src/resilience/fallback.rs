//! Applies the fallback policies to a request that the store did not decide.

use std::sync::Arc;

use smallvec::SmallVec;

use super::client::StoreClient;
use super::operation::Operation;
use crate::decision::Decision;
use crate::error::StoreError;
use crate::limit_spec;
use crate::observe::{Event, Fallback};
use crate::store::{Charge, LimitSpec};

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
        let known = |charge: &Charge<'_>| {
            let last = charge.spec.is_overridable().then(|| self.store.last_override(charge.spec, charge.key))??;
            charge.spec.overridden(last.size()).map(Arc::new)
        };
        let overridden: SmallVec<[Arc<LimitSpec>; 1]> = charges.iter().filter_map(known).collect();
        let size = |charge: &Charge<'_>| limit_spec::find(charge.spec.index().into(), &overridden);
        let sized = charges.iter().map(|&charge| (size(&charge).unwrap_or(charge.spec), charge));
        let charges: SmallVec<[Charge<'_>; 4]> = sized.map(|(spec, charge)| Charge { spec, ..charge }).collect();
        let (to, decision) = self.local.fall_back(operation, &charges);
        let decision = decision.map(|decision| decision.overridden(&overridden));
        self.report_event(&Event::FellBack { to });
        match to {
            Fallback::Rejected => Err(error),
            Fallback::Allowed | Fallback::DecidedLocally { .. } => decision.ok_or(error),
        }
    }
}
