//! The charges of a request, for the code that adjusts them later: a route with a cost of its own, the request's
//! handler, and its response.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use http::{Extensions, HeaderMap, Request, Response};
use smallvec::{SmallVec, smallvec};

use super::balance::{Balance, TargetCost};
use super::layer_config::LayerConfig;
use crate::decision::{DecidedBy, Decision, Outcome, Receipt};
use crate::limit::Limits;
use crate::reason::Reason;
use crate::request::{OwnedHead, RequestHead};
use crate::store::LimitSpec;

/// A limiter's decisions about a request, among the request's extensions.
#[derive(Debug)]
pub(super) struct Ledger {
    /// The configuration of the layer that opened the ledger.
    pub(super) config: Arc<LayerConfig>,
    /// The request's head, if the response to a denied [`Permit`](crate::Permit) depends on it.
    head: Option<OwnedHead>,
    entries: Mutex<Entries>,
}

#[derive(Debug)]
struct Entries {
    /// The first decision determines which limits apply, and under which keys. Most requests have no other.
    decisions: SmallVec<[Decision; 1]>,
    /// The layers that have recorded charges here, each once. A request that passes a layer again gets a ledger of its
    /// own: either a handler created it with the extensions of the first, or the layer is applied twice.
    layers: SmallVec<[Arc<LayerConfig>; 2]>,
}

/// The ledgers of all limiters that the request has passed.
#[derive(Clone, Debug, Default)]
struct Ledgers(SmallVec<[Arc<Ledger>; 2]>);

/// The maximum number of charges in one refund.
const CHARGES_PER_REFUND: usize = 64;

impl Ledger {
    /// Opens a ledger for a request with a first decision.
    pub(super) fn open<B>(config: &Arc<LayerConfig>, decision: Decision, request: &mut Request<B>) -> Arc<Self> {
        let head = RequestHead::of(request);
        let head = (config.permits && config.format.depends_on_head(&head)).then(|| OwnedHead::new(&head));
        let entries = Entries { decisions: smallvec![decision], layers: smallvec![config.clone()] };
        let ledger = Arc::new(Self { config: config.clone(), head, entries: Mutex::new(entries) });
        request.extensions_mut().get_or_insert_default::<Ledgers>().0.push(ledger.clone());
        ledger
    }

    /// Finds the ledger that an outer layer of the same limiter opened, so that this layer charges only the difference.
    pub(super) fn of_outer_layer(config: &Arc<LayerConfig>, extensions: &Extensions) -> Option<Arc<Self>> {
        if !config.group.has_several_layers() {
            return None;
        }
        let Ledgers(ledgers) = extensions.get()?;
        let is_own = |ledger: &&Arc<Self>| Arc::ptr_eq(&ledger.config.group, &config.group);
        let ledger = ledgers.iter().rev().find(is_own)?;
        let mut entries = ledger.entries();
        let is_new = !entries.layers.iter().any(|known| known.layer == config.layer);
        if !is_new || entries.decisions.first().is_none_or(|first| first.outcomes().is_empty()) {
            return None;
        }
        // Within the same lock, so that only one of several requests with this ledger uses it.
        entries.layers.push(config.clone());
        Some(ledger.clone())
    }

    /// Finds the ledger of the innermost layer that gives permits.
    pub(super) fn of_permit(extensions: &Extensions) -> Option<Arc<Self>> {
        let Ledgers(ledgers) = extensions.get()?;
        ledgers.iter().rev().find(|ledger| ledger.config.permits).cloned()
    }

    /// Adds a later decision.
    pub(super) fn add(&self, decision: Decision) {
        let mut entries = self.entries();
        // Only charges, the first decision and the last are needed.
        while entries.decisions.len() > 1 && entries.decisions.last().is_some_and(|last| !has_charged(last)) {
            entries.decisions.pop();
        }
        entries.decisions.push(decision);
    }

    /// Adds a later decision about the limits in their sizes for the request. Returns a copy whose receipt is empty.
    pub(super) fn record(&self, decision: Decision) -> Decision {
        let decision = decision.with_resized(&self.resized());
        let copy = decision.without_charges();
        if decision.decided_by() != DecidedBy::Nobody {
            self.add(decision);
        }
        copy
    }

    /// Removes and returns the last decision.
    pub(super) fn pop(&self) -> Option<Decision> {
        self.entries().decisions.pop()
    }

    /// Returns a copy of the last decision, whose receipt is empty.
    pub(super) fn last(&self) -> Option<Decision> {
        self.entries().decisions.last().map(Decision::without_charges)
    }

    /// Adds the headers of the last decision.
    pub(super) fn write_headers(&self, headers: &mut HeaderMap) {
        if let Some(decision) = self.entries().decisions.last() {
            self.config.headers.write(decision, headers);
        }
    }

    /// Returns the response to a request whose handler was denied a charge. The headers about limits are added by
    /// [`write_headers`](Self::write_headers) when the response reaches the layer.
    pub(super) fn reject_denied(&self, denied: &Decision) -> Response<Bytes> {
        self.reject(Reason::Limited { retry_after: denied.retry_after() }, Some(denied))
    }

    /// Returns the response to a request that is rejected after it was forwarded.
    pub(super) fn reject(&self, reason: Reason, denied: Option<&Decision>) -> Response<Bytes> {
        let reject = |head: &RequestHead<'_>| self.config.reject(reason, denied, false, head);
        match &self.head {
            Some(head) => reject(&head.as_head()),
            None => reject(&RequestHead::of(&Request::new(()))),
        }
    }

    /// Returns the limits that have another size for the request.
    pub(super) fn resized(&self) -> Box<[Arc<LimitSpec>]> {
        self.entries().decisions.first().into_iter().flat_map(resized).cloned().collect()
    }

    /// Returns the store that took the first charge, and the balance of each limit that applies.
    pub(super) fn balances(&self, limits: &Limits, target: &TargetCost<'_>) -> (DecidedBy, Vec<Balance>) {
        let entries = self.entries();
        let Some(first) = entries.decisions.first() else { return (DecidedBy::Store, Vec::new()) };
        let usual_size = |limit| limits.spec(limit).map(|spec| limits.current(spec));
        let other_size = |limit| resized(first).find(|spec| usize::from(spec.index()) == limit);
        let balance = |outcome: &Outcome| {
            let spec = other_size(outcome.limit()).or_else(|| usual_size(outcome.limit()))?;
            Some(Balance::new(spec, outcome.key, &entries.decisions, target))
        };
        (first.decided_by(), first.outcomes().iter().filter_map(balance).collect())
    }

    /// Removes the tokens paid in excess, from the last charge first. Returns receipts, which the caller must refund.
    pub(super) fn take_excess(&self, balances: &[Balance]) -> Vec<Receipt> {
        let mut entries = self.entries();
        let charged = entries.decisions.iter_mut().rev().filter(|decision| decision.is_charged());
        let mut excesses: Vec<u64> = balances.iter().map(Balance::excess).collect();
        let mut receipts: Vec<Receipt> = Vec::new();
        for decision in charged {
            let by = decision.decided_by();
            let resized: Box<[Arc<LimitSpec>]> = decision.resized().into();
            let balances = balances.iter().zip(&mut excesses);
            let taken = balances.filter_map(|(balance, excess)| balance.take_excess(decision.outcomes_mut(), excess));
            for taken in taken {
                let accepts = |last: &&mut Receipt| {
                    last.by == by
                        && last.charged().len() < CHARGES_PER_REFUND
                        && last.resized().iter().map(Arc::as_ptr).eq(resized.iter().map(Arc::as_ptr))
                };
                match receipts.last_mut().filter(accepts) {
                    Some(last) => last.push(taken),
                    None => receipts.push(Receipt::new(by, taken, &resized)),
                }
            }
        }
        receipts
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the limits that have another size for every charge of the request. If the store has decided, overrides are
/// left out, because the store looks them up for each charge.
fn resized(first: &Decision) -> impl Iterator<Item = &Arc<LimitSpec>> {
    let by_store = first.decided_by() == DecidedBy::Store;
    first.resized().iter().filter(move |spec| !(by_store && spec.is_override()))
}

/// Returns whether part of a decision can be refunded.
fn has_charged(decision: &Decision) -> bool {
    decision.is_charged() && decision.outcomes().iter().any(|outcome| outcome.cost() > 0 && outcome.is_allowed())
}
