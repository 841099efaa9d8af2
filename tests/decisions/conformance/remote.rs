//! Stores that use only public items, as those of other crates do.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tower_ratelimit::store::{Answer, Charges, KeyHasher, Outcome, Override, OverrideOperation, Purpose, StoreFuture};
use tower_ratelimit::{
    Event, FixedWindow, Limit, Limiter, MemoryStore, Penalty, Store, StoreError, Timestamp, TokenBucket, Verdict,
    conformance,
};

#[derive(Debug)]
struct Remote(Arc<MemoryStore>);

impl Remote {
    /// Decides in the background, so that the request completes even if its caller gives up.
    async fn run(store: Arc<MemoryStore>, asked: Charges, purpose: Purpose) -> Result<Answer, StoreError> {
        tokio::task::yield_now().await;
        let mut charges = asked.clone();
        for position in (0..charges.len()).filter(|position| asked[*position].is_overridable()) {
            if let Some(size) = store.access_override(&asked.select([position]), OverrideOperation::Get).await? {
                charges[position].apply_override(&size.algorithm);
            }
        }
        let mut answered = charges.clone();
        let at = store.decide(&mut answered, purpose, Duration::MAX).await?.finish(&mut answered);
        // Creates the answers from the public parts of others.
        for (outcome, known) in charges.iter_mut().zip(&*answered) {
            outcome.answer(known.verdict(), known.remaining(), known.more_after(), known.reset_after());
            outcome.set_enforced(known.is_enforced());
            outcome.set_mark(known.mark());
            if known.uses_overage() {
                outcome.set_uses_overage();
            }
            if known.is_locked_out() {
                outcome.set_locked_out();
            }
        }
        Ok(Answer::with_charges(at, charges))
    }
}

impl Store for Remote {
    fn hasher(&self) -> KeyHasher {
        self.0.hasher()
    }

    fn decide(&self, charges: &mut Charges, purpose: Purpose, _: Duration) -> StoreFuture<Answer> {
        let task = tokio::spawn(Self::run(self.0.clone(), charges.clone(), purpose));
        StoreFuture::pending(async move { task.await.unwrap() })
    }

    fn refund(&self, charges: &Charges) -> StoreFuture<()> {
        let (store, charges) = (self.0.clone(), charges.clone());
        StoreFuture::pending(async move {
            tokio::task::yield_now().await;
            store.refund(&charges).await
        })
    }

    fn reset(&self, charges: &Charges) -> StoreFuture<()> {
        self.0.reset(charges)
    }

    fn access_override(&self, charges: &Charges, operation: OverrideOperation) -> StoreFuture<Option<Override>> {
        self.0.access_override(charges, operation)
    }
}

#[tokio::test]
async fn a_store_of_another_crate_reports_the_sizes_of_overrides() {
    let limit = Limit::new("mails", TokenBucket::per_day(20)).overridable();
    let limiter = Limiter::builder([limit]).store(Remote(Arc::new(MemoryStore::new()))).build();
    limiter.limit("mails").unwrap().set_override("ann", TokenBucket::per_day(50), None).await.unwrap();
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
struct LocksOut(MemoryStore, Option<Duration>);

impl Store for LocksOut {
    fn hasher(&self) -> KeyHasher {
        self.0.hasher()
    }

    fn decide(&self, charges: &mut Charges, _: Purpose, _: Duration) -> StoreFuture<Answer> {
        for outcome in charges.iter_mut() {
            outcome.answer(Verdict::Deny { retry_after: self.1 }, 0, None, LOCKOUT);
            outcome.set_new_lockout(2, LOCKOUT);
        }
        StoreFuture::ready(Ok(Answer::new(Timestamp::EPOCH)))
    }

    fn refund(&self, charges: &Charges) -> StoreFuture<()> {
        self.0.refund(charges)
    }

    fn reset(&self, charges: &Charges) -> StoreFuture<()> {
        self.0.reset(charges)
    }
}

const LOCKOUT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_store_of_another_crate_denies_by_a_lockout() {
    for wait in [Some(LOCKOUT), None] {
        let limit = Limit::new("mails", FixedWindow::per_day(20)).penalty(Penalty::after(5, LOCKOUT));
        let limiter = Limiter::builder([limit]).store(LocksOut(MemoryStore::new(), wait)).build();
        let decision = limiter.acquire("ann@example.org", 1).await.unwrap();
        assert!(!decision.is_allowed() && decision.is_locked_out());
        assert_eq!(decision.retry_after(), wait);
    }
}

#[tokio::test]
async fn a_mark_of_a_wrapping_store_does_not_change_what_is_reported() {
    let limiter = Limiter::new(Limit::new("limit", TokenBucket::per_minute(10)));
    let decision = limiter.acquire("key", 3).await.unwrap();
    let outcome = decision.outcomes()[0].clone();
    let mut marked = outcome.clone();
    marked.set_mark([u64::MAX; 3]);
    let reported = |outcome: &Outcome| (outcome.remaining(), outcome.more_after(), outcome.reset_after());
    assert_eq!(reported(&marked), reported(&outcome));
    assert_eq!(marked.mark(), [u64::MAX; 3]);
}

#[tokio::test]
async fn a_lockout_that_a_store_of_another_crate_begins_is_reported() {
    let lockouts = Arc::new(Mutex::new(Vec::new()));
    let reported = lockouts.clone();
    let limiter = Limiter::builder(Limit::new("mails", FixedWindow::per_day(20)))
        .store(LocksOut(MemoryStore::new(), Some(LOCKOUT)))
        .observe(move |event| {
            if let Event::PenaltyBegan { limit, level, span, .. } = event {
                reported.lock().unwrap().push(((*limit).to_owned(), *level, *span));
            }
        })
        .build();
    let decision = limiter.acquire("ann@example.org", 1).await.unwrap();
    assert!(decision.is_locked_out());
    assert_eq!(*lockouts.lock().unwrap(), [("mails".to_owned(), 2, LOCKOUT)]);
}
