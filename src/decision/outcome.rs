//! The outcome of one limit.

use std::time::Duration;

use super::verdict::Verdict;
use crate::algorithm::{Algorithm, Availability, ChargeMark, CompactState, Evaluation, Lockout, QuotaSnapshot};
use crate::charge::Charge;
use crate::hash::KeyHash;

/// The result of one limit for a request.
#[derive(Clone, Debug)]
pub struct Outcome {
    limit: u16,
    /// The limit, across the limiters that share it.
    pub(crate) identity: u64,
    pub(crate) key: KeyHash,
    pub(crate) cost: u64,
    pub(crate) mark: ChargeMark,
    availability: Availability,
    standing: Standing,
    is_enforced: bool,
    is_penalty: bool,
    lockout: Option<Lockout>,
}

/// The remaining tokens of a key. Few outcomes are asked for them, so they are computed when they are read.
#[derive(Clone, Copy, Debug)]
enum Standing {
    /// By the algorithm, from the state that is the outcome's mark, in which `used` tokens are in use at `now`.
    State {
        algorithm: Algorithm,
        used: u64,
        now: u64,
    },
    Snapshot(QuotaSnapshot),
}

impl Outcome {
    /// Creates the outcome of a charge.
    ///
    /// - `verdict`: whether the limit had capacity, whether or not it is enforced, and how long the request waits.
    /// - `remaining`: the largest cost, in tokens, that the limit would still allow at the same instant, after the
    ///   decision and without overage.
    /// - `more_after`: the shortest wait after which `remaining` is larger if no other request arrives, or `None` if it
    ///   never is.
    /// - `reset_after`: the time until the key is as if it had never been used if no other request arrives.
    #[must_use]
    pub fn new(
        charge: &Charge<'_>,
        verdict: Verdict,
        remaining: u64,
        more_after: Option<Duration>,
        reset_after: Duration,
    ) -> Self {
        let availability = match verdict {
            Verdict::Allow { delay } => Availability::Now { delay: micros(delay), overage: false },
            Verdict::Deny { retry_after: Some(after) } => Availability::After(micros(after)),
            Verdict::Deny { retry_after: None } => Availability::Never,
        };
        let (more_after, reset_after) = (more_after.map(micros), micros(reset_after));
        Self::evaluated(charge, Evaluation { availability, used: 0, state: CompactState::UNUSED }, 0)
            .with_snapshot(QuotaSnapshot { remaining, more_after, reset_after })
    }

    /// Sets the mark by which the store recognizes the charge when it is refunded: see
    /// [`Refund::mark`](crate::store::Refund::mark).
    #[must_use]
    pub fn with_mark(self, mark: ChargeMark) -> Self {
        let snapshot = match self.standing {
            Standing::State { algorithm, now, .. } => algorithm.snapshot(&self.mark.0, now),
            Standing::Snapshot(snapshot) => snapshot,
        };
        Self { mark, standing: Standing::Snapshot(snapshot), ..self }
    }

    /// Marks that there was capacity in the limit's overage only. A denial uses none.
    #[must_use]
    pub fn with_overage(self) -> Self {
        let availability = match self.availability {
            Availability::Now { delay, .. } => Availability::Now { delay, overage: true },
            denied => denied,
        };
        Self { availability, ..self }
    }

    /// Marks that the key is locked out by the limit's [`Penalty`](crate::Penalty).
    #[must_use]
    pub fn with_penalty(self) -> Self {
        Self { is_penalty: true, ..self }
    }

    /// Marks that this request began a lockout of the key: the number of consecutive lockouts, from 1, and the length of
    /// this one. It is reported as [`Event::PenaltyBegan`](crate::Event::PenaltyBegan).
    #[must_use]
    pub fn with_new_lockout(self, level: u32, span: Duration) -> Self {
        self.locked_out(Some(Lockout { level: level.into(), span: micros(span) }))
    }

    /// Sets whether the limit contributes to the decision, as [`is_enforced`](Self::is_enforced) describes. Defaults to
    /// [`LimitSpec::is_enforced`](crate::store::LimitSpec::is_enforced). Stores set it for limits in quota mode.
    #[must_use]
    pub fn with_enforced(self, is_enforced: bool) -> Self {
        Self { is_enforced, ..self }
    }

    /// Creates the outcome of a charge from the evaluation of its limit at the instant `now`.
    #[inline]
    pub(crate) fn evaluated(charge: &Charge<'_>, evaluation: Evaluation, now: u64) -> Self {
        let Evaluation { availability, used, state } = evaluation;
        Self {
            limit: charge.spec.index(),
            identity: charge.spec.identity(),
            key: charge.key,
            cost: charge.cost,
            mark: ChargeMark(state),
            availability,
            standing: Standing::State { algorithm: *charge.spec.algorithm(), used, now },
            is_enforced: charge.spec.is_enforced(),
            is_penalty: false,
            lockout: None,
        }
    }

    /// Sets the reported tokens and spans, in place of those computed from the state.
    pub(crate) fn with_snapshot(self, snapshot: QuotaSnapshot) -> Self {
        Self { standing: Standing::Snapshot(snapshot), ..self }
    }

    /// Marks that the key is locked out, and the lockout if this request began it.
    pub(crate) fn locked_out(self, begun: Option<Lockout>) -> Self {
        Self { is_penalty: true, lockout: begun, ..self }
    }

    /// Sets whether the limit counts for the decision.
    pub(crate) fn set_enforced(&mut self, is_enforced: bool) {
        self.is_enforced = is_enforced;
    }

    /// Returns the lockout that the request began, if any.
    pub(crate) fn lockout(&self) -> Option<Lockout> {
        self.lockout
    }

    /// Returns whether the limit alone had capacity.
    #[inline]
    pub(crate) fn is_allowed(&self) -> bool {
        self.availability.is_now()
    }

    /// Returns whether the limit alone had capacity, and delays nothing.
    #[inline]
    pub(crate) fn is_allowed_at_once(&self) -> bool {
        matches!(self.availability, Availability::Now { delay: 0, .. })
    }

    /// Returns whether the limit denies the request.
    #[inline]
    pub(crate) fn denies(&self) -> bool {
        self.is_enforced && !self.is_allowed()
    }

    /// Returns the position of the limit among those of the limiter.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit.into()
    }

    /// Returns the cost of the request under this limit, in tokens.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Returns the mark of the charge, as the store set it by [`with_mark`](Self::with_mark).
    #[must_use]
    pub fn mark(&self) -> ChargeMark {
        self.mark
    }

    /// Returns whether this limit alone had capacity. A limit that is [not enforced](Self::is_enforced) has a
    /// verdict, too.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.availability.into()
    }

    /// Returns whether the limit contributes to the [decision](crate::Decision::verdict). A limit in [shadow
    /// mode](crate::Limit::shadow) does not. Of limits in [quota mode](crate::Limit::quota_mode), those with capacity
    /// do. If none has capacity, only the first that will have capacity does.
    #[must_use]
    pub fn is_enforced(&self) -> bool {
        self.is_enforced
    }

    /// Returns whether the key is locked out by a [`Penalty`](crate::Penalty) of the limit, including the request that
    /// began the lockout. A cost of 0 is allowed nevertheless.
    #[must_use]
    pub fn is_penalty(&self) -> bool {
        self.is_penalty
    }

    /// Returns whether there was capacity in the limit's overage only: see [`Limit::soft`](crate::Limit::soft).
    #[must_use]
    pub fn uses_overage(&self) -> bool {
        matches!(self.availability, Availability::Now { overage: true, .. })
    }

    /// Returns the largest cost, in tokens, that this limit would still allow at this instant, after the decision.
    /// Overage does not count.
    #[must_use]
    #[inline]
    pub fn remaining(&self) -> u64 {
        match &self.standing {
            Standing::State { algorithm, used, .. } => algorithm.remaining(*used),
            Standing::Snapshot(snapshot) => snapshot.remaining,
        }
    }

    /// Returns the shortest wait after which [`remaining`](Self::remaining) is larger, if no other request arrives.
    /// `None` if it never is.
    #[must_use]
    #[inline]
    pub fn more_after(&self) -> Option<Duration> {
        let micros = match &self.standing {
            Standing::State { algorithm, used, now } => algorithm.more_after(&self.mark.0, *now, *used),
            Standing::Snapshot(snapshot) => snapshot.more_after,
        };
        micros.map(Duration::from_micros)
    }

    /// Returns the time until the key is as if it had never been used, if no other request arrives.
    #[must_use]
    #[inline]
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(match &self.standing {
            Standing::State { algorithm, now, .. } => algorithm.reset_after(&self.mark.0, *now),
            Standing::Snapshot(snapshot) => snapshot.reset_after,
        })
    }
}

/// Returns a span in whole microseconds, rounded up, and at most `u64::MAX`.
fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}
