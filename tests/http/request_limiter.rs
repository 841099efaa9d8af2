//! Requests that are decided by their heads, without a service.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request, StatusCode};
use tower::Layer;
use tower_ratelimit::key::{self, KeyError};
use tower_ratelimit::store::KeyHasher;
use tower_ratelimit::{
    DecidedBy, Event, Limit, ListAction, LiveLimits, OnMissingKey, OnStoreError, RateLimitLayer, Reason, Recorder,
    Rejection, RequestHead, RequestLimiter, TokenBucket, when,
};

use crate::service::{Hello, get, one, per_day, with};
use crate::store::paused_store;
use support::answer::ask;
use support::faulty_store::{FaultyStore, Mode};
use support::split_mix::Random;

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
