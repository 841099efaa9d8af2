//! Waits until the limits allow an operation.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

#[cfg(doc)]
use super::Builder;
use super::Limiter;
use super::acquire_error::AcquireError;
use crate::decision::{AllowedDecision, Charges, Decision, Outcome, Purpose, Verdict};
use crate::engine::{Engine, Reservation};
use crate::error::StoreError;
use crate::key::Key;
use crate::key::hash::KeyHash;
#[cfg(doc)]
use crate::limit::LiveLimits;

impl Limiter {
    /// Waits until every limit allows `key` to take `cost` tokens, however long that takes, and takes them.
    ///
    /// Operations that wait for the same key are served one after the other, in the order of their calls: a small one
    /// does not overtake a large one. Clones of a limiter share this order; other limiters and processes, and calls
    /// after [`LiveLimits`] were replaced, have an order of their own. [`acquire`](Self::acquire) and operations that
    /// cost 0 do not wait for others. If they or other processes take the tokens for which an operation had its turn,
    /// it may go to the end of the queue.
    ///
    /// If the future is dropped, the next operation takes its place. If it has a slot of a
    /// [`LeakyBucketQueue`](crate::LeakyBucketQueue), the slot is refunded if it is still the last one.
    ///
    /// ```
    /// use tower_ratelimit::{Limit, Limiter, TokenBucket};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::AcquireError> {
    /// let calls = Limiter::new([Limit::new("partner API", TokenBucket::per_second(100))]);
    /// calls.wait("partner", 1).await?;
    /// // Call the API here.
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if no wait can help, or if the store can't decide and the [policy](Builder::on_store_error) is
    /// to reject.
    #[doc(alias = "throttle")]
    pub async fn wait(&self, key: impl Key, cost: u64) -> Result<AllowedDecision, AcquireError> {
        self.wait_at_most(key, cost, Duration::MAX).await
    }

    /// Waits as [`wait`](Self::wait) does, for `longest` at most.
    ///
    /// If operations that came before take longer than `longest`, it returns an error after `longest`. The error's
    /// `retry_after` is the wait by the limits alone, and zero if they would allow the operation.
    ///
    /// # Errors
    ///
    /// Returns an error if the limits would allow the operation only after `longest`, or never, which is reported
    /// immediately; if its turn does not come within `longest`; or if the store can't decide and the
    /// [policy](Builder::on_store_error) is to reject.
    pub async fn wait_at_most(
        &self,
        key: impl Key,
        cost: u64,
        longest: Duration,
    ) -> Result<AllowedDecision, AcquireError> {
        let engine = self.current();
        let key = key.hash_with(engine.hasher());
        wait(&engine, key, cost, || engine.limits.charges_of(key, cost), longest).await
    }
}

/// Waits until the limits allow an operation with these charges, of which none has a higher `cost`, for `longest` at
/// most. Operations with the same `key` are served in the order of their calls.
pub(super) async fn wait(
    engine: &Arc<Engine>,
    key: KeyHash,
    cost: u64,
    charges: impl Fn() -> Charges,
    longest: Duration,
) -> Result<AllowedDecision, AcquireError> {
    let deadline = Instant::now().checked_add(longest);
    let remaining = || deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
    // Decides whether the operation may proceed, or else, after which instant it should be tried again. Takes nothing
    // before its turn.
    let decide = async |is_turn: bool| -> Result<ControlFlow<Decision, Instant>, AcquireError> {
        let purpose = if is_turn { Purpose::Take } else { Purpose::Peek };
        let mut asked = charges();
        // A denial that leads to a wait does not count towards a penalty.
        asked.disable_strikes();
        let decision = engine.decide(asked, purpose).await?;
        let (wait, pause) = match decision.verdict() {
            Verdict::Allow { delay } => (Some(delay), Duration::ZERO),
            Verdict::Deny { retry_after } => (retry_after, retry_after.unwrap_or_default()),
        };
        let remaining = remaining();
        if wait.is_none_or(|wait| wait > remaining) || !is_turn && remaining.is_zero() {
            engine.refund(decision.into_receipt(), engine.deadline()).await?;
            return Err(AcquireError::Denied { retry_after: wait });
        }
        let may_proceed = is_turn && decision.is_allowed();
        Ok(if may_proceed { ControlFlow::Break(decision) } else { ControlFlow::Continue(Instant::now() + pause) })
    };

    let mut attempt = decide(cost == 0 || !engine.turns.is_in_use(&key)).await?;
    let mut is_shared = false;
    let decision = 'served: loop {
        let mut next = match attempt {
            ControlFlow::Break(decision) => break decision,
            ControlFlow::Continue(next) => next,
        };
        StoreError::check_runtime()?;
        let queue = engine.turns.of(key);
        is_shared = match timeout(remaining(), queue.lock()).await {
            Err(_) => false,
            // The last turn left enough, so the next turn need not wait for this decision. Only once, because other
            // operations may have taken the tokens since.
            Ok(mut left) if !is_shared && *left >= cost => {
                *left -= cost;
                true
            }
            Ok(mut left) => loop {
                sleep_until(next).await;
                match decide(true).await? {
                    ControlFlow::Continue(later) => next = later,
                    ControlFlow::Break(decision) => {
                        *left = tokens_left(&decision);
                        break 'served decision;
                    }
                }
            },
        };
        drop(queue);
        attempt = decide(is_shared).await?;
    };
    delay(engine, AllowedDecision(decision)).await
}

/// Waits for the turn of an allowed operation in a queue, if it is delayed.
pub(super) async fn delay(
    engine: &Arc<Engine>,
    AllowedDecision(decision): AllowedDecision,
) -> Result<AllowedDecision, AcquireError> {
    Ok(AllowedDecision(match decision.delay() {
        Duration::ZERO => decision,
        delay => Reservation::new(engine, decision, delay).wait().await?,
    }))
}

/// Returns the number of tokens that every limit has left.
fn tokens_left(decision: &Decision) -> u64 {
    let enforced = decision.outcomes().iter().filter(|outcome| outcome.is_enforced());
    enforced.map(Outcome::remaining).min().unwrap_or_default()
}
