//! The part of a limit that stores need.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use crate::algorithm::{Algorithm, Penalty, Size};
use crate::hash::{KeyHash, KeyHasher};
use crate::reported_details::RequestDetail;

/// A limit as a store sees it: which rule decides, and which states of keys belong to it.
///
/// The crate creates one for each limit and store, with the [hasher](crate::Store::hasher) of the store.
#[derive(Clone, Debug)]
pub struct LimitSpec {
    settings: LimitSettings,
    /// The hash of its identity: the name, the algorithm and the period. It separates the states of its keys from those
    /// of other limits.
    hash: KeyHash,
    /// The hash that separates the states of its penalty.
    penalty_hash: Option<KeyHash>,
    /// The limit with its overage.
    algorithm: Algorithm,
    counts_strikes: bool,
    reports_overage: bool,
    is_override: bool,
    store_data: OnceLock<Arc<dyn Any + Send + Sync>>,
}

/// The settings that a limit's spec is made from.
#[derive(Clone, Debug)]
pub(crate) struct LimitSettings {
    pub(crate) name: Arc<str>,
    /// The position among the limits of the limiter.
    pub(crate) index: u16,
    /// The limit without its overage.
    pub(crate) algorithm: Algorithm,
    /// The overage, in percent of the limit.
    pub(crate) overage_percent: u32,
    pub(crate) mode: Mode,
    pub(crate) penalty: Option<Penalty>,
    /// Whether the store must look up overrides.
    pub(crate) is_overridable: bool,
    /// The detail of the request in metrics.
    pub(crate) detail: Option<RequestDetail>,
}

/// The influence of a limit on the decision about a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mode {
    /// It denies requests for which it has no capacity.
    Enforced,
    /// It denies a request if none of the request's limits in this mode has capacity.
    Quota,
    /// It denies nothing.
    Shadow,
}

impl LimitSettings {
    /// Creates the settings of an enforced limit without further settings.
    pub(crate) fn new(name: Arc<str>, index: u16, algorithm: Algorithm) -> Self {
        Self {
            name,
            index,
            algorithm,
            overage_percent: 0,
            mode: Mode::Enforced,
            penalty: None,
            is_overridable: false,
            detail: None,
        }
    }
}

impl LimitSpec {
    /// Creates the spec of a limit on a store that hashes keys by `hasher`.
    pub(crate) fn new(settings: LimitSettings, hasher: &KeyHasher) -> Self {
        // A state is valid only under the algorithm and period that wrote it.
        let algorithm = &settings.algorithm;
        let identity = format!("{} {} {}", algorithm.tag(), algorithm.state_period(), settings.name);
        let hash = hasher.hash(identity.as_bytes());
        let penalty_hash = || hasher.hash(&[&b"penalty"[..], &hash.as_u128().to_le_bytes()].concat());
        Self {
            hash,
            penalty_hash: settings.penalty.map(|_| penalty_hash()),
            algorithm: algorithm.with_overage(settings.overage_percent),
            counts_strikes: true,
            reports_overage: false,
            is_override: false,
            store_data: OnceLock::new(),
            settings,
        }
    }

    /// Returns this limit with another algorithm, which may have another period.
    pub(crate) fn with_algorithm(&self, algorithm: Algorithm, hasher: &KeyHasher) -> Self {
        let settings = LimitSettings { algorithm, ..self.settings.clone() };
        Self { counts_strikes: self.counts_strikes, ..Self::new(settings, hasher) }
    }

    /// Returns one of `parts` of this limit. Its states belong to the limit, and to the period of the share, which may be
    /// longer than that of the limit.
    pub(crate) fn share(&self, parts: u32, hasher: &KeyHasher) -> Self {
        let share = self.with_algorithm(self.settings.algorithm.share(parts), hasher);
        Self { hash: share.hash.under(self.hash), ..share }
    }

    /// Returns this limit with the detail of a request in metrics.
    pub(crate) fn with_detail(&self, detail: RequestDetail) -> Self {
        Self { settings: LimitSettings { detail: Some(detail), ..self.settings.clone() }, ..self.clone() }
    }

    /// Returns the detail of the request in metrics.
    pub(crate) fn detail(&self) -> Option<&str> {
        self.settings.detail.as_ref().map(RequestDetail::report)
    }

    /// Returns this limit with the size of an override, or `None` if it cannot have that size.
    pub(crate) fn with_override(&self, size: Size) -> Option<Self> {
        let algorithm = self.settings.algorithm.with_size(size)?;
        let settings = LimitSettings { algorithm, is_overridable: false, ..self.settings.clone() };
        Some(Self { settings, is_override: true, ..self.clone() }.with_updated_rule())
    }

    /// Returns this limit with the algorithm of an override, for stores that decide by
    /// [overrides](crate::store::OverrideStore): see [`Decision::with_resized`](crate::Decision::with_resized). `None` if
    /// the algorithms differ by more than their size.
    #[must_use]
    pub fn overridden(&self, by: &Algorithm) -> Option<Self> {
        self.with_override(by.size()).filter(|spec| spec.settings.algorithm == *by)
    }

    /// Returns this limit with its overage reported as a part of the remaining tokens.
    pub(crate) fn with_overage_reported(&self) -> Self {
        Self { reports_overage: true, ..self.clone() }.with_updated_rule()
    }

    /// Returns this limit in shadow mode.
    pub(crate) fn in_shadow(&self) -> Self {
        let settings = LimitSettings { mode: Mode::Shadow, ..self.settings.clone() };
        Self { settings, ..self.clone() }.with_updated_rule()
    }

    /// Returns this limit with a penalty that does not count denials as strikes.
    pub(crate) fn without_strikes(self: &Arc<Self>) -> Arc<Self> {
        if self.settings.penalty.is_none() {
            return self.clone();
        }
        Arc::new(Self { counts_strikes: false, ..Self::clone(self) }.with_updated_rule())
    }

    /// Updates the rule, and drops the data of the store. The identity stays the same.
    fn with_updated_rule(self) -> Self {
        let algorithm = self.settings.algorithm.with_overage(self.settings.overage_percent);
        let algorithm = if self.reports_overage { algorithm.with_overage_as_capacity() } else { algorithm };
        Self { algorithm, store_data: OnceLock::new(), ..self }
    }

    /// Returns the name of the limit. Limits with the same name, algorithm and period (or calendar) share the states of
    /// their keys.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// Returns the algorithm that decides, with its [overage](Algorithm::overage), if requests can use that now.
    #[must_use]
    #[inline]
    pub fn algorithm(&self) -> &Algorithm {
        &self.algorithm
    }

    /// Returns the penalty for keys that the limit denies too often, if it has one.
    #[must_use]
    pub fn penalty(&self) -> Option<&Penalty> {
        self.settings.penalty.as_ref()
    }

    /// Returns whether a denial is a strike for the penalty.
    #[must_use]
    pub fn counts_strikes(&self) -> bool {
        self.counts_strikes && self.settings.penalty.is_some()
    }

    /// Returns whether the limit denies requests for which it has no capacity. A limit that is not enforced is charged
    /// if it has capacity and the request is allowed.
    #[must_use]
    pub fn is_enforced(&self) -> bool {
        self.settings.mode != Mode::Shadow
    }

    /// Returns whether the limit is in [quota mode](crate::Limit::quota_mode). At least one of a request's limits in
    /// this mode must have capacity. Each limit that has capacity is charged if the request is allowed.
    #[must_use]
    pub fn is_quota(&self) -> bool {
        self.settings.mode == Mode::Quota
    }

    /// Returns whether the store must look up an [override](crate::Overrides) of the key, and apply it.
    #[must_use]
    pub fn is_overridable(&self) -> bool {
        self.settings.is_overridable
    }

    /// Returns whether the rule alone decides: the limit has no penalty, no overrides, and is not in quota mode.
    pub(crate) fn is_plain(&self) -> bool {
        self.settings.penalty.is_none() && !self.is_overridable() && !self.is_quota()
    }

    /// Returns the fingerprint that identifies the state of `key` under this limit.
    #[must_use]
    pub fn fingerprint(&self, key: KeyHash) -> u128 {
        key.under(self.hash).as_u128()
    }

    /// Returns the fingerprint that identifies the state of the penalty for `key`, if the limit has a penalty.
    #[must_use]
    pub fn penalty_fingerprint(&self, key: KeyHash) -> Option<u128> {
        self.penalty_hash.map(|penalty| key.under(self.hash).under(penalty).as_u128())
    }

    /// Returns the data that the store derives from the limit, such as the names or arguments that all requests share.
    /// Calls `derive` once for each limit, and keeps the result as long as the limit.
    ///
    /// A `LimitSpec` holds one value. Of a store and another store that wraps it, only one should use this: if the
    /// value has another type, `derive` is called each time.
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

    /// Returns the largest cost that can ever be allowed, including overage.
    #[inline]
    pub(crate) fn capacity(&self) -> u64 {
        self.algorithm.hard_capacity()
    }

    /// Returns whether this is the size of an override rather than the limit's own.
    pub(crate) fn is_override(&self) -> bool {
        self.is_override
    }

    /// Returns the position among the limits of the limiter.
    pub(crate) fn index(&self) -> u16 {
        self.settings.index
    }

    /// Returns 64 bits of the hash of the identity, by which refunds find the limit after a replacement of live limits.
    pub(crate) fn identity(&self) -> u64 {
        self.hash.as_u128() as u64
    }
}

/// Finds the spec of the limit at `index`.
pub(crate) fn find(index: usize, specs: &[Arc<LimitSpec>]) -> Option<&Arc<LimitSpec>> {
    specs.iter().find(|spec| usize::from(spec.index()) == index)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::algorithm::{FixedWindow, TokenBucket};

    fn spec() -> LimitSpec {
        let settings = LimitSettings::new("limit".into(), 0, FixedWindow::per_day(10).into());
        LimitSpec::new(LimitSettings { overage_percent: 20, ..settings }, &KeyHasher::random())
    }

    #[test]
    fn an_override_keeps_the_overage_and_how_it_is_reported() {
        let capacities = |spec: &LimitSpec| [spec.algorithm().capacity(), spec.capacity()];
        assert_eq!(capacities(&spec()), [10, 12]);
        assert_eq!(capacities(&spec().with_override([100, 0]).unwrap()), [100, 120]);
        let reported = spec().with_overage_reported();
        assert_eq!(capacities(&reported), [12, 12]);
        assert_eq!(capacities(&reported.with_override([100, 0]).unwrap()), [120, 120]);
        assert!(spec().with_override([0, 0]).is_none());
    }

    #[test]
    fn an_override_of_another_algorithm_does_not_apply() {
        let sizes =
            [FixedWindow::per_day(100).into(), FixedWindow::per_hour(100).into(), TokenBucket::per_day(100).into()];
        let capacity = |by: Algorithm| spec().overridden(&by).map(|spec| spec.algorithm().capacity());
        assert_eq!(sizes.map(capacity), [Some(100), None, None]);
    }

    #[test]
    fn store_data_is_derived_once_and_anew_for_a_changed_limit() {
        let spec = spec();
        let calls = Cell::new(0);
        let derive = || calls.replace(calls.get() + 1);
        assert_eq!([*spec.store_data(derive), *spec.store_data(derive)], [0, 0]);
        assert_eq!(*spec.clone().store_data(derive), 0);
        assert_eq!(*spec.in_shadow().store_data(derive), 1);
    }

    #[test]
    fn store_data_of_another_type_is_derived_each_time() {
        let spec = spec();
        assert_eq!(*spec.store_data(|| 1), 1);
        assert_eq!([*spec.store_data(|| "a"), *spec.store_data(|| "b")], ["a", "b"]);
        assert_eq!(*spec.store_data(|| 2), 1);
    }
}
