//! The service that limits requests, and the future of its responses.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tokio::task::coop::poll_proceed;
use tower_service::Service;

use super::body::{BodyPolicy, WrapBody};
use super::config::LayerConfig;
use super::flow::{Completion, EndOfWait, RequestContext, Step};

/// Limits the requests that reach a service.
///
/// Created by a [`RateLimitLayer`](crate::RateLimitLayer). `P` is [`WrapBody`], or [`KeepBody`](crate::KeepBody) by
/// [`RateLimitLayer::keep_body`](crate::RateLimitLayer::keep_body).
#[derive(Clone, Debug)]
pub struct RateLimit<S, P = WrapBody> {
    inner: S,
    config: Arc<LayerConfig>,
    policy: PhantomData<P>,
}

impl<S, P> RateLimit<S, P> {
    pub(super) fn new(inner: S, config: &Arc<LayerConfig>) -> Self {
        config.register_service();
        Self { inner, config: config.clone(), policy: PhantomData }
    }

    /// Returns a reference to the inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns a mutable reference to the inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, P, B, R> Service<Request<B>> for RateLimit<S, P>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    P: BodyPolicy<R>,
{
    type Response = Response<P::Body>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B, P>;

    /// Polls the inner service. Limits never make this service unready, because they depend on the request.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    /// Decides about a request, and forwards it to the inner service or rejects it, unless it has to wait.
    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let service = &mut self.inner;
        self.config.report_repeated_layer(request.extensions_mut());
        let limited = RequestContext::new(&self.config, request.extensions());
        let state = match limited.first_step(&mut request) {
            // Most requests without headers. Moving an empty `Completion` would copy room for a decision three times,
            // which takes 120 instructions ("allowed, without headers" in `.ci/instructions`).
            Ok(Step::Forward(Completion::None)) => {
                State::Forwarded { response: service.call(request), completion: Completion::None }
            }
            Ok(Step::Forward(completion)) => State::Forwarded { response: service.call(request), completion },
            Ok(Step::Delay(guard)) => State::wait(service, request, |request| limited.forward_later(guard, request)),
            Ok(Step::Reject(response)) => {
                // Releases what the service has reserved by being ready, such as a permit of a concurrency limit.
                drop(take_ready(service));
                State::Rejected { response: Some(response) }
            }
            Err(pending) => State::wait(service, request, |request| limited.decide_later(pending, request)),
        };
        ResponseFuture { state, policy: PhantomData }
    }
}

/// Takes the service that was polled ready. A clone, which may not be ready, replaces it.
fn take_ready<S: Clone>(service: &mut S) -> S {
    let clone = service.clone();
    mem::replace(service, clone)
}

pin_project! {
    /// The future of a [`RateLimit`] service's response.
    pub struct ResponseFuture<S, B, P = WrapBody>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: State<S, B, S::Future>,
        policy: PhantomData<P>,
    }
}

pin_project! {
    /// The state of a request at the limiter.
    #[project = Projection]
    enum State<S, B, F> {
        /// It waits for a key, for the store or for its turn. Boxed, so that the future of the many requests that never
        /// wait is small.
        Waiting { waiting: Option<Box<Waiting<S, B>>> },
        /// The inner service handles it.
        Forwarded { #[pin] response: F, completion: Completion },
        /// It has a response already.
        Rejected { response: Option<Response<Bytes>> },
    }
}

/// A request that waits, with the service that is ready for it.
struct Waiting<S, B> {
    end: Pin<Box<dyn Future<Output = EndOfWait> + Send>>,
    service: S,
    body: B,
}

impl<S: Service<Request<B>>, B> State<S, B, S::Future> {
    #[cold]
    fn wait<N>(service: &mut S, request: Request<B>, end: impl FnOnce(Request<()>) -> N) -> Self
    where
        S: Clone,
        N: Future<Output = EndOfWait> + Send + 'static,
    {
        let (head, body) = request.into_parts();
        let end = Box::pin(end(Request::from_parts(head, ())));
        Self::Waiting { waiting: Some(Box::new(Waiting { end, service: take_ready(service), body })) }
    }

    #[cold]
    fn poll_waiting(waiting: &mut Option<Box<Waiting<S, B>>>, context: &mut Context<'_>) -> Poll<Self> {
        let (end, request) = ready!(waiting.as_mut().expect(POLLED_AGAIN).end.as_mut().poll(context));
        let Waiting { mut service, body, .. } = *waiting.take().expect(POLLED_AGAIN);
        Poll::Ready(match end {
            Ok(completion) => Self::Forwarded { response: service.call(request.map(|()| body)), completion },
            Err(response) => Self::Rejected { response: Some(response) },
        })
    }
}

const POLLED_AGAIN: &str = "a future is not polled after it has completed";

impl<S, P, B, R> Future for ResponseFuture<S, B, P>
where
    S: Service<Request<B>, Response = Response<R>>,
    P: BodyPolicy<R>,
{
    type Output = Result<Response<P::Body>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                Projection::Waiting { waiting } => ready!(State::poll_waiting(waiting, context)),
                Projection::Forwarded { response, completion } => {
                    let mut polled = response.poll(context);
                    if let Poll::Ready(Ok(response)) = &mut polled {
                        completion.complete(response);
                    }
                    return polled.map_ok(|response| response.map(P::forward));
                }
                Projection::Rejected { response } => {
                    // A task whose requests are all rejected yields to others now and then.
                    ready!(poll_proceed(context)).made_progress();
                    return Poll::Ready(Ok(response.take().expect(POLLED_AGAIN).map(P::reject)));
                }
            };
            state.set(next);
        }
    }
}

impl<S: Service<Request<B>>, B, P> fmt::Debug for ResponseFuture<S, B, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
