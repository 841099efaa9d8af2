//! Charges of requests to limits, and their refunds.

use std::sync::Arc;

use crate::algorithm::ChargeMark;
use crate::hash::KeyHash;
use crate::limit_spec::LimitSpec;

/// A request's charge to one limit.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Charge<'a> {
    /// The limit.
    pub spec: &'a Arc<LimitSpec>,
    /// The key, which has a state of its own under each limit.
    pub key: KeyHash,
    /// The tokens to take. A cost of 0 takes nothing, is always allowed, and reports the state of the key.
    pub cost: u64,
}

impl<'a> Charge<'a> {
    /// Creates a charge. A future of a store can't borrow the charges that it decides: clone their limits, and create
    /// the charges again.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use tower_ratelimit::store::{Charge, KeyHash, LimitSpec, StoreFuture};
    /// use tower_ratelimit::{Decision, Outcome, StoreError, Timestamp, Verdict};
    ///
    /// fn decide(charges: &[Charge<'_>]) -> StoreFuture<Decision> {
    ///     let charges: Vec<(Arc<LimitSpec>, KeyHash, u64)> =
    ///         charges.iter().map(|charge| (charge.spec.clone(), charge.key, charge.cost)).collect();
    ///     StoreFuture::pending(async move {
    ///         let remaining = query_database(&charges).await?;
    ///         let outcomes = charges.iter().zip(remaining).map(|((spec, key, cost), remaining)| {
    ///             let charge = Charge::new(spec, *key, *cost);
    ///             Outcome::new(&charge, Verdict::NOW, remaining, None, Duration::from_secs(60))
    ///         });
    ///         Ok(Decision::new(Timestamp::EPOCH, outcomes))
    ///     })
    /// }
    /// # async fn query_database(_: &[(Arc<LimitSpec>, KeyHash, u64)]) -> Result<Vec<u64>, StoreError> { Ok(vec![1]) }
    /// # let _ = decide;
    /// ```
    #[must_use]
    pub const fn new(spec: &'a Arc<LimitSpec>, key: KeyHash, cost: u64) -> Self {
        Self { spec, key, cost }
    }
}

/// A [`Charge`] that outlives the request's configuration, for futures.
#[derive(Clone, Debug)]
pub(crate) struct OwnedCharge {
    pub(crate) spec: Arc<LimitSpec>,
    pub(crate) key: KeyHash,
    pub(crate) cost: u64,
}

impl OwnedCharge {
    /// Borrows the charge, as stores take it.
    pub(crate) fn as_charge(&self) -> Charge<'_> {
        Charge { spec: &self.spec, key: self.key, cost: self.cost }
    }
}

impl From<&Charge<'_>> for OwnedCharge {
    fn from(charge: &Charge<'_>) -> Self {
        Self { spec: charge.spec.clone(), key: charge.key, cost: charge.cost }
    }
}

/// The refund of an earlier request's charge to one limit.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Refund<'a> {
    /// The limit.
    pub spec: &'a Arc<LimitSpec>,
    /// The key that was charged.
    pub key: KeyHash,
    /// The tokens to refund, as far as they still count.
    pub cost: u64,
    /// The mark of the charge, as the store set it by [`Outcome::with_mark`](crate::Outcome::with_mark).
    pub mark: ChargeMark,
}

impl<'a> Refund<'a> {
    /// Creates the refund of a charge. See [`Charge::new`].
    #[must_use]
    pub const fn new(spec: &'a Arc<LimitSpec>, key: KeyHash, cost: u64, mark: ChargeMark) -> Self {
        Self { spec, key, cost, mark }
    }
}
