//! The codec of logs: sliding logs and sliding windows.

use super::{RedisCodec, ScriptArgs, StoredState, bounded_cost};
use crate::algorithm::{Log, SlidingLog, SlidingWindow, Span};
use crate::record::Record;

const TAG: u8 = b'l';

fn args(rule: &Span, cost: u64, reported_capacity: u64) -> ScriptArgs {
    let cost = bounded_cost(cost, rule.limit) as f64;
    let [limit, reported] = [rule.limit, reported_capacity].map(|tokens| tokens as f64);
    [cost, limit, rule.width as f64, rule.period as f64, reported].into_iter().collect()
}

fn encode_mark(mark: &Record) -> StoredState {
    StoredState { micros: mark.until.into(), counts: [0, 0] }
}

/// The log whose oldest entry that counts is the first one stored, and whose newest is the last. A script may leave out
/// entries between them that its answer does not depend on: the log then decides as if their tokens had been taken
/// in the next entry's bucket.
fn decode(rule: &Span, stored: &[StoredState]) -> Option<Log> {
    let mut entries = stored.iter().map(|entry| entry.instant().map(|instant| (instant, entry.counts)));
    let entries: Option<smallvec::SmallVec<[_; 4]>> = entries.by_ref().collect();
    rule.rebuild(&entries?)
}

impl RedisCodec<Log> for SlidingLog {
    fn tag(&self) -> u8 {
        TAG
    }

    fn args(&self, cost: u64, reported_capacity: u64) -> ScriptArgs {
        args(&self.span(), cost, reported_capacity)
    }

    fn encode_mark(&self, mark: &Record) -> StoredState {
        encode_mark(mark)
    }

    fn decode(&self, stored: &[StoredState]) -> Option<Log> {
        decode(&self.span(), stored)
    }
}

impl RedisCodec<Log> for SlidingWindow {
    fn tag(&self) -> u8 {
        TAG
    }

    fn args(&self, cost: u64, reported_capacity: u64) -> ScriptArgs {
        args(&self.span(), cost, reported_capacity)
    }

    fn encode_mark(&self, mark: &Record) -> StoredState {
        encode_mark(mark)
    }

    fn decode(&self, stored: &[StoredState]) -> Option<Log> {
        decode(&self.span(), stored)
    }
}
