//! The codec of GCRA: continuous token buckets, leaky buckets and queues.

use super::ttl_quantum::TtlQuantum;
use super::{RedisCodec, ScriptArgs, StoredState, bounded_cost, split_micros};
use crate::algorithm::{Drain, Full, Queue};
use crate::record::Record;

/// A script keeps the debt as a span: the time it takes to drain, to the 1/amount of a µs. It then only adds and
/// compares, as Rust has converted the cost and the free capacity to spans.
fn args(rule: &Drain, cost: u64) -> ScriptArgs {
    let cost = bounded_cost(cost, rule.capacity);
    // The largest debt that still leaves room for the cost. A negative span for a cost that never fits.
    let room = rule.capacity.checked_sub(cost).map_or([-1.0, 0.0, 0.0], |tokens| span(rule, tokens));
    // A sixteenth of the time that a full bucket takes to drain.
    let quantum = rule.capacity as f64 * rule.interval as f64 / f64::from(rule.amount) / 16.0;
    let mut args = ScriptArgs::from_slice(&[cost as f64, rule.amount.into()]);
    args.extend(room.into_iter().chain(span(rule, cost)).chain(TtlQuantum::within(quantum).args()));
    args
}

/// How long `tokens` take to drain: multiples of 10^9 µs, µs, and 1/amount of a µs.
fn span(rule: &Drain, tokens: u64) -> [f64; 3] {
    let (units, amount) = (u128::from(tokens) * u128::from(rule.interval), u128::from(rule.amount));
    let [high, low] = split_micros(units / amount);
    [high, low, (units % amount) as f64]
}

fn encode(state: &Record) -> StoredState {
    let Full { micros, detail, amount } = Full::of(state);
    StoredState { micros, counts: [detail, amount] }
}

fn decode(rule: &Drain, stored: &[StoredState]) -> Option<Record> {
    let Some(&StoredState { micros, counts: [detail, amount] }) = stored.first() else { return Some(Record::EMPTY) };
    let micros = if amount > 0 { TtlQuantum::strip(micros) } else { micros };
    Some(match amount {
        // Written before amounts were stored: the amount is the limit's own.
        0 if Full::is_near_at(micros) => {
            let detail = detail.min(rule.amount - 1) | rule.unknown_stamp();
            Full { micros, detail, amount: rule.amount }.record()
        }
        _ => Full { micros, detail, amount }.record(),
    })
}

impl RedisCodec<Record> for Drain {
    fn tag(&self) -> u8 {
        b'd'
    }

    fn args(&self, cost: u64, _: u64) -> ScriptArgs {
        args(self, cost)
    }

    fn encode_mark(&self, mark: &Record) -> StoredState {
        encode(mark)
    }

    fn decode(&self, stored: &[StoredState]) -> Option<Record> {
        decode(self, stored)
    }
}

impl RedisCodec<Record> for Queue {
    fn tag(&self) -> u8 {
        b'q'
    }

    fn args(&self, cost: u64, _: u64) -> ScriptArgs {
        args(&self.0, cost)
    }

    fn encode_mark(&self, mark: &Record) -> StoredState {
        encode(mark)
    }

    fn decode(&self, stored: &[StoredState]) -> Option<Record> {
        decode(&self.0, stored)
    }
}
