//! Requests on a database in memory.

use std::collections::HashMap;
use std::future::{Future, pending};
use std::pin::pin;
use std::slice;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};

use super::{CasStore, CompareAndSwap, Versioned};
use crate::algorithm::{Algorithm, FixedWindow, Lockout, Penalty, SlidingLog, TokenBucket};
use crate::decision::{Charge, Charges, DecidedBy, Outcome, PenaltyOutcome};
use crate::error::{StoreError, StoreErrorKind};
use crate::limit::{Limit, OnStoreError};
use crate::limiter::Limiter;
use crate::store::{Answer, MemoryStore, Override, OverrideOperation, Purpose, Store, StoreFuture, Veto};
use crate::time::{Clock, ManualClock, Timestamp};

/// A table in memory.
#[derive(Debug, Default)]
struct Table {
    rows: Mutex<HashMap<String, Versioned>>,
    clock: ManualClock,
    progress: Mutex<Progress>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Writing {
    #[default]
    Works,
    Fails,
    Conflicts,
    Hangs,
}

#[derive(Default)]
struct Progress {
    reads: usize,
    writes: usize,
    /// The TTL of the last write.
    ttl: Duration,
    /// The next writes wait for these futures, such as a request of another process. A write conflicts if its future
    /// fails.
    interruptions: Vec<Option<StoreFuture<Answer>>>,
    /// What happens to all other writes.
    writing: Writing,
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Progress")
    }
}

impl CompareAndSwap for Table {
    async fn get(&self, key: &str) -> Result<Option<Versioned>, StoreError> {
        yield_now().await;
        self.progress.lock().unwrap().reads += 1;
        Ok(self.rows.lock().unwrap().get(key).cloned())
    }

    async fn compare_and_swap(
        &self,
        key: &str,
        expected: Option<u64>,
        value: &[u8],
        ttl: Duration,
    ) -> Result<bool, StoreError> {
        yield_now().await;
        let (interruption, writing) = {
            let mut progress = self.progress.lock().unwrap();
            (progress.writes, progress.ttl) = (progress.writes + 1, ttl);
            (progress.interruptions.pop().flatten(), progress.writing)
        };
        match writing {
            Writing::Works => {}
            Writing::Fails => return Err(StoreError::new("the database is read-only")),
            Writing::Conflicts => return Ok(false),
            Writing::Hangs => pending().await,
        }
        if let Some(interruption) = interruption
            && interruption.await.is_err()
        {
            return Ok(false);
        }
        let mut rows = self.rows.lock().unwrap();
        let version = rows.get(key).map(|found| found.version);
        if version == expected {
            let value = Versioned { value: value.to_vec(), version: version.unwrap_or(0) + 1 };
            rows.insert(key.to_owned(), value);
        }
        Ok(version == expected)
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.rows.lock().unwrap().remove(key);
        Ok(())
    }

    async fn now(&self) -> Result<Timestamp, StoreError> {
        Ok(self.clock.now())
    }
}

impl Table {
    fn shared() -> Arc<Self> {
        let table = Arc::new(Self::default());
        table.clock.advance(Duration::from_secs(86_400));
        table
    }

    /// Returns a store of another process.
    fn process(self: &Arc<Self>) -> CasStore<Self> {
        CasStore::from(self.clone())
    }

    /// Lets the next writes wait for these futures.
    fn interrupt(&self, mut interruptions: Vec<Option<StoreFuture<Answer>>>) {
        interruptions.reverse();
        self.progress.lock().unwrap().interruptions = interruptions;
    }

    fn writes(&self) -> usize {
        self.progress.lock().unwrap().writes
    }

    fn reads(&self) -> usize {
        self.progress.lock().unwrap().reads
    }
}

fn charge(limit: &str, algorithm: impl Into<Algorithm>) -> Charge {
    let hasher = Table::shared().process().hasher();
    Charge::new(0, limit, algorithm.into(), &hasher).with_key(hasher.hash(b"key"), 1)
}

/// Returns two limits, in the order in which their rows are written.
fn two(algorithm: impl Into<Algorithm>) -> [Charge; 2] {
    let algorithm = algorithm.into();
    let mut charges = [charge("one", algorithm), charge("other", algorithm)];
    charges.sort_by_key(Charge::fingerprint);
    charges
}

/// Returns a request of these charges, of which the first ones have penalties.
fn punished(charges: &[Charge], denials: &[u32]) -> Charges {
    let mut punished = Charges::default();
    for (position, charge) in charges.iter().enumerate() {
        let penalty = denials.get(position).map(|denials| Penalty::after(*denials, Duration::from_secs(60)));
        punished.push(Outcome::new(*charge, penalty.map(PenaltyOutcome::new)));
    }
    punished
}

fn lockouts(charges: &[Outcome]) -> Vec<Lockout> {
    charges.iter().filter_map(Outcome::lockout).collect()
}

/// Returns a request of one charge.
fn one(charge: Charge) -> Charges {
    Charges::of([charge])
}

/// Decides a request. Returns the answered charges.
async fn decide(store: &impl Store, charges: &[Charge], purpose: Purpose) -> Result<Charges, StoreError> {
    decide_all(store, Charges::of(charges.iter().copied()), purpose).await
}

async fn decide_all(store: &impl Store, mut charges: Charges, purpose: Purpose) -> Result<Charges, StoreError> {
    let answer = store.decide(&mut charges, purpose, Duration::MAX).await?;
    answer.finish(&mut charges);
    Ok(charges)
}

async fn take(store: &impl Store, charges: &[Charge]) -> Charges {
    decide(store, charges, Purpose::Take).await.unwrap()
}

async fn remaining(store: &impl Store, charges: &[Charge]) -> Vec<u64> {
    let charges: Vec<Charge> = charges.iter().map(|charge| charge.asked_again(0)).collect();
    decide(store, &charges, Purpose::Peek).await.unwrap().iter().map(Outcome::remaining).collect()
}

fn is_allowed(charges: &[Outcome]) -> bool {
    !charges.iter().any(Outcome::denies)
}

#[tokio::test(start_paused = true)]
async fn processes_that_race_for_two_keys_lose_and_keep_no_charge() {
    for sizes in [[100, 100], [100, 50], [50, 100]] {
        let table = Table::shared();
        let mut charges = two(FixedWindow::per_day(1));
        charges
            .iter_mut()
            .zip(sizes)
            .for_each(|(outcome, size)| outcome.set_algorithm(FixedWindow::per_day(size).into()));
        let processes = (0..4).map(|_| {
            let (store, charges) = (table.process(), charges);
            tokio::spawn(async move {
                let mut allowed = 0;
                for _ in 0..20 {
                    allowed += u64::from(is_allowed(&take(&store, &charges).await));
                }
                allowed
            })
        });
        let mut allowed = 0;
        for process in processes.collect::<Vec<_>>() {
            allowed += process.await.unwrap();
        }
        assert!(allowed <= 50 || sizes == [100, 100] && allowed == 80, "{allowed} of {sizes:?}");
        assert_eq!(remaining(&table.process(), &charges).await, sizes.map(|size| u64::from(size) - allowed));
        assert!(table.writes() as u64 > 2 * allowed, "{} writes: some lost a race", table.writes());
    }
}

#[tokio::test(start_paused = true)]
async fn a_race_for_the_second_row_takes_the_first_charge_back() {
    for (algorithm, left) in [
        (Algorithm::from(FixedWindow::per_day(1)), [1, 0]),
        (TokenBucket::per_day(1).into(), [1, 0]),
        (SlidingLog::per_day(1).into(), [1, 0]),
        // Both have room.
        (SlidingLog::per_day(5).into(), [4, 3]),
    ] {
        let (table, charges) = (Table::shared(), two(algorithm));
        let intruder = table.process().decide(&mut one(charges[1]), Purpose::Take, Duration::MAX);
        table.interrupt(vec![None, Some(intruder)]);
        let store = table.process();
        let decided = take(&store, &charges).await;
        assert_eq!(is_allowed(&decided), left[0] > 1, "{algorithm:?}");
        assert_eq!(remaining(&table.process(), &charges).await, left, "{algorithm:?}");
        // The first row, the second one twice, that of the intruder; and the first one again if it is taken back.
        assert_eq!(table.writes(), 4, "{algorithm:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_charge_is_taken_back_from_a_row_that_others_have_changed() {
    let (table, charges) = (Table::shared(), two(FixedWindow::per_day(5)));
    let (process, charges) = (table.process(), [charges[0], charges[1].asked_again(5)]);
    let intruder = StoreFuture::pending(async move {
        assert!(is_allowed(&take(&process, &charges).await));
        Ok(Answer::new(Timestamp::EPOCH))
    });
    table.interrupt(vec![None, Some(intruder)]);
    assert!(!is_allowed(&take(&table.process(), &charges).await));
    assert_eq!(remaining(&table.process(), &charges).await, [4, 0]);
}

/// A charge that could not be taken back at first is taken back by the next attempt.
#[tokio::test(start_paused = true)]
async fn a_charge_whose_return_loses_a_race_is_returned_later() {
    let (table, charges) = (Table::shared(), two(FixedWindow::per_day(1)));
    let intruder = table.process().decide(&mut one(charges[1]), Purpose::Take, Duration::MAX);
    let conflict = StoreFuture::ready(Err(StoreError::new("conflict")));
    // The first row, the second one, that of the intruder, and the first one again.
    table.interrupt(vec![None, Some(intruder), None, Some(conflict)]);
    assert!(!is_allowed(&take(&table.process(), &charges).await));
    assert_eq!(remaining(&table.process(), &charges).await, [1, 0]);
}

/// A peek that was denied because of a charge is not repeated when the charge has been taken back.
#[tokio::test(start_paused = true)]
async fn a_charge_that_is_taken_back_ends_the_denials_that_it_has_caused() {
    let (table, charges) = (Table::shared(), two(FixedWindow::per_day(1)));
    let store = table.process();
    let (intruder, peeking, asked) = (table.process(), store.clone(), charges);
    let meanwhile = StoreFuture::pending(async move {
        assert!(!is_allowed(&decide(&peeking, &asked[..1], Purpose::Peek).await?));
        assert!(is_allowed(&take(&intruder, &asked[1..]).await));
        Ok(Answer::new(Timestamp::EPOCH))
    });
    table.interrupt(vec![None, Some(meanwhile)]);
    assert!(!is_allowed(&take(&store, &charges).await));
    assert!(is_allowed(&take(&store, &charges[..1]).await));
}

/// All processes write the rows in one order: otherwise, each could charge one limit, and be denied by the other.
#[tokio::test(start_paused = true)]
async fn of_two_requests_with_limits_in_opposite_orders_one_is_allowed() {
    let (table, [one, other]) = (Table::shared(), two(FixedWindow::per_day(1)));
    let opposites = [[one, other], [other, one]];
    let stores = [table.process(), table.process()];
    let decided = tokio::join!(take(&stores[0], &opposites[0]), take(&stores[1], &opposites[1]));
    assert_ne!(is_allowed(&decided.0), is_allowed(&decided.1));
    assert_eq!(remaining(&table.process(), &opposites[0]).await, [0, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_remembered_denial_ends_with_the_override_that_denied() {
    let (table, mut outcome) = (Table::shared(), charge("limit", FixedWindow::per_day(3)));
    outcome.is_overridable = true;
    let store = table.process().remember_denials(Duration::from_secs(3_600));
    let size = Override { algorithm: FixedWindow::per_day(1).into(), expires_after: Some(Duration::from_secs(60)) };
    store.access_override(&one(outcome), OverrideOperation::Set(size)).await.unwrap();
    let charges = slice::from_ref(&outcome);
    for (micros, expected) in [(0, true), (59_999_999, false), (1, true)] {
        table.clock.advance(Duration::from_micros(micros));
        assert_eq!(is_allowed(&take(&store, charges).await), expected, "after {micros} more");
    }
}

/// The limit with the penalty is available when another one denies. If it is used up later, its denials are strikes.
#[tokio::test(start_paused = true)]
async fn a_remembered_denial_of_another_limit_hides_no_strike() {
    let store = Table::shared().process();
    let limits = [charge("punished", FixedWindow::per_day(2)), charge("other", FixedWindow::per_day(1))];
    let take_all = async || decide_all(&store, punished(&limits, &[1]), Purpose::Take).await.unwrap();
    assert!(is_allowed(&take_all().await));
    assert!(!is_allowed(&take_all().await));
    // A limiter of the same limit has no penalty.
    assert!(is_allowed(&take(&store, &limits[..1]).await));
    assert!(!lockouts(&take_all().await).is_empty());
}

/// How long a log denies depends on which of its charges must expire, which the denial of a larger one does not tell.
#[tokio::test(start_paused = true)]
async fn a_remembered_denial_with_a_log_is_of_one_size() {
    let (table, mut charges) =
        (Table::shared(), vec![charge("log", SlidingLog::per_day(10)), charge("other", FixedWindow::per_day(4))]);
    let store = table.process();
    for _ in 0..4 {
        assert!(is_allowed(&take(&store, &charges).await));
        table.clock.advance(Duration::from_millis(1));
    }
    assert!(!is_allowed(&take(&store, &charges).await));
    charges[0].set_algorithm(SlidingLog::per_day(2).into());
    let [known, fresh] = [take(&store, &charges).await, take(&table.process(), &charges).await];
    assert_eq!(known[0].verdict(), fresh[0].verdict());
}

/// Not even if it is of the same database.
#[tokio::test(start_paused = true)]
async fn a_receipt_is_refunded_by_clones_of_its_store_only() {
    let table = Table::shared();
    let limiter = |store| Limiter::builder([Limit::new("limit", FixedWindow::per_day(10))]).store(store).build();
    let store = table.process();
    let others = [Table::shared().process(), store.clone().prefix("other")];
    let [one, clone] = [store.clone(), store].map(limiter);
    let left = async |limiter: &Limiter| limiter.peek("key", 0).await.unwrap().outcomes()[0].remaining();
    for other in others.map(limiter) {
        one.reset("key").await.unwrap();
        let receipt = one.acquire("key", 5).await.unwrap().into_receipt();
        let _ = other.acquire("key", 5).await.unwrap();
        let before = left(&other).await;
        other.refund(receipt).await.unwrap_err();
        assert_eq!(left(&other).await, before);
    }
    one.reset("key").await.unwrap();
    let receipt = one.acquire("key", 5).await.unwrap().into_receipt();
    clone.refund(receipt).await.unwrap();
    assert_eq!(left(&one).await, 10);
}

/// A store of another crate may wrap both, and ask them with the same charges.
#[tokio::test(start_paused = true)]
async fn a_denial_is_not_remembered_under_another_prefix() {
    let store = Table::shared().process();
    let other = store.clone().prefix("other");
    let outcome = [charge("limit", FixedWindow::per_day(1))];
    assert!(is_allowed(&take(&store, &outcome).await) && !is_allowed(&take(&store, &outcome).await));
    assert!(is_allowed(&take(&other, &outcome).await));
}

#[tokio::test(start_paused = true)]
async fn a_preview_and_a_peek_write_nothing() {
    let table = Table::shared();
    let outcome = charge("limit", FixedWindow::per_day(1));
    let preview = decide(&table.process(), slice::from_ref(&outcome), Purpose::Preview).await.unwrap();
    assert_eq!(preview[0].remaining(), 0);
    take(&table.process(), slice::from_ref(&outcome)).await;
    let writes = table.writes();
    for (purpose, begins) in [(Purpose::Preview, true), (Purpose::Peek, false)] {
        let decided = decide_all(&table.process(), punished(&[outcome], &[1]), purpose).await.unwrap();
        assert!(!is_allowed(&decided) && lockouts(&decided).is_empty() != begins, "{purpose:?}");
    }
    assert_eq!(table.writes(), writes);
}

#[tokio::test(start_paused = true)]
async fn a_denial_writes_nothing_and_is_repeated_without_the_database() {
    let (table, charges) = (Table::shared(), two(FixedWindow::per_day(1)));
    let store = table.process();
    let charged = take(&store, &charges).await;
    assert!(is_allowed(&charged));
    assert!(!is_allowed(&take(&store, &charges).await));
    assert_eq!(table.writes(), 2);
    let reads = table.reads();
    table.clock.advance(Duration::from_secs(1));
    let mut repeated = Charges::of(charges);
    assert!(store.decide_at_once(&mut repeated, Purpose::Take).is_some() && !is_allowed(&repeated));
    assert_eq!(repeated[0].reset_after(), Duration::from_secs(86_399));
    assert_eq!(table.reads(), reads);
    store.refund(&charged).await.unwrap();
    assert!(is_allowed(&take(&store, &charges).await), "a refund ends the denial");
}

#[tokio::test(start_paused = true)]
async fn a_denial_is_repeated_to_those_who_have_waited_for_their_turn() {
    let (table, charges) = (Table::shared(), [charge("limit", FixedWindow::per_day(1))]);
    assert!(is_allowed(&take(&table.process(), &charges).await));
    let (store, reads) = (table.process(), table.reads());
    let (one, other) = tokio::join!(take(&store, &charges), take(&store, &charges));
    assert!(!is_allowed(&one) && !is_allowed(&other));
    assert_eq!(table.reads(), reads + 1);
}

#[tokio::test(start_paused = true)]
async fn a_strike_is_written() {
    let table = Table::shared();
    let charges = punished(&[charge("limit", FixedWindow::new(1, Duration::from_secs(10)))], &[2]);
    let take_all = async || decide_all(&table.process(), charges.clone(), Purpose::Take).await.unwrap();
    for is_new_lockout in [None, Some(false), Some(true), Some(false)] {
        let decided = take_all().await;
        assert_eq!(is_allowed(&decided), is_new_lockout.is_none());
        assert_eq!(lockouts(&decided).len(), usize::from(is_new_lockout == Some(true)));
    }
    assert_eq!(table.writes(), 3, "a charge and two strikes");
    table.clock.advance(Duration::from_secs(10));
    let decided = take_all().await;
    assert_eq!(decided[0].verdict().retry_after(), Some(Duration::from_secs(50)), "it is locked out for 60 s");
}

#[tokio::test(start_paused = true)]
async fn a_denial_stands_although_its_strike_cannot_be_written() {
    for writing in [Writing::Fails, Writing::Conflicts, Writing::Hangs] {
        let table = Table::shared();
        let limits = [
            Limit::new("one", FixedWindow::per_day(1)).penalty(Penalty::after(1, Duration::from_secs(60))),
            Limit::new("other", FixedWindow::per_day(5)),
        ];
        // The second one has a limit without a penalty, too.
        for limits in [&limits[..1], &limits] {
            let limiter = Limiter::builder(limits.to_vec()).store(table.process()).on_store_error(OnStoreError::Allow);
            let limiter = limiter.build();
            let key = limits.len();
            assert!(limiter.acquire(key, 1).await.unwrap().is_allowed());
            table.progress.lock().unwrap().writing = writing;
            let requests = (0..20).map(|_| limiter.acquire(key, 1));
            for decision in join_all(requests).await {
                let decision = decision.unwrap();
                assert!(!decision.is_allowed() && !decision.is_locked_out(), "{writing:?}: {decision:?}");
                assert_eq!(lockouts(decision.outcomes()), [], "{writing:?}");
            }
            assert_eq!(limiter.acquire("new", 1).await.unwrap().decided_by(), DecidedBy::Unlimited, "{writing:?}");
            table.progress.lock().unwrap().writing = Writing::Works;
            assert!(limiter.acquire(key, 1).await.unwrap().is_locked_out(), "{writing:?}");
        }
    }
}

/// The charge that was made before the denial stays, because it can't be refunded.
#[tokio::test(start_paused = true)]
async fn a_denial_stands_although_an_earlier_charge_cannot_be_taken_back() {
    let (table, charges) = (Table::shared(), two(FixedWindow::per_day(1)));
    let (intruder, progress, asked) = (table.process(), table.clone(), charges[1..].to_vec());
    let meanwhile = StoreFuture::pending(async move {
        assert!(is_allowed(&take(&intruder, &asked).await));
        progress.progress.lock().unwrap().writing = Writing::Fails;
        Ok(Answer::new(Timestamp::EPOCH))
    });
    table.interrupt(vec![None, Some(meanwhile)]);
    let decided = take(&table.process(), &charges).await;
    assert!(decided[0].is_allowed() && decided[1].denies());
    assert_eq!(remaining(&table.process(), &charges).await, [0, 0]);
}

/// A request with two penalties counts for each once, although it writes the first strike before it loses a race for
/// the second.
#[tokio::test(start_paused = true)]
async fn a_strike_before_a_lost_race_counts_once() {
    let table = Table::shared();
    let limits = ["one", "other"].map(|limit| charge(limit, FixedWindow::per_hour(1)));
    let charges = punished(&limits, &[3, 3]);
    let take_all = async || decide_all(&table.process(), charges.clone(), Purpose::Take).await.unwrap();
    take_all().await;
    let is_last = charges[0].penalty_fingerprint() < charges[1].penalty_fingerprint();
    let mut last = charges.select([usize::from(is_last)]);
    let intruder = table.process().decide(&mut last, Purpose::Take, Duration::MAX);
    table.interrupt(vec![None, Some(intruder)]);
    assert_eq!(lockouts(&take_all().await), []);
    assert_eq!(lockouts(&take_all().await).len(), 1, "that of the limit with three strikes");
}

/// Another request has struck both limits meanwhile, so the first strike stays when this one starts again.
#[tokio::test(start_paused = true)]
async fn a_strike_in_a_row_that_others_have_changed_is_not_made_again() {
    let table = Table::shared();
    let charges = punished(&["one", "other"].map(|limit| charge(limit, FixedWindow::per_hour(1))), &[3, 3]);
    let take_all = async || decide_all(&table.process(), charges.clone(), Purpose::Take).await.unwrap();
    take_all().await;
    let intruder = table.process().decide(&mut charges.clone(), Purpose::Take, Duration::MAX);
    table.interrupt(vec![None, Some(intruder)]);
    assert_eq!(lockouts(&take_all().await), [], "two requests were denied");
    assert_eq!(lockouts(&take_all().await).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_denial_by_an_override_stands_although_its_strike_cannot_be_written() {
    let table = Table::shared();
    let limit = Limit::new("limit", FixedWindow::per_day(5)).overridable();
    let limit = limit.penalty(Penalty::after(1, Duration::from_secs(60)));
    let limiter = Limiter::builder([limit]).store(table.process()).build();
    limiter.limit("limit").unwrap().set_override("key", FixedWindow::per_day(1), None).await.unwrap();
    assert!(limiter.acquire("key", 1).await.unwrap().is_allowed());
    table.progress.lock().unwrap().writing = Writing::Fails;
    let decision = limiter.acquire("key", 1).await.unwrap();
    assert_eq!((decision.is_allowed(), decision.outcomes()[0].remaining()), (false, 0));
}

#[tokio::test(start_paused = true)]
async fn an_override_applies_until_it_expires() {
    let (table, mut outcome) = (Table::shared(), charge("limit", FixedWindow::per_day(1)));
    outcome.is_overridable = true;
    let (store, charges) = (table.process(), slice::from_ref(&outcome));
    take(&store, charges).await;
    assert!(!is_allowed(&take(&store, charges).await));
    let size = Override { algorithm: FixedWindow::per_day(3).into(), expires_after: Some(Duration::from_secs(60)) };
    store.access_override(&one(outcome), OverrideOperation::Set(size)).await.unwrap();
    assert_eq!(store.access_override(&one(outcome), OverrideOperation::Get).await.unwrap(), Some(size));
    let decided = take(&store, charges).await;
    assert_eq!((is_allowed(&decided), decided[0].remaining()), (true, 1));
    assert_eq!(decided[0].algorithm(), &FixedWindow::per_day(3).into());
    table.clock.advance(Duration::from_secs(60));
    assert!(!is_allowed(&take(&store, charges).await));
    assert_eq!(store.access_override(&one(outcome), OverrideOperation::Get).await.unwrap(), None);
    store.access_override(&one(outcome), OverrideOperation::Set(size)).await.unwrap();
    store.access_override(&one(outcome), OverrideOperation::Remove).await.unwrap();
    assert!(!is_allowed(&take(&store, charges).await));
}

#[test]
fn a_call_outside_a_runtime_is_an_error() {
    let (store, charges) = (Table::shared().process(), two(FixedWindow::per_day(5)));
    let poll = |future: StoreFuture<()>| {
        let Poll::Ready(Err(error)) = pin!(future).poll(&mut Context::from_waker(Waker::noop())) else { panic!() };
        assert!(error.to_string().contains("there is no Tokio runtime"), "{error}");
    };
    for count in 1..=2 {
        for purpose in [Purpose::Take, Purpose::Peek, Purpose::Preview] {
            let answer = store.decide(&mut Charges::of(charges[..count].iter().copied()), purpose, Duration::MAX);
            poll(StoreFuture::pending(async move { answer.await.map(drop) }));
        }
        poll(store.refund(&Charges::of(charges[..count].iter().copied())));
    }
    let size = Override { algorithm: FixedWindow::per_day(3).into(), expires_after: None };
    let setting = store.access_override(&one(charges[0]), OverrideOperation::Set(size));
    poll(StoreFuture::pending(async move { setting.await.map(drop) }));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_given_up_after_its_first_write_is_refunded() {
    let (table, charges) = (Table::shared(), two(FixedWindow::per_day(5)));
    let store = table.process();
    let slow = StoreFuture::pending(async {
        sleep(Duration::from_secs(1)).await;
        Ok(Answer::new(Timestamp::EPOCH))
    });
    table.interrupt(vec![None, Some(slow)]);
    timeout(Duration::from_millis(500), take(&store, &charges)).await.unwrap_err();
    assert_eq!(remaining(&store, &charges).await, [4, 5]);
    sleep(Duration::from_secs(2)).await;
    assert_eq!((remaining(&store, &charges).await, table.writes()), (vec![5, 5], 4));
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_value_is_an_error_of_the_request() {
    let (table, outcome) = (Table::shared(), charge("limit", FixedWindow::per_day(5)));
    let key = table.process().0.inner.keys(&one(outcome)).remove(0);
    for (value, message) in [(vec![2; 26], "has version 2"), (vec![4; 9], "is malformed")] {
        table.rows.lock().unwrap().insert(key.clone(), Versioned { value, version: 1 });
        let error = decide(&table.process(), slice::from_ref(&outcome), Purpose::Take).await.unwrap_err();
        assert!(error.is_of_one_request() && error.kind() == StoreErrorKind::Failed);
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains(message), "{source}");
    }
}

/// Writes that conflict for no reason neither change a decision nor leave a trace.
#[tokio::test(start_paused = true)]
async fn decisions_with_conflicts_are_those_of_memory() {
    let (table, clock) = (Table::shared(), Arc::new(ManualClock::default()));
    clock.advance(Duration::from_secs(86_400));
    let memory = MemoryStore::new().clock(clock.clone());
    let store = table.process().remember_denials(Duration::ZERO);
    let minute = Duration::from_secs(60);
    let [mut shadow, quota] =
        [charge("shadow", TokenBucket::per_minute(5)), charge("quota", FixedWindow::per_minute(3))];
    shadow.veto = Veto::Shadow;
    let quotas = [quota, charge("other", SlidingLog::per_minute(4))].map(|mut outcome| {
        outcome.veto = Veto::Quota;
        outcome
    });
    let [one, other] = [charge("punished", SlidingLog::per_minute(6)), charge("too", TokenBucket::new(6, 1, minute))];
    let charges = [one, other, shadow].into_iter().chain(quotas);
    let charges: Vec<Charge> = charges.collect();
    let mut random = 1_u64;
    let mut below = |end: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % end
    };
    for step in 0..2_000 {
        let passed = Duration::from_millis(below(20_000) * below(2) + 1);
        clock.advance(passed);
        table.clock.advance(passed);
        let conflicts = (0..8).map(|_| (below(3) == 0).then(|| StoreFuture::ready(Err(StoreError::new("conflict")))));
        table.interrupt(conflicts.collect());
        let cost = below(3);
        let charges: Vec<Charge> = charges.iter().map(|outcome| outcome.asked_again(cost)).collect();
        let charges = punished(&charges, &[2, 3]);
        let expected = decide_all(&memory, charges.clone(), Purpose::Take).await.unwrap();
        let decided = decide_all(&store, charges, Purpose::Take).await.unwrap();
        for (expected, decided) in expected.iter().zip(&*decided) {
            let answer = |outcome: &Outcome| {
                (outcome.verdict(), outcome.remaining(), outcome.more_after(), outcome.reset_after())
            };
            assert_eq!(answer(decided), answer(expected), "in step {step}");
        }
        assert_eq!(lockouts(&decided), lockouts(&expected), "in step {step}");
        if is_allowed(&expected) && below(4) == 0 {
            for (store, charged) in [(&memory as &dyn Store, &expected[2]), (&store, &decided[2])] {
                store.refund(&Charges::of([charged.clone()])).await.unwrap();
            }
        }
    }
}

/// The database may count whole seconds, and a clock may step back by a second.
#[tokio::test(start_paused = true)]
async fn a_value_is_kept_for_two_seconds_after_its_state_has_expired() {
    for algorithm in
        [Algorithm::from(FixedWindow::per_day(5)), TokenBucket::per_day(5).into(), SlidingLog::per_day(5).into()]
    {
        let (table, charges) = (Table::shared(), [charge("limit", algorithm)]);
        let charged = take(&table.process(), &charges).await;
        assert_eq!(
            table.progress.lock().unwrap().ttl,
            charged[0].reset_after() + Duration::from_secs(2),
            "{algorithm}"
        );
    }
}
