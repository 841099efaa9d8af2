//! Limits that are decided together.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use super::builder::Limit;
use super::index::IndexedLimits;
use crate::cost::Cost;
use crate::error::{ConfigError, ConfigErrorKind};
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
    /// The limits whose spec depends on the request.
    variable: Box<[u16]>,
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
    needing.map_or(Ok(()), |(limit, what)| Err(ConfigErrorKind::NeedsRequest { limit: limit.to_owned(), what }.into()))
}

impl Limits {
    /// Checks that the limits can be decided together. There may be none.
    pub(crate) fn new(limits: Vec<Limit>, hasher: &KeyHasher) -> Result<Self, ConfigError> {
        if limits.len() > MAX_LIMITS {
            return Err(ConfigErrorKind::TooManyLimits { limits: limits.len(), most: MAX_LIMITS }.into());
        }
        let mut names = HashSet::new();
        let (mut unindexed, mut indexed) = (Vec::new(), Vec::<IndexedLimits>::new());
        for (number, limit) in (0..).zip(&limits) {
            if !names.insert(&*limit.name) {
                return Err(ConfigErrorKind::NameTwice { name: limit.name.to_string() }.into());
            }
            if limit.is_quota && limit.penalty.is_some() {
                return Err(ConfigErrorKind::QuotaPenalty { limit: limit.name.to_string() }.into());
            }
            limit.cost.as_ref().and_then(Cost::largest).map_or(Ok(()), |cost| limit.check_cost(cost))?;
            let Some(place) = &limit.position else {
                unindexed.push(number);
                continue;
            };
            match indexed.iter_mut().find(|indexed| Arc::ptr_eq(&indexed.index, &place.index)) {
                Some(indexed) => indexed.insert(place.position, number),
                None => {
                    let mut limits = IndexedLimits::new(place.index.clone());
                    limits.insert(place.position, number);
                    indexed.push(limits);
                }
            }
        }
        let policy = |indexed: &IndexedLimits, position| Some(limits[indexed.get(position)?].missing_key());
        let matches = indexed.iter().map(|indexed| indexed.index.max_matches(&|position| policy(indexed, position)));
        let most = matches.sum::<usize>() + unindexed.len();
        if most > MAX_PER_REQUEST {
            return Err(ConfigErrorKind::TooManyLimits { limits: most, most: MAX_PER_REQUEST }.into());
        }
        let is_variable = |limit: &Limit| limit.has_other_sizes() || limit.metric_detail.is_some();
        let variable = (0..).zip(&limits).filter(|(_, limit)| is_variable(limit)).map(|(number, _)| number).collect();
        let mut limits = Self {
            unindexed: unindexed.into(),
            indexed: indexed.into(),
            variable,
            settles_by_response: limits.iter().any(|limit| limit.actual_cost.is_some()),
            limits: limits.into(),
            specs: Box::default(),
            specs_without_overage: Box::default(),
            hasher: *hasher,
        };
        limits.set_hasher(hasher);
        Ok(limits)
    }

    /// Derives the specs for a store that hashes with `hasher`.
    pub(crate) fn set_hasher(&mut self, hasher: &KeyHasher) {
        self.hasher = *hasher;
        let limits = || self.limits.iter().enumerate();
        let spec = |index: usize, limit: &Limit, overage_percent| {
            let mode = match () {
                () if limit.is_shadow => Mode::Shadow,
                () if limit.is_quota => Mode::Quota,
                () => Mode::Enforced,
            };
            let settings = LimitSettings {
                overage_percent,
                mode,
                penalty: limit.penalty.filter(|_| mode == Mode::Enforced),
                is_overridable: limit.is_overridable,
                ..LimitSettings::new(limit.name.clone(), index as u16, limit.algorithm)
            };
            Arc::new(LimitSpec::new(settings, hasher))
        };
        let percent = |limit: &Limit| limit.overage.as_ref().map_or(0, |overage| overage.percent);
        let is_elastic = |limit: &Limit| limit.overage.as_ref().is_some_and(|overage| overage.signal.is_some());
        let if_elastic = |(index, limit): (usize, &Limit)| is_elastic(limit).then(|| spec(index, limit, 0));
        self.specs = limits().map(|(index, limit)| spec(index, limit, percent(limit))).collect();
        self.specs_without_overage = limits().map(if_elastic).collect();
        if self.specs_without_overage.iter().all(Option::is_none) {
            self.specs_without_overage = Box::default();
        }
    }

    /// Puts all limits in shadow mode.
    pub(crate) fn shadow(&mut self) {
        self.limits.iter_mut().for_each(|limit| limit.is_shadow = true);
        self.set_hasher(&self.hasher.clone());
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
        if signal.is_none_or(Signal::has_spare) { spec } else { without_overage }
    }

    /// Returns the specs of the limits that have another size for a request, or a detail in metrics.
    pub(crate) fn specs_for(&self, head: &RequestHead<'_>) -> Box<[Arc<LimitSpec>]> {
        if self.variable.is_empty() {
            return Box::default();
        }
        let variant = |index: &u16| {
            let (limit, spec) = self.get((*index).into());
            let spec = self.current(spec);
            let resized = limit.size_for(head).map(|size| spec.with_algorithm(size, &self.hasher));
            let detail = limit.metric_detail.as_ref().and_then(|detail| detail.of(head));
            match (resized, detail) {
                (resized, Some(detail)) => Some(resized.as_ref().unwrap_or(spec).with_detail(detail)),
                (resized, None) => resized,
            }
        };
        self.variable.iter().filter_map(variant).map(Arc::new).collect()
    }

    /// Returns whether a denial can count as a strike.
    pub(crate) fn has_penalties(&self) -> bool {
        self.specs.iter().any(|spec| spec.penalty().is_some())
    }

    /// Returns an error if an enforced limit without a cost of its own can never allow `cost`.
    pub(crate) fn check_cost(&self, cost: u64) -> Result<(), ConfigError> {
        let is_charged = |limit: &&Limit| limit.cost.is_none() && !limit.is_shadow;
        self.limits.iter().filter(is_charged).try_for_each(|limit| limit.check_cost(cost))
    }

    /// Returns whether responses can change what requests cost.
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

impl fmt::Debug for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.limits).finish()
    }
}
