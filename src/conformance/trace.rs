//! Runs random steps on the checked store and on a memory store, and compares the decisions.

use std::fmt::Write;
use std::hash::{BuildHasher, DefaultHasher, Hasher, RandomState};
use std::time::Duration;

use crate::algorithm::{
    Algorithm, FixedWindow, LeakyBucket, LeakyBucketQueue, Penalty, Rounding, SlidingLog, SlidingWindow,
    SlidingWindowCounter, TokenBucket,
};
use crate::decision::{Decision, Receipt};
use crate::engine::CircuitBreaker;
use crate::error::StoreError;
use crate::limit::Limit;
use crate::limiter::Limiter;
use crate::store::{MemoryStore, Store};
use crate::time::{ManualClock, Timestamp};

/// The start of the clock, in µs: a midnight, at which windows begin.
pub(super) const START: u64 = 1_767_225_600_000_000;

/// A limiter on a memory store, and one on the checked store, of the same limits.
pub(super) struct SideBySide {
    clock: ManualClock,
    pub(super) limiters: [Limiter; 2],
    history: String,
}

impl SideBySide {
    pub(super) async fn new<S: Store>(new_store: &impl AsyncFn(ManualClock) -> S, limits: Vec<Limit>) -> Self {
        let clock = ManualClock::new(Timestamp::from_micros(START));
        let history = format!("limits: {limits:?}");
        let expected = limiter(limits.clone(), MemoryStore::new().clock(clock.clone()));
        let actual = limiter(limits, new_store(clock.clone()).await);
        Self { clock, limiters: [expected, actual], history }
    }

    /// Adds a step to the history that is reported with a difference.
    pub(super) fn note(&mut self, step: &str) {
        let _ = write!(self.history, "\n{step}");
    }

    /// Takes a step with both limiters, and returns the results.
    async fn step<T>(&mut self, step: &str, take: impl AsyncFn(&Limiter) -> Result<T, StoreError>) -> [T; 2] {
        self.note(step);
        let [expected, actual] = &self.limiters;
        let expected = take(expected).await.expect("the memory store succeeds");
        [expected, take(actual).await.unwrap_or_else(|error| panic!("{}: {error}", self.history))]
    }

    /// Compares the decisions of both limiters in a step, and returns their receipts.
    async fn decide(
        &mut self,
        step: &str,
        decide: impl AsyncFn(&Limiter) -> Result<Decision, StoreError>,
    ) -> [Receipt; 2] {
        let decisions = self.step(step, decide).await;
        let [expected, actual] =
            decisions.each_ref().map(|decision| (decision.verdict(), decision.at(), decision.outcomes()));
        assert!(expected == actual, "{}\nexpected {expected:?}\nactual {actual:?}", self.history);
        decisions.map(Decision::into_receipt)
    }

    pub(super) async fn acquire(&mut self, key: u64, cost: u64) -> [Receipt; 2] {
        self.decide(&format!("acquire {cost}"), async |limiter| limiter.acquire(key, cost).await).await
    }

    pub(super) async fn peek(&mut self, key: u64, cost: u64) {
        let _ = self.decide(&format!("peek {cost}"), async |limiter| limiter.peek(key, cost).await).await;
    }

    /// Compares what is left after a preview.
    async fn preview(&mut self, key: u64, cost: u64) {
        let explain = async |limiter: &Limiter| Ok(limiter.explain(key, cost).await);
        let [expected, actual] = self.step(&format!("preview {cost}, which charges nothing"), explain).await;
        assert!(expected.is_allowed() == actual.is_allowed(), "{}\nexpected {expected}\nactual {actual}", self.history);
        self.peek(key, 0).await;
    }

    async fn refund(&mut self, receipts: [Receipt; 2]) {
        self.note("refund");
        for (limiter, receipt) in self.limiters.iter().zip(receipts) {
            limiter.refund(receipt).await.unwrap_or_else(|error| panic!("{}: {error}", self.history));
        }
    }

    pub(super) fn set_clock(&mut self, micros: u64) {
        self.note(&format!("at {micros}"));
        self.clock.set(Timestamp::from_micros(micros));
    }
}

/// Creates a limiter that waits up to 30 s for its store.
pub(super) fn limiter(limits: Vec<Limit>, store: impl Store) -> Limiter {
    let builder = Limiter::builder(limits).store(store).deadline(Duration::from_secs(30));
    builder.circuit_breaker(CircuitBreaker::off()).build()
}

/// Compares random steps for one key, with a clock that sometimes steps back or never.
pub(super) async fn compare<S: Store>(
    new_store: &impl AsyncFn(ManualClock) -> S,
    limits: Vec<Limit>,
    steps_back: bool,
) {
    let mut pair = SideBySide::new(new_store, limits).await;
    let mut random = Random::new(START ^ pair.history.len() as u64);
    let (key, mut now) = (new_key(), START);
    let mut receipts: Vec<[Receipt; 2]> = Vec::new();
    for _ in 0..150 {
        match random.below(20) {
            0..10 => {
                let cost = random.below(5) + u64::from(random.below(10) == 0) * 5;
                receipts.push(pair.acquire(key, cost).await);
            }
            10..12 => pair.peek(key, random.below(12)).await,
            12..14 if !receipts.is_empty() => {
                let index = random.below(receipts.len() as u64) as usize;
                pair.refund(receipts.swap_remove(index)).await;
            }
            14 if random.below(4) == 0 => {
                pair.step("reset", async |limiter| limiter.reset(key).await).await;
            }
            15 if steps_back => {
                now -= random.below(15_000_000).min(now - START);
                pair.set_clock(now);
            }
            16 => pair.preview(key, random.below(12)).await,
            _ => {
                // Mostly short steps, some to the microsecond, and sometimes a period in which everything expires.
                let longest = [1, 1_000, 400_000, 2_000_000, 5_000_000, 60_000_000][random.below(6) as usize];
                now += random.below(longest);
                pair.set_clock(now);
            }
        }
    }
}

/// Pseudorandom numbers, the same in every run.
#[derive(Debug)]
pub(super) struct Random(DefaultHasher);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = DefaultHasher::new();
        random.write_u64(seed);
        Self(random)
    }

    /// Returns a number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0.write_u8(0);
        self.0.finish() % end
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
    let algorithms: [Algorithm; 9] = [
        FixedWindow::new(10, PERIOD).into(),
        SlidingLog::new(10, PERIOD).into(),
        SlidingWindow::new(10, PERIOD).buckets(5).into(),
        SlidingWindowCounter::new(10, PERIOD).into(),
        SlidingWindowCounter::new(10, PERIOD).rounding(Rounding::Down).into(),
        TokenBucket::new(10, 3, PERIOD).into(),
        TokenBucket::new(10, 3, PERIOD).at_intervals().into(),
        LeakyBucket::new(10, 3, PERIOD).into(),
        LeakyBucketQueue::new(10, 3, PERIOD).into(),
    ];
    // A name has at most 64 characters.
    algorithms.map(|algorithm| Limit::new(format!("{algorithm:.64}"), algorithm)).to_vec()
}

/// Requests of three limits, with different algorithms beside each other.
pub(super) fn combinations() -> Vec<Vec<Limit>> {
    let limits = algorithms();
    let mut combinations = Vec::new();
    for distance in 1..=2 {
        for first in 0..limits.len() {
            let limit = |offset: usize| limits[(first + offset) % limits.len()].clone();
            combinations.push([0, distance, 2 * distance].map(limit).to_vec());
        }
    }
    combinations
}

/// Soft limits, limits in shadow mode, and limits in quota mode.
pub(super) fn modes() -> Vec<Vec<Limit>> {
    let enforced = Limit::new("enforced", TokenBucket::new(5, 1, PERIOD));
    let other = Limit::new("other", FixedWindow::new(3, PERIOD)).quota_mode();
    let all = Limit::new("all", SlidingLog::new(30, PERIOD));
    let modes = |limit: Limit| {
        let soft = vec![limit.clone().soft(30)];
        let shadow = vec![limit.clone().shadow(), enforced.clone()];
        [soft, shadow, vec![limit.quota_mode(), other.clone(), all.clone()]]
    };
    algorithms().into_iter().flat_map(modes).collect()
}

/// Limits with penalties.
pub(super) fn penalties() -> Vec<Vec<Limit>> {
    let penalty = Penalty::after(3, PERIOD).locked_out_for(PERIOD).doubling_up_to(8 * PERIOD);
    let limits = algorithms().into_iter().map(|limit| limit.penalty(penalty));
    let beside = Limit::new("beside", FixedWindow::new(6, PERIOD));
    limits.flat_map(|limit| [vec![limit.clone()], vec![limit, beside.clone()]]).collect()
}
