//! The responses of handlers to the errors of a limiter or a permit.

use bytes::Bytes;
use http::{Request, Response};

use super::headers::Headers;
use super::rejection::Rejection;
use super::rejection_format::{Body, RejectionFormat};
use crate::error::StoreError;
use crate::limiter::AcquireError;
use crate::reason::Reason;
use crate::request::RequestHead;

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
        match self {
            Self::Denied { retry_after } => response(Reason::Limited { retry_after: *retry_after }),
            Self::Store(error) => error.response(),
        }
    }
}

impl StoreError {
    /// Creates the response with which a layer rejects a request by default if the store fails: 503. It does not
    /// contain the causes of the failure, unlike the error's own message, which is for operators.
    ///
    /// With the feature `axum`, a handler can return the error itself, which responds with this.
    #[must_use]
    pub fn response(&self) -> Response<Bytes> {
        response(Reason::StoreFailed)
    }
}

fn response(reason: Reason) -> Response<Bytes> {
    let request = Request::new(());
    let rejection = Rejection { reason, violated: &[], head: RequestHead::of(&request) };
    let format = RejectionFormat { body: Body::PlainText, grpc: false };
    format.response(&rejection, None, &Headers::new([], &[]), None)
}

#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl axum::response::IntoResponse for AcquireError {
    fn into_response(self) -> axum::response::Response {
        self.response().map(axum::body::Body::from)
    }
}

#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
impl axum::response::IntoResponse for StoreError {
    fn into_response(self) -> axum::response::Response {
        self.response().map(axum::body::Body::from)
    }
}
