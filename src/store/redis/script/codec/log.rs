//! The codec of logs: sliding logs and sliding windows.

use smallvec::SmallVec;

use super::{RedisCodec, ScriptArgs, StoredState, bounded_cost};
use crate::algorithm::log::LogWindow;
use crate::algorithm::{ChargeMark, Log};

impl RedisCodec<Log> for LogWindow {
    fn tag(&self) -> u8 {
        b'l'
    }

    fn args(&self, cost: u64, reported_capacity: u64) -> ScriptArgs {
        let cost = bounded_cost(cost, self.limit);
        [cost, self.limit, self.width, self.period, reported_capacity].into_iter().map(|number| number as f64).collect()
    }

    fn encode_mark(&self, mark: &ChargeMark) -> StoredState {
        StoredState { micros: mark.at.into(), counts: [0, 0] }
    }

    /// The first entry stored is the oldest one that counts, and the last one the newest. A script may leave out entries
    /// between them that its answer does not depend on: the log then decides as if their tokens had been charged in the
    /// bucket of the next entry.
    fn decode(&self, stored: &[StoredState]) -> Option<Log> {
        let entry = |entry: &StoredState| Some((entry.instant()?, entry.counts[0], entry.counts[1]));
        let entries: Option<SmallVec<[_; 4]>> = stored.iter().map(entry).collect();
        self.rebuild(entries?)
    }
}
