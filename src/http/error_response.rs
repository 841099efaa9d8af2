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
            Self::Denied { retry_after } => response(Reason::Limited { retry_after }),
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
            return response(Reason::StoreFailed);
        }
        let mut response = Response::new(Bytes::from_static(b"Internal server error.\n"));
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        insert(response.headers_mut(), CONTENT_TYPE, PLAIN);
        response
    }
}

fn response(reason: Reason) -> Response<Bytes> {
    let request = Request::new(());
    let head = RequestHead::of(&request);
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
