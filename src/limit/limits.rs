//! Limits that are decided together.

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::{fmt, mem};

use tokio::runtime::Handle;

use super::cost::CostRule;
use super::definition::{IndexPosition, Limit, LimitIndex, OnMatch, Values};
use crate::algorithm::Algorithm;
use crate::decision::{Charge, Charges, Outcome, PenaltyOutcome, Texts, Veto};
use crate::error::ConfigError;
use crate::key::hash::{KeyHash, KeyHasher};
use crate::key::head::RequestHead;
use crate::store::{Preparation, Store, StoreFuture, escape};

/// Limits that are decided together, each with its charge for one store. Limits are numbered in order.
#[derive(Clone)]
pub(crate) struct Limits {
    limits: Arc<[Limit]>,
    /// The names of the limits, by position.
    pub(crate) names: Arc<[Arc<str>]>,
    /// The charge of each limit, for no key yet.
    charges: Box<[Charge]>,
    /// Whether there are concurrency limits.
    pub(crate) have_slots: bool,
    /// Whether slots end with this process, so that they need not expire.
    pub(crate) keeps_slots_here: bool,
    /// Whether blocks of tokens are leased from the store.
    pub(crate) have_leases: bool,
    need_completion: bool,
    /// The limits that are checked one by one.
    unindexed: Arc<[usize]>,
    /// The limits that are found by indexes.
    pub(crate) indexed: Arc<[IndexedLimits]>,
    /// Whether the size, the metrics or the estimate of a limit depend on the request.
    depends_on_request: bool,
    /// Whether responses can change the costs of requests.
    pub(crate) settles_by_response: bool,
    /// Whether some do so at the end of their bodies.
    pub(crate) settles_at_end: bool,
    /// Whether strikes depend on the charges in flight: a limit has a penalty, and responses can change its costs.
    pub(crate) tracks_in_flight: bool,
    pub(crate) hasher: KeyHasher,
    /// The [identity](Store::identity) of the store.
    pub(crate) store: u32,
    /// The store's preparations for the limits, dropped with them.
    prepared: Vec<Preparation>,
    /// For stores with readable keys.
    texts: Option<Arc<Texts>>,
}

/// The maximum number of charges for which room is made at once. Few requests have more.
const MAX_RESERVED: usize = 8;

/// The maximum number of limits that apply to one request.
pub(crate) const MAX_PER_REQUEST: usize = 64;
/// The number of limits that are dropped without delay.
const MANY_LIMITS: usize = 1_000;
/// The maximum number of limits of a limiter.
const MAX_LIMITS: usize = 8_192;

impl Limits {
    /// Creates a set of limits, which may be empty. Its charges are those of no store, until [`set_store`](Self::set_store)
    /// replaces them: live limits are checked before the stores of their layers are known.
    ///
    /// # Errors
    ///
    /// Returns an error if there are too many limits, if too many may apply to one request, if two have the same name,
    /// if one can never allow its constant cost, has an impossible overage, can't be leased, or is in quota mode and has a
    /// penalty.
    pub(crate) fn new(limits: impl IntoIterator<Item = Limit>) -> Result<Self, ConfigError> {
        let limits: Vec<Limit> = limits.into_iter().collect();
        check_each(&limits)?;
        let (unindexed, indexed) = partition(&limits);
        let mut limits = Self {
            unindexed: unindexed.into(),
            indexed: indexed.into(),
            need_completion: limits.iter().any(|limit| {
                limit.enforced_penalty().is_some() || limit.spare_capacity.is_some() || limit.algorithm.is_concurrency
            }),
            depends_on_request: limits
                .iter()
                .any(|limit| !limit.sizes.is_empty() || limit.metric_detail.is_some() || limit.has_estimate),
            settles_by_response: limits.iter().any(Limit::is_settled),
            settles_at_end: limits.iter().any(|limit| limit.cost_at_end.is_some()),
            tracks_in_flight: limits.iter().any(|limit| limit.enforced_penalty().is_some() && limit.is_settled()),
            names: limits.iter().map(|limit| limit.name.clone()).collect(),
            have_slots: limits.iter().any(|limit| limit.algorithm.is_concurrency),
            keeps_slots_here: false,
            have_leases: false,
            limits: limits.into(),
            charges: Box::default(),
            hasher: KeyHasher::with_secret([0; 16]),
            store: 0,
            prepared: Vec::new(),
            texts: None,
        };
        limits.check_max_matches()?;
        limits.derive_charges();
        Ok(limits)
    }

    /// Checks the number of limits that may apply to one request.
    fn check_max_matches(&self) -> Result<(), ConfigError> {
        let indexed = self
            .indexed
            .iter()
            .map(|indexed| indexed.index.max_matches(&|position| Some(&self[indexed.get(position)?])));
        let most = self.unindexed.len() + indexed.sum::<usize>();
        if most > MAX_PER_REQUEST {
            return Err(ConfigError::new(format!("{most} limits for one request are too many: use at most 64")));
        }
        Ok(())
    }

    /// Derives the charges for a store. Puts all limits into shadow mode if `is_shadow` is set. `holds_slots` is whether
    /// this process knows when requests end.
    pub(crate) fn set_store(&mut self, store: &dyn Store, is_shadow: bool, holds_slots: bool) {
        (self.hasher, self.store) = (store.hasher(), store.identity());
        self.have_slots = holds_slots && self.limits.iter().any(|limit| limit.algorithm.is_concurrency);
        let states_end_here = store.renew(&Charges::default()).is_none();
        self.keeps_slots_here = self.have_slots && states_end_here;
        self.have_leases = !states_end_here && self.limits.iter().any(|limit| limit.lease.is_some());
        if is_shadow {
            Arc::make_mut(&mut self.limits).iter_mut().for_each(|limit| limit.is_shadow = true);
        }
        self.derive_charges();
        self.texts = store
            .has_readable_keys()
            .then(|| Texts::new(self.limits.iter().map(|limit| escape(&limit.name)), self.charges.iter()));
    }

    /// Prepares the store, whose charges these are, for the limits.
    ///
    /// # Errors
    ///
    /// Returns an error if the store can't keep a limit.
    pub(crate) fn prepare(&mut self, store: &dyn Store) -> Result<(), ConfigError> {
        let can_keep = |charge: &Charge| match store.renew(&Charges::default()).map(StoreFuture::into_ready) {
            Some(Ok(Err(error))) if self.have_slots && charge.algorithm.is_concurrency => {
                Err(ConfigError::new(format!("{error}: implement `Store::renew`, or use another store")))
            }
            _ => Ok(()),
        };
        let prepare = |(limit, charge): (&Limit, &Charge)| {
            let prepare = || store.prepare(charge, limit.enforced_penalty(), limit.is_settled());
            let prepared = can_keep(charge).and_then(|()| prepare()).map_err(|error| ConfigError {
                message: format!("the store can't keep the limit {:?}: {}", limit.name, error.message),
                rule: limit.rule_position.clone(),
            });
            prepared.transpose()
        };
        self.prepared = self.limits.iter().zip(&self.charges).filter_map(prepare).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Returns the same limits, with another cost for concurrency limits: that of the layer if it is `None`.
    pub(crate) fn with_slots_at(&self, cost: Option<CostRule>) -> Self {
        let mut limits = self.clone();
        let all = Arc::make_mut(&mut limits.limits).iter_mut();
        all.filter(|limit| limit.algorithm.is_concurrency).for_each(|limit| limit.cost = cost.clone());
        limits
    }

    fn derive_charges(&mut self) {
        let charge = |(index, limit): (u16, &Limit)| self.new_charge(index, limit, limit.algorithm);
        self.charges = (0..).zip(&*self.limits).map(charge).collect();
    }

    /// Creates the charge of a limit at a size, for no key yet.
    fn new_charge(&self, index: u16, limit: &Limit, algorithm: Algorithm) -> Charge {
        let mut charge = Charge::new(index, &limit.name, self.kept(limit, algorithm), &self.hasher);
        charge.veto = match limit {
            Limit { is_shadow: true, .. } => Veto::Shadow,
            Limit { is_quota: true, .. } => Veto::Quota,
            _ => Veto::Enforced,
        };
        charge.set_overage(limit.overage.unwrap_or_default());
        charge.is_overridable = limit.is_overridable;
        charge
    }

    /// Returns a size of a limit as the store keeps it.
    fn kept(&self, limit: &Limit, size: Algorithm) -> Algorithm {
        match size.is_concurrency {
            true if self.keeps_slots_here => size.without_expiry(),
            false if self.have_leases => limit.leased_size(size),
            _ => size,
        }
    }

    /// Returns whether another size of a limit shares the states of its keys.
    fn shares_state(&self, limit: &Limit, size: Algorithm) -> bool {
        self.kept(limit, limit.algorithm).shares_state_with(&self.kept(limit, size))
    }

    /// Returns the charges of a request to which no limit applies yet.
    #[inline]
    pub(crate) fn no_charges(&self) -> Charges {
        Charges::new(&self.texts)
    }

    /// Adds the charge of a limit to those of a request.
    #[inline]
    pub(crate) fn add(&self, charges: &mut Charges, index: usize, key: KeyHash, cost: u64) {
        charges.reserve(self.limits.len().min(MAX_RESERVED));
        let charge = self.charges[index].with_key(key, cost);
        if self.need_completion { self.add_completed(charges, charge) } else { charges.push(charge) }
    }

    /// Returns the charges of all limits for one key. Always inlined, because returning them moves them.
    #[inline(always)]
    pub(crate) fn charges_of(&self, key: KeyHash, cost: u64) -> Charges {
        match &*self.charges {
            [charge] if !self.need_completion => Charges::of_one(charge.with_key(key, cost), &self.texts),
            _ => self.all_charges_of(key, cost),
        }
    }

    fn all_charges_of(&self, key: KeyHash, cost: u64) -> Charges {
        let mut charges = self.no_charges();
        if self.need_completion {
            self.charges.iter().for_each(|charge| self.add_completed(&mut charges, charge.with_key(key, cost)));
        } else {
            charges.extend(self.charges.iter().map(|charge| charge.with_key(key, cost)));
        }
        charges
    }

    /// Adds the charge of a limit to those of a request, as an earlier request was asked, with another cost.
    pub(crate) fn add_again(&self, charges: &mut Charges, earlier: &Charge, cost: u64) {
        // The request has its slots already.
        let mut charge = earlier.asked_again(if earlier.algorithm.is_concurrency { 0 } else { cost });
        // A cost of 0 always fits, so as a quota it would allow the request for the others: it has no say.
        if cost == 0 && charge.veto == Veto::Quota {
            charge.veto = Veto::Enforced;
        }
        self.add_completed(charges, charge);
    }

    /// Lets charges of a settlement use the debts of their limits.
    pub(crate) fn allow_debts(&self, charges: &mut Charges) {
        for outcome in charges.iter_mut() {
            if let Some(percent) = self.limits[outcome.limit()].debt {
                outcome.allow_debt(percent);
            }
        }
    }

    /// Adds the charge of a limit, with its overage if it is elastic, and its penalty.
    fn add_completed(&self, charges: &mut Charges, mut charge: Charge) {
        let limit = &self.limits[charge.limit()];
        if charge.algorithm.is_concurrency {
            charge.cost = charge.cost.min(1);
        }
        if let Some(spare_capacity) = &limit.spare_capacity {
            charge.set_overage(if spare_capacity.is_available() { limit.overage.unwrap_or_default() } else { 0 });
        }
        charges.push(Outcome::new(charge, limit.enforced_penalty().copied().map(PenaltyOutcome::new)));
    }

    /// Gives the charges of a request the sizes and details that their limits have for it, and caps estimated costs.
    #[inline]
    pub(crate) fn fit(&self, charges: &mut Charges, head: &RequestHead<'_>) {
        if self.depends_on_request {
            self.fit_each(charges, head);
        }
    }

    fn fit_each(&self, charges: &mut Charges, head: &RequestHead<'_>) {
        for index in 0..charges.len() {
            let limit = &self.limits[charges[index].limit()];
            let size = limit.sizes.iter().find_map(|size| size(head)).filter(|size| limit.has_kind_of(size));
            if let Some(size) = size.filter(|size| *size != limit.algorithm) {
                let is_known = limit.has_several_states.load(Ordering::Relaxed);
                if !is_known && !self.shares_state(limit, size) {
                    limit.has_several_states.store(true, Ordering::Relaxed);
                }
                self.set_size(&mut charges[index].charge, size);
            }
            charges[index].charge.cost = self.capped_estimate(&charges[index].charge, charges[index].charge.cost);
            if let Some(detail) = limit.metric_detail.as_ref().and_then(|detail| detail(head)) {
                charges.set_detail(charges[index].limit(), detail);
            }
        }
    }

    /// Returns the cost of a charge, but no more than its limit can ever allow if the cost is an estimate.
    pub(crate) fn capped_estimate(&self, charge: &Charge, cost: u64) -> u64 {
        let has_estimate = self.limits[charge.limit()].has_estimate;
        if has_estimate { cost.min(charge.algorithm.hard_capacity()) } else { cost }
    }

    /// Gives a charge another size of its limit.
    pub(crate) fn set_size(&self, charge: &mut Charge, size: Algorithm) {
        let limit = &self.limits[charge.limit()];
        charge.set_algorithm(self.kept(limit, size));
        if !self.shares_state(limit, size) {
            // Another algorithm or period has states of its own.
            charge.identity = self.new_charge(charge.limit, limit, size).identity;
        }
    }

    /// Returns the limit of a charge at a size with states of its own, for which the store has prepared nothing,
    /// although it prepares limits.
    pub(crate) fn unprepared(&self, charge: &Charge) -> Option<&Limit> {
        let is_other = !self.prepared.is_empty() && self.charges.get(charge.limit())?.identity != charge.identity;
        is_other.then(|| &self.limits[charge.limit()])
    }

    /// Returns an error if an enforced limit without a cost of its own can never allow `cost`.
    pub(crate) fn check_cost(&self, cost: u64) -> Result<(), ConfigError> {
        let is_charged = |limit: &&Limit| limit.cost.is_none() && !limit.is_shadow && !limit.algorithm.is_concurrency;
        self.limits.iter().filter(is_charged).try_for_each(|limit| limit.check_cost(cost))
    }

    /// Returns the limits that are checked one by one, with their positions.
    #[inline]
    pub(crate) fn unindexed(&self) -> impl Iterator<Item = (usize, &Limit)> {
        self.unindexed.iter().map(|index| (*index, &self.limits[*index]))
    }

    /// Finds the limits of an index that match a request. See [`LimitIndex::find`]. A limit replaces others only if the
    /// limiter has it and its condition holds.
    pub(crate) fn find(
        &self,
        index: usize,
        head: &RequestHead<'_>,
        values: &mut Values,
        finds_all: bool,
        on_match: &mut OnMatch<'_>,
    ) -> Result<(), usize> {
        let indexed = &self.indexed[index];
        let limit = |position| {
            let limit = &self[indexed.get(position)?];
            // As for an exemption, an ambiguous condition does not count.
            limit.condition.as_ref().is_none_or(|condition| condition.holds(head)).then_some(limit)
        };
        indexed.index.find(head, values, &limit, finds_all, on_match)
    }

    /// Prepares charges for their refund: by the current numbers of their limits, unless the request or the key had
    /// others. Leaves out limits that no longer exist.
    pub(crate) fn fit_refund(&self, charged: &mut Charges) {
        let has_sizes = |limit: &Limit| !limit.sizes.is_empty();
        // A limit has another position only after a replacement of live limits.
        let current = |charge: &Charge| {
            let is_of = |current: &&Charge| current.identity == charge.identity;
            self.charges.get(charge.limit()).filter(is_of).or_else(|| self.charges.iter().find(is_of))
        };
        charged.set_texts(&self.texts);
        charged.retain(|Outcome { charge, .. }| match current(charge) {
            Some(current) => {
                charge.limit = current.limit;
                if !charge.is_resized() && !has_sizes(&self.limits[current.limit()]) {
                    charge.set_algorithm(current.algorithm);
                }
                true
            }
            // Another size can have another identity.
            None => self.limits.iter().any(has_sizes),
        });
    }
}

impl Deref for Limits {
    type Target = [Limit];

    #[inline]
    fn deref(&self) -> &[Limit] {
        &self.limits
    }
}

/// An index, and the limits of a limiter that are in it.
#[derive(Clone)]
pub(crate) struct IndexedLimits {
    index: Arc<dyn LimitIndex>,
    /// The number of the limit at each position. `None` if the limiter does not have it.
    limits: Vec<Option<usize>>,
}

impl IndexedLimits {
    /// Returns the numbers of the limiter's limits in the index.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = usize> {
        self.limits.iter().copied().flatten()
    }

    /// Returns the number of the limiter's limit at `position`.
    pub(crate) fn get(&self, position: usize) -> Option<usize> {
        self.limits.get(position).copied().flatten()
    }
}

/// Checks each limit, and the number and the names of all.
fn check_each(limits: &[Limit]) -> Result<(), ConfigError> {
    if limits.len() > MAX_LIMITS {
        return Err(ConfigError::new(format!("{} limits are too many: use at most {MAX_LIMITS}", limits.len())));
    }
    let mut names = HashSet::new();
    for limit in limits {
        if !names.insert(&*limit.name) {
            let message = format!("two limits are named {:?}: give each a name of its own", limit.name);
            return Err(ConfigError::new(message));
        }
        if limit.is_quota && limit.penalty.is_some() {
            return Err(ConfigError::new(format!(
                "the limit {:?} is in quota mode and has a penalty, but does not deny requests by itself: \
                leave one out",
                limit.name
            )));
        }
        limit.check_overage(&limit.algorithm)?;
        limit.check_slots()?;
        limit.check_lease()?;
        if let Some(cost) = limit.cost.as_ref().and_then(CostRule::largest) {
            limit.check_cost(cost)?;
        }
    }
    Ok(())
}

/// Returns the numbers of the limits that are checked one by one, and the limits of each index.
fn partition(limits: &[Limit]) -> (Vec<usize>, Vec<IndexedLimits>) {
    let (mut unindexed, mut indexed) = (Vec::new(), Vec::<IndexedLimits>::new());
    for (number, limit) in limits.iter().enumerate() {
        let Some(IndexPosition { index, position }) = &limit.position else {
            unindexed.push(number);
            continue;
        };
        let known = indexed.iter().position(|known| Arc::ptr_eq(&known.index, index)).unwrap_or(indexed.len());
        if known == indexed.len() {
            indexed.push(IndexedLimits { index: index.clone(), limits: Vec::new() });
        }
        let limits = &mut indexed[known].limits;
        limits.resize(limits.len().max(position + 1), None);
        limits[*position] = Some(number);
    }
    (unindexed, indexed)
}

impl Drop for Limits {
    /// Drops thousands of limits on a blocking thread: that takes milliseconds, and a request may have used them last.
    fn drop(&mut self) {
        if self.limits.len() > MANY_LIMITS
            && let Ok(runtime) = Handle::try_current()
        {
            let limits = (mem::take(&mut self.limits), mem::take(&mut self.indexed));
            runtime.spawn_blocking(move || drop(limits));
        }
    }
}

impl fmt::Debug for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&*self.limits).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::algorithm::FixedWindow;

    #[test]
    fn an_elastic_limit_regains_its_overage_within_a_request() {
        let is_spare = Arc::new(AtomicBool::new(false));
        let signal = is_spare.clone();
        let limit = Limit::new("limit", FixedWindow::per_day(10)).elastic(50, move || signal.load(Ordering::Relaxed));
        let limits = Limits::new([limit]).unwrap();
        let mut charges = limits.no_charges();
        limits.add(&mut charges, 0, KeyHash::ZERO, 1);
        is_spare.store(true, Ordering::Relaxed);
        let mut later = limits.no_charges();
        limits.add_again(&mut later, &charges[0], 1);
        assert_eq!([&charges[0], &later[0]].map(|outcome| outcome.algorithm().overage()), [0, 5]);
    }
}
