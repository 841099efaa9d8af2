//! Translates between the algorithms and the scripts: the numbers that a script decides by, and the states that it
//! stores.
//!
//! A script decides and stores. The states that it found are decoded here, so that the rules in
//! [`algorithm`](crate::algorithm) report on them as on the states of the memory store.

mod gcra;
mod interval_bucket;
mod log;
pub(in crate::store::redis) mod penalty;
mod sliding_window_counter;
mod state;
mod ttl_quantum;
mod window;

use smallvec::SmallVec;

pub(in crate::store::redis) use self::state::{StoredState, split_micros};
#[cfg(test)]
pub(in crate::store::redis) use self::ttl_quantum::TtlQuantum;
use crate::algorithm::{Algorithm, ChargeMark, CompactState, Log, PreparedAlgorithm, RateAlgorithm};

/// The numbers that a script decides by: whole, and under 2^53.
pub(in crate::store::redis) type ScriptArgs = SmallVec<[f64; 12]>;

pub(super) const GCRA: &str = include_str!("../lua/gcra.lua");
pub(super) const WINDOW: &str = include_str!("../lua/window.lua");

/// The files of the algorithms, by the [tags](RedisCodec::tag) of those that each decides for.
pub(super) const SCRIPTS: [(&[&str], &str); 5] = [
    (&["d", "q"], GCRA),
    (&["i"], include_str!("../lua/interval_bucket.lua")),
    (&["w", "k"], WINDOW),
    (&["c"], include_str!("../lua/sliding_window_counter.lua")),
    (&["l"], include_str!("../lua/log.lua")),
];

/// A rule that has a script. `S` is the state of a key.
pub(in crate::store::redis) trait RedisCodec<S>: RateAlgorithm<S> {
    /// Returns the letter that selects the script.
    fn tag(&self) -> u8;

    /// Returns the arguments for a charge of `cost`, which is the first of them. `remaining` will be reported of a
    /// limit of `reported_capacity` tokens.
    fn args(&self, cost: u64, reported_capacity: u64) -> ScriptArgs;

    /// Further arguments, which depend on the time: computed for an instant near `now`, the sender's clock.
    fn args_at(&self, now: u64) -> ScriptArgs {
        let _ = now;
        ScriptArgs::new()
    }

    /// The mark of a charge, as the script expects it for a refund.
    fn encode_mark(&self, mark: &ChargeMark) -> StoredState;

    /// Returns the state of a key that holds `stored`, or `None` if no script can have stored that.
    fn decode(&self, stored: &[StoredState]) -> Option<S>;
}

/// The codec of a rule, by the state that the rule keeps.
pub(in crate::store::redis) enum Codec<'a> {
    Compact(&'a dyn RedisCodec<CompactState>),
    Log(&'a dyn RedisCodec<Log>),
}

impl<'a> Codec<'a> {
    pub(in crate::store::redis) fn of(rule: &'a PreparedAlgorithm) -> Self {
        match rule {
            PreparedAlgorithm::Gcra(rule) => Self::Compact(rule),
            PreparedAlgorithm::GcraQueue(rule) => Self::Compact(rule),
            PreparedAlgorithm::IntervalBucket(rule) => Self::Compact(rule),
            PreparedAlgorithm::FixedWindow(rule) => Self::Compact(rule),
            PreparedAlgorithm::CalendarWindow(rule) => Self::Compact(rule),
            PreparedAlgorithm::SlidingWindowCounter(rule) => Self::Compact(rule),
            PreparedAlgorithm::LogWindow(rule) => Self::Log(rule),
        }
    }

    pub(in crate::store::redis) fn tag(&self) -> u8 {
        match self {
            Self::Compact(codec) => codec.tag(),
            Self::Log(codec) => codec.tag(),
        }
    }

    pub(in crate::store::redis) fn args(&self, cost: u64, reported_capacity: u64) -> ScriptArgs {
        match self {
            Self::Compact(codec) => codec.args(cost, reported_capacity),
            Self::Log(codec) => codec.args(cost, reported_capacity),
        }
    }

    pub(in crate::store::redis) fn args_at(&self, now: u64) -> ScriptArgs {
        match self {
            Self::Compact(codec) => codec.args_at(now),
            Self::Log(codec) => codec.args_at(now),
        }
    }

    pub(in crate::store::redis) fn encode_mark(&self, mark: &ChargeMark) -> StoredState {
        match self {
            Self::Compact(codec) => codec.encode_mark(mark),
            Self::Log(codec) => codec.encode_mark(mark),
        }
    }
}

/// Returns the tokens that a bucket refills or drains per interval; `None` for windows.
pub(in crate::store::redis) fn amount(algorithm: &Algorithm) -> Option<u32> {
    match algorithm {
        Algorithm::TokenBucket(limit) => Some(limit.amount),
        Algorithm::LeakyBucket(limit) => Some(limit.amount),
        Algorithm::LeakyBucketQueue(limit) => Some(limit.amount),
        _ => None,
    }
}

/// Returns whether a decision by `algorithm` converts what a key has `stored` from another rate to its own.
pub(in crate::store::redis) fn converts_rate(algorithm: &Algorithm, stored: &[StoredState]) -> bool {
    let written = stored.first().map_or(0, |state| state.counts[1]);
    amount(algorithm).is_some_and(|amount| written != 0 && written != amount)
}

/// The largest cost that a script is given: no limit holds that much, so that a refund never needs more, whatever the
/// limit's capacity was at the time of the charge.
const MAX_COST: u64 = 1 << 33;

/// Returns the cost, or a smaller one that exceeds `capacity` as well.
fn bounded_cost(cost: u64, capacity: u64) -> u64 {
    cost.min(MAX_COST.max(capacity + 1))
}
