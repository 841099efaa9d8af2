//! Responses for the errors of a [`Limiter`](crate::Limiter) that handlers return.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Request, Response, StatusCode};

use super::headers::Headers;
use super::rejection::{PLAIN, RejectionFormat};
use super::text::insert;
use crate::error::{StoreError, StoreErrorKind};
use crate::key::head::RequestHead;
use crate::limiter::AcquireError;
use crate::recorder::{Reason, Rejection};

impl AcquireError {
    /// Creates the response with which a layer rejects a request by default: 429 with `Retry-After` for a denial, and
    /// 503 for a failed store. It contains neither keys nor causes of failures, unlike the error's own message, which
    /// is for operators.
    ///
    /// With the feature `axum`, a handler can return the error itself, which responds with this.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, Limiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::AcquireError> {
    /// let mails = Limiter::new([Limit::new("mails", FixedWindow::per_day(1))]);
    /// mails.try_acquire("ann@example.org", 1).await?;
    ///
    /// let response = mails.try_acquire("ann@example.org", 1).await.unwrap_err().response();
    /// assert_eq!(response.status(), 429);
    /// assert!(response.headers().contains_key("retry-after"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn response(&self) -> Response<Bytes> {
        match *self {
            Self::Denied { retry_after } => response(Reason::Limited { retry_after }, &Request::new(())),
            Self::Store(ref error) => error.response(),
        }
    }
}

impl StoreError {
    /// Creates the response with which a layer rejects a request by default if the store fails: 503. For an
    /// [invalid call](StoreErrorKind::InvalidCall), it is 500. It does not contain the causes of the failure, unlike
    /// the error's own message, which is for operators.
    ///
    /// With the feature `axum`, a handler can return the error itself, which responds with this.
    #[must_use]
    pub fn response(&self) -> Response<Bytes> {
        if self.kind() != StoreErrorKind::InvalidCall {
            return response(Reason::StoreFailed, &Request::new(()));
        }
        let mut response = Response::new(Bytes::from_static(b"Internal server error.\n"));
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        insert(response.headers_mut(), CONTENT_TYPE, PLAIN);
        response
    }
}

/// Rejects a request with the format of a layer without settings.
fn response(reason: Reason, request: &Request<()>) -> Response<Bytes> {
    let head = RequestHead::of(request);
    let format = RejectionFormat::default();
    let rejection = Rejection { reason, decision: None, names: &[], wait: format.wait(&reason), head };
    format.response(&rejection, &Headers::default())
}

#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
mod axum {
    use axum::body::Body;
    use axum::response::{IntoResponse, Response};

    use crate::error::StoreError;
    use crate::limiter::AcquireError;

    impl IntoResponse for AcquireError {
        fn into_response(self) -> Response {
            self.response().map(Body::from)
        }
    }

    impl IntoResponse for StoreError {
        fn into_response(self) -> Response {
            self.response().map(Body::from)
        }
    }
}

#[cfg(feature = "tonic")]
#[cfg_attr(docsrs, doc(cfg(feature = "tonic")))]
mod tonic {
    use std::error::Error;

    use bytes::Bytes;
    use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
    use http::{Method, Request, Response, StatusCode, Version};
    use tonic::Status;

    use crate::error::{StoreError, StoreErrorKind};
    use crate::http::permit::ChargeError;
    use crate::limiter::{AcquireError, CallError};
    use crate::recorder::Reason;

    /// Rejects a gRPC request.
    fn status(reason: Reason) -> Status {
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        status_of(super::response(reason, &request))
    }

    /// Returns the status of a response. One to a request that is not gRPC has none, and gets the code that stands for
    /// its HTTP status.
    fn status_of(mut response: Response<Bytes>) -> Status {
        let headers = response.headers_mut();
        // They belong to the response over HTTP, not to the status.
        for name in [CONTENT_TYPE, CACHE_CONTROL] {
            headers.remove(name);
        }
        Status::from_header_map(headers).unwrap_or_else(|| {
            let message = String::from_utf8_lossy(response.body()).trim_end().to_owned();
            match response.status() {
                StatusCode::TOO_MANY_REQUESTS => Status::resource_exhausted(message),
                StatusCode::SERVICE_UNAVAILABLE => Status::unavailable(message),
                _ => Status::internal(message),
            }
        })
    }

    /// Converts a denial to the status with which a layer rejects a gRPC request: `RESOURCE_EXHAUSTED` with `RetryInfo`
    /// and `grpc-retry-pushback-ms`, and a failure of the store to `UNAVAILABLE`.
    impl From<AcquireError> for Status {
        fn from(error: AcquireError) -> Self {
            match error {
                AcquireError::Denied { retry_after } => status(Reason::Limited { retry_after }),
                AcquireError::Store(error) => error.into(),
            }
        }
    }

    /// Converts a failure of the store to `UNAVAILABLE`, and an [invalid call](StoreErrorKind::InvalidCall) to
    /// `INTERNAL`, without its causes.
    impl From<StoreError> for Status {
        fn from(error: StoreError) -> Self {
            match error.kind() {
                StoreErrorKind::InvalidCall => status_of(error.response()),
                _ => status(Reason::StoreFailed),
            }
        }
    }

    /// Converts the error to the status with which the layer rejects the request, and records the rejection.
    impl From<ChargeError> for Status {
        fn from(error: ChargeError) -> Self {
            status_of(error.response())
        }
    }

    /// Converts a denial as an [`AcquireError`], and an error of the service as Tonic does.
    impl<E: Into<Box<dyn Error + Send + Sync>>> From<CallError<E>> for Status {
        fn from(error: CallError<E>) -> Self {
            match error {
                CallError::Limited(error) => error.into(),
                CallError::Service(error) => Self::from_error(error.into()),
            }
        }
    }
}
