//! The conformance suite, with every store, and with stores that have defects.

mod compare_and_swap;
mod remote;
mod side_by_side;
mod users;
mod wrappers;

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use support::database::{Database, Fault};
use support::patient::Patient;
use support::redis_server::RedisServer;
use tower_ratelimit::store::{Answer, Charges, KeyHasher, Outcome, Purpose, StoreFuture};
use tower_ratelimit::{ManualClock, MemoryStore, RedisConfig, Store, SystemClock, Timestamp, Verdict, conformance};

#[tokio::test]
async fn the_memory_store_conforms() {
    conformance::check_all(async |clock| MemoryStore::new().clock(clock)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_redis_store_conforms() {
    let server = RedisServer::start();
    let url = server.url().to_owned();
    let connect = async |clock| RedisConfig::node(&url).patient().connect().await.unwrap().clock(clock);
    conformance::check_all(connect).await;
}

/// A memory store with one defect.
#[derive(Debug)]
struct Wrong {
    store: Arc<MemoryStore>,
    mistake: Mistake,
    /// The charges that were denied.
    denied: Mutex<Vec<Outcome>>,
    clock: ManualClock,
    /// A store for each rate.
    stores: Mutex<HashMap<String, MemoryStore>>,
}

impl Wrong {
    fn new(clock: ManualClock, mistake: Mistake) -> Self {
        let store = Arc::new(MemoryStore::new().clock(clock.clone()));
        Self { store, mistake, denied: Mutex::default(), clock, stores: Mutex::default() }
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

    fn decide(&self, charges: &mut Charges, purpose: Purpose, longest_wait: Duration) -> StoreFuture<Answer> {
        let purpose = match self.mistake {
            Mistake::PeeksCharge if purpose == Purpose::Peek => Purpose::Take,
            Mistake::PreviewsCharge if purpose == Purpose::Preview => Purpose::Take,
            _ => purpose,
        };
        match self.mistake {
            Mistake::ChargesOneByOne if purpose == Purpose::Take => {
                let mut at = None;
                for position in 0..charges.len() {
                    let mut charge = charges.select([position]);
                    at = self.store.decide_at_once(&mut charge, purpose);
                    charges[position] = charge[0].clone();
                }
                StoreFuture::ready(Ok(Answer::new(at.expect("memory decides at once"))))
            }
            Mistake::StopsIfDropped if purpose == Purpose::Take => {
                let (store, mut charges) = (self.store.clone(), charges.clone());
                StoreFuture::pending(async move {
                    let mut at = Timestamp::EPOCH;
                    for position in 0..charges.len() {
                        let mut charge = charges.select([position]);
                        at = store.decide(&mut charge, purpose, longest_wait).await?.finish(&mut charge);
                        charges[position] = charge[0].clone();
                        tokio::task::yield_now().await;
                    }
                    Ok(Answer::with_charges(at, charges))
                })
            }
            Mistake::RemembersOtherLimits | Mistake::RemembersOtherKeys | Mistake::RemembersOtherCosts => {
                let answer = self.store.decide(charges, purpose, longest_wait);
                if purpose == Purpose::Take {
                    let denied = charges.iter().filter(|outcome| !outcome.verdict().is_allowed());
                    self.denied.lock().unwrap().extend(denied.cloned());
                }
                answer
            }
            Mistake::SeparatesRates => {
                let mut stores = self.stores.lock().unwrap();
                let new_store = || MemoryStore::new().clock(self.clock.clone());
                stores.entry(format!("{:?}", charges[0].algorithm())).or_insert_with(new_store).decide(
                    charges,
                    purpose,
                    longest_wait,
                )
            }
            _ => self.store.decide(charges, purpose, longest_wait),
        }
    }

    fn decide_at_once(&self, charges: &mut Charges, _: Purpose) -> Option<Timestamp> {
        let denied = self.denied.lock().unwrap();
        let limit = |outcome: &Outcome| outcome.fingerprint() ^ outcome.key().as_u128();
        let is_denied = |outcome: &Outcome| {
            denied.iter().any(|known| {
                (limit(known) == limit(outcome) || self.mistake == Mistake::RemembersOtherLimits)
                    && (known.key() == outcome.key() || self.mistake == Mistake::RemembersOtherKeys)
                    && (known.cost() == outcome.cost() || self.mistake == Mistake::RemembersOtherCosts)
            })
        };
        if !charges.iter().any(is_denied) {
            return None;
        }
        let mut peeked = charges.clone();
        let at = self.store.decide_at_once(&mut peeked, Purpose::Peek);
        let denial = Verdict::Deny { retry_after: None };
        charges.iter_mut().for_each(|outcome| outcome.answer(denial, 0, None, Duration::ZERO));
        at
    }

    fn refund(&self, charges: &Charges) -> StoreFuture<()> {
        if self.mistake == Mistake::KeepsRefunds { StoreFuture::ready(Ok(())) } else { self.store.refund(charges) }
    }

    fn reset(&self, charges: &Charges) -> StoreFuture<()> {
        if self.mistake == Mistake::KeepsResets { StoreFuture::ready(Ok(())) } else { self.store.reset(charges) }
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

    let map = |fault| async move |clock| Database::store(clock, fault);
    assert!(fails(conformance::check_algorithms(&map(Fault::Forgets))).await);
    assert!(fails(conformance::check_algorithms(&map(Fault::Stands))).await);
    assert!(fails(conformance::check_overrides(&map(Fault::Forgets))).await);
    assert!(fails(conformance::check_penalties(&map(Fault::Forgets))).await);
    assert!(fails(conformance::check_modes(&map(Fault::Forgets))).await);
}

#[tokio::test]
async fn a_store_that_decides_the_penalty_apart_from_its_limit_does_not_panic() {
    let one_by_one = async |clock| Wrong::new(clock, Mistake::ChargesOneByOne);
    let message = failure(conformance::check_penalties(&one_by_one)).await.unwrap();
    assert!(message.contains("\nexpected"), "{message}");
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
    let check = |fault| conformance::check_compare_and_swap(Arc::new(Database::new(SystemClock::new(), fault)));
    check(Fault::None).await;
    for (fault, expected) in [
        (Fault::FirstWritesRace, "swaps that succeeded of 8 with the same expected version"),
        (Fault::KeepsFirstExpiry, "a value that is replaced is kept for the new TTL"),
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
