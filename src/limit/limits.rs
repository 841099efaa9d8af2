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
use crate::error::ConfigError;
use crate::key::hash::{KeyHash, KeyHasher};
use crate::key::head::RequestHead;
use crate::store::decision::{Cell, Cells, Texts, Veto};
use crate::store::{Store, escape};

/// Limits that are decided together, each with its cell for one store. Limits are numbered in order.
#[derive(Clone)]
pub(crate) struct Limits {
    limits: Arc<[Limit]>,
    /// The names of the limits, by position.
    pub(crate) names: Arc<[Arc<str>]>,
    /// The cell of each limit, for no key yet.
    cells: Box<[Cell]>,
    has_penalty_or_elastic: bool,
    /// The limits that are checked one by one.
    unindexed: Arc<[usize]>,
    /// The limits that are found by indexes.
    pub(crate) indexed: Arc<[IndexedLimits]>,
    /// Whether the size or the metrics of a limit depend on the request.
    depends_on_request: bool,
    /// Whether responses can change the costs of requests.
    pub(crate) settles_by_response: bool,
    pub(crate) hasher: KeyHasher,
    /// Whether cells have [readable names](Cell::readable_name).
    has_names: bool,
}

/// The maximum number of cells for which room is made at once. Few requests have more.
const MAX_RESERVED: usize = 8;

/// The maximum number of limits that apply to one request.
const MAX_PER_REQUEST: usize = 64;
/// The number of limits that are dropped without delay.
const MANY_LIMITS: usize = 1_000;
/// The maximum number of limits of a limiter.
const MAX_LIMITS: usize = 8_192;

impl Limits {
    /// Creates a set of limits, which may be empty. Its cells are those of no store.
    ///
    /// # Errors
    ///
    /// Returns an error if there are too many limits, if too many may apply to one request, if two have the same name,
    /// if one can never allow its constant cost, has an impossible overage, or is in quota mode and has a penalty.
    pub(crate) fn new(limits: impl IntoIterator<Item = Limit>) -> Result<Self, ConfigError> {
        let limits: Vec<Limit> = limits.into_iter().collect();
        check_each(&limits)?;
        let (unindexed, indexed) = partition(&limits);
        let mut limits = Self {
            unindexed: unindexed.into(),
            indexed: indexed.into(),
            has_penalty_or_elastic: limits
                .iter()
                .any(|limit| limit.enforced_penalty().is_some() || limit.spare_capacity.is_some()),
            depends_on_request: limits.iter().any(|limit| !limit.sizes.is_empty() || limit.metric_detail.is_some()),
            settles_by_response: limits.iter().any(|limit| limit.actual_cost.is_some()),
            names: limits.iter().map(|limit| limit.name.clone()).collect(),
            limits: limits.into(),
            cells: Box::default(),
            hasher: KeyHasher::with_secret([0; 16]),
            has_names: false,
        };
        limits.check_max_matches()?;
        limits.derive_cells();
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

    /// Derives the cells for a store. Puts all limits into shadow mode if `is_shadow` is set.
    pub(crate) fn set_store(&mut self, store: &dyn Store, is_shadow: bool) {
        (self.hasher, self.has_names) = (store.hasher(), store.has_readable_keys());
        if is_shadow {
            Arc::make_mut(&mut self.limits).iter_mut().for_each(|limit| limit.is_shadow = true);
        }
        self.derive_cells();
    }

    fn derive_cells(&mut self) {
        let cells = (0..).zip(&*self.limits).map(|(index, limit)| self.new_cell(index, limit, limit.algorithm));
        self.cells = cells.collect();
    }

    /// Creates the cell of a limit at a size, for no key yet.
    fn new_cell(&self, index: u16, limit: &Limit, algorithm: Algorithm) -> Cell {
        let mut cell = Cell::new(index, &limit.name, algorithm, &self.hasher);
        if self.has_names {
            let name = format!("{}:{}{}", escape(&limit.name), algorithm.tag(), algorithm.state_period());
            cell.texts = Some(Arc::new(Texts { name: Some(name.into()), detail: None }));
        }
        cell.set_veto(match limit {
            Limit { is_shadow: true, .. } => Veto::Shadow,
            Limit { is_quota: true, .. } => Veto::Quota,
            _ => Veto::Enforced,
        });
        cell.set_overage(limit.overage.unwrap_or_default());
        cell.is_overridable = limit.is_overridable;
        cell
    }

    /// Adds the cells of a limit to those of a request.
    #[inline]
    pub(crate) fn add(&self, cells: &mut Cells, index: usize, key: KeyHash, cost: u64) {
        if !cells.is_empty() && cells.len() == cells.capacity() {
            cells.reserve(self.limits.len().min(MAX_RESERVED));
        }
        cells.push(self.cells[index].with_key(key, cost));
        if self.has_penalty_or_elastic {
            self.complete_last(cells);
        }
    }

    /// Returns the cells of all limits for one key. Always inlined, because returning a cell moves it.
    #[inline(always)]
    pub(crate) fn cells_of(&self, key: KeyHash, cost: u64) -> Cells {
        // Filled in place, because moving a cell takes 30 instructions.
        match &*self.cells {
            [cell] if !self.has_penalty_or_elastic => Cells::from_buf([cell.with_key(key, cost)]),
            _ => self.all_cells_of(key, cost),
        }
    }

    fn all_cells_of(&self, key: KeyHash, cost: u64) -> Cells {
        if !self.has_penalty_or_elastic {
            return self.cells.iter().map(|cell| cell.with_key(key, cost)).collect();
        }
        let mut cells = Cells::new();
        (0..self.limits.len()).for_each(|limit| self.add(&mut cells, limit, key, cost));
        cells
    }

    /// Adds the cells of a limit to those of a request, as an earlier request was asked, with another cost.
    pub(crate) fn add_again(&self, cells: &mut Cells, earlier: &Cell, cost: u64) {
        let mut cell = earlier.asked_again(cost);
        // A quota that is not asked for anything has no capacity for what others are asked for.
        if cost == 0 && cell.veto == Veto::Quota {
            cell.set_veto(Veto::Enforced);
        }
        cells.push(cell);
        self.complete_last(cells);
    }

    /// Sets the overage of the last cell if its limit is elastic, and adds the cell of its penalty.
    fn complete_last(&self, cells: &mut Cells) {
        let Some(cell) = cells.last_mut() else { return };
        let limit = &self.limits[cell.limit()];
        if let Some(spare_capacity) = &limit.spare_capacity {
            cell.set_overage(if spare_capacity.is_available() { limit.overage.unwrap_or_default() } else { 0 });
        }
        if let Some(penalty) = limit.enforced_penalty() {
            let penalty = cell.of_penalty(penalty.algorithm());
            cells.push(penalty);
        }
    }

    /// Gives the cells of a request the sizes and details that their limits have for it.
    #[inline]
    pub(crate) fn fit(&self, cells: &mut Cells, head: &RequestHead<'_>) {
        if self.depends_on_request {
            self.fit_each(cells, head);
        }
    }

    fn fit_each(&self, cells: &mut Cells, head: &RequestHead<'_>) {
        for index in 0..cells.len() {
            if cells[index].is_of_penalty() {
                continue;
            }
            let limit = &self.limits[cells[index].limit()];
            let size = limit.sizes.iter().find_map(|size| size(head));
            if let Some(size) = size.filter(|size| *size != limit.algorithm) {
                let is_known = limit.has_several_states.load(Ordering::Relaxed);
                if !is_known && !limit.algorithm.shares_state_with(&size) {
                    limit.has_several_states.store(true, Ordering::Relaxed);
                }
                self.set_size(&mut cells[index..], size);
            }
            if let Some(detail) = limit.metric_detail.as_ref().and_then(|detail| detail(head)) {
                Arc::make_mut(cells[index].texts.get_or_insert_default()).detail = Some(detail);
            }
        }
    }

    /// Gives the first cell another size of its limit, and the cell of its penalty, which follows, the same state.
    pub(crate) fn set_size(&self, cells: &mut [Cell], size: Algorithm) {
        let Some((cell, rest)) = cells.split_first_mut() else { return };
        let limit = &self.limits[cell.limit()];
        cell.set_algorithm(size);
        if !limit.algorithm.shares_state_with(&size) {
            // Another algorithm or period has states of its own.
            let sized = self.new_cell(cell.limit, limit, size);
            (cell.identity, cell.texts) = (sized.identity, sized.texts);
            if let Some(penalty) = rest.first_mut().filter(|next| next.is_of_penalty()) {
                *penalty = cell.of_penalty(penalty.algorithm);
            }
        }
    }

    /// Returns an error if an enforced limit without a cost of its own can never allow `cost`.
    pub(crate) fn check_cost(&self, cost: u64) -> Result<(), ConfigError> {
        let is_charged = |limit: &&Limit| limit.cost.is_none() && !limit.is_shadow;
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

    /// Prepares charged cells for their refund: by the current numbers of their limits, unless the request or the key
    /// had others. Leaves out limits that no longer exist, and charges of another store.
    pub(crate) fn fit_refund(&self, charged: &mut Cells) {
        let has_sizes = |limit: &Limit| !limit.sizes.is_empty();
        // A limit has another position only after a replacement of live limits.
        let current = |cell: &Cell| {
            let is_of = |current: &&Cell| current.identity == cell.identity;
            self.cells.get(cell.limit()).filter(is_of).or_else(|| self.cells.iter().find(is_of))
        };
        charged.retain(|cell| match current(cell) {
            _ if cell.store != self.hasher.store => false,
            Some(current) => {
                cell.limit = current.limit;
                if !cell.is_resized() && !has_sizes(&self.limits[current.limit()]) {
                    cell.set_algorithm(current.algorithm);
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
        let mut cells = Cells::new();
        limits.add(&mut cells, 0, KeyHash::ZERO, 1);
        is_spare.store(true, Ordering::Relaxed);
        let mut later = Cells::new();
        limits.add_again(&mut later, &cells[0], 1);
        assert_eq!([&cells[0], &later[0]].map(|cell| cell.algorithm().overage()), [0, 5]);
    }
}
