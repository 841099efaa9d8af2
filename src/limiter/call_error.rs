//! The error of a service whose calls are limited.

use std::error::Error;
use std::fmt;

use super::acquire_error::AcquireError;

/// The error of a service whose calls a limiter of this process may deny.
///
/// It tells a local denial, after which the service was not called, from an error of the service. There is no third
/// case, so the type is exhaustive.
#[derive(Debug)]
pub enum CallError<E> {
    /// The limiter did not allow the call. The service was not called.
    Limited(AcquireError),
    /// The service was called, and failed.
    Service(E),
}

impl<E: Into<Box<dyn Error + Send + Sync>>> CallError<E> {
    /// Returns the error of the limiter or of the service, for layers that need errors of any type.
    ///
    /// A boxed error is no `Error` itself, so a service with such errors needs
    /// `.map_err(CallError::into_boxed)` within a layer such as Tower's `Timeout` or `Buffer`.
    #[must_use]
    pub fn into_boxed(self) -> Box<dyn Error + Send + Sync> {
        match self {
            Self::Limited(error) => error.into(),
            Self::Service(error) => error.into(),
        }
    }
}

impl<E: fmt::Display> fmt::Display for CallError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limited(error) => error.fmt(f),
            Self::Service(error) => error.fmt(f),
        }
    }
}

impl<E: Error> Error for CallError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Limited(error) => error.source(),
            Self::Service(error) => error.source(),
        }
    }
}
