//! Decides operations at once.

use super::Limiter;
use super::charges::{Charges, acquire, acquire_from_all, charges_of_key, check_count};
use super::error::AcquireError;
#[cfg(doc)]
use crate::builder::Builder;
use crate::decision::{AllowedDecision, Decision, Verdict};
#[cfg(doc)]
use crate::error::StoreErrorKind;
use crate::key::{self, Key};
#[cfg(doc)]
use crate::limit::LiveLimits;
use crate::resilience::StoreClient;
use crate::store::{Charge, StoreFuture};

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
            return acquire_from_all(&live.get(&self.client, StoreClient::with_limits), &key, cost);
        }
        // The frequent case of a single limit, without the buffer for several charges.
        if let [spec] = self.client.limits().all_specs() {
            let spec = self.client.limits().current(spec);
            return self.client.acquire(&[Charge { spec, key: key::hash(&key, self.client.hasher()), cost }]);
        }
        acquire_from_all(&self.client, &key, cost)
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
        let mut charges = Charges::new();
        charges.extend(charges_of_key(&client, &key, |limit| costs[limit]));
        acquire(&client, &charges)
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
        let charge = |(spec, (key, cost)): (_, &(&(dyn Key + Sync), u64))| {
            let (spec, key) = (client.limits().current(spec), key::hash(key, client.hasher()));
            Charge { spec, key, cost: *cost }
        };
        let charges: Charges<'_> = client.limits().all_specs().iter().zip(charges).map(charge).collect();
        acquire(&client, &charges)
    }

    /// Decides as [`acquire`](Self::acquire) would now, without charging anything.
    ///
    /// # Errors
    ///
    /// Returns an error if the store can't decide and the [policy](Builder::on_store_error) is to reject.
    pub fn peek(&self, key: impl Key, cost: u64) -> StoreFuture<Decision> {
        let client = self.current_client();
        if let [spec] = client.limits().all_specs() {
            let spec = client.limits().current(spec);
            return client.peek(&[Charge { spec, key: key::hash(&key, client.hasher()), cost }]);
        }
        let charges: Charges<'_> = charges_of_key(&client, &key, |_| cost).collect();
        if charges.is_empty() { StoreFuture::ready(Ok(Decision::uncounted())) } else { client.peek(&charges) }
    }
}
