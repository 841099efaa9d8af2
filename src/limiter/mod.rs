//! Limits without HTTP, for jobs, sockets, queues and outgoing calls.
//!
//! A [`builder`] configures a limiter. [`acquire`] decides at once, [`wait`] waits until the limits allow an operation.
//! A [`handle`] gives access to single keys.

mod acquire;
mod builder;
mod handle;
mod wait;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

pub use self::acquire::AcquireError;
pub use self::builder::Builder;
pub use self::handle::LimitHandle;
use crate::error::{ConfigError, or_panic};
use crate::key::Key;
use crate::key::hash::KeyHash;
use crate::limit::{Limit, Live, LiveLimits};
use crate::resilience::GuardedStore;
use crate::store::decision::Receipt;
use crate::store::{KeyLocks, StoreFuture};

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
/// These methods decide:
///
/// | method | when a limit denies |
/// |---|---|
/// | [`acquire`](Self::acquire) | returns a [`Decision`](crate::Decision) that is not allowed |
/// | [`try_acquire`](Self::try_acquire) | returns an error |
/// | [`wait`](Self::wait), [`wait_at_most`](Self::wait_at_most) | wait until the limits allow it |
/// | [`peek`](Self::peek) | returns the decision; charges nothing in any case |
///
/// [`explain`](Self::explain) reports why an operation is allowed or denied.
#[doc(alias = "throttle")]
#[doc(alias = "governor")]
#[doc(alias = "websocket")]
#[derive(Clone)]
pub struct Limiter {
    client: Arc<GuardedStore>,
    /// The client for the current limits, if they can be replaced.
    live: Option<Arc<Live<GuardedStore>>>,
    /// The turns of waiting operations, by the address of the client, which these keep alive, and the key. The value is
    /// the number of tokens that were left after the last turn.
    queues: Arc<KeyLocks<(usize, KeyHash), u64>>,
}

impl Limiter {
    /// Creates a limiter that keeps its state in memory. Use a [`builder`](Self::builder) for anything else.
    ///
    /// Without limits, it allows everything.
    ///
    /// # Panics
    ///
    /// Panics if two limits have the same name, or a limit needs a request for its key, cost, condition or size, or
    /// looks at responses. [`Builder::try_build`] returns an error instead.
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

    /// Returns the limits in the order in which they were given. With [`LiveLimits`], these are the limits that the
    /// limiter was built with. [`LiveLimits::limits`] returns the current ones.
    pub fn limits(&self) -> &[Limit] {
        self.client.limits().as_slice()
    }

    /// Refunds an earlier charge of this limiter or a clone of it, as far as it still counts. Receipts of other
    /// limiters refund nothing.
    ///
    /// A window refunds the full cost as long as it counts the charge. A bucket refunds the tokens that had not come
    /// back by the time of its last charge. A queue refunds its slot if that is still the last one.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails.
    pub fn refund(&self, receipt: Receipt) -> StoreFuture<()> {
        self.current_client().refund(receipt)
    }

    /// Resets `key` under every limit, as if it had never been used.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails.
    pub fn reset(&self, key: impl Key) -> StoreFuture<()> {
        let client = self.current_client();
        client.reset(client.limits().cells_of(key.hash_with(client.hasher()), 0))
    }

    /// Returns a handle of the limit called `name`, which inspects, resets and overrides single keys.
    ///
    /// # Errors
    ///
    /// Returns an error if no limit has that name.
    pub fn limit(&self, name: &str) -> Result<LimitHandle, ConfigError> {
        let limiter = self.clone();
        LimitHandle::new(move || limiter.current_client().into_owned(), name)
    }

    /// Returns the client for the current limits.
    #[inline]
    fn current_client(&self) -> Cow<'_, Arc<GuardedStore>> {
        match &self.live {
            None => Cow::Borrowed(&self.client),
            Some(live) => Cow::Owned(live.current()),
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
    /// Returns an error if the [configuration is invalid](Self#errors).
    pub fn try_build(self) -> Result<Limiter, ConfigError> {
        self.limits().iter().try_for_each(Limit::check_needs_no_request)?;
        let (client, limits, ()) = self.into_client()?;
        let live = limits.map(|limits| {
            limits.derive(&client, |client, limits| {
                limits.as_slice().iter().try_for_each(Limit::check_needs_no_request)?;
                Ok(client.with_limits(limits))
            })
        });
        Ok(Limiter { client: Arc::new(client), live: live.transpose()?, queues: Arc::new(KeyLocks::new()) })
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Limiter").field(&self.client).finish()
    }
}
