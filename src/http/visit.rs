//! One request at the limiter: what it is asked for, and what becomes of it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use smallvec::SmallVec;

use super::charge::{
    Applies, Asked, Asking, Failure, KeyToCome, Searched, applies, ask_later, decided, found, goes_on,
};
use super::headers::DraftHeaders;
use super::ledger::Ledger;
use super::lists::Listed;
use super::rejection::{Reason, Rejection};
use super::shared::Shared;
use crate::decision::{DecidedBy, Decision};
use crate::observe::Event;
use crate::request::{OwnHead, RequestHead};
use crate::response::ResponseHead;
use crate::store::{Charge, LimitSpec, StoreFuture};
use crate::time::{Clock, SystemClock};

/// One request at the limiter.
pub(super) struct Visit<'a> {
    shared: Cow<'a, Arc<Shared>>,
    /// What the same limiter further out has charged it.
    ledger: Option<Arc<Ledger>>,
}

/// What becomes of it.
pub(super) enum Next {
    GoOn(Option<Report>),
    Wait { delay: Duration, held: Held },
    Refuse(Response<Bytes>),
}

/// What to tell with the response.
#[allow(clippy::large_enum_variant, reason = "a box would be an allocation for each request")]
pub(super) enum Report {
    /// All that there is to tell of a decision, mostly. Taken when it is told, as a response comes once.
    Draft(Option<DraftHeaders>),
    Decision(Arc<Shared>, Decision),
    Ledger(Arc<Ledger>),
}

impl<'a> Visit<'a> {
    #[inline]
    pub(super) fn of<B>(shared: &'a Arc<Shared>, request: &Request<B>) -> Self {
        let ledger = if shared.has_variants() { Ledger::find(shared, request.extensions()) } else { None };
        let shared = match &ledger {
            None => shared.present(),
            Some(ledger) => shared.beside(&ledger.shared),
        };
        Self { shared, ledger }
    }

    pub(super) fn into_owned(self) -> Visit<'static> {
        Visit { shared: Cow::Owned(self.shared.into_owned()), ledger: self.ledger }
    }

    /// Asks whether the request may go on, and charges it if so.
    #[inline]
    pub(super) fn ask(&self, head: &RequestHead<'_>) -> Asking {
        if !self.shared.lists.are_empty()
            && let Some(listed) = self.listed(head)
        {
            return Asking::Now(match listed {
                Listed::Refused(refusal) => Err(Failure::Listed(refusal)),
                Listed::Exempt => Ok(None),
            });
        }
        match &self.ledger {
            None => self.charge(head),
            Some(ledger) => self.adjust(ledger, self.shared.cost.of(head)),
        }
    }

    /// Asks whether a request may go on, and charges it if so.
    #[inline]
    fn charge(&self, head: &RequestHead<'_>) -> Asking {
        let shared = &*self.shared;
        let Some((limit, spec)) = shared.client.limits().single() else { return self.charge_several(head) };
        match applies(shared, &[], limit, spec, head) {
            Ok(Applies::Now(charge)) => self.charged(shared.client.acquire(&[charge]), &[], head),
            Ok(Applies::Later(key)) => ask_later(shared, vec![], vec![*key], vec![], Box::default()),
            Ok(Applies::Not) => Asking::Now(Ok(None)),
            Err(failure) => Asking::Now(Err(failure)),
        }
    }

    #[inline(never)]
    fn charge_several(&self, head: &RequestHead<'_>) -> Asking {
        let shared = &*self.shared;
        let limits = shared.client.limits();
        let other_sizes = limits.other_sizes(head);
        let mut charges: SmallVec<[Charge<'_>; 8]> = SmallVec::new();
        let mut later: Vec<KeyToCome> = Vec::new();
        let mut searching: Vec<Searched> = Vec::new();
        for (limit, spec) in limits.unindexed() {
            match applies(shared, &other_sizes, limit, spec, head) {
                Ok(Applies::Now(charge)) => charges.push(charge),
                Ok(Applies::Later(key)) => later.push(*key),
                Ok(Applies::Not) => {}
                Err(failure) => return Asking::Now(Err(failure)),
            }
        }
        for (index, together) in limits.indexed().iter().enumerate() {
            let mut failure = None;
            let rest = together.index.find(head, &mut |place, key| {
                let found = together.get(place).map(|limit| found(shared, &other_sizes, limit, key, head));
                match found {
                    Some(Ok(charge)) => charges.extend(charge),
                    Some(Err(why)) => failure = failure.take().or(Some(why)),
                    None => {}
                }
            });
            if let Some(failure) = failure {
                return Asking::Now(Err(failure));
            }
            searching.extend(rest.map(|rest| Searched { index, rest, head: OwnHead::of(head) }));
        }
        if !later.is_empty() || !searching.is_empty() {
            let known = charges.iter().map(|charge| (charge.spec.clone(), charge.key, charge.cost)).collect();
            drop(charges);
            return ask_later(shared, known, later, searching, other_sizes);
        }
        if charges.is_empty() {
            return Asking::Now(Ok(None));
        }
        if limits.may_match_out_of_order() {
            charges.sort_unstable_by_key(|charge| charge.spec.index());
        }
        let answer = shared.client.acquire(&charges);
        drop(charges);
        self.charged(answer, &other_sizes, head)
    }

    /// What becomes of a request that was charged, if that is known. Decisions are looked at where they lie: they take
    /// longer to move about than to make.
    #[inline(always)]
    fn charged(&self, answer: StoreFuture<Decision>, other_sizes: &[Arc<LimitSpec>], head: &RequestHead<'_>) -> Asking {
        let Shared { headers, .. } = &**self.shared;
        let Some(decision) = answer.settled().filter(|_| other_sizes.is_empty()) else {
            return decided(answer, other_sizes);
        };
        if !goes_on(decision) {
            if !decision.is_allowed() {
                return Asking::Refuse(self.denial(decision, head));
            }
        } else if !self.shared.keeps_a_ledger() {
            if headers.is_empty() {
                return Asking::GoOn;
            }
            if let Some(draft) = headers.draft(decision) {
                return Asking::Tell(draft);
            }
        }
        decided(answer, other_sizes)
    }

    #[cold]
    fn adjust(&self, ledger: &Arc<Ledger>, cost: u64) -> Asking {
        Asking::Later(Box::pin(ledger.clone().adjust(Arc::clone(&self.shared), cost)))
    }

    fn listed(&self, head: &RequestHead<'_>) -> Option<Listed> {
        let Shared { lists, client, .. } = &**self.shared;
        lists.find(head, |refusal| client.report_event(&Event::ListMatched { action: refusal }))
    }

    /// What becomes of the request.
    pub(super) fn next<B>(&self, asked: Asked, request: &mut Request<B>) -> Next {
        let head = RequestHead::of(request);
        let decision = match asked {
            Ok(Some(decision)) => decision,
            Ok(None) => return Next::GoOn(self.go_on_uncounted(request)),
            Err(Failure::Listed(refusal)) => {
                return Next::Refuse(self.refusal(Reason::Listed(refusal), None, &head));
            }
            Err(Failure::Store) => return Next::Refuse(self.refusal(Reason::StoreFailed, None, &head)),
            Err(Failure::MissingKey(missing)) => {
                return Next::Refuse(self.refusal(Reason::MissingKey(missing), None, &head));
            }
        };
        if decision.decided_by() == DecidedBy::Nobody {
            return Next::GoOn(self.go_on_uncounted(request));
        }
        if goes_on(&decision) {
            return Next::GoOn(self.go_on(decision, request));
        }
        if !decision.is_allowed() {
            let response = self.denial(&decision, &head);
            if let Some(ledger) = &self.ledger {
                ledger.add(decision);
            }
            return Next::Refuse(response);
        }
        match decision.delay() {
            Duration::ZERO => Next::GoOn(self.go_on(decision, request)),
            delay => Next::Wait { delay, held: Held { shared: Arc::clone(&self.shared), decision: Some(decision) } },
        }
    }

    /// What to tell with the response to a request that goes on.
    pub(super) fn go_on<B>(&self, decision: Decision, request: &mut Request<B>) -> Option<Report> {
        if let Some(ledger) = &self.ledger {
            // Whoever has opened it tells the decision.
            ledger.add(decision);
            None
        } else if self.shared.keeps_a_ledger() {
            Some(Report::Ledger(Ledger::open(&self.shared, decision, request.extensions_mut())))
        } else if self.shared.headers.is_empty() {
            None
        } else {
            Some(Report::Decision(Arc::clone(&self.shared), decision))
        }
    }

    /// The same where nothing was charged: a handler has its permit all the same.
    fn go_on_uncounted<B>(&self, request: &mut Request<B>) -> Option<Report> {
        if self.shared.permits && self.ledger.is_none() {
            Ledger::open(&self.shared, Decision::by_nobody(SystemClock::new().now()), request.extensions_mut());
        }
        None
    }

    #[inline(never)]
    fn denial(&self, decision: &Decision, head: &RequestHead<'_>) -> Response<Bytes> {
        self.refusal(Reason::Limited { retry_after: decision.retry_after() }, Some(decision), head)
    }

    fn refusal(&self, reason: Reason, denied: Option<&Decision>, head: &RequestHead<'_>) -> Response<Bytes> {
        let Shared { client, headers, format, .. } = &**self.shared;
        let grpc_content_type = format.grpc_content_type(head);
        let mut violated: SmallVec<[&str; 4]> = SmallVec::new();
        if let Some(decision) = denied
            && (format.names_limits() || grpc_content_type.is_some())
        {
            let denies = decision.outcomes().iter().filter(|outcome| outcome.denies());
            violated.extend(denies.map(|outcome| client.limits().as_slice()[outcome.limit()].name()));
        }
        let rejection = Rejection { reason, violated: &violated, head: *head };
        // Whoever has opened a ledger tells the last decision.
        format.response(&rejection, grpc_content_type, headers, denied.filter(|_| self.ledger.is_none()))
    }
}

impl Report {
    /// Does as limits say of the response, and tells it where they stand.
    pub(super) fn complete<B>(&mut self, response: &mut Response<B>) {
        match self {
            Self::Draft(draft) => draft.take().into_iter().for_each(|draft| draft.write(response.headers_mut())),
            Self::Decision(shared, decision) => shared.headers.write(decision, response.headers_mut()),
            Self::Ledger(ledger) => {
                ledger.close(&ResponseHead::of(response));
                ledger.write(response.headers_mut());
            }
        }
    }
}

/// A decision whose time has not come. Given up, it gives back what it has taken.
pub(super) struct Held {
    shared: Arc<Shared>,
    decision: Option<Decision>,
}

impl Held {
    pub(super) fn release(&mut self) -> Option<Decision> {
        self.decision.take()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(decision) = self.decision.take() {
            self.shared.client.refund_in_background(&decision.into_receipt());
        }
    }
}
