//! Decisions about requests, and their parts.

mod allowed;
mod decided_by;
mod outcome;
mod receipt;
mod verdict;

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

pub use self::allowed::AllowedDecision;
pub use self::decided_by::DecidedBy;
pub use self::outcome::Outcome;
pub use self::receipt::Receipt;
pub use self::verdict::Verdict;
use crate::limit_spec::LimitSpec;
use crate::time::{Clock, SystemClock, Timestamp};

/// The decision on one request, by all limits that apply to it, at one instant.
#[derive(Clone, Debug)]
#[must_use = "it may deny the request: check `is_allowed`, or use a method that returns an error for a denial"]
pub struct Decision {
    at: Timestamp,
    by: DecidedBy,
    /// Whether the request was charged if it was allowed.
    takes: bool,
    outcomes: SmallVec<[Outcome; 1]>,
    /// The specs that were derived for this request: those of limits with another size or a metric detail.
    resized: Option<Box<[Arc<LimitSpec>]>>,
}

impl Decision {
    /// Creates the decision of a store that charges the request if it is allowed, with the outcome of each charge in
    /// order.
    pub fn new(at: Timestamp, outcomes: impl IntoIterator<Item = Outcome>) -> Self {
        Self::of(at, true, outcomes.into_iter().collect())
    }

    /// Creates the decision of a peek, which charges nothing and cannot be refunded.
    pub fn peeked(at: Timestamp, outcomes: impl IntoIterator<Item = Outcome>) -> Self {
        Self::of(at, false, outcomes.into_iter().collect())
    }

    /// Creates the decision of a store that charges the request if it is allowed and `takes`.
    pub(crate) fn of(at: Timestamp, takes: bool, outcomes: SmallVec<[Outcome; 1]>) -> Self {
        Self { at, by: DecidedBy::Store, takes, outcomes, resized: None }
    }

    /// Creates the decision about a request to which no limit applies, or about which the store did not decide.
    pub(crate) fn uncounted() -> Self {
        Self { by: DecidedBy::Nobody, ..Self::peeked(SystemClock::new().now(), []) }
    }

    /// Marks a decision that this process made because the store failed.
    pub(crate) fn locally(self) -> Self {
        Self { by: DecidedBy::Local, ..self }
    }

    /// Returns a copy that cannot be refunded.
    pub(crate) fn without_charges(&self) -> Self {
        Self { takes: false, ..self.clone() }
    }

    /// Keeps the outcome of one limit only.
    pub(crate) fn only(mut self, limit: usize) -> Self {
        self.outcomes.retain(|outcome| outcome.limit() == limit);
        self
    }

    /// Adds limits that had another size for this request, such as that of an [override](crate::store::OverrideStore).
    /// Headers report this size, and refunds use it. They precede limits that were added before.
    pub fn with_resized(self, resized: &[Arc<LimitSpec>]) -> Self {
        if resized.is_empty() {
            return self;
        }
        Self { resized: Some([self.resized(), resized].concat().into()), ..self }
    }

    /// Returns the part of the limiter that decided.
    #[must_use]
    pub fn decided_by(&self) -> DecidedBy {
        self.by
    }

    /// Returns the instant of the decision: on the clock of the store, or on the system clock if no limit applied or
    /// this process decided because the store failed.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// Returns the combined verdict of all limits that are enforced.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let enforced = self.outcomes.iter().filter(|outcome| outcome.is_enforced());
        enforced.map(Outcome::verdict).reduce(Verdict::and).unwrap_or(Verdict::NOW)
    }

    /// Returns whether every limit that is enforced had capacity.
    #[must_use]
    #[inline]
    pub fn is_allowed(&self) -> bool {
        !self.outcomes.iter().any(Outcome::denies)
    }

    /// Returns whether the request is allowed without a delay.
    #[inline]
    pub(crate) fn is_allowed_at_once(&self) -> bool {
        self.outcomes.iter().all(|outcome| !outcome.is_enforced() || outcome.is_allowed_at_once())
    }

    /// Returns whether the request was denied because one of its keys is locked out by a [`Penalty`](crate::Penalty),
    /// including the request that began the lockout.
    #[must_use]
    pub fn is_penalty(&self) -> bool {
        self.outcomes.iter().any(|outcome| outcome.denies() && outcome.is_penalty())
    }

    /// Returns whether the request was charged.
    pub(crate) fn is_charged(&self) -> bool {
        self.takes && self.is_allowed()
    }

    /// Returns how long an allowed request waits before it proceeds: the longest delay of all limits. Zero for a denied
    /// request.
    #[must_use]
    pub fn delay(&self) -> Duration {
        match self.verdict() {
            Verdict::Allow { delay } => delay,
            Verdict::Deny { .. } => Duration::ZERO,
        }
    }

    /// Returns the shortest wait after which a denied request would be allowed if no other request arrived: the longest
    /// of the limits that deny it. `None` if the request was allowed, or if waiting cannot help.
    #[must_use]
    #[inline]
    pub fn retry_after(&self) -> Option<Duration> {
        if self.is_allowed() {
            return None;
        }
        match self.verdict() {
            Verdict::Allow { .. } => None,
            Verdict::Deny { retry_after } => retry_after,
        }
    }

    /// Returns the outcome of each limit, in the order of the limits.
    #[must_use]
    #[inline]
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    pub(crate) fn outcomes_mut(&mut self) -> &mut [Outcome] {
        &mut self.outcomes
    }

    /// Returns the limits that had another size for this request.
    pub(crate) fn resized(&self) -> &[Arc<LimitSpec>] {
        self.resized.as_deref().unwrap_or_default()
    }

    /// Returns the receipt of the request's charges, which is empty if it was not charged.
    pub fn into_receipt(mut self) -> Receipt {
        let is_charged = self.is_charged();
        self.outcomes.retain(|outcome| is_charged && outcome.cost > 0 && outcome.is_allowed());
        Receipt { by: self.by, charged: self.outcomes, resized: self.resized }
    }
}
