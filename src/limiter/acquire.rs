//! Decides operations at once, and explains decisions.

use std::ops::{Deref, RangeInclusive};
use std::sync::Arc;

#[cfg(doc)]
use super::Builder;
use super::Limiter;
use super::acquire_error::AcquireError;
use crate::decision::{AllowedDecision, Decision, Purpose, Verdict};
use crate::engine::Engine;
use crate::error::StoreError;
#[cfg(doc)]
use crate::error::StoreErrorKind;
use crate::explain::{AppliedLimit, Explanation, LimitExplanation, LimitStatus};
use crate::key::{Key, KeyBuf, KeyPart, text};
use crate::limit::Limit;
#[cfg(doc)]
use crate::limit::LiveLimits;
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
        allowed(AllowedDecision(self.acquire(key, cost).await?))
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
        let engine = self.current();
        if let Some(error) = unheld(&engine) {
            return StoreFuture::ready(Err(error));
        }
        let limits = &engine.limits;
        let count = limits.len();
        if charges.len() != count {
            return StoreFuture::ready(Err(StoreError::invalid_call(format_args!(
                "there are {} charges for {count} limits: give one for each limit, with a cost of 0 where it takes \
                 nothing; if the limits were replaced at runtime, read the current ones by `LiveLimits::limits`",
                charges.len()
            ))));
        }
        let mut asked = limits.no_charges();
        for (limit, (key, cost)) in charges.iter().enumerate() {
            limits.add(&mut asked, limit, key.hash_with(engine.hasher()), *cost);
        }
        engine.decide(asked, Purpose::Take)
    }

    /// Takes as many tokens as every limit allows `key` to take, within the range `tokens`. Returns their number and
    /// the decision. If fewer are left than the least of the range, it takes none, and the decision is a denial of the
    /// least.
    ///
    /// It asks for the most, then for what is left, and at last for the least: at most ten times, if others take what
    /// was left meanwhile. Only the last decision is recorded, and only a denial of the least counts towards a
    /// [penalty](crate::Limit::penalty). Overage counts as capacity. Of limits in [quota
    /// mode](crate::Limit::quota_mode), the one with the most tokens left determines what is left.
    ///
    /// ```
    /// use tower_ratelimit::{Limit, Limiter, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::StoreError> {
    /// let mails = Limiter::new([Limit::new("mails", TokenBucket::per_hour(100))]);
    ///
    /// let (taken, _) = mails.acquire_up_to("shop", 1..=70).await?;
    /// assert_eq!(taken, 70);
    /// let (taken, _) = mails.acquire_up_to("shop", 1..=70).await?;
    /// assert_eq!(taken, 30);
    /// let (taken, decision) = mails.acquire_up_to("shop", 1..=70).await?;
    /// assert_eq!((taken, decision.is_allowed()), (0, false));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if `tokens` is empty ([`StoreErrorKind::InvalidCall`]), or if the store can't decide and the
    /// [policy](Builder::on_store_error) is to reject.
    pub async fn acquire_up_to(
        &self,
        key: impl Key,
        tokens: RangeInclusive<u64>,
    ) -> Result<(u64, Decision), StoreError> {
        let engine = self.current();
        if let Some(error) = unheld(&engine) {
            return Err(error);
        }
        let key = key.hash_with(engine.hasher());
        let (least, mut cost) = tokens.into_inner();
        if cost < least {
            let message = format!("there is no number of tokens from {least} to {cost}: give the lower one first");
            return Err(StoreError::invalid_call(message));
        }
        let mut retries = 0..MAX_RETRIES;
        loop {
            let mut charges = engine.limits.charges_of(key, cost);
            if cost > least {
                charges.disable_strikes();
            }
            let began = engine.start_recording(Purpose::Take);
            let decision = engine.decide_unrecorded(charges, Purpose::Take).await?;
            let is_allowed = decision.is_allowed();
            if is_allowed || cost == least {
                engine.record(began, &decision);
                return Ok((if is_allowed { cost } else { 0 }, decision));
            }
            let available = decision.available().min(cost - 1);
            cost = if retries.next().is_some() { available.max(least) } else { least };
        }
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

    // Without live limits, there is no `Arc` to drop after the decision, which saves 13 instructions ("token bucket"
    // in `.ci/instructions`).
    #[inline(always)]
    fn decide(&self, key: &impl Key, cost: u64, purpose: Purpose) -> StoreFuture<Decision> {
        match &self.live {
            None => decide(&self.engine, key, cost, purpose),
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
        let engine = self.current();
        let parts: Vec<KeyPart> = KeyBuf::of(&key).parts().map(|part| KeyPart::new("key", text(part))).collect();
        let charges = engine.limits.charges_of(key.hash_with(engine.hasher()), cost);
        let explain = |limit| LimitExplanation {
            key: parts.clone(),
            status: LimitStatus::Applies(AppliedLimit::default()),
            ..LimitExplanation::new(limit)
        };
        let limits = engine.limits.iter().map(explain).collect();
        Explanation::new(&engine, None, charges, limits, Purpose::Preview).await
    }
}

/// The maximum number of retries at a lower cost, if others take the tokens that were left.
const MAX_RETRIES: usize = 8;

#[inline(always)]
fn decide(engine: &Arc<Engine>, key: &impl Key, cost: u64, purpose: Purpose) -> StoreFuture<Decision> {
    if purpose == Purpose::Take
        && let Some(error) = unheld(engine)
    {
        return StoreFuture::ready(Err(error));
    }
    let key = key.hash_with(engine.hasher());
    engine.decide(engine.limits.charges_of(key, cost), purpose)
}

/// Returns the error of a call that would hold no slots of concurrency limits, if there are any.
#[inline(always)]
pub(super) fn unheld(engine: &Engine) -> Option<StoreError> {
    engine.limits.have_slots.then(|| error_of_unheld(engine))
}

#[cold]
fn error_of_unheld(engine: &Engine) -> StoreError {
    let is_concurrency = |limit: &&Limit| limit.algorithm().is_concurrency;
    let name = engine.limits.iter().find(is_concurrency).map_or("", Limit::name);
    StoreError::invalid_call(format_args!(
        "the limit {name:?} is a concurrency limit, whose slots nobody would hold: use `Limiter::hold`"
    ))
}

/// Returns an error for a denial.
pub(super) fn allowed<D: Deref<Target = Decision>>(decision: D) -> Result<D, AcquireError> {
    match decision.verdict() {
        Verdict::Allow { .. } => Ok(decision),
        Verdict::Deny { retry_after } => Err(AcquireError::Denied { retry_after }),
    }
}
