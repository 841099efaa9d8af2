//! Stores that use only public items, as those of other crates do.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tower_ratelimit::store::{Charge, ChargeMark, KeyHash, KeyHasher, LimitSpec, OverrideStore, Refund, StoreFuture};
use tower_ratelimit::{
    Decision, Event, FixedWindow, Limit, Limiter, MemoryStore, Outcome, Store, Timestamp, TokenBucket, Verdict,
    conformance,
};

#[derive(Debug)]
struct Remote(Arc<MemoryStore>);

type Create = fn(Timestamp, Vec<Outcome>) -> Decision;

type Parts = Vec<(Arc<LimitSpec>, KeyHash, u64)>;

impl Remote {
    /// Runs an operation on the charges in the background, so that it completes even if its caller gives up.
    fn run<F>(&self, charges: &[Charge<'_>], operation: F, create: Create) -> StoreFuture<Decision>
    where
        F: Fn(&MemoryStore, &[Charge<'_>]) -> StoreFuture<Decision> + Send + 'static,
    {
        let mut parts: Parts = charges.iter().map(|charge| (charge.spec.clone(), charge.key, charge.cost)).collect();
        let store = self.0.clone();
        let task = tokio::spawn(async move {
            tokio::task::yield_now().await;
            let mut resized = Vec::new();
            for (spec, key, _) in &mut parts {
                if let Some(size) = OverrideStore::get(&*store, spec, *key).await?.filter(|_| spec.is_overridable()) {
                    *spec = Arc::new(spec.overridden(&size.algorithm).unwrap());
                    resized.push(spec.clone());
                }
            }
            let charges: Vec<_> = parts.iter().map(|(spec, key, cost)| Charge::new(spec, *key, *cost)).collect();
            Ok(rebuild(&charges, &operation(&store, &charges).await?, create).with_resized(&resized))
        });
        StoreFuture::pending(async move { task.await.unwrap() })
    }
}

/// Creates a decision from the public parts of another one.
fn rebuild(charges: &[Charge<'_>], decision: &Decision, create: Create) -> Decision {
    let outcomes = charges.iter().zip(decision.outcomes()).map(|(charge, known)| {
        let (more_after, reset_after) = (known.more_after(), known.reset_after());
        let mut outcome = Outcome::new(charge, known.verdict(), known.remaining(), more_after, reset_after)
            .with_mark(known.mark())
            .with_enforced(known.is_enforced());
        if known.uses_overage() {
            outcome = outcome.with_overage();
        }
        if known.is_penalty() {
            outcome = outcome.with_penalty();
        }
        outcome
    });
    create(decision.at(), outcomes.collect())
}

impl Store for Remote {
    fn hasher(&self) -> KeyHasher {
        self.0.hasher()
    }

    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.run(charges, MemoryStore::decide, Decision::new)
    }

    fn peek(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.run(charges, MemoryStore::peek, Decision::peeked)
    }

    fn refund(&self, refunds: &[Refund<'_>]) -> StoreFuture<()> {
        let parts = refunds.iter().map(|refund| (refund.spec.clone(), refund.key, refund.cost, refund.mark));
        let (store, parts) = (self.0.clone(), parts.collect::<Vec<_>>());
        StoreFuture::pending(async move {
            tokio::task::yield_now().await;
            let refunds = parts.iter().map(|(spec, key, cost, mark)| Refund::new(spec, *key, *cost, *mark));
            store.refund(&refunds.collect::<Vec<_>>()).await
        })
    }

    fn reset(&self, keys: &[(&Arc<LimitSpec>, KeyHash)]) -> StoreFuture<()> {
        self.0.reset(keys)
    }

    fn overrides(&self) -> Option<&dyn OverrideStore> {
        Some(&*self.0)
    }
}

#[tokio::test]
async fn a_store_of_another_crate_reports_the_sizes_of_overrides() {
    let limit = Limit::new("mails", TokenBucket::per_day(20)).overridable();
    let limiter = Limiter::builder([limit]).store(Remote(Arc::new(MemoryStore::new()))).build();
    limiter.overrides("mails").unwrap().set("ann", TokenBucket::per_day(50), None).await.unwrap();
    let capacity = async || limiter.explain("ann", 1).await.limit("mails").unwrap().applied().unwrap().capacity;
    assert_eq!(capacity().await, 50);

    let decision = limiter.acquire("ann", 40).await.unwrap();
    assert_eq!(decision.outcomes()[0].remaining(), 10);
    limiter.refund(decision.into_receipt()).await.unwrap();
    assert_eq!(
        limiter.peek("ann", 0).await.unwrap().outcomes()[0].remaining(),
        50,
        "the refund is of the larger limit"
    );
}

#[tokio::test]
async fn a_store_of_another_crate_whose_futures_wait_conforms() {
    conformance::check_all(async |clock| Remote(Arc::new(MemoryStore::new().clock(clock)))).await;
}

/// A store that locks every key out.
#[derive(Debug)]
struct LocksOut(MemoryStore);

impl Store for LocksOut {
    fn hasher(&self) -> KeyHasher {
        self.0.hasher()
    }

    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let denied = Verdict::Deny { retry_after: Some(LOCKOUT) };
        let outcome = |charge: &Charge<'_>| Outcome::new(charge, denied, 0, None, LOCKOUT).with_new_lockout(2, LOCKOUT);
        StoreFuture::ready(Ok(Decision::new(Timestamp::EPOCH, charges.iter().map(outcome))))
    }

    fn peek(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.decide(charges)
    }

    fn refund(&self, refunds: &[Refund<'_>]) -> StoreFuture<()> {
        self.0.refund(refunds)
    }

    fn reset(&self, keys: &[(&Arc<LimitSpec>, KeyHash)]) -> StoreFuture<()> {
        self.0.reset(keys)
    }
}

const LOCKOUT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_mark_of_a_wrapping_store_does_not_change_what_is_reported() {
    let limiter = Limiter::new([Limit::new("limit", TokenBucket::per_minute(10))]);
    let decision = limiter.acquire("key", 3).await.unwrap();
    let outcome = decision.outcomes()[0].clone();
    let marked = outcome.clone().with_mark(ChargeMark::from_bytes([0xff; 24]));
    let reported = |outcome: &Outcome| (outcome.remaining(), outcome.more_after(), outcome.reset_after());
    assert_eq!(reported(&marked), reported(&outcome));
    assert_eq!(marked.mark().to_bytes(), [0xff; 24]);
}

#[tokio::test]
async fn a_lockout_that_a_store_of_another_crate_begins_is_reported() {
    let lockouts = Arc::new(Mutex::new(Vec::new()));
    let reported = lockouts.clone();
    let limiter = Limiter::builder([Limit::new("mails", FixedWindow::per_day(20))])
        .store(LocksOut(MemoryStore::new()))
        .observe(move |event| {
            if let Event::PenaltyBegan { limit, level, span, .. } = event {
                reported.lock().unwrap().push(((*limit).to_owned(), *level, *span));
            }
        })
        .build();
    let decision = limiter.acquire("ann@example.org", 1).await.unwrap();
    assert!(decision.is_penalty());
    assert_eq!(*lockouts.lock().unwrap(), [("mails".to_owned(), 2, LOCKOUT)]);
}
