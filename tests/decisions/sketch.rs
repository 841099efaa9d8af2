//! Counts in fixed memory: a sketch never admits more than the limits, and keys in the table stay exact.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use http::Request;
use proptest::prelude::*;
use support::calls::{Now, Outcomes};
use support::event_log::EventLog;
use support::model::Answer;
use support::rule::Rule;
use tower_ratelimit::store::{Answer as StoreAnswer, Charges, KeyHasher, Purpose, Sketch, StoreFuture};
use tower_ratelimit::{
    Algorithm, CalendarWindow, Clock, Decision, FixedWindow, Limit, Limiter, LiveLimits, ManualClock, MemoryStore,
    Penalty, RateLimitLayer, RequestHead, RequestLimiter, SlidingLog, SlidingWindowCounter, Store, StoreError,
    StoreErrorKind, Timestamp, TokenBucket, key,
};

use crate::rule::every_rule;
use crate::subject::Subject;
use crate::trace::traces;

/// A sketch that is much too small for some hundred keys.
const TINY: Sketch = Sketch::new().error(0.1).confidence(0.5).expected_keys(10);

/// A sketch that is large enough for a few keys to be counted exactly.
const LARGE: Sketch = Sketch::new().error(0.001).expected_keys(1_000);

const MINUTE: Duration = Duration::from_secs(60);

fn counted_rule() -> impl Strategy<Value = Rule> {
    every_rule().prop_filter("is counted in windows", |rule| {
        matches!(rule, Rule::FixedWindow { .. } | Rule::Calendar { .. } | Rule::Counter { .. })
    })
}

/// A limiter with a sketch, and one that is exact, of the same limits.
struct Pair {
    clock: ManualClock,
    store: Arc<MemoryStore>,
    limiter: Limiter,
    exact: Limiter,
}

impl Pair {
    fn new(store: MemoryStore, limits: Vec<Limit>) -> Self {
        let clock = ManualClock::new(Timestamp::from_micros(1_767_225_600_000_000));
        let store = Arc::new(store.clock(clock.clone()));
        let limiter = Limiter::builder(limits.clone()).store(store.clone()).build();
        let exact = Limiter::builder(limits).store(MemoryStore::new().clock(clock.clone())).build();
        Self { clock, store, limiter, exact }
    }

    /// Decides a request. What is admitted is charged to the exact limiter, which must have capacity for it.
    fn acquire(&self, key: u64, cost: u64) -> Decision {
        let decision = self.limiter.acquire(key, cost).now();
        if decision.is_allowed() {
            let exact = self.exact.acquire(key, cost).now();
            assert!(exact.is_allowed(), "{decision:?} for key {key} is allowed, but should be {exact:?}");
            let least = exact.remaining();
            assert!(decision.remaining().iter().zip(&least).all(|(left, least)| left <= least), "of key {key}");
        }
        decision
    }
}

fn limits() -> Vec<Limit> {
    vec![
        Limit::new("window", FixedWindow::new(6, MINUTE)),
        Limit::new("calendar", CalendarWindow::daily(20)),
        Limit::new("counter", SlidingWindowCounter::new(8, 2 * MINUTE).weight(60)),
    ]
}

proptest! {
    #![proptest_config(support::cases(400))]

    /// A single key is not disturbed by others.
    #[test]
    fn a_single_key_is_counted_exactly(trace in traces(counted_rule(), 3, 30)) {
        let subject = Subject::with_store(&trace.rules, MemoryStore::sketch(LARGE));
        for step in trace.run() {
            // What is left is the same before the decision, by a preview, and after it.
            let peek = Answer::from(&subject.set(step.at).peek(0));
            let _ = subject.limiter.explain("key", 1).now_or_never();
            prop_assert_eq!(&Answer::from(&subject.peek(0)), &peek);
            let decision = subject.acquire_costs(&step.costs);
            prop_assert_eq!(Answer::from(&decision), step.answer, "at {}, costs {:?}", step.at, step.costs);
        }
    }

    /// The clock may step back. Time stands still then, for a single key as in an exact store.
    #[test]
    fn a_clock_that_steps_back_is_waited_for(
        rule in counted_rule(),
        steps in prop::collection::vec((0u64..3_000, any::<bool>(), 0u64..8), 1..40),
    ) {
        let [subject, exact] = [MemoryStore::sketch(LARGE), MemoryStore::new()]
            .map(|store| Subject::with_store(&[rule], store));
        let mut at = 1_767_225_600_000_000_u64;
        let unit = rule.unit();
        for (thousandths, is_back, cost) in steps {
            let step = (u128::from(unit) * u128::from(thousandths) / 1_000) as u64;
            at = if is_back { at - step / 4 } else { (at + step).min(Timestamp::MAX.as_micros()) };
            let [decision, expected] = [&subject, &exact].map(|subject| Answer::from(&subject.set(at).acquire(cost)));
            prop_assert_eq!(decision, expected, "at {}, cost {}", at, cost);
        }
    }

    #[test]
    fn nothing_is_admitted_beyond_the_limits(
        max_keys in prop_oneof![Just(0usize), 1usize..40],
        requests in prop::collection::vec((0u64..60, 1u64..4, prop_oneof![9 => 0u64..2_000_000, 1 => 0u64..90_000_000]), 1..400),
    ) {
        let store = match max_keys {
            0 => MemoryStore::sketch(TINY),
            keys => MemoryStore::new().max_keys(keys).overflow(TINY),
        };
        let pair = Pair::new(store, limits());
        for (key, cost, gap) in requests {
            let _ = pair.acquire(key, cost);
            pair.clock.advance(Duration::from_micros(gap));
        }
        prop_assert!(pair.store.keys() <= max_keys);
    }
}

/// Of each key, no more is admitted in a window than the limit, by a clock that stands still until it has caught up.
#[test]
fn no_window_admits_more_than_the_limit_if_the_clock_steps_back() {
    let pair = Pair::new(MemoryStore::sketch(LARGE), vec![Limit::new("window", FixedWindow::new(3, MINUTE))]);
    let (start, mut latest, mut admitted) = (pair.clock.now().as_micros(), 0, [0; 5]);
    for step in 0..3_000_u64 {
        let at = start + step * 1_000_000 - (step * 7_919 % 90 * 1_000_000).min(step * 1_000_000);
        pair.clock.set(Timestamp::from_micros(at));
        let key = step % 5;
        if pair.limiter.acquire(key, 1).now().is_allowed() {
            let window = at / 60_000_000;
            if window > latest {
                (latest, admitted) = (window, [0; 5]);
            }
            admitted[key as usize] += 1;
            assert!(admitted[key as usize] <= 3, "key {key} in window {latest}");
        }
    }
}

/// A flood of random keys is limited, and clients that were there before it are counted exactly throughout.
#[test]
fn known_keys_stay_exact_in_a_flood() {
    let store = MemoryStore::new().max_keys(100).overflow(Sketch::new().error(0.000_1).expected_keys(20_000));
    let pair = Pair::new(store, vec![Limit::new("window", FixedWindow::new(200, MINUTE))]);
    let flood_key = 1_000;
    let mut flooded = 0;
    for request in 0..20_000_u64 {
        let known = request % 100;
        let [decision, exact] = [&pair.limiter, &pair.exact].map(|limiter| limiter.acquire(known, 1).now());
        assert_eq!(Answer::from(&decision), Answer::from(&exact), "request {request} of key {known}");
        // Each of these keys comes once.
        assert!(pair.acquire(10_000 + request, 1).is_allowed());
        flooded += u64::from(pair.acquire(flood_key, 1).is_allowed());
    }
    assert_eq!(pair.store.keys(), 100);
    assert!((190..=200).contains(&flooded), "{flooded} of 200");
}

/// An expired key counts as room, and a key that moves to the table brings its count along.
#[test]
fn a_key_moves_to_the_table_with_its_count() {
    let window = Limit::new("window", SlidingWindowCounter::new(4, MINUTE));
    let pair = Pair::new(MemoryStore::new().max_keys(1).overflow(LARGE), vec![window]);
    for key in [1, 2, 2, 2] {
        assert!(pair.acquire(key, 1).is_allowed());
    }
    assert_eq!(pair.store.keys(), 1);
    // The first key expires, but time has not passed for the second one.
    pair.clock.advance(2 * MINUTE - Duration::from_secs(1));
    let _ = pair.acquire(2, 2);
    pair.clock.advance(Duration::from_secs(5));
    // Requests sweep the table. Once the second key is in it, it can be refunded.
    (0..300).for_each(|_| drop(pair.limiter.peek(2_u64, 0).now()));
    assert_eq!(pair.store.keys(), 0, "the first key has expired");
    let receipt = pair.acquire(2, 1).into_receipt();
    assert_eq!((pair.store.keys(), pair.limiter.peek(2_u64, 0).now().remaining()), (1, vec![4 - 3]));
    pair.limiter.refund(receipt).now();
    assert_eq!(pair.limiter.peek(2_u64, 0).now().remaining(), [4 - 2]);
}

#[test]
fn limits_in_the_table_and_in_the_sketch_are_charged_together() {
    let limits = [4, 3].map(|limit| Limit::new(limit.to_string(), FixedWindow::new(limit, MINUTE)));
    let pair = Pair::new(MemoryStore::new().max_keys(1).overflow(LARGE), limits.to_vec());
    for allowed in 1..=5 {
        assert_eq!(pair.acquire(1, 1).is_allowed(), allowed <= 3);
        let left = [4, 3].map(|limit: u64| limit - allowed.min(3));
        assert_eq!(pair.limiter.peek(1_u64, 0).now().remaining(), left);
    }
    assert_eq!(pair.store.keys(), 1);
}

/// Two keys of a request share most counters.
#[tokio::test]
async fn keys_of_one_request_are_charged_together() {
    let limit = Limit::new("window", FixedWindow::new(20, MINUTE)).by(key::header("user"));
    let limiter = RequestLimiter::builder([limit]).store(MemoryStore::sketch(TINY)).build();
    let users = (0..40).map(|user| Request::builder().header("user", user).body(()).unwrap()).collect::<Vec<_>>();
    let heads: Vec<_> = users.iter().map(RequestHead::of).collect();
    let mut admitted = [0; 40];
    for step in 0..2_000_usize {
        let pair = [step % 40, (step * 7 + step / 40 + 1) % 40];
        let decisions = limiter.decide_all(&pair.map(|user| heads[user])).await.unwrap();
        if decisions.iter().all(Decision::is_allowed) {
            pair.into_iter().for_each(|user| admitted[user] += 1);
        }
        assert!(admitted.iter().all(|admitted| *admitted <= 20), "{admitted:?}");
    }
    assert!(admitted.iter().any(|admitted| *admitted > 0));
}

#[test]
fn concurrent_requests_get_exactly_the_limit() {
    const KEYS: u64 = 20;
    for store in [MemoryStore::sketch(LARGE), MemoryStore::new().max_keys(5).overflow(LARGE)] {
        let pair = Pair::new(store, vec![Limit::new("window", FixedWindow::new(100, MINUTE))]);
        let allowed: usize = std::thread::scope(|scope| {
            let take = || (0..4_000_u64).filter(|request| pair.limiter.acquire(request % KEYS, 1).now().is_allowed());
            let threads = [(); 4].map(|()| scope.spawn(move || take().count()));
            threads.map(|thread| thread.join().unwrap()).iter().sum()
        });
        assert_eq!(allowed, KEYS as usize * 100);
    }
}

/// A store that wraps another one.
#[derive(Debug)]
struct Wrapping(MemoryStore);

impl Store for Wrapping {
    fn hasher(&self) -> KeyHasher {
        self.0.hasher()
    }

    fn decide(&self, charges: &mut Charges, purpose: Purpose, longest_wait: Duration) -> StoreFuture<StoreAnswer> {
        self.0.decide(charges, purpose, longest_wait)
    }

    fn refund(&self, charges: &Charges) -> StoreFuture<()> {
        self.0.refund(charges)
    }

    fn reset(&self, charges: &Charges) -> StoreFuture<()> {
        self.0.reset(charges)
    }

    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.0)
    }
}

#[test]
fn limits_that_a_sketch_cannot_count_are_errors() {
    let bucket = || Limit::new("api", TokenBucket::per_second(10));
    let window = || Limit::new("api", FixedWindow::per_minute(10));
    let error = |limit: Limit, store: MemoryStore| {
        RateLimitLayer::builder([limit.by(key::peer_ip())]).store(store).try_build().unwrap_err().to_string()
    };
    assert_eq!(
        error(bucket(), MemoryStore::sketch(LARGE)),
        "the store can't keep the limit \"api\": a sketch can't count a token bucket of 10 per second with a capacity \
         of 10: use a `FixedWindow`, a `CalendarWindow` or a `SlidingWindowCounter`, or a `MemoryStore` without a sketch",
    );
    let log = Limit::new("api", SlidingLog::per_minute(10));
    assert!(error(log, MemoryStore::new().overflow(LARGE)).contains("can't count a sliding log"));
    let penalty = Penalty::after(3, MINUTE);
    assert!(error(window().penalty(penalty), MemoryStore::sketch(LARGE)).contains("keeps no strikes"));
    let count_if = || window().count_if(|head| head.status.is_client_error());
    assert!(error(count_if(), MemoryStore::sketch(LARGE)).contains("refunds nothing"));
    let overflow = MemoryStore::new().overflow(LARGE);
    assert!(RateLimitLayer::builder([count_if().by(key::peer_ip())]).store(overflow).try_build().is_ok());

    let wrapped = Limiter::builder([bucket()]).store(Wrapping(MemoryStore::sketch(LARGE))).try_build();
    assert!(wrapped.is_err());
    let live = LiveLimits::new([window()]);
    let limiter = Limiter::live_builder(&live).store(MemoryStore::sketch(LARGE)).build();
    assert!(live.replace([bucket()]).unwrap_err().to_string().contains("the limit \"api\""));
    assert!(limiter.acquire("key", 10).now().is_allowed());
    assert!(!limiter.acquire("key", 1).now().is_allowed());
}

#[test]
fn refunds_and_resets_of_keys_in_a_sketch_are_errors() {
    let pair = Pair::new(
        MemoryStore::new().max_keys(1).overflow(LARGE),
        vec![Limit::new("window", FixedWindow::new(5, MINUTE)).overridable()],
    );
    let [known, sketched] = [1_u64, 2].map(|key| pair.acquire(key, 2).into_receipt());
    pair.limiter.refund(known).now();
    pair.limiter.reset(1_u64).now();
    let kind = |answer: Result<(), StoreError>| answer.unwrap_err().kind();
    let refunded = pair.limiter.refund(sketched).into_ready().unwrap();
    assert_eq!(kind(refunded), StoreErrorKind::NotSupported);
    assert_eq!(kind(pair.limiter.reset(2_u64).into_ready().unwrap()), StoreErrorKind::NotSupported);
    // An override is kept apart from the counts.
    let handle = pair.limiter.limit("window").unwrap();
    handle.set_override(2_u64, FixedWindow::new(50, MINUTE), None).now_or_never().unwrap().unwrap();
    assert_eq!(pair.limiter.peek(2_u64, 0).now().remaining(), [48]);
    // When the window is over, there is nothing to refund or to reset.
    pair.clock.advance(MINUTE);
    pair.limiter.reset(2_u64).now();
}

/// `count_if` asks for such refunds, and the store works as it should.
#[test]
fn a_refund_of_a_key_in_a_sketch_is_no_failure_of_the_store() {
    let log = EventLog::default();
    let limits = [Limit::new("window", FixedWindow::new(5, MINUTE))];
    let limiter = Limiter::builder(limits).store(MemoryStore::sketch(LARGE)).observe(log.observer()).build();
    let receipt = limiter.acquire("key", 1).now().into_receipt();
    assert!(limiter.refund(receipt).into_ready().unwrap().is_err());
    assert!(limiter.reset("key").into_ready().unwrap().is_err());
    assert_eq!(log.take(), [] as [&str; 0]);
}

#[test]
fn the_memory_of_a_limit_is_stated_and_freed_with_it() {
    let clock = ManualClock::new(Timestamp::from_micros(1_767_225_600_000_000));
    let store = Arc::new(MemoryStore::sketch(LARGE).clock(clock.clone()));
    let (window, counter) = (FixedWindow::new(5, MINUTE), SlidingWindowCounter::new(5, MINUTE));
    let [of_window, of_counter] = [store.sketch_bytes(window), store.sketch_bytes(counter)];
    assert_eq!(store.sketch_bytes(TokenBucket::per_second(1)), 0);
    assert_eq!(MemoryStore::new().sketch_bytes(window), 0);
    let (empty, live) = (store.bytes(), LiveLimits::new([Limit::new("window", window)]));
    let limiter = Limiter::live_builder(&live).store(store.clone()).build();
    assert_eq!(store.bytes() - empty, of_window);
    let other = Limiter::builder([Limit::new("window", window)]).store(store.clone()).build();
    assert_eq!(store.usage().bytes, Some((empty + of_window) as u64), "limiters share the sketch of a limit");
    assert!(limiter.acquire("key", 3).now().is_allowed());

    live.replace([Limit::new("counter", counter)]).unwrap();
    assert_eq!(store.bytes() - empty, of_window + of_counter);
    assert_eq!(other.peek("key", 0).now().remaining(), [2], "another limiter has the limit");
    drop(other);
    let again = Limiter::builder([Limit::new("window", window)]).store(store.clone()).build();
    assert_eq!(again.peek("key", 0).now().remaining(), [2], "the window is not over");
    drop(again);
    clock.advance(2 * MINUTE);
    live.replace([Limit::new("counter", counter), Limit::new("third", window)]).unwrap();
    let (third, bytes) = (of_window, store.bytes() - empty);
    assert!((of_counter + third..=of_counter + third + 200).contains(&bytes), "{bytes} bytes");
}

/// The limits that a live limiter was built with decide nothing once they are replaced.
#[test]
fn a_live_limiter_frees_the_sketches_of_its_first_limits() {
    let clock = ManualClock::new(Timestamp::from_micros(1_767_225_600_000_000));
    let store = Arc::new(MemoryStore::sketch(LARGE).clock(clock.clone()));
    let window = |name: &str| Limit::new(name, FixedWindow::new(5, MINUTE));
    let (empty, live) = (store.bytes(), LiveLimits::new([window("first")]));
    let _limiter = RequestLimiter::live_builder(&live).store(store.clone()).build();
    for name in ["second", "third"] {
        clock.advance(2 * MINUTE);
        live.replace([window(name)]).unwrap();
    }
    // The second limits decide until the third ones are prepared.
    let most = 2 * store.sketch_bytes(FixedWindow::new(5, MINUTE)) + 400;
    assert!(store.bytes() - empty <= most, "{} of {most} bytes", store.bytes() - empty);
}

/// A size of another period has a state of its own, for which nothing was prepared.
#[tokio::test]
async fn a_size_with_another_period_is_an_error() {
    for (hours, is_allowed) in [(1, true), (2, false)] {
        let size: Algorithm = FixedWindow::new(7, hours * 60 * MINUTE).into();
        let limit = Limit::new("window", FixedWindow::per_hour(5)).by(key::header("user")).size_by(move |_| Some(size));
        let events = EventLog::default();
        let builder = RequestLimiter::builder([limit]).store(MemoryStore::sketch(LARGE));
        let limiter = builder.observe(events.observer()).build();
        let request = Request::builder().header("user", "ann").body(()).unwrap();
        assert_eq!(limiter.decide(&RequestHead::of(&request)).await.is_ok(), is_allowed);
        let error = "the rate limit store can't count the limit \"window\" at a size of another algorithm or period: \
                     let its sizes differ in their tokens only, or use a store without a sketch";
        assert_eq!(events.take(), if is_allowed { vec![] } else { vec![error] });
    }
}
