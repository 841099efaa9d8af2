//! A layer that counts the requests in flight, for elastic limits.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
#[cfg(feature = "tracing")]
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use http::Request;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::limit::SpareCapacity;

/// Spare capacity while few requests are in flight. Clones share the count.
///
/// As a layer, it counts requests from the call of the inner service until the response, or until the request is
/// cancelled. Place it inside the limiter, so that rejected requests don't count. Until it is applied to a service, or
/// [`enter`](Self::enter) is called, nothing is counted, so it has no spare capacity. A warning is logged then.
///
/// It denies nothing by itself: to limit the requests in flight, use [`Limit::concurrent`](crate::Limit::concurrent).
///
/// ```
/// use axum::Router;
/// use axum::routing::get;
/// use tower_ratelimit::{InFlight, Limit, RateLimitLayer, TokenBucket, key};
///
/// # async fn search() {}
/// // 10 per second and client, and 5 more while fewer than 100 requests are in flight.
/// let in_flight = InFlight::below(100);
/// let limits = RateLimitLayer::new([
///     Limit::new("search", TokenBucket::per_second(10)).by(key::peer_ip()).elastic(50, in_flight.clone()),
/// ]);
/// let app: Router = Router::new().route("/search", get(search)).layer(in_flight).layer(limits);
/// # let _ = app;
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct InFlight {
    count: Arc<AtomicUsize>,
    below: usize,
}

/// Added to the count until something counts requests, so that there is no spare capacity.
const UNCOUNTED: usize = 1 << (usize::BITS - 1);

impl InFlight {
    /// Creates spare capacity while fewer than `requests` are in flight, as soon as something counts them. With 0,
    /// there is never any.
    pub fn below(requests: usize) -> Self {
        Self { count: Arc::new(UNCOUNTED.into()), below: requests }
    }

    /// Returns the number of requests in flight.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed) & !UNCOUNTED
    }

    /// Counts one more request until the guard is dropped, for work that no layer sees.
    #[must_use = "the request counts until the guard is dropped"]
    pub fn enter(&self) -> InFlightGuard {
        if self.count.fetch_add(1, Ordering::Relaxed) >= UNCOUNTED {
            self.count.fetch_and(!UNCOUNTED, Ordering::Relaxed);
        }
        InFlightGuard(self.count.clone())
    }
}

impl SpareCapacity for InFlight {
    fn is_available(&self) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        #[cfg(feature = "tracing")]
        if count == UNCOUNTED {
            static LOGGED: Once = Once::new();
            LOGGED.call_once(|| {
                tracing::warn!(
                    "an elastic limit has no overage until its `InFlight` counts requests: add a clone of it as a layer \
                     inside the limiter, or call `InFlight::enter`"
                );
            });
        }
        count < self.below
    }
}

/// Counts a request as in flight until dropped. Returned by [`InFlight::enter`].
#[derive(Debug)]
pub struct InFlightGuard(Arc<AtomicUsize>);

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<S> Layer<S> for InFlight {
    type Service = CountInFlight<S>;

    fn layer(&self, inner: S) -> Self::Service {
        self.count.fetch_and(!UNCOUNTED, Ordering::Relaxed);
        CountInFlight { inner, in_flight: self.clone() }
    }
}

/// Counts the requests in flight in a service.
///
/// Created by [`InFlight`], which is a layer.
#[derive(Clone, Debug)]
pub struct CountInFlight<S> {
    inner: S,
    in_flight: InFlight,
}

impl<S: Service<Request<B>>, B> Service<Request<B>> for CountInFlight<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = InFlightFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let guard = Some(self.in_flight.enter());
        InFlightFuture { response: self.inner.call(request), guard }
    }
}

pin_project! {
    /// The future of a [`CountInFlight`] service's response.
    #[derive(Debug)]
    pub struct InFlightFuture<F> {
        #[pin]
        response: F,
        // Dropped when the response is ready, even if this future is kept.
        guard: Option<InFlightGuard>,
    }
}

impl<F: Future> Future for InFlightFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let response = this.response.poll(context);
        if response.is_ready() {
            *this.guard = None;
        }
        response
    }
}
