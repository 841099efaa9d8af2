//! The conformance suite, with every store, and with stores that have defects.

mod compare_and_swap;
mod map;
mod remote;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use support::redis_server::RedisServer;
use tower_ratelimit::store::{Charge, KeyHash, KeyHasher, LimitSpec, Refund, StoreFuture};
use tower_ratelimit::{Decision, MemoryStore, RedisConfig, Store, SystemClock, conformance};

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
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    PeeksCharge,
    ChargesOneByOne,
    /// Charges one by one as well, with a pause after each.
    StopsIfDropped,
    KeepsRefunds,
    KeepsResets,
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
            _ => self.store.decide(charges),
        }
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
    let wrong = |mistake| async move |clock| Wrong { store: Arc::new(MemoryStore::new().clock(clock)), mistake };
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
