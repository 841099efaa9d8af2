//! Bounded retries of writes that conflict with those of other processes.

use std::time::Duration;

use super::error::CasError;
use crate::error::StoreError;
use crate::time::jittered;

/// The number of attempts to write a value that others keep changing.
pub(super) const ATTEMPTS: u32 = 32;

/// Waits before each attempt but the first. The pause doubles up to 16 ms, and up to half of it is random.
pub(super) async fn pause_before(attempt: u32) {
    if attempt > 0 {
        tokio::time::sleep(jittered(Duration::from_micros(250 << attempt.min(6)))).await;
    }
}

/// Returns the error after the last attempt.
pub(super) fn contention() -> StoreError {
    StoreError::of_one_request(CasError::Contention { attempts: ATTEMPTS })
}
