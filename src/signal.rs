//! Whether there is capacity to spare, as the application knows it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Whether the application has capacity to spare: see [`Limit::elastic`](crate::Limit::elastic). A
/// closure is one, and [`InFlight`] is.
///
/// It is asked for each request, on the task that serves it: it should be quick, and not block.
pub trait Signal: Send + Sync + 'static {
    /// Whether there is capacity to spare at present.
    fn has_spare(&self) -> bool;
}

impl<F: Fn() -> bool + Send + Sync + 'static> Signal for F {
    fn has_spare(&self) -> bool {
        self()
    }
}

/// Capacity to spare while few requests are in flight. Its clones count together.
///
/// As a layer it counts requests from the call of the service within until its response, or until they
/// are given up. Put it further in than the limiter, so that what is refused does not count.
///
/// ```
/// use axum::Router;
/// use axum::routing::get;
/// use tower_ratelimit::{InFlight, Limit, RateLimitLayer, TokenBucket, key};
///
/// # async fn search() {}
/// // 10 a second each, and 5 more while fewer than 100 requests are served.
/// let in_flight = InFlight::below(100);
/// let limits = RateLimitLayer::new([
///     Limit::new("search", TokenBucket::per_second(10)).by(key::peer_ip()).elastic(50, in_flight.clone()),
/// ]);
/// let app: Router = Router::new().route("/search", get(search)).layer(in_flight).layer(limits);
/// # let _ = app;
/// ```
#[derive(Clone)]
#[must_use]
pub struct InFlight {
    count: Arc<AtomicUsize>,
    below: usize,
}

impl InFlight {
    /// There is capacity to spare while fewer than `requests` are in flight; with 0, never.
    pub fn below(requests: usize) -> Self {
        Self { count: Arc::default(), below: requests }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Counts one more, until what this returns is dropped: for what no layer sees.
    #[must_use = "it counts until it is dropped"]
    pub fn enter(&self) -> InFlightGuard {
        self.count.fetch_add(1, Ordering::Relaxed);
        InFlightGuard(self.count.clone())
    }
}

impl Signal for InFlight {
    fn has_spare(&self) -> bool {
        self.count() < self.below
    }
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight").field("count", &self.count()).field("below", &self.below).finish()
    }
}

/// What an [`InFlight`] counts until it is dropped.
#[derive(Debug)]
pub struct InFlightGuard(Arc<AtomicUsize>);

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
