//! Limits that are decided together.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use super::definition::Limit;
use super::index::{IndexPosition, IndexedLimits, OnMatch, PendingMatches};
use super::metric_detail::DetailsByLimit;
use crate::charge::Charge;
use crate::cost::CostRule;
use crate::error::ConfigError;
use crate::hash::KeyHasher;
use crate::limit_spec::{LimitSettings, LimitSpec, Mode};
use crate::request::RequestHead;
use crate::signal::Signal;

/// Limits that are decided together, each with its spec for one store. Limits are numbered in order.
#[derive(Clone)]
pub(crate) struct Limits {
    limits: Box<[Limit]>,
    /// The spec of each limit, including its overage.
    specs: Box<[Arc<LimitSpec>]>,
    /// The spec of each elastic limit, without its overage. Empty if no limit is elastic.
    specs_without_overage: Box<[Option<Arc<LimitSpec>>]>,
    /// The limits that are checked one by one.
    unindexed: Box<[u16]>,
    /// The limits that are found together.
    indexed: Box<[IndexedLimits]>,
    /// Whether the spec of a limit depends on the request.
    has_variable: bool,
    settles_by_response: bool,
    hasher: KeyHasher,
}

/// The maximum number of limits that apply to one request.
const MAX_PER_REQUEST: usize = 64;
/// The maximum number of limits of a limiter.
const MAX_LIMITS: usize = 8_192;

/// Returns an error if a limit needs a request.
pub(crate) fn check_needs_no_request(limits: &[Limit]) -> Result<(), ConfigError> {
    let needing = limits.iter().find_map(|limit| Some((limit.name(), limit.needs_from_request()?)));
    match needing {
        Some((limit, what)) => Err(ConfigError::new(format!(
            "the limit {limit:?} takes its {what} from a request, but a `Limiter` has none: decide it where you call \
             `acquire`, or use a `RateLimitLayer`"
        ))),
        None => Ok(()),
    }
}

impl Limits {
    /// Creates a set of limits, with specs for a store that hashes with `hasher`. The set may be empty.
    ///
    /// # Errors
    ///
    /// Returns an error if there are too many limits, if too many may apply to one request, if two have the same name,
    /// if one can never allow its constant cost, has an impossible overage, or is in quota mode and has a penalty.
    pub(crate) fn new(limits: Vec<Limit>, hasher: &KeyHasher) -> Result<Self, ConfigError> {
        check_each(&limits)?;
        let (unindexed, indexed) = partition(&limits);
        check_max_matches(&limits, &unindexed, &indexed)?;
        let is_variable = |limit: &Limit| limit.has_other_sizes() || limit.metric_detail.is_some();
        let mut limits = Self {
            unindexed: unindexed.into(),
            indexed: indexed.into(),
            has_variable: limits.iter().any(is_variable),
            settles_by_response: limits.iter().any(|limit| limit.actual_cost.is_some()),
            limits: limits.into(),
            specs: Box::default(),
            specs_without_overage: Box::default(),
            hasher: *hasher,
        };
        limits.derive_specs();
        Ok(limits)
    }

    /// Replaces the specs by those for a store that hashes with `hasher`.
    pub(crate) fn set_hasher(&mut self, hasher: &KeyHasher) {
        self.hasher = *hasher;
        self.derive_specs();
    }

    fn derive_specs(&mut self) {
        let limits = || (0..).zip(&self.limits);
        let spec = |index: u16, limit: &Limit, overage_percent| {
            let mode = match (limit.is_shadow, limit.is_quota) {
                (true, _) => Mode::Shadow,
                (false, true) => Mode::Quota,
                (false, false) => Mode::Enforced,
            };
            let settings = LimitSettings {
                overage_percent,
                mode,
                penalty: limit.penalty.filter(|_| mode == Mode::Enforced),
                is_overridable: limit.is_overridable,
                ..LimitSettings::new(limit.name.clone(), index, limit.algorithm)
            };
            Arc::new(LimitSpec::new(settings, &self.hasher))
        };
        let is_elastic = |limit: &Limit| limit.overage.as_ref().is_some_and(|overage| overage.signal.is_some());
        let if_elastic = |(index, limit): (u16, &Limit)| is_elastic(limit).then(|| spec(index, limit, 0));
        let specs = limits().map(|(index, limit)| spec(index, limit, limit.overage_percent())).collect();
        let without_overage: Box<[_]> = limits().map(if_elastic).collect();
        self.specs = specs;
        self.specs_without_overage =
            if without_overage.iter().any(Option::is_some) { without_overage } else { Box::default() };
    }

    /// Puts all limits in shadow mode.
    pub(crate) fn shadow(&mut self) {
        self.limits.iter_mut().for_each(|limit| limit.is_shadow = true);
        self.derive_specs();
    }

    /// Returns the spec that applies now: with the limit's overage, if it is available, or without.
    #[inline]
    pub(crate) fn current<'a>(&'a self, spec: &'a Arc<LimitSpec>) -> &'a Arc<LimitSpec> {
        if self.specs_without_overage.is_empty() { spec } else { self.elastic(spec) }
    }

    fn elastic<'a>(&'a self, spec: &'a Arc<LimitSpec>) -> &'a Arc<LimitSpec> {
        let index = usize::from(spec.index());
        let Some(without_overage) = self.specs_without_overage.get(index).and_then(Option::as_ref) else { return spec };
        let signal = self.limits[index].overage.as_ref().and_then(|overage| overage.signal.as_deref());
        if signal.is_none_or(Signal::has_spare_capacity) { spec } else { without_overage }
    }

    /// Derives the specs of a request's charges that depend on the request: see [`spec_for`](Self::spec_for).
    #[inline]
    pub(crate) fn specs_for(&self, charges: &[Charge<'_>], head: &RequestHead<'_>) -> Box<[Arc<LimitSpec>]> {
        if !self.has_variable {
            return Box::default();
        }
        charges.iter().filter_map(|charge| self.spec_for(charge.spec, head)).collect()
    }

    /// Derives the spec of a limit with another size for a request, or with a detail in metrics. The limit must apply to
    /// the request, because the size and the detail are computed by closures of the user.
    pub(crate) fn spec_for(&self, spec: &LimitSpec, head: &RequestHead<'_>) -> Option<Arc<LimitSpec>> {
        let (limit, _) = self.get(spec.index().into());
        let resized = limit.size_for(head).map(|size| spec.with_algorithm(size, &self.hasher));
        let detail = limit.metric_detail.as_ref().and_then(|detail| detail.of(head));
        match detail {
            Some(detail) => Some(resized.as_ref().unwrap_or(spec).with_detail(detail)),
            None => resized,
        }
        .map(Arc::new)
    }

    /// Shares the reported details of limits with those of the same names.
    pub(super) fn share_details(&mut self, details: &mut DetailsByLimit) {
        for limit in &mut self.limits {
            if let Some(detail) = &mut limit.metric_detail {
                detail.share(&limit.name, details);
            }
        }
    }

    /// Returns an error if an enforced limit without a cost of its own can never allow `cost`.
    pub(crate) fn check_cost(&self, cost: u64) -> Result<(), ConfigError> {
        let is_charged = |limit: &&Limit| limit.cost.is_none() && !limit.is_shadow;
        self.limits.iter().filter(is_charged).try_for_each(|limit| limit.check_cost(cost))
    }

    /// Returns whether responses can change the costs of requests.
    #[inline]
    pub(crate) fn settles_by_response(&self) -> bool {
        self.settles_by_response
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (&Limit, &Arc<LimitSpec>)> {
        self.limits.iter().zip(&self.specs)
    }

    /// Returns the limits that are checked one by one.
    #[inline]
    pub(crate) fn unindexed(&self) -> impl Iterator<Item = (&Limit, &Arc<LimitSpec>)> {
        self.unindexed.iter().map(|index| self.get((*index).into()))
    }

    /// Returns the limits that are found by indexes.
    #[inline]
    pub(crate) fn indexed(&self) -> &[IndexedLimits] {
        &self.indexed
    }

    /// Finds the limits of an index that match a request. See [`LimitIndex::find`](super::index::LimitIndex::find). A
    /// limit replaces others only if the limiter has it and its condition holds.
    pub(crate) fn find(
        &self,
        index: usize,
        head: &RequestHead<'_>,
        on_match: &mut OnMatch<'_>,
    ) -> Option<PendingMatches> {
        let indexed = &self.indexed[index];
        let policy = |position| {
            let (limit, _) = self.get(indexed.get(position)?);
            // As for an exemption, an ambiguous condition does not count.
            limit.condition().is_none_or(|condition| condition.holds(head)).then(|| limit.missing_key())
        };
        indexed.index.find(head, &policy, on_match)
    }

    /// Returns whether the limits that apply may be found out of order.
    pub(crate) fn may_match_out_of_order(&self) -> bool {
        self.indexed.len() + usize::from(!self.unindexed.is_empty()) > 1
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> (&Limit, &Arc<LimitSpec>) {
        (&self.limits[index], &self.specs[index])
    }

    pub(crate) fn spec(&self, index: usize) -> Option<&Arc<LimitSpec>> {
        self.specs.get(index)
    }

    /// Returns the spec with this identity in stores.
    pub(crate) fn find_by_identity(&self, identity: u64) -> Option<&Arc<LimitSpec>> {
        self.specs.iter().find(|spec| spec.identity() == identity)
    }

    /// Returns the specs of all limits.
    #[inline]
    pub(crate) fn all_specs(&self) -> &[Arc<LimitSpec>] {
        &self.specs
    }

    pub(crate) fn as_slice(&self) -> &[Limit] {
        &self.limits
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
                "the limit {:?} is in quota mode and has a penalty, but does not deny requests by itself: leave one out",
                limit.name
            )));
        }
        limit.check_overage(&limit.algorithm)?;
        if let Some(cost) = limit.cost.as_ref().and_then(CostRule::largest) {
            limit.check_cost(cost)?;
        }
    }
    Ok(())
}

/// Returns the numbers of the limits that are checked one by one, and the limits of each index.
fn partition(limits: &[Limit]) -> (Vec<u16>, Vec<IndexedLimits>) {
    let (mut unindexed, mut indexed) = (Vec::new(), Vec::<IndexedLimits>::new());
    for (number, limit) in (0..).zip(limits) {
        let Some(IndexPosition { index, position }) = &limit.position else {
            unindexed.push(number);
            continue;
        };
        let known = match indexed.iter().position(|known| Arc::ptr_eq(&known.index, index)) {
            Some(known) => known,
            None => {
                indexed.push(IndexedLimits::new(index.clone()));
                indexed.len() - 1
            }
        };
        indexed[known].insert(*position, number);
    }
    (unindexed, indexed)
}

/// Checks the number of limits that may apply to one request.
fn check_max_matches(limits: &[Limit], unindexed: &[u16], indexed: &[IndexedLimits]) -> Result<(), ConfigError> {
    let policy = |indexed: &IndexedLimits, position| Some(limits[indexed.get(position)?].missing_key());
    let matches = indexed.iter().map(|indexed| indexed.index.max_matches(&|position| policy(indexed, position)));
    let most = matches.sum::<usize>() + unindexed.len();
    if most > MAX_PER_REQUEST {
        return Err(ConfigError::new(format!("{most} limits for one request are too many: use at most 64")));
    }
    Ok(())
}

impl fmt::Debug for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.limits).finish()
    }
}
