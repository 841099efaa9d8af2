//! A store's answer: there already, or on its way.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::task::coop::poll_proceed;

use crate::error::StoreError;

/// A future of what a store answers, which may be there already. A store that answers from memory
/// allocates nothing for it.
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
#[must_use = "an answer that is not awaited may never be worked out"]
pub struct StoreFuture<T>(State<T>);

enum State<T> {
    There(T, Source),
    Failed(StoreError),
    Taken,
    Pending(Pending<T>),
}

/// Where an answer is from. As wide as a word, for the reason that [`Outcome`](crate::Outcome) tells.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u64)]
enum Source {
    Store,
    Memory,
}

/// An answer that has yet to come.
pub(crate) type Pending<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

impl<T> StoreFuture<T> {
    /// An answer that is there.
    #[inline]
    pub fn ready(answer: Result<T, StoreError>) -> Self {
        Self(match answer {
            Ok(answer) => State::There(answer, Source::Store),
            Err(error) => State::Failed(error),
        })
    }

    /// An answer that is known without asking, where the store would otherwise have to be: such as a
    /// denial that `RedisStore` remembers. It says nothing of whether the store
    /// works.
    #[inline]
    pub fn remembered(answer: T) -> Self {
        Self(State::There(answer, Source::Memory))
    }

    /// An answer that has yet to come.
    pub fn pending(answer: impl Future<Output = Result<T, StoreError>> + Send + 'static) -> Self {
        Self(State::Pending(Box::pin(answer)))
    }

    /// Whether the answer is there, and no error.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        matches!(self.0, State::There(..))
    }

    /// Whether it is known without asking.
    pub(crate) fn is_remembered(&self) -> bool {
        matches!(self.0, State::There(_, Source::Memory))
    }

    /// A look at the answer, if it is there and was not taken. None, where it has yet to come: `await` it then.
    ///
    /// Who needs no more than to look saves the copy of some hundred bytes that [`into_ready`](Self::into_ready) makes.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, Limiter};
    ///
    /// let mails = Limiter::new([Limit::new("mails", FixedWindow::per_day(20))]);
    /// let answer = mails.acquire("ann@example.org", 1);
    /// let decision = answer.as_ready().expect("memory answers at once").expect("and without errors");
    /// assert!(decision.is_allowed());
    /// ```
    ///
    /// # Errors
    ///
    /// When the store could not answer.
    #[inline]
    pub fn as_ready(&self) -> Option<Result<&T, &StoreError>> {
        match &self.0 {
            State::There(answer, _) => Some(Ok(answer)),
            State::Failed(error) => Some(Err(error)),
            State::Taken | State::Pending(_) => None,
        }
    }

    /// The answer, if it is there, or that which it comes of, which takes less room.
    ///
    /// # Panics
    ///
    /// When it was taken.
    #[inline]
    pub(crate) fn into_pending(self) -> Result<Result<T, StoreError>, Pending<T>> {
        match self.0 {
            State::There(answer, _) => Ok(Ok(answer)),
            State::Failed(error) => Ok(Err(error)),
            State::Pending(pending) => Err(pending),
            State::Taken => panic!("an answer is taken once"),
        }
    }

    /// The answer, if it is there and was not taken.
    ///
    /// # Errors
    ///
    /// The future itself, if the answer has yet to come.
    #[inline]
    pub fn into_ready(self) -> Result<Result<T, StoreError>, Self> {
        match self.0 {
            State::There(answer, _) => Ok(Ok(answer)),
            State::Failed(error) => Ok(Err(error)),
            state => Err(Self(state)),
        }
    }
}

impl<T: Unpin> Future for StoreFuture<T> {
    type Output = Result<T, StoreError>;

    /// Takes the answer. One that is there already costs a unit of the task's [cooperative budget](tokio::task::coop),
    /// so that a task which only asks for such answers yields to the others now and then. Outside a Tokio runtime
    /// there is no budget.
    ///
    /// # Panics
    ///
    /// When polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let State::Pending(answer) = &mut self.0 {
            return answer.as_mut().poll(context);
        }
        ready!(poll_proceed(context)).made_progress();
        match mem::replace(&mut self.0, State::Taken) {
            State::There(answer, _) => Poll::Ready(Ok(answer)),
            State::Failed(error) => Poll::Ready(Err(error)),
            State::Pending(_) | State::Taken => panic!("an answer is polled once it is there"),
        }
    }
}

impl<T> fmt::Debug for StoreFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.0 {
            State::There(_, Source::Store) | State::Failed(_) => "ready",
            State::There(_, Source::Memory) => "remembered",
            State::Taken => "taken",
            State::Pending(_) => "pending",
        };
        f.debug_tuple("StoreFuture").field(&state).finish()
    }
}
