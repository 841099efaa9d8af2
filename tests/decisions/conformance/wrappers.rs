//! Stores that wrap another one, and answer after they have awaited something.

use std::sync::Arc;
use std::time::Duration;

use support::calls::Calls;
use support::database::{Database, Fault};
use support::patient::{Patient, connected};
use support::redis_server::RedisServer;
use tower_ratelimit::store::{Answer, Charges, KeyHasher, Override, OverrideOperation, Purpose, StoreFuture};
use tower_ratelimit::{
    Decision, FixedWindow, Limit, Limiter, ManualClock, MemoryStore, Outcome, Penalty, RedisConfig, Store, StoreError,
    Timestamp, Verdict, conformance,
};

use super::failure;

/// A store that wraps another one, possibly with a mistake. It forwards only what is required, and overrides.
#[derive(Debug)]
struct Wrapper {
    inner: Arc<dyn Store>,
    mistake: Option<Mistake>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    /// Lets the wrapped store answer clones, and passes its answer on.
    PassesAnswerOn,
    /// Lets the wrapped store answer clones, and drops them.
    DropsClones,
    /// Has only the first limit decided.
    AnswersFirst,
    LeavesOutLast,
    RepeatsLast,
    ReversesCharges,
    /// Has nothing charged.
    PeeksOnly,
    /// Remembers denials, but answers no outcome.
    RemembersNothing,
    /// Asks again after it was answered.
    AsksTwice,
    /// Sets the answers without the marks of charges.
    LosesMarks,
}

/// A check of the suite.
#[derive(Clone, Copy)]
enum Check {
    Algorithms,
    SeveralLimits,
    Penalties,
}

const UNANSWERED: &str = "it did not answer the limits [";

/// Each mistake, with a check that fails because of it, and a part of its message.
const MISTAKES: [(Mistake, Check, &str); 10] = [
    (Mistake::PassesAnswerOn, Check::Algorithms, UNANSWERED),
    (Mistake::DropsClones, Check::Algorithms, UNANSWERED),
    (Mistake::AnswersFirst, Check::SeveralLimits, UNANSWERED),
    (Mistake::LeavesOutLast, Check::Algorithms, UNANSWERED),
    (Mistake::RepeatsLast, Check::Algorithms, UNANSWERED),
    (Mistake::ReversesCharges, Check::SeveralLimits, UNANSWERED),
    (Mistake::PeeksOnly, Check::Algorithms, "\nexpected"),
    (Mistake::RemembersNothing, Check::Algorithms, UNANSWERED),
    (Mistake::AsksTwice, Check::Penalties, "\nexpected"),
    (Mistake::LosesMarks, Check::Algorithms, "\nexpected"),
];

impl Wrapper {
    async fn run(
        inner: Arc<dyn Store>,
        mut charges: Charges,
        purpose: Purpose,
        mistake: Option<Mistake>,
    ) -> Result<Answer, StoreError> {
        tokio::task::yield_now().await;
        let Some(mistake) = mistake else {
            charges.iter_mut().for_each(answer_as_another_store);
            let at = inner.decide(&mut charges, purpose, Duration::MAX).await?.finish(&mut charges);
            return Ok(Answer::with_charges(at, charges));
        };
        let purpose = if mistake == Mistake::PeeksOnly { Purpose::Peek } else { purpose };
        let asked = charges.clone();
        let at = match mistake {
            Mistake::PassesAnswerOn => return inner.decide(&mut charges, purpose, Duration::MAX).await,
            Mistake::AnswersFirst => {
                let mut first = charges.select([0]);
                let at = inner.decide(&mut first, purpose, Duration::MAX).await?.finish(&mut first);
                charges[0] = first[0].clone();
                at
            }
            Mistake::AsksTwice => {
                inner.decide(&mut charges.clone(), purpose, Duration::MAX).await?;
                inner.decide(&mut charges, purpose, Duration::MAX).await?.finish(&mut charges)
            }
            _ => inner.decide(&mut charges, purpose, Duration::MAX).await?.finish(&mut charges),
        };
        match mistake {
            Mistake::DropsClones => return Ok(Answer::new(at)),
            Mistake::LeavesOutLast => charges = charges.select(0..charges.len() - 1),
            Mistake::RepeatsLast => charges = charges.select((0..charges.len()).chain([charges.len() - 1])),
            Mistake::ReversesCharges => charges.reverse(),
            Mistake::LosesMarks => {
                let answered = std::mem::replace(&mut charges, asked);
                for (outcome, known) in charges.iter_mut().zip(&*answered) {
                    outcome.answer(known.verdict(), known.remaining(), known.more_after(), known.reset_after());
                    outcome.set_enforced(known.is_enforced());
                    if known.uses_overage() {
                        outcome.set_uses_overage();
                    }
                }
            }
            _ => {}
        }
        Ok(Answer::with_charges(at, charges))
    }
}

/// Answers a charge as a store would that was asked before. The next one decides it anew.
fn answer_as_another_store(outcome: &mut Outcome) {
    if outcome.is_overridable() {
        outcome.apply_override(&FixedWindow::per_day(50).into());
    }
    outcome.answer(Verdict::NOW, 77, None, Duration::ZERO);
    outcome.set_new_lockout(1, Duration::from_secs(1));
}

impl Store for Wrapper {
    fn hasher(&self) -> KeyHasher {
        self.inner.hasher()
    }

    fn decide(&self, charges: &mut Charges, purpose: Purpose, _: Duration) -> StoreFuture<Answer> {
        // In a task of its own, so that a request is completed even if its caller gives up.
        let task = tokio::spawn(Self::run(self.inner.clone(), charges.clone(), purpose, self.mistake));
        StoreFuture::pending(async move { task.await.unwrap() })
    }

    fn refund(&self, charges: &Charges) -> StoreFuture<()> {
        self.inner.refund(charges)
    }

    fn reset(&self, charges: &Charges) -> StoreFuture<()> {
        self.inner.reset(charges)
    }

    fn decide_at_once(&self, _: &mut Charges, _: Purpose) -> Option<Timestamp> {
        (self.mistake == Some(Mistake::RemembersNothing)).then_some(Timestamp::EPOCH)
    }

    fn access_override(&self, charges: &Charges, operation: OverrideOperation) -> StoreFuture<Option<Override>> {
        self.inner.access_override(charges, operation)
    }
}

/// Creates the stores that are wrapped.
struct Stores(RedisServer);

impl Stores {
    const NAMES: [&str; 3] = ["memory", "Redis", "compare-and-swap"];

    async fn wrap(&self, name: &str, clock: ManualClock, mistake: Option<Mistake>) -> Wrapper {
        let inner: Arc<dyn Store> = match name {
            "memory" => Arc::new(MemoryStore::new().clock(clock)),
            "Redis" => Arc::new(connected(RedisConfig::node(self.0.url()).patient()).await.clock(clock)),
            _ => Arc::new(Database::store(clock, Fault::None)),
        };
        Wrapper { inner, mistake }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_mistake_of_a_wrapper_is_named_around_every_store() {
    let stores = &Stores(RedisServer::start());
    for (mistake, check, expected) in MISTAKES {
        for name in Stores::NAMES {
            // The others return answered clones, which can be passed on.
            if mistake == Mistake::PassesAnswerOn && name != "memory" {
                continue;
            }
            let new_store = async move |clock| stores.wrap(name, clock, Some(mistake)).await;
            let message = match check {
                Check::Algorithms => failure(conformance::check_algorithms(&new_store)).await,
                Check::SeveralLimits => failure(conformance::check_several_limits(&new_store)).await,
                Check::Penalties => failure(conformance::check_penalties(&new_store)).await,
            };
            let message = message.unwrap_or_default();
            assert!(message.contains(expected), "{mistake:?} around {name}: {message}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_wrapper_that_forwards_only_what_is_required_conforms() {
    let stores = &Stores(RedisServer::start());
    for name in Stores::NAMES {
        let new_store = async move |clock| stores.wrap(name, clock, None).await;
        if name == "Redis" {
            // The others take longer.
            conformance::check_penalties(&new_store).await;
            conformance::check_overrides(&new_store).await;
            conformance::check_concurrency(&new_store).await;
            conformance::check_cancellation(&new_store).await;
            conformance::check_remembered_denials(&new_store).await;
        } else {
            conformance::check_all(new_store).await;
        }
    }
}

/// A store that wraps another one, and hashes keys by itself.
#[derive(Debug)]
struct OwnHasher(Wrapper);

impl Store for OwnHasher {
    fn hasher(&self) -> KeyHasher {
        KeyHasher::with_secret([7; 16])
    }

    fn decide(&self, charges: &mut Charges, purpose: Purpose, longest_wait: Duration) -> StoreFuture<Answer> {
        self.0.decide(charges, purpose, longest_wait)
    }

    fn refund(&self, charges: &Charges) -> StoreFuture<()> {
        self.0.refund(charges)
    }

    fn reset(&self, charges: &Charges) -> StoreFuture<()> {
        self.0.reset(charges)
    }

    fn access_override(&self, charges: &Charges, operation: OverrideOperation) -> StoreFuture<Option<Override>> {
        self.0.access_override(charges, operation)
    }
}

#[tokio::test]
async fn a_wrapper_with_a_hasher_of_its_own_keeps_limits_apart() {
    let stores = Stores(RedisServer::start());
    for name in Stores::NAMES {
        let store = OwnHasher(stores.wrap(name, ManualClock::default(), None).await);
        let penalty = Penalty::after(2, Duration::from_secs(60));
        let limits = [
            Limit::new("two", FixedWindow::per_day(2)).overridable().penalty(penalty),
            Limit::new("nine", FixedWindow::per_day(9)),
        ];
        let limiter = Limiter::builder(limits).store(store).patient().build();
        let acquire = async || limiter.acquire("ann", 1).await.unwrap();
        let receipt = acquire().await.into_receipt();
        let _ = acquire().await;
        assert!(!acquire().await.is_allowed(), "{name}");
        limiter.refund(receipt).await.unwrap();
        let left = |decision: Decision| [0, 1].map(|limit| decision.outcomes()[limit].remaining());
        assert_eq!(left(limiter.peek("ann", 0).await.unwrap()), [1, 8], "{name}");
        let two = limiter.limit("two").unwrap();
        two.set_override("ann", FixedWindow::per_day(5), None).await.unwrap();
        assert_eq!(left(acquire().await), [3, 7], "{name}");
        limiter.reset("ann").await.unwrap();
        assert_eq!(left(limiter.peek("ann", 0).await.unwrap()), [5, 9], "{name}");
    }
}

#[tokio::test]
async fn a_wrapper_shares_the_keys_of_the_store_that_it_wraps() {
    let stores = Stores(RedisServer::start());
    for name in Stores::NAMES {
        let wrapper = stores.wrap(name, ManualClock::default(), None).await;
        let inner = wrapper.inner.clone();
        let limits = || [Limit::new("two", FixedWindow::per_day(2))];
        let wrapped = Limiter::builder(limits()).store(wrapper).patient().build();
        let direct = Limiter::builder(limits()).store(inner).patient().build();
        for (limiter, is_allowed) in [(&wrapped, true), (&direct, true), (&wrapped, false), (&direct, false)] {
            assert_eq!(limiter.allows("ann", 1).await, is_allowed, "{name}");
        }
    }
}
