//! Limits without HTTP, for jobs, sockets and queues.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use crate::decision::{Decision, Receipt, Verdict};
#[cfg(doc)]
use crate::error::StoreErrorKind;
use crate::error::{ConfigError, StoreError, or_panic};
use crate::key::{self, Key};
use crate::limit::{Derived, Limit, LiveLimits, check_needs_no_request};
use crate::observe::{Event, Observer};
use crate::on_store_error::OnStoreError;
use crate::overrides::Overrides;
use crate::resilience::{CircuitBreaker, StoreClient};
use crate::store::{Charge, Store, StoreFuture};
use crate::time::{Clock, SystemClock};

/// Limits for whatever is not an HTTP request. Its clones share what keys have used.
///
/// ```
/// use tower_ratelimit::{FixedWindow, Limit, Limiter, TokenBucket};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let mails = Limiter::new([
///     Limit::new("burst", TokenBucket::per_second(1).burst(5)),
///     Limit::new("daily", FixedWindow::per_day(20)),
/// ]);
///
/// let decision = mails.acquire("ann@example.org", 1).await.unwrap();
/// assert!(decision.is_allowed());
/// assert_eq!(decision.outcomes()[1].remaining(), 19);
///
/// // It was not sent after all.
/// mails.refund(decision.into_receipt()).await.unwrap();
/// assert_eq!(mails.peek("ann@example.org", 1).await.unwrap().outcomes()[1].remaining(), 20);
/// # });
/// ```
#[derive(Clone)]
pub struct Limiter {
    client: Arc<StoreClient>,
    /// Its rules, if they can be replaced: what is decided goes by what is made of both.
    following: Option<Derived<StoreClient>>,
}

impl Limiter {
    /// Limits that are decided together, all or nothing, in memory unless
    /// [`store`](Self::store) says otherwise. Without any, everything is allowed.
    ///
    /// # Panics
    ///
    /// When two have one name, or one takes its key, cost, condition or size from a request or
    /// looks at responses.
    /// [`try_new`](Self::try_new) returns an error instead.
    #[must_use]
    #[track_caller]
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Self {
        or_panic(Self::try_new(limits))
    }

    /// Like [`new`](Self::new), for limits that are not known to be right.
    ///
    /// # Errors
    ///
    /// When two have one name, or one takes its key, cost, condition or size from a request or
    /// looks at responses.
    pub fn try_new(limits: impl IntoIterator<Item = Limit>) -> Result<Self, ConfigError> {
        let limits: Vec<Limit> = limits.into_iter().collect();
        check_needs_no_request(&limits)?;
        Ok(Self { client: Arc::new(StoreClient::new(limits)?), following: None })
    }

    /// Limits that can be replaced while they are gone by: see [`LiveLimits`]. What was charged before is given
    /// back to the limits that there still are.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, Limiter, LiveLimits};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let rules = LiveLimits::new([Limit::new("mails", FixedWindow::per_day(20))]);
    /// let mails = Limiter::with_live_limits(&rules);
    /// assert!(mails.acquire("ann", 15).await.unwrap().is_allowed());
    ///
    /// rules.replace([Limit::new("mails", FixedWindow::per_day(40))]).unwrap();
    /// assert_eq!(mails.peek("ann", 1).await.unwrap().outcomes()[0].remaining(), 25);
    /// # });
    /// ```
    ///
    /// # Panics
    ///
    /// When one of the limits takes its key, cost, condition or size from a request or looks at responses: then, and
    /// not later, as the rules refuse to be replaced by such. [`try_with_live_limits`](Self::try_with_live_limits) returns an error
    /// instead.
    #[must_use]
    #[track_caller]
    pub fn with_live_limits(rules: &LiveLimits) -> Self {
        or_panic(Self::try_with_live_limits(rules))
    }

    /// Like [`with_live_limits`](Self::with_live_limits), for limits that are not known to be right.
    ///
    /// # Errors
    ///
    /// When one of the limits takes its key, cost, condition or size from a request or looks at responses.
    pub fn try_with_live_limits(rules: &LiveLimits) -> Result<Self, ConfigError> {
        rules.require_no_request()?;
        let client = StoreClient::following(&rules.snapshot());
        Ok(Self { client: Arc::new(client), following: Some(Derived::new(rules.clone())) })
    }

    /// Enforces none of the limits: all are in the [shadow](Limit::shadow).
    #[must_use]
    pub fn shadow(mut self) -> Self {
        self.client().shadow();
        self
    }

    /// Another store.
    #[must_use]
    pub fn store(mut self, store: impl Store) -> Self {
        self.client().set_store(store);
        self
    }

    /// How long the store may take for a request, from 1 ns: 50 ms, unless this says otherwise. Then
    /// [`on_store_error`](Self::on_store_error) says what happens. The store may do what it was asked all
    /// the same: the request is then charged for nothing, and limits are stricter, never laxer.
    ///
    /// A store that does not answer at once is asked on a Tokio runtime, with its timers enabled.
    ///
    /// # Panics
    ///
    /// When it is 0. [`try_deadline`](Self::try_deadline) returns an error instead.
    #[must_use]
    #[track_caller]
    pub fn deadline(self, deadline: Duration) -> Self {
        or_panic(self.try_deadline(deadline))
    }

    /// Like [`deadline`](Self::deadline), for a time that is not known to be right.
    ///
    /// # Errors
    ///
    /// When it is 0.
    pub fn try_deadline(mut self, deadline: Duration) -> Result<Self, ConfigError> {
        self.client().set_deadline(deadline)?;
        Ok(self)
    }

    /// When the store is no longer asked, and for how long. Clones that were made before keep theirs.
    #[must_use]
    pub fn circuit_breaker(mut self, breaker: CircuitBreaker) -> Self {
        self.client().set_breaker(breaker);
        self
    }

    /// What becomes of requests when the store can't decide: an error, unless this says otherwise.
    /// [`Limit::on_store_error`] says so for a limit.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, Limiter, OnStoreError, Share};
    ///
    /// let mails = Limiter::new([Limit::new("mails", FixedWindow::per_day(20))])
    ///     .on_store_error(OnStoreError::DecideLocally(Share::one_of(4)));
    /// # let _ = mails;
    /// ```
    #[must_use]
    pub fn on_store_error(mut self, policy: OnStoreError) -> Self {
        self.client().set_policy(policy);
        self
    }

    /// Tells a closure what happens, for metrics and logs. It is called where it happens, and should not
    /// dawdle. Said twice, the last counts.
    #[must_use]
    pub fn observe(mut self, tell: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.client().set_observer(Observer::new(tell));
        self
    }

    /// The limits, in the order in which they were given: of rules that can be replaced, those that there were
    /// when this limiter was made.
    pub fn limits(&self) -> &[Limit] {
        self.client.limits().as_slice()
    }

    /// Decides whether `key` may take `cost` tokens from every limit, and takes them if so. Whoever a
    /// [`LeakyBucketQueue`](crate::LeakyBucketQueue) allows goes on after the decision's
    /// [`delay`](Decision::delay): [`wait`](Self::wait) sees to that.
    ///
    /// Any [`Key`] will do; text and numbers, and numbers of different widths, are different keys.
    ///
    /// Awaiting the answer is always correct. It consumes Tokio's cooperative budget, so that a loop yields to other
    /// tasks. A store in memory has charged and answered when this returns, with or
    /// without a runtime: [`as_ready`](crate::store::StoreFuture::as_ready) looks at the decision, and
    /// [`into_ready`](crate::store::StoreFuture::into_ready) takes it, as a refund needs it. To drop it gives nothing back.
    ///
    /// # Errors
    ///
    /// When the store can't decide, and a policy is to refuse: see [`on_store_error`](Self::on_store_error).
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

    /// Like [`acquire`](Self::acquire), with a cost of its own for each limit, in the order in
    /// which the limits were given. A cost of 0 takes nothing.
    ///
    /// # Errors
    ///
    /// When there are not as many costs as limits ([`StoreErrorKind::ChargeCount`]): limits that can be replaced may
    /// come to be more or fewer. When the store can't decide, and a policy is to refuse.
    pub fn acquire_each(&self, key: impl Key, costs: &[u64]) -> StoreFuture<Decision> {
        let client = self.present();
        if let Err(error) = expect_each(&client, costs.len()) {
            return StoreFuture::ready(Err(error));
        }
        let mut charges = Charges::new();
        charge_each(&client, &key, |limit| costs[limit], &mut charges);
        acquire(&client, &charges)
    }

    /// Like [`acquire`](Self::acquire), with a key and a cost of its own for each limit, in the
    /// order in which the limits were given. A cost of 0 takes nothing.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, Limiter};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let uploads = Limiter::new([
    ///     Limit::new("files of a user", FixedWindow::per_day(100)),
    ///     Limit::new("bytes of a tenant", FixedWindow::per_day(1_000_000_000)),
    /// ]);
    ///
    /// let (user, tenant) = ("ann@example.org", 7_u64);
    /// let decision = uploads.acquire_all(&[(&user, 1), (&tenant, 52_300)]).await.unwrap();
    /// assert!(decision.is_allowed());
    /// # });
    /// ```
    ///
    /// # Errors
    ///
    /// When there are not as many charges as limits ([`StoreErrorKind::ChargeCount`]): limits that can be replaced may
    /// come to be more or fewer. When the store can't decide, and a policy is to refuse.
    pub fn acquire_all(&self, charges: &[(&(dyn Key + Sync), u64)]) -> StoreFuture<Decision> {
        let client = self.present();
        if let Err(error) = expect_each(&client, charges.len()) {
            return StoreFuture::ready(Err(error));
        }
        let charge = |(spec, (key, cost)): (_, &(&(dyn Key + Sync), u64))| {
            let (spec, key) = (client.limits().current(spec), key::hash(key, client.hasher()));
            Charge { spec, key, cost: *cost }
        };
        let charges: SmallVec<[Charge<'_>; 4]> = client.limits().all_specs().iter().zip(charges).map(charge).collect();
        acquire(&client, &charges)
    }

    /// Decides as [`acquire`](Self::acquire) would now, and takes nothing.
    ///
    /// # Errors
    ///
    /// When the store can't decide, and a policy is to refuse.
    pub fn peek(&self, key: impl Key, cost: u64) -> StoreFuture<Decision> {
        let client = self.present();
        let mut charges = Charges::new();
        charge_each(&client, &key, |_| cost, &mut charges);
        if charges.is_empty() { StoreFuture::ready(Ok(uncounted())) } else { client.peek(&charges) }
    }

    /// Waits until `key` has been allowed `cost` tokens and may go on, however long that takes. It
    /// is not first come, first served, unless a limit is a
    /// [`LeakyBucketQueue`](crate::LeakyBucketQueue).
    ///
    /// Given up while it waits in a queue, it gives its slot back if it is still the last.
    ///
    /// # Errors
    ///
    /// When no wait can help, or the store can't decide and a policy is to refuse.
    pub async fn wait(&self, key: impl Key, cost: u64) -> Result<Decision, WaitError> {
        self.wait_at_most(key, cost, Duration::MAX).await
    }

    /// Like [`wait`](Self::wait), for `longest` at most.
    ///
    /// # Errors
    ///
    /// When no wait can help, or it would be a longer one, which is said at once and not after
    /// `longest`; or the store can't decide and a policy is to refuse.
    pub async fn wait_at_most(&self, key: impl Key, cost: u64, longest: Duration) -> Result<Decision, WaitError> {
        let client = self.present();
        let mut charges = Charges::new();
        charge_each(&client, &key, |_| cost, &mut charges);
        // Who waits is not denied.
        let without_strikes: SmallVec<[_; 4]> = charges.iter().map(|charge| charge.spec.without_strikes()).collect();
        let charges = without_strikes.iter().zip(&charges).map(|(spec, charge)| Charge { spec, ..*charge });
        let charges: SmallVec<[Charge<'_>; 4]> = charges.collect();
        let deadline = Instant::now().checked_add(longest);
        let left = || deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        loop {
            let decision = acquire(&client, &charges).await.map_err(WaitError::Store)?;
            let wait = match decision.verdict() {
                Verdict::Allow { delay } if delay <= left() => {
                    return Ok(Waiting { client: &client, decision: Some(decision) }.go_on(delay).await);
                }
                Verdict::Allow { delay } => {
                    client.refund(&decision.into_receipt()).await.map_err(WaitError::Store)?;
                    return Err(WaitError::TooLong { retry_after: Some(delay) });
                }
                Verdict::Deny { retry_after: Some(wait) } if wait <= left() => wait,
                Verdict::Deny { retry_after } => return Err(WaitError::TooLong { retry_after }),
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Gives back what still counts of an earlier charge by this limiter or a clone of it: of a
    /// window's, all while the window counts it; of a bucket's, what would not have come back by
    /// itself until it was last charged; of a queue's, the slot if it is still the last. The receipts of others give
    /// nothing back.
    ///
    /// # Errors
    ///
    /// When the store can't.
    pub fn refund(&self, receipt: Receipt) -> StoreFuture<()> {
        self.present().refund(&receipt)
    }

    /// Forgets `key` under every limit: it is as if it had never been seen.
    ///
    /// # Errors
    ///
    /// When the store can't.
    pub fn reset(&self, key: impl Key) -> StoreFuture<()> {
        let client = self.present();
        client.reset(key::hash(&key, client.hasher()))
    }

    /// The overrides of a limit: other sizes of it for single keys. They are in the store that the limiter has
    /// now: say so after [`store`](Self::store). Of rules that can be replaced, they are those of the limit that has
    /// that name when they are asked for.
    ///
    /// # Errors
    ///
    /// When no limit has that name, or it is not [overridable](Limit::overridable).
    pub fn overrides(&self, limit: &str) -> Result<Overrides, ConfigError> {
        let limiter = self.clone();
        Overrides::new(move || limiter.present().into_owned(), limit)
    }

    /// What is gone by now.
    #[inline]
    fn present(&self) -> Cow<'_, Arc<StoreClient>> {
        match &self.following {
            None => Cow::Borrowed(&self.client),
            Some(following) => Cow::Owned(following.get(&self.client, StoreClient::with_limits)),
        }
    }

    /// What is shared, to change it: a copy, once there are other users of it.
    fn client(&mut self) -> &mut StoreClient {
        self.following.iter_mut().for_each(Derived::reset);
        Arc::make_mut(&mut self.client)
    }
}

fn expect_each(client: &StoreClient, given: usize) -> Result<(), StoreError> {
    let limits = client.limits().as_slice().len();
    if given == limits { Ok(()) } else { Err(StoreError::charge_count(given, limits)) }
}

type Charges<'a> = SmallVec<[Charge<'a>; 8]>;

/// Adds what each limit charges one key. (It is added where it stays, rather than moved there.)
#[inline]
fn charge_each<'a>(client: &'a StoreClient, key: &impl Key, cost: impl Fn(usize) -> u64, charges: &mut Charges<'a>) {
    let key = key::hash(key, client.hasher());
    for (index, spec) in client.limits().all_specs().iter().enumerate() {
        charges.push(Charge { spec: client.limits().current(spec), key, cost: cost(index) });
    }
}

// Not inlined, so that where there is one limit, little else is in the way.
#[inline(never)]
fn acquire_from_all(client: &Arc<StoreClient>, key: &impl Key, cost: u64) -> StoreFuture<Decision> {
    let mut charges = Charges::new();
    charge_each(client, key, |_| cost, &mut charges);
    acquire(client, &charges)
}

#[inline]
fn acquire(client: &Arc<StoreClient>, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
    if charges.is_empty() { StoreFuture::ready(Ok(uncounted())) } else { client.acquire(charges) }
}

/// Where there are no limits.
fn uncounted() -> Decision {
    Decision::by_nobody(SystemClock::new().now())
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Limiter").field(&self.client).finish()
    }
}

/// A charge whose time has not come: given back if it is given up.
struct Waiting<'a> {
    client: &'a Arc<StoreClient>,
    decision: Option<Decision>,
}

impl Waiting<'_> {
    async fn go_on(mut self, delay: Duration) -> Decision {
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        self.decision.take().expect("it is taken once")
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(decision) = self.decision.take() {
            self.client.refund_in_background(&decision.into_receipt());
        }
    }
}

/// Why there was nothing to wait for.
#[derive(Debug)]
#[non_exhaustive]
pub enum WaitError {
    /// The wait would be longer than it may be.
    TooLong {
        /// How long it would be, if nothing else comes. `None` where no wait can help, as for a
        /// cost over a limit's capacity.
        retry_after: Option<Duration>,
    },
    /// The store could not decide.
    Store(StoreError),
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { retry_after: Some(wait) } => write!(f, "there is no room for another {wait:?}"),
            Self::TooLong { retry_after: None } => write!(f, "there will never be room: the cost is over the capacity"),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for WaitError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::TooLong { .. } => None,
            Self::Store(error) => std::error::Error::source(error),
        }
    }
}
