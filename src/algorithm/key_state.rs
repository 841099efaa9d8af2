//! The state of a key under any algorithm, its bytes, for stores that keep states as opaque values, and the decisions
//! on costs, which follow from the operations of a state, once for all algorithms.
//!
//! | version 4 | bytes | content |
//! |---|---|---|
//! | version | 1 | 4 |
//! | compact state | 8, 8, 8 | the instant of its expiry and another one, in µs, and the algorithm's detail |
//! | or log | 8, 4, 4 | the instant of its expiry, the total before its entries, and their number n |
//! | | n · (8, 4) | of each entry, oldest first, the start of its bucket and the total up to it |
//!
//! All numbers are little-endian. The algorithm determines which of the two forms a state has. Bytes of another
//! version, or that do not have the layout of their form, are rejected.

use super::log::Log;
use super::settings::{Algorithm, Kind};
use super::state::{Attempt, CompactState};
use super::{bucket, counter, interval_bucket, leased_bucket, window};

/// The state of a key under any algorithm, and the algorithm's operations on it, from which all decisions follow.
///
/// Instants and spans are µs, and all arithmetic is exact. No method panics on a state that `charge` and `refund` have
/// produced, at any instant up to [`Timestamp::MAX`](crate::Timestamp::MAX). Clocks may step back: time then stands
/// still for a key until the clock has caught up.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum KeyState {
    Compact(CompactState),
    Log(Box<Log>),
}

impl KeyState {
    /// The state of an unused key under any algorithm. A log is allocated by its first charge.
    pub(crate) const UNUSED: Self = Self::Compact(CompactState::UNUSED);

    /// Returns the state of an unused key in the form in which it is encoded: a log for algorithms that keep one.
    pub(crate) fn unused(is_log: bool) -> Self {
        if is_log { Self::Log(Box::default()) } else { Self::UNUSED }
    }

    /// Returns the instant from which the state means the same as that of an unused key, so that a store can drop it
    /// without knowing the algorithm. 0 for an unused key.
    #[inline]
    pub(crate) fn expires_at(&self) -> u64 {
        match self {
            Self::Compact(state) => state.expires_at,
            Self::Log(log) => log.expires_at,
        }
    }

    /// Looks at the state, once, and computes the state after a charge of `cost`. That of a log is left out.
    #[inline(always)]
    pub(crate) fn attempt(&self, algorithm: &Algorithm, now: u64, cost: u64) -> Attempt {
        match self {
            Self::Compact(state) => state.attempt(algorithm, now, cost),
            Self::Log(log) => Attempt { used: log.used(algorithm, now), charged: CompactState::UNUSED },
        }
    }

    /// Returns the tokens in use, rounded up.
    pub(crate) fn used(&self, algorithm: &Algorithm, now: u64) -> u64 {
        self.attempt(algorithm, now, 0).used
    }

    /// Returns the time until at most `most` tokens are in use, or 0 if no more are.
    #[inline(always)]
    pub(super) fn wait(&self, algorithm: &Algorithm, now: u64, most: u64) -> u64 {
        match self {
            Self::Compact(state) => state.wait(algorithm, now, most),
            Self::Log(log) => log.wait(algorithm, now, most),
        }
    }

    /// Charges `cost`, which is at least 1 and fits. `charged` is the state after that, unless it is a log.
    #[inline(always)]
    pub(crate) fn charge(&mut self, algorithm: &Algorithm, now: u64, cost: u64, charged: CompactState) {
        match self {
            Self::Log(log) => log.charge(algorithm, now, cost),
            Self::Compact(_) if algorithm.keeps_log() => {
                let mut log = Box::<Log>::default();
                log.charge(algorithm, now, cost);
                *self = Self::Log(log);
            }
            Self::Compact(state) => *state = charged,
        }
    }

    /// Returns the state in the form of a compact one: the mark of a charge that was just made, and all that is
    /// reported of the key at this instant.
    #[inline]
    pub(crate) fn summary(&self, algorithm: &Algorithm, now: u64) -> CompactState {
        match self {
            Self::Compact(state) => *state,
            Self::Log(log) => log.summary(algorithm, now),
        }
    }

    /// Refunds a charge of `cost`, as far as it still counts.
    pub(crate) fn refund(&mut self, algorithm: &Algorithm, mark: CompactState, now: u64, cost: u64) {
        match self {
            Self::Compact(state) => state.refund(algorithm, mark, now, cost),
            Self::Log(log) => log.refund(algorithm, mark, now, cost),
        }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        match self {
            Self::Compact(state) => bytes.extend(state.to_bytes()),
            Self::Log(log) => log.encode(&mut bytes),
        }
        bytes
    }

    /// Decodes a log or a compact state.
    pub(crate) fn from_bytes(bytes: &[u8], is_log: bool) -> Result<Self, DecodeError> {
        match bytes {
            [VERSION, rest @ ..] => Self::decode(rest, is_log).ok_or(DecodeError::Malformed),
            [version, ..] => Err(DecodeError::Version(*version)),
            [] => Err(DecodeError::Malformed),
        }
    }

    fn decode(mut bytes: &[u8], is_log: bool) -> Option<Self> {
        let bytes = &mut bytes;
        let state =
            if is_log { Self::Log(Box::new(Log::decode(bytes)?)) } else { Self::Compact(CompactState::decode(bytes)?) };
        bytes.is_empty().then_some(state)
    }
}

/// The wait for a cost that exceeds the capacity.
pub(crate) const NEVER: u64 = u64::MAX;

/// The wait that is reported for a slot, in µs. It is unknown when a request in flight ends.
const UNKNOWN_WAIT: u64 = 1_000_000;

impl Algorithm {
    /// Returns the time until `cost` can be charged if nothing else is charged until then: 0 if it can be now that `used`
    /// tokens are in use, or [`NEVER`]. A cost of 0 always can.
    #[inline(always)]
    pub(crate) fn wait(&self, state: &KeyState, now: u64, cost: u64, used: u64) -> u64 {
        match self.hard_capacity().checked_sub(cost) {
            _ if cost == 0 => 0,
            Some(most) if used <= most => 0,
            Some(_) if self.is_concurrency => UNKNOWN_WAIT,
            Some(most) if self.term == 0 => state.wait(self, now, most),
            Some(most) => state.wait(self, now, most).saturating_add(self.pause()),
            None => NEVER,
        }
    }

    /// Returns whether `cost` can be charged when `used` tokens are in use. A cost of 0 need not be.
    #[inline(always)]
    pub(super) fn fits(&self, used: u64, cost: u64) -> bool {
        cost > 0 && used.saturating_add(cost) <= self.hard_capacity()
    }

    /// Returns the time for which a request that can be charged `cost` waits before it proceeds.
    #[inline(always)]
    pub(crate) fn delay(&self, state: &KeyState, now: u64, cost: u64) -> u64 {
        match self.queue_burst() {
            Some(burst) if cost > 0 => state.wait(self, now, burst.into()),
            _ => 0,
        }
    }

    /// Returns the largest cost that is available without overage if `used` tokens are in use.
    #[inline]
    pub(crate) fn remaining(&self, used: u64) -> u64 {
        self.capacity.saturating_sub(used)
    }

    /// Returns the time until more tokens remain than now that `used` are in use, or [`NEVER`].
    #[inline]
    pub(crate) fn more_after(&self, state: &CompactState, now: u64, used: u64) -> u64 {
        if self.is_concurrency {
            return NEVER;
        }
        used.min(self.capacity).checked_sub(1).map_or(NEVER, |less| state.wait(self, now, less))
    }

    /// Returns the time until the key is unused again.
    #[inline]
    pub(crate) fn reset_after(&self, state: &CompactState, now: u64) -> u64 {
        match self.kind {
            _ if self.is_concurrency => {
                if state.detail > 0 {
                    UNKNOWN_WAIT
                } else {
                    0
                }
            }
            // At another rate, it drains earlier or later.
            Kind::Bucket(_) if state.detail >> 32 != u64::from(self.amount) => state.wait(self, now, 0),
            Kind::IntervalBucket => state.wait(self, now, 0),
            _ => state.expires_at.saturating_sub(now),
        }
    }
}

/// Calls the functions of the algorithm's file. A new algorithm with a compact state needs a line in each `match`.
///
/// These methods are always inlined, and so are the functions: calls would take another 90 instructions of a decision
/// ("token bucket" in `.ci/instructions`).
impl CompactState {
    #[inline(always)]
    fn attempt(&self, algorithm: &Algorithm, now: u64, cost: u64) -> Attempt {
        match algorithm.kind {
            Kind::IntervalBucket => interval_bucket::attempt(algorithm, self, now, cost),
            Kind::Bucket(_) => bucket::attempt(algorithm, self, now, cost),
            Kind::LeasedBucket(_) => leased_bucket::attempt(algorithm, self, now, cost),
            Kind::Window(_) => window::attempt(algorithm, self, now, cost),
            Kind::Counter(..) => counter::attempt(algorithm, self, now, cost),
            // `self` is the summary of a log.
            Kind::Log(_) => Attempt { used: self.detail, charged: *self },
        }
    }

    #[inline(always)]
    pub(crate) fn wait(&self, algorithm: &Algorithm, now: u64, most: u64) -> u64 {
        match algorithm.kind {
            Kind::IntervalBucket => interval_bucket::wait(algorithm, self, now, most),
            Kind::Bucket(_) => bucket::wait(algorithm, self, now, most),
            Kind::LeasedBucket(_) => leased_bucket::wait(algorithm, self, now, most),
            Kind::Window(_) => window::wait(self, now, most),
            Kind::Counter(..) => counter::wait(algorithm, self, now, most),
            Kind::Log(_) if self.detail <= most => 0,
            // A leased key may be looked at later than it was charged.
            Kind::Log(_) => self.at.saturating_sub(now),
        }
    }

    /// Returns the state of a key by its counts in the previous window and in the current one, which ends at `end`. The
    /// algorithm [counts in windows](Algorithm::counted_windows).
    pub(crate) fn of_counts(algorithm: &Algorithm, end: u64, [previous, current]: [u64; 2]) -> Self {
        match algorithm.kind {
            Kind::Counter(..) => Self { expires_at: end + algorithm.span, at: 0, detail: previous << 32 | current },
            _ => Self { expires_at: end, at: 0, detail: current },
        }
    }

    /// Returns the end of the window that was charged last, and its count.
    pub(crate) fn current_count(&self, algorithm: &Algorithm) -> (u64, u64) {
        match algorithm.kind {
            Kind::Counter(..) => (self.expires_at.saturating_sub(algorithm.span), self.detail & u64::from(u32::MAX)),
            _ => (self.expires_at, self.detail),
        }
    }

    pub(super) fn refund(&mut self, algorithm: &Algorithm, mark: CompactState, now: u64, cost: u64) {
        match algorithm.kind {
            Kind::IntervalBucket => interval_bucket::refund(algorithm, self, mark, now, cost),
            Kind::Bucket(_) => bucket::refund(algorithm, self, mark, now, cost),
            Kind::LeasedBucket(_) => leased_bucket::refund(algorithm, self, mark, now, cost),
            Kind::Window(_) => window::refund(self, mark, now, cost),
            Kind::Counter(..) => counter::refund(algorithm, self, mark, now, cost),
            // An unused log has no charges.
            Kind::Log(_) => {}
        }
    }
}

/// Why bytes are not the state of a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum DecodeError {
    /// They have a version that this crate does not know.
    Version(u8),
    /// They do not have the layout of their version.
    Malformed,
}

const VERSION: u8 = 4;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::algorithm::{
        CalendarWindow, FixedWindow, LeakyBucket, LeakyBucketQueue, Lockout, Penalty, SlidingLog, SlidingWindowCounter,
        TokenBucket,
    };

    const NOON: u64 = 1_767_225_600_000_000;

    fn charged(algorithm: &Algorithm, charges: u64) -> KeyState {
        let mut state = KeyState::unused(algorithm.keeps_log());
        for at in 0..charges {
            let charged = state.attempt(algorithm, NOON + at, 1).charged;
            state.charge(algorithm, NOON + at, 1, charged);
        }
        state
    }

    fn algorithms() -> [Algorithm; 2] {
        [TokenBucket::per_minute(10).into(), SlidingLog::per_minute(10).into()]
    }

    #[test]
    fn states_survive_a_round_trip() {
        for algorithm in algorithms() {
            for charges in 0..5 {
                let state = charged(&algorithm, charges);
                assert_eq!(KeyState::from_bytes(&state.to_bytes(), algorithm.keeps_log()), Ok(state));
            }
        }
    }

    #[test]
    fn compact_states_have_a_fixed_layout() {
        let state = KeyState::Compact(CompactState { expires_at: 2, at: 3, detail: 4 });
        assert_eq!(state.to_bytes(), [&[4][..], [2_u64, 3, 4].map(u64::to_le_bytes).as_flattened()].concat());
    }

    #[test]
    fn other_versions_are_rejected() {
        let algorithm = TokenBucket::per_minute(10).into();
        let mut bytes = charged(&algorithm, 1).to_bytes();
        for version in [0, 1, 2, 3, u8::MAX] {
            bytes[0] = version;
            assert_eq!(KeyState::from_bytes(&bytes, algorithm.keeps_log()), Err(DecodeError::Version(version)));
        }
    }

    #[test]
    fn malformed_bytes_are_rejected() {
        for algorithm in algorithms() {
            let bytes = charged(&algorithm, 4).to_bytes();
            let decode = |bytes: &[u8]| KeyState::from_bytes(bytes, algorithm.keeps_log());
            for len in 0..bytes.len() {
                assert_eq!(decode(&bytes[..len]), Err(DecodeError::Malformed), "{len} bytes");
            }
            assert_eq!(decode(&[&bytes[..], &[0]].concat()), Err(DecodeError::Malformed));
            assert_eq!(KeyState::from_bytes(&bytes, !algorithm.keeps_log()), Err(DecodeError::Malformed));
        }
        let endless_log = [&[4][..], &[0; 12], &u32::MAX.to_le_bytes()].concat();
        assert_eq!(KeyState::from_bytes(&endless_log, true), Err(DecodeError::Malformed));
    }

    #[test]
    fn arbitrary_states_never_panic() {
        let penalty = Penalty::after(3, Duration::from_secs(86_400));
        let algorithms: [Algorithm; 7] = [
            FixedWindow::per_day(10).into(),
            CalendarWindow::daily(10).into(),
            SlidingWindowCounter::per_day(10).into(),
            TokenBucket::per_day(10).into(),
            TokenBucket::per_day(10).at_intervals().into(),
            LeakyBucket::per_day(10).into(),
            LeakyBucketQueue::per_day(10).into(),
        ];
        let numbers = [0, 1, NOON, 1 << 52, (1 << 53) + 1, (1 << 56) - 1, 1 << 56, 1 << 63, u64::MAX];
        let states = || {
            let instants = numbers.into_iter().flat_map(|expires_at| numbers.map(|at| (expires_at, at)));
            instants.flat_map(|(expires_at, at)| numbers.map(|detail| CompactState { expires_at, at, detail }))
        };
        for algorithm in algorithms {
            for state in states() {
                let bytes = KeyState::Compact(state).to_bytes();
                let Ok(stored) = KeyState::from_bytes(&bytes, algorithm.keeps_log()) else { continue };
                for now in [0, NOON, 1 << 52] {
                    for cost in [0, 1, 10, 11] {
                        let mut state = stored.clone();
                        let used = state.used(&algorithm, now);
                        let summary = state.summary(&algorithm, now);
                        algorithm.more_after(&summary, now, used);
                        algorithm.reset_after(&summary, now);
                        algorithm.delay(&state, now, cost);
                        if algorithm.wait(&state, now, cost, used) == 0 && cost > 0 {
                            let charged = state.attempt(&algorithm, now, cost).charged;
                            state.clone().charge(&algorithm, now, cost, charged);
                        }
                        for at in [0, NOON, 1 << 53] {
                            let mark = CompactState { expires_at: NOON, at, detail: NOON };
                            state.refund(&algorithm, mark, now, cost);
                        }
                    }
                }
            }
        }
        for (state, now) in states().flat_map(|state| [0, NOON, 1 << 52].map(|now| (state, now))) {
            if KeyState::from_bytes(&KeyState::Compact(state).to_bytes(), false).is_ok() {
                Lockout::begun(&penalty.strike(&state, now), now);
            }
        }
    }
}
