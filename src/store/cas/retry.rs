//! Bounded retries of writes that conflict with those of other processes.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use crate::error::StoreError;
use crate::store::LONGEST_WAIT;
use crate::time::random_up_to;

/// The number of attempts that follow a lost race at once. Further ones follow after a pause.
const IMMEDIATE: u64 = 16;

/// The number of attempts of an operation without a deadline.
const ATTEMPTS: u64 = 64;

/// The attempts of an operation to write values that others keep changing.
pub(super) struct Retries {
    attempts: u64,
    /// When the operation stops retrying and waiting for a lock. `None` without a deadline.
    until: Option<Instant>,
}

impl Retries {
    /// Starts counting for the request of the current task.
    pub(super) fn new() -> Self {
        let longest = LONGEST_WAIT.try_with(|longest| *longest).ok();
        Self { attempts: 0, until: longest.and_then(|longest| Instant::now().checked_add(longest)) }
    }

    /// Waits for the operation's turn among the requests of this process.
    ///
    /// # Errors
    ///
    /// Returns an error if that takes too long.
    pub(super) async fn wait<T>(&self, turn: impl Future<Output = T>) -> Result<T, StoreError> {
        match self.until {
            Some(until) => timeout_at(until, turn).await.map_err(|_| StoreError::contention()),
            None => Ok(turn.await),
        }
    }

    /// Waits before each attempt but the first ones. The pause is random, up to a maximum that grows to 4 ms.
    ///
    /// # Errors
    ///
    /// Returns an error if no more attempts are left.
    pub(super) async fn next_attempt(&mut self) -> Result<(), StoreError> {
        let pause = random_up_to(Duration::from_millis(self.attempts.saturating_sub(IMMEDIATE).min(4)));
        let is_too_late = |until| self.attempts > 0 && Instant::now() + pause >= until;
        if self.until.map_or(self.attempts == ATTEMPTS, is_too_late) {
            return Err(StoreError::contention());
        }
        self.attempts += 1;
        if !pause.is_zero() {
            sleep(pause).await;
        }
        Ok(())
    }
}
