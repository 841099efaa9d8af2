//! Builds limiters.

use std::sync::Arc;

use super::Limiter;
use super::queues::Queues;
use crate::builder::Builder;
use crate::error::{ConfigError, or_panic};
use crate::limit::{Derived, check_needs_no_request};

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
        let live_limits = self.live_limits().cloned();
        match &live_limits {
            Some(limits) => limits.require_no_request()?,
            None => check_needs_no_request(&self.limits())?,
        }
        let (client, ()) = self.into_client()?;
        Ok(Limiter { client: Arc::new(client), live: live_limits.map(Derived::new), queues: Queues::default() })
    }
}
