//! One limit of a request, for one key: the question that a store is asked, and its verdict.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::{Algorithm, CompactState, Lockout, NEVER, Size};
use crate::key::hash::{KeyHash, KeyHasher};

/// One limit of a request, for one key: the question that a [`Store`](crate::Store) is asked, and its answer.
///
/// A limiter creates the cells of a request. The store fills in their answers, and [`Decision::outcomes`] returns them.
/// A limit with a [`Penalty`](crate::Penalty) has a second cell directly behind its own, which counts strikes.
///
/// [`Decision::outcomes`]: crate::Decision::outcomes
#[derive(Clone, Debug)]
pub struct Cell {
    // The fields that are not `Copy` come first: a clone then copies all others at once, which saves 25 instructions
    // ("token bucket" in `.ci/instructions`).
    pub(crate) texts: Option<Arc<Texts>>,
    /// The values to report in place of those that follow from the state.
    pub(super) reported: Option<Box<Report>>,

    pub(crate) key: KeyHash,
    /// The hash of the limit's identity: its algorithm, its period and its name. It separates the states of its keys
    /// from those of other limits.
    pub(crate) identity: KeyHash,
    /// The [number](KeyHasher::store) of the store.
    pub(crate) store: u32,
    pub(crate) cost: u64,
    /// The limit with its overage, at the size that applies to the key.
    pub(crate) algorithm: Algorithm,
    /// The size of the limit without an override.
    pub(super) own_size: Size,
    pub(crate) overage_percent: u32,
    pub(crate) limit: u16,
    pub(crate) veto: Veto,
    pub(crate) is_overridable: bool,
    /// Whether a denial by the limit is a strike, in the cell of a penalty.
    pub(crate) makes_strikes: bool,

    /// The time until the cost is available: 0 if it is, or [`NEVER`], or [`UNANSWERED`]. All spans are in µs.
    pub(crate) wait: u64,
    /// The time for which an allowed request waits before it proceeds.
    pub(super) delay: u64,
    /// Whether an allowed request takes a part of its cost from the overage.
    pub(super) uses_overage: bool,
    /// The instant of the decision, in µs.
    pub(super) now: u64,
    /// The tokens in use after the decision.
    pub(crate) used: u64,
    /// The [summary](crate::algorithm::KeyState::summary) of the state after the decision.
    pub(crate) mark: CompactState,
    pub(super) is_enforced: bool,
}

/// The wait of a cell that no store has answered. It denies the request, in case that it is not checked.
pub(crate) const UNANSWERED: u64 = NEVER - 1;

/// The texts that some cells have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Texts {
    /// The name of the limit and its rule, for stores with [readable keys](crate::Store::has_readable_keys).
    pub(crate) name: Option<Arc<str>>,
    /// The detail of the request in metrics.
    pub(crate) detail: Option<String>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Report {
    pub(super) remaining: u64,
    pub(super) more_after: Option<u64>,
    pub(super) reset_after: u64,
    pub(super) is_locked_out: bool,
    pub(super) lockout: Option<Lockout>,
    /// The fingerprint of the share that answered.
    pub(super) share: Option<u128>,
}

/// The cells of a request.
pub(crate) type Cells = SmallVec<[Cell; 1]>;

/// The influence of a limit on the decision about a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Veto {
    /// It denies requests for which it has no capacity.
    Enforced,
    /// It denies a request if none of the request's limits in [quota mode](crate::Limit::quota_mode) has capacity.
    Quota,
    /// It denies nothing: see [`Limit::shadow`](crate::Limit::shadow).
    Shadow,
}

/// Whether a limit has capacity for a cost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// The limit has capacity.
    Allow {
        /// The time for which the request waits before it proceeds. Only a
        /// [`LeakyBucketQueue`](crate::LeakyBucketQueue) delays requests.
        delay: Duration,
    },
    /// The limit has no capacity.
    Deny {
        /// The shortest wait after which the same cost would be allowed if no other request arrived, exact to the
        /// microsecond. `None` if waiting cannot help, as for a cost beyond the limit's capacity.
        retry_after: Option<Duration>,
    },
}

impl Verdict {
    /// Capacity without a delay.
    pub const NOW: Self = Self::Allow { delay: Duration::ZERO };

    /// Creates the verdict of a limit that has capacity after `wait` (in µs), or [`NEVER`], and then delays a request.
    pub(crate) const fn of(wait: u64, delay: u64) -> Self {
        match wait {
            0 => Self::Allow { delay: Duration::from_micros(delay) },
            UNANSWERED.. => Self::Deny { retry_after: None },
            _ => Self::Deny { retry_after: Some(Duration::from_micros(wait)) },
        }
    }

    /// Combines the verdicts of two limits on one request: allowed after the longer delay if both allow it, or else the
    /// longer wait of those that deny.
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

    /// Returns whether the limit has capacity.
    #[must_use]
    pub const fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow { .. })
    }

    /// Returns the time for which an allowed request waits before it proceeds. Zero if the limit has no capacity.
    #[must_use]
    pub const fn delay(&self) -> Duration {
        if let Self::Allow { delay } = *self { delay } else { Duration::ZERO }
    }

    /// Returns the wait after which a denied request would be allowed. `None` if the limit has capacity, or if waiting
    /// cannot help.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        if let Self::Deny { retry_after } = *self { retry_after } else { None }
    }
}

/// Creates cells.
impl Cell {
    /// Creates the cell of a limit for no key yet. The algorithm has no overage.
    pub(crate) fn new(limit: u16, name: &str, algorithm: Algorithm, hasher: &KeyHasher) -> Self {
        let identity = format!("{} {} {name}", algorithm.tag(), algorithm.state_period());
        Self {
            key: KeyHash::ZERO,
            identity: hasher.hash(identity.as_bytes()),
            store: hasher.store,
            texts: None,
            cost: 0,
            algorithm,
            own_size: algorithm.size(),
            overage_percent: 0,
            limit,
            veto: Veto::Enforced,
            is_overridable: false,
            makes_strikes: true,
            wait: UNANSWERED,
            delay: 0,
            uses_overage: false,
            now: 0,
            used: 0,
            mark: CompactState::UNUSED,
            is_enforced: true,
            reported: None,
        }
    }

    /// Returns the cell of this limit's penalty. Its identity is that of the limit with all bits inverted.
    pub(crate) fn of_penalty(&self, penalty: Algorithm) -> Self {
        let identity = self.identity.complement();
        let cost = self.cost.min(1);
        let texts = self.readable_name().map(|name| {
            let name = Some(format!("{name}:p").into());
            Arc::new(Texts { name, detail: None })
        });
        let (is_overridable, own_size) = (false, penalty.size());
        Self { identity, texts, cost, algorithm: penalty, own_size, overage_percent: 0, is_overridable, ..self.clone() }
    }

    /// Returns this cell for a key and a cost.
    #[inline]
    pub(crate) fn with_key(&self, key: KeyHash, cost: u64) -> Self {
        let mut cell = self.clone();
        (cell.key, cell.cost) = (key, cost);
        cell
    }

    /// Returns the same question with another cost, at the limit's own size.
    pub(crate) fn asked_again(&self, cost: u64) -> Self {
        let (wait, mark) = (UNANSWERED, CompactState::UNUSED);
        let mut cell = Self { cost, wait, delay: 0, mark, reported: None, ..self.clone() };
        cell.set_veto(self.veto);
        cell.resize(self.own_size);
        cell
    }

    pub(crate) fn set_veto(&mut self, veto: Veto) {
        self.veto = veto;
        self.is_enforced = veto != Veto::Shadow;
    }

    /// Sets the overage, in percent of the size.
    pub(crate) fn set_overage(&mut self, percent: u32) {
        self.overage_percent = percent;
        self.algorithm = self.algorithm.with_overage(percent);
    }

    /// Sets the limit's own size for this request. The identity is that of a limit with the same kind and period.
    pub(crate) fn set_algorithm(&mut self, algorithm: Algorithm) {
        self.own_size = algorithm.size();
        self.algorithm = algorithm.with_overage(self.overage_percent);
    }

    /// Gives the limit the size of an override. Returns whether it can have that.
    pub(crate) fn resize(&mut self, size: Size) -> bool {
        if size == self.algorithm.size() {
            return true;
        }
        let resized = self.algorithm.with_size(size);
        if let Some(algorithm) = resized {
            self.algorithm = algorithm.with_overage(self.overage_percent);
        }
        resized.is_some()
    }

    /// Returns whether the size is that of an override.
    pub(crate) fn is_resized(&self) -> bool {
        self.algorithm.size() != self.own_size
    }

    /// Returns one of `parts` of the limit for a store that hashes the hashes of keys again. Its states belong to the
    /// limit, and to the period of the share, which may be longer than that of the limit.
    pub(crate) fn share(&self, parts: u32, hasher: &KeyHasher) -> Self {
        let mut share = self.clone();
        if !self.is_of_penalty() {
            share.resize(self.own_size);
            share.set_algorithm(share.algorithm.share(parts));
        }
        let period = format!("{} {}", share.algorithm.tag(), share.algorithm.state_period());
        share.identity = hasher.hash(period.as_bytes()).under(self.identity);
        share.key = hasher.hash(&self.key.as_u128().to_le_bytes());
        share
    }

    /// Returns whether a share has answered, as [`take_answer`](Self::take_answer) has noted.
    pub(crate) fn is_answered_by(&self, share: &Self) -> bool {
        self.reported.as_ref().is_some_and(|report| report.share == Some(share.fingerprint()))
    }

    /// Takes the answer of a share.
    pub(crate) fn take_answer(&mut self, share: &Self) {
        *self = Self {
            key: self.key,
            identity: self.identity,
            algorithm: self.algorithm,
            own_size: self.own_size,
            veto: self.veto,
            used: self.algorithm.hard_capacity().saturating_sub(share.available()),
            reported: Some(Box::new(Report { share: Some(share.fingerprint()), ..share.report() })),
            ..share.clone()
        };
    }

    /// Returns whether a question is like that of this answered cell: the answer [follows](Self::answer_like). The size
    /// of a limit that is available may have grown, unless its state is a log, whose summary holds for one size only, or
    /// an override has to be read.
    pub(crate) fn answers(&self, asked: &Self) -> bool {
        let question = |cell: &Self| {
            let flags = (cell.veto, cell.is_overridable, cell.makes_strikes, cell.limit);
            (cell.key, cell.identity, cell.cost, cell.algorithm.kind, cell.algorithm.span, flags)
        };
        let size = |cell: &Self| (cell.own_size, cell.overage_percent);
        let (known, new) = (&self.algorithm, &asked.algorithm);
        let is_wider = new.hard_capacity() >= known.hard_capacity() && new.amount >= known.amount;
        let any_size = is_wider && self.is_allowed() && !self.is_overridable && !known.keeps_log();
        question(self) == question(asked) && (any_size || size(self) == size(asked))
    }
}

/// For stores: the question.
impl Cell {
    /// Returns the hash of the key. Limits of one request with the same key have the same hash.
    #[must_use]
    #[inline]
    pub fn key(&self) -> KeyHash {
        self.key
    }

    /// Returns the fingerprint that identifies the state of the key under the limit, or that of its penalty.
    #[must_use]
    #[inline]
    pub fn fingerprint(&self) -> u128 {
        self.key.under(self.identity).as_u128()
    }

    /// Returns the name of the limit with its algorithm and period, such as `daily:fw86400s`, which is as unique among
    /// the limits of a key as the fingerprint. `None` unless the store [asks for it](crate::Store::has_readable_keys).
    #[must_use]
    pub fn readable_name(&self) -> Option<&str> {
        self.texts.as_ref()?.name.as_deref()
    }

    /// Returns the cost of the request under this limit, in tokens. A cost of 0 takes nothing, is always allowed, and
    /// reports the state of the key.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Returns the algorithm that decides, with its [overage](Algorithm::overage), at the size that the limit has for
    /// the key.
    #[must_use]
    #[inline]
    pub fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    /// Returns the influence of the limit on the decision.
    #[must_use]
    pub fn veto(&self) -> Veto {
        self.veto
    }

    /// Returns whether the store must look up an [override](crate::LimitHandle#overrides) of the key, and
    /// [apply](Self::apply_override) it.
    #[must_use]
    pub fn is_overridable(&self) -> bool {
        self.is_overridable
    }

    /// Returns whether this is the cell of the penalty of the limit in the cell before.
    #[must_use]
    #[inline]
    pub fn is_of_penalty(&self) -> bool {
        self.algorithm.is_penalty()
    }
}
