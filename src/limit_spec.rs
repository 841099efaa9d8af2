//! What a store needs to know of a limit.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use crate::algorithm::{Algorithm, Penalty, PreparedAlgorithm, Size};
use crate::hash::{KeyHash, KeyHasher};

/// What a store needs to know of a limit.
#[derive(Clone, Debug)]
// In this order, what nearly every decision looks at lies in as few cache lines as it can.
#[repr(C)]
pub struct LimitSpec {
    hash: KeyHash,
    rule: PreparedAlgorithm,
    /// What decides where there is overage.
    ceiling: Option<Box<(Algorithm, PreparedAlgorithm)>>,
    penalty: Option<Box<Penalised>>,
    capacity: u64,
    index: u16,
    is_enforced: bool,
    is_quota: bool,
    /// Worked out of penalty, overrides and ceiling.
    is_plain: bool,
    overrides: Overrides,
    algorithm: Algorithm,
    name: Arc<str>,
    /// How much may be used beyond the limit, in per cent of it.
    percent: u32,
    /// By how many per cent the store's size is raised where overage is told as what is left.
    raised_by: u32,
    /// What the store has derived from the rest.
    store_data: OnceLock<Arc<dyn Any + Send + Sync>>,
}

/// The penalty of a limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Penalised {
    pub(crate) penalty: Penalty,
    /// What tells the print of a key's penalty from that of its limit.
    pub(crate) mask: u128,
    /// Whether denials are strikes.
    pub(crate) counts: bool,
}

/// Whether a store may hold another size for some keys.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Overrides {
    None,
    Some,
    /// This is one.
    This,
}

/// Those of the limit at `index`, among the spec of some.
#[inline]
pub(crate) fn find(index: usize, specs: &[Arc<LimitSpec>]) -> Option<&Arc<LimitSpec>> {
    specs.iter().find(|spec| usize::from(spec.index) == index)
}

impl LimitSpec {
    /// The spec of the limit `name`, the `index`th of its limiter, on a store that hashes keys by
    /// `hasher`.
    pub(crate) fn new(name: Arc<str>, index: u16, algorithm: Algorithm, hasher: &KeyHasher) -> Self {
        // What is remembered under one algorithm, period or calendar means nothing under another.
        let identity = format!("{} {} {name}", algorithm.tag(), algorithm.state_period());
        Self {
            name,
            hash: hasher.hash(identity.as_bytes()),
            index,
            algorithm,
            rule: algorithm.prepare(),
            percent: 0,
            ceiling: None,
            capacity: algorithm.capacity(),
            is_enforced: true,
            is_quota: false,
            is_plain: true,
            penalty: None,
            overrides: Overrides::None,
            raised_by: 0,
            store_data: OnceLock::new(),
        }
    }

    /// The same, of which a denial too many has consequences.
    pub(crate) fn penalised(self, penalty: Penalty, hasher: &KeyHasher) -> Self {
        let identity = [&b"penalty"[..], &self.hash.as_u128().to_le_bytes()].concat();
        let mask = hasher.hash(&identity).as_u128();
        Self { penalty: Some(Box::new(Penalised { penalty, mask, counts: true })), ..self }.seen_through()
    }

    /// The same, whose denials count for no penalty, if there is one.
    pub(crate) fn without_strikes(self: &Arc<Self>) -> Arc<Self> {
        let Some(penalised) = self.penalty() else { return self.clone() };
        let penalty = Some(Box::new(Penalised { counts: false, ..*penalised }));
        Arc::new(Self { penalty, ..Self::clone(self) }.seen_through())
    }

    /// The same, with as much overage as `percent` of the limit.
    pub(crate) fn soft(self, percent: u32) -> Self {
        let ceiling = self.algorithm.raised(percent);
        let capacity = ceiling.capacity();
        let ceiling = (ceiling != self.algorithm).then(|| Box::new((ceiling, ceiling.prepare())));
        Self { percent, ceiling, capacity, ..self }.seen_through()
    }

    /// The same, decided and not enforced.
    pub(crate) fn shadow(self) -> Self {
        Self { is_enforced: false, is_quota: false, penalty: None, ..self }.seen_through()
    }

    /// Puts the spec in quota mode: a request needs room in one of its limits in quota mode.
    pub(crate) fn quota(self) -> Self {
        Self { is_quota: true, ..self }.seen_through()
    }

    /// Leaves it to the caller to enforce quota mode, because the limits of a request lie in several slots.
    #[cfg(feature = "redis")]
    pub(crate) fn quota_cross_slot(&self) -> Self {
        Self { is_enforced: false, ..self.clone() }.seen_through()
    }

    /// The same, of which the store may hold other sizes.
    pub(crate) fn overridable(self) -> Self {
        Self { overrides: Overrides::Some, ..self }.seen_through()
    }

    /// The same, which was made of others: what is worked out of the rest is its own.
    fn seen_through(self) -> Self {
        Self {
            is_plain: self.penalty.is_none() && !self.is_overridable() && self.ceiling.is_none(),
            store_data: OnceLock::new(),
            ..self
        }
    }

    /// The same, of the size that the store holds for a key.
    pub(crate) fn overridden(&self, size: Size) -> Option<Self> {
        let algorithm = self.algorithm.sized(size)?.raised(self.raised_by);
        let capacity = algorithm.capacity();
        let rule = algorithm.prepare();
        let sized = Self { algorithm, rule, ceiling: None, capacity, overrides: Overrides::This, ..self.clone() };
        Some(sized.soft(self.percent))
    }

    /// The same limit, of another size.
    pub(crate) fn sized(&self, algorithm: Algorithm, hasher: &KeyHasher) -> Self {
        let sized = Self::new(self.name.clone(), self.index, algorithm, hasher).soft(self.percent);
        let sized = Self { is_enforced: self.is_enforced, is_quota: self.is_quota, ..sized };
        match self.penalty() {
            Some(of) => {
                let counts = of.counts;
                let mut sized = sized.penalised(of.penalty, hasher);
                sized.penalty.iter_mut().for_each(|penalty| penalty.counts = counts);
                sized
            }
            None => sized,
        }
    }

    /// The limit's name. Limits of one name, algorithm and period (or calendar) share what their keys have used.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns what the store derives from the limit, such as the names or arguments that all requests share. Calls
    /// `derive` once for each limit, and keeps the result as long as the limit.
    ///
    /// A `LimitSpec` is made for one store and holds one value. If it already holds a value of another type, because
    /// a store that wraps the other uses it too, `derive` is called each time.
    ///
    /// ```
    /// use tower_ratelimit::store::LimitSpec;
    ///
    /// struct Table(String);
    ///
    /// fn table_of(spec: &LimitSpec) -> std::sync::Arc<Table> {
    ///     spec.store_data(|| Table(format!("ratelimit_{}", spec.name())))
    /// }
    /// ```
    pub fn store_data<T: Any + Send + Sync>(&self, derive: impl Fn() -> T) -> Arc<T> {
        let data = self.store_data.get_or_init(|| Arc::new(derive()));
        data.clone().downcast().unwrap_or_else(|_| Arc::new(derive()))
    }

    /// What it decides, and what is told of it: without its overage.
    #[must_use]
    pub fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    /// How a store in this process decides that.
    #[inline]
    pub(crate) fn rule(&self) -> &PreparedAlgorithm {
        &self.rule
    }

    /// Whether it denies requests for which it has no room. One that is not enforced is charged if it has
    /// room, whatever others of its kind say, but only if all that are enforced have room.
    #[must_use]
    pub fn is_enforced(&self) -> bool {
        self.is_enforced
    }

    /// Whether the limit is in [quota mode](crate::Limit::quota_mode): of the limits of a request that are, one needs
    /// to have room. Each that has room is charged, if those that are enforced otherwise have room, too.
    #[must_use]
    #[inline]
    pub fn is_quota(&self) -> bool {
        self.is_quota
    }

    /// What becomes of keys that it denies too often.
    #[inline]
    pub(crate) fn penalty(&self) -> Option<&Penalised> {
        self.penalty.as_deref()
    }

    /// Whether a store is to look for an [override](crate::Overrides) of it, and to decide by that.
    #[must_use]
    #[inline]
    pub fn is_overridable(&self) -> bool {
        self.overrides == Overrides::Some
    }

    /// Whether all that a store has to look at is what a key has used, by one rule.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// Whether it is what a store has held for a key.
    pub(crate) fn is_override(&self) -> bool {
        self.overrides == Overrides::This
    }

    /// By what it decides: the limit with its overage.
    #[cfg(feature = "redis")]
    pub(crate) fn deciding(&self) -> &PreparedAlgorithm {
        self.raised().unwrap_or(&self.rule)
    }

    /// What decides where it has overage.
    #[inline]
    pub(crate) fn raised(&self) -> Option<&PreparedAlgorithm> {
        self.ceiling.as_deref().map(|(_, rule)| rule)
    }

    /// The same, which tells its overage as what is left of the limit.
    pub(crate) fn at_ceiling(&self) -> Self {
        let algorithm = self.ceiling.as_ref().map_or(self.algorithm, |ceiling| ceiling.0);
        let rule = algorithm.prepare();
        let raised = Self { algorithm, rule, percent: 0, ceiling: None, raised_by: self.percent, ..self.clone() };
        raised.seen_through()
    }

    /// What decides: the limit with its overage.
    #[cfg(feature = "redis")]
    pub(crate) fn ceiling(&self) -> &Algorithm {
        self.ceiling.as_ref().map_or(&self.algorithm, |ceiling| &ceiling.0)
    }

    /// The largest cost that it can ever allow.
    #[inline]
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(crate) fn index(&self) -> u16 {
        self.index
    }

    /// Tells it from the limits of other limiters.
    pub(crate) fn identity(&self) -> u64 {
        self.hash.as_u128() as u64
    }

    /// The hash of `key` under this limit.
    pub(crate) fn print(&self, key: KeyHash) -> u128 {
        key.under(self.hash).as_u128()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::algorithm::FixedWindow;

    #[test]
    fn store_data_is_derived_once_and_anew_for_a_changed_limit() {
        let spec = LimitSpec::new("limit".into(), 0, FixedWindow::per_day(1).into(), &KeyHasher::random());
        let calls = Cell::new(0);
        let derive = || calls.replace(calls.get() + 1);
        assert_eq!([*spec.store_data(derive), *spec.store_data(derive)], [0, 0]);
        assert_eq!(*spec.clone().store_data(derive), 0);
        assert_eq!(*spec.soft(10).store_data(derive), 1);
    }

    #[test]
    fn store_data_of_another_type_is_derived_each_time() {
        let spec = LimitSpec::new("limit".into(), 0, FixedWindow::per_day(1).into(), &KeyHasher::random());
        assert_eq!(*spec.store_data(|| 1), 1);
        assert_eq!([*spec.store_data(|| "a"), *spec.store_data(|| "b")], ["a", "b"]);
        assert_eq!(*spec.store_data(|| 2), 1);
    }
}
