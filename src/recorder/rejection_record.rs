//! A rejected request as recorders see it, and the reason.

use std::sync::Arc;
use std::time::Duration;

use super::decision_record::{LimitOutcome, LimitRecord};
use crate::decision::Decision;
use crate::key::KeyError;
use crate::key::heads::RequestHead;
use crate::select::ListAction;

/// The reason why a request is rejected.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Reason {
    /// A limit denies the request.
    Limited {
        /// The shortest wait after which the request would be allowed if no other request came. `None` if no wait can
        /// help.
        retry_after: Option<Duration>,
    },
    /// The request lacks the key of a limit.
    MissingKey(KeyError),
    /// The request matches a list of requests that are [always rejected](crate::Builder::always_reject).
    Listed(ListAction),
    /// The store failed, and the policy is to reject.
    StoreFailed,
}

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
