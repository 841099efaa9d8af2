//! The charges of a request, and charging more or less after the first decision: for a route with a cost of its own, by
//! the request's handler, or by its response.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Extensions, HeaderMap, Request, Response, StatusCode};
use smallvec::{SmallVec, smallvec};
use tokio::runtime::Handle;
use tokio::task::unconstrained;

use super::config::LayerConfig;
use crate::decision::{Charge, Charges, DecidedBy, Decision, Outcome, Purpose, Receipt, Veto};
use crate::engine::Deadline;
use crate::error::StoreError;
use crate::key::head::{RequestHead, ResponseHead};
use crate::recorder::{Event, Reason};
use crate::store::StoreFuture;
use crate::time::Timestamp;

/// A limiter's decisions about a request, among the request's extensions.
pub(super) struct Ledger {
    /// The configuration of the layer that opened the ledger.
    pub(super) config: Arc<LayerConfig>,
    /// The part of the limiter that made the first decision, and so makes the others.
    by: DecidedBy,
    /// The request's head. Empty unless the response to a denied [`Permit`](crate::Permit) depends on it.
    head: Request<()>,
    /// No charges yet, but with the texts of the request.
    no_charges: Charges,
    entries: Mutex<Entries>,
}

struct Entries {
    /// The limits that apply.
    accounts: SmallVec<[Account; 1]>,
    /// The last decision. `None` if the store has failed to make one.
    last: Option<Decision>,
    /// Whether the layer of a route has denied the request. The response then changes no charges.
    is_denied: bool,
    /// The layers that have recorded charges here, each once. A request that passes a layer again gets a ledger of its
    /// own: either a handler created it with the extensions of the first, or the layer is applied twice.
    layers: SmallVec<[u64; 2]>,
}

/// The charges of the request under one limit.
pub(super) struct Account {
    /// The question of the first decision.
    pub(super) asked: Charge,
    /// The total of the payments.
    pub(super) paid: u64,
    /// Whether one of the payments has used overage.
    uses_overage: bool,
    payments: SmallVec<[Payment; 1]>,
}

/// A charge that can be refunded.
#[derive(Clone)]
struct Payment {
    by: DecidedBy,
    charged: Outcome,
    /// The instant at which the charge no longer counts.
    end: Timestamp,
}

/// Returns the total cost that a request should have under a limit.
type TargetCost<'a> = dyn Fn(&Account) -> u64 + Send + Sync + 'a;

/// The ledgers of all limiters that the request has passed.
#[derive(Clone, Default)]
struct Ledgers(SmallVec<[Arc<Ledger>; 2]>);

/// The maximum number of payments to a limit. Beyond it, small ones are combined.
const MAX_PAYMENTS: usize = 1_024;

impl Ledger {
    /// Opens a ledger for a request with a first decision, which determines the limits that apply and their keys.
    pub(super) fn open<B>(config: &Arc<LayerConfig>, first: Decision, request: &mut Request<B>) -> Arc<Self> {
        let head = RequestHead::of(request);
        let depends_on_head = config.permits && config.format.depends_on_head(&head);
        let head = if depends_on_head { head.to_request() } else { Request::new(()) };
        let by = first.decided_by();
        let account =
            |first: &Outcome| Account { asked: first.charge, paid: 0, uses_overage: false, payments: SmallVec::new() };
        let no_charges = first.charges().select([]);
        let accounts = first.outcomes().iter().map(account).collect();
        let mut entries = Entries { accounts, last: None, is_denied: false, layers: smallvec![config.layer] };
        entries.add(first);
        let ledger = Arc::new(Self { config: config.clone(), by, head, no_charges, entries: Mutex::new(entries) });
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
        if entries.accounts.is_empty() || entries.layers.contains(&config.layer) {
            return None;
        }
        // Within the same lock, so that only one of several requests with this ledger uses it.
        entries.layers.push(config.layer);
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
            self.config.headers.write(decision, status, headers);
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

    /// Asks for the tokens that are missing to a target cost.
    fn missing(&self, target: &TargetCost<'_>) -> Charges {
        self.ask(|account| target(account).saturating_sub(account.paid))
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
    fn take_excess(&self, target: &TargetCost<'_>) -> Vec<Payment> {
        let mut payments = Vec::new();
        for account in &mut self.entries().accounts {
            let excess = account.paid.saturating_sub(target(account));
            account.take(excess, &mut payments);
        }
        payments
    }

    /// Combines payments into receipts, of at most 64 each.
    fn receipts(&self, payments: Vec<Payment>) -> Vec<Receipt> {
        let mut receipts: Vec<Receipt> = Vec::new();
        for Payment { by, charged, .. } in payments {
            let accepts = |last: &&mut Receipt| last.by == by && last.charged.len() < 64;
            if receipts.last_mut().filter(accepts).is_none() {
                receipts.push(Receipt { by, charged: self.no_charges.clone() });
            }
            if let Some(last) = receipts.last_mut() {
                last.charged.push(charged);
            }
        }
        receipts
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    fn add(&mut self, mut decision: Decision) -> &Decision {
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

    fn pay(&mut self, payment: Payment) {
        let is_account = |account: &&mut Account| account.asked.limit() == payment.charged.limit();
        if let Some(account) = self.accounts.iter_mut().find(is_account) {
            account.add(payment);
        }
    }
}

impl Account {
    fn is_quota(&self) -> bool {
        self.asked.veto() == Veto::Quota
    }

    fn add(&mut self, payment: Payment) {
        if payment.charged.cost == 0 {
            return;
        }
        self.paid += payment.charged.cost;
        self.uses_overage |= payment.charged.uses_overage();
        let last = self.payments.last_mut().filter(|last| last.end == payment.end);
        // Charges in the same window take no more memory.
        if !last.is_some_and(|last| last.absorb(&payment)) {
            self.payments.push(payment);
        }
        if self.payments.len() > MAX_PAYMENTS {
            // At most half of them remain: of two neighbors that remain, one has more than half of this cost. Charges
            // by different stores, or of limits with different periods, are kept apart.
            let largest = 4 * self.paid / MAX_PAYMENTS as u64;
            self.payments.dedup_by(|later, earlier| {
                earlier.charged.cost + later.charged.cost <= largest && earlier.absorb(later)
            });
        }
    }

    /// Completes the outcome of a later decision, if that has charged nothing: the request may have used overage before,
    /// and a quota is reported if it was charged or has capacity.
    fn complete(&self, outcome: &mut Outcome) {
        if outcome.cost == 0 && self.paid > 0 && self.uses_overage && outcome.used > outcome.algorithm.capacity() {
            outcome.set_uses_overage();
        }
        if outcome.veto() != self.asked.veto() {
            outcome.set_enforced(self.paid > 0 || outcome.available() >= self.asked.cost.max(1));
        }
    }

    /// Moves tokens to `taken`, the latest first.
    fn take(&mut self, mut tokens: u64, taken: &mut Vec<Payment>) {
        self.paid -= tokens;
        while tokens > 0
            && let Some(last) = self.payments.last_mut()
        {
            let mut part = last.clone();
            part.charged.charge.cost = tokens.min(last.charged.cost);
            tokens -= part.charged.cost;
            last.charged.charge.cost -= part.charged.cost;
            taken.push(part);
            if last.charged.cost == 0 {
                self.payments.pop();
            }
        }
    }
}

impl Payment {
    /// Adds a later payment of the same limit, if it was made to the same states. It is refunded like this one, which
    /// ceases to count no later: so a refund may be stricter, but not laxer.
    fn absorb(&mut self, later: &Self) -> bool {
        let is_alike = self.by == later.by && self.charged.identity == later.charged.identity;
        if is_alike {
            self.charged.charge.cost += later.charged.cost;
        }
        is_alike
    }
}

/// The maximum number of retries, if concurrent requests take the capacity that was found.
const MAX_RETRIES: usize = 8;

impl Ledger {
    /// Charges the tokens that are missing to the target cost, all or nothing.
    pub(super) async fn charge(&self, target: &TargetCost<'_>) -> Result<Decision, StoreError> {
        let decision = self.decide(self.missing(target), Purpose::Take).await?;
        Ok(self.record(decision))
    }

    /// Refunds the tokens paid in excess of the target cost, and charges the missing tokens as far as each limit has
    /// capacity. Returns the last decision, if anything was charged; whether a refund has followed it; and the tokens
    /// that could not be charged, for the limit that lacked the most.
    pub(super) async fn adjust(&self, target: &TargetCost<'_>) -> Result<(Option<Decision>, bool, u64), StoreError> {
        let engine = self.config.engine();
        let has_refunded = self.refund_excess(target, engine.deadline()).await?;
        // A quota without capacity was not charged, because another one was.
        let are_quotas_charged = self.entries().accounts.iter().any(|account| account.is_quota() && account.paid > 0);
        let is_spared = |account: &Account| are_quotas_charged && account.is_quota() && account.paid == 0;
        let target = &|account: &Account| if is_spared(account) { 0 } else { target(account) };
        let missing = self.missing(target);
        if missing.iter().all(|outcome| outcome.cost() == 0) {
            return Ok((None, has_refunded, 0));
        }
        let (mut charged, mut retries) = (missing.clone(), 0..MAX_RETRIES);
        let decision = loop {
            // A denial is not the client's fault, so it is no strike.
            charged.disable_strikes();
            let decision = self.decide(charged, Purpose::Take).await?;
            if decision.is_allowed() || retries.next().is_none() {
                break decision;
            }
            let quotas_allow =
                decision.outcomes().iter().any(|outcome| outcome.veto() == Veto::Quota && outcome.is_allowed());
            charged = self.ask(|account| {
                let missing = || target(account).saturating_sub(account.paid);
                let decided = outcome(&decision, account.asked.limit());
                decided.map_or_else(missing, |outcome| lowered_to_available(outcome, quotas_allow))
            });
        };
        let mut shortfall = 0;
        for asked in missing.iter().filter(|asked| !asked.is_of_penalty() && asked.veto() != Veto::Shadow) {
            let charged = || outcome(&decision, asked.limit()).map_or(asked.cost, |outcome| outcome.cost);
            let tokens = asked.cost.saturating_sub(if decision.is_allowed() { charged() } else { 0 });
            if tokens > 0 {
                let limit = engine.limits[asked.limit()].name();
                engine.report_event(&Event::Shortfall { limit, tokens });
                shortfall = shortfall.max(tokens);
            }
        }
        let decision = Some(self.record(decision));
        // Another task may have adjusted the same request meanwhile.
        Ok((decision, self.refund_excess(target, engine.deadline()).await?, shortfall))
    }

    /// Charges the difference to the cost of a route, all or nothing, in the store that took the first charge.
    ///
    /// If the difference is denied, the earlier charges are refunded, so that the decision has the wait for the full
    /// cost.
    ///
    /// # Errors
    ///
    /// Returns an error if the store can't decide and the policy is to reject.
    pub(super) async fn adjust_to_route(&self, cost: u64) -> Result<Decision, StoreError> {
        let engine = self.config.engine();
        let target = |account: &Account| match engine.limits[account.asked.limit()].cost {
            Some(_) => account.paid.max(account.asked.cost),
            None => cost,
        };
        let full = self.ask(target);
        // A quota that is paid already has had capacity, so others need none.
        let mut difference = self.missing(&target);
        difference.iter_mut().zip(&*full).for_each(|(missing, full)| missing.set_veto(full.veto));
        let (recording, deadline) = (engine.start_recording(Purpose::Take), engine.deadline().begin());
        let mut decision = match self.refund_excess(&target, deadline).await {
            Ok(_) => engine.decide_by(self.by, difference, Purpose::Take, deadline).await,
            Err(error) => engine.decide_locally(Some(error), difference, Purpose::Take, recording),
        };
        if let Ok(denied) = &mut decision
            && !denied.is_allowed()
            && denied.decided_by().is_store() == self.by.is_store()
            && self.refund_excess(&|_| 0, deadline).await.is_ok()
            && let Ok(full) = engine.decide_by(self.by, full, Purpose::Peek, deadline).await
            && !full.is_allowed()
        {
            *denied = full;
        }
        let allowed = decision.as_ref().ok().filter(|decision| decision.is_allowed());
        // Limits without capacity for the full cost, such as those in shadow mode, do not charge an allowed request.
        let lacks =
            |limit| allowed.is_none_or(|allowed| outcome(allowed, limit).is_some_and(|outcome| !outcome.is_allowed()));
        for receipt in
            self.receipts(self.take_excess(&|account| if lacks(account.asked.limit()) { 0 } else { account.paid }))
        {
            engine.refund_in_background(receipt);
        }
        let mut entries = self.entries();
        entries.is_denied = allowed.is_none();
        if decision.is_err() {
            // Nothing more is charged or reported.
            entries.accounts.clear();
            entries.last = None;
        }
        decision
    }

    /// Adjusts the charges of the limits that take a request's actual cost from its response. If the store does not
    /// answer at once, this completes in the background.
    pub(super) fn adjust_by_response(self: &Arc<Self>, head: &ResponseHead<'_>) {
        let limits = &self.config.engine().limits;
        if !limits.settles_by_response || self.entries().is_denied {
            return;
        }
        let actual = |limit: usize| limits[limit].actual_cost.as_ref()?(head);
        let charges = self.ask(|_| 0);
        let applicable = charges.iter().filter(|outcome| !outcome.is_of_penalty()).map(|outcome| outcome.limit());
        let actual: BTreeMap<usize, u64> = applicable.filter_map(|limit| Some((limit, actual(limit)?))).collect();
        if actual.is_empty() {
            return;
        }
        let ledger = self.clone();
        // A store that answers at once does so here, however much of its budget the task has used.
        let mut adjusting = Box::pin(unconstrained(async move {
            ledger.adjust(&|account| actual.get(&account.asked.limit()).copied().unwrap_or(account.paid)).await
        }));
        match adjusting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok((_, true, _))) if !self.config.headers.is_empty() => {
                // The headers of a rejection report the denial.
                if self.last().is_none_or(|last| last.is_allowed() || head.status != 429)
                    && let Ok(Ok(decision)) = self.peek().into_ready()
                {
                    self.add(decision);
                }
            }
            Poll::Ready(_) => {}
            // Without a runtime, the charges stay until the limits forget them.
            Poll::Pending => {
                if let Ok(runtime) = Handle::try_current() {
                    runtime.spawn(adjusting);
                }
            }
        }
    }

    /// Resets the keys of the limits for which `is_for` holds, and removes their charges, unless the reset fails.
    pub(super) async fn reset(&self, is_for: impl Fn(usize) -> bool + Send + Sync) -> Result<(), StoreError> {
        let mut charges = self.ask(|_| 0);
        charges.retain(|outcome| is_for(outcome.limit()));
        // A refund during the reset would be taken from later charges.
        let taken = self.take_excess(&|account| if is_for(account.asked.limit()) { 0 } else { account.paid });
        let result = self.config.engine().reset(charges).await;
        if result.is_err() {
            let mut entries = self.entries();
            taken.into_iter().rev().for_each(|payment| entries.pay(payment));
        }
        result
    }

    /// Decides charges where the first decision was made.
    fn decide(&self, charges: Charges, purpose: Purpose) -> StoreFuture<Decision> {
        let engine = self.config.engine();
        engine.decide_by(self.by, charges, purpose, engine.deadline())
    }

    /// Requests the current state of all limits that apply.
    pub(super) fn peek(&self) -> StoreFuture<Decision> {
        self.decide(self.ask(|_| 0), Purpose::Peek)
    }

    /// Adds a later decision, and returns a copy without its receipt.
    pub(super) fn record(&self, decision: Decision) -> Decision {
        if decision.decided_by() == DecidedBy::Unlimited {
            return decision;
        }
        self.entries().add(decision).without_charges()
    }

    /// Refunds the tokens paid in excess. Returns whether there were any. Tries all refunds, and returns the first
    /// error.
    async fn refund_excess(&self, target: &TargetCost<'_>, deadline: Deadline) -> Result<bool, StoreError> {
        let receipts = self.receipts(self.take_excess(target));
        let mut result = Ok(!receipts.is_empty());
        for receipt in receipts {
            result = result.and(self.config.engine().refund(receipt, deadline).await.map(|()| true));
        }
        result
    }
}

/// Returns the outcome of a limit.
fn outcome(decision: &Decision, limit: usize) -> Option<&Outcome> {
    decision.outcomes().iter().find(|outcome| outcome.limit() == limit)
}

/// Returns the part of a cost that a denied request can be charged: if the limit denied it, the available tokens,
/// including overage. A quota is not charged where another one allows the request.
fn lowered_to_available(outcome: &Outcome, quotas_allow: bool) -> u64 {
    if outcome.is_allowed() || quotas_allow && outcome.veto() == Veto::Quota {
        outcome.cost()
    } else if outcome.veto() != Veto::Shadow {
        outcome.available().min(outcome.cost().saturating_sub(1))
    } else {
        // A limit in shadow mode is charged all missing tokens or none.
        0
    }
}
