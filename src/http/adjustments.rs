//! Charging a request more or less after its first decision: for a route with a cost of its own, by the request's handler,
//! or by its response.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::runtime::Handle;
use tokio::task::unconstrained;

use super::account::{Account, Targets};
use super::ledger::{Entries, Ledger};
use crate::decision::{Charges, DecidedBy, Decision, Outcome, Purpose, Veto};
use crate::engine::{ChargesInFlight, Deadline};
use crate::error::StoreError;
use crate::key::head::ResponseHead;
use crate::limit::{BodyEnd, Limit};
use crate::recorder::Event;
use crate::store::StoreFuture;

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
            charged = self.ask(|account| match decision.outcome(account.asked.limit()) {
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
            let charged = || decision.outcome(asked.limit()).map_or(asked.cost, |outcome| outcome.cost);
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
            |limit| allowed.is_none_or(|allowed| allowed.outcome(limit).is_some_and(|outcome| !outcome.is_allowed()));
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
        let in_flight: ChargesInFlight = match &mut *self.entries() {
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
        let (decision, charged) = self.config.engine().charge(self.by, charges, deadline).await?;
        if let Some(in_flight) = &mut self.entries().in_flight {
            in_flight.extend(charged);
        }
        Ok(decision)
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
