//! What the Lua twin of an algorithm is handed and what it leaves: `token_bucket.lua` beside
//! `token_bucket.rs`, and so on.
//!
//! A twin decides and stores. What it found is read back here, so that the very code which answers
//! from memory answers from it.

use smallvec::SmallVec;

use super::{Algorithm, Exact, Log, Rule};
use crate::record::Record;

/// A limit whose rule has a twin. `S` is what a key remembers.
pub(crate) trait Twin<S>: Exact<S> {
    /// Under which letter the scripts know the rule.
    fn letter(&self) -> u8;

    /// The numbers that it decides a `cost` by, that cost first: whole, under 2^53. What is left is told
    /// of a limit of `told` tokens.
    fn numbers(&self, cost: u64, told: u64) -> Numbers;

    /// The numbers that follow those: what no script can work out, for an instant that is thought to be `now`.
    fn edges(&self, now: u64) -> Numbers {
        let _ = now;
        Numbers::new()
    }

    /// What a commit left, as the twin writes it.
    fn mark(&self, mark: &Record) -> State;

    /// What a key remembers that holds `held`, or nothing where that can't be.
    fn recall(&self, held: &[State]) -> Option<S>;
}

pub(crate) type Numbers = SmallVec<[f64; 12]>;

/// By what a rule keeps for a key: something of constant size, or a log.
pub(crate) enum Twins<'a> {
    Record(&'a dyn Twin<Record>),
    Log(&'a dyn Twin<Log>),
}

impl Rule {
    pub(crate) fn twin(&self) -> Twins<'_> {
        match self {
            Self::FixedWindow(rule) => Twins::Record(rule),
            Self::CalendarWindow(rule) => Twins::Record(rule),
            Self::SlidingLog(rule) => Twins::Log(rule),
            Self::SlidingWindow(rule) => Twins::Log(rule),
            Self::SlidingWindowCounter(rule) => Twins::Record(rule),
            Self::Drain(rule) => Twins::Record(rule),
            Self::AtIntervals(rule) => Twins::Record(rule),
            Self::Queue(rule) => Twins::Record(rule),
        }
    }
}

impl Algorithm {
    /// The amount that a bucket moves per interval.
    pub(crate) fn amount(&self) -> Option<u32> {
        match self {
            Self::TokenBucket(limit) => Some(limit.amount()),
            Self::LeakyBucket(limit) => Some(limit.amount()),
            Self::LeakyBucketQueue(limit) => Some(limit.amount()),
            _ => None,
        }
    }

    /// Whether what a key `held` was left by a bucket of another rate, which the first decision of this one
    /// changes.
    pub(crate) fn adopts(&self, held: &[State]) -> bool {
        let written = held.first().map_or(0, |state| state.counts[1]);
        self.amount().is_some_and(|amount| written != 0 && written != amount)
    }
}

/// An instant and two counts: what a key holds, or a log for each of its entries.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct State {
    pub(crate) micros: u128,
    pub(crate) counts: [u32; 2],
}

/// As many µs as a script counts in one of the two numbers of an instant or a span.
const LIMB: u128 = 1_000_000_000;

impl State {
    /// Its length in bytes: 6 and 4 for the instant, 4 for each count.
    pub(crate) const SIZE: usize = 18;

    pub(crate) fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..6].copy_from_slice(&((self.micros / LIMB) as u64).to_le_bytes()[..6]);
        bytes[6..10].copy_from_slice(&((self.micros % LIMB) as u32).to_le_bytes());
        bytes[10..14].copy_from_slice(&self.counts[0].to_le_bytes());
        bytes[14..].copy_from_slice(&self.counts[1].to_le_bytes());
        bytes
    }

    /// All the states that `bytes` hold, or nothing where they hold something else.
    pub(crate) fn all(bytes: &[u8]) -> Option<SmallVec<[Self; 4]>> {
        let (chunks, []) = bytes.as_chunks::<{ Self::SIZE }>() else { return None };
        let mut states = SmallVec::new();
        for chunk in chunks {
            states.push(Self::from_bytes(chunk)?);
        }
        Some(states)
    }

    fn from_bytes(bytes: &[u8; Self::SIZE]) -> Option<Self> {
        let number = |from: usize, to: usize| {
            let mut number = [0; 8];
            number[..to - from].copy_from_slice(&bytes[from..to]);
            u64::from_le_bytes(number)
        };
        let [high, low] = [u128::from(number(0, 6)), u128::from(number(6, 10))];
        let counts = [number(10, 14) as u32, number(14, 18) as u32];
        (low < LIMB).then_some(Self { micros: high * LIMB + low, counts })
    }

    /// Its instant, where one that a window or a log leaves is due.
    pub(crate) fn instant(&self) -> Option<u64> {
        u64::try_from(self.micros).ok().filter(|micros| *micros < 1 << 63)
    }
}

/// A span, in the two numbers in which scripts count it.
pub(crate) fn limbs(micros: u128) -> [f64; 2] {
    // A 128-bit division costs several times a 64-bit one, and is hardly ever needed.
    match u64::try_from(micros) {
        Ok(micros) => [(micros / LIMB as u64) as f64, (micros % LIMB as u64) as f64],
        Err(_) => [(micros / LIMB) as f64, (micros % LIMB) as f64],
    }
}

/// No limit holds that much, so nothing that is given back is more, of whatever size the limit was.
const BEYOND: u64 = 1 << 33;

/// The cost, or one that is as far out of reach of `capacity`.
pub(super) fn within(cost: u64, capacity: u64) -> u64 {
    cost.min(BEYOND.max(capacity + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_survive() {
        for micros in [0, 1, LIMB - 1, LIMB, 1 << 62, (1 << 77) + 1] {
            let state = State { micros, counts: [u32::MAX, 7] };
            assert_eq!(State::all(&state.to_bytes()).unwrap().as_slice(), [state]);
        }
    }

    #[test]
    fn what_is_no_state_is_told_from_one() {
        assert!(State::all(b"").unwrap().is_empty());
        assert_eq!(State::all(b"17"), None);
        assert_eq!(State::all(&[0xff; State::SIZE]), None);
        assert_eq!(State { micros: 1 << 63, counts: [0, 0] }.instant(), None);
    }
}
