//! What was decided about one request.

mod outcome;
mod outcomes;
mod receipt;
mod verdict;

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

pub use self::outcome::Outcome;
pub(crate) use self::outcome::Subject;
use self::outcomes::Outcomes;
pub(crate) use self::outcomes::Several;
pub use self::receipt::Receipt;
pub use self::verdict::Verdict;
use crate::algorithm::Availability;
use crate::limit_spec::LimitSpec;
use crate::time::Timestamp;

/// What was decided about one request by all the limits that apply to it, at one instant.
#[derive(Debug)]
#[must_use = "a denied request is `Ok` too: ask `is_allowed`"]
pub struct Decision {
    at: Timestamp,
    task: Task,
    by: DecidedBy,
    outcomes: Outcomes,
}

/// What was asked for. As wide as a word, for the reason that [`Outcome`] tells.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
enum Task {
    /// To know.
    Tell,
    /// To take, if there is room.
    Take,
}

impl Task {
    #[inline]
    fn of(asked: bool) -> Self {
        if asked { Self::Take } else { Self::Tell }
    }
}

/// Who decided about a request: see [`OnStoreError`](crate::OnStoreError).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
// As wide as a word, too.
#[repr(u64)]
pub enum DecidedBy {
    /// The store.
    Store,
    /// This process by itself, with its share of the limits, as the store could not.
    Local,
    /// Nobody: the store could not, and the request goes on uncounted; or no limit applies to it. There
    /// are no outcomes.
    Nobody,
}

impl Decision {
    /// A decision to which the outcomes of so many `limits` are to be added.
    #[inline]
    pub(crate) fn new(at: Timestamp, asked: bool, limits: usize) -> Self {
        Self { at, task: Task::of(asked), by: DecidedBy::Store, outcomes: Outcomes::of(limits) }
    }

    /// A decision that one limit makes alone.
    #[inline]
    pub(crate) fn of(at: Timestamp, asked: bool, outcome: Outcome) -> Self {
        Self { at, task: Task::of(asked), by: DecidedBy::Store, outcomes: Outcomes::One(outcome) }
    }

    /// A decision that several limits make together, to take.
    #[inline]
    pub(crate) fn of_several(at: Timestamp, outcomes: Several) -> Self {
        Self { at, task: Task::Take, by: DecidedBy::Store, outcomes: Outcomes::Several(outcomes) }
    }

    #[inline]
    pub(crate) fn push(&mut self, outcome: Outcome) {
        self.outcomes.push(outcome);
    }

    /// Enforces quota mode: if no quota has room, only the one that will have room first denies, so that
    /// [`retry_after`](Self::retry_after) is exact. `is_quota` says of each outcome whether it is of such a limit.
    pub(crate) fn enforce_quotas(&mut self, is_quota: impl Iterator<Item = bool>) {
        let outcomes = self.outcomes.as_mut_slice().iter_mut().zip(is_quota);
        let mut quotas: SmallVec<[&mut Outcome; 4]> =
            outcomes.filter_map(|(outcome, is_quota)| is_quota.then_some(outcome)).collect();
        let wait = |outcome: &Outcome| match outcome.availability() {
            Availability::Now { .. } => None,
            Availability::After(wait) => Some(wait),
            Availability::Never => Some(u128::MAX),
        };
        let Some(first) = quotas.iter().map(|outcome| wait(outcome)).min() else { return };
        let mut denies = false;
        for outcome in &mut quotas {
            let counts = wait(outcome) == first && !denies;
            denies |= counts && first.is_some();
            outcome.set_enforced(counts);
        }
    }

    /// Lets a request go on that nobody has decided about.
    pub(crate) fn by_nobody(at: Timestamp) -> Self {
        Self { at, task: Task::Tell, by: DecidedBy::Nobody, outcomes: Outcomes::None }
    }

    /// The same, decided in the store's place.
    pub(crate) fn locally(self) -> Self {
        Self { by: DecidedBy::Local, ..self }
    }

    /// The same, to tell: nothing can be given back of it.
    pub(crate) fn told(&self) -> Self {
        Self { task: Task::Tell, outcomes: self.outcomes.clone(), ..*self }
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

    /// The verdict of all limits together that are enforced.
    #[must_use]
    #[inline]
    pub fn verdict(&self) -> Verdict {
        // Most have one limit.
        if let Some(outcome) = self.outcomes.only()
            && outcome.is_enforced()
        {
            return outcome.verdict();
        }
        let enforced = self.outcomes().iter().filter(|outcome| outcome.is_enforced());
        enforced.map(Outcome::verdict).fold(Verdict::NOW, Verdict::and)
    }

    /// Whether every limit had room that is enforced.
    #[must_use]
    #[inline]
    pub fn is_allowed(&self) -> bool {
        match self.outcomes.only() {
            Some(outcome) => !outcome.denies(),
            None => !self.outcomes().iter().any(Outcome::denies),
        }
    }

    /// Whether it was denied as one of its keys is under a [`Penalty`](crate::Penalty), or is so from now on.
    #[must_use]
    pub fn is_penalty(&self) -> bool {
        self.outcomes().iter().any(|outcome| outcome.denies() && outcome.is_penalty())
    }

    /// Whether it is taken if all limits allow it.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        matches!(self.task, Task::Take)
    }

    /// Whether it was not only decided, but also taken.
    pub(crate) fn is_charged(&self) -> bool {
        self.is_asked() && self.is_allowed()
    }

    /// How long an allowed request waits before it goes on: the longest delay of all limits.
    /// Zero where it was denied.
    #[must_use]
    #[inline]
    pub fn delay(&self) -> Duration {
        match self.verdict() {
            Verdict::Allow { delay } => delay,
            Verdict::Deny { .. } => Duration::ZERO,
        }
    }

    /// The shortest wait after which the same request would be allowed, if nothing else comes:
    /// the longest of the limits that denied it. `None` where it was allowed, and where no wait
    /// can help.
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

    /// What each limit says, in the order in which the limits were given.
    #[must_use]
    #[inline]
    pub fn outcomes(&self) -> &[Outcome] {
        self.outcomes.as_slice()
    }

    /// What each limit says, to note what was given back.
    pub(crate) fn outcomes_mut(&mut self) -> &mut [Outcome] {
        self.outcomes.as_mut_slice()
    }

    /// Notes which limits were of another size for this request, if any.
    pub(crate) fn overridden(self, overridden: &[Arc<LimitSpec>]) -> Self {
        if overridden.is_empty() {
            return self;
        }
        Self { outcomes: self.outcomes.overridden(overridden), ..self }
    }

    /// The spec of all limits that were of another size for this request.
    pub(crate) fn all_overridden(&self) -> &[Arc<LimitSpec>] {
        self.outcomes.all_overridden()
    }

    /// What proves that this request was charged, for a refund. Nothing, where it was not.
    pub fn into_receipt(self) -> Receipt {
        let is_charged = self.is_charged();
        let mut charged = self.outcomes;
        if is_charged {
            charged.retain(|outcome| outcome.cost > 0 && outcome.is_allowed());
        } else {
            charged = Outcomes::None;
        }
        Receipt { by: self.by, charged }
    }
}
