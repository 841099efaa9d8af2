//! Decides operations at once, and explains decisions.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Limiter;
#[cfg(doc)]
use super::builder::Builder;
use crate::error::StoreError;
#[cfg(doc)]
use crate::error::StoreErrorKind;
use crate::explain::{Explanation, LimitExplanation, LimitStatus};
use crate::key::{Key, KeyBuf, KeyPart, text};
#[cfg(doc)]
use crate::limit::LiveLimits;
use crate::resilience::GuardedStore;
use crate::store::decision::{AllowedDecision, Cells, Decision, Verdict};
use crate::store::{Purpose, StoreFuture};

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
        self.decide(&key, cost, Purpose::Take)
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
    /// Returns an error if the number of charges differs from the number of limits ([`StoreErrorKind::InvalidCall`]),
    /// which can change with [`LiveLimits`]; or if the store can't decide and the [policy](Builder::on_store_error) is
    /// to reject.
    pub fn acquire_charges(&self, charges: &[(&(dyn Key + Sync), u64)]) -> StoreFuture<Decision> {
        let client = self.current_client();
        let limits = client.limits();
        let count = limits.as_slice().len();
        if charges.len() != count {
            return StoreFuture::ready(Err(StoreError::invalid_call(format_args!(
                "there are {} charges for {count} limits: give one for each limit, with a cost of 0 where it takes \
                 nothing; if the limits were replaced at runtime, read the current ones by `LiveLimits::limits`",
                charges.len()
            ))));
        }
        let mut cells = Cells::new();
        for (limit, (key, cost)) in charges.iter().enumerate() {
            limits.add(&mut cells, limit, key.hash_with(client.hasher()), *cost);
        }
        client.decide(cells, Purpose::Take)
    }

    /// Decides as [`acquire`](Self::acquire) would now, without charging anything.
    ///
    /// # Errors
    ///
    /// Returns an error if the store can't decide and the [policy](Builder::on_store_error) is to reject.
    #[inline]
    pub fn peek(&self, key: impl Key, cost: u64) -> StoreFuture<Decision> {
        self.decide(&key, cost, Purpose::Peek)
    }

    // Without live limits, there is no client to drop after the decision, which saves 13 instructions ("token bucket" in
    // `.ci/instructions`).
    #[inline(always)]
    fn decide(&self, key: &impl Key, cost: u64, purpose: Purpose) -> StoreFuture<Decision> {
        match &self.live {
            None => decide(&self.client, key, cost, purpose),
            Some(live) => decide(&live.current(), key, cost, purpose),
        }
    }

    /// Explains whether `key` may take `cost` tokens from every limit now, and takes nothing. See
    /// [`explain`](crate::explain).
    ///
    /// Unlike [`peek`](Self::peek), it reports what would be left after the tokens were taken. The key is shown,
    /// because the caller knows it.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, Limiter};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let mails = Limiter::new([Limit::new("daily", FixedWindow::per_day(20))]);
    /// let explanation = mails.explain("ann@example.org", 21).await;
    /// assert!(!explanation.is_allowed());
    /// assert!(explanation.to_string().starts_with(
    ///     "\
    /// denied: the cost exceeds the capacity, decided by the store (memory)
    ///   daily: denied, 20 of 20 left, cost 21, by key ann@example.org, fingerprint "
    /// ));
    /// # });
    /// ```
    pub async fn explain(&self, key: impl Key, cost: u64) -> Explanation {
        let client = self.current_client();
        let mut written = KeyBuf::default();
        key.write(&mut written);
        let parts: Vec<KeyPart> = written.parts().map(|part| KeyPart::new("key", text(part))).collect();
        let cells = client.limits().cells_of(key.hash_with(client.hasher()), cost);
        let explain = |limit| LimitExplanation {
            key: parts.clone(),
            status: LimitStatus::applies(None),
            ..LimitExplanation::new(limit)
        };
        let limits = client.limits().as_slice().iter().map(explain).collect();
        Explanation::new(&client, None, cells, limits, Purpose::Preview).await
    }
}

#[inline(always)]
fn decide(client: &Arc<GuardedStore>, key: &impl Key, cost: u64, purpose: Purpose) -> StoreFuture<Decision> {
    let key = key.hash_with(client.hasher());
    client.decide(client.limits().cells_of(key, cost), purpose)
}

/// The error of [`Limiter::try_acquire`](crate::Limiter::try_acquire) and [`Limiter::wait`](crate::Limiter::wait).
///
/// The message includes the causes of failures, and is for operators. For clients, use [`response`](Self::response).
/// With the feature `axum`, the error implements Axum's `IntoResponse`, so that a handler can return it. It converts
/// from a [`StoreError`], so that `?` works on the other methods of a limiter, too.
#[derive(Debug)]
#[non_exhaustive]
pub enum AcquireError {
    /// A limit denies the operation.
    #[non_exhaustive]
    Denied {
        /// The shortest wait after which it would be allowed, if nothing else is charged. `None` if no wait can help,
        /// because the cost exceeds the capacity. If a queue would delay the operation for longer than
        /// [`wait_at_most`](crate::Limiter::wait_at_most) may wait, it is that delay. Zero if the limits
        /// would allow it, but earlier operations were still waiting.
        retry_after: Option<Duration>,
    },
    /// The store could not decide, and the [policy](crate::OnStoreError) is to reject.
    Store(StoreError),
}

impl AcquireError {
    /// Returns whether a limit denies the operation, rather than the store having failed.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Denied { .. })
    }
}

impl From<StoreError> for AcquireError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied { retry_after: Some(wait) } => write!(f, "rate limit exceeded: retry after {wait:?}"),
            Self::Denied { retry_after: None } => {
                f.write_str("rate limit exceeded: the cost exceeds the capacity of a limit: lower the cost")
            }
            Self::Store(error) => write!(f, "rate limit not decided: {error}"),
        }
    }
}

impl std::error::Error for AcquireError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Denied { .. } => None,
            // The store's error is part of this one's text, so its cause comes next.
            Self::Store(error) => error.source(),
        }
    }
}
