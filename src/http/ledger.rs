//! The charges of a request, and charging more or less after the first decision: for a route with a cost of its own, by
//! the request's handler, or by its response.

use std::future::Future;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Extensions, HeaderMap, Request, Response, StatusCode};
use smallvec::{SmallVec, smallvec};
use tokio::runtime::Handle;
use tokio::task::unconstrained;

use super::config::LayerConfig;
use crate::decision::{Charge, Charges, DecidedBy, Decision, Outcome, Purpose, Receipt, Veto};
use crate::engine::{ChargesInFlight, Deadline, Slots};
use crate::error::StoreError;
use crate::key::head::{RequestHead, ResponseHead};
use crate::limit::{BodyEnd, Limit};
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
    /// The slots of the request, until they are released.
    pub(super) slots: Option<Weak<Slots>>,
    entries: Mutex<Entries>,
    /// Locked during an adjustment, so that the last of several determines the cost.
    adjusting: tokio::sync::Mutex<()>,
}

struct Entries {
    /// The limits that apply.
    accounts: SmallVec<[Account; 1]>,
    /// The last decision. `None` if the store has failed to make one.
    last: Option<Decision>,
    /// The charges in flight, until the request is settled.
    in_flight: Option<ChargesInFlight>,
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

/// The total costs that a request should have under some limits. The others keep what was charged.
pub(super) type Targets = SmallVec<[(usize, u64); 2]>;

/// What an [adjustment](Ledger::adjust) has changed.
#[derive(Default)]
pub(super) struct Adjusted {
    /// The last decision, if missing tokens were charged.
    pub(super) decision: Option<Decision>,
    /// Whether excess tokens were refunded after that.
    pub(super) has_refunded: bool,
    /// The tokens that could not be charged, for the limit that lacked the most.
    pub(super) shortfall: u64,
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

/// The maximum number of payments to a limit. Beyond it, small ones are combined.
const MAX_PAYMENTS: usize = 1_024;

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
        let account =
            |first: &Outcome| Account { asked: first.charge, paid: 0, uses_overage: false, payments: SmallVec::new() };
        let no_charges = first.charges().select([]);
        let accounts = first.outcomes().iter().map(account).collect();
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
    fn take_excess(&self, targets: &Targets) -> Vec<Payment> {
        let mut payments = Vec::new();
        for account in &mut self.entries().accounts {
            let excess = account.paid.saturating_sub(account.target(targets));
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

    /// Lowers the charges in flight after a refund.
    fn lower_in_flight(&mut self) {
        let Some(in_flight) = &self.in_flight else { return };
        for account in &self.accounts {
            let of_account = in_flight.iter().filter(|charge| charge.limit == account.asked.limit());
            of_account.fold(account.paid, |paid, charge| paid - charge.lower(paid));
        }
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

    /// Returns the total cost that the request should have under the limit.
    fn target(&self, targets: &Targets) -> u64 {
        let own = targets.iter().find(|(limit, _)| *limit == self.asked.limit());
        own.map_or(self.paid, |(_, target)| *target)
    }

    /// Returns the tokens that are missing to the target.
    fn missing(&self, targets: &Targets) -> u64 {
        self.target(targets).saturating_sub(self.paid)
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
            // by the store and by this process are kept apart.
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
    /// Adds a later payment of the same limit, if it was made in the same place. It is refunded like this one, which
    /// ceases to count no later: so a refund may be stricter, but not laxer.
    fn absorb(&mut self, later: &Self) -> bool {
        let is_same_place = self.by == later.by;
        if is_same_place {
            self.charged.charge.cost += later.charged.cost;
        }
        is_same_place
    }
}

/// The maximum number of retries, if concurrent requests take the capacity that was found.
const MAX_RETRIES: usize = 8;

impl Ledger {
    /// Charges more tokens, all or nothing.
    pub(super) async fn charge(&self, more: impl Fn(&Account) -> u64) -> Result<Decision, StoreError> {
        // What was paid is read within the same lock, because other tasks may charge the request, too.
        let charges = self.ask(|account| more(account).min(u64::MAX - account.paid));
        Ok(self.record(self.take(charges, self.config.engine().deadline()).await?))
    }

    /// Refunds the tokens paid in excess of the targets, and charges the missing tokens as far as each limit has capacity.
    /// Waits for earlier adjustments.
    pub(super) async fn adjust(&self, mut targets: Targets) -> Result<Adjusted, StoreError> {
        let _turn = self.adjusting.lock().await;
        let deadline = || self.config.engine().deadline();
        let mut adjusted =
            Adjusted { has_refunded: self.refund_excess(&targets, deadline()).await?, ..Adjusted::default() };
        // A quota without capacity was not charged, because another one was.
        if self.entries().accounts.iter().any(|account| account.is_quota() && account.paid > 0) {
            let spared = self.targets(|account| (account.is_quota() && account.paid == 0).then_some(0));
            targets.retain(|(limit, _)| spared.iter().all(|(spared, _)| spared != limit));
        }
        let missing = self.ask(|account| account.missing(&targets));
        if missing.iter().any(|outcome| outcome.cost() > 0) {
            let decision = self.charge_available(&missing, &targets).await?;
            adjusted.shortfall = self.report_shortfall(&missing, &decision);
            adjusted.decision = Some(self.record(decision));
            // Another task may have charged the same request meanwhile.
            adjusted.has_refunded = self.refund_excess(&targets, deadline()).await?;
        }
        Ok(adjusted)
    }

    /// Charges missing tokens as far as each limit has capacity. Returns the last decision.
    async fn charge_available(&self, missing: &Charges, targets: &Targets) -> Result<Decision, StoreError> {
        let (mut charged, mut retries) = (missing.clone(), 0..MAX_RETRIES);
        loop {
            // A denial is not the client's fault, so it is no strike.
            charged.disable_strikes();
            self.config.engine().limits.allow_debts(&mut charged);
            let decision = self.take(charged, self.config.engine().deadline()).await?;
            if decision.is_allowed() || retries.next().is_none() {
                return Ok(decision);
            }
            let quotas_allow =
                decision.outcomes().iter().any(|outcome| outcome.veto() == Veto::Quota && outcome.is_allowed());
            charged = self.ask(|account| match outcome(&decision, account.asked.limit()) {
                Some(outcome) => lowered_to_available(outcome, quotas_allow),
                None => account.missing(targets),
            });
        }
    }

    /// Reports the missing tokens that a decision has not charged. Returns those of the limit that lacks the most.
    fn report_shortfall(&self, missing: &Charges, decision: &Decision) -> u64 {
        let engine = self.config.engine();
        let mut shortfall = 0;
        for asked in missing.iter().filter(|asked| asked.veto() != Veto::Shadow) {
            let charged = || outcome(decision, asked.limit()).map_or(asked.cost, |outcome| outcome.cost);
            let tokens = asked.cost.saturating_sub(if decision.is_allowed() { charged() } else { 0 });
            if tokens > 0 {
                let limit = engine.limits[asked.limit()].name();
                engine.report_event(&Event::Shortfall { limit, tokens });
                shortfall = shortfall.max(tokens);
            }
        }
        shortfall
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
        let has_own_cost = |account: &Account| engine.limits[account.asked.limit()].cost.is_some();
        let full_cost = |account: &Account| {
            if has_own_cost(account) {
                account.paid.max(account.asked.cost)
            } else {
                engine.limits.capped_estimate(&account.asked, cost)
            }
        };
        let full = self.ask(full_cost);
        // A quota without a difference was charged in full, so it allows the request, whatever others have left.
        let mut difference = self.ask(|account| full_cost(account).saturating_sub(account.paid));
        difference.iter_mut().zip(&*full).for_each(|(missing, full)| missing.set_veto(full.veto));
        let (recording, deadline) = (engine.start_recording(Purpose::Take), engine.deadline().begin());
        let targets = self.targets(|account| (!has_own_cost(account)).then_some(cost));
        let mut decision = match self.refund_excess(&targets, deadline).await {
            Ok(_) => self.take(difference, deadline).await,
            Err(error) => engine.decide_locally(Some(error), difference, Purpose::Take, recording),
        };
        if let Ok(denied) = &mut decision
            && !denied.is_allowed()
            && denied.decided_by().is_store() == self.by.is_store()
            && self.refund_excess(&self.targets(|_| Some(0)), deadline).await.is_ok()
            && let Ok(full) = engine.decide_by(self.by, full, Purpose::Peek, None, deadline).await
            && !full.is_allowed()
        {
            *denied = full;
        }
        let allowed = decision.as_ref().ok().filter(|decision| decision.is_allowed());
        // Limits without capacity for the full cost, such as those in shadow mode, do not charge an allowed request.
        let lacks =
            |limit| allowed.is_none_or(|allowed| outcome(allowed, limit).is_some_and(|outcome| !outcome.is_allowed()));
        let uncharged = self.targets(|account| lacks(account.asked.limit()).then_some(0));
        for receipt in self.receipts(self.take_excess(&uncharged)) {
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

    /// Adjusts the charges of the limits that take a request's actual cost from its response.
    pub(super) fn adjust_by_response(self: &Arc<Self>, head: &ResponseHead<'_>) {
        let ends = |limit: &Limit| limit.cost_at_end.is_none();
        let has_refunded = self.adjust_or_spawn(ends, |limit| limit.actual_cost.as_ref()?(head));
        // The headers of a rejection report the denial.
        if has_refunded
            && !self.config.headers.is_empty()
            && self.last().is_none_or(|last| last.is_allowed() || head.status != 429)
            && let Ok(Ok(decision)) = self.peek().into_ready()
        {
            self.add(decision);
        }
    }

    /// Returns whether a limit that applies takes the actual cost from the end of the response's body.
    pub(super) fn settles_at_end(&self) -> bool {
        let limits = &self.config.engine().limits;
        limits.settles_at_end
            && self.entries().accounts.iter().any(|account| limits[account.asked.limit()].cost_at_end.is_some())
    }

    /// Adjusts the charges of the limits that take a request's actual cost from the end of its response's body.
    pub(super) fn adjust_at_end(self: &Arc<Self>, end: &BodyEnd<'_>) {
        self.adjust_or_spawn(|_| true, |limit| limit.cost_at_end.as_ref()?(end));
    }

    /// Adjusts the charges of the limits that have an actual cost. If the store does not answer at once, this completes
    /// in the background. The charges of limits for which `settles` holds are no longer in flight then. Returns whether
    /// tokens were refunded at once.
    fn adjust_or_spawn(
        self: &Arc<Self>,
        settles: impl Fn(&Limit) -> bool,
        actual: impl Fn(&Limit) -> Option<u64>,
    ) -> bool {
        let limits = &self.config.engine().limits;
        if !limits.settles_by_response {
            return false;
        }
        let mut in_flight: ChargesInFlight = match &mut *self.entries() {
            Entries { is_denied: true, .. } => return false,
            entries => entries
                .in_flight
                .as_mut()
                .map(|charges| charges.extract_if(.., |charge| settles(&limits[charge.limit])).collect())
                .unwrap_or_default(),
        };
        // Their closures are not called under the lock.
        let applicable = self.targets(|_| Some(0)).into_iter();
        let targets: Targets = applicable.filter_map(|(limit, _)| Some((limit, actual(&limits[limit])?))).collect();
        in_flight.retain(|charge| targets.iter().any(|(limit, _)| *limit == charge.limit));
        if targets.is_empty() {
            return false;
        }
        let ledger = self.clone();
        // A store that answers at once does so here, however much of its budget the task has used.
        let mut adjusting = Box::pin(unconstrained(async move {
            let adjusted = ledger.adjust(targets).await;
            drop(in_flight);
            adjusted
        }));
        match adjusting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(adjusted) => adjusted.is_ok_and(|adjusted| adjusted.has_refunded),
            Poll::Pending => {
                // Without a runtime, the charges stay until the limits forget them.
                if let Ok(runtime) = Handle::try_current() {
                    runtime.spawn(adjusting);
                }
                false
            }
        }
    }

    /// Resets the keys of the limits for which `is_for` holds, and removes their charges, unless the reset fails.
    pub(super) async fn reset(&self, is_for: impl Fn(usize) -> bool + Send + Sync) -> Result<(), StoreError> {
        let mut charges = self.ask(|_| 0);
        charges.retain(|outcome| is_for(outcome.limit()));
        // A refund during the reset would be taken from later charges.
        let taken = self.take_excess(&self.targets(|account| is_for(account.asked.limit()).then_some(0)));
        let result = self.config.engine().reset(charges).await;
        if result.is_err() {
            let mut entries = self.entries();
            taken.into_iter().rev().for_each(|payment| entries.pay(payment));
        }
        result
    }

    /// Takes charges where the first decision was made.
    async fn take(&self, charges: Charges, deadline: Deadline) -> Result<Decision, StoreError> {
        let (decision, charged) = self.config.engine().charge(self.by, charges, deadline).await;
        if let Some(in_flight) = &mut self.entries().in_flight {
            in_flight.extend(charged);
        }
        decision
    }

    /// Requests the current state of all limits that apply.
    pub(super) fn peek(&self) -> StoreFuture<Decision> {
        let engine = self.config.engine();
        engine.decide_by(self.by, self.ask(|_| 0), Purpose::Peek, None, engine.deadline())
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
    async fn refund_excess(&self, targets: &Targets, deadline: Deadline) -> Result<bool, StoreError> {
        let receipts = self.receipts(self.take_excess(targets));
        let mut result = Ok(!receipts.is_empty());
        for receipt in receipts {
            result = result.and(self.config.engine().refund(receipt, deadline).await.map(|()| true));
        }
        self.entries().lower_in_flight();
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
