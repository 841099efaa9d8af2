//! Limits that are decided together.

use std::sync::Arc;

use super::Limit;
use crate::cost::Cost;
use crate::error::{ConfigError, ConfigErrorKind};
use crate::hash::KeyHasher;
use crate::request::RequestHead;
use crate::signal::Signal;
use crate::store::Terms;

/// Limits that are decided together, each with its terms for one store.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    limits: Box<[Limit]>,
    /// Of each limit, with all the overage that it can have.
    terms: Box<[Arc<Terms>]>,
    /// Of each elastic limit, without. Empty, if none is.
    tight: Box<[Option<Arc<Terms>>]>,
    hasher: KeyHasher,
    has_other_sizes: bool,
}

/// The most limits of one request.
const MOST: usize = 64;

impl Limits {
    pub(crate) fn new(limits: Vec<Limit>, hasher: &KeyHasher) -> Result<Self, ConfigError> {
        if limits.is_empty() {
            return Err(ConfigErrorKind::NoLimits.into());
        }
        if limits.len() > MOST {
            return Err(ConfigErrorKind::TooManyLimits { limits: limits.len() }.into());
        }
        for (index, limit) in limits.iter().enumerate() {
            if limits[..index].iter().any(|other| other.name == limit.name) {
                return Err(ConfigErrorKind::NameTwice { name: limit.name.to_string() }.into());
            }
            limit.cost.as_ref().and_then(Cost::largest).map_or(Ok(()), |cost| limit.can_hold(cost))?;
        }
        let mut limits = Self {
            has_other_sizes: limits.iter().any(Limit::has_other_sizes),
            limits: limits.into(),
            terms: Box::default(),
            tight: Box::default(),
            hasher: *hasher,
        };
        limits.hash_by(hasher);
        Ok(limits)
    }

    /// Fits the terms to a store that hashes by `hasher`.
    pub(crate) fn hash_by(&mut self, hasher: &KeyHasher) {
        self.hasher = *hasher;
        let limits = || self.limits.iter().enumerate();
        let tight = |(index, limit): (usize, &Limit)| {
            let terms = Terms::new(limit.name.clone(), index as u16, limit.algorithm, hasher);
            let terms = if limit.is_overridable { terms.overridable() } else { terms };
            if limit.is_shadow { terms.shadow() } else { terms }
        };
        let soft = |(index, limit): (usize, &Limit)| {
            let terms = tight((index, limit));
            Arc::new(limit.overage.iter().fold(terms, |terms, overage| terms.soft(overage.percent)))
        };
        let is_elastic = |limit: &Limit| limit.overage.as_ref().is_some_and(|overage| overage.signal.is_some());
        let if_elastic = |each: (usize, &Limit)| is_elastic(each.1).then(|| Arc::new(tight(each)));
        self.terms = limits().map(soft).collect();
        self.tight = limits().map(if_elastic).collect();
        if self.tight.iter().all(Option::is_none) {
            self.tight = Box::default();
        }
    }

    /// Enforces none of them.
    pub(crate) fn shadow(&mut self) {
        self.limits.iter_mut().for_each(|limit| limit.is_shadow = true);
        self.hash_by(&self.hasher.clone());
    }

    /// What applies at present of a limit's `terms`: with its overage or without.
    #[inline]
    pub(crate) fn present<'a>(&'a self, terms: &'a Arc<Terms>) -> &'a Arc<Terms> {
        if self.tight.is_empty() { terms } else { self.elastic(terms) }
    }

    fn elastic<'a>(&'a self, terms: &'a Arc<Terms>) -> &'a Arc<Terms> {
        let index = usize::from(terms.index());
        let Some(tight) = self.tight.get(index).and_then(Option::as_ref) else { return terms };
        let signal = self.limits[index].overage.as_ref().and_then(|overage| overage.signal.as_deref());
        if signal.is_none_or(Signal::has_spare) { terms } else { tight }
    }

    /// The terms of all limits that have another size for a request.
    pub(crate) fn other_sizes(&self, head: &RequestHead<'_>) -> Box<[Arc<Terms>]> {
        if !self.has_other_sizes {
            return Box::default();
        }
        let other = |(limit, terms): (&Limit, _)| {
            let sized = self.present(terms).sized(limit.size_for(head)?, &self.hasher);
            Some(Arc::new(if limit.is_overridable { sized.overridable() } else { sized }))
        };
        self.iter().filter_map(other).collect()
    }

    /// Whether there is something to tell of decisions that are no denials.
    pub(crate) fn has_thresholds(&self) -> bool {
        self.limits.iter().any(|limit| limit.is_shadow || limit.overage.is_some())
    }

    /// Refuses a cost that could never pass.
    pub(crate) fn can_hold(&self, cost: u64) -> Result<(), ConfigError> {
        self.limits.iter().filter(|limit| limit.cost.is_none()).try_for_each(|limit| limit.can_hold(cost))
    }

    /// Whether a response can change what a request has cost.
    pub(crate) fn look_at_responses(&self) -> bool {
        self.limits.iter().any(|limit| limit.actual_cost.is_some())
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (&Limit, &Arc<Terms>)> {
        self.limits.iter().zip(&self.terms)
    }

    pub(crate) fn terms(&self, index: usize) -> Option<&Arc<Terms>> {
        self.terms.get(index)
    }

    /// What a store needs to know of each.
    #[inline]
    pub(crate) fn all_terms(&self) -> &[Arc<Terms>] {
        &self.terms
    }

    pub(crate) fn as_slice(&self) -> &[Limit] {
        &self.limits
    }
}
