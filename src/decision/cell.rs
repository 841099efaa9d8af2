//! One limit of a request, for one key: the question that a store is asked, and its answer.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::verdict::Verdict;
use crate::algorithm::{Algorithm, Availability, ChargeMark, CompactState, Lockout, QuotaSnapshot, Size, State};
use crate::hash::{KeyHash, KeyHasher};
use crate::reported_details::RequestDetail;

/// One limit of a request, for one key: the question that a [`Store`](crate::Store) is asked, and its answer.
///
/// A limiter creates the cells of a request. The store fills in their answers, and [`Decision::outcomes`] returns them.
/// A limit with a [`Penalty`](crate::Penalty) has a second cell directly behind its own, which counts strikes.
///
/// [`Decision::outcomes`]: crate::Decision::outcomes
#[derive(Clone, Debug)]
pub struct Cell {
    pub(crate) key: KeyHash,
    /// The hash of the limit's identity: its algorithm, its period and its name. It separates the states of its keys from
    /// those of other limits.
    pub(crate) identity: KeyHash,
    pub(crate) texts: Option<Arc<Texts>>,
    pub(crate) cost: u64,
    /// The limit with its overage, at the size that applies to the key.
    pub(crate) algorithm: Algorithm,
    /// The size of the limit without an override.
    own_size: Size,
    pub(crate) overage_percent: u32,
    pub(crate) limit: u16,
    pub(crate) veto: Veto,
    pub(crate) is_overridable: bool,
    /// Whether a denial by the limit is a strike, in the cell of a penalty.
    pub(crate) counts_strikes: bool,

    pub(crate) availability: Availability,
    /// The instant of the decision, in µs.
    now: u64,
    /// The tokens in use after the decision.
    used: u64,
    /// The [summary](State::summary) of the state after the decision.
    pub(crate) mark: ChargeMark,
    is_enforced: bool,
    /// What is reported instead of what follows from the state.
    reported: Option<Box<Report>>,
}

/// The texts that some cells have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Texts {
    /// The name of the limit and its rule, for stores with [readable keys](crate::Store::has_readable_keys).
    pub(crate) name: Option<Arc<str>>,
    /// The detail of the request in metrics.
    pub(crate) detail: Option<RequestDetail>,
}

#[derive(Clone, Copy, Debug)]
struct Report {
    snapshot: QuotaSnapshot,
    is_penalty: bool,
    lockout: Option<Lockout>,
    /// The fingerprint of the share that answered.
    share: Option<u128>,
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

/// Creates cells.
impl Cell {
    /// Creates the cell of a limit for no key yet. The algorithm has no overage.
    pub(crate) fn new(limit: u16, name: &str, algorithm: Algorithm, hasher: &KeyHasher) -> Self {
        let identity = format!("{} {} {name}", algorithm.tag(), algorithm.state_period());
        Self {
            key: KeyHash::ZERO,
            identity: hasher.hash(identity.as_bytes()),
            texts: None,
            cost: 0,
            algorithm,
            own_size: algorithm.size(),
            overage_percent: 0,
            limit,
            veto: Veto::Enforced,
            is_overridable: false,
            counts_strikes: true,
            availability: Availability::NOW,
            now: 0,
            used: 0,
            mark: ChargeMark::default(),
            is_enforced: true,
            reported: None,
        }
    }

    /// Returns the cell of a penalty of this limit.
    pub(crate) fn of_penalty(&self, penalty: Algorithm, hasher: &KeyHasher) -> Self {
        let mut identity = *b"penalty:................";
        identity[8..].copy_from_slice(&self.identity.as_u128().to_le_bytes());
        let identity = hasher.hash(&identity);
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
        let mut cell =
            Self { cost, availability: Availability::NOW, mark: ChargeMark::default(), reported: None, ..self.clone() };
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

    /// Returns one of `parts` of the limit for a store that hashes the hashes of keys again. Its states belong to the limit,
    /// and to the period of the share, which may be longer than that of the limit.
    pub(crate) fn share(&self, parts: u32, hasher: &KeyHasher) -> Self {
        let mut share = self.clone();
        if !self.counts_denials() {
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

    /// Returns whether a question is like that of this answered cell: the answer [follows](Self::answer_like). The size of
    /// a limit that is available may have changed.
    pub(crate) fn answers(&self, asked: &Self) -> bool {
        let question = |cell: &Self| {
            let flags = (cell.veto, cell.is_overridable, cell.counts_strikes, cell.limit);
            (cell.key, cell.identity, cell.cost, cell.algorithm.kind, cell.algorithm.span, flags)
        };
        let size = |cell: &Self| (cell.own_size, cell.overage_percent);
        let any_size = self.is_allowed() && !self.is_overridable && !self.algorithm.keeps_log();
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

    /// Returns the name of the limit with its algorithm and period, such as `daily:fw86400s`, which is as unique among the
    /// limits of a key as the fingerprint. `None` unless the store [asks for it](crate::Store::has_readable_keys).
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

    /// Returns the algorithm that decides, with its [overage](Algorithm::overage), at the size that the limit has for the
    /// key.
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

    /// Returns whether the store must look up an [override](crate::Overrides) of the key, and
    /// [apply](Self::apply_override) it.
    #[must_use]
    pub fn is_overridable(&self) -> bool {
        self.is_overridable
    }

    /// Returns whether this is the cell of the penalty of the limit in the cell before.
    #[must_use]
    #[inline]
    pub fn counts_denials(&self) -> bool {
        self.algorithm.is_penalty()
    }
}

/// For stores: the answer.
impl Cell {
    /// Decides by the override of the key: see [`OverrideStore`](crate::store::OverrideStore). Ignores one whose algorithm
    /// or period is another.
    pub fn apply_override(&mut self, by: &Algorithm) {
        if self.algorithm.with_size(by.size()) == Some(*by) {
            self.resize(by.size());
        }
    }

    /// Sets the answer.
    ///
    /// - `verdict`: whether the limit had capacity, whether or not it is enforced, and how long the request waits.
    /// - `remaining`: the largest cost, in tokens, that the limit would still allow at the same instant, after the
    ///   decision and without overage.
    /// - `more_after`: the shortest wait after which `remaining` is larger if no other request arrives, or `None` if it
    ///   never is.
    /// - `reset_after`: the time until the key is as if it had never been used if no other request arrives.
    pub fn answer(&mut self, verdict: Verdict, remaining: u64, more_after: Option<Duration>, reset_after: Duration) {
        self.availability = match verdict {
            Verdict::Allow { delay } => Availability::Now { delay: micros(delay), overage: false },
            Verdict::Deny { retry_after: Some(after) } => Availability::After(micros(after)),
            Verdict::Deny { retry_after: None } => Availability::Never,
        };
        let (more_after, reset_after) = (more_after.map(micros), micros(reset_after));
        self.used = self.algorithm.capacity.saturating_sub(remaining);
        self.report_mut().snapshot = QuotaSnapshot { remaining, more_after, reset_after };
    }

    /// Sets the mark by which the store recognizes the charge when it is refunded.
    pub fn set_mark(&mut self, mark: ChargeMark) {
        self.report_mut();
        self.mark = mark;
    }

    /// Marks that there was capacity in the limit's overage only. A denial uses none.
    pub fn set_uses_overage(&mut self) {
        if let Availability::Now { overage, .. } = &mut self.availability {
            *overage = true;
        }
    }

    /// Marks that the key is locked out by the limit's [`Penalty`](crate::Penalty).
    pub fn set_penalty(&mut self) {
        self.report_mut().is_penalty = true;
    }

    /// Marks that this request began a lockout of the key: the number of consecutive lockouts, from 1, and the length of
    /// this one. It is reported as [`Event::PenaltyBegan`](crate::Event::PenaltyBegan).
    pub fn set_new_lockout(&mut self, level: u32, span: Duration) {
        let report = self.report_mut();
        (report.is_penalty, report.lockout) = (true, Lockout::new(level, micros(span)));
    }

    /// Sets whether the limit contributes to the decision, as [`is_enforced`](Self::is_enforced) describes. By default,
    /// limits in [shadow mode](Veto::Shadow) do not. Stores set it for limits in quota mode.
    pub fn set_enforced(&mut self, is_enforced: bool) {
        self.is_enforced = is_enforced;
    }

    /// Answers whether the cost is available.
    #[inline(always)]
    pub(crate) fn peek<S: State + ?Sized>(&mut self, state: &S, now: u64) {
        self.availability = self.algorithm.availability(state, now, self.cost);
    }

    /// Completes the answer. Charges the cost if `takes`, which requires that it is available.
    #[inline(always)]
    pub(crate) fn complete<S: State + ?Sized>(&mut self, state: &mut S, now: u64, takes: bool) {
        let algorithm = &self.algorithm;
        let takes = takes && self.cost > 0;
        self.used = if takes { state.charge(algorithm, now, self.cost) } else { state.used(algorithm, now) };
        self.mark = ChargeMark(state.summary(algorithm, now));
        self.now = now;
        if takes && self.counts_denials() {
            self.report_mut().lockout = Lockout::begun(&self.mark.0, now);
            self.peek(&self.mark.0.clone(), now);
        }
    }

    /// Answers as a store has answered an equal question, but at a later instant, before
    /// [`sufficient_until`](Self::sufficient_until), if nothing has changed.
    pub(crate) fn answer_like(&mut self, known: &Self, now: u64) {
        let asked = mem::replace(self, known.clone());
        self.texts = asked.texts;
        if self.own_size != asked.own_size || self.overage_percent != asked.overage_percent {
            (self.algorithm, self.own_size, self.overage_percent) =
                (asked.algorithm, asked.own_size, asked.overage_percent);
        }
        let state = self.mark.0;
        match &mut self.availability {
            Availability::After(wait) if self.algorithm.keeps_log() => {
                *wait = wait.saturating_sub(now.saturating_sub(self.now));
            }
            _ => self.peek(&state, now),
        }
        self.used = state.used(&self.algorithm, now);
        self.now = now;
    }

    /// Returns the instant, in µs, until which the summary of the state answers as the state itself.
    pub(crate) fn sufficient_until(&self) -> u64 {
        if self.algorithm.keeps_log() && self.used > 0 { self.mark.0.at } else { u64::MAX }
    }

    /// Adds the answer of the limit's penalty. A cost of 0 is always allowed.
    pub(crate) fn restrict(&mut self, penalty: &Self) {
        // A store of another crate sets the answer only.
        let left = penalty.mark.0.wait(&penalty.algorithm, penalty.now, 0).max(match penalty.availability {
            Availability::Now { .. } => 0,
            Availability::After(wait) => wait,
            Availability::Never => u64::MAX,
        });
        let reset_after = micros(penalty.reset_after());
        if left == 0 && reset_after == 0 {
            return;
        }
        let report = self.report_mut();
        let snapshot = &mut report.snapshot;
        snapshot.reset_after = snapshot.reset_after.max(reset_after);
        if left > 0 {
            let more_after = if snapshot.remaining > 0 { Some(0) } else { snapshot.more_after };
            snapshot.more_after = more_after.map(|after| after.max(left));
            snapshot.remaining = 0;
            (report.is_penalty, report.lockout) = (true, penalty.lockout());
            self.availability = match self.availability {
                availability if self.cost == 0 => availability,
                Availability::Never => Availability::Never,
                Availability::After(wait) => Availability::After(wait.max(left)),
                Availability::Now { .. } => Availability::After(left),
            };
        }
    }

    /// Returns the largest cost that is available now, with overage.
    pub(crate) fn available(&self) -> u64 {
        if self.is_penalty() { 0 } else { self.algorithm.hard_capacity().saturating_sub(self.used) }
    }

    /// Returns the tokens in use after the decision.
    #[inline]
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    fn report(&self) -> Report {
        let state: &CompactState = &self.mark.0;
        let snapshot = || self.algorithm.snapshot(state, self.now, self.used);
        let report = || Report { snapshot: snapshot(), is_penalty: false, lockout: None, share: None };
        self.reported.as_deref().copied().unwrap_or_else(report)
    }

    #[cold]
    fn report_mut(&mut self) -> &mut Report {
        let report = self.report();
        self.reported.insert(Box::new(report))
    }
}

/// The outcome of a decision.
impl Cell {
    /// Returns the detail of the request in metrics.
    pub(crate) fn detail(&self) -> Option<&RequestDetail> {
        self.texts.as_ref()?.detail.as_ref()
    }

    /// Returns the lockout that the request began, if any.
    pub(crate) fn lockout(&self) -> Option<Lockout> {
        self.reported.as_ref()?.lockout
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

    /// Returns the mark of the charge, as the store set it by [`set_mark`](Self::set_mark).
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
        self.reported.as_ref().is_some_and(|report| report.is_penalty)
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
        match &self.reported {
            None => self.algorithm.remaining(self.used),
            Some(report) => report.snapshot.remaining,
        }
    }

    /// Returns the shortest wait after which [`remaining`](Self::remaining) is larger, if no other request arrives.
    /// `None` if it never is.
    #[must_use]
    #[inline]
    pub fn more_after(&self) -> Option<Duration> {
        let micros = match &self.reported {
            None => self.algorithm.more_after(&self.mark.0, self.now, self.used),
            Some(report) => report.snapshot.more_after,
        };
        micros.map(Duration::from_micros)
    }

    /// Returns the time until the key is as if it had never been used, if no other request arrives.
    #[must_use]
    #[inline]
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(match &self.reported {
            None => self.algorithm.reset_after(&self.mark.0, self.now),
            Some(report) => report.snapshot.reset_after,
        })
    }
}

/// Returns a span in whole microseconds, rounded up, and at most `u64::MAX`.
fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}
