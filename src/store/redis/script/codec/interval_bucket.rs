//! The codec of token buckets that refill at intervals.

use super::{RedisCodec, ScriptArgs, StoredState, bounded_cost};
use crate::algorithm::interval_bucket::IntervalBucket;
use crate::algorithm::{ChargeMark, CompactState};

impl RedisCodec<CompactState> for IntervalBucket {
    fn tag(&self) -> u8 {
        b'i'
    }

    fn args(&self, cost: u64, _: u64) -> ScriptArgs {
        let cost = bounded_cost(cost, self.capacity) as f64;
        [cost, self.capacity as f64, self.amount.into(), self.interval as f64].into_iter().collect()
    }

    fn encode_mark(&self, mark: &ChargeMark) -> StoredState {
        StoredState { micros: mark.at.into(), counts: [mark.detail as u32, (mark.detail >> 32) as u32] }
    }

    /// A script stores the next refill, rather than the last one.
    fn decode(&self, stored: &[StoredState]) -> Option<CompactState> {
        let Some(stored) = stored.first() else { return Some(CompactState::UNUSED) };
        let [missing, amount] = stored.counts;
        // Zero was written before amounts were stored: the amount is the limit's own.
        let amount = if amount == 0 { self.amount } else { amount };
        stored.instant().map(|at| self.state(at, missing, amount))
    }
}
