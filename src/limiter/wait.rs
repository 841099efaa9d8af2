//! Waits until the limits allow an operation.

use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::Limiter;
use super::charges::{Charges, acquire, charges_of_key};
use super::error::AcquireError;
#[cfg(doc)]
use crate::builder::Builder;
use crate::decision::{Decision, Verdict};
use crate::key::Key;
use crate::resilience::ReservationGuard;
use crate::store::Charge;

impl Limiter {
    /// Waits until every limit allows `key` to take `cost` tokens, however long that takes, and takes them.
    ///
    /// Operations that wait are not served in the order of their calls, unless a limit is a
    /// [`LeakyBucketQueue`](crate::LeakyBucketQueue). If the future is dropped while it waits in a queue, its slot is
    /// refunded if it is still the last one.
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
    pub async fn wait(&self, key: impl Key, cost: u64) -> Result<Decision, AcquireError> {
        self.wait_at_most(key, cost, Duration::MAX).await
    }

    /// Waits as [`wait`](Self::wait) does, for `longest` at most.
    ///
    /// # Errors
    ///
    /// Returns an error if the limits would allow the operation only after `longest`, or never, which is reported
    /// immediately; or if the store can't decide and the [policy](Builder::on_store_error) is to reject.
    pub async fn wait_at_most(&self, key: impl Key, cost: u64, longest: Duration) -> Result<Decision, AcquireError> {
        let client = self.current_client();
        let charges: Charges<'_> = charges_of_key(&client, &key, |_| cost).collect();
        // A denial that leads to a wait does not count towards a penalty.
        let without_strikes: SmallVec<[_; 4]> = charges.iter().map(|charge| charge.spec.without_strikes()).collect();
        let charges = without_strikes.iter().zip(&charges).map(|(spec, charge)| Charge { spec, ..*charge });
        let charges: SmallVec<[Charge<'_>; 4]> = charges.collect();
        let deadline = Instant::now().checked_add(longest);
        let remaining =
            || deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        loop {
            let decision = acquire(&client, &charges).await?;
            let wait = match decision.verdict() {
                Verdict::Allow { delay: Duration::ZERO } => return Ok(decision),
                Verdict::Allow { delay } if delay <= remaining() => {
                    return Ok(ReservationGuard::new(&client, decision, delay).wait().await);
                }
                Verdict::Allow { delay } => {
                    client.refund(&decision.into_receipt()).await?;
                    return Err(AcquireError::Denied { retry_after: Some(delay) });
                }
                Verdict::Deny { retry_after: Some(wait) } if wait <= remaining() => wait,
                Verdict::Deny { retry_after } => return Err(AcquireError::Denied { retry_after }),
            };
            tokio::time::sleep(wait).await;
        }
    }
}
