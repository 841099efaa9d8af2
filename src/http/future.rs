//! The response's future.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tokio::task::coop::poll_proceed;
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

pin_project! {
    #[project = StateProjection]
    enum State<S, B, F> {
        /// It has gone on, with nothing to tell, or something.
        Passing { #[pin] response: F },
        Telling { #[pin] response: F, report: Report },
        /// It ends here.
        Refused { response: Option<Response<Bytes>> },
        /// In a box: most requests never wait, and a future is moved about by those who wrap it.
        OnHold { on_hold: Option<Box<OnHold<S, B>>> },
    }
}

/// A request on hold, with the service that is ready for it.
struct OnHold<S, B> {
    until: Until,
    visit: Visit<'static>,
    service: S,
    request: Request<B>,
}

type Deciding = Pin<Box<dyn Future<Output = Asked> + Send>>;

enum Until {
    /// The store has yet to decide.
    Decided(Deciding),
    /// It is allowed, but not yet.
    Due { sleep: Pin<Box<Sleep>>, held: Held },
}

impl<S, B> ResponseFuture<S, B>
where
    S: Service<Request<B>>,
{
    pub(super) fn asking(asked: Deciding, visit: Visit<'static>, service: S, request: Request<B>) -> Self {
        Self::on_hold(OnHold { until: Until::Decided(asked), visit, service, request })
    }

    pub(super) fn waiting(delay: Duration, held: Held, visit: Visit<'static>, service: S, request: Request<B>) -> Self {
        Self::on_hold(OnHold { until: Until::due(delay, held), visit, service, request })
    }

    fn on_hold(on_hold: OnHold<S, B>) -> Self {
        Self { state: State::OnHold { on_hold: Some(Box::new(on_hold)) } }
    }

    #[inline]
    pub(super) fn passing(response: S::Future) -> Self {
        Self { state: State::Passing { response } }
    }

    #[inline]
    pub(super) fn telling(response: S::Future, report: Report) -> Self {
        Self { state: State::Telling { response, report } }
    }

    pub(super) fn refused(response: Response<Bytes>) -> Self {
        Self { state: State::Refused { response: Some(response) } }
    }

    /// The inner service's future, once there is nothing to do but to wait for it.
    #[inline]
    pub(super) fn as_passing(self: Pin<&mut Self>) -> Option<Pin<&mut S::Future>> {
        match self.project().state.project() {
            StateProjection::Passing { response } => Some(response),
            _ => None,
        }
    }

    /// Polls for a response of which `inner` makes the body that the inner service has given it, and `refusal`
    /// that of a refusal.
    #[inline]
    pub(super) fn poll_for<R, T>(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        inner: impl FnOnce(R) -> T,
        refusal: impl FnOnce(Bytes) -> T,
    ) -> Poll<Result<Response<T>, S::Error>>
    where
        S: Service<Request<B>, Response = Response<R>>,
    {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProjection::Passing { response } => {
                    return response.poll(context).map_ok(|response| response.map(inner));
                }
                StateProjection::Telling { response, report } => {
                    // It is told where the response lies, which takes long to move about.
                    let mut polled = response.poll(context);
                    if let Poll::Ready(Ok(response)) = &mut polled {
                        report.complete(response);
                    }
                    return polled.map_ok(|response| response.map(inner));
                }
                StateProjection::Refused { response } => {
                    // Or else a task whose requests are all rejected would never yield to others.
                    ready!(poll_proceed(context)).made_progress();
                    return Poll::Ready(Ok(response.take().expect(ONCE).map(refusal)));
                }
                StateProjection::OnHold { on_hold } => ready!(OnHold::poll(on_hold, context)),
            };
            state.set(next);
        }
    }
}

const ONCE: &str = "a future is not polled after it is done";

impl<S, B, R> Future for ResponseFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<Response<ResponseBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_for(context, ResponseBody::inner, ResponseBody::refusal)
    }
}

impl Until {
    fn due(delay: Duration, held: Held) -> Self {
        Self::Due { sleep: Box::pin(tokio::time::sleep(delay)), held }
    }
}

impl<S: Service<Request<B>>, B> OnHold<S, B> {
    #[cold]
    fn poll(on_hold: &mut Option<Box<Self>>, context: &mut Context<'_>) -> Poll<State<S, B, S::Future>> {
        let report = loop {
            let Self { until, visit, request, .. } = on_hold.as_deref_mut().expect(ONCE);
            let next = match until {
                Until::Decided(asked) => visit.next(ready!(asked.as_mut().poll(context)), request),
                Until::Due { sleep, held } => {
                    ready!(sleep.as_mut().poll(context));
                    Next::GoOn(held.release().and_then(|decision| visit.go_on(decision, request)))
                }
            };
            match next {
                Next::GoOn(report) => break report,
                Next::Wait { delay, held } => *until = Until::due(delay, held),
                Next::Refuse(response) => return Poll::Ready(State::Refused { response: Some(response) }),
            }
        };
        let Self { mut service, request, .. } = *on_hold.take().expect(ONCE);
        let response = service.call(request);
        Poll::Ready(match report {
            None => State::Passing { response },
            Some(report) => State::Telling { response, report },
        })
    }
}

impl<S, B> fmt::Debug for ResponseFuture<S, B>
where
    S: Service<Request<B>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Passing { .. } | State::Telling { .. } => "running",
            State::Refused { .. } => "refused",
            State::OnHold { on_hold } => match on_hold.as_deref() {
                Some(OnHold { until: Until::Decided(_), .. }) => "asking",
                Some(OnHold { until: Until::Due { .. }, .. }) => "waiting",
                None => "done",
            },
        };
        f.debug_struct("ResponseFuture").field("state", &state).finish_non_exhaustive()
    }
}
