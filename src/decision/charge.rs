//! What a request asks of one limit, for one key.

use crate::algorithm::{Algorithm, Size};
use crate::key::hash::{KeyHash, KeyHasher};

/// What a request asks of one limit, for one key. A [`Store`](crate::Store) answers by an [`Outcome`](super::Outcome).
///
/// A limiter creates the charges of a request.
#[derive(Clone, Copy, Debug)]
pub struct Charge {
    pub(crate) key: KeyHash,
    /// The hash of the limit's identity: its algorithm, its period and its name. It separates the states of its keys
    /// from those of other limits.
    pub(crate) identity: KeyHash,
    /// The limit with its overage, at the size that applies to the key.
    pub(crate) algorithm: Algorithm,
    /// The size of the limit without an override.
    pub(crate) own_size: Size,
    pub(crate) cost: u64,
    pub(crate) overage_percent: u32,
    pub(crate) limit: u16,
    pub(crate) veto: Veto,
    pub(crate) is_overridable: bool,
}

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

/// Creates charges.
impl Charge {
    /// Creates the charge of a limit for no key yet. The algorithm has no overage.
    pub(crate) fn new(limit: u16, name: &str, algorithm: Algorithm, hasher: &KeyHasher) -> Self {
        let identity = format!("{} {} {name}", algorithm.tag(), algorithm.state_period());
        Self {
            key: KeyHash::ZERO,
            identity: hasher.hash(identity.as_bytes()),
            cost: 0,
            algorithm,
            own_size: algorithm.size(),
            overage_percent: 0,
            limit,
            veto: Veto::Enforced,
            is_overridable: false,
        }
    }

    /// Returns the fingerprint of the state of the key under the limit's penalty.
    pub(crate) fn penalty_fingerprint(&self) -> u128 {
        self.key.under(self.identity.complement()).as_u128()
    }

    /// Returns the charge for a key and a cost.
    #[inline]
    pub(crate) fn with_key(self, key: KeyHash, cost: u64) -> Self {
        Self { key, cost, ..self }
    }

    /// Returns the charge with another cost, at the limit's own size.
    pub(crate) fn asked_again(mut self, cost: u64) -> Self {
        self.cost = cost;
        self.resize(self.own_size);
        self
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
    pub(crate) fn share(mut self, parts: u32, hasher: &KeyHasher) -> Self {
        self.resize(self.own_size);
        self.set_algorithm(self.algorithm.share(parts));
        let period = format!("{} {}", self.algorithm.tag(), self.algorithm.state_period());
        self.identity = hasher.hash(period.as_bytes()).under(self.identity);
        self.key = hasher.hash(&self.key.as_u128().to_le_bytes());
        self
    }
}

impl Charge {
    /// Returns the hash of the key. Limits of one request with the same key have the same hash. The hash of a key of
    /// one part is the [`KeyHasher::hash`] of its bytes.
    #[must_use]
    #[inline]
    pub fn key(&self) -> KeyHash {
        self.key
    }

    /// Returns the fingerprint that identifies the state of the key under the limit.
    #[must_use]
    #[inline]
    pub fn fingerprint(&self) -> u128 {
        self.key.under(self.identity).as_u128()
    }

    /// Returns the position of the limit among those of the limiter.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit.into()
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
    /// [apply](super::Outcome::apply_override) it.
    #[must_use]
    pub fn is_overridable(&self) -> bool {
        self.is_overridable
    }
}
