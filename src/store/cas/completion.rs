//! Completes operations whose callers give up.

use std::future::Future;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::error::CasError;
use crate::error::StoreError;

/// Runs an operation that writes several keys in a task of its own. It is completed even if the caller gives up, for
/// instance at a deadline. Then `undo` reverts its result.
///
/// Outside a Tokio runtime, the caller runs the operation, which ends when the caller gives up.
pub(super) async fn complete<T, U>(
    operation: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    undo: impl FnOnce(T) -> U + Send + 'static,
) -> Result<T, StoreError>
where
    T: Send + 'static,
    U: Future<Output = ()> + Send,
{
    let Ok(runtime) = Handle::try_current() else { return operation.await };
    let (sender, result) = oneshot::channel();
    runtime.spawn(async move {
        if let Err(Ok(unused)) = sender.send(operation.await) {
            undo(unused).await;
        }
    });
    result.await.unwrap_or_else(|_| Err(StoreError::of_one_request(CasError::Aborted)))
}
