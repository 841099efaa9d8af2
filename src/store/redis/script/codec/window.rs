//! The codecs of aligned windows, by the clock and by the calendar.

use super::{RedisCodec, ScriptArgs, StoredState, bounded_cost};
use crate::algorithm::{CalendarWindow, ChargeMark, CompactState, FixedWindow};

fn encode(mark: &ChargeMark) -> StoredState {
    StoredState { micros: mark.at.into(), counts: [mark.detail as u32, 0] }
}

fn decode(stored: &[StoredState]) -> Option<CompactState> {
    let Some(stored) = stored.first() else { return Some(CompactState::UNUSED) };
    Some(CompactState { expires_at: stored.instant()?, detail: stored.counts[0].into() })
}

impl RedisCodec<CompactState> for FixedWindow {
    fn tag(&self) -> u8 {
        b'w'
    }

    fn args(&self, cost: u64, _: u64) -> ScriptArgs {
        let cost = bounded_cost(cost, self.limit.into()) as f64;
        [cost, self.limit.into(), self.period as f64].into_iter().collect()
    }

    fn encode_mark(&self, mark: &ChargeMark) -> StoredState {
        encode(mark)
    }

    fn decode(&self, stored: &[StoredState]) -> Option<CompactState> {
        decode(stored)
    }
}

impl RedisCodec<CompactState> for CalendarWindow {
    fn tag(&self) -> u8 {
        b'k'
    }

    fn args(&self, cost: u64, _: u64) -> ScriptArgs {
        [bounded_cost(cost, self.limit.into()) as f64, self.limit.into()].into_iter().collect()
    }

    /// Returns the edges, in seconds, of the window that contains `now`, the one before and the two after, as no script
    /// knows calendars.
    fn args_at(&self, now: u64) -> ScriptArgs {
        let (start, end) = self.calendar.window((now / 1_000_000) as i64);
        let (before, _) = self.calendar.window(start - 1);
        let (_, next) = self.calendar.window(end);
        let (_, next_but_one) = self.calendar.window(next);
        [before, start, end, next, next_but_one].map(|edge| edge as f64).into_iter().collect()
    }

    fn encode_mark(&self, mark: &ChargeMark) -> StoredState {
        encode(mark)
    }

    fn decode(&self, stored: &[StoredState]) -> Option<CompactState> {
        decode(stored)
    }
}
