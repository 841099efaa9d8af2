//! The conformance suite, with every store, and with stores that have defects.

mod compare_and_swap;
mod map;
mod remote;

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use support::redis_server::RedisServer;
use tower_ratelimit::store::{Charge, KeyHash, KeyHasher, LimitSpec, Refund, StoreFuture};
use tower_ratelimit::{
    Decision, ManualClock, MemoryStore, Outcome, RedisConfig, Store, SystemClock, Verdict, conformance,
};

use self::map::{Fault, Map};

#[tokio::test]
async fn the_memory_store_conforms() {
    conformance::check_all(async |clock| MemoryStore::new().clock(clock)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_redis_store_conforms() {
    let server = RedisServer::start();
    let url = server.url().to_owned();
    let connect = async |clock| RedisConfig::node(&url).connect().await.unwrap().clock(clock);
    conformance::check_all(connect).await;
}

/// A memory store with one defect.
#[derive(Debug)]
struct Wrong {
    store: Arc<MemoryStore>,
    mistake: Mistake,
    /// The limits, keys and costs that were denied.
    denied: Mutex<Vec<(String, KeyHash, u64)>>,
}

impl Wrong {
    fn new(clock: ManualClock, mistake: Mistake) -> Self {
        Self { store: Arc::new(MemoryStore::new().clock(clock)), mistake, denied: Mutex::default() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    PeeksCharge,
    PreviewsCharge,
    ChargesOneByOne,
    /// Charges one by one as well, with a pause after each.
    StopsIfDropped,
    KeepsRefunds,
    KeepsResets,
    RemembersOtherLimits,
    RemembersOtherKeys,
    RemembersOtherCosts,
    SeparatesRates,
}

impl Store for Wrong {
    fn hasher(&self) -> KeyHasher {
        self.store.hasher()
    }

    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let combine =
            |decided: &[Decision]| Decision::new(decided[0].at(), decided.iter().flat_map(Decision::outcomes).cloned());
        match self.mistake {
            Mistake::ChargesOneByOne => {
                let decided = charges.iter().map(|charge| self.store.decide(&[*charge]).into_ready().unwrap().unwrap());
                StoreFuture::ready(Ok(combine(&decided.collect::<Vec<_>>())))
            }
            Mistake::StopsIfDropped => {
                let charges: Vec<(Arc<LimitSpec>, KeyHash, u64)> =
                    charges.iter().map(|charge| (charge.spec.clone(), charge.key, charge.cost)).collect();
                let store = self.store.clone();
                StoreFuture::pending(async move {
                    let mut decided = Vec::new();
                    for (spec, key, cost) in &charges {
                        decided.push(store.decide(&[Charge::new(spec, *key, *cost)]).await?);
                        tokio::task::yield_now().await;
                    }
                    Ok(combine(&decided))
                })
            }
            Mistake::RemembersOtherLimits | Mistake::RemembersOtherKeys | Mistake::RemembersOtherCosts => {
                let decision = self.store.decide(charges).into_ready().unwrap().unwrap();
                let outcomes = charges.iter().zip(decision.outcomes());
                let denied = outcomes.filter(|(_, outcome)| matches!(outcome.verdict(), Verdict::Deny { .. }));
                let denied = denied.map(|(charge, _)| (charge.spec.name().to_owned(), charge.key, charge.cost));
                self.denied.lock().unwrap().extend(denied);
                StoreFuture::ready(Ok(decision))
            }
            Mistake::SeparatesRates => {
                let key = |charge: &Charge<'_>| {
                    let rate = format!("{:?} {:?}", charge.key, charge.spec.algorithm());
                    self.hasher().hash(rate.as_bytes())
                };
                let charges = charges.iter().map(|charge| Charge::new(charge.spec, key(charge), charge.cost));
                self.store.decide(&charges.collect::<Vec<_>>())
            }
            _ => self.store.decide(charges),
        }
    }

    fn remembered(&self, charges: &[Charge<'_>]) -> Option<Decision> {
        let denied = self.denied.lock().unwrap();
        let is_denied = |charge: &Charge<'_>| {
            denied.iter().any(|(limit, key, cost)| {
                (limit == charge.spec.name() || self.mistake == Mistake::RemembersOtherLimits)
                    && (*key == charge.key || self.mistake == Mistake::RemembersOtherKeys)
                    && (*cost == charge.cost || self.mistake == Mistake::RemembersOtherCosts)
            })
        };
        let denial = Verdict::Deny { retry_after: None };
        let outcomes = charges.iter().map(|charge| Outcome::new(charge, denial, 0, None, Duration::ZERO));
        let at = self.store.peek(charges).into_ready().unwrap().unwrap().at();
        charges.iter().any(is_denied).then(|| Decision::new(at, outcomes))
    }

    fn preview(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        if self.mistake == Mistake::PreviewsCharge { self.store.decide(charges) } else { self.store.preview(charges) }
    }

    fn peek(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        if self.mistake == Mistake::PeeksCharge { self.store.decide(charges) } else { self.store.peek(charges) }
    }

    fn refund(&self, refunds: &[Refund<'_>]) -> StoreFuture<()> {
        if self.mistake == Mistake::KeepsRefunds { StoreFuture::ready(Ok(())) } else { self.store.refund(refunds) }
    }

    fn reset(&self, keys: &[(&Arc<LimitSpec>, KeyHash)]) -> StoreFuture<()> {
        if self.mistake == Mistake::KeepsResets { StoreFuture::ready(Ok(())) } else { self.store.reset(keys) }
    }
}

/// Returns the message with which a check fails, or `None` if it succeeds.
async fn failure(check: impl Future<Output = ()>) -> Option<String> {
    let panic = AssertUnwindSafe(check).catch_unwind().await.err()?;
    let message = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    Some(message.unwrap_or_else(|| *panic.downcast::<String>().unwrap()))
}

async fn fails(check: impl Future<Output = ()>) -> bool {
    failure(check).await.is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_conformance_check_fails_for_a_store_with_that_defect() {
    let wrong = |mistake| async move |clock| Wrong::new(clock, mistake);
    for mistake in [Mistake::PeeksCharge, Mistake::KeepsRefunds, Mistake::KeepsResets] {
        assert!(fails(conformance::check_algorithms(&wrong(mistake))).await, "{mistake:?}");
    }
    let one_by_one = wrong(Mistake::ChargesOneByOne);
    assert!(!fails(conformance::check_algorithms(&one_by_one)).await);
    assert!(fails(conformance::check_several_limits(&one_by_one)).await);
    assert!(fails(conformance::check_concurrency(&one_by_one)).await);

    assert!(fails(conformance::check_cancellation(&wrong(Mistake::StopsIfDropped))).await);

    let map = |fault| async move |clock| Map::store(clock, fault);
    assert!(fails(conformance::check_algorithms(&map(Fault::Forgets))).await);
    assert!(fails(conformance::check_algorithms(&map(Fault::Stands))).await);
    assert!(fails(conformance::check_overrides(&map(Fault::Forgets))).await);
    assert!(fails(conformance::check_penalties(&map(Fault::Forgets))).await);
    assert!(fails(conformance::check_modes(&map(Fault::Forgets))).await);
}

#[tokio::test]
async fn a_preview_that_charges_is_named() {
    let previews_charge = async |clock| Wrong::new(clock, Mistake::PreviewsCharge);
    let message = failure(conformance::check_algorithms(&previews_charge)).await.unwrap();
    assert!(message.contains(", which charges nothing\npeek 0\nexpected"), "{message}");
}

#[tokio::test]
async fn a_remembered_denial_of_another_request_is_named() {
    for (mistake, what) in [
        (Mistake::RemembersOtherLimits, "another limit"),
        (Mistake::RemembersOtherKeys, "another key"),
        (Mistake::RemembersOtherCosts, "a smaller cost"),
    ] {
        let new_store = async |clock| Wrong::new(clock, mistake);
        let message = failure(conformance::check_remembered_denials(&new_store)).await.unwrap();
        assert!(message.contains(&format!("a denial is remembered for {what}")), "{mistake:?}: {message}");
    }
}

#[tokio::test]
async fn two_rates_that_admit_too_much_are_named() {
    let separates_rates = async |clock| Wrong::new(clock, Mistake::SeparatesRates);
    let message = failure(conformance::check_rates(&separates_rates)).await.unwrap();
    assert!(message.contains("requests in turn instead of 100..=160"), "{message}");
}

/// The clock of the map is Tokio's, which does not wait while it is paused.
#[tokio::test(start_paused = true)]
async fn each_fault_of_a_database_is_named() {
    let check = |fault| conformance::check_compare_and_swap(Arc::new(Map::new(SystemClock::new(), fault)));
    check(Fault::None).await;
    for (fault, expected) in [
        (Fault::IgnoresVersions, "a key without a value has no version to compare with"),
        (Fault::Forgets, "`get` returns a value that was set"),
        (Fault::ReusesVersions, "a value that is set again after its removal has another version"),
        (Fault::CutsValues, "`get` returns the bytes that were set"),
        (Fault::GetsExpired, "`get` returns `None` for a value that has expired"),
        (Fault::GetsAllExpired, "`get_all` returns `None` for a value that has expired"),
        (Fault::ComparesExpired, "a key whose value has expired is set if none is expected"),
        (Fault::GetIsTorn, "`get` and `get_all` read a value with its own version"),
        (Fault::GetAllIsTorn, "`get` and `get_all` read a value with its own version"),
        (Fault::Stands, "`now` advances"),
        (Fault::CountsMillis, "`now` is the time in µs since 1970"),
        (Fault::ClockGoesBack, "`now` does not go back"),
    ] {
        let message = failure(check(fault)).await.unwrap_or_default();
        assert!(message.contains(expected), "{fault:?}: {message}");
    }
}
