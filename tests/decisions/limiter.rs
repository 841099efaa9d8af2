//! Limiters without HTTP: decisions, waits, refunds and shared state.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use proptest::prelude::*;
use support::calls::{Calls, Now, Outcomes};
use support::event_log::EventLog;
use support::limits::acquire_costs;
use support::recording::Recording;
use support::rule::{Kind, Rule};
use support::time::MIDNIGHT;
use tokio::time::{Instant, advance, sleep};
use tower_ratelimit::{
    AcquireError, FixedWindow, LeakyBucketQueue, Limit, Limiter, LiveLimits, MemoryStore, Stats, Store, StoreErrorKind,
    Timestamp, TokenBucket, Verdict,
    store::{Answer, Charges, KeyHasher, Purpose, StoreFuture},
};

use crate::bounds::{Admitted, respects_bound};
use crate::rule::every_rule;
use crate::subject::Subject;

const TENTH: Duration = Duration::from_millis(100);

fn bucket(capacity: u32, amount: u32) -> Limiter {
    Limiter::new(Limit::new("bucket", TokenBucket::new(capacity, amount, TENTH)))
}

/// A queue with a slot each 100 ms, in which five requests wait.
fn queue() -> Limiter {
    Limiter::new(Limit::new("queue", LeakyBucketQueue::new(5, 1, TENTH)))
}

/// Polls a wait once, so that it takes its slot.
async fn begin<F: Future + Unpin>(future: &mut F) {
    assert!(tokio::time::timeout(Duration::ZERO, future).await.is_err(), "it had nothing to wait for");
}

#[tokio::test(start_paused = true)]
async fn a_wait_takes_as_long_as_announced() {
    let limiter = bucket(3, 1);
    let start = Instant::now();
    for _ in 0..3 {
        let _ = limiter.wait("key", 1).await.unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
    let reported = limiter.peek("key", 2).await.unwrap().retry_after().unwrap();
    assert!(limiter.wait("key", 2).await.unwrap().is_allowed());
    assert_eq!((start.elapsed(), reported), (2 * TENTH, 2 * TENTH));
}

/// Each decision about an operation that waits asks whether there is spare capacity then.
#[tokio::test(start_paused = true)]
async fn a_wait_for_an_elastic_limit_ends_later_if_the_spare_capacity_is_gone() {
    let is_spare = Arc::new(AtomicBool::new(true));
    let signal = is_spare.clone();
    let bucket = Limit::new("bucket", TokenBucket::new(2, 1, TENTH));
    let limiter = Limiter::new(bucket.elastic(50, move || signal.load(Ordering::Relaxed)));
    let _ = limiter.try_acquire("key", 3).await.unwrap();
    let start = Instant::now();
    let waiting = tokio::spawn(async move { limiter.wait("key", 1).await.map(drop) });
    sleep(TENTH / 2).await;
    is_spare.store(false, Ordering::Relaxed);
    waiting.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), 2 * TENTH);
}

#[tokio::test(start_paused = true)]
async fn a_queue_is_first_come_first_served() {
    let (limiter, start) = (queue(), Instant::now());
    let waiters = (0..6).map(async |_| {
        let _ = limiter.wait("key", 1).await.unwrap();
        start.elapsed()
    });
    assert_eq!(join_all(waiters).await, [0, 1, 2, 3, 4, 5].map(|place| TENTH * place));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_found_the_queue_full_enters_later() {
    let (limiter, start) = (queue(), Instant::now());
    for _ in 0..6 {
        assert!(limiter.allows("key", 1).await);
    }
    // A slot each 100 ms, after five others.
    let _ = limiter.wait("key", 1).await.unwrap();
    assert_eq!(start.elapsed(), 6 * TENTH);
}

#[tokio::test(start_paused = true)]
async fn the_last_in_a_queue_gives_its_slot_back_when_it_is_dropped() {
    let limiter = queue();
    let _ = limiter.wait("key", 1).await.unwrap();
    let mut last = Box::pin(limiter.wait("key", 1));
    begin(&mut last).await;
    assert_eq!(limiter.left("key").await, [4]);
    drop(last);
    assert_eq!(limiter.left("key").await, [5]);
    assert_eq!(limiter.acquire("key", 1).await.unwrap().delay(), TENTH);
}

#[tokio::test(start_paused = true)]
async fn leaving_the_middle_of_a_queue_keeps_other_delays() {
    let limiter = queue();
    let start = Instant::now();
    let _ = limiter.wait("key", 1).await.unwrap();
    let mut middle = Box::pin(limiter.wait("key", 1));
    let mut last = Box::pin(limiter.wait("key", 1));
    begin(&mut middle).await;
    begin(&mut last).await;
    drop(middle);
    assert_eq!(limiter.peek("key", 1).await.unwrap().delay(), 3 * TENTH);
    let _ = last.await.unwrap();
    assert_eq!(start.elapsed(), 2 * TENTH);
}

/// Only a wait that is dropped before its end is refunded.
#[tokio::test(start_paused = true)]
async fn a_wait_that_has_ended_refunds_nothing() {
    let limiter = queue();
    drop(limiter.wait("key", 1).await.unwrap());
    drop(limiter.wait("key", 1).await.unwrap());
    assert_eq!(limiter.peek("key", 1).await.unwrap().delay(), TENTH);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_would_be_too_long_fails_at_once_and_takes_nothing() {
    let (bucket, queue, start) = (bucket(2, 1), queue(), Instant::now());
    let _ = bucket.acquire("key", 2).await.unwrap();
    let _ = queue.acquire("key", 3).await.unwrap();
    let short = TENTH - Duration::from_millis(1);

    for (result, wait, text) in [
        (bucket.wait_at_most("key", 1, short).await, Some(TENTH), "retry after 100 ms"),
        (queue.wait_at_most("key", 1, 3 * short).await, Some(3 * TENTH), "retry after 300 ms"),
        (bucket.wait("key", 3).await, None, "the cost exceeds the capacity of a limit: lower the cost"),
    ] {
        let error = result.unwrap_err();
        assert!(matches!(error, AcquireError::Denied { retry_after, .. } if retry_after == wait), "{error:?}");
        assert_eq!(error.to_string(), format!("rate limit exceeded: {text}"));
    }
    assert_eq!(queue.left("key").await, [3], "a slot for nobody");
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!(bucket.wait_at_most("key", 1, TENTH).await.unwrap().is_allowed(), "just long enough");
}

/// Concurrent waits for the same token are admitted one by one.
#[tokio::test(start_paused = true)]
async fn concurrent_waits_never_exceed_the_limit() {
    let (limiter, start) = (bucket(2, 1), Instant::now());
    let waiters = (0..12).map(async |_| {
        assert!(limiter.wait("key", 1).await.unwrap().is_allowed());
        Admitted { at: start.elapsed().as_micros() as u64, cost: 1, delay: 0 }
    });
    let mut admitted = join_all(waiters).await;
    admitted.sort_by_key(|admitted| admitted.at);
    let rule = Rule::Bucket { kind: Kind::Tokens, capacity: 2, amount: 1, interval: 100_000 };
    respects_bound(rule, &admitted).unwrap();
    assert_eq!(admitted.last().unwrap().at, 1_000_000, "and no longer than they must");
}

/// The second wait counts towards the maximum.
#[tokio::test(start_paused = true)]
async fn repeated_waits_together_never_exceed_the_maximum() {
    let (limiter, start) = (bucket(1, 1), Instant::now());
    let _ = limiter.acquire("key", 1).await.unwrap();
    let mut patient = Box::pin(limiter.wait_at_most("key", 1, TENTH * 3 / 2));
    begin(&mut patient).await;
    // Another request takes the token first.
    advance(TENTH).await;
    assert!(limiter.allows("key", 1).await);
    let error = patient.await.unwrap_err();
    assert!(matches!(error, AcquireError::Denied { retry_after: Some(TENTH), .. }), "{error:?}");
    assert_eq!(start.elapsed(), TENTH, "at once when it was clear");
}

#[tokio::test]
async fn a_reset_clears_one_key_under_all_limits() {
    let limiter = Limiter::new([Limit::new("a", FixedWindow::per_day(3)), Limit::new("b", TokenBucket::per_day(2))]);
    for key in ["ann", "bob"] {
        let _ = limiter.acquire(key, 2).await.unwrap();
    }
    limiter.reset("ann").await.unwrap();
    assert_eq!(limiter.left("ann").await, [3, 2]);
    assert_eq!(limiter.left("bob").await, [1, 0]);
    limiter.reset("never seen").await.unwrap();
}

#[tokio::test]
async fn clones_and_limiters_on_one_store_share_limits_of_one_name() {
    let store = Arc::new(MemoryStore::new());
    let named =
        |name: &str| Limiter::builder(Limit::new(name, FixedWindow::per_day(10))).store(Arc::clone(&store)).build();
    let (one, same, other) = (named("mails"), named("mails"), named("letters"));
    let _ = one.acquire("ann", 4).await.unwrap();
    let _ = one.clone().acquire("ann", 3).await.unwrap();
    assert_eq!(same.left("ann").await, [3]);
    assert_eq!(other.left("ann").await, [10]);
    assert_eq!(named("mails").left("bob").await, [10]);

    let apart = Limiter::new(Limit::new("mails", FixedWindow::per_day(10)));
    assert_eq!(apart.left("ann").await, [10]);
    // Usage under one algorithm does not affect another.
    let bucket = Limiter::builder(Limit::new("mails", TokenBucket::per_day(10))).store(store).build();
    assert_eq!(bucket.left("ann").await, [10]);
}

#[tokio::test]
async fn each_limit_can_have_its_own_key_and_cost_all_or_nothing() {
    let limiter =
        Limiter::new([Limit::new("files", FixedWindow::per_day(3)), Limit::new("bytes", FixedWindow::per_day(100))]);
    let upload = async |user: &str, bytes: u64| limiter.acquire_charges(&[(&user, 1), (&7_u64, bytes)]).await.unwrap();
    let first_only = async || limiter.acquire_charges(&[(&"ann", 1), (&7_u64, 0)]).await.unwrap().remaining();
    assert_eq!(upload("ann", 60).await.remaining(), [2, 40]);
    assert_eq!(upload("bob", 30).await.remaining(), [2, 10], "another user of the same tenant");

    let denied = upload("ann", 11).await;
    let expected = (false, vec![true, false], vec![2, 10]);
    assert_eq!((denied.is_allowed(), denied.verdicts(), denied.remaining()), expected);

    let allowed = upload("ann", 10).await;
    limiter.refund(allowed.into_receipt()).await.unwrap();
    assert_eq!(first_only().await, [1, 10]);
    assert_eq!(first_only().await, [0, 10]);
}

#[test]
fn the_number_of_charges_must_match_the_limits() {
    let limiter = bucket(1, 1);
    // Costs that are left out would be 0.
    let answers = [limiter.acquire_charges(&[(&"ann", 1), (&"bob", 1)]), acquire_costs(&limiter, "ann", &[])];
    for (given, answer) in [2, 0].into_iter().zip(answers) {
        let error = answer.into_ready().expect("at once").expect_err("no decision");
        let text = format!("there are {given} charges for 1 limits: give one for each limit, with a cost of 0 where");
        assert!(error.kind() == StoreErrorKind::InvalidCall && error.to_string().starts_with(&text), "{error}");
    }
    assert_eq!(limiter.peek("ann", 1).now().remaining(), [1], "nothing was charged");
}

#[tokio::test]
async fn without_limits_everything_is_allowed() {
    let limiter = Limiter::new([]);
    assert!(limiter.allows("ann", u64::MAX).await);
    assert!(limiter.peek("ann", 1).await.unwrap().outcomes().is_empty());
    let _ = limiter.wait("ann", 1).await.unwrap();
    assert!(acquire_costs(&limiter, "ann", &[]).await.unwrap().into_receipt().is_empty());
    limiter.reset("ann").await.unwrap();
}

proptest! {
    /// A changed limit reads the state of the old one without a panic.
    #[test]
    fn limits_of_one_name_and_different_sizes_share_usage(
        one in every_rule(),
        others in prop::collection::vec(every_rule(), 1..4),
        acts in prop::collection::vec((0usize..4, 0u64..=1_100, 0u64..100_000_000), 1..30),
    ) {
        let subject = Subject::new(&[one]);
        let store = Arc::new(MemoryStore::new().max_keys(100).clock(subject.clock.clone()));
        let rules = [vec![one], others].concat();
        let limiter = |rule: &Rule| Limiter::builder(Limit::new("changed", rule.algorithm())).store(Arc::clone(&store)).build();
        let limiters: Vec<Limiter> = rules.iter().map(limiter).collect();
        let mut at = MIDNIGHT;
        for (which, thousandths, wait) in acts {
            let which = which % rules.len();
            at += wait;
            subject.set(at);
            let cost = rules[which].capacity() * thousandths / 1_000;
            let decision = limiters[which].acquire("key", cost).now();
            prop_assert!(decision.outcomes()[0].remaining() <= rules[which].capacity());
            if thousandths % 3 == 0 {
                limiters[which].refund(decision.into_receipt()).now();
            }
        }
    }
}

/// The unit type is the key of a limiter with one bucket.
#[tokio::test]
async fn the_unit_key_is_one_bucket_for_all() {
    let limiter = Limiter::new(Limit::new("one", FixedWindow::per_day(1)));
    assert_eq!([limiter.allows((), 1).await, limiter.allows((), 1).await], [true, false]);
    assert_eq!([limiter.allows(0_usize, 1).await, limiter.allows(0_u64, 1).await], [true, false]);
}

/// A receipt only refunds charges of its own limiter and store, even if both stores hash keys with the same secret. A
/// store that wraps another is the same store.
#[tokio::test]
async fn a_receipt_of_another_limiter_or_store_is_an_error() {
    let limits = |name| Limit::new(name, FixedWindow::per_day(10));
    let limiter = |name, store: Arc<dyn Store>| Limiter::builder(limits(name)).store(store).build();
    let live = |name, store: Arc<dyn Store>| Limiter::live_builder(&LiveLimits::new(limits(name))).store(store).build();
    let store = || Arc::new(MemoryStore::new().with_hasher(KeyHasher::with_secret([7; 16])));
    let shared = store();
    let limiters = [limiter("one", shared.clone()), limiter("two", shared.clone())];
    let stores = || [limiter("one", store()), limiter("one", store())];
    for [one, two] in [limiters, stores(), [live("one", store()), live("one", store())]] {
        let receipt = one.acquire("key", 5).await.unwrap().into_receipt();
        let _ = two.acquire("key", 5).await.unwrap();
        let error = two.refund(receipt).await.unwrap_err();
        assert_eq!(error.to_string(), "a receipt is of another limiter: refund it by the one that charged it");
        assert_eq!(two.left("key").await, [5]);
    }
    let wrapped = limiter("wrapped", Arc::new(Recording::new(shared.clone())));
    let receipt = wrapped.acquire("key", 5).await.unwrap().into_receipt();
    limiter("wrapped", shared).refund(receipt).await.unwrap();
    assert_eq!(wrapped.left("key").await, [10]);
}

/// It would be allowed without a charge, or denied without a report.
#[tokio::test]
async fn a_limit_that_a_store_does_not_answer_is_an_error() {
    /// Changes answered clones of the charges, and returns them in a future. `None` returns those in place.
    type Answering = fn(&mut Charges) -> Option<Charges>;
    #[derive(Clone, Copy, Debug)]
    struct Answers {
        answering: Answering,
        at_once: bool,
    }
    impl Store for Answers {
        fn hasher(&self) -> KeyHasher {
            KeyHasher::with_secret([0; 16])
        }

        fn decide(&self, charges: &mut Charges, _: Purpose, _: Duration) -> StoreFuture<Answer> {
            match (self.answering)(charges) {
                None => StoreFuture::ready(Ok(Answer::new(Timestamp::EPOCH))),
                Some(answered) => StoreFuture::pending(async { Ok(Answer::with_charges(Timestamp::EPOCH, answered)) }),
            }
        }

        fn decide_at_once(&self, charges: &mut Charges, _: Purpose) -> Option<Timestamp> {
            self.at_once.then(|| {
                let _ = (self.answering)(charges);
                Timestamp::EPOCH
            })
        }

        fn refund(&self, _: &Charges) -> StoreFuture<()> {
            StoreFuture::ready(Ok(()))
        }

        fn reset(&self, _: &Charges) -> StoreFuture<()> {
            StoreFuture::ready(Ok(()))
        }
    }
    fn allow(charges: &Charges, positions: &[usize]) -> Charges {
        let mut charges = charges.select(positions.iter().copied());
        charges.iter_mut().for_each(|outcome| outcome.answer(Verdict::NOW, 9, None, Duration::ZERO));
        charges
    }
    let all = r#"["one", "other"]"#;
    let wrong: [(Answering, &str); 9] = [
        (|_| None, all),
        (|charges| Some(charges.clone()), all),
        (|charges| Some(allow(charges, &[])), all),
        (|charges| Some(allow(charges, &[0])), all),
        (|charges| Some(allow(charges, &[0, 1, 0])), all),
        (|charges| Some(allow(charges, &[1, 0])), all),
        (|charges| Some(allow(charges, &[0, 0])), all),
        (
            |charges| {
                let mut answered = charges.clone();
                answered[0] = allow(charges, &[0])[0].clone();
                Some(answered)
            },
            r#"["other"]"#,
        ),
        (
            |charges| {
                charges[1] = allow(charges, &[1])[0].clone();
                None
            },
            r#"["one"]"#,
        ),
    ];
    let limits = || ["one", "other"].map(|name| Limit::new(name, FixedWindow::per_day(10)));
    for (number, (answers, unanswered)) in wrong.into_iter().enumerate() {
        // Those who answer clones can't answer at once. Recorders take another path.
        let in_place = [0, 8].contains(&number);
        for (at_once, stats) in
            [(false, None), (false, Some(Stats::new())), (in_place, None), (in_place, Some(Stats::new()))]
        {
            let events = EventLog::default();
            let mut builder = Limiter::builder(limits()).store(Answers { answering: answers, at_once });
            if let Some(stats) = stats {
                builder = builder.recorder(stats).observe(events.observer());
            }
            let (limiter, mut errors) = (builder.build(), Vec::new());
            // More than open a breaker.
            for _ in 0..10 {
                let error = limiter.acquire("key", 1).await.expect_err("no decision");
                assert_eq!(error.kind(), StoreErrorKind::Failed);
                let expected =
                    format!("the rate limit store could not decide: it did not answer the limits {unanswered}: ");
                assert!(error.to_string().starts_with(&expected), "{number}: {error}");
                errors.push(error.to_string());
            }
            let events = events.take();
            assert!(events.is_empty() || events == errors, "{events:?}");
            let explanation = limiter.explain("key", 1).await.to_string();
            assert!(!explanation.starts_with("allowed"), "{explanation}");
        }
    }
    let answers = Answers { answering: |charges| Some(allow(charges, &[0, 1])), at_once: false };
    assert!(Limiter::builder(limits()).store(answers).build().allows("key", 1).await);
}

/// A limit in shadow mode does not affect the verdict.
#[tokio::test]
async fn a_shadow_limit_alone_denies_nothing() {
    let limiter = Limiter::new(Limit::new("logins", FixedWindow::per_day(1)).shadow());
    for has_capacity in [true, false] {
        let decision = limiter.acquire("ann", 1).await.unwrap();
        assert_eq!((decision.verdict(), decision.verdicts()), (Verdict::NOW, vec![has_capacity]));
    }
}

#[test]
fn a_limiter_has_no_request_for_a_detail_of_metrics() {
    let limit = Limit::new("mails", FixedWindow::per_day(1)).metric_detail(|head| Some(head.path().to_owned()));
    let error = Limiter::builder([limit]).try_build().unwrap_err().to_string();
    assert!(error.starts_with("the limit \"mails\" takes its metric detail from a request"), "{error}");
}
