//! The response's future.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tokio::time::Sleep;
use tower_service::Service;

use super::body::ResponseBody;
use super::charge::Asked;
use super::visit::{Held, Next, Report, Visit};

pin_project! {
    /// The future of a [`RateLimit`](crate::RateLimit) service's response.
    pub struct ResponseFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: State<S, B, S::Future>,
    }
}

type Deciding = Pin<Box<dyn Future<Output = Asked> + Send>>;

pin_project! {
    #[project = StateProjection]
    enum State<S, B, F> {
        /// The store has yet to decide.
        Asking { asked: Deciding, suspended: Option<Suspended<S, B>> },
        /// It is allowed, but not yet.
        Waiting { #[pin] sleep: Sleep, held: Option<Held>, suspended: Option<Suspended<S, B>> },
        /// It has gone on.
        Running { #[pin] response: F, report: Report },
        /// It ends here.
        Refused { response: Option<Response<Bytes>> },
    }
}

/// A request on hold, with the service that is ready for it.
struct Suspended<S, B> {
    visit: Visit<'static>,
    service: S,
    request: Request<B>,
}

impl<S, B> ResponseFuture<S, B>
where
    S: Service<Request<B>>,
{
    pub(super) fn asking(asked: Deciding, visit: Visit<'static>, service: S, request: Request<B>) -> Self {
        Self { state: State::Asking { asked, suspended: Some(Suspended { visit, service, request }) } }
    }

    pub(super) fn waiting(delay: Duration, held: Held, visit: Visit<'static>, service: S, request: Request<B>) -> Self {
        Self { state: State::waiting(delay, held, Suspended { visit, service, request }) }
    }

    pub(super) fn running(response: S::Future, report: Report) -> Self {
        Self { state: State::Running { response, report } }
    }

    pub(super) fn refused(response: Response<Bytes>) -> Self {
        Self { state: State::Refused { response: Some(response) } }
    }
}

impl<S, B, F> State<S, B, F> {
    fn waiting(delay: Duration, held: Held, suspended: Suspended<S, B>) -> Self {
        Self::Waiting { sleep: tokio::time::sleep(delay), held: Some(held), suspended: Some(suspended) }
    }
}

impl<S, B, R> Future for ResponseFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<Response<ResponseBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        const ONCE: &str = "a future is not polled after it is done";
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProjection::Asking { asked, suspended } => {
                    let asked = ready!(asked.as_mut().poll(context));
                    let mut suspended = suspended.take().expect(ONCE);
                    match suspended.visit.next(asked, &mut suspended.request) {
                        Next::GoOn(report) => suspended.go_on(report),
                        Next::Wait { delay, held } => State::waiting(delay, held, suspended),
                        Next::Refuse(response) => State::Refused { response: Some(response) },
                    }
                }
                StateProjection::Waiting { sleep, held, suspended } => {
                    ready!(sleep.poll(context));
                    let mut suspended = suspended.take().expect(ONCE);
                    let report = match held.take().and_then(Held::release) {
                        Some(decision) => suspended.visit.go_on(decision, &mut suspended.request),
                        None => Report::Nothing,
                    };
                    suspended.go_on(report)
                }
                StateProjection::Running { response, report } => {
                    let mut response = ready!(response.poll(context))?;
                    report.complete(&mut response);
                    return Poll::Ready(Ok(response.map(ResponseBody::inner)));
                }
                StateProjection::Refused { response } => {
                    return Poll::Ready(Ok(response.take().expect(ONCE).map(ResponseBody::refusal)));
                }
            };
            state.set(next);
        }
    }
}

impl<S: Service<Request<B>>, B> Suspended<S, B> {
    fn go_on(mut self, report: Report) -> State<S, B, S::Future> {
        State::Running { response: self.service.call(self.request), report }
    }
}

impl<S, B> fmt::Debug for ResponseFuture<S, B>
where
    S: Service<Request<B>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Asking { .. } => "asking",
            State::Waiting { .. } => "waiting",
            State::Running { .. } => "running",
            State::Refused { .. } => "refused",
        };
        f.debug_struct("ResponseFuture").field("state", &state).finish_non_exhaustive()
    }
}
