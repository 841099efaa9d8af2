//! The service: asks, and lets a request go on, wait or end here.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::body::ResponseBody;
use super::charge::Asking;
use super::future::ResponseFuture;
use super::shared::Shared;
use super::visit::{Next, Report, Visit};
use crate::request::RequestHead;

/// Limits the requests that reach a service. A [`RateLimitLayer`](crate::RateLimitLayer) makes it.
#[derive(Clone)]
pub struct RateLimit<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S> RateLimit<S> {
    pub(super) fn new(inner: S, shared: Arc<Shared>) -> Self {
        shared.note_use();
        // So that the first request does not have to prepare thousands of limits.
        shared.prepare();
        Self { inner, shared }
    }

    /// The service within.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The service within.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The service within.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, B, R> Service<Request<B>> for RateLimit<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    R: Body,
    R::Data: From<Bytes>,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        // Which key is asked for is not known yet: limits never show here.
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        self.limit(request)
    }
}

impl<S: Clone> RateLimit<S> {
    /// Asks whether a request may go on, and lets it.
    // Not inlined, so that the future is written where whoever wraps it wants it, not copied there.
    #[inline(never)]
    pub(super) fn limit<B>(&mut self, mut request: Request<B>) -> ResponseFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        self.shared.mark(request.extensions_mut());
        let visit = Visit::of(&self.shared, &request);
        match visit.ask(&RequestHead::of(&request)) {
            Asking::GoOn => ResponseFuture::passing(self.inner.call(request)),
            Asking::Tell(draft) => ResponseFuture::telling(self.inner.call(request), Report::Draft(Some(draft))),
            Asking::Refuse(response) => self.refuse(response),
            Asking::Now(asked) => match visit.next(asked, &mut request) {
                Next::GoOn(None) => ResponseFuture::passing(self.inner.call(request)),
                Next::GoOn(Some(report)) => ResponseFuture::telling(self.inner.call(request), report),
                Next::Wait { delay, held } => {
                    ResponseFuture::waiting(delay, held, visit.into_owned(), self.take_ready(), request)
                }
                Next::Refuse(response) => self.refuse(response),
            },
            Asking::Later(asked) => ResponseFuture::asking(asked, visit.into_owned(), self.take_ready(), request),
        }
    }

    fn refuse<B>(&mut self, response: Response<Bytes>) -> ResponseFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        // With what it was ready for, such as a place among the concurrent requests.
        drop(self.take_ready());
        ResponseFuture::refused(response)
    }

    /// The service that was polled ready, which is the one to call; a clone of it, which may not
    /// be ready, takes its place.
    fn take_ready(&mut self) -> S {
        let clone = self.inner.clone();
        std::mem::replace(&mut self.inner, clone)
    }
}

impl<S: fmt::Debug> fmt::Debug for RateLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).field("shared", &self.shared).finish()
    }
}
