//! The codec of token buckets that refill at intervals.

use super::{RedisCodec, ScriptArgs, StoredState, bounded_cost};
use crate::algorithm::TokenBucket;
use crate::record::Record;

impl RedisCodec<Record> for TokenBucket {
    fn tag(&self) -> u8 {
        b'i'
    }

    fn args(&self, cost: u64, _: u64) -> ScriptArgs {
        let cost = bounded_cost(cost, self.capacity.into()) as f64;
        [cost, self.capacity.into(), self.amount.into(), self.interval as f64].into_iter().collect()
    }

    fn encode_mark(&self, mark: &Record) -> StoredState {
        StoredState { micros: mark.until.into(), counts: [mark.detail as u32, (mark.detail >> 32) as u32] }
    }

    /// A script counts the tokens that are missing before the next refill, the memory store those that are missing
    /// before the last one.
    fn decode(&self, stored: &[StoredState]) -> Option<Record> {
        let Some(stored) = stored.first() else { return Some(Record::EMPTY) };
        let [missing, amount] = stored.counts;
        // Zero was written before amounts were stored: the amount is the limit's own.
        let amount = if amount == 0 { self.amount } else { amount };
        stored.instant().map(|at| self.hold(at, missing, amount))
    }
}
