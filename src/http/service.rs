//! The service that limits requests, and a request's way through it, from its head to the headers of its response:
//!
//! lists → keys and costs → decision and charges → forward, delay then forward, or reject → settlement → headers

use std::borrow::Cow;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{fmt, mem};

use bytes::Bytes;
use http::{Extensions, Request, Response};
use pin_project_lite::pin_project;
use tokio::task::coop::poll_proceed;
use tower_service::Service;

use super::at_end::{AtEnd, Settlement};
use super::body::{BodyPolicy, WrapBody};
use super::config::LayerConfig;
use super::headers::Fields;
use super::ledger::{Ledger, Unsettled};
use crate::decision::{Charges, DecidedBy, Decision, Verdict};
use crate::engine::{Reservation, SlotGuard, Slots};
use crate::error::StoreError;
use crate::key::head::{RequestHead, ResponseHead};
use crate::recorder::Reason;
use crate::request::{Finder, PendingLimits};
use crate::select::ListKind;
use crate::store::{Purpose, StoreFuture};

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
        let state = match limited.first_step(&self.config, &mut request) {
            Step::Forward(completion, slots) => {
                Progress::Forwarded { response: service.call(request), completion, slots }
            }
            Step::Wait(pending) => Progress::wait(service, request, limited, pending),
            Step::Reject(response) => {
                // Releases what the service has reserved by being ready, such as a permit of a concurrency limit.
                drop(take_ready(service));
                Progress::Rejected { response: Some(response) }
            }
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
        state: Progress<S, B, S::Future>,
        policy: PhantomData<P>,
    }
}

pin_project! {
    /// The state of a request at the limiter.
    #[project = Projection]
    enum Progress<S, B, F> {
        /// It waits for a key, for the store or for its turn. Boxed, so that the future of the many requests that never
        /// wait is small.
        Waiting { waiting: Option<Box<WaitingRequest<S, B>>> },
        /// The inner service handles it.
        Forwarded { #[pin] response: F, completion: Completion, slots: Option<Arc<Slots>> },
        /// It has a response already.
        Rejected { response: Option<Response<Bytes>> },
    }
}

/// A request that waits, with the service that is ready for it.
struct WaitingRequest<S, B> {
    end: Pin<Box<dyn Future<Output = EndOfWait> + Send>>,
    service: S,
    body: B,
}

impl<S: Service<Request<B>>, B> Progress<S, B, S::Future> {
    #[cold]
    fn wait(service: &mut S, request: Request<B>, limited: RequestContext<'_>, pending: Box<Pending>) -> Self
    where
        S: Clone,
    {
        let (head, body) = request.into_parts();
        let limited = RequestContext { config: Cow::Owned(limited.config.into_owned()), ledger: limited.ledger };
        let end = Box::pin(limited.wait(pending, Request::from_parts(head, ())));
        Self::Waiting { waiting: Some(Box::new(WaitingRequest { end, service: take_ready(service), body })) }
    }

    #[cold]
    fn poll_waiting(waiting: &mut Option<Box<WaitingRequest<S, B>>>, context: &mut Context<'_>) -> Poll<Self> {
        let (end, request) = ready!(waiting.as_mut().expect(POLLED_AGAIN).end.as_mut().poll(context));
        let WaitingRequest { mut service, body, .. } = *waiting.take().expect(POLLED_AGAIN);
        Poll::Ready(match end {
            Ok((completion, slots)) => {
                Self::Forwarded { response: service.call(request.map(|()| body)), completion, slots }
            }
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
                Projection::Waiting { waiting } => ready!(Progress::poll_waiting(waiting, context)),
                Projection::Forwarded { response, completion, slots } => {
                    let mut polled = response.poll(context);
                    let at_end = match &mut polled {
                        Poll::Ready(Ok(response)) => AtEnd::of(slots.take(), completion.complete(response)),
                        _ => None,
                    };
                    return match at_end {
                        None => polled.map_ok(|response| response.map(P::forward)),
                        Some(at_end) => polled.map_ok(|response| response.map(|body| P::observe(body, at_end))),
                    };
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

/// The configuration with the limits that apply to a request: the current ones, or those of the ledger, if an outer
/// layer of the same limiter has opened one.
struct RequestContext<'a> {
    /// Borrowed while the request does not wait, so that requests do not count references to the same configuration.
    config: Cow<'a, Arc<LayerConfig>>,
    ledger: Option<Arc<Ledger>>,
}

/// The next step of a request.
enum Step {
    /// The slots are held until the head of the response, and then until the end of its body.
    Forward(Completion, Option<Arc<Slots>>),
    Wait(Box<Pending>),
    Reject(Response<Bytes>),
}

/// The work that remains when a forwarded request has its response.
#[allow(clippy::large_enum_variant, reason = "a box would be an allocation for each request")]
enum Completion {
    None,
    /// Adds the headers of an allowed request.
    Headers {
        config: Arc<LayerConfig>,
        fields: Fields,
    },
    /// Adjusts the charges of the request by the response, and adds the headers of the last decision.
    Settle(Option<Unsettled>),
}

/// The work that remains for a request that has waited, or its rejection; and its head.
type EndOfWait = (Result<(Completion, Option<Arc<Slots>>), Response<Bytes>>, Request<()>);

/// What a request waits for.
enum Pending {
    /// Some limits have yet to be found, or the decision may take two calls.
    Limits { found: Charges, pending: Vec<PendingLimits> },
    /// The store has not answered yet.
    Store(StoreFuture<Decision>),
    /// The same, if there are concurrency limits.
    Slots(StoreFuture<SlotGuard>),
    /// An outer layer has charged the request. The difference to this cost is to be charged.
    Difference { ledger: Arc<Ledger>, cost: u64 },
    /// The request is allowed, but delayed. If this is dropped before its turn, the charges are refunded.
    Turn(Reservation),
}

impl<'a> RequestContext<'a> {
    #[inline]
    fn new(layer: &'a Arc<LayerConfig>, extensions: &Extensions) -> Self {
        let ledger = Ledger::of_outer_layer(layer, extensions);
        let config = match &ledger {
            None => layer.current(),
            Some(ledger) => Cow::Owned(ledger.config.clone()),
        };
        Self { config, ledger }
    }

    /// Decides about the request in a layer, and charges it if it is allowed, unless it has to wait.
    fn first_step<B>(&self, layer: &LayerConfig, request: &mut Request<B>) -> Step {
        if !layer.requests.lists.is_empty()
            && let Some(step) = self.check_lists(layer, request)
        {
            return step;
        }
        let head = &RequestHead::of(request);
        if let Some(ledger) = &self.ledger {
            return Pending::Difference { ledger: ledger.clone(), cost: layer.requests.cost.of(head) }.into();
        }
        let mut finder = Finder::new(&self.config.requests, head);
        let pending = finder.find();
        if let Some(error) = finder.missing_key {
            return self.reject(Reason::MissingKey(error), head);
        }
        if !pending.is_empty() || self.config.engine().limits.tracks_in_flight {
            return Pending::Limits { found: finder.charges, pending }.into();
        }
        finder.complete();
        let engine = self.config.engine();
        if engine.limits.have_slots {
            return self.hold(finder.charges, request);
        }
        let decision = engine.decide(finder.charges, Purpose::Take);
        // Most requests: the decision need not be moved ("a layer" in `.ci/instructions`).
        match decision.as_ready() {
            Some(Ok(decision)) if !decision.is_allowed() => return self.deny(decision, head),
            Some(Ok(decision)) if decision.is_allowed_now() && !self.config.needs_ledger() => {
                return Step::Forward(self.headers(decision), None);
            }
            _ => {}
        }
        match decision.into_ready() {
            Ok(decision) => self.next_step(decision.map(SlotGuard::empty), request),
            Err(decision) => Pending::Store(decision).into(),
        }
    }

    /// Decides about a request that may take slots.
    fn hold<B>(&self, charges: Charges, request: &mut Request<B>) -> Step {
        let held = self.config.engine().hold(charges);
        match held.as_ready() {
            Some(Ok(held)) if held.is_allowed_now() && !self.config.needs_ledger() => {
                return Step::Forward(self.headers(held), held.slots.clone());
            }
            _ => {}
        }
        match held.into_ready() {
            Ok(held) => self.next_step(held, request),
            Err(held) => Pending::Slots(held).into(),
        }
    }

    /// Returns the next step of a request that is on a list.
    fn check_lists<B>(&self, layer: &LayerConfig, request: &mut Request<B>) -> Option<Step> {
        let (listed, matched) = layer.requests.lists.find(&RequestHead::of(request));
        if !matched.is_empty() {
            layer.report_lists(&matched, request.extensions_mut());
        }
        Some(match listed? {
            ListKind::Rejects(action) => self.reject(Reason::Listed(action), &RequestHead::of(request)),
            ListKind::Exempts => self.next_step(Ok(SlotGuard::empty(Decision::unlimited())), request),
        })
    }

    /// Waits for a decision, and for the request's turn if it is delayed.
    async fn wait(self, mut pending: Box<Pending>, mut request: Request<()>) -> EndOfWait {
        loop {
            match self.step_after(*pending, &mut request).await {
                Step::Forward(completion, slots) => return (Ok((completion, slots)), request),
                Step::Wait(turn) => pending = turn,
                Step::Reject(response) => return (Err(response), request),
            }
        }
    }

    /// Waits, and returns the step that follows.
    async fn step_after(&self, pending: Pending, request: &mut Request<()>) -> Step {
        let config = &self.config;
        let held = match pending {
            Pending::Limits { found, pending } => {
                let head = &RequestHead::of(request);
                let mut finder = Finder::new(&config.requests, head);
                finder.charges = found;
                for pending in pending {
                    finder.resolve(pending).await;
                    if let Some(error) = finder.missing_key {
                        return self.reject(Reason::MissingKey(error), head);
                    }
                }
                finder.complete();
                config.engine().hold_in_flight(finder.charges).await.map(|(held, in_flight)| {
                    if !in_flight.is_empty() {
                        request.extensions_mut().insert(in_flight);
                    }
                    held
                })
            }
            Pending::Store(decision) => decision.await.map(SlotGuard::empty),
            Pending::Slots(held) => held.await,
            Pending::Difference { ledger, cost } => ledger.adjust_to_route(cost).await.map(SlotGuard::empty),
            Pending::Turn(guard) => match guard.wait().await {
                Ok(held) => return self.forward(held, request),
                error => error,
            },
        };
        self.next_step(held, request)
    }

    /// Returns the step that follows from a decision.
    fn next_step<B>(&self, held: Result<SlotGuard, StoreError>, request: &mut Request<B>) -> Step {
        let Ok(held) = held else { return self.reject(Reason::StoreFailed, &RequestHead::of(request)) };
        match held.verdict() {
            Verdict::Allow { delay: Duration::ZERO } => self.forward(held, request),
            Verdict::Allow { delay } => Pending::Turn(Reservation::new(self.config.engine(), held, delay)).into(),
            Verdict::Deny { .. } => self.deny(&held, &RequestHead::of(request)),
        }
    }

    /// Rejects a request that limits deny.
    fn deny(&self, decision: &Decision, head: &RequestHead<'_>) -> Step {
        let reason = Reason::Limited { retry_after: decision.verdict().retry_after() };
        let mut response = self.config.reject(reason, Some(decision), head);
        match &self.ledger {
            None => self.config.headers.add(decision, response.status(), response.headers_mut()),
            // The layer that has opened the ledger writes the headers of its last decision.
            Some(ledger) => ledger.add(decision.clone()),
        }
        Step::Reject(response)
    }

    fn reject(&self, reason: Reason, head: &RequestHead<'_>) -> Step {
        Step::Reject(self.config.reject(reason, None, head))
    }

    /// Returns the work that remains for an allowed request without a ledger.
    fn headers(&self, decision: &Decision) -> Completion {
        if self.config.headers.is_empty() || decision.decided_by() == DecidedBy::Unlimited {
            return Completion::None;
        }
        let fields = self.config.headers.format(decision);
        Completion::Headers { fields, config: self.config.clone().into_owned() }
    }

    /// Records an allowed request in a ledger, if one is needed.
    fn forward<B>(&self, SlotGuard { decision, slots }: SlotGuard, request: &mut Request<B>) -> Step {
        let Self { config, ledger } = self;
        let is_counted = decision.decided_by() != DecidedBy::Unlimited;
        let completion = match ledger {
            Some(ledger) => {
                ledger.add(decision);
                Completion::None
            }
            // A permit of an uncounted request charges nothing.
            None if config.permits || (is_counted && config.needs_ledger()) => {
                let ledger = Ledger::open(config, decision, slots.as_ref(), request);
                if is_counted { Completion::Settle(Some(Unsettled(ledger))) } else { Completion::None }
            }
            None => self.headers(&decision),
        };
        Step::Forward(completion, slots)
    }
}

impl From<Pending> for Step {
    fn from(pending: Pending) -> Self {
        Self::Wait(Box::new(pending))
    }
}

/// Settles a request by the head of its response. Returns what is settled at the end of its body.
fn settle<B>(ledger: Unsettled, response: &mut Response<B>) -> Option<Box<Settlement>> {
    ledger.adjust_by_response(&ResponseHead::of(response));
    ledger.write_headers(response.status(), response.headers_mut());
    Settlement::of(ledger, response)
}

impl Completion {
    /// Completes the head of a response. Returns what is settled at the end of its body.
    #[inline(always)]
    fn complete<B>(&mut self, response: &mut Response<B>) -> Option<Box<Settlement>> {
        match self {
            Self::None => None,
            Self::Headers { config, fields } => {
                config.headers.write(fields, true, response.status(), response.headers_mut());
                None
            }
            Self::Settle(ledger) => settle(ledger.take()?, response),
        }
    }
}
