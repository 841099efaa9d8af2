//! The codec of the sliding window counter.

use super::{RedisCodec, ScriptArgs, StoredState, bounded_cost};
use crate::algorithm::{ChargeMark, CompactState, Rounding, SlidingWindowCounter};

impl RedisCodec<CompactState> for SlidingWindowCounter {
    fn tag(&self) -> u8 {
        b'c'
    }

    fn args(&self, cost: u64, _: u64) -> ScriptArgs {
        let cost = bounded_cost(cost, self.limit.into()) as f64;
        let rounds_up = f64::from(u8::from(self.rounding == Rounding::Up));
        [cost, self.limit.into(), self.period as f64, rounds_up].into_iter().collect()
    }

    fn encode_mark(&self, mark: &ChargeMark) -> StoredState {
        StoredState { micros: mark.at.into(), counts: [(mark.detail >> 32) as u32, mark.detail as u32] }
    }

    fn decode(&self, stored: &[StoredState]) -> Option<CompactState> {
        let Some(stored) = stored.first() else { return Some(CompactState::UNUSED) };
        let [previous, current] = stored.counts.map(u64::from);
        Some(CompactState { expires_at: stored.instant()?, detail: previous << 32 | current })
    }
}
