//! What a request has paid under one limit, and what can be refunded of it.

use smallvec::SmallVec;

use crate::decision::{Charge, DecidedBy, Outcome, Veto};
use crate::time::Timestamp;

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
pub(super) struct Payment {
    pub(super) by: DecidedBy,
    pub(super) charged: Outcome,
    /// The instant at which the charge no longer counts.
    pub(super) end: Timestamp,
}

/// The total costs that a request should have under some limits. The others keep what was charged.
pub(super) type Targets = SmallVec<[(usize, u64); 2]>;

/// The maximum number of payments to a limit. Beyond it, small ones are combined.
const MAX_PAYMENTS: usize = 1_024;

impl Account {
    /// Opens the account of a limit that has decided a request.
    pub(super) fn new(first: &Outcome) -> Self {
        Self { asked: first.charge, paid: 0, uses_overage: false, payments: SmallVec::new() }
    }

    pub(super) fn is_quota(&self) -> bool {
        self.asked.veto() == Veto::Quota
    }

    /// Returns the total cost that the request should have under the limit.
    pub(super) fn target(&self, targets: &Targets) -> u64 {
        let own = targets.iter().find(|(limit, _)| *limit == self.asked.limit());
        own.map_or(self.paid, |(_, target)| *target)
    }

    /// Returns the tokens that are missing to the target.
    pub(super) fn missing(&self, targets: &Targets) -> u64 {
        self.target(targets).saturating_sub(self.paid)
    }

    pub(super) fn add(&mut self, payment: Payment) {
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
    pub(super) fn complete(&self, outcome: &mut Outcome) {
        if outcome.cost == 0 && self.paid > 0 && self.uses_overage && outcome.used > outcome.algorithm.capacity() {
            outcome.set_uses_overage();
        }
        if outcome.veto() != self.asked.veto() {
            outcome.set_enforced(self.paid > 0 || outcome.available() >= self.asked.cost.max(1));
        }
    }

    /// Moves tokens to `taken`, the latest first.
    pub(super) fn take(&mut self, mut tokens: u64, taken: &mut Vec<Payment>) {
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
