//! Decides operations at once.

use std::sync::Arc;

use super::Limiter;
#[cfg(doc)]
use super::builder::Builder;
use super::error::AcquireError;
use crate::decision::{AllowedDecision, Cells, Decision, Verdict};
use crate::error::StoreError;
#[cfg(doc)]
use crate::error::StoreErrorKind;
use crate::key::{self, Key};
#[cfg(doc)]
use crate::limit::LiveLimits;
use crate::resilience::StoreClient;
use crate::store::StoreFuture;

impl Limiter {
    /// Decides whether `key` may take `cost` tokens from every limit, and takes them if so.
    ///
    /// `key` can be any [`Key`]. Use keys of one type with one limiter, because values with the same bytes are the same
    /// key. If a [`LeakyBucketQueue`](crate::LeakyBucketQueue) allows it, the caller continues after the decision's
    /// [`delay`](Decision::delay), as [`wait`](Self::wait) does.
    ///
    /// Awaiting the decision consumes Tokio's cooperative budget, so that a loop yields to other tasks. A memory store
    /// has already charged and decided when this returns, with or without a runtime:
    /// [`as_ready`](crate::store::StoreFuture::as_ready) and [`into_ready`](crate::store::StoreFuture::into_ready)
    /// return its decision without awaiting. Dropping the future refunds nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if the store can't decide and the [policy](Builder::on_store_error) is to reject.
    pub fn acquire(&self, key: impl Key, cost: u64) -> StoreFuture<Decision> {
        if let Some(live) = &self.live {
            return acquire(&live.current(), &key, cost);
        }
        acquire(&self.client, &key, cost)
    }

    /// Decides as [`acquire`](Self::acquire) does, but returns an error if a limit denies, so that a denial can't be
    /// overlooked.
    ///
    /// ```
    /// use tower_ratelimit::{AcquireError, FixedWindow, Limit, Limiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), AcquireError> {
    /// let logins = Limiter::new([Limit::new("logins", FixedWindow::per_hour(1))]);
    ///
    /// logins.try_acquire("ann", 1).await?;
    /// let error = logins.try_acquire("ann", 1).await.unwrap_err();
    /// assert!(error.is_denied());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if a limit denies, or if the store can't decide and the [policy](Builder::on_store_error) is to
    /// reject.
    pub async fn try_acquire(&self, key: impl Key, cost: u64) -> Result<AllowedDecision, AcquireError> {
        let decision = self.acquire(key, cost).await?;
        match decision.verdict() {
            Verdict::Allow { .. } => Ok(AllowedDecision(decision)),
            Verdict::Deny { retry_after } => Err(AcquireError::Denied { retry_after }),
        }
    }

    /// Decides as [`acquire`](Self::acquire) does, with a cost for each limit, in the order in which the limits were
    /// given. A cost of 0 takes nothing.
    ///
    /// # Errors
    ///
    /// Returns an error if the number of costs differs from the number of limits ([`StoreErrorKind::ChargeCount`]),
    /// which can change with [`LiveLimits`]; or if the store can't decide and the [policy](Builder::on_store_error) is
    /// to reject.
    pub fn acquire_costs(&self, key: impl Key, costs: &[u64]) -> StoreFuture<Decision> {
        let client = self.current_client();
        if let Err(error) = check_count(&client, costs.len()) {
            return StoreFuture::ready(Err(error));
        }
        let key = key::hash(&key, client.hasher());
        client.acquire(client.limits().cells_of(key, |limit| costs[limit]))
    }

    /// Decides as [`acquire`](Self::acquire) does, with a key and a cost for each limit, in the order in which the
    /// limits were given. A cost of 0 takes nothing.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, Limiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::StoreError> {
    /// let uploads = Limiter::new([
    ///     Limit::new("files per user", FixedWindow::per_day(100)),
    ///     Limit::new("bytes per tenant", FixedWindow::per_day(1_000_000_000)),
    /// ]);
    ///
    /// let (user, tenant) = ("ann@example.org", 7_u64);
    /// let decision = uploads.acquire_charges(&[(&user, 1), (&tenant, 52_300)]).await?;
    /// assert!(decision.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the number of charges differs from the number of limits ([`StoreErrorKind::ChargeCount`]),
    /// which can change with [`LiveLimits`]; or if the store can't decide and the [policy](Builder::on_store_error) is
    /// to reject.
    pub fn acquire_charges(&self, charges: &[(&(dyn Key + Sync), u64)]) -> StoreFuture<Decision> {
        let client = self.current_client();
        if let Err(error) = check_count(&client, charges.len()) {
            return StoreFuture::ready(Err(error));
        }
        let mut cells = Cells::new();
        for (limit, (key, cost)) in charges.iter().enumerate() {
            client.limits().add(&mut cells, limit, key::hash(key, client.hasher()), *cost);
        }
        client.acquire(cells)
    }

    /// Decides as [`acquire`](Self::acquire) would now, without charging anything.
    ///
    /// # Errors
    ///
    /// Returns an error if the store can't decide and the [policy](Builder::on_store_error) is to reject.
    pub fn peek(&self, key: impl Key, cost: u64) -> StoreFuture<Decision> {
        let client = self.current_client();
        let key = key::hash(&key, client.hasher());
        client.peek(client.limits().cells_of(key, |_| cost))
    }
}

#[inline]
fn acquire(client: &Arc<StoreClient>, key: &impl Key, cost: u64) -> StoreFuture<Decision> {
    let key = key::hash(key, client.hasher());
    client.acquire(client.limits().cells_of(key, |_| cost))
}

/// Returns an error if there is not one cost for each limit.
fn check_count(client: &StoreClient, given: usize) -> Result<(), StoreError> {
    let limits = client.limits().as_slice().len();
    if given == limits { Ok(()) } else { Err(StoreError::charge_count(given, limits)) }
}
