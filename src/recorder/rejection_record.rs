//! A rejected request as recorders see it.

use std::sync::Arc;

use super::decision_record::{LimitOutcome, LimitRecord};
use crate::decision::Decision;
use crate::key::heads::RequestHead;
use crate::reason::Reason;

/// A request that a layer rejects, for a [`Recorder`](crate::Recorder).
#[derive(Clone, Copy, Debug)]
pub struct RejectionRecord<'a> {
    pub(crate) reason: Reason,
    /// The decision, if a limit denied the request.
    pub(crate) decision: Option<&'a Decision>,
    /// The limits of the limiter, in order.
    pub(crate) names: &'a [Arc<str>],
    pub(crate) near_percent: u32,
    pub(crate) head: RequestHead<'a>,
}

impl<'a> RejectionRecord<'a> {
    /// Returns the reason for the rejection.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.reason
    }

    /// Returns the head of the request.
    #[must_use]
    pub fn head(&self) -> &RequestHead<'a> {
        &self.head
    }

    /// Returns the limits that denied the request. Empty if it was rejected for another [reason](Self::reason).
    pub fn denied_by(&self) -> impl Iterator<Item = LimitRecord<'a>> {
        let Self { decision, names, near_percent, .. } = *self;
        let records = move |decision| LimitRecord::of_decision(decision, names, near_percent);
        decision.into_iter().flat_map(records).filter(|limit| limit.outcome() == LimitOutcome::Denied)
    }
}
