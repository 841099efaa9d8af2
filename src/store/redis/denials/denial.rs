//! A cached denial.

use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::epochs::Epochs;
use crate::decision::Decision;
use crate::store::Charge;
use crate::store::redis::charge::outcomes;
use crate::store::redis::charge::prepared::PreparedCharge;
use crate::store::redis::script::Reply;
use crate::store::redis::script::codec::{self, Codec};

#[derive(Debug)]
pub(super) struct Denial {
    /// The fingerprint of the request's keys.
    pub(super) fingerprint: u128,
    pub(super) charges: SmallVec<[PreparedCharge; 2]>,
    pub(super) reply: Reply,
    /// The epoch of each limit's key when the request was sent.
    pub(super) epochs: SmallVec<[u64; 2]>,
    /// The instant of the reply, in µs of Redis' clock.
    pub(super) at: u64,
    /// The instant from which the reply is not sufficient: a log has entries that it does not contain, or an override
    /// has expired.
    pub(super) until: u64,
    pub(super) sent: Instant,
    pub(super) received: Instant,
}

impl Denial {
    /// Returns whether `charges` have the same limits and keys.
    pub(super) fn is_of(&self, charges: &[Charge<'_>]) -> bool {
        let same = |(denied, charge): (&PreparedCharge, &Charge<'_>)| {
            let denied = denied.charge();
            let is_record = || matches!(Codec::of(denied.spec.rule().deciding()), Codec::Compact(_));
            if Arc::ptr_eq(denied.spec, charge.spec) {
                return denied.key == charge.key && (denied.cost == charge.cost || is_record());
            }
            let [one, other] = [denied.spec, charge.spec].map(|spec| (spec.algorithm(), spec.ceiling()));
            denied.spec.fingerprint(denied.key) == charge.spec.fingerprint(charge.key)
                // The reply contains a penalty's state after its limit's.
                && denied.spec.penalty().is_some() == charge.spec.penalty().is_some()
                && (one.0.tag(), codec::amount(one.0)) == (other.0.tag(), codec::amount(other.0))
                // The reply contains only the part of a log that this cost needs.
                && (is_record() || (one == other && denied.cost == charge.cost))
        };
        self.charges.len() == charges.len() && self.charges.iter().zip(charges).all(same)
    }

    /// Returns the decision on `charges`, if Redis is certain to deny them.
    pub(super) fn repeat(
        &self,
        lifetime: Duration,
        epochs: &Epochs,
        charges: &[Charge<'_>],
        clock: Option<u64>,
        until: u64,
    ) -> Option<Decision> {
        let (earliest, latest) = self.redis_clock_bounds(lifetime, clock)?;
        if latest >= self.until.min(until) {
            return None;
        }
        let mut is_certain = true;
        let mut sent_epochs = self.epochs.iter();
        let charges = charges.iter().copied();
        let denial = outcomes::lasting_denial(earliest, latest, charges, &self.reply, |charge, peek| {
            let has_penalty = charge.spec.penalty().is_some();
            let current = epochs.current(charge.spec.fingerprint(charge.key));
            let is_unchanged = sent_epochs.next() == Some(&current);
            // Limits that are available may have changed: otherwise, clients that share one would end each other's
            // denials.
            is_certain &= is_unchanged || !(peek.denies || has_penalty);
            is_certain &= peek.is_penalty || !(has_penalty && peek.denies);
        });
        denial.filter(|_| is_certain)
    }

    /// Returns the earliest and the latest instant (in µs) that Redis' clock may have reached, or `None` if the denial
    /// is too old or the clock has stepped back.
    fn redis_clock_bounds(&self, lifetime: Duration, clock: Option<u64>) -> Option<(u64, u64)> {
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
