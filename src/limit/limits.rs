//! Limits that are decided together.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use super::Limit;
use super::search::Together;
use crate::cost::Cost;
use crate::decision::Outcome;
use crate::error::{ConfigError, ConfigErrorKind};
use crate::hash::KeyHasher;
use crate::request::RequestHead;
use crate::signal::Signal;
use crate::store::LimitSpec;

/// Limits that are decided together, each with its spec for one store.
#[derive(Clone)]
pub(crate) struct Limits {
    limits: Box<[Limit]>,
    /// Of each limit, with all the overage that it can have.
    spec: Box<[Arc<LimitSpec>]>,
    /// Of each elastic limit, without. Empty, if none is.
    tight: Box<[Option<Arc<LimitSpec>>]>,
    /// Those that are asked whether they apply,
    alone: Box<[u16]>,
    /// and those that are looked for together.
    together: Box<[Together]>,
    /// Those that have another size for some requests.
    other_sizes: Box<[u16]>,
    look_at_responses: bool,
    hasher: KeyHasher,
}

/// The most limits of one request,
const MOST: usize = 64;
/// and of a limiter.
const MOST_IN_ALL: usize = Outcome::LIMITS;

/// Refuses limits that need a request.
pub(crate) fn are_plain(limits: &[Limit]) -> Result<(), ConfigError> {
    let wanting = limits.iter().find_map(|limit| Some((limit.name(), limit.needs_of_a_request()?)));
    wanting.map_or(Ok(()), |(limit, what)| Err(ConfigErrorKind::NeedsRequest { limit: limit.to_owned(), what }.into()))
}

impl Limits {
    /// Checks that the limits fit together. There may be none.
    pub(crate) fn new(limits: Vec<Limit>, hasher: &KeyHasher) -> Result<Self, ConfigError> {
        if limits.len() > MOST_IN_ALL {
            return Err(ConfigErrorKind::TooManyLimits { limits: limits.len(), most: MOST_IN_ALL }.into());
        }
        let mut names = HashSet::new();
        let (mut alone, mut together) = (Vec::new(), Vec::<Together>::new());
        for (index, limit) in limits.iter().enumerate() {
            let index = index as u16;
            if !names.insert(&*limit.name) {
                return Err(ConfigErrorKind::NameTwice { name: limit.name.to_string() }.into());
            }
            if limit.is_quota && limit.penalty.is_some() {
                return Err(ConfigErrorKind::QuotaPenalty { limit: limit.name.to_string() }.into());
            }
            limit.cost.as_ref().and_then(Cost::largest).map_or(Ok(()), |cost| limit.can_hold(cost))?;
            let Some(place) = &limit.place else {
                alone.push(index);
                continue;
            };
            match together.iter_mut().find(|some| Arc::ptr_eq(&some.search, &place.search)) {
                Some(some) => some.put(place.index, index),
                None => {
                    let mut some = Together::new(place.search.clone());
                    some.put(place.index, index);
                    together.push(some);
                }
            }
        }
        let at = |some: &Together, place| Some(limits[some.at(place)?].missing_key());
        let most = together.iter().map(|some| some.search.most(&|place| at(some, place))).sum::<usize>() + alone.len();
        if most > MOST {
            return Err(ConfigErrorKind::TooManyLimits { limits: most, most: MOST }.into());
        }
        let others = limits.iter().enumerate().filter(|(_, limit)| limit.has_other_sizes());
        let other_sizes = others.map(|(index, _)| index as u16);
        let mut limits = Self {
            alone: alone.into(),
            together: together.into(),
            other_sizes: other_sizes.collect(),
            look_at_responses: limits.iter().any(|limit| limit.actual_cost.is_some()),
            limits: limits.into(),
            spec: Box::default(),
            tight: Box::default(),
            hasher: *hasher,
        };
        limits.set_hasher(hasher);
        Ok(limits)
    }

    /// Fits the spec to a store that hashes by `hasher`.
    pub(crate) fn set_hasher(&mut self, hasher: &KeyHasher) {
        self.hasher = *hasher;
        let limits = || self.limits.iter().enumerate();
        let tight = |(index, limit): (usize, &Limit)| {
            let spec = LimitSpec::new(limit.name.clone(), index as u16, limit.algorithm, hasher);
            let spec = if limit.is_overridable { spec.overridable() } else { spec };
            match limit.penalty {
                _ if limit.is_shadow => spec.shadow(),
                _ if limit.is_quota => spec.quota(),
                Some(penalty) => spec.penalised(penalty, hasher),
                None => spec,
            }
        };
        let soft = |(index, limit): (usize, &Limit)| {
            let spec = tight((index, limit));
            Arc::new(limit.overage.iter().fold(spec, |spec, overage| spec.soft(overage.percent)))
        };
        let is_elastic = |limit: &Limit| limit.overage.as_ref().is_some_and(|overage| overage.signal.is_some());
        let if_elastic = |each: (usize, &Limit)| is_elastic(each.1).then(|| Arc::new(tight(each)));
        self.spec = limits().map(soft).collect();
        self.tight = limits().map(if_elastic).collect();
        if self.tight.iter().all(Option::is_none) {
            self.tight = Box::default();
        }
    }

    /// Enforces none of them.
    pub(crate) fn shadow(&mut self) {
        self.limits.iter_mut().for_each(|limit| limit.is_shadow = true);
        self.set_hasher(&self.hasher.clone());
    }

    /// What applies at present of a limit's `spec`: with its overage or without.
    #[inline]
    pub(crate) fn present<'a>(&'a self, spec: &'a Arc<LimitSpec>) -> &'a Arc<LimitSpec> {
        if self.tight.is_empty() { spec } else { self.elastic(spec) }
    }

    fn elastic<'a>(&'a self, spec: &'a Arc<LimitSpec>) -> &'a Arc<LimitSpec> {
        let index = usize::from(spec.index());
        let Some(tight) = self.tight.get(index).and_then(Option::as_ref) else { return spec };
        let signal = self.limits[index].overage.as_ref().and_then(|overage| overage.signal.as_deref());
        if signal.is_none_or(Signal::has_spare) { spec } else { tight }
    }

    /// The spec of all limits that have another size for a request.
    pub(crate) fn other_sizes(&self, head: &RequestHead<'_>) -> Box<[Arc<LimitSpec>]> {
        if self.other_sizes.is_empty() {
            return Box::default();
        }
        let other = |index: &u16| {
            let (limit, spec) = self.at((*index).into());
            let sized = self.present(spec).sized(limit.size_for(head)?, &self.hasher);
            Some(Arc::new(if limit.is_overridable { sized.overridable() } else { sized }))
        };
        self.other_sizes.iter().filter_map(other).collect()
    }

    /// Whether there is something to tell of decisions that are no denials.
    pub(crate) fn has_thresholds(&self) -> bool {
        self.limits.iter().any(|limit| limit.is_shadow || limit.overage.is_some() || limit.penalty.is_some())
    }

    /// Whether a denial may have consequences.
    pub(crate) fn have_penalties(&self) -> bool {
        self.spec.iter().any(|spec| spec.penalty().is_some())
    }

    /// Refuses a cost that could never pass.
    pub(crate) fn can_hold(&self, cost: u64) -> Result<(), ConfigError> {
        self.limits.iter().filter(|limit| limit.cost.is_none()).try_for_each(|limit| limit.can_hold(cost))
    }

    /// Whether a response can change what a request has cost.
    #[inline]
    pub(crate) fn look_at_responses(&self) -> bool {
        self.look_at_responses
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (&Limit, &Arc<LimitSpec>)> {
        self.limits.iter().zip(&self.spec)
    }

    /// The only one, if it has one size for all requests.
    #[inline]
    pub(crate) fn only(&self) -> Option<(&Limit, &Arc<LimitSpec>)> {
        match (&*self.limits, &*self.spec, &*self.together, &*self.other_sizes) {
            ([limit], [spec], [], []) => Some((limit, spec)),
            _ => None,
        }
    }

    /// Those that are asked whether they apply.
    #[inline]
    pub(crate) fn alone(&self) -> impl Iterator<Item = (&Limit, &Arc<LimitSpec>)> {
        self.alone.iter().map(|index| self.at((*index).into()))
    }

    /// Those that are looked for together, by what finds them.
    #[inline]
    pub(crate) fn together(&self) -> &[Together] {
        &self.together
    }

    /// Whether those that apply may be found in another order than theirs.
    pub(crate) fn are_mixed(&self) -> bool {
        self.together.len() + usize::from(!self.alone.is_empty()) > 1
    }

    #[inline]
    pub(crate) fn at(&self, index: usize) -> (&Limit, &Arc<LimitSpec>) {
        (&self.limits[index], &self.spec[index])
    }

    pub(crate) fn spec(&self, index: usize) -> Option<&Arc<LimitSpec>> {
        self.spec.get(index)
    }

    /// Those of a store's `identity`, wherever they are.
    pub(crate) fn known_as(&self, identity: u64) -> Option<&Arc<LimitSpec>> {
        self.spec.iter().find(|spec| spec.identity() == identity)
    }

    /// What a store needs to know of each.
    #[inline]
    pub(crate) fn all_specs(&self) -> &[Arc<LimitSpec>] {
        &self.spec
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
