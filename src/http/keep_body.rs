//! A service that limits requests and keeps the type of response bodies.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::layer_config::LayerConfig;
use super::request_state::RequestState;
use super::service::RateLimit;

/// Limits the requests that reach a service, and keeps the type of its response bodies, which has to be `From<Bytes>`.
///
/// Created by [`RateLimitLayer::keep_body`](crate::RateLimitLayer::keep_body), or
/// [`RouteCost::keep_body`](crate::RouteCost::keep_body) for a route. For other bodies, use those layers themselves.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it is applied to a service"]
pub struct KeepBodyLayer {
    config: Arc<LayerConfig>,
}

impl KeepBodyLayer {
    pub(super) fn new(config: Arc<LayerConfig>) -> Self {
        Self { config }
    }
}

impl<S> Layer<S> for KeepBodyLayer {
    type Service = KeepBody<S>;

    fn layer(&self, inner: S) -> Self::Service {
        KeepBody { limited: RateLimit::new(inner, &self.config) }
    }
}

/// A [`RateLimit`] service that keeps the type of response bodies. Implements [`Service`] if that type is `From<Bytes>`.
///
/// Created by a [`KeepBodyLayer`].
#[derive(Clone, Debug)]
pub struct KeepBody<S> {
    limited: RateLimit<S>,
}

impl<S> KeepBody<S> {
    /// Returns a reference to the inner service.
    pub fn get_ref(&self) -> &S {
        self.limited.get_ref()
    }

    /// Returns a mutable reference to the inner service.
    pub fn get_mut(&mut self) -> &mut S {
        self.limited.get_mut()
    }

    /// Returns the inner service.
    pub fn into_inner(self) -> S {
        self.limited.into_inner()
    }
}

impl<S, B, R> Service<Request<B>> for KeepBody<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    R: From<Bytes>,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = KeepBodyFuture<S, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.limited.get_mut().poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        KeepBodyFuture { state: self.limited.start(request) }
    }
}

pin_project! {
    /// The future of a [`KeepBody`] service's response.
    pub struct KeepBodyFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: RequestState<S, B, S::Future>,
    }
}

impl<S, B, R> Future for KeepBodyFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: From<Bytes>,
{
    type Output = Result<Response<R>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().state.poll(context, |body| body, R::from)
    }
}

impl<S, B> fmt::Debug for KeepBodyFuture<S, B>
where
    S: Service<Request<B>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeepBodyFuture").field("state", &self.state).finish_non_exhaustive()
    }
}
