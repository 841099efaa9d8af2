//! What a store returns: the answer to a request, and the future of a result.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::task::coop::poll_proceed;

use crate::algorithm::CompactState;
use crate::decision::Charges;
use crate::error::StoreError;
use crate::time::Timestamp;

/// A store's answer to a request.
#[derive(Debug)]
pub struct Answer {
    pub(super) at: Timestamp,
    /// `None` if the outcomes are in the charges of the request.
    // Boxed, because an answer is moved often on its way.
    pub(super) charges: Option<Box<Charges>>,
    pub(super) valid_until: Timestamp,
}

impl Answer {
    /// Creates the answer of a store that has answered in the charges that it was given, at an instant of its clock.
    #[must_use]
    pub const fn new(at: Timestamp) -> Self {
        Self { at, charges: None, valid_until: Timestamp::MAX }
    }

    /// Creates the answer of a future, which cannot borrow the charges that the store was given: answered clones of all
    /// of them, in their order.
    #[must_use]
    pub fn with_charges(at: Timestamp, charges: impl Into<Box<Charges>>) -> Self {
        Self { at, charges: Some(charges.into()), valid_until: Timestamp::MAX }
    }

    /// Creates the answer of renewals, each with its instant and the new mark of its slots. If some have failed, their
    /// marks are unused. If all have, returns the last error.
    pub(super) fn of_renewals(
        charges: &Charges,
        renewed: Vec<Result<(Timestamp, CompactState), StoreError>>,
    ) -> Result<Self, StoreError> {
        let (mut charges, mut last, mut failed) = (charges.clone(), None, None);
        for (outcome, renewed) in charges.iter_mut().zip(renewed) {
            outcome.mark = match renewed {
                Ok((at, mark)) => {
                    last = last.max(Some(at));
                    mark
                }
                Err(error) => {
                    failed = Some(error);
                    CompactState::UNUSED
                }
            };
        }
        match (last, failed) {
            (None, Some(error)) => Err(error),
            (last, _) => Ok(Self::with_charges(last.unwrap_or(Timestamp::EPOCH), charges)),
        }
    }

    /// Sets the instant of the store's clock from which the answer to the same request may differ although no charge has
    /// changed, such as the expiry of an override. Defaults to never.
    #[must_use]
    pub(crate) fn valid_until(self, instant: Timestamp) -> Self {
        Self { valid_until: instant, ..self }
    }

    /// Copies the outcomes into the charges of the request, and returns the instant of the decision. If they are those
    /// of other charges, none of these counts as answered: a limiter then returns an error.
    #[inline]
    pub fn finish(self, charges: &mut Charges) -> Timestamp {
        if let Some(answered) = self.charges {
            charges.take_outcomes(*answered);
        }
        self.at
    }
}

/// The future of a store's result. It may be ready already: a store that answers from memory allocates nothing for it.
///
/// ```
/// use tower_ratelimit::store::StoreFuture;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let ready = StoreFuture::ready(Ok(1));
/// let pending = StoreFuture::pending(async { Ok(2) });
/// assert_eq!(ready.await.unwrap() + pending.await.unwrap(), 3);
/// # });
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct StoreFuture<T>(Readiness<T>);

enum Readiness<T> {
    /// `None` once the result was taken.
    Ready(Option<Result<T, StoreError>>),
    Pending(Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>),
}

impl<T> StoreFuture<T> {
    /// Creates a future that is ready.
    pub fn ready(result: Result<T, StoreError>) -> Self {
        Self(Readiness::Ready(Some(result)))
    }

    /// Creates a future that has yet to be polled. It is boxed.
    pub fn pending(future: impl Future<Output = Result<T, StoreError>> + Send + 'static) -> Self {
        Self(Readiness::Pending(Box::pin(future)))
    }

    /// Returns a reference to the result if it is ready and was not taken, or `None` if the future has to be awaited.
    /// This saves the copy that [`into_ready`](Self::into_ready) makes.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, Limiter};
    ///
    /// let mails = Limiter::new([Limit::new("mails", FixedWindow::per_day(20))]);
    /// let future = mails.acquire("ann@example.org", 1);
    /// let decision = future.as_ready().expect("memory answers at once").expect("the memory store does not fail");
    /// assert!(decision.is_allowed());
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if the store has failed.
    pub fn as_ready(&self) -> Option<Result<&T, &StoreError>> {
        match &self.0 {
            Readiness::Ready(result) => result.as_ref().map(Result::as_ref),
            Readiness::Pending(_) => None,
        }
    }

    /// Returns the result if it is ready.
    ///
    /// # Errors
    ///
    /// Returns the future itself if it has to be awaited, or if its result was already taken.
    pub fn into_ready(self) -> Result<Result<T, StoreError>, Self> {
        match self.0 {
            Readiness::Ready(Some(result)) => Ok(result),
            state => Err(Self(state)),
        }
    }
}

impl<T: Unpin> Future for StoreFuture<T> {
    type Output = Result<T, StoreError>;

    /// Takes the result. One that is ready already costs a unit of the task's [cooperative budget](tokio::task::coop),
    /// so that a task which only awaits such results yields to others now and then. Outside a Tokio runtime there is no
    /// budget.
    ///
    /// # Panics
    ///
    /// Panics if polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Readiness::Pending(future) => future.as_mut().poll(context),
            Readiness::Ready(result) => {
                ready!(poll_proceed(context)).made_progress();
                Poll::Ready(result.take().expect("a `StoreFuture` is not polled after it was ready"))
            }
        }
    }
}

impl<T> fmt::Debug for StoreFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreFuture").finish_non_exhaustive()
    }
}
