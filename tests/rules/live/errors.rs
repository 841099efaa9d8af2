//! Rejected replacements, and failures of the store during a replacement.

use std::sync::{Arc, Mutex};

use http::StatusCode;
use tower_ratelimit::{
    BreakerState, CircuitBreaker, Event, FixedWindow, Limit, Limiter, LiveLimits, OnStoreError, RateLimitLayer,
    RedisConfig, Share, key,
};

use crate::live::{app, are, by, left};
use support::redis_server::RedisServer;
use support::store_fixture::{StoreFixture, on_both_stores, user_key, visit};

fn daily(name: &str, tokens: u32) -> Limit {
    Limit::new(name, FixedWindow::per_day(tokens)).by(user_key())
}

async fn rules_that_are_rejected_change_nothing(fixture: StoreFixture) {
    let rules = LiveLimits::new([daily("a", 20)]);
    let limits = by(&rules, &fixture).build();
    let (app, big) = (app(limits.clone()), app(limits.cost(10)));
    let rejected = |limits: Vec<Limit>| rules.replace(limits).unwrap_err().to_string();
    assert_eq!(rejected(vec![daily("a", 1), daily("a", 2)]), "two limits are named \"a\": give each a name of its own");
    let many = (0..65).map(|number| daily(&number.to_string(), 9)).collect();
    assert_eq!(rejected(many), "65 limits for one request are too many: use at most 64");
    assert_eq!(
        rejected(vec![daily("b", 9)]),
        "a cost of 10 can never pass the limit \"b\", which holds 9: lower the cost, raise the limit, or \
                give the limit a cost of its own with `Limit::cost`"
    );
    assert!(rules.replace([daily("a", 9).cost(1), daily("b", 10)]).is_ok());
    rules.replace([daily("a", 20)]).unwrap();
    assert_eq!(left(&visit(&app, "/", "ann").await), are(&[("a", 19)]));
    assert_eq!(left(&visit(&big, "/", "ann").await), are(&[("a", 9)]));
    // A layer rejects a cost that exceeds the capacity of a current limit.
    assert!(limits.try_cost(21).is_err());
    rules.replace([daily("a", 30)]).unwrap();
    assert!(limits.try_cost(21).is_ok());
}

async fn limits_are_the_previous_ones_after_a_replacement_fails(fixture: StoreFixture) {
    let rules = LiveLimits::new([daily("a", 20)]);
    // The first layer could take the limit, and the second can't.
    let limits = by(&rules, &fixture).build();
    let (first, big) = (app(limits.clone()), app(limits.cost(10)));
    assert!(rules.replace([daily("b", 9)]).is_err());
    let names = rules.limits().iter().map(|limit| limit.name().to_owned()).collect::<Vec<_>>();
    assert_eq!(names, ["a"]);
    assert_eq!(left(&visit(&first, "/", "ann").await), are(&[("a", 19)]));
    assert_eq!(left(&visit(&big, "/", "ann").await), are(&[("a", 9)]));
    let later = app(by(&rules, &fixture).build());
    assert_eq!(left(&visit(&later, "/", "ann").await), are(&[("a", 8)]), "a layer that is built later");
}

on_both_stores!(rules_that_are_rejected_change_nothing, limits_are_the_previous_ones_after_a_replacement_fails);

#[test]
fn a_limiter_rejects_limits_that_need_a_request() {
    let rules = LiveLimits::new([Limit::new("a", FixedWindow::per_day(1))]);
    let _limiter = Limiter::live_builder(&rules).build();
    let error = rules.replace([Limit::new("a", FixedWindow::per_day(1)).by(key::peer_ip())]).unwrap_err();
    assert!(error.to_string().contains("\"a\""), "{error}");
    let keyed = LiveLimits::new([Limit::new("a", FixedWindow::per_day(1)).by(key::peer_ip())]);
    assert!(Limiter::live_builder(&keyed).try_build().is_err());
}

#[test]
fn a_layer_or_limiter_no_longer_constrains_replacements_once_it_is_dropped() {
    let small = || [daily("a", 9)];
    let rules = LiveLimits::new([Limit::new("a", FixedWindow::per_day(20))]);
    let limits = RateLimitLayer::live_builder(&rules).build();
    let big = limits.cost(10);
    let limiter = Limiter::live_builder(&rules).build();
    assert!(rules.replace(small()).is_err());
    drop(big);
    assert!(rules.replace(small()).unwrap_err().to_string().contains("request"));
    drop(limiter);
    rules.replace(small()).unwrap();
}

/// The breaker stays open, and local usage is kept.
#[tokio::test]
async fn breakers_stay_open_when_limits_are_replaced() {
    let server = RedisServer::not_started();
    let store = RedisConfig::node(server.url()).connect_lazily().unwrap();
    let events: Arc<Mutex<Vec<String>>> = Arc::default();
    let reported = events.clone();
    let rules = LiveLimits::new([daily("a", 3)]);
    let limits = RateLimitLayer::live_builder(&rules)
        .store(store)
        .on_store_error(OnStoreError::DecideLocally(Share::whole()))
        .circuit_breaker(CircuitBreaker::new().failures(2))
        .observe(move |event| match event {
            Event::StoreFailed { error, .. } => reported.lock().unwrap().push(format!("{:?}", error.kind())),
            Event::BreakerChanged { state: BreakerState::Open, .. } => reported.lock().unwrap().push("open".to_owned()),
            _ => {}
        })
        .build();
    let app = app(limits);
    for _ in 0..2 {
        assert_eq!(visit(&app, "/", "ann").await.status, StatusCode::OK);
    }
    assert_eq!(*events.lock().unwrap(), ["Failed", "Failed", "open"]);
    events.lock().unwrap().clear();
    rules.replace([daily("b", 9), daily("a", 4)]).unwrap();
    for (status, remaining) in [(200, [("b", 8), ("a", 1)]), (200, [("b", 7), ("a", 0)]), (429, [("b", 7), ("a", 0)])] {
        let answer = visit(&app, "/", "ann").await;
        assert_eq!((answer.status.as_u16(), left(&answer)), (status, are(&remaining)));
    }
    assert_eq!(*events.lock().unwrap(), ["BreakerOpen"; 3], "the refund was not repeated");
}

/// A denial by an unchanged limit is still cached.
#[tokio::test]
async fn cached_denials_survive_a_switch_of_rules() {
    let mut fixture = StoreFixture::on_redis().await;
    let rules = LiveLimits::new([daily("a", 1), daily("b", 9)]);
    let app = app(RateLimitLayer::live_builder(&rules)
        .store(fixture.store.clone())
        .circuit_breaker(CircuitBreaker::off())
        .build());
    assert!(!visit(&app, "/", "ann").await.is_denied());
    assert!(visit(&app, "/", "ann").await.is_denied());
    fixture.server.as_mut().unwrap().stop();
    rules.replace([daily("a", 1), daily("b", 20)]).unwrap();
    let denied = visit(&app, "/", "ann").await;
    assert!(denied.is_denied());
    assert_eq!(left(&denied), are(&[("a", 0), ("b", 19)]));
    assert_eq!(visit(&app, "/", "bob").await.status, StatusCode::SERVICE_UNAVAILABLE);
    // After the limit is raised, Redis decides.
    rules.replace([daily("a", 2), daily("b", 20)]).unwrap();
    assert_eq!(visit(&app, "/", "ann").await.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[test]
fn observers_are_notified_when_rules_are_replaced() {
    let events: Arc<Mutex<Vec<String>>> = Arc::default();
    let reported = events.clone();
    let rules = LiveLimits::new([]).observe(move |event| reported.lock().unwrap().push(format!("{event:?}")));
    rules.replace([daily("a", 1), daily("b", 1)]).unwrap();
    assert!(rules.replace([daily("a", 1), daily("a", 1)]).is_err());
    rules.replace([]).unwrap();
    assert_eq!(*events.lock().unwrap(), ["LimitsReplaced { limits: 2 }", "LimitsReplaced { limits: 0 }"]);
    assert!(rules.limits().is_empty());
}
