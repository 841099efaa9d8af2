//! The options of a layer: permits, headers and rejections.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::headers::HeaderStyle;
use super::on_reject::{IntoRejectionResponse, Reported};
use super::rejection::{Body, RejectionFormat};
use crate::limiter::Builder;
use crate::recorder::Rejection;
use crate::request::RequestOptions;

/// The options that only a [`RateLimitLayer`](crate::RateLimitLayer) has: see its
/// [`builder`](crate::RateLimitLayer::builder).
#[derive(Clone)]
pub struct HttpOptions {
    pub(super) requests: RequestOptions,
    pub(super) styles: Vec<HeaderStyle>,
    pub(super) format: RejectionFormat,
    pub(super) permits: bool,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            requests: RequestOptions::default(),
            styles: vec![HeaderStyle::IETF],
            format: RejectionFormat::default(),
            permits: false,
        }
    }
}

impl fmt::Debug for HttpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpOptions").finish_non_exhaustive()
    }
}

impl AsMut<RequestOptions> for HttpOptions {
    fn as_mut(&mut self) -> &mut RequestOptions {
        &mut self.requests
    }
}

impl Builder<HttpOptions> {
    /// Gives each request a [`Permit`](crate::Permit), with which its handler can charge more, settle, refund or reset.
    /// Costs a few allocations per request.
    pub fn permits(mut self) -> Self {
        self.options.permits = true;
        self
    }

    /// Sets the response headers that report the remaining tokens of limits. Defaults to [`HeaderStyle::IETF`].
    ///
    /// Takes one style or several; `[]` disables them all. `Retry-After` is always sent. Of two styles that differ
    /// only in their [`ResetFormat`](crate::ResetFormat) or in the version of the draft, the first one is used.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, HeaderStyle, Limit, RateLimitLayer, ResetFormat};
    ///
    /// let limits = RateLimitLayer::builder([Limit::new("all", FixedWindow::per_minute(100))])
    ///     .headers([HeaderStyle::IETF, HeaderStyle::XRateLimit(ResetFormat::Seconds)])
    ///     .build();
    /// # let _ = limits;
    /// ```
    pub fn headers(mut self, styles: impl IntoIterator<Item = HeaderStyle>) -> Self {
        self.options.styles = styles.into_iter().collect();
        self
    }

    /// Adds a random time of up to `longest` to the wait in each rejection. So clients that are denied together do not
    /// all return at the same instant. Defaults to [`Duration::ZERO`].
    ///
    /// A client is never told less than the exact wait, up to [`max_retry_after`](Self::max_retry_after). The jitter is
    /// included in `Retry-After`,
    /// `X-Ratelimit-Retry-After`, the message, and the waits of gRPC, but not in headers that describe limits. Choose a
    /// span in which your service can serve all clients that wait, of at least some seconds, since `Retry-After` is in
    /// whole seconds.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer};
    ///
    /// let limits = RateLimitLayer::builder([Limit::new("all", FixedWindow::per_minute(100))])
    ///     .retry_after_jitter(Duration::from_secs(10))
    ///     .build();
    /// # let _ = limits;
    /// ```
    pub fn retry_after_jitter(mut self, longest: Duration) -> Self {
        self.options.format.longest_jitter = longest;
        self
    }

    /// Sets the longest wait that clients are told, in whole seconds, at least 1. Defaults to 2,147,483 seconds, almost
    /// 25 days.
    ///
    /// JavaScript's timers fire at once if they are set to more than 2^31 − 1 milliseconds, and some clients can't
    /// represent longer waits. A client that is told a shorter wait than the exact one is denied again afterwards, with
    /// the rest of the wait. Holds for `Retry-After`, `X-Ratelimit-Retry-After`, the message, and the waits of gRPC; and
    /// for the times in headers that describe a limit which would deny the same request once more. The exact wait is
    /// [`Rejection::retry_after`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{CalendarWindow, Limit, RateLimitLayer};
    ///
    /// let limits = RateLimitLayer::builder([Limit::new("yearly", CalendarWindow::yearly(100))])
    ///     .max_retry_after(Duration::from_secs(86_400))
    ///     .build();
    /// # let _ = limits;
    /// ```
    pub fn max_retry_after(mut self, longest: Duration) -> Self {
        self.options.format.longest_wait = Some(Duration::from_secs(longest.as_secs().max(1)));
        self
    }

    /// Rejects requests with `application/problem+json` (RFC 9457) instead of plain text.
    pub fn problem_json(mut self) -> Self {
        self.options.format.body = Body::ProblemJson;
        self
    }

    /// Rejects requests with the response that a closure returns, whatever the [reason](Rejection::reason).
    ///
    /// The closure also sets the status: return `(rejection.status(), text)`, because text alone is sent with 200.
    ///
    /// With the feature `axum`, that is anything that implements Axum's `IntoResponse`. Otherwise, it is an
    /// [`http::Response`] with a body, such as text. `Retry-After` and `Cache-Control` are added unless the response
    /// has them. Genuine gRPC requests are rejected as described at [`grpc_rejections`](Self::grpc_rejections).
    ///
    /// The body must be complete when the closure returns, as text, bytes and JSON are. A body that is still being
    /// produced, or is longer than 1 MiB or 1,024 frames, is replaced by an empty one.
    ///
    /// ```
    /// use axum::response::Html;
    /// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer};
    ///
    /// let limits = RateLimitLayer::builder([Limit::new("all", FixedWindow::per_minute(100))])
    ///     .on_reject(|rejection| (rejection.status(), Html(format!("<h1>{}</h1>", rejection.message()))))
    ///     .build();
    /// # let _ = limits;
    /// ```
    pub fn on_reject<R: IntoRejectionResponse>(
        mut self,
        respond: impl Fn(&Rejection<'_>) -> R + Send + Sync + 'static,
    ) -> Self {
        let reported = Reported::default();
        let respond = move |rejection: &Rejection<'_>| respond(rejection).into_rejection_response(&reported);
        self.options.format.body = Body::Custom(Arc::new(respond));
        self
    }

    /// Chooses whether genuine gRPC and gRPC-Web requests are rejected with a gRPC status. Defaults to `true`.
    ///
    /// gRPC clients map the HTTP status 429 to `UNAVAILABLE`, which many of them retry at once. So a genuine gRPC
    /// request is rejected with 200 OK and `grpc-status`, as that protocol requires, and with error details
    /// (`google.rpc.RetryInfo` and `QuotaFailure`) that name the limits that deny. A request is genuine if it is a
    /// `POST` with the content type `application/grpc` over HTTP/2 or later, or with `TE: trailers`, which a layer that
    /// translates gRPC-Web adds over any version. Or its content type is `application/grpc-web` or
    /// `application/grpc-web-text`, over any version.
    ///
    /// Any client can send such a request. If the service does not serve gRPC, turn this off. Then every rejection has
    /// an HTTP error status, so that a proxy or a ban list that counts 429 or 403 responses sees them all.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer};
    ///
    /// let limits = RateLimitLayer::builder([Limit::new("all", FixedWindow::per_minute(100))])
    ///     .grpc_rejections(false)
    ///     .build();
    /// # let _ = limits;
    /// ```
    pub fn grpc_rejections(mut self, enabled: bool) -> Self {
        self.options.format.ignores_grpc = !enabled;
        self
    }
}
