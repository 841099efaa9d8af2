//! A layer that counts the requests in flight.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Request;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::limit::{InFlight, InFlightGuard};

impl<S> Layer<S> for InFlight {
    type Service = CountInFlight<S>;

    fn layer(&self, inner: S) -> Self::Service {
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

impl<F> fmt::Debug for InFlightFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlightFuture").finish_non_exhaustive()
    }
}
