//! Permits of limits with overage, in shadow mode, and with other sizes for some requests.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use tower_ratelimit::{Builder, Event, HttpOptions, Limit, Permit, SlidingLog, when};

use super::settle_each;
use crate::service::per_day;
use support::store_fixture::{StoreFixture, on_both_stores, user_key, visit};

on_both_stores!(
    charges_under_another_size_are_settled,
    charges_under_another_size_are_refunded_and_reset,
    responses_settle_charges_under_another_size,
    charges_may_use_overage,
    charges_that_a_shadow_limit_denied_are_not_refunded,
    a_shadow_limit_settles_the_whole_cost,
    each_limit_reports_the_tokens_that_it_lacks,
);

/// Returns a router whose route `/{n}` settles n tokens in each limit and responds with the shortfall.
fn app(limits: &Builder<HttpOptions>) -> Router {
    let settle = async |permit: Permit, Path(actual): Path<u64>| settle_each(&permit, actual).await.to_string();
    Router::new().route("/{actual}", get(settle)).layer(limits.clone().permits().build())
}

/// Returns a limit of 100 per day, and of 1,000 by another algorithm for the plan `pro`.
fn tokens() -> Limit {
    let pro = when::header("x-user", "pro");
    per_day("tokens", 100).by(user_key()).size_when(pro, SlidingLog::per_day(1_000))
}

fn tokens_of_pro() -> Limit {
    Limit::new("tokens", SlidingLog::per_day(1_000)).by(user_key())
}

async fn charges_under_another_size_are_settled(fixture: StoreFixture) {
    let app = app(&fixture.builder([tokens()]).cost(10));
    for (path, shortfall, left) in [("/500", "0", 500), ("/4", "0", 496), ("/0", "0", 496), ("/1000", "504", 0)] {
        let answer = visit(&app, path, "pro").await;
        assert_eq!((answer.body.as_str(), answer.remaining()), (shortfall, left), "{path}");
        assert_eq!(answer.header("ratelimit-policy"), Some("\"tokens\";q=1000;w=86400"), "{path}");
        assert_eq!(fixture.remaining(&tokens_of_pro(), "pro").await, left, "{path}");
    }
    assert!(visit(&app, "/0", "pro").await.is_denied());
    for (path, shortfall, left) in [("/4", "0", 96), ("/500", "404", 0)] {
        let answer = visit(&app, path, "ann").await;
        assert_eq!((answer.body.as_str(), answer.remaining()), (shortfall, left), "{path}");
    }
}

async fn charges_under_another_size_are_refunded_and_reset(fixture: StoreFixture) {
    let handler = async |permit: Permit, Path(forget): Path<bool>| {
        assert!(permit.charge(200).await.expect("a decision").is_allowed());
        if forget { permit.reset().await } else { permit.refund().await }.expect("the work is done");
    };
    let limits = fixture.builder([tokens()]).cost(10);
    let settle = app(&limits);
    let app = Router::new().route("/{forget}", get(handler)).layer(limits.clone().permits().build());
    for (path, left) in [("/false", 700), ("/true", 1_000)] {
        if path == "/false" {
            visit(&settle, "/300", "pro").await;
        }
        let answer = visit(&app, path, "pro").await;
        assert_eq!((answer.status.as_u16(), answer.remaining()), (200, left), "{path}");
        assert_eq!(fixture.remaining(&tokens_of_pro(), "pro").await, left, "{path}");
    }
}

async fn responses_settle_charges_under_another_size(fixture: StoreFixture) {
    let limit = tokens().settle_by(|response| response.header("x-used")?.parse().ok());
    let handler = async |Path(used): Path<String>| [("x-used", used)];
    let app = Router::new().route("/{used}", get(handler)).layer(fixture.builder(limit).cost(200).build());
    for (path, left) in [("/50", 950), ("/150", 800), ("/500", 300), ("/0", 300)] {
        visit(&app, path, "pro").await;
        fixture.wait_for_remaining(&tokens_of_pro(), "pro", left).await;
    }
}

async fn charges_may_use_overage(fixture: StoreFixture) {
    let soft = per_day("soft", 100).by(user_key()).soft(20);
    let all = per_day("soft", 120).by(user_key());
    let app = app(&fixture.builder([soft]).cost(10));
    for (user, path, shortfall, left) in [
        ("ann", "/95", "0", 25),
        ("ann", "/15", "0", 10),
        ("ann", "/30", "20", 0),
        ("bob", "/130", "10", 0),
        ("eve", "/120", "0", 0),
    ] {
        assert_eq!(visit(&app, path, user).await.body, shortfall, "{user} {path}");
        assert_eq!(fixture.remaining(&all, user).await, left, "{user} {path}");
    }
}

/// The limit in shadow mode has 12.
fn shadow() -> Limit {
    per_day("shadow", 12).by(user_key())
}

fn hundred() -> Limit {
    per_day("hundred", 100).by(user_key())
}

async fn charges_that_a_shadow_limit_denied_are_not_refunded(fixture: StoreFixture) {
    let app = app(&fixture.builder([hundred(), shadow().shadow()]).cost(10));
    for (path, left, in_shadow) in [("/10", 90, 2), ("/0", 90, 2), ("/5", 85, 2), ("/2", 83, 0)] {
        assert_eq!(visit(&app, path, "ann").await.body, "0", "{path}");
        assert_eq!(fixture.remaining(&hundred(), "ann").await, left, "{path}");
        assert_eq!(fixture.remaining(&shadow(), "ann").await, in_shadow, "{path}");
    }
}

async fn a_shadow_limit_settles_the_whole_cost(fixture: StoreFixture) {
    let shortfall = Arc::new(AtomicU64::new(0));
    let reported = shortfall.clone();
    let limits = fixture.builder([hundred(), shadow().shadow()]).cost(10).observe(move |event: &Event<'_>| {
        if let Event::Shortfall { limit, tokens, .. } = event {
            assert_eq!(*limit, "hundred");
            reported.fetch_add(*tokens, Ordering::Relaxed);
        }
    });
    let app = app(&limits);
    for (path, body, left) in [("/60", "0", 40), ("/70", "30", 0)] {
        assert_eq!(visit(&app, path, "ann").await.body, body, "{path}");
        assert_eq!(fixture.remaining(&hundred(), "ann").await, left, "{path}");
        assert_eq!(fixture.remaining(&shadow(), "ann").await, 2, "{path}");
    }
    assert_eq!(shortfall.load(Ordering::Relaxed), 30);
}

/// The shortfall of the settlement is that of the limit that lacks the most, in any order of the limits.
async fn each_limit_reports_the_tokens_that_it_lacks(fixture: StoreFixture) {
    let few = || per_day("few", 20).by(user_key());
    for (user, limits) in [("ann", [hundred(), few()]), ("bob", [few(), hundred()])] {
        let reported = Arc::new(Mutex::new(BTreeMap::new()));
        let noted = reported.clone();
        let app = app(&fixture.builder(limits).observe(move |event: &Event<'_>| {
            if let Event::Shortfall { limit, tokens, .. } = event {
                noted.lock().expect("no thread has panicked").insert((*limit).to_owned(), *tokens);
            }
        }));
        assert_eq!(visit(&app, "/130", user).await.body, "110", "{user}");
        let expected = BTreeMap::from([("few".to_owned(), 110), ("hundred".to_owned(), 30)]);
        assert_eq!(*reported.lock().expect("no thread has panicked"), expected, "{user}");
    }
}
