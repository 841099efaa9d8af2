//! Buckets whose rate changes, and refunds to buckets and windows after any sequence of events.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tower_ratelimit::{
    Algorithm, Decision, LeakyBucket, LeakyBucketQueue, Limit, Limiter, MemoryStore, Permit, Receipt, Store,
    TokenBucket,
};

use support::model::{Charged, Model};
use support::patient::Patient;
use support::rule::{Rule, each};
use support::split_mix::Random;
use support::store_fixture::{StoreFixture, connect, on_both_stores, user_key, visit};

on_both_stores!(
    a_bucket_keeps_its_usage_when_its_rate_changes,
    a_smaller_bucket_refills_at_its_own_rate,
    a_raised_rate_shortens_a_wait_at_once,
    a_charge_at_an_old_rate_is_not_refunded_at_the_new_one,
    a_refund_by_a_slower_limit_postpones_no_reset,
    a_late_settlement_is_refunded,
    a_charge_followed_by_others_is_refunded,
    random_calls_agree_with_the_model,
);

const MICRO: Duration = Duration::from_micros(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn limiter(fixture: &StoreFixture, name: &str, algorithm: impl Into<Algorithm>) -> Limiter {
    on(fixture.store.clone(), name, algorithm.into())
}

fn on(store: Arc<dyn Store>, name: &str, algorithm: Algorithm) -> Limiter {
    Limiter::builder(Limit::new(name, algorithm)).store(store).patient().build()
}

async fn take(limiter: &Limiter, cost: u64) -> Decision {
    limiter.acquire("key", cost).await.expect("a decision")
}

async fn left(limiter: &Limiter) -> u64 {
    limiter.peek("key", 1).await.expect("a decision").outcomes()[0].remaining()
}

/// Returns a bucket with a capacity and a rate per minute.
type Bucket = fn(u32, u32) -> Algorithm;

fn buckets() -> [(&'static str, Bucket); 4] {
    [
        ("even", |capacity, amount| TokenBucket::new(capacity, amount, MINUTE).into()),
        ("at intervals", |capacity, amount| TokenBucket::new(capacity, amount, MINUTE).at_intervals().into()),
        ("meter", |capacity, amount| LeakyBucket::new(capacity, amount, MINUTE).into()),
        // One request proceeds, and the others wait.
        ("queue", |capacity, amount| LeakyBucketQueue::new(capacity - 1, amount, MINUTE).into()),
    ]
}

async fn a_bucket_keeps_its_usage_when_its_rate_changes(fixture: StoreFixture) {
    for (name, bucket) in buckets() {
        let [old, new] = [100, 200].map(|rate| limiter(&fixture, name, bucket(rate, rate)));
        assert_eq!(take(&old, 80).await.outcomes()[0].remaining(), 20, "{name}");
        assert_eq!(left(&new).await, 120, "{name}");
        fixture.clock.advance(Duration::from_secs(15));
        assert_eq!(left(&new).await, if name == "at intervals" { 120 } else { 170 }, "{name}");
        fixture.clock.advance(Duration::from_secs(45));
        assert_eq!(left(&new).await, 200, "{name}");
    }
}

async fn a_smaller_bucket_refills_at_its_own_rate(fixture: StoreFixture) {
    for (name, bucket) in buckets() {
        let [old, new] = [200, 100].map(|rate| limiter(&fixture, name, bucket(rate, rate)));
        assert!(take(&old, 150).await.is_allowed());
        // 51 tokens are missing, at 100 per minute.
        let wait = if name == "at intervals" { MINUTE } else { Duration::from_millis(30_600) };
        let denied = take(&new, 1).await;
        assert_eq!((denied.retry_after(), denied.outcomes()[0].remaining()), (Some(wait), 0), "{name}");
        fixture.clock.advance(wait - MICRO);
        assert_eq!(take(&new, 1).await.retry_after(), Some(MICRO), "{name}");
        fixture.clock.advance(MICRO);
        assert!(take(&new, 1).await.is_allowed(), "{name}");
    }
}

/// A bug of other systems: a denial outlasts a raised rate.
async fn a_raised_rate_shortens_a_wait_at_once(fixture: StoreFixture) {
    for (name, bucket) in buckets().into_iter().filter(|(name, _)| *name != "at intervals") {
        let [old, new] = [10, 1_000].map(|rate| limiter(&fixture, name, bucket(10, rate)));
        assert!(take(&old, 10).await.is_allowed());
        for _ in 0..2 {
            assert_eq!(take(&old, 1).await.retry_after(), Some(6 * SECOND), "{name}");
        }
        let wait = Duration::from_millis(60);
        assert_eq!(take(&new, 1).await.retry_after(), Some(wait), "{name}");
        fixture.clock.advance(wait);
        // The old rate has brought back a hundredth of a token.
        assert_eq!(left(&old).await, 0, "{name}");
        assert!(take(&new, 1).await.is_allowed(), "{name}");
    }
}

async fn a_charge_at_an_old_rate_is_not_refunded_at_the_new_one(fixture: StoreFixture) {
    for (name, bucket) in buckets().into_iter().filter(|(name, _)| *name != "queue") {
        let [fast, slow] = [6_000, 60].map(|rate| limiter(&fixture, name, bucket(6_000, rate)));
        let receipt = take(&fast, 1_000).await.into_receipt();
        fixture.clock.advance(MINUTE);
        // All of the thousand tokens are refunded.
        assert!(take(&slow, 500).await.is_allowed());
        fixture.clock.advance(SECOND);
        let before = left(&slow).await;
        slow.refund(receipt).await.expect("a refund");
        assert_eq!(left(&slow).await, before, "{name}");
    }
}

async fn a_refund_by_a_slower_limit_postpones_no_reset(fixture: StoreFixture) {
    for (name, bucket) in buckets().into_iter().filter(|(name, _)| matches!(*name, "even" | "meter")) {
        let [fast, slow] = [6_000, 60].map(|rate| limiter(&fixture, name, bucket(100, rate)));
        let receipt = take(&slow, 1).await.into_receipt();
        assert!(take(&fast, 99).await.is_allowed());
        fixture.clock.advance(Duration::from_millis(900));
        assert_eq!(left(&fast).await, 90, "{name}");
        slow.refund(receipt).await.expect("a refund");
        assert!(left(&fast).await >= 90, "{name}");
    }
}

/// Tokens of a language model are reserved, used for ten seconds, and settled while others have a large backlog.
async fn a_late_settlement_is_refunded(fixture: StoreFixture) {
    for (name, algorithm, left) in [
        ("second", Algorithm::from(TokenBucket::per_second(1_667).burst(100_000)), 27_837),
        ("minute", TokenBucket::per_minute(100_000).into(), 27_833),
        ("meter", LeakyBucket::per_minute(100_000).into(), 27_833),
    ] {
        let limit = || Limit::new(name, algorithm).by(user_key());
        let limits = |cost| fixture.builder([limit()]).cost(cost).permits().build();
        let debts = Router::new().route("/", get(async || "")).layer(limits(90_000));
        let clock = fixture.clock.clone();
        let settle = move |permit: Permit| async move {
            clock.advance(10 * SECOND);
            permit.settle(500).await.expect("a settlement");
        };
        let model = Router::new().route("/", get(settle)).layer(limits(4_000));
        assert!(!visit(&debts, "/", "ann").await.is_denied());
        fixture.clock.advance(SECOND);
        assert!(!visit(&model, "/", "ann").await.is_denied());
        // 90,000 and 500 tokens, less 11 seconds.
        fixture.wait_for_remaining(&limit(), "ann", left).await;
    }
}

/// Tokens that drain after a charge are those of earlier ones first.
async fn a_charge_followed_by_others_is_refunded(fixture: StoreFixture) {
    let limiter = limiter(&fixture, "limit", TokenBucket::per_second(10).burst(1_000));
    assert!(take(&limiter, 500).await.is_allowed());
    fixture.clock.advance(SECOND);
    let receipt = take(&limiter, 100).await.into_receipt();
    fixture.clock.advance(3 * SECOND);
    let other = take(&limiter, 1).await.into_receipt();
    fixture.clock.advance(5 * SECOND);
    let owed = 601 - 90;
    assert_eq!(left(&limiter).await, 1_000 - owed);
    limiter.refund(receipt).await.expect("a refund");
    assert_eq!(left(&limiter).await, 1_000 - owed + 100);
    limiter.refund(other).await.expect("a refund");
    assert_eq!(left(&limiter).await, 1_000 - owed + 101);
}

/// A client of one limit whose size changes, which tries to be refunded too much.
struct Run<'a> {
    fixture: &'a StoreFixture,
    random: Random,
    name: String,
    store: Arc<dyn Store>,
    limiter: Limiter,
    model: Model,
    receipts: Vec<(Receipt, Charged)>,
}

impl<'a> Run<'a> {
    fn new(fixture: &'a StoreFixture, seed: u64) -> Self {
        let mut random = Random(seed);
        let period = 10 * random.one_of(&[1, 3, 10, 1_000, 250_000, 5_000_000]);
        let rules: Vec<Rule> =
            each(2, period).into_iter().filter(|rule| !matches!(rule, Rule::Calendar { .. })).collect();
        let rule = resized(rules[seed as usize % rules.len()], &mut random);
        let (name, store) = (format!("limit {seed}"), fixture.store.clone());
        let limiter = on(store.clone(), &name, rule.algorithm());
        Self { fixture, random, name, store, limiter, model: Model::new(rule), receipts: Vec::new() }
    }

    fn now(&self) -> u64 {
        self.fixture.now()
    }

    async fn act(&mut self) {
        match self.random.below(24) {
            0 => self.resize().await,
            1 => {
                // An earlier charge may be taken for a later one.
                self.limiter.reset("key").await.expect("a reset");
                self.model = Model::new(self.model.rule);
                self.receipts.clear();
            }
            2 => self.restart().await,
            3..9 => self.refund().await,
            9..14 => {
                let unit = self.model.rule.unit();
                let wait = self.random.one_of(&[1, unit, 3 * unit, 10 * unit]) + 1;
                self.fixture.advance(Duration::from_micros(self.random.below(wait)));
            }
            _ => self.acquire().await,
        }
    }

    async fn acquire(&mut self) {
        let cost = 1 + self.random.below(self.model.rule.capacity());
        let decision = take(&self.limiter, cost).await;
        if decision.is_allowed() {
            assert!(cost <= self.model.remaining(self.now().into()), "{cost} more: {:?}", self.model);
            self.receipts.push((decision.into_receipt(), self.model.charge(self.now(), cost)));
        }
    }

    async fn refund(&mut self) {
        if self.receipts.is_empty() {
            return;
        }
        let which = self.random.below(self.receipts.len() as u64) as usize;
        let (receipt, charged) = self.receipts.remove(which);
        let before = left(&self.limiter).await;
        self.limiter.refund(receipt).await.expect("a refund");
        assert!(left(&self.limiter).await >= before, "a refund reduced the remaining tokens");
        self.model.refund(&charged, self.now(), self.model.charges[charged.index].1 as u64);
    }

    async fn resize(&mut self) {
        self.model.rule = resized(self.model.rule, &mut self.random);
        self.limiter = on(self.store.clone(), &self.name, self.model.rule.algorithm());
    }

    /// The memory store starts empty, and earlier charges are not refunded. Redis keeps its state.
    async fn restart(&mut self) {
        if let Some(server) = &self.fixture.server {
            self.store = Arc::new(connect(server).await.clock(self.fixture.clock.clone()));
            self.limiter = on(self.store.clone(), &self.name, self.model.rule.algorithm());
            return;
        }
        self.store = Arc::new(MemoryStore::new().clock(self.fixture.clock.clone()));
        self.limiter = on(self.store.clone(), &self.name, self.model.rule.algorithm());
        self.model = Model::new(self.model.rule);
        assert!(take(&self.limiter, 2).await.is_allowed());
        self.model.charge(self.now(), 2);
        for (receipt, _) in self.receipts.drain(..) {
            self.limiter.refund(receipt).await.expect_err("another store");
            assert_eq!(
                left(&self.limiter).await,
                self.model.rule.capacity() - 2,
                "a refund of a charge before a restart"
            );
        }
    }

    async fn check(&self, seed: u64) {
        let (left, now) = (left(&self.limiter).await, self.now());
        assert_eq!(left, self.model.remaining(now.into()), "{seed} at {now}: {:?}", self.model);
    }
}

/// Returns a limit of the same algorithm and period with another size.
fn resized(rule: Rule, random: &mut Random) -> Rule {
    let limit = 2 + random.below(12) as u32;
    match rule {
        Rule::FixedWindow { period, .. } => Rule::FixedWindow { limit, period },
        Rule::Calendar { dates, .. } => Rule::Calendar { limit, dates },
        Rule::SlidingLog { period, .. } => Rule::SlidingLog { limit, period },
        Rule::SlidingWindow { width, buckets, .. } => Rule::SlidingWindow { limit, width, buckets },
        Rule::Counter { period, rounding, weight, .. } => Rule::Counter { limit, period, rounding, weight },
        Rule::Bucket { kind, interval, .. } => {
            Rule::Bucket { kind, capacity: limit, amount: 1 + random.below(40) as u32, interval }
        }
    }
}

async fn random_calls_agree_with_the_model(fixture: StoreFixture) {
    let runs = if fixture.is_memory { 2_000 } else { 80 };
    for seed in 0..runs {
        let mut run = Run::new(&fixture, seed);
        for _ in 0..60 {
            run.act().await;
            run.check(seed).await;
        }
    }
}
