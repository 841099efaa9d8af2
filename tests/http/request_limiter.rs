//! Requests that are decided by their heads, without a service.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request, StatusCode};
use tower::Layer;
use tower_ratelimit::key::{self, KeyError};
use tower_ratelimit::store::{KeyHasher, Outcome};
use tower_ratelimit::{
    Concurrency, DecidedBy, Decision, Event, Limit, ListAction, LiveLimits, OnMissingKey, OnStoreError, Penalty,
    RateLimitLayer, Reason, Recorder, Rejection, RequestHead, RequestLimiter, Share, TokenBucket, when,
};

use crate::service::{Hello, get, one, per_day, with};
use crate::store::paused_store;
use support::answer::ask;
use support::faulty_store::{FaultyStore, Mode, Operation};
use support::limits::Patient;
use support::split_mix::Random;
use support::store_fixture::StoreFixture;

/// Limits with keys, one of which is awaited, with conditions and costs.
fn limits() -> Vec<Limit> {
    let slow = key::from_async_fn(|head| {
        let user = head.header("x-user").map(str::to_owned);
        async move {
            tokio::task::yield_now().await;
            user
        }
    });
    vec![
        per_day("users", 20).by(key::header("x-user")),
        Limit::new("posts", TokenBucket::per_hour(5)).by(slow).when(when::method(Method::POST)),
        per_day("skipped", 9).by(key::header("x-other")).on_missing_key(OnMissingKey::Skip),
        per_day("all", 200).cost(1),
    ]
}

fn random_request(random: &mut Random) -> Request<()> {
    let mut request = Request::get(["/", "/reports"][random.below(2) as usize]);
    if random.below(2) == 0 {
        request = request.method(Method::POST);
    }
    for (header, values) in [("x-user", 4), ("x-other", 2), ("x-staff", 1), ("x-blocked", 1)] {
        let rare = if header == "x-user" { 8 } else { 2 };
        if random.below(rare) != 0 && (header.len() < 7 || header == "x-other" || random.below(8) == 0) {
            request = request.header(header, random.below(values));
        }
    }
    request.body(()).expect("a request")
}

#[tokio::test]
async fn a_request_is_decided_as_by_a_layer() {
    // Explanations show fingerprints.
    let store = || paused_store().with_hasher(KeyHasher::with_secret([1; 16]));
    let cost = |head: &RequestHead<'_>| if head.path() == "/reports" { 3 } else { 1 };
    let (staff, blocked) = (|| when::header("x-staff", "0"), || when::header("x-blocked", "0"));
    let layer = RateLimitLayer::builder(limits()).cost_by(cost).store(store());
    let layer = layer.never_limit(staff()).always_reject(blocked()).build();
    let limiter = RequestLimiter::builder(limits()).cost_by(cost).store(store());
    let limiter = limiter.never_limit(staff()).always_reject(blocked()).build();
    let (service, mut random, mut seen) = (layer.layer(Hello::default()), Random(1), [0; 4]);
    for step in 0..2_000 {
        let request = random_request(&mut random);
        let head = RequestHead::of(&request);
        let (explained, explanation) = (limiter.explain(&head).await, layer.explain(&head).await);
        assert_eq!(explained, explanation, "in step {step}");
        let (status, wait) = match limiter.decide(&head).await {
            Ok(decision) if decision.is_allowed() => (StatusCode::OK, None),
            Ok(decision) => (StatusCode::TOO_MANY_REQUESTS, decision.retry_after()),
            Err(Reason::MissingKey(KeyError::NotSent)) => (StatusCode::BAD_REQUEST, None),
            Err(Reason::Listed(ListAction::Forbidden)) => (StatusCode::FORBIDDEN, None),
            Err(reason) => panic!("{reason:?} in step {step}"),
        };
        let answer = ask(&service, request).await;
        assert_eq!(answer.status, status, "in step {step}: {explanation}");
        let retry_after = answer.header("retry-after").map(|wait| wait.parse::<u64>().expect("seconds"));
        assert_eq!(retry_after, wait.map(|wait: Duration| wait.as_secs_f64().ceil() as u64), "in step {step}");
        seen[[200, 429, 400, 403].iter().position(|code| status == *code).expect("one of them")] += 1;
    }
    assert!(seen.iter().all(|count| *count > 50), "{seen:?}");
}

fn by_user() -> Limit {
    one().by(key::header("x-user"))
}

#[derive(Default)]
struct Recorded(Mutex<Vec<String>>);

impl Recorder for Recorded {
    fn rejection(&self, rejection: &Rejection<'_>) {
        self.0.lock().unwrap().push(format!("{:?}", rejection.reason));
    }

    fn event(&self, event: &Event<'_>) {
        if let Event::ListMatched { action, .. } = event {
            self.0.lock().unwrap().push(format!("{action:?}"));
        }
    }
}

#[tokio::test]
async fn rejections_are_recorded() {
    let recorded = Arc::new(Recorded::default());
    let limits = RequestLimiter::builder(by_user()).store(paused_store()).recorder(recorded.clone());
    let limits = limits.always_reject(when::header("x-blocked", "yes")).build();
    for (header, value) in [("x-user", "ann"), ("x-user", "ann"), ("x-other", "ann"), ("x-blocked", "yes")] {
        let _ = limits.decide(&RequestHead::of(&with(&[(header, value)]))).await;
    }
    let recorded = std::mem::take(&mut *recorded.0.lock().unwrap());
    assert_eq!(
        recorded,
        ["Limited { retry_after: Some(60s) }", "MissingKey(NotSent)", "Forbidden", "Listed(Forbidden)"]
    );
}

#[tokio::test]
async fn the_policy_decides_when_the_store_fails() {
    for (policy, expected) in
        [(OnStoreError::Reject, Err(Reason::StoreFailed)), (OnStoreError::Allow, Ok(DecidedBy::Unlimited))]
    {
        let limits = RequestLimiter::builder(one());
        let limits = limits.store(FaultyStore::new(Mode::Fails)).on_store_error(policy).build();
        let decided = limits.decide(&RequestHead::of(&get("/"))).await.map(|decision| decision.decided_by());
        assert_eq!(decided, expected);
    }
}

#[tokio::test]
async fn a_receipt_is_refunded_and_limits_are_replaced() {
    let live = LiveLimits::new(by_user());
    let limits = RequestLimiter::live_builder(&live).store(paused_store()).build();
    let request = with(&[("x-user", "ann")]);
    let head = RequestHead::of(&request);
    let receipt = limits.decide(&head).await.unwrap().into_receipt();
    assert!(!limits.decide(&head).await.unwrap().is_allowed());
    limits.refund(receipt).await.unwrap();
    assert!(limits.decide(&head).await.unwrap().is_allowed());
    live.replace([by_user(), per_day("two", 2).by(key::header("x-team"))]).unwrap();
    assert_eq!(limits.decide(&head).await.unwrap_err(), Reason::MissingKey(KeyError::NotSent));
}

#[tokio::test]
async fn requests_are_charged_together_or_not_at_all() {
    let recorded = Arc::new(Recorded::default());
    let limits = || [per_day("users", 5).by(key::header("x-user")), per_day("all", 9)];
    let limiter =
        RequestLimiter::builder(limits()).cost_by(|head| head.header("x-cost").map_or(1, |cost| cost.parse().unwrap()));
    let limiter = limiter.store(paused_store()).recorder(recorded.clone()).build();
    let requests = |users: &[[&str; 2]]| -> Vec<_> {
        users.iter().map(|[user, cost]| with(&[("x-user", user), ("x-cost", cost)])).collect()
    };
    // For each request: whether its own limits have capacity, and how many tokens its user has left.
    let decide = async |users: &[[&str; 2]]| {
        let requests = requests(users);
        let heads: Vec<_> = requests.iter().map(RequestHead::of).collect();
        limiter.decide_all(&heads).await.unwrap()
    };
    let told = |decisions: &[Decision]| -> Vec<_> {
        decisions.iter().map(|decision| (decision.is_allowed(), decision.outcomes()[0].remaining())).collect()
    };
    let decisions = decide(&[["ann", "2"], ["bob", "1"], ["ann", "2"]]).await;
    assert_eq!(told(&decisions), [(true, 1), (true, 4), (true, 1)]);
    // The second user's tokens suffice, but the first user's and those of all don't.
    let denied = decide(&[["bob", "3"], ["ann", "2"]]).await;
    assert_eq!(told(&denied), [(false, 4), (false, 1)], "all have 4 left");
    let denied = decide(&[["bob", "1"], ["ann", "2"]]).await;
    assert_eq!(told(&denied), [(true, 4), (false, 1)]);
    assert!(denied.into_iter().all(|decision| decision.into_receipt().is_empty()));
    assert_eq!(told(&decide(&[["bob", "0"], ["ann", "0"]]).await), [(true, 4), (true, 1)], "nothing was charged");
    // Each receipt has the cost of its request.
    let first = decisions.into_iter().next().unwrap();
    limiter.refund(first.into_receipt()).await.unwrap();
    assert_eq!(told(&decide(&[["bob", "0"], ["ann", "0"]]).await), [(true, 4), (true, 3)]);
    assert!(limiter.decide_all(&[]).await.unwrap().is_empty());
    assert_eq!(recorded.0.lock().unwrap().len(), 2, "one rejection for each call");
}

#[tokio::test]
async fn a_denial_of_requests_with_one_key_is_one_strike() {
    let codes = per_day("codes", 1).by(key::header("x-user")).penalty(Penalty::after(2, Duration::from_secs(60)));
    let limiter = RequestLimiter::builder([codes]).store(paused_store()).build();
    let request = with(&[("x-user", "ann")]);
    for is_locked_out in [false, true] {
        let decisions = limiter.decide_all(&[RequestHead::of(&request), RequestHead::of(&request)]).await.unwrap();
        assert!(decisions.iter().all(|decision| !decision.is_allowed() && decision.is_locked_out() == is_locked_out));
    }
}

/// A request that is rejected without a decision rejects those that it is decided with.
#[tokio::test]
async fn requests_are_rejected_together() {
    let limiter = RequestLimiter::builder([per_day("users", 5).by(key::header("x-user")), per_day("all", 100)]);
    let limiter = limiter.store(paused_store()).never_limit(when::header("x-staff", "yes")).build();
    let decide = async |requests: &[Request<()>]| {
        let heads: Vec<_> = requests.iter().map(RequestHead::of).collect();
        limiter.decide_all(&heads).await
    };
    let (ann, staff) = (with(&[("x-user", "ann")]), with(&[("x-staff", "yes")]));
    assert_eq!(decide(&[ann.clone(), with(&[])]).await.unwrap_err(), Reason::MissingKey(KeyError::NotSent));
    let decisions = decide(&[staff, ann]).await.unwrap();
    assert_eq!(decisions[0].decided_by(), DecidedBy::Unlimited);
    assert_eq!(decisions[1].outcomes()[0].remaining(), 4, "the first call charged nothing");
    let users = |number| -> Vec<_> { (0..number).map(|user| with(&[("x-user", &user.to_string())])).collect() };
    assert_eq!(decide(&users(63)).await.unwrap().len(), 63);
    assert_eq!(decide(&users(64)).await.unwrap_err(), Reason::TooManyLimits);
}

/// Otherwise, it would refund nothing.
#[tokio::test]
async fn a_receipt_of_another_limiter_is_an_error() {
    let [one, other] = [(); 2].map(|()| RequestLimiter::builder(by_user()).store(paused_store()).build());
    let request = with(&[("x-user", "ann")]);
    let receipt = one.decide(&RequestHead::of(&request)).await.unwrap().into_receipt();
    let error = other.refund(receipt).await.unwrap_err();
    assert_eq!(error.to_string(), "a receipt is of another limiter: refund it by the one that charged it");
}

/// Otherwise, it would never be settled.
#[test]
fn a_limit_that_depends_on_a_response_is_an_error() {
    let settled = || per_day("settled", 1).count_if(|head| head.status == 401);
    let message = "the limit \"settled\" takes its actual cost from a response, but a `RequestLimiter` has none: ";
    let error = RequestLimiter::builder([settled()]).try_build().unwrap_err().to_string();
    assert!(error.starts_with(message), "{error}");
    let live = LiveLimits::new(one());
    let limits = RequestLimiter::live_builder(&live).build();
    let error = live.replace([settled()]).unwrap_err().to_string();
    assert!(error.starts_with(message), "{error}");
    drop(limits);
}

#[tokio::test]
async fn costs_come_back_without_receipts() {
    for fixture in [StoreFixture::in_memory(), StoreFixture::on_redis().await] {
        for (name, algorithm) in support::limits::all(10, Duration::from_secs(86_400)) {
            let limit = Limit::new(name, algorithm).by(key::header("x-user"));
            let limiter = RequestLimiter::builder([limit]).store(fixture.store.clone()).patient();
            let cost = |head: &RequestHead<'_>| head.header("x-cost").and_then(|cost| cost.parse().ok()).unwrap_or(1);
            let limiter = limiter.cost_by(cost).build();
            let request = |cost: u64| with(&[("x-user", "ann"), ("x-cost", &cost.to_string())]);
            let left = |decision: &Decision| decision.outcomes()[0].remaining();
            let refund = async |cost| {
                let request = request(cost);
                left(&limiter.refund_costs(&[RequestHead::of(&request)]).await.unwrap()[0])
            };
            let take = async |cost| left(&limiter.decide(&RequestHead::of(&request(cost))).await.unwrap());

            assert_eq!(refund(3).await, 10, "{name}: nothing was used");
            assert_eq!(take(4).await, 6, "{name}");
            // A queue gives its last slot back.
            assert_eq!(refund(4).await, 10, "{name}");
            assert_eq!(take(5).await, 5, "{name}");
            let after_one = refund(1).await;
            assert!(after_one == 6 || name == "leaky_bucket_queue" && after_one >= 6, "{name}: {after_one}");
            assert_eq!(refund(u64::MAX).await, 10, "{name}: no more than was used");
            assert_eq!(take(10).await, 0, "{name}");
            fixture.advance(Duration::from_secs(2 * 86_400));
            assert_eq!(refund(10).await, 10, "{name}: all has come back by itself");
            assert_eq!(take(10).await, 0, "{name}: nothing was given back twice");
            fixture.advance(Duration::from_secs(2 * 86_400));
        }
    }
}

/// A policy allows requests, but can't refund what the store has charged.
#[tokio::test]
async fn costs_are_not_refunded_while_the_store_fails() {
    for policy in [OnStoreError::Reject, OnStoreError::Allow, OnStoreError::DecideLocally(Share::one_of(2))] {
        for operation in [Operation::Peek, Operation::Refund] {
            let (store, recorded) = (FaultyStore::new(Mode::Works), Arc::new(Recorded::default()));
            let limiter = RequestLimiter::builder([per_day("all", 5)]).store(store.clone()).on_store_error(policy);
            let limiter = limiter.recorder(recorded.clone()).patient().build();
            let (request, left) = (get("/"), |decision: &Decision| decision.outcomes()[0].remaining());
            let head = RequestHead::of(&request);
            assert_eq!(left(&limiter.decide(&head).await.unwrap()), 4);
            store.set_for(operation, Mode::Fails);
            assert_eq!(limiter.refund_costs(&[head]).await.unwrap_err(), Reason::StoreFailed, "{policy:?}");
            assert_eq!(*recorded.0.lock().unwrap(), ["StoreFailed"], "{policy:?}");
            store.set_for(operation, Mode::Works);
            assert_eq!(left(&limiter.refund_costs(&[head]).await.unwrap()[0]), 5, "{policy:?}");
        }
    }
}

#[tokio::test]
async fn no_store_is_needed_to_refund_requests_without_limits() {
    let limiter = RequestLimiter::builder(by_user()).never_limit(when::header("x-staff", "0"));
    let limiter = limiter.store(FaultyStore::new(Mode::Fails)).build();
    let request = with(&[("x-staff", "0")]);
    let decisions = limiter.refund_costs(&[RequestHead::of(&request)]).await.unwrap();
    assert!(decisions[0].outcomes().is_empty());
}

/// Nobody tells the limiter when a request ends.
#[tokio::test]
async fn slots_are_returned_by_refunds_and_expire() {
    for fixture in [StoreFixture::in_memory(), StoreFixture::on_redis().await] {
        let streams = || Concurrency::limit(2).time_to_live(Duration::from_secs(8));
        let limits = [
            Limit::new("streams", streams()).by(key::header("x-user")),
            Limit::new("head", streams()).by(key::header("x-user")).until_head(),
        ];
        let hits = |head: &RequestHead<'_>| head.header("x-hits").and_then(|hits| hits.parse().ok()).unwrap_or(1);
        let limiter = RequestLimiter::builder(limits).store(fixture.store.clone()).patient().cost_by(hits).build();
        let request = |hits: &str| with(&[("x-user", "ann"), ("x-hits", hits)]);
        let left = |decision: &Decision| decision.outcomes().iter().map(Outcome::remaining).collect::<Vec<_>>();
        let decide = async |hits| limiter.decide(&RequestHead::of(&request(hits))).await.expect("a decision");
        let refund = async |hits| {
            let request = request(hits);
            left(&limiter.refund_costs(&[RequestHead::of(&request)]).await.expect("a refund")[0])
        };

        assert_eq!(left(&decide("1").await), [1, 1]);
        assert_eq!(left(&decide("0").await), [1, 1], "a question takes none");
        let last = decide("9").await;
        assert_eq!(left(&last), [0, 0], "whatever the hits are");
        let denied = decide("1").await;
        assert!(!denied.is_allowed());
        assert_eq!(denied.retry_after(), Some(Duration::from_secs(1)));

        assert_eq!(refund("1").await, [1, 1]);
        limiter.refund(last.into_receipt()).await.expect("a refund");
        assert_eq!(left(&decide("0").await), [2, 2]);
        assert_eq!(refund("1").await, [2, 2], "no more than were taken");

        // Forgotten slots are free after the time to live, an eighth more or less.
        assert_eq!(left(&decide("1").await), [1, 1]);
        fixture.advance(Duration::from_secs(6));
        assert_eq!(left(&decide("1").await), [0, 0]);
        fixture.advance(Duration::from_secs(3));
        assert_eq!(left(&decide("0").await), [1, 1]);
        assert_eq!(refund("1").await, [2, 2], "the one that is still there");
        fixture.advance(Duration::from_secs(9));
    }
}
