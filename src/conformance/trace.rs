//! Runs random steps on the checked store and on a memory store, and compares the decisions.

use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, LeakyBucketQueue, Penalty, Rounding, SlidingLog, SlidingWindow,
    SlidingWindowCounter, TokenBucket,
};
use crate::limit::Limit;
use crate::limiter::Limiter;
use crate::resilience::CircuitBreaker;
use crate::store::decision::{Decision, Receipt};
use crate::store::{MemoryStore, Store};
use crate::time::{ManualClock, Timestamp};

/// The passage of time between the steps.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ClockSteps {
    Advances,
    StepsBack,
}

const STEPS: usize = 150;

/// The start of the clock, in µs: a midnight, at which windows begin.
pub(super) const START: u64 = 1_767_225_600_000_000;

/// A limiter on the checked store, and one on a memory store for comparison.
pub(super) struct Pair {
    pub(super) clock: ManualClock,
    pub(super) expected: Limiter,
    pub(super) actual: Limiter,
    history: String,
}

impl Pair {
    pub(super) async fn new<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S, limits: Vec<Limit>) -> Self {
        let clock = ManualClock::new(Timestamp::from_micros(START));
        let mut history = String::from("limits:");
        for limit in &limits {
            let _ = write!(history, " {limit:?}");
        }
        let expected = limiter(limits.clone(), MemoryStore::new().clock(clock.clone()));
        let actual = limiter(limits, new_store(clock.clone()).await);
        Self { clock, expected, actual, history }
    }

    /// Adds a step to the history that is reported with a difference.
    pub(super) fn note(&mut self, step: &str) {
        let _ = write!(self.history, "\n{step}");
    }

    /// Compares two decisions.
    pub(super) fn compare(&mut self, expected: &Decision, actual: &Decision) {
        let [expected, actual] = [expected, actual].map(describe);
        assert!(expected == actual, "{}\nexpected {expected}\nactual {actual}", self.history);
    }

    pub(super) async fn acquire(&mut self, key: u64, cost: u64) -> [Receipt; 2] {
        self.note(&format!("acquire {cost}"));
        let expected = self.expected.acquire(key, cost).await.expect("a decision in memory");
        let actual = self.actual.acquire(key, cost).await.unwrap_or_else(|error| panic!("{}: {error}", self.history));
        self.compare(&expected, &actual);
        [expected.into_receipt(), actual.into_receipt()]
    }

    pub(super) async fn peek(&mut self, key: u64, cost: u64) {
        self.note(&format!("peek {cost}"));
        let expected = self.expected.peek(key, cost).await.expect("a decision in memory");
        let actual = self.actual.peek(key, cost).await.unwrap_or_else(|error| panic!("{}: {error}", self.history));
        self.compare(&expected, &actual);
    }

    /// Compares what is left after a preview.
    async fn preview(&mut self, key: u64, cost: u64) {
        self.note(&format!("preview {cost}, which charges nothing"));
        let expected = self.expected.explain(key, cost).await;
        let actual = self.actual.explain(key, cost).await;
        assert!(expected.is_allowed() == actual.is_allowed(), "{}\nexpected {expected}\nactual {actual}", self.history);
        self.peek(key, 0).await;
    }

    async fn refund(&mut self, [expected, actual]: [Receipt; 2]) {
        self.note("refund");
        self.expected.refund(expected).await.expect("a refund in memory");
        self.actual.refund(actual).await.unwrap_or_else(|error| panic!("{}: {error}", self.history));
    }

    async fn reset(&mut self, key: u64) {
        self.note("reset");
        self.expected.reset(key).await.expect("a reset in memory");
        self.actual.reset(key).await.unwrap_or_else(|error| panic!("{}: {error}", self.history));
    }

    fn set_clock(&mut self, micros: u64) {
        self.note(&format!("at {micros}"));
        self.clock.set(Timestamp::from_micros(micros));
    }
}

/// Describes a decision, without marks and hashes, which may differ between stores.
fn describe(decision: &Decision) -> String {
    let mut text = format!("{:?} at {:?}", decision.verdict(), decision.at());
    for outcome in decision.outcomes() {
        let flags = [
            (outcome.is_enforced(), "enforced"),
            (outcome.uses_overage(), "overage"),
            (outcome.is_locked_out(), "locked out"),
        ];
        let flags: Vec<&str> = flags.iter().filter(|(is_set, _)| *is_set).map(|(_, name)| *name).collect();
        let _ = write!(
            text,
            "\n  limit {}: cost {}, {:?}, {} left, more after {:?}, reset after {:?}, {flags:?}",
            outcome.limit(),
            outcome.cost(),
            outcome.verdict(),
            outcome.remaining(),
            outcome.more_after(),
            outcome.reset_after(),
        );
    }
    text
}

/// Creates a limiter that waits up to 30 s for its store.
pub(super) fn limiter(limits: Vec<Limit>, store: impl Store) -> Limiter {
    let builder = Limiter::builder(limits).store(store).deadline(Duration::from_secs(30));
    builder.circuit_breaker(CircuitBreaker::off()).build()
}

/// Runs random steps for one key.
pub(super) async fn compare<S: Store>(
    new_store: &impl AsyncFn(ManualClock) -> S,
    limits: Vec<Limit>,
    clock: ClockSteps,
) {
    let mut pair = Pair::new(new_store, limits).await;
    let mut random = Random::new(START ^ pair.history.len() as u64);
    let (key, mut now) = (new_key(), START);
    let mut receipts: Vec<[Receipt; 2]> = Vec::new();
    for _ in 0..STEPS {
        match random.below(20) {
            0..10 => {
                let cost = random.below(5) + u64::from(random.below(10) == 0) * 5;
                receipts.push(pair.acquire(key, cost).await);
            }
            10..12 => {
                let cost = random.below(12);
                pair.peek(key, cost).await;
            }
            12..14 if !receipts.is_empty() => {
                let index = random.below(receipts.len() as u64) as usize;
                let receipt = receipts.swap_remove(index);
                pair.refund(receipt).await;
            }
            14 if random.below(4) == 0 => pair.reset(key).await,
            15 if clock == ClockSteps::StepsBack => {
                now -= random.below(15_000_000).min(now - START);
                pair.set_clock(now);
            }
            16 => {
                let cost = random.below(12);
                pair.preview(key, cost).await;
            }
            _ => {
                // Mostly short steps, some to the microsecond, and sometimes a period in which everything expires.
                let longest = [1, 1_000, 400_000, 2_000_000, 5_000_000, 60_000_000][random.below(6) as usize];
                now += random.below(longest);
                pair.set_clock(now);
            }
        }
    }
}

/// The SplitMix64 generator (Steele, Lea and Flood, 2014).
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % end
    }
}

/// Returns a key that no other check has used, in this process or another.
pub(super) fn new_key() -> u64 {
    RandomState::new().hash_one(())
}

/// The period of the limits that the checks use.
const PERIOD: Duration = Duration::from_secs(10);

/// One limit of each algorithm.
pub(super) fn algorithms() -> Vec<Limit> {
    let algorithms: [(&str, Algorithm); 9] = [
        ("fixed window", FixedWindow::new(10, PERIOD).into()),
        ("sliding log", SlidingLog::new(10, PERIOD).into()),
        ("sliding window", SlidingWindow::new(10, PERIOD).buckets(5).into()),
        ("counter", SlidingWindowCounter::new(10, PERIOD).into()),
        ("counter, rounded down", SlidingWindowCounter::new(10, PERIOD).rounding(Rounding::Down).into()),
        ("token bucket", TokenBucket::new(10, 3, PERIOD).into()),
        ("token bucket at intervals", TokenBucket::new(10, 3, PERIOD).at_intervals().into()),
        ("leaky bucket", LeakyBucket::new(10, 3, PERIOD).into()),
        ("queue", LeakyBucketQueue::new(10, 3, PERIOD).into()),
    ];
    algorithms.into_iter().map(|(name, algorithm)| Limit::new(name, algorithm)).collect()
}

/// Requests of three limits, with different algorithms beside each other.
pub(super) fn combinations() -> Vec<Vec<Limit>> {
    let limits = algorithms();
    let neighbours = |distance: usize| {
        let limits = &limits;
        (0..limits.len()).map(move |index| [0, distance, 2 * distance].map(|offset| (index + offset) % limits.len()))
    };
    let triples = (1..=2).flat_map(neighbours);
    triples.map(|triple| triple.iter().map(|index| limits[*index].clone()).collect()).collect()
}

/// Soft limits, limits in shadow mode, and limits in quota mode.
pub(super) fn modes() -> Vec<Vec<Limit>> {
    let mut modes: Vec<Vec<Limit>> = algorithms().into_iter().map(|limit| vec![limit.soft(30)]).collect();
    for limit in algorithms() {
        modes.push(vec![limit.shadow(), Limit::new("enforced", TokenBucket::new(5, 1, PERIOD))]);
    }
    for limit in algorithms() {
        let other = Limit::new("other", FixedWindow::new(3, PERIOD));
        modes.push(vec![limit.quota_mode(), other.quota_mode(), Limit::new("all", SlidingLog::new(30, PERIOD))]);
    }
    modes
}

/// Limits with penalties.
pub(super) fn penalties() -> Vec<Vec<Limit>> {
    let penalty = Penalty::after(3, PERIOD).locked_out_for(PERIOD).doubling_up_to(8 * PERIOD);
    let mut penalties: Vec<Vec<Limit>> = algorithms().into_iter().map(|limit| vec![limit.penalty(penalty)]).collect();
    for limit in algorithms() {
        penalties.push(vec![limit.penalty(penalty), Limit::new("beside", FixedWindow::new(6, PERIOD))]);
    }
    penalties
}
