//! Completes operations whose callers give up.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::error::StoreError;

/// The maximum time that an operation takes after its caller gave up, and that its reversal takes: tasks must not
/// accumulate while a database hangs.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Whether an operation has begun to write, and so has to be completed. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct WriteFlag(Arc<AtomicBool>);

impl WriteFlag {
    /// Creates the flag of an operation that has to be completed in any case.
    pub(super) fn raised() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    /// Notes that the operation writes from now on.
    pub(super) fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Runs an operation in a task of its own. If the caller gives up after the first write began, for instance at a deadline,
/// the operation is completed, and `undo` reverts its result.
///
/// Outside a Tokio runtime, the operation ends when its caller gives up.
pub(super) async fn complete<T, U>(
    operation: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    writes: WriteFlag,
    undo: impl FnOnce(T) -> U + Send + 'static,
) -> Result<T, StoreError>
where
    T: Send + 'static,
    U: Future<Output = ()> + Send,
{
    let Ok(runtime) = Handle::try_current() else { return operation.await };
    let (mut sender, result) = oneshot::channel();
    runtime.spawn(async move {
        let mut operation = pin!(operation);
        let finished = poll_fn(|context| match operation.as_mut().poll(context) {
            Poll::Ready(finished) => Poll::Ready(Some(finished)),
            Poll::Pending => sender.poll_closed(context).map(|()| None),
        });
        let finished = match finished.await {
            None if writes.is_raised() => timeout(TIMEOUT, operation).await.ok(),
            finished => finished,
        };
        if let Some(finished) = finished
            && let Err(Ok(unused)) = sender.send(finished)
        {
            let _ = timeout(TIMEOUT, undo(unused)).await;
        }
    });
    result.await.unwrap_or_else(|_| {
        Err(StoreError::of_one_request(
            "the task of the request has ended: its Tokio runtime has shut down, or the database's client has panicked",
        ))
    })
}
