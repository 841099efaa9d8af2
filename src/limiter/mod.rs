//! Limits without HTTP, for jobs, sockets, queues and outgoing calls.

mod error;
mod explain;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

pub use self::error::AcquireError;
use crate::builder::Builder;
use crate::decision::{Decision, Receipt, Verdict};
#[cfg(doc)]
use crate::error::StoreErrorKind;
use crate::error::{ConfigError, StoreError, or_panic};
use crate::key::{self, Key};
use crate::limit::{Derived, Limit, LiveLimits, check_needs_no_request};
use crate::limit_handle::LimitHandle;
use crate::overrides::Overrides;
use crate::resilience::{ReservationGuard, StoreClient};
use crate::store::{Charge, StoreFuture};
use crate::time::{Clock, SystemClock};

/// Limits anything that is not an HTTP request.
///
/// All limits of a limiter are decided together: an operation that one of them denies is charged to none. Clones share
/// their state.
///
/// ```
/// use tower_ratelimit::{FixedWindow, Limit, Limiter, TokenBucket};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mails = Limiter::new([
///     Limit::new("burst", TokenBucket::per_second(1).burst(5)),
///     Limit::new("daily", FixedWindow::per_day(20)),
/// ]);
///
/// let decision = mails.try_acquire("ann@example.org", 1).await?;
/// assert_eq!(decision.outcomes()[1].remaining(), 19);
///
/// // The mail was not sent after all.
/// mails.refund(decision.into_receipt()).await?;
/// assert_eq!(mails.peek("ann@example.org", 1).await?.outcomes()[1].remaining(), 20);
/// # Ok(())
/// # }
/// ```
///
/// Five methods decide:
///
/// | method | when a limit denies |
/// |---|---|
/// | [`acquire`](Self::acquire) | returns a [`Decision`] that is not allowed |
/// | [`try_acquire`](Self::try_acquire) | returns an error |
/// | [`wait`](Self::wait), [`wait_at_most`](Self::wait_at_most) | wait until the limits allow it |
/// | [`peek`](Self::peek) | returns the decision; charges nothing in any case |
///
/// [`explain`](Self::explain) tells why.
#[derive(Clone)]
pub struct Limiter {
    client: Arc<StoreClient>,
    /// The clients derived from live limits.
    following: Option<Derived<StoreClient>>,
}

impl Limiter {
    /// Creates a limiter that keeps its state in memory. Use a [`builder`](Self::builder) for anything else.
    ///
    /// Without limits, it allows everything.
    ///
    /// # Panics
    ///
    /// Panics if two limits have the same name, or a limit needs a request for its key, cost, condition or size, or looks
    /// at responses. [`Builder::try_build`] returns an error instead.
    #[must_use]
    #[track_caller]
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Self {
        Self::builder(limits).build()
    }

    /// Returns a builder of a limiter with these limits, which are decided together.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{FixedWindow, Limit, Limiter, MemoryStore};
    ///
    /// let mails = Limiter::builder([Limit::new("daily", FixedWindow::per_day(20))])
    ///     .store(MemoryStore::new())
    ///     .deadline(Duration::from_millis(20))
    ///     .build();
    /// # let _ = mails;
    /// ```
    pub fn builder(limits: impl IntoIterator<Item = Limit>) -> Builder {
        Builder::new(limits)
    }

    /// Returns a builder of a limiter whose limits can be replaced at runtime.
    ///
    /// Once it is built, replacements with a limit that needs a request are errors: see [`LiveLimits::replace`].
    pub fn live_builder(limits: &LiveLimits) -> Builder {
        Builder::live(limits)
    }

    /// Returns the limits in the order in which they were given. Of [`LiveLimits`], they are those that the limiter was
    /// built with.
    pub fn limits(&self) -> &[Limit] {
        self.client.limits().as_slice()
    }

    /// Decides whether `key` may take `cost` tokens from every limit, and takes them if so.
    ///
    /// Any [`Key`] will do; text and numbers, and numbers of different widths, are different keys. If a
    /// [`LeakyBucketQueue`](crate::LeakyBucketQueue) allows it, the caller continues after the decision's
    /// [`delay`](Decision::delay), as [`wait`](Self::wait) does.
    ///
    /// Awaiting the decision consumes Tokio's cooperative budget, so that a loop yields to other tasks. A memory store has
    /// already charged and decided when this returns, with or without a runtime:
    /// [`as_ready`](crate::store::StoreFuture::as_ready) and [`into_ready`](crate::store::StoreFuture::into_ready) return
    /// its decision without awaiting. Dropping the future refunds nothing.
    ///
    /// # Errors
    ///
    /// The store can't decide, and the [policy](Builder::on_store_error) is to reject.
    pub fn acquire(&self, key: impl Key, cost: u64) -> StoreFuture<Decision> {
        if let Some(following) = &self.following {
            return acquire_from_all(&following.get(&self.client, StoreClient::with_limits), &key, cost);
        }
        // Most have one limit.
        if let [spec] = self.client.limits().all_specs() {
            let spec = self.client.limits().current(spec);
            return self.client.acquire(&[Charge { spec, key: key::hash(&key, self.client.hasher()), cost }]);
        }
        acquire_from_all(&self.client, &key, cost)
    }

    /// Does the same as [`acquire`](Self::acquire), and returns an error if a limit denies, so that a denial can't be
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
    /// A limit denies, or the store can't decide and the [policy](Builder::on_store_error) is to reject.
    pub async fn try_acquire(&self, key: impl Key, cost: u64) -> Result<Decision, AcquireError> {
        let decision = self.acquire(key, cost).await?;
        match decision.verdict() {
            Verdict::Allow { .. } => Ok(decision),
            Verdict::Deny { retry_after } => Err(AcquireError::Denied { retry_after }),
        }
    }

    /// Decides as [`acquire`](Self::acquire) does, with a cost for each limit, in the order in which the limits were given.
    /// A cost of 0 takes nothing.
    ///
    /// # Errors
    ///
    /// There are not as many costs as limits ([`StoreErrorKind::ChargeCount`]), as [`LiveLimits`] may become more or
    /// fewer; or the store can't decide, and the [policy](Builder::on_store_error) is to reject.
    pub fn acquire_each(&self, key: impl Key, costs: &[u64]) -> StoreFuture<Decision> {
        let client = self.present();
        if let Err(error) = expect_each(&client, costs.len()) {
            return StoreFuture::ready(Err(error));
        }
        let mut charges = Charges::new();
        charges.extend(charge_each(&client, &key, |limit| costs[limit]));
        acquire(&client, &charges)
    }

    /// Decides as [`acquire`](Self::acquire) does, with a key and a cost for each limit, in the order in which the limits
    /// were given. A cost of 0 takes nothing.
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
    /// let decision = uploads.acquire_all(&[(&user, 1), (&tenant, 52_300)]).await?;
    /// assert!(decision.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// There are not as many charges as limits ([`StoreErrorKind::ChargeCount`]), as [`LiveLimits`] may become more or
    /// fewer; or the store can't decide, and the [policy](Builder::on_store_error) is to reject.
    pub fn acquire_all(&self, charges: &[(&(dyn Key + Sync), u64)]) -> StoreFuture<Decision> {
        let client = self.present();
        if let Err(error) = expect_each(&client, charges.len()) {
            return StoreFuture::ready(Err(error));
        }
        let charge = |(spec, (key, cost)): (_, &(&(dyn Key + Sync), u64))| {
            let (spec, key) = (client.limits().current(spec), key::hash(key, client.hasher()));
            Charge { spec, key, cost: *cost }
        };
        let charges: Charges<'_> = client.limits().all_specs().iter().zip(charges).map(charge).collect();
        acquire(&client, &charges)
    }

    /// Decides as [`acquire`](Self::acquire) would now, and takes nothing.
    ///
    /// # Errors
    ///
    /// The store can't decide, and the [policy](Builder::on_store_error) is to reject.
    pub fn peek(&self, key: impl Key, cost: u64) -> StoreFuture<Decision> {
        let client = self.present();
        if let [spec] = client.limits().all_specs() {
            let spec = client.limits().current(spec);
            return client.peek(&[Charge { spec, key: key::hash(&key, client.hasher()), cost }]);
        }
        let charges: Charges<'_> = charge_each(&client, &key, |_| cost).collect();
        if charges.is_empty() { StoreFuture::ready(Ok(uncounted())) } else { client.peek(&charges) }
    }

    /// Waits until every limit allows `key` to take `cost` tokens, however long that takes, and takes them.
    ///
    /// Waiting operations are not served in the order in which they came, unless a limit is a
    /// [`LeakyBucketQueue`](crate::LeakyBucketQueue). If the future is dropped while it waits in a queue, its slot is
    /// refunded if it is still the last.
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
    /// No wait can help, or the store can't decide and the [policy](Builder::on_store_error) is to reject.
    pub async fn wait(&self, key: impl Key, cost: u64) -> Result<Decision, AcquireError> {
        self.wait_at_most(key, cost, Duration::MAX).await
    }

    /// Waits as [`wait`](Self::wait) does, for `longest` at most.
    ///
    /// # Errors
    ///
    /// The limits would allow it later than after `longest`, or never, which is reported immediately; or the store can't
    /// decide and the [policy](Builder::on_store_error) is to reject.
    pub async fn wait_at_most(&self, key: impl Key, cost: u64, longest: Duration) -> Result<Decision, AcquireError> {
        let client = self.present();
        let charges: Charges<'_> = charge_each(&client, &key, |_| cost).collect();
        // A denial that leads to a wait does not count towards a penalty.
        let without_strikes: SmallVec<[_; 4]> = charges.iter().map(|charge| charge.spec.without_strikes()).collect();
        let charges = without_strikes.iter().zip(&charges).map(|(spec, charge)| Charge { spec, ..*charge });
        let charges: SmallVec<[Charge<'_>; 4]> = charges.collect();
        let deadline = Instant::now().checked_add(longest);
        let left = || deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        loop {
            let decision = acquire(&client, &charges).await?;
            let wait = match decision.verdict() {
                Verdict::Allow { delay: Duration::ZERO } => return Ok(decision),
                Verdict::Allow { delay } if delay <= left() => {
                    return Ok(ReservationGuard::new(&client, decision, delay).wait().await);
                }
                Verdict::Allow { delay } => {
                    client.refund(&decision.into_receipt()).await?;
                    return Err(AcquireError::Denied { retry_after: Some(delay) });
                }
                Verdict::Deny { retry_after: Some(wait) } if wait <= left() => wait,
                Verdict::Deny { retry_after } => return Err(AcquireError::Denied { retry_after }),
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Refunds what still counts of an earlier charge by this limiter or a clone of it. Receipts of other limiters refund
    /// nothing.
    ///
    /// A window is refunded in full as long as it counts the charge; a bucket, whatever had not flowed back by itself when
    /// it was last charged; a queue, its slot if that is still the last.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub fn refund(&self, receipt: Receipt) -> StoreFuture<()> {
        self.present().refund(&receipt)
    }

    /// Forgets what `key` has used under every limit, as if it had never been seen.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub fn reset(&self, key: impl Key) -> StoreFuture<()> {
        let client = self.present();
        client.reset(key::hash(&key, client.hasher()))
    }

    /// Returns a handle that inspects and resets single keys of the limit called `name`.
    ///
    /// # Errors
    ///
    /// No limit has that name.
    pub fn limit(&self, name: &str) -> Result<LimitHandle, ConfigError> {
        let limiter = self.clone();
        LimitHandle::new(move || limiter.present().into_owned(), name)
    }

    /// Returns the overrides of the limit called `name`: other sizes of it for single keys.
    ///
    /// # Errors
    ///
    /// No limit has that name, or it is not [overridable](Limit::overridable).
    pub fn overrides(&self, name: &str) -> Result<Overrides, ConfigError> {
        Overrides::new(self.limit(name)?)
    }

    /// Returns the client for the current limits.
    #[inline]
    fn present(&self) -> Cow<'_, Arc<StoreClient>> {
        match &self.following {
            None => Cow::Borrowed(&self.client),
            Some(following) => Cow::Owned(following.get(&self.client, StoreClient::with_limits)),
        }
    }
}

impl Builder {
    /// Builds the limiter.
    ///
    /// # Panics
    ///
    /// Panics if [`try_build`](Self::try_build) would return an error.
    #[must_use]
    #[track_caller]
    pub fn build(self) -> Limiter {
        or_panic(self.try_build())
    }

    /// Builds the limiter.
    ///
    /// # Errors
    ///
    /// - Two limits have the same name.
    /// - A limit needs a request for its key, cost, condition or size, or looks at responses.
    /// - The [deadline](Self::deadline) is 0.
    pub fn try_build(self) -> Result<Limiter, ConfigError> {
        let live_limits = self.live_limits().cloned();
        match &live_limits {
            Some(limits) => limits.require_no_request()?,
            None => check_needs_no_request(&self.limits())?,
        }
        let (client, ()) = self.into_client()?;
        Ok(Limiter { client: Arc::new(client), following: live_limits.map(Derived::new) })
    }
}

fn expect_each(client: &StoreClient, given: usize) -> Result<(), StoreError> {
    let limits = client.limits().as_slice().len();
    if given == limits { Ok(()) } else { Err(StoreError::charge_count(given, limits)) }
}

type Charges<'a> = SmallVec<[Charge<'a>; 8]>;

/// Returns what each limit charges one key.
fn charge_each<'a>(
    client: &'a StoreClient,
    key: &impl Key,
    cost: impl Fn(usize) -> u64,
) -> impl Iterator<Item = Charge<'a>> {
    let key = key::hash(key, client.hasher());
    let limits = client.limits();
    let charge = move |(index, spec)| Charge { spec: limits.current(spec), key, cost: cost(index) };
    limits.all_specs().iter().enumerate().map(charge)
}

fn acquire_from_all(client: &Arc<StoreClient>, key: &impl Key, cost: u64) -> StoreFuture<Decision> {
    // Filled in place: moving it takes as long as hashing the key.
    let mut charges = Charges::new();
    charges.extend(charge_each(client, key, |_| cost));
    acquire(client, &charges)
}

fn acquire(client: &Arc<StoreClient>, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
    if charges.is_empty() { StoreFuture::ready(Ok(uncounted())) } else { client.acquire(charges) }
}

/// Returns the decision where there are no limits.
fn uncounted() -> Decision {
    Decision::by_nobody(SystemClock::new().now())
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Limiter").field(&self.client).finish()
    }
}
