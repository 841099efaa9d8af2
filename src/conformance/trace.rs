//! Runs random steps on the checked store and on a memory store, and compares the decisions.

use std::fmt::Write;
use std::time::Duration;

use super::random::{Random, new_key};
use crate::decision::{Decision, Receipt};
use crate::limit::Limit;
use crate::limiter::Limiter;
use crate::resilience::CircuitBreaker;
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
