//! What was decided about one request.

use std::time::Duration;

use smallvec::SmallVec;

use crate::hash::KeyHash;
use crate::record::Record;
use crate::time::Timestamp;

/// Whether a limit has room for a cost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// There is room. The request goes on after `delay`, which only a
    /// [`LeakyBucketQueue`](crate::LeakyBucketQueue) makes longer than zero.
    Allow {
        /// How long the request waits before it goes on.
        delay: Duration,
    },
    /// There is no room.
    Deny {
        /// The shortest wait after which the same cost would have room, if nothing else comes:
        /// exact to the microsecond. `None` where no wait can help, as for a cost over the
        /// limit's capacity.
        retry_after: Option<Duration>,
    },
}

impl Verdict {
    /// There is room, at once.
    pub const NOW: Self = Self::Allow { delay: Duration::ZERO };

    /// What this and another limit's verdict on one request say together: room where both have
    /// room, after the longer delay; or else the longer wait of those that deny.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Allow { delay: one }, Self::Allow { delay: other }) => Self::Allow { delay: one.max(other) },
            (Self::Deny { retry_after: one }, Self::Deny { retry_after: other }) => {
                Self::Deny { retry_after: one.zip(other).map(|(one, other)| one.max(other)) }
            }
            (denied @ Self::Deny { .. }, _) | (_, denied @ Self::Deny { .. }) => denied,
        }
    }

    /// There is room.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow { .. })
    }
}

/// What is left of a limit for one key, at one instant.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Level {
    pub(crate) remaining: u64,
    pub(crate) more_after: Option<Duration>,
    pub(crate) reset_after: Duration,
}

/// What one limit says of a request.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub(crate) limit: u16,
    /// Which limit it is, on whatever limiter: part of its hash.
    pub(crate) identity: u32,
    pub(crate) key: KeyHash,
    pub(crate) cost: u64,
    pub(crate) mark: Record,
    pub(crate) verdict: Verdict,
    pub(crate) level: Level,
}

impl Outcome {
    /// Which limit: its position among the limits that were given to the limiter.
    #[must_use]
    pub fn limit(&self) -> usize {
        usize::from(self.limit)
    }

    /// What the request was to take from this limit, in tokens.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Whether this limit alone had room.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// The largest cost, in tokens, that this limit would still allow at this instant, after the
    /// request was decided.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.level.remaining
    }

    /// The shortest wait after which [`remaining`](Self::remaining) is larger, if nothing more
    /// comes. `None` where it won't grow.
    #[must_use]
    pub fn more_after(&self) -> Option<Duration> {
        self.level.more_after
    }

    /// How long until it is as if this limit had never been used, if nothing more comes.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        self.level.reset_after
    }
}

/// What was decided about one request by all the limits that apply to it, at one instant.
#[derive(Debug)]
#[must_use = "a denied request is `Ok` too: ask `is_allowed`"]
pub struct Decision {
    at: Timestamp,
    verdict: Verdict,
    charged: bool,
    by: DecidedBy,
    outcomes: Outcomes,
}

/// Who decided about a request: see [`OnStoreError`](crate::OnStoreError).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum DecidedBy {
    /// The store.
    Store,
    /// This process by itself, with its share of the limits, as the store could not.
    Local,
    /// Nobody: the store could not, and the request goes on uncounted; or no limit applies to it. There
    /// are no outcomes.
    Nobody,
}

/// Two limits on one request are usual; more go to the heap.
pub(crate) type Outcomes = SmallVec<[Outcome; 2]>;

impl Decision {
    /// Puts the outcomes of all limits together.
    #[inline]
    pub(crate) fn new(at: Timestamp, verdict: Verdict, charged: bool, outcomes: Outcomes) -> Self {
        Self { at, verdict, charged, by: DecidedBy::Store, outcomes }
    }

    /// Lets a request go on that nobody has decided about.
    pub(crate) fn by_nobody(at: Timestamp) -> Self {
        Self { at, verdict: Verdict::NOW, charged: false, by: DecidedBy::Nobody, outcomes: Outcomes::new() }
    }

    /// The same, decided in the store's place.
    pub(crate) fn locally(self) -> Self {
        Self { by: DecidedBy::Local, ..self }
    }

    /// The same, to tell: nothing can be given back of it.
    pub(crate) fn told(&self) -> Self {
        Self { charged: false, outcomes: self.outcomes.clone(), ..*self }
    }

    /// The same, as far as one limit is concerned.
    pub(crate) fn only(mut self, limit: usize) -> Self {
        self.outcomes.retain(|outcome| outcome.limit() == limit);
        self
    }

    /// Who decided.
    #[must_use]
    pub fn decided_by(&self) -> DecidedBy {
        self.by
    }

    /// The instant at which it was decided, on the clock of whoever did.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// The verdict of all limits together.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Whether every limit had room.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.verdict.is_allowed()
    }

    /// Whether it was not only decided, but also taken.
    pub(crate) fn is_charged(&self) -> bool {
        self.charged
    }

    /// How long an allowed request waits before it goes on: the longest delay of all limits.
    /// Zero where it was denied.
    #[must_use]
    pub fn delay(&self) -> Duration {
        match self.verdict {
            Verdict::Allow { delay } => delay,
            Verdict::Deny { .. } => Duration::ZERO,
        }
    }

    /// The shortest wait after which the same request would be allowed, if nothing else comes:
    /// the longest of the limits that denied it. `None` where it was allowed, and where no wait
    /// can help.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.verdict {
            Verdict::Allow { .. } => None,
            Verdict::Deny { retry_after } => retry_after,
        }
    }

    /// What each limit says, in the order in which the limits were given.
    #[must_use]
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    /// What each limit says, to note what was given back.
    pub(crate) fn outcomes_mut(&mut self) -> &mut [Outcome] {
        &mut self.outcomes
    }

    /// What each limit says, to be put together with what others say.
    #[cfg(feature = "redis")]
    pub(crate) fn into_outcomes(self) -> Outcomes {
        self.outcomes
    }

    /// What proves that this request was charged, for a refund. Nothing, where it was not.
    pub fn into_receipt(self) -> Receipt {
        let mut charged = self.outcomes;
        if self.charged {
            charged.retain(|outcome| outcome.cost > 0);
        } else {
            charged.clear();
        }
        Receipt { by: self.by, charged }
    }
}

/// Proof of what a request was charged, and when: what can be given back, exactly and once.
///
/// A refund gives back what of the charge still counts, and nothing else: it never banks credit,
/// never moves a reset, never touches a later window.
#[derive(Debug)]
#[must_use = "a receipt that is dropped gives nothing back: pass it to `refund`"]
pub struct Receipt {
    /// Who was paid.
    pub(crate) by: DecidedBy,
    pub(crate) charged: Outcomes,
}

impl Receipt {
    /// Whether there is nothing to give back.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.charged.is_empty()
    }
}
