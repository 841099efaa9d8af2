//! Waits until the limits allow an operation.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

#[cfg(doc)]
use super::Builder;
use super::Limiter;
use super::acquire::{allowed, unheld};
use super::acquire_error::AcquireError;
use crate::decision::{AllowedDecision, Charges, Decision, Outcome, Purpose, Verdict};
use crate::engine::{Engine, Reservation, SlotGuard};
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
        if let Some(error) = unheld(&self.current()) {
            return Err(error.into());
        }
        Ok(AllowedDecision(self.hold_at_most(key, cost, longest).await?.decision))
    }

    /// Acquires `cost` tokens of each limit for `key`, and one slot of each [concurrency limit](crate::Concurrency), all
    /// or nothing. The slots are free again when the returned value is dropped.
    ///
    /// ```
    /// use tower_ratelimit::{Limit, Limiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let reports = Limiter::new([Limit::concurrent("reports", 1)]);
    /// let held = reports.hold("ann@example.org", 1).await?;
    /// assert!(reports.hold("ann@example.org", 1).await.is_err());
    /// drop(held);
    /// assert!(reports.hold("ann@example.org", 1).await.is_ok());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// If the returned future is dropped while the store decides, the slots are free as soon as it has decided.
    ///
    /// # Errors
    ///
    /// Returns an error if a limit denies the operation, or if the store can't decide and the
    /// [policy](crate::OnStoreError) is to reject.
    #[doc(alias = "semaphore")]
    pub async fn hold(&self, key: impl Key, cost: u64) -> Result<SlotGuard, AcquireError> {
        let engine = self.current();
        let key = key.hash_with(engine.hasher());
        let held = allowed(engine.hold(engine.limits.charges_of(key, cost)).await?)?;
        delay(&engine, held).await
    }

    /// Waits for [`hold`](Self::hold) to succeed, for `longest` at most. Operations of this process with the same key are
    /// served in the order of their calls. A slot that this process returns wakes the first one at once; slots that other
    /// processes return are noticed within a second.
    ///
    /// # Errors
    ///
    /// Returns an error as [`wait_at_most`](Self::wait_at_most) does.
    pub async fn hold_at_most(&self, key: impl Key, cost: u64, longest: Duration) -> Result<SlotGuard, AcquireError> {
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
) -> Result<SlotGuard, AcquireError> {
    let deadline = Instant::now().checked_add(longest);
    let remaining = || deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
    // Decides whether the operation may proceed, or else, when it should be tried again. Takes nothing before its turn.
    let decide = async |is_turn: bool| -> Result<ControlFlow<SlotGuard, Pause>, AcquireError> {
        let mut asked = charges();
        // A denial that leads to a wait does not count towards a penalty.
        asked.disable_strikes();
        let releases = releases(engine, &asked);
        let held = match is_turn {
            true => engine.hold(asked).await?,
            false => SlotGuard::empty(engine.decide(asked, Purpose::Peek).await?),
        };
        let (remaining, mut pause) = (remaining(), Pause { until: Instant::now(), released: None });
        let wait = match (held.verdict(), denial_by_tokens(&held)) {
            (Verdict::Allow { delay }, _) => Some(delay),
            // A slot may be free at any time.
            (Verdict::Deny { retry_after: Some(wait) }, None) if !remaining.is_zero() => {
                let denies = |release: &(u128, _)| {
                    held.outcomes().iter().any(|one| one.denies() && one.fingerprint() == release.0)
                };
                pause.released = releases.into_iter().find(denies).map(|(_, released)| released);
                pause.until += wait.min(remaining);
                Some(wait.min(remaining))
            }
            (verdict, by_tokens) => {
                let retry_after = by_tokens.unwrap_or(verdict).retry_after();
                pause.until += retry_after.unwrap_or_default().min(remaining);
                retry_after
            }
        };
        if wait.is_none_or(|wait| wait > remaining) || !is_turn && remaining.is_zero() {
            engine.refund(held.decision.into_receipt(), engine.deadline()).await?;
            return Err(AcquireError::Denied { retry_after: wait });
        }
        Ok(if is_turn && held.is_allowed() { ControlFlow::Break(held) } else { ControlFlow::Continue(pause) })
    };

    let has_slots = engine.limits.have_slots;
    let mut attempt = decide(cost == 0 && !has_slots || engine.turns.get(&key).is_none()).await?;
    let mut is_shared = false;
    let held = loop {
        let pause = match attempt {
            ControlFlow::Break(held) => break held,
            ControlFlow::Continue(pause) => pause,
        };
        StoreError::check_runtime()?;
        let turn = engine.turns.of(key);
        is_shared = match timeout(remaining(), turn.lock()).await {
            Err(_) => false,
            // The last turn left enough, so the next turn need not wait for this decision. Only once, because other
            // operations may have taken the tokens since.
            Ok(mut left) if !is_shared && *left >= cost => {
                *left -= cost;
                true
            }
            Ok(mut left) => {
                // A slot may have been returned before this turn.
                let mut attempt = if has_slots { decide(true).await? } else { ControlFlow::Continue(pause) };
                break loop {
                    match attempt {
                        ControlFlow::Continue(pause) => pause.wait().await,
                        ControlFlow::Break(held) => {
                            *left = tokens_left(&held);
                            break held;
                        }
                    }
                    attempt = decide(true).await?;
                };
            }
        };
        drop(turn);
        attempt = decide(is_shared).await?;
    };
    delay(engine, held).await
}

/// The time until a denied operation is tried again.
struct Pause {
    until: Instant,
    /// Ends it earlier, when a slot is free.
    released: Option<Arc<Notify>>,
}

impl Pause {
    async fn wait(&self) {
        match &self.released {
            Some(released) => drop(timeout_at(self.until, released.notified()).await),
            None => sleep_until(self.until).await,
        }
    }
}

/// Returns what wakes those who wait for a slot, with the fingerprint of each concurrency limit. Call it before the
/// decision, so that no slot that is returned meanwhile is missed.
fn releases(engine: &Engine, asked: &[Outcome]) -> SmallVec<[(u128, Arc<Notify>); 1]> {
    let slots = asked.iter().filter(|outcome| outcome.algorithm().is_concurrency).map(|outcome| outcome.fingerprint());
    slots.map(|slots| (slots, engine.released.of(slots))).collect()
}

/// Waits for the turn of an allowed operation in a queue, if it is delayed.
pub(super) async fn delay(engine: &Arc<Engine>, held: SlotGuard) -> Result<SlotGuard, AcquireError> {
    Ok(match held.delay() {
        Duration::ZERO => held,
        delay => Reservation::new(engine, held, delay).wait().await?,
    })
}

/// Returns the denial by the limits whose wait is known. Nobody knows when a slot is free.
fn denial_by_tokens(decision: &Decision) -> Option<Verdict> {
    let lacks_slot = |outcome: &Outcome| outcome.algorithm().is_concurrency && !outcome.is_locked_out();
    let denials = decision.outcomes().iter().filter(|outcome| outcome.denies() && !lacks_slot(outcome));
    denials.map(Outcome::verdict).reduce(Verdict::and)
}

/// Returns the number of tokens that every limit has left: none if there is no slot left.
fn tokens_left(decision: &Decision) -> u64 {
    let enforced = decision.outcomes().iter().filter(|outcome| outcome.is_enforced());
    let counted = enforced.filter(|outcome| !outcome.algorithm().is_concurrency || outcome.remaining() == 0);
    counted.map(Outcome::remaining).min().unwrap_or_default()
}
