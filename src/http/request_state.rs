//! A request's way through the limiter, from its head to the headers of its response:
//!
//! lists → keys and costs → charges → decision → forward, delay then forward, or reject → settlement → headers

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{Extensions, Request, Response};
use pin_project_lite::pin_project;
use tokio::task::coop::poll_proceed;
use tower_service::Service;

use super::charges::{Charges, find_charges, set_specs};
use super::layer_config::LayerConfig;
use super::ledger::Ledger;
use super::lists::Listed;
use super::pending_decision::PendingDecision;
use crate::decision::{DecidedBy, Decision, Verdict};
use crate::reason::Reason;
use crate::recorder::Event;
use crate::request::RequestHead;
use crate::resilience::ReservationGuard;
use crate::response::ResponseHead;

pin_project! {
    /// The state of a request at the limiter.
    #[project = Projection]
    pub(super) enum RequestState<S, B, F> {
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
pub(super) struct Waiting<S, B> {
    end: Pin<Box<dyn Future<Output = EndOfWait> + Send>>,
    service: S,
    body: B,
}

/// The work that remains for a request that has waited, or its rejection; and its head.
type EndOfWait = (Result<Completion, Response<Bytes>>, Request<()>);

/// The configuration that applies to a request, and the ledger of an outer layer of the same limiter.
struct RequestContext {
    config: Arc<LayerConfig>,
    ledger: Option<Arc<Ledger>>,
}

/// The next step of a request about which a decision has been made.
enum Step {
    Forward(Completion),
    Delay(ReservationGuard),
    Reject(Response<Bytes>),
}

/// The work that remains when a forwarded request has its response.
#[allow(clippy::large_enum_variant, reason = "a box would be an allocation for each request")]
pub(super) enum Completion {
    None,
    /// Adds the headers of a decision.
    Headers {
        config: Arc<LayerConfig>,
        decision: Decision,
    },
    /// Settles the charges of the request by the response, and adds the headers of the last decision.
    Settle(Arc<Ledger>),
}

impl<S, B> RequestState<S, B, S::Future>
where
    S: Service<Request<B>> + Clone,
{
    /// Decides about a request, and forwards it to a service that is ready, or rejects it, unless it has to wait.
    pub(super) fn start(config: &Arc<LayerConfig>, service: &mut S, mut request: Request<B>) -> Self {
        config.report_repeated_layer(request.extensions_mut());
        let limited = RequestContext::new(config, request.extensions());
        match limited.first_step(&mut request) {
            // Most requests without headers. Moving an empty `Completion` would copy room for a decision three times,
            // which takes 120 instructions ("allowed, without headers" in `.ci/instructions`).
            Ok(Step::Forward(Completion::None)) => {
                Self::Forwarded { response: service.call(request), completion: Completion::None }
            }
            Ok(Step::Forward(completion)) => Self::Forwarded { response: service.call(request), completion },
            Ok(Step::Delay(guard)) => Self::wait(service, request, |request| limited.forward_later(guard, request)),
            Ok(Step::Reject(response)) => {
                // Releases what the service has reserved by being ready, such as a permit of a concurrency limit.
                drop(take_ready(service));
                Self::Rejected { response: Some(response) }
            }
            Err(pending) => Self::wait(service, request, |request| limited.decide_later(pending, request)),
        }
    }

    #[cold]
    fn wait<N>(service: &mut S, request: Request<B>, end: impl FnOnce(Request<()>) -> N) -> Self
    where
        N: Future<Output = EndOfWait> + Send + 'static,
    {
        let (head, body) = request.into_parts();
        let end = Box::pin(end(Request::from_parts(head, ())));
        Self::Waiting { waiting: Some(Box::new(Waiting { end, service: take_ready(service), body })) }
    }
}

impl<S, B> RequestState<S, B, S::Future>
where
    S: Service<Request<B>>,
{
    /// Polls for a response whose body `forwarded` makes of the inner service's body, or `rejected` of a text.
    pub(super) fn poll<R, T>(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        forwarded: impl FnOnce(R) -> T,
        rejected: impl FnOnce(Bytes) -> T,
    ) -> Poll<Result<Response<T>, S::Error>>
    where
        S: Service<Request<B>, Response = Response<R>>,
    {
        loop {
            let next = match self.as_mut().project() {
                Projection::Waiting { waiting } => ready!(Self::poll_waiting(waiting, context)),
                Projection::Forwarded { response, completion } => {
                    let mut polled = response.poll(context);
                    if let Poll::Ready(Ok(response)) = &mut polled {
                        completion.complete(response);
                    }
                    return polled.map_ok(|response| response.map(forwarded));
                }
                Projection::Rejected { response } => {
                    // A task whose requests are all rejected yields to others now and then.
                    ready!(poll_proceed(context)).made_progress();
                    return Poll::Ready(Ok(response.take().expect(POLLED_AGAIN).map(rejected)));
                }
            };
            self.set(next);
        }
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

/// Takes the service that was polled ready. A clone, which may not be ready, replaces it.
fn take_ready<S: Clone>(service: &mut S) -> S {
    let clone = service.clone();
    mem::replace(service, clone)
}

impl RequestContext {
    fn new(config: &Arc<LayerConfig>, extensions: &Extensions) -> Self {
        let ledger = Ledger::of_outer_layer(config, extensions);
        let config = match &ledger {
            None => config.current(),
            Some(ledger) => config.current_beside(&ledger.config),
        };
        Self { config, ledger }
    }

    /// Decides about the request, and charges it if it is allowed, unless it has to wait.
    fn first_step<B>(&self, request: &mut Request<B>) -> Result<Step, Box<PendingDecision>> {
        let LayerConfig { client, lists, cost, .. } = &*self.config;
        let head = &RequestHead::of(request);
        match lists.find(head, |action| client.report_event(&Event::ListMatched { action })) {
            Some(Listed::Rejected(action)) => return Ok(self.reject(Reason::Listed(action), head)),
            Some(Listed::Exempt) => return Ok(self.next_step(Decision::uncounted(), request)),
            None => {}
        }
        if let Some(ledger) = &self.ledger {
            return Err(Box::new(PendingDecision::Route { ledger: ledger.clone(), cost: cost.of(head) }));
        }
        // Declared first, because the charges borrow it.
        let resized;
        let mut charges = Charges::new();
        match find_charges(&self.config, head, &mut charges) {
            Ok(None) => {}
            Ok(Some(pending)) => return Err(Box::new(PendingDecision::Keys(pending))),
            Err(reason) => return Ok(self.reject(reason, head)),
        }
        if charges.is_empty() {
            return Ok(self.next_step(Decision::uncounted(), request));
        }
        resized = client.limits().specs_for(&charges, head);
        set_specs(&mut charges, &resized);
        let decision = client.acquire(&charges);
        drop(charges);
        // Saves moving a decision that nothing reads later ("allowed, without headers" in `.ci/instructions`).
        if decision.settled().is_some_and(|decision| self.completes_at_once(decision)) {
            return Ok(Step::Forward(Completion::None));
        }
        match decision.into_ready() {
            Ok(Ok(decision)) => Ok(self.next_step(decision.with_resized(&resized), request)),
            Ok(Err(_)) => Ok(self.reject(Reason::StoreFailed, head)),
            Err(decision) => Err(Box::new(PendingDecision::Store { decision, resized })),
        }
    }

    /// Waits for a decision, and for the request's turn if it is delayed.
    async fn decide_later(self, pending: Box<PendingDecision>, mut request: Request<()>) -> EndOfWait {
        let step = match pending.decide(&self.config, &RequestHead::of(&request)).await {
            Ok(decision) => self.next_step(decision, &mut request),
            Err(reason) => self.reject(reason, &RequestHead::of(&request)),
        };
        match step {
            Step::Forward(completion) => (Ok(completion), request),
            Step::Delay(guard) => self.forward_later(guard, request).await,
            Step::Reject(response) => (Err(response), request),
        }
    }

    /// Waits for the request's turn. If this future is dropped before, the charges are refunded.
    async fn forward_later(self, guard: ReservationGuard, mut request: Request<()>) -> EndOfWait {
        let decision = guard.wait().await;
        (Ok(self.completion(decision, &mut request)), request)
    }

    /// Returns the step that follows from a decision.
    fn next_step<B>(&self, decision: Decision, request: &mut Request<B>) -> Step {
        match decision.verdict() {
            Verdict::Allow { delay: Duration::ZERO } => Step::Forward(self.completion(decision, request)),
            Verdict::Allow { delay } => Step::Delay(ReservationGuard::new(&self.config.client, decision, delay)),
            Verdict::Deny { retry_after } => self.deny(decision, retry_after, &RequestHead::of(request)),
        }
    }

    fn reject(&self, reason: Reason, head: &RequestHead<'_>) -> Step {
        Step::Reject(self.config.reject(reason, None, false, head))
    }

    fn deny(&self, denied: Decision, retry_after: Option<Duration>, head: &RequestHead<'_>) -> Step {
        // The layer that has opened a ledger writes the headers of its last decision.
        let with_headers = self.ledger.is_none();
        let response = self.config.reject(Reason::Limited { retry_after }, Some(&denied), with_headers, head);
        if let Some(ledger) = &self.ledger {
            ledger.add(denied);
        }
        Step::Reject(response)
    }

    /// Returns whether a request is allowed without a delay, and nothing remains to be done for it.
    fn completes_at_once(&self, decision: &Decision) -> bool {
        let Self { config, ledger } = self;
        let is_recorded = ledger.is_some() || config.needs_ledger();
        !is_recorded && config.headers.is_empty() && decision.is_allowed_at_once()
    }

    /// Records an allowed request in a ledger, if one is needed. Returns the work that remains.
    fn completion<B>(&self, decision: Decision, request: &mut Request<B>) -> Completion {
        let Self { config, ledger } = self;
        let is_counted = decision.decided_by() != DecidedBy::Nobody;
        match ledger {
            Some(ledger) => {
                if is_counted {
                    ledger.add(decision);
                }
                Completion::None
            }
            // A permit of an uncounted request charges nothing.
            None if config.permits || (is_counted && config.needs_ledger()) => {
                let ledger = Ledger::open(config, decision, request);
                if is_counted { Completion::Settle(ledger) } else { Completion::None }
            }
            None if is_counted && !config.headers.is_empty() => {
                Completion::Headers { config: config.clone(), decision }
            }
            None => Completion::None,
        }
    }
}

impl Completion {
    fn complete<B>(&mut self, response: &mut Response<B>) {
        match self {
            Self::None => {}
            Self::Headers { config, decision } => config.headers.write(decision, response.headers_mut()),
            Self::Settle(ledger) => {
                ledger.adjust_by_response(&ResponseHead::of(response));
                ledger.write_headers(response.headers_mut());
            }
        }
    }
}

impl<S, B, F> fmt::Debug for RequestState<S, B, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Waiting { .. } => "Waiting",
            Self::Forwarded { .. } => "Forwarded",
            Self::Rejected { .. } => "Rejected",
        })
    }
}
