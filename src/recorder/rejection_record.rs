//! A rejected request as recorders see it.

use std::sync::Arc;

use super::decision_record::{LimitOutcome, LimitRecord};
use crate::decision::Decision;
use crate::limit_spec::LimitSpec;
use crate::request::RequestHead;

/// A request that a layer rejects because a limit denied it, for a [`Recorder`](crate::Recorder).
#[derive(Clone, Copy, Debug)]
pub struct RejectionRecord<'a> {
    pub(crate) decision: &'a Decision,
    /// The limits of the limiter, in order.
    pub(crate) specs: &'a [Arc<LimitSpec>],
    pub(crate) near_percent: u32,
    pub(crate) head: RequestHead<'a>,
}

impl<'a> RejectionRecord<'a> {
    /// Returns the head of the request.
    #[must_use]
    pub fn head(&self) -> &RequestHead<'a> {
        &self.head
    }

    /// Returns the limits that denied the request.
    pub fn denied_by(&self) -> impl Iterator<Item = LimitRecord<'a>> {
        let limits = LimitRecord::of_decision(self.decision, |limit| self.specs.get(limit), self.near_percent);
        limits.filter(|limit| limit.outcome() == LimitOutcome::Denied)
    }
}
