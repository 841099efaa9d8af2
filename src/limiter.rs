//! Limits without HTTP, for jobs, sockets and queues.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use crate::decision::{Decision, Receipt, Verdict};
use crate::error::{ConfigError, ConfigErrorKind, StoreError};
use crate::hash::{KeyHash, KeyHasher};
use crate::key::{Key, KeyBuf};
use crate::limit::{Limit, Limits};
use crate::store::{Answer, Charge, MemoryStore, Refund, Store};

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
    limits: Arc<Limits>,
    store: Arc<dyn Store>,
    hasher: KeyHasher,
}

impl Limiter {
    /// Limits that are decided together, all or nothing, in memory unless
    /// [`store`](Self::store) says otherwise.
    ///
    /// # Panics
    ///
    /// When there is none, two have one name, or one takes its key or cost from a request.
    /// [`try_new`](Self::try_new) returns an error instead.
    #[must_use]
    #[track_caller]
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Self {
        Self::try_new(limits).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Like [`new`](Self::new), for limits that are not known to be right.
    ///
    /// # Errors
    ///
    /// When there is no limit, two have one name, or one takes its key or cost from a request.
    pub fn try_new(limits: impl IntoIterator<Item = Limit>) -> Result<Self, ConfigError> {
        let limits: Vec<Limit> = limits.into_iter().collect();
        for limit in &limits {
            let what = match (limit.extractor(), limit.own_cost()) {
                (Some(_), _) => "key",
                (_, Some(_)) => "cost",
                _ => continue,
            };
            return Err(ConfigErrorKind::NeedsRequest { limit: limit.name().to_owned(), what }.into());
        }
        let store = Arc::new(MemoryStore::new());
        let hasher = store.hasher();
        Ok(Self { limits: Arc::new(Limits::new(limits, &hasher)?), store, hasher })
    }

    /// Another store.
    #[must_use]
    pub fn store(mut self, store: impl Store) -> Self {
        self.hasher = store.hasher();
        Arc::make_mut(&mut self.limits).hash_by(&self.hasher);
        self.store = Arc::new(store);
        self
    }

    /// The limits, in the order in which they were given.
    pub fn limits(&self) -> &[Limit] {
        self.limits.as_slice()
    }

    /// Decides whether `key` may take `cost` tokens from every limit, and takes them if so. Whoever a
    /// [`LeakyBucketQueue`](crate::LeakyBucketQueue) allows goes on after the decision's
    /// [`delay`](Decision::delay): [`wait`](Self::wait) sees to that.
    ///
    /// Any [`Key`] will do; text and numbers, and numbers of different widths, are different keys.
    /// A store in memory answers at once:
    /// [`acquire(…).into_ready()`](crate::store::Answer::into_ready) needs no `await`.
    ///
    /// # Errors
    ///
    /// When the store can't decide.
    pub fn acquire(&self, key: impl Key, cost: u64) -> Answer<Decision> {
        // Most have one limit.
        if let [terms] = self.limits.all_terms() {
            return self.store.acquire(&[Charge { terms, key: self.hash(&key), cost }]);
        }
        self.store.acquire(&self.charges(&key, |_| cost))
    }

    /// Like [`acquire`](Self::acquire), with a cost of its own for each limit, in the order in
    /// which the limits were given. A cost of 0 takes nothing.
    ///
    /// # Errors
    ///
    /// When the store can't decide.
    ///
    /// # Panics
    ///
    /// When there are not as many costs as limits.
    #[track_caller]
    pub fn acquire_each(&self, key: impl Key, costs: &[u64]) -> Answer<Decision> {
        self.expect_each(costs.len());
        self.store.acquire(&self.charges(&key, |limit| costs[limit]))
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
    /// When the store can't decide.
    ///
    /// # Panics
    ///
    /// When there are not as many charges as limits.
    #[track_caller]
    pub fn acquire_all(&self, charges: &[(&(dyn Key + Sync), u64)]) -> Answer<Decision> {
        self.expect_each(charges.len());
        let charge = |((_, terms), (key, cost)): ((_, _), &(&(dyn Key + Sync), u64))| {
            let key = self.hash(key);
            Charge { terms, key, cost: *cost }
        };
        let charges: SmallVec<[Charge<'_>; 4]> = self.limits.iter().zip(charges).map(charge).collect();
        self.store.acquire(&charges)
    }

    /// Decides as [`acquire`](Self::acquire) would now, and takes nothing.
    ///
    /// # Errors
    ///
    /// When the store can't decide.
    pub fn peek(&self, key: impl Key, cost: u64) -> Answer<Decision> {
        self.store.peek(&self.charges(&key, |_| cost))
    }

    /// Waits until `key` has been allowed `cost` tokens and may go on, however long that takes. It
    /// is not first come, first served, unless a limit is a
    /// [`LeakyBucketQueue`](crate::LeakyBucketQueue).
    ///
    /// Given up while it waits in a queue, it gives its slot back if it is still the last.
    ///
    /// # Errors
    ///
    /// When no wait can help, or the store can't decide.
    pub async fn wait(&self, key: impl Key, cost: u64) -> Result<Decision, WaitError> {
        self.wait_at_most(key, cost, Duration::MAX).await
    }

    /// Like [`wait`](Self::wait), for `longest` at most.
    ///
    /// # Errors
    ///
    /// When no wait can help, or it would be a longer one, which is said at once and not after
    /// `longest`; or the store can't decide.
    pub async fn wait_at_most(&self, key: impl Key, cost: u64, longest: Duration) -> Result<Decision, WaitError> {
        let charges = self.charges(&key, |_| cost);
        let deadline = Instant::now().checked_add(longest);
        let left = || deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        loop {
            let decision = self.store.acquire(&charges).await.map_err(WaitError::Store)?;
            let wait = match decision.verdict() {
                Verdict::Allow { delay } if delay <= left() => {
                    return Ok(Waiting { limiter: self, decision: Some(decision) }.go_on(delay).await);
                }
                Verdict::Allow { delay } => {
                    self.refund(decision.into_receipt()).await.map_err(WaitError::Store)?;
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
    /// itself since; of a queue's, the slot if it is still the last. The receipts of others give nothing
    /// back.
    ///
    /// # Errors
    ///
    /// When the store can't.
    pub fn refund(&self, receipt: Receipt) -> Answer<()> {
        refund(&*self.store, &self.limits, &receipt)
    }

    /// Forgets `key` under every limit: it is as if it had never been seen.
    ///
    /// # Errors
    ///
    /// When the store can't.
    pub fn reset(&self, key: impl Key) -> Answer<()> {
        let key = self.hash(&key);
        let keys: SmallVec<[_; 4]> = self.limits.iter().map(|(_, terms)| (terms, key)).collect();
        self.store.reset(&keys)
    }

    #[track_caller]
    fn expect_each(&self, given: usize) {
        let limits = self.limits.iter().len();
        assert!(given == limits, "{given} charges for {limits} limits: give each one, of 0 where it takes nothing");
    }

    #[inline]
    fn hash(&self, key: &(impl Key + ?Sized)) -> KeyHash {
        if let Some(part) = key.as_part() {
            return self.hasher.hash(part);
        }
        let mut parts = KeyBuf::default();
        key.write(&mut parts);
        parts.hash(&self.hasher)
    }

    fn charges(&self, key: &impl Key, cost: impl Fn(usize) -> u64) -> SmallVec<[Charge<'_>; 4]> {
        let key = self.hash(key);
        let mut charges = SmallVec::new();
        for (index, (_, terms)) in self.limits.iter().enumerate() {
            charges.push(Charge { terms, key, cost: cost(index) });
        }
        charges
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("limits", &self.limits()).field("store", &self.store).finish()
    }
}

pub(crate) fn refund(store: &dyn Store, limits: &Limits, receipt: &Receipt) -> Answer<()> {
    let refund = |charged: &crate::Outcome| {
        let terms = limits.terms(charged.limit()).filter(|terms| terms.identity() == charged.identity)?;
        Some(Refund { terms, key: charged.key, cost: charged.cost, mark: charged.mark })
    };
    let refunds: SmallVec<[Refund<'_>; 4]> = receipt.charged().iter().filter_map(refund).collect();
    store.refund(&refunds)
}

/// A charge whose time has not come: given back if it is given up.
struct Waiting<'a> {
    limiter: &'a Limiter,
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
            drop(self.limiter.refund(decision.into_receipt()));
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
