//! The codec of GCRA: continuous token buckets, leaky buckets and queues.

use super::ttl_quantum::TtlQuantum;
use super::{RedisCodec, ScriptArgs, StoredState, bounded_cost, split_micros};
use crate::algorithm::gcra::Gcra;
use crate::algorithm::gcra_queue::GcraQueue;
use crate::algorithm::last_charge::LastChargeTick;
use crate::algorithm::tat::Tat;
use crate::algorithm::{ChargeMark, CompactState};

/// A script counts the backlog as the time in which it drains, to the 1/amount of a µs. Costs and capacities are
/// converted to such times here, so that it only adds and compares.
fn args(rule: &Gcra, cost: u64) -> ScriptArgs {
    let cost = bounded_cost(cost, rule.capacity);
    // The largest backlog with which the cost is available: negative if it never is.
    let room = rule.capacity.checked_sub(cost).map_or([-1.0, 0.0, 0.0], |tokens| span(rule, tokens));
    // A sixteenth of the time that a full bucket takes to drain.
    let quantum = rule.capacity as f64 * rule.interval as f64 / f64::from(rule.amount) / 16.0;
    let mut args = ScriptArgs::from_slice(&[cost as f64, rule.amount.into()]);
    args.extend(room.into_iter().chain(span(rule, cost)).chain(TtlQuantum::within(quantum).args()));
    args
}

/// Returns the time in which `tokens` drain: multiples of 10^9 µs, µs, and 1/amount of a µs.
fn span(rule: &Gcra, tokens: u64) -> [f64; 3] {
    let (units, amount) = (u128::from(tokens) * u128::from(rule.interval), u128::from(rule.amount));
    let [high, low] = split_micros(units / amount);
    [high, low, (units % amount) as f64]
}

/// The mark of a queue is a state. That of a meter is encoded likewise, and has no rounding.
fn encode_mark(rule: &Gcra, mark: &ChargeMark) -> StoredState {
    let tat = Tat::decode(&(*mark).into(), rule.amount);
    let Tat { micros, rounding, amount, last_charge } = tat;
    let counts = if tat.is_far() { [rounding, 0] } else { [last_charge.bits() | rounding, amount] };
    StoredState { micros, counts }
}

fn decode(rule: &Gcra, stored: &[StoredState]) -> Option<CompactState> {
    let Some(&StoredState { micros, counts: [detail, amount] }) = stored.first() else {
        return Some(CompactState::UNUSED);
    };
    if amount > 0 {
        return Some(Tat::near(TtlQuantum::strip(micros), detail, amount).encode());
    }
    // The amount does not fit, or the state was written before amounts were stored: it is the limit's own.
    let last_charge = LastChargeTick::unknown(rule.amount);
    let mut tat = Tat { micros, rounding: detail, amount: rule.amount, last_charge };
    if !tat.is_far() {
        tat.rounding = detail.min(rule.amount - 1);
    }
    Some(tat.encode())
}

impl RedisCodec<CompactState> for Gcra {
    fn tag(&self) -> u8 {
        b'd'
    }

    fn args(&self, cost: u64, _: u64) -> ScriptArgs {
        args(self, cost)
    }

    fn encode_mark(&self, mark: &ChargeMark) -> StoredState {
        encode_mark(self, mark)
    }

    fn decode(&self, stored: &[StoredState]) -> Option<CompactState> {
        decode(self, stored)
    }
}

impl RedisCodec<CompactState> for GcraQueue {
    fn tag(&self) -> u8 {
        b'q'
    }

    fn args(&self, cost: u64, _: u64) -> ScriptArgs {
        args(&self.0, cost)
    }

    fn encode_mark(&self, mark: &ChargeMark) -> StoredState {
        encode_mark(&self.0, mark)
    }

    fn decode(&self, stored: &[StoredState]) -> Option<CompactState> {
        decode(&self.0, stored)
    }
}
