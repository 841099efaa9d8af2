//! A cached denial.

use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::epochs::Epochs;
use crate::decision::Decision;
use crate::limit_spec::LimitSpec;
use crate::store::evaluation::preview::CopiedStates;
use crate::store::evaluation::{self, Task};
use crate::store::{Charge, OwnedCharge, Resized};
use crate::time::Timestamp;

#[derive(Debug)]
pub(super) struct Denial {
    /// The fingerprint of the request's keys.
    pub(super) fingerprint: u128,
    pub(super) charges: SmallVec<[OwnedCharge; 2]>,
    /// The limits that were overridden.
    pub(super) resized: Resized,
    pub(super) states: CopiedStates,
    /// The epoch of each limit's key when the request was sent.
    pub(super) epochs: SmallVec<[u64; 2]>,
    /// The instant of the decision, in µs of the database's clock.
    pub(super) at: u64,
    /// The instant from which the states are not sufficient: a charge in a log has expired, or an override.
    pub(super) until: u64,
    pub(super) sent: Instant,
    pub(super) received: Instant,
}

impl Denial {
    /// Returns whether the states are sufficient to decide `charges`.
    pub(super) fn is_of(&self, charges: &[Charge<'_>]) -> bool {
        let same = |(denied, charge): (&OwnedCharge, &Charge<'_>)| {
            // The summary of a log is of one cost.
            let same_cost = denied.cost == charge.cost || !charge.spec.algorithm().keeps_log();
            if Arc::ptr_eq(&denied.spec, charge.spec) {
                return denied.key == charge.key && same_cost;
            }
            let size = |spec: &LimitSpec| (*spec.algorithm(), spec.index(), spec.is_overridable());
            let kind = |spec: &LimitSpec| (spec.algorithm().tag(), spec.penalty().is_some());
            let is_fixed =
                charge.spec.algorithm().keeps_log() || charge.spec.is_overridable() || denied.spec.is_overridable();
            denied.spec.fingerprint(denied.key) == charge.spec.fingerprint(charge.key)
                && kind(&denied.spec) == kind(charge.spec)
                && (!is_fixed || size(&denied.spec) == size(charge.spec))
                && same_cost
        };
        self.charges.len() == charges.len() && self.charges.iter().zip(charges).all(same)
    }

    /// Returns the decision on `charges`, if the database is certain to deny them.
    pub(super) fn repeat(
        &self,
        lifetime: Duration,
        epochs: &Epochs,
        charges: &[Charge<'_>],
        clock: Option<u64>,
    ) -> Option<Decision> {
        let (earliest, latest) = self.clock_bounds(lifetime, clock)?;
        if latest >= self.until {
            return None;
        }
        let charges = self.resized.charges(charges);
        let decide = |at: u64| {
            let mut states = self.states.clone();
            let at = Timestamp::from_micros(at.min(Timestamp::MAX.as_micros()));
            evaluation::decide(&mut states, &charges, at, Task::Peek)
        };
        let decision = decide(latest);
        let outcomes = charges.iter().zip(decision.outcomes()).zip(&self.epochs);
        let is_certain = outcomes.into_iter().all(|((charge, outcome), epoch)| {
            let has_penalty = charge.spec.penalty().is_some();
            // Limits in quota mode deny only if all of them do.
            let matters = outcome.denies() || has_penalty || charge.spec.is_quota();
            let is_unchanged = epochs.current(charge.spec.fingerprint(charge.key)) == *epoch;
            // Limits that are available may have changed: otherwise, clients that share one would end each other's
            // denials.
            (is_unchanged || !matters) && (outcome.is_penalty() || !(has_penalty && outcome.denies()))
        });
        if decision.is_allowed() || !is_certain {
            return None;
        }
        let decision = if earliest < latest { decide(earliest) } else { decision };
        Some(decision.with_resized(self.resized.specs()))
    }

    /// Returns the earliest and the latest instant (in µs) that the database's clock may have reached, or `None` if the
    /// denial is too old or the clock has stepped back.
    fn clock_bounds(&self, lifetime: Duration, clock: Option<u64>) -> Option<(u64, u64)> {
        let now = Instant::now();
        let since_sent = now.saturating_duration_since(self.sent);
        if since_sent >= lifetime {
            return None;
        }
        if let Some(now) = clock {
            return (now >= self.at).then_some((now, now));
        }
        let since_received = now.saturating_duration_since(self.received).as_micros() as u64;
        let since_sent = since_sent.as_micros() as u64;
        // Synchronised clocks run up to 0.05 % too fast or too slow.
        Some((self.at + since_received - since_received.div_ceil(1_000), self.at + since_sent + since_sent / 1_000 + 2))
    }
}
