//! A store that repeats the denials of the store that it wraps.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::denials::Denials;
use super::{Answer, Override, OverrideOperation, Store, StoreFuture};
use crate::decision::{Charges, Purpose};
use crate::key::hash::KeyHasher;
use crate::time::Timestamp;

/// Repeats the denials of a store, so that a flood of denied requests does not reach its database.
///
/// A denied key is denied locally until its `retry_after` has passed, for the same limits and costs. Changes by this
/// store and its clones take effect at once: a charge, a refund, a reset, an override. Those by other processes take
/// effect when the database is called again, at most [one second](Self::remember_denials) later. Only the limits that
/// denied are watched: what a repeated denial reports of others, and its wait if they would deny by now, may be that
/// old.
///
/// Denials that count for a [`Penalty`](crate::Penalty), including the one that begins a lockout, are not remembered,
/// nor are those of more than eight limits and penalties. So if the store has no lockouts, a limit with a penalty has
/// no remembered denials. A store that [answers](super::Outcome::answer) by numbers is called again when one of them
/// changes. At most 8,192 denials are cached, in less than 5 MB, or 20 MB if all are of eight limits.
///
/// A `RedisStore` and a [`CasStore`](super::CasStore) have one inside. Wrap a store of your own that calls a database:
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use std::time::Duration;
///
/// use tower_ratelimit::store::{Answer, Charges, KeyHasher, Purpose, Remembering, StoreFuture};
/// use tower_ratelimit::{Clock, FixedWindow, Limit, Limiter, Store, SystemClock, Timestamp, Verdict};
///
/// /// Denies everything, and counts the calls.
/// #[derive(Debug)]
/// struct Closed(KeyHasher, AtomicU32);
///
/// impl Store for Closed {
///     fn hasher(&self) -> KeyHasher {
///         self.0
///     }
///
///     fn decide(&self, charges: &mut Charges, _: Purpose, _: Duration) -> StoreFuture<Answer> {
///         self.1.fetch_add(1, Ordering::Relaxed);
///         let minute = Duration::from_secs(60);
///         for outcome in charges.iter_mut() {
///             outcome.answer(Verdict::Deny { retry_after: Some(minute) }, 0, Some(minute), minute);
///         }
///         StoreFuture::ready(Ok(Answer::new(SystemClock::new().now())))
///     }
///
///     fn now(&self) -> Option<Timestamp> {
///         Some(SystemClock::new().now())
///     }
///
///     fn refund(&self, _: &Charges) -> StoreFuture<()> {
///         StoreFuture::ready(Ok(()))
///     }
///
///     fn reset(&self, _: &Charges) -> StoreFuture<()> {
///         StoreFuture::ready(Ok(()))
///     }
/// }
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let closed = Arc::new(Closed(KeyHasher::random(), AtomicU32::new(0)));
/// let store = Remembering::new(closed.clone()).remember_denials(Duration::from_secs(30));
/// let mails = Limiter::builder([Limit::new("mails", FixedWindow::per_day(1))]).store(store).build();
/// for _ in 0..1_000 {
///     assert!(!mails.acquire("ann@example.org", 1).await.unwrap().is_allowed());
/// }
/// assert_eq!(closed.1.load(Ordering::Relaxed), 1);
/// # });
/// ```
#[derive(Clone)]
pub struct Remembering<S> {
    pub(super) inner: S,
    denials: Arc<Denials>,
}

impl<S> Remembering<S> {
    /// Wraps a store. Clones share the denials.
    #[must_use]
    pub fn new(inner: S) -> Self {
        Self { inner, denials: Denials::new(Duration::from_secs(1)) }
    }

    /// Sets for how long a denial is repeated without calling the store again, in real time, even if the store's clock
    /// is a [`ManualClock`](crate::ManualClock). Defaults to one second; [`Duration::ZERO`] turns this off.
    #[must_use]
    pub fn remember_denials(self, span: Duration) -> Self {
        Self { denials: Denials::new(span), ..self }
    }

    /// Returns the store inside, to change its settings. Forgets all denials, which the other clones keep.
    pub(super) fn configure(&mut self) -> &mut S {
        self.denials = Denials::new(self.denials.lifetime);
        &mut self.inner
    }

    /// Runs an operation of the store inside that may change the states of charges, which ends their denials.
    pub(super) fn change<T: Send + Unpin + 'static>(
        &self,
        charges: &Charges,
        operation: impl FnOnce(&S) -> StoreFuture<T>,
    ) -> StoreFuture<T> {
        let change = self.denials.begin(charges, Purpose::Take);
        match operation(&self.inner).into_ready() {
            Ok(result) => StoreFuture::ready(result),
            Err(pending) => StoreFuture::pending(async move {
                let _change = change;
                pending.await
            }),
        }
    }
}

impl<S: Store> Store for Remembering<S> {
    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.inner)
    }

    fn hasher(&self) -> KeyHasher {
        self.inner.hasher()
    }

    fn decide(&self, charges: &mut Charges, purpose: Purpose, longest_wait: Duration) -> StoreFuture<Answer> {
        let change = self.denials.begin(charges, purpose);
        match self.inner.decide(charges, purpose, longest_wait).into_ready() {
            Ok(result) => StoreFuture::ready(result.inspect(|answer| change.decided(answer, charges))),
            Err(pending) => {
                StoreFuture::pending(async move { pending.await.inspect(|answer| change.decided(answer, &[])) })
            }
        }
    }

    fn refund(&self, charges: &Charges) -> StoreFuture<()> {
        self.change(charges, |inner| inner.refund(charges))
    }

    fn reset(&self, charges: &Charges) -> StoreFuture<()> {
        self.change(charges, |inner| inner.reset(charges))
    }

    fn decide_at_once(&self, charges: &mut Charges, purpose: Purpose) -> Option<Timestamp> {
        let Some(at) = self.inner.decide_at_once(charges, purpose) else {
            return self.denials.answer(charges, self.inner.now().map(Timestamp::as_micros));
        };
        drop(self.denials.begin(charges, purpose));
        Some(at)
    }

    fn access_override(&self, charges: &Charges, operation: OverrideOperation) -> StoreFuture<Option<Override>> {
        if operation == OverrideOperation::Get {
            return self.inner.access_override(charges, operation);
        }
        self.change(&charges.select([0]), |inner| inner.access_override(charges, operation))
    }
}

impl<S: fmt::Debug> fmt::Debug for Remembering<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remembering").field("inner", &self.inner).finish_non_exhaustive()
    }
}
