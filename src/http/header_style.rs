//! The choice of the headers that tell clients how much of their limits is left.

use std::mem::discriminant;

/// A set of headers that tells clients how much of their limits is left. Times are whole seconds, rounded up, from the
/// instant of the decision: of a request that had to wait, from before it did.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum HeaderStyle {
    /// `RateLimit-Policy` and `RateLimit` by
    /// [draft 11](https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-11) of the IETF (May 2026),
    /// which list every limit by name. This is the default, and [`HeaderStyle::IETF`].
    ///
    /// ```text
    /// RateLimit-Policy: "burst";q=20;w=2, "daily";q=10000;w=86400
    /// RateLimit: "burst";r=9;t=1, "daily";r=9999;t=3600
    /// ```
    ///
    /// | parameter | meaning |
    /// |---|---|
    /// | `q` | The quota: the tokens of a window, or the capacity of a bucket. |
    /// | `w` | The window in seconds: its period, the time in which an empty bucket fills, or the length of a calendar's present window. Left out below a second. |
    /// | `r` | The available quota: the tokens left. |
    /// | `t` | The effective window: the seconds within which the client should use no more than `r`. |
    ///
    /// A client that uses no more than `r` tokens within `t` seconds is not denied:
    ///
    /// - Of a [`FixedWindow`](crate::FixedWindow) or [`CalendarWindow`](crate::CalendarWindow), `t` is the time left in
    ///   the present window, or a whole window where nothing was taken from it.
    /// - Of every other limit, `t` is the time in which `r` tokens come back, `r · w / q`, so that a client which paces
    ///   itself by `r` and `t` keeps to the limit's rate; or the time until there are more than `r`, if that is longer.
    /// - Of a limit that denies the request, `t` is at most `Retry-After`.
    ///
    /// The parameters `qu` and `pk` are not sent: costs are in the default unit, and a partition key could give away the
    /// limit's key.
    #[default]
    IetfDraft11,
    /// `RateLimit-Policy` and `RateLimit` by
    /// [draft 10](https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-ratelimit-headers-10) of the IETF
    /// (September 2025). `q`, `w` and `r` are as in [draft 11](Self::IetfDraft11), and `t` has another meaning:
    ///
    /// ```text
    /// RateLimit-Policy: "burst";q=20;w=2, "daily";q=10000;w=86400
    /// RateLimit: "burst";r=9;t=1, "daily";r=9999;t=3600
    /// ```
    ///
    /// | parameter | meaning |
    /// |---|---|
    /// | `t` | The seconds until there are more than `r` tokens. Left out where nothing was taken. |
    IetfDraft10,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`, of the limit that has
    /// least left.
    XRateLimit(Reset),
    /// `X-Rate-Limit-Limit`, `X-Rate-Limit-Remaining` and `X-Rate-Limit-Reset`, likewise.
    XRateLimitDashed(Reset),
    /// `RateLimit-Overage` on what is allowed and used overage of [soft](crate::Limit::soft) or
    /// [elastic](crate::Limit::elastic) limits: a list of their names. Not a standard.
    ///
    /// ```text
    /// RateLimit-Overage: "daily"
    /// ```
    Overage,
    /// `X-Ratelimit-Retry-After` on what is denied: the same as `Retry-After`, for clients that
    /// look for it under this name.
    XRetryAfter,
}

impl HeaderStyle {
    /// The newest draft of the IETF that this crate implements: at present [`IetfDraft11`](Self::IetfDraft11).
    ///
    /// A later release may change it. Name a draft where clients rely on its meaning.
    pub const IETF: Self = Self::IetfDraft11;

    /// Returns whether two styles write the same headers, of which a response can have only one set.
    pub(super) fn shares_headers_with(&self, other: &Self) -> bool {
        let is_ietf = |style: &Self| matches!(style, Self::IetfDraft10 | Self::IetfDraft11);
        discriminant(self) == discriminant(other) || is_ietf(self) && is_ietf(other)
    }
}

/// How an `…-Reset` header tells when a limit is as if it had never been used.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Reset {
    /// In how many seconds.
    #[default]
    Seconds,
    /// At which second since the Unix epoch, by the store's clock.
    Epoch,
}
