//! Builds limiters.

use std::sync::Arc;

use super::Limiter;
use super::queues::Queues;
use crate::builder::Builder;
use crate::error::{ConfigError, or_panic};
use crate::limit::check_needs_no_request;

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
        check_needs_no_request(&self.limits())?;
        let (client, limits, ()) = self.into_client()?;
        let live = limits.map(|limits| {
            limits.derive(&client, |client, limits| {
                check_needs_no_request(limits.as_slice())?;
                Ok(client.with_limits(limits))
            })
        });
        Ok(Limiter { client: Arc::new(client), live: live.transpose()?, queues: Queues::default() })
    }
}
