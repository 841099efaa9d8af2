//! A limiter's decisions about a request, and what each limit was paid, among the request's extensions.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use http::{Extensions, HeaderMap, Request, Response, StatusCode};
use smallvec::{SmallVec, smallvec};

use super::account::{Account, Payment, Targets};
use super::config::LayerConfig;
use crate::decision::{Charges, DecidedBy, Decision, Receipt};
use crate::engine::{ChargesInFlight, Slots};
use crate::key::head::RequestHead;
use crate::recorder::Reason;

/// A limiter's decisions about a request, among the request's extensions.
pub(super) struct Ledger {
    /// The configuration of the layer that opened the ledger.
    pub(super) config: Arc<LayerConfig>,
    /// The part of the limiter that made the first decision, and so makes the others.
    pub(super) by: DecidedBy,
    /// The request's head. Empty unless the response to a denied [`Permit`](crate::Permit) depends on it.
    head: Request<()>,
    /// No charges yet, but with the texts of the request.
    no_charges: Charges,
    /// The slots of the request, until they are released.
    pub(super) slots: Option<Weak<Slots>>,
    entries: Mutex<Entries>,
    /// Locked during an adjustment, so that the last of several determines the cost.
    pub(super) adjusting: tokio::sync::Mutex<()>,
}

/// What has been decided and paid.
pub(super) struct Entries {
    /// The limits that apply.
    pub(super) accounts: SmallVec<[Account; 1]>,
    /// The last decision. `None` if the store has failed to make one.
    pub(super) last: Option<Decision>,
    /// The charges in flight, until the request is settled.
    pub(super) in_flight: Option<ChargesInFlight>,
    /// Whether the layer of a route has denied the request. The response then changes no charges.
    pub(super) is_denied: bool,
    /// The layers that have recorded charges here, each once. A request that passes a layer again gets a ledger of its
    /// own: either a handler created it with the extensions of the first, or the layer is applied twice.
    layers: SmallVec<[u64; 2]>,
}

/// The ledger of a request until it is settled by its response. When it is dropped, the charges of the request are no
/// longer in flight.
pub(super) struct Unsettled(pub(super) Arc<Ledger>);

impl Deref for Unsettled {
    type Target = Arc<Ledger>;

    fn deref(&self) -> &Arc<Ledger> {
        &self.0
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        if self.0.config.engine().limits.tracks_in_flight {
            self.0.entries().in_flight = None;
        }
    }
}

/// The ledgers of all limiters that the request has passed.
#[derive(Clone, Default)]
struct Ledgers(SmallVec<[Arc<Ledger>; 2]>);

impl Ledger {
    /// Opens a ledger for a request with a first decision, which determines the limits that apply and their keys.
    pub(super) fn open<B>(
        config: &Arc<LayerConfig>,
        first: Decision,
        slots: Option<&Arc<Slots>>,
        request: &mut Request<B>,
    ) -> Arc<Self> {
        let head = RequestHead::of(request);
        let depends_on_head = config.permits && config.format.depends_on_head(&head);
        let head = if depends_on_head { head.to_request() } else { Request::new(()) };
        let by = first.decided_by();
        let no_charges = first.charges().select([]);
        let accounts = first.outcomes().iter().map(Account::new).collect();
        let tracked = config.engine().limits.tracks_in_flight.then(|| request.extensions_mut().remove());
        let in_flight = tracked.map(Option::unwrap_or_default);
        let layers = smallvec![config.nested.number];
        let mut entries = Entries { accounts, last: None, in_flight, is_denied: false, layers };
        entries.add(first);
        let ledger = Arc::new(Self {
            config: config.clone(),
            by,
            head,
            no_charges,
            slots: slots.map(Arc::downgrade),
            entries: Mutex::new(entries),
            adjusting: tokio::sync::Mutex::default(),
        });
        request.extensions_mut().get_or_insert_default::<Ledgers>().0.push(ledger.clone());
        ledger
    }

    /// Finds the ledger that an outer layer of the same limiter opened, so that this layer charges only the difference.
    pub(super) fn of_outer_layer(config: &Arc<LayerConfig>, extensions: &Extensions) -> Option<Arc<Self>> {
        if !config.nested.has_several_layers() {
            return None;
        }
        let Ledgers(ledgers) = extensions.get()?;
        let is_own = |ledger: &&Arc<Self>| ledger.config.nested.is_of_same_limiter(&config.nested);
        let ledger = ledgers.iter().rev().find(is_own)?;
        let mut entries = ledger.entries();
        if entries.accounts.is_empty() || entries.layers.contains(&config.nested.number) {
            return None;
        }
        // Within the same lock, so that only one of several requests with this ledger uses it.
        entries.layers.push(config.nested.number);
        Some(ledger.clone())
    }

    /// Finds the ledger of the innermost layer that gives permits.
    pub(super) fn of_permit(extensions: &Extensions) -> Option<Arc<Self>> {
        let Ledgers(ledgers) = extensions.get()?;
        ledgers.iter().rev().find(|ledger| ledger.config.permits).cloned()
    }

    /// Adds a later decision, if one was made.
    pub(super) fn add(&self, decision: Decision) {
        if decision.decided_by() != DecidedBy::Unlimited {
            self.entries().add(decision);
        }
    }

    /// Returns a copy of the last decision, whose receipt is empty.
    pub(super) fn last(&self) -> Option<Decision> {
        self.entries().last.as_ref().map(Decision::without_charges)
    }

    /// Adds the headers of the last decision.
    pub(super) fn write_headers(&self, status: StatusCode, headers: &mut HeaderMap) {
        if let Some(decision) = &self.entries().last {
            self.config.headers.add(decision, status, headers);
        }
    }

    /// Returns the rejection of a request by its handler, after a denied charge or a failure of the store.
    ///
    /// [`write_headers`](Self::write_headers) adds the headers about limits when the response reaches the layer.
    pub(super) fn reject(&self, denied: Option<&Decision>) -> Response<Bytes> {
        let limited = |denied: &Decision| Reason::Limited { retry_after: denied.retry_after() };
        let reason = denied.map_or(Reason::StoreFailed, limited);
        self.config.reject(reason, denied, &RequestHead::of(&self.head))
    }

    /// Returns the targets of limits: those for which `target` returns one.
    pub(super) fn targets(&self, target: impl Fn(&Account) -> Option<u64>) -> Targets {
        self.entries().accounts.iter().filter_map(|account| Some((account.asked.limit(), target(account)?))).collect()
    }

    /// Asks the limits that apply once more, with the cost that a function returns.
    pub(super) fn ask(&self, cost: impl Fn(&Account) -> u64) -> Charges {
        let mut charges = self.no_charges.clone();
        for account in &self.entries().accounts {
            self.config.engine().limits.add_again(&mut charges, &account.asked, cost(account));
        }
        charges
    }

    /// Removes the tokens paid in excess, from the last charge of each limit first. The caller must refund the payments
    /// that are returned.
    pub(super) fn take_excess(&self, targets: &Targets) -> Vec<Payment> {
        let mut payments = Vec::new();
        for account in &mut self.entries().accounts {
            let excess = account.paid.saturating_sub(account.target(targets));
            account.take(excess, &mut payments);
        }
        payments
    }

    /// Combines payments into receipts, of at most 64 each.
    pub(super) fn receipts(&self, payments: Vec<Payment>) -> Vec<Receipt> {
        let mut receipts: Vec<Receipt> = Vec::new();
        for Payment { by, charged, .. } in payments {
            let accepts = |last: &&mut Receipt| last.by == by && last.charged.len() < 64;
            if receipts.last_mut().filter(accepts).is_none() {
                receipts.push(Receipt {
                    by,
                    store: self.config.engine().limits.store,
                    charged: self.no_charges.clone(),
                });
            }
            if let Some(last) = receipts.last_mut() {
                last.charged.push(charged);
            }
        }
        receipts
    }

    pub(super) fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    pub(super) fn add(&mut self, mut decision: Decision) -> &Decision {
        // A limit that is not enforced may have had no capacity.
        for charged in decision.outcomes().iter().filter(|outcome| decision.is_charged() && outcome.is_allowed()) {
            let end = decision.at().saturating_add(charged.reset_after());
            self.pay(Payment { by: decision.decided_by(), charged: charged.clone(), end });
        }
        for outcome in decision.outcomes_mut() {
            if let Some(account) = self.accounts.iter().find(|account| account.asked.limit() == outcome.limit()) {
                account.complete(outcome);
            }
        }
        self.last.insert(decision)
    }

    /// Lowers the charges in flight after a refund.
    pub(super) fn lower_in_flight(&mut self) {
        let Some(in_flight) = &self.in_flight else { return };
        for account in &self.accounts {
            let of_account = in_flight.iter().filter(|charge| charge.limit == account.asked.limit());
            of_account.fold(account.paid, |paid, charge| paid - charge.lower(paid));
        }
    }

    pub(super) fn pay(&mut self, payment: Payment) {
        let is_account = |account: &&mut Account| account.asked.limit() == payment.charged.limit();
        if let Some(account) = self.accounts.iter_mut().find(is_account) {
            account.add(payment);
        }
    }
}
