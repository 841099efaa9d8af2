//! A request's way through the limiter, from its head to the headers of its response:
//!
//! lists → keys and costs → charges → decision → forward, delay then forward, or reject → settlement → headers

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Extensions, Request, Response};

use super::charges::{Finder, Finding, PendingLimits};
use super::config::LayerConfig;
use super::ledger::Ledger;
use crate::decision::{Cells, DecidedBy, Decision, Verdict};
use crate::explain::ListKind;
use crate::key::heads::RequestHead;
use crate::key::heads::ResponseHead;
use crate::reason::Reason;
use crate::recorder::Event;
use crate::resilience::ReservationGuard;
use crate::store::StoreFuture;

/// The configuration that applies to a request, and the ledger of an outer layer of the same limiter.
pub(super) struct RequestContext {
    config: Arc<LayerConfig>,
    ledger: Option<Arc<Ledger>>,
}

/// The next step of a request about which a decision has been made.
pub(super) enum Step {
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
    /// Adjusts the charges of the request by the response, and adds the headers of the last decision.
    Settle(Arc<Ledger>),
}

/// The work that remains for a request that has waited, or its rejection; and its head.
pub(super) type EndOfWait = (Result<Completion, Response<Bytes>>, Request<()>);

/// A decision that has yet to be made.
#[allow(clippy::large_enum_variant, reason = "a box would be an allocation for each request")]
pub(super) enum PendingDecision {
    /// Some limits have yet to be found.
    Limits { found: Cells, pending: Vec<PendingLimits> },
    /// The store has not answered yet.
    Store(StoreFuture<Decision>),
    /// An outer layer has charged the request. The difference to this cost is to be charged.
    Route { ledger: Arc<Ledger>, cost: u64 },
}

impl PendingDecision {
    /// Waits for the decision.
    ///
    /// # Errors
    ///
    /// Returns the reason if the request is rejected without a decision.
    async fn decide(self, config: &Arc<LayerConfig>, head: &RequestHead<'_>) -> Result<Decision, Reason> {
        let decision = match self {
            Self::Store(decision) => decision,
            Self::Limits { found: mut cells, pending } => {
                let limits = config.client.limits();
                for pending in pending {
                    let add = |limit, finding: Finding<'_>| finding.add_to(limits, limit, &mut cells);
                    Finder { config, head }.resolve(pending, add).await?;
                }
                cells.sort_by_key(|cell| cell.limit());
                limits.fit(&mut cells, head);
                config.client.acquire(cells)
            }
            Self::Route { ledger, cost } => return ledger.adjust_to_route(cost).await,
        };
        decision.await.map_err(|_| Reason::StoreFailed)
    }
}

impl RequestContext {
    pub(super) fn new(config: &Arc<LayerConfig>, extensions: &Extensions) -> Self {
        let ledger = Ledger::of_outer_layer(config, extensions);
        let config = match &ledger {
            None => config.current(),
            Some(ledger) => config.current_beside(&ledger.config),
        };
        Self { config, ledger }
    }

    /// Decides about the request, and charges it if it is allowed, unless it has to wait.
    pub(super) fn first_step<B>(&self, request: &mut Request<B>) -> Result<Step, Box<PendingDecision>> {
        let LayerConfig { client, lists, cost, .. } = &*self.config;
        let head = &RequestHead::of(request);
        match lists.find(head, |action| client.report_event(&Event::ListMatched { action })) {
            Some(ListKind::Rejects(action)) => return Ok(self.reject(Reason::Listed(action), head)),
            Some(ListKind::Exempts) => return Ok(self.next_step(Decision::uncounted(), request)),
            None => {}
        }
        if let Some(ledger) = &self.ledger {
            return Err(Box::new(PendingDecision::Route { ledger: ledger.clone(), cost: cost.of(head) }));
        }
        let (limits, mut cells) = (client.limits(), Cells::new());
        let finder = Finder { config: &self.config, head };
        match finder.find(|limit, finding| finding.add_to(limits, limit, &mut cells)) {
            Ok(pending) if pending.is_empty() => {}
            Ok(pending) => return Err(Box::new(PendingDecision::Limits { found: cells, pending })),
            Err(reason) => return Ok(self.reject(reason, head)),
        }
        if limits.may_match_out_of_order() {
            cells.sort_by_key(|cell| cell.limit());
        }
        limits.fit(&mut cells, head);
        let decision = client.acquire(cells);
        // Saves moving a decision that nothing reads later ("allowed, without headers" in `.ci/instructions`).
        if matches!(decision.as_ready(), Some(Ok(decision)) if self.completes_at_once(decision)) {
            return Ok(Step::Forward(Completion::None));
        }
        match decision.into_ready() {
            Ok(Ok(decision)) => Ok(self.next_step(decision, request)),
            Ok(Err(_)) => Ok(self.reject(Reason::StoreFailed, head)),
            Err(decision) => Err(Box::new(PendingDecision::Store(decision))),
        }
    }

    /// Waits for a decision, and for the request's turn if it is delayed.
    pub(super) async fn decide_later(self, pending: Box<PendingDecision>, mut request: Request<()>) -> EndOfWait {
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
    pub(super) async fn forward_later(self, guard: ReservationGuard, mut request: Request<()>) -> EndOfWait {
        let decision = guard.wait().await;
        (Ok(self.completion(decision, &mut request)), request)
    }

    /// Returns the step that follows from a decision.
    fn next_step<B>(&self, decision: Decision, request: &mut Request<B>) -> Step {
        match decision.verdict() {
            Verdict::Allow { delay: Duration::ZERO } => Step::Forward(self.completion(decision, request)),
            Verdict::Allow { delay } => Step::Delay(ReservationGuard::new(&self.config.client, decision, delay)),
            Verdict::Deny { retry_after } => {
                // The layer that has opened a ledger writes the headers of its last decision.
                let with_headers = self.ledger.is_none();
                let (reason, head) = (Reason::Limited { retry_after }, &RequestHead::of(request));
                let response = self.config.reject(reason, Some(&decision), with_headers, head);
                if let Some(ledger) = &self.ledger {
                    ledger.add(decision);
                }
                Step::Reject(response)
            }
        }
    }

    fn reject(&self, reason: Reason, head: &RequestHead<'_>) -> Step {
        Step::Reject(self.config.reject(reason, None, false, head))
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
                ledger.add(decision);
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
    pub(super) fn complete<B>(&mut self, response: &mut Response<B>) {
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
