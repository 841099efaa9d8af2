//! The styles in which limits are reported, and the names of their headers.

use std::iter;

use http::HeaderName;

/// A set of response headers that report the remaining tokens of limits.
///
/// Times are whole seconds, rounded up, and relative to the instant of the decision. If a request was delayed, that
/// instant is before the delay.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum HeaderStyle {
    /// `RateLimit-Policy` and `RateLimit` by
    /// [draft 11](https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-11) of the IETF (May
    /// 2026), which list every limit by name. This is the default, and [`HeaderStyle::IETF`].
    ///
    /// ```text
    /// RateLimit-Policy: "burst";q=20;w=2, "daily";q=10000;w=86400
    /// RateLimit: "burst";r=9;t=1, "daily";r=9999;t=3600
    /// ```
    ///
    /// | parameter | meaning |
    /// |---|---|
    /// | `q` | The quota: the tokens of a window, or the capacity of a bucket. |
    /// | `w` | The window in seconds: its period, the time in which an empty bucket fills, or the length of the current calendar window. Left out if shorter than a second. |
    /// | `r` | The available quota: the tokens left. |
    /// | `t` | The effective window: the seconds within which the client should use no more than `r`. |
    ///
    /// A client that uses no more than `r` tokens within `t` seconds is not denied:
    ///
    /// - For a [`FixedWindow`](crate::FixedWindow) or [`CalendarWindow`](crate::CalendarWindow), `t` is the time left
    ///   in the current window, or the length of a window if the current one is unused.
    /// - For every other limit, `t` is the time in which `r` tokens come back, `r · w / q`, so that a client that
    ///   spreads `r` requests over `t` keeps to the limit's rate; or the time until there are more than `r`, if that is
    ///   longer.
    /// - For a limit that denies the request, `t` is at most `Retry-After`.
    ///
    /// The parameters `qu` and `pk` are not sent: costs are in the default unit, and a partition key could reveal the
    /// key of the request.
    #[default]
    IetfDraft11,
    /// `RateLimit-Policy` and `RateLimit` by
    /// [draft 10](https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-10) of the IETF
    /// (September 2025). `q`, `w` and `r` are the same as in [draft 11](Self::IetfDraft11); `t` has another meaning:
    ///
    /// ```text
    /// RateLimit-Policy: "burst";q=20;w=2, "daily";q=10000;w=86400
    /// RateLimit: "burst";r=9;t=1, "daily";r=9999;t=3600
    /// ```
    ///
    /// | parameter | meaning |
    /// |---|---|
    /// | `t` | The seconds until there are more than `r` tokens. Left out if the limit is unused. |
    IetfDraft10,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, for the limit that denies the request, or
    /// else the limit with the fewest remaining tokens. Left out if the limits allow the request and the response
    /// rejects it, with 429, 503, or their gRPC statuses.
    XRateLimit(ResetFormat),
    /// `X-Rate-Limit-Limit`, `X-Rate-Limit-Remaining` and `X-Rate-Limit-Reset`, for the same limit as
    /// [`XRateLimit`](Self::XRateLimit).
    XRateLimitDashed(ResetFormat),
    /// `RateLimit-Overage`, on responses to allowed requests that used the overage of [soft](crate::Limit::soft) or
    /// [elastic](crate::Limit::elastic) limits: the names of these limits. Not a standard.
    ///
    /// ```text
    /// RateLimit-Overage: "daily"
    /// ```
    Overage,
    /// `X-Ratelimit-Retry-After`, on rejections: the value of `Retry-After`, for clients that read this header instead.
    XRetryAfter,
}

impl HeaderStyle {
    /// The latest draft of the IETF that this crate implements, currently [`IetfDraft11`](Self::IetfDraft11).
    ///
    /// A later release may change it. If clients depend on the details of a draft, select that draft.
    pub const IETF: Self = Self::IetfDraft11;

    /// Returns the names of the headers. A response can have only one set of the same headers.
    pub(super) fn names(self) -> &'static [HeaderName] {
        match self {
            Self::IetfDraft10 | Self::IetfDraft11 => &IETF,
            Self::XRateLimit(_) => &X_RATE_LIMIT,
            Self::XRateLimitDashed(_) => &X_RATE_LIMIT_DASHED,
            Self::Overage => &OVERAGE,
            Self::XRetryAfter => &X_RETRY_AFTER,
        }
    }
}

/// Yields the style itself, so that a single style is accepted instead of a list.
impl IntoIterator for HeaderStyle {
    type Item = Self;
    type IntoIter = iter::Once<Self>;

    fn into_iter(self) -> Self::IntoIter {
        iter::once(self)
    }
}

/// The format of an `…-Reset` header, which reports when the limit is entirely unused again.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum ResetFormat {
    /// The number of seconds until then.
    #[default]
    Seconds,
    /// The Unix timestamp in seconds, by the store's clock. In memory, only decisions with a calendar window follow
    /// corrections of the wall clock: see [`SystemClock`](crate::SystemClock).
    Epoch,
}

const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
static IETF: [HeaderName; 2] = [RATE_LIMIT_POLICY, RATE_LIMIT];
static OVERAGE: [HeaderName; 1] = [HeaderName::from_static("ratelimit-overage")];
pub(super) static X_RETRY_AFTER: [HeaderName; 1] = [HeaderName::from_static("x-ratelimit-retry-after")];
/// The limit, the remaining tokens, and the reset.
static X_RATE_LIMIT: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];
static X_RATE_LIMIT_DASHED: [HeaderName; 3] = [
    HeaderName::from_static("x-rate-limit-limit"),
    HeaderName::from_static("x-rate-limit-remaining"),
    HeaderName::from_static("x-rate-limit-reset"),
];
