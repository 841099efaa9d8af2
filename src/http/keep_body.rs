//! A service that keeps the type of response bodies.

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

use super::future::ResponseFuture;
use super::service::RateLimit;
use super::shared::Shared;

/// Limits the requests that reach a service, and keeps the type of its response bodies, which has to be `From<Bytes>`.
///
/// Created by [`RateLimitLayer::keep_body`](crate::RateLimitLayer::keep_body), or
/// [`RouteCost::keep_body`](crate::RouteCost::keep_body) for a route. For other bodies, use those layers themselves.
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it is applied to a service"]
pub struct KeepBodyLayer {
    shared: Arc<Shared>,
}

impl KeepBodyLayer {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }
}

impl<S> Layer<S> for KeepBodyLayer {
    type Service = KeepBody<S>;

    fn layer(&self, inner: S) -> Self::Service {
        KeepBody { limited: RateLimit::new(inner, self.shared.clone()) }
    }
}

/// A [`RateLimit`] service whose responses' bodies are of the inner service's own type. A [`KeepBodyLayer`] makes it.
///
/// It is a service only where that type is `From<Bytes>`.
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
        KeepBodyFuture { response: self.limited.limit(request) }
    }
}

pin_project! {
    /// The future of a [`KeepBody`] service's response.
    pub struct KeepBodyFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        response: ResponseFuture<S, B>,
    }
}

impl<S, B, R> Future for KeepBodyFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: From<Bytes>,
{
    type Output = Result<Response<R>, S::Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut response = self.project().response;
        match response.as_mut().as_passing() {
            Some(response) => response.poll(context),
            None => poll(response, context),
        }
    }
}

// Not inlined: where there is nothing to tell, nobody has to make room for what it works with.
#[inline(never)]
fn poll<S, B, R>(
    response: Pin<&mut ResponseFuture<S, B>>,
    context: &mut Context<'_>,
) -> Poll<Result<Response<R>, S::Error>>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: From<Bytes>,
{
    response.poll_for(context, |body| body, R::from)
}

impl<S, B> fmt::Debug for KeepBodyFuture<S, B>
where
    S: Service<Request<B>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeepBodyFuture").field("response", &self.response).finish()
    }
}
