//! Usage across replacements.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tokio::sync::Notify;
use tower_ratelimit::{
    Algorithm, FixedWindow, LeakyBucket, Limit, LiveLimits, Penalty, Permit, SlidingLog, SlidingWindow,
    SlidingWindowCounter, TokenBucket,
};

use crate::live::{app, are, by, left};
use support::store_fixture::{StoreFixture, on_both_stores, user_key, visit};

const DAY: Duration = Duration::from_secs(86_400);

fn windows(tokens: u32) -> [(&'static str, Algorithm); 4] {
    [
        ("fixed", FixedWindow::new(tokens, DAY).into()),
        ("log", SlidingLog::new(tokens, DAY).into()),
        ("sliding", SlidingWindow::new(tokens, DAY).into()),
        ("counter", SlidingWindowCounter::new(tokens, DAY).into()),
    ]
}

fn daily(name: &str, tokens: u32) -> Limit {
    Limit::new(name, FixedWindow::per_day(tokens)).by(user_key())
}

async fn a_changed_limit_keeps_its_usage(fixture: StoreFixture) {
    for index in 0..windows(1).len() {
        let of = |tokens: u32| {
            let (name, algorithm) = windows(tokens)[index];
            [Limit::new(name, algorithm).by(user_key())]
        };
        let name = windows(1)[index].0;
        let rules = LiveLimits::new(of(100));
        let limits = by(&rules, &fixture).build();
        let app = app(limits.clone());
        let eighty = crate::live::app(limits.cost_by(|_| 80));
        assert_eq!(left(&visit(&eighty, "/", "ann").await), are(&[(name, 20)]));
        rules.replace(of(200)).unwrap();
        assert_eq!(left(&visit(&app, "/", "ann").await), are(&[(name, 119)]));
        assert_eq!(left(&visit(&app, "/", "bob").await), are(&[(name, 199)]));
        // Lower than the usage: no tokens remain until the limit is raised again.
        rules.replace(of(50)).unwrap();
        let denied = visit(&app, "/", "ann").await;
        assert!(denied.is_denied());
        assert_eq!(left(&denied), are(&[(name, 0)]));
        rules.replace(of(82)).unwrap();
        assert_eq!(left(&visit(&app, "/", "ann").await), are(&[(name, 0)]));
        assert!(visit(&app, "/", "ann").await.is_denied());
    }
}

/// Overrides of single keys do not depend on replacements.
async fn overrides_apply_to_the_current_limit(fixture: StoreFixture) {
    let hourly = || Limit::new("limit", FixedWindow::per_hour(3)).by(user_key());
    let rules = LiveLimits::new([hourly().overridable()]);
    let limits = by(&rules, &fixture).build();
    let app = app(limits.clone());
    let overrides = limits.limit("limit").unwrap();

    rules.replace([daily("limit", 5).overridable()]).unwrap();
    assert!(overrides.set_override("ann", FixedWindow::per_hour(50), None).await.is_err());
    overrides.set_override("ann", FixedWindow::per_day(50), None).await.unwrap();
    assert_eq!(left(&visit(&app, "/", "ann").await), are(&[("limit", 49)]));
    assert_eq!(left(&visit(&app, "/", "bob").await), are(&[("limit", 4)]));

    for gone in [daily("limit", 5), daily("other", 5).overridable()] {
        rules.replace([gone]).unwrap();
        assert!(overrides.set_override("ann", FixedWindow::per_day(60), None).await.is_err());
        assert!(overrides.get_override("ann").await.is_err());
        assert!(overrides.remove_override("ann").await.is_err());
    }
    rules.replace([daily("limit", 5).overridable()]).unwrap();
    assert_eq!(overrides.get_override("ann").await.unwrap().unwrap().algorithm.capacity(), 50);
}

async fn a_removed_limit_keeps_its_usage_until_it_returns(fixture: StoreFixture) {
    let rules = LiveLimits::new([daily("a", 3), daily("b", 9)]);
    let app = app(by(&rules, &fixture).build());
    assert_eq!(left(&visit(&app, "/", "ann").await), are(&[("a", 2), ("b", 8)]));
    rules.replace([daily("b", 9)]).unwrap();
    for remaining in [7, 6, 5, 4] {
        assert_eq!(left(&visit(&app, "/", "ann").await), are(&[("b", remaining)]));
    }
    rules.replace([daily("c", 5), daily("b", 9), daily("a", 3)]).unwrap();
    assert_eq!(left(&visit(&app, "/", "ann").await), are(&[("c", 4), ("b", 3), ("a", 1)]));
    // Until its window ends.
    rules.replace([daily("b", 9)]).unwrap();
    fixture.clock.advance(DAY);
    rules.replace([daily("a", 3)]).unwrap();
    assert_eq!(left(&visit(&app, "/", "ann").await), are(&[("a", 2)]));
}

async fn another_algorithm_or_period_starts_unused(fixture: StoreFixture) {
    let rules = LiveLimits::new([daily("a", 3)]);
    let app = app(by(&rules, &fixture).build());
    assert_eq!(left(&visit(&app, "/", "ann").await), are(&[("a", 2)]));
    rules.replace([Limit::new("a", FixedWindow::per_hour(3)).by(user_key())]).unwrap();
    assert_eq!(left(&visit(&app, "/", "ann").await), are(&[("a", 2)]));
    rules.replace([Limit::new("a", TokenBucket::per_day(3)).by(user_key())]).unwrap();
    assert_eq!(left(&visit(&app, "/", "ann").await), are(&[("a", 2)]));
    rules.replace([daily("a", 3)]).unwrap();
    assert_eq!(left(&visit(&app, "/", "ann").await), are(&[("a", 1)]));
}

/// Usage under one algorithm means nothing to another.
async fn another_unit_of_counting_starts_unused(fixture: StoreFixture) {
    let bucket = TokenBucket::per_hour(10);
    let hour = |buckets| Algorithm::from(SlidingWindow::per_hour(10).buckets(buckets));
    let pairs = [
        (bucket.into(), bucket.at_intervals().into()),
        (bucket.at_intervals().into(), bucket.into()),
        (hour(10), hour(60)),
        (hour(60), hour(10)),
    ];
    for (index, (one, other)) in pairs.into_iter().enumerate() {
        let of = |algorithm: Algorithm| [Limit::new(format!("a{index}"), algorithm).by(user_key())];
        let name = format!("a{index}");
        let rules = LiveLimits::new(of(one));
        let app = app(by(&rules, &fixture).build());
        assert_eq!(left(&visit(&app, "/", "ann").await), are(&[(&name, 9)]));
        rules.replace(of(other)).unwrap();
        assert_eq!(left(&visit(&app, "/", "ann").await), are(&[(&name, 9)]));
        rules.replace(of(one)).unwrap();
        assert_eq!(left(&visit(&app, "/", "ann").await), are(&[(&name, 8)]));
    }
}

/// A cached denial does not apply to limits with other penalties.
async fn a_penalty_can_move_to_another_limit(fixture: StoreFixture) {
    let a = || Limit::new("a", FixedWindow::per_day(1_000)).by(user_key());
    let b = || Limit::new("b", LeakyBucket::new(1, 1, Duration::from_millis(50))).by(user_key());
    let penalty = Penalty::after(1, DAY).locked_out_for(DAY);
    let rules = LiveLimits::new([a(), b().penalty(penalty)]);
    let app = app(by(&rules, &fixture).build());
    assert!(!visit(&app, "/", "ann").await.is_denied());
    for _ in 0..2 {
        assert!(visit(&app, "/", "ann").await.is_denied());
    }
    rules.replace([a().penalty(penalty), b()]).unwrap();
    fixture.clock.advance(Duration::from_millis(100));
    assert_eq!(left(&visit(&app, "/", "ann").await), are(&[("a", 998), ("b", 0)]));
}

/// A refund at an earlier rate does not restore that rate.
async fn a_late_refund_changes_no_rate(fixture: StoreFixture) {
    let hour = Duration::from_secs(3_600);
    let of = |amount| [Limit::new("a", TokenBucket::new(10, amount, hour).at_intervals()).by(user_key())];
    let rules = LiveLimits::new(of(10));
    let limits = by(&rules, &fixture);
    let (inside, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (reported, goes) = (inside.clone(), go.clone());
    let refund = move |permit: Permit| async move {
        reported.notify_one();
        goes.notified().await;
        permit.refund().await.expect("it is given back");
    };
    let app =
        app(limits.clone().build()).merge(Router::new().route("/refund", get(refund)).layer(limits.permits().build()));
    let refunded = app.clone();
    let refunded = tokio::spawn(async move { visit(&refunded, "/refund", "ann").await });
    inside.notified().await;
    for _ in 0..8 {
        assert!(!visit(&app, "/", "ann").await.is_denied());
    }
    rules.replace(of(1)).unwrap();
    assert!(!visit(&app, "/", "ann").await.is_denied());
    assert!(visit(&app, "/", "ann").await.is_denied());
    go.notify_one();
    refunded.await.unwrap();
    fixture.clock.advance(hour);
    // One token per hour, and at most the refunded ones.
    let mut more = 0;
    while !visit(&app, "/", "ann").await.is_denied() {
        more += 1;
    }
    assert!((1..=2).contains(&more), "{more} at once");
}

async fn limits_may_be_absent_for_a_while(fixture: StoreFixture) {
    let rules = LiveLimits::new([]);
    let app = app(by(&rules, &fixture).build());
    for _ in 0..3 {
        let answer = visit(&app, "/", "ann").await;
        assert!(!answer.is_denied() && answer.standings().is_empty());
    }
    rules.replace([daily("a", 1)]).unwrap();
    assert!(!visit(&app, "/", "ann").await.is_denied());
    assert!(visit(&app, "/", "ann").await.is_denied());
    rules.replace([]).unwrap();
    assert!(!visit(&app, "/", "ann").await.is_denied());
}

/// Settings of the layer apply to all later limits.
async fn settings_of_the_layer_are_kept(fixture: StoreFixture) {
    use tower_ratelimit::{HeaderStyle, ResetFormat};

    let rules = LiveLimits::new([daily("a", 9)]);
    let styles = [HeaderStyle::XRateLimit(ResetFormat::Seconds)];
    let reported = app(by(&rules, &fixture).headers(styles).cost_by(|_| 2).problem_json().build());
    let shadow = app(by(&rules, &fixture).shadow().build());
    visit(&reported, "/", "ann").await;
    visit(&shadow, "/", "bob").await;
    rules.replace([daily("b", 3)]).unwrap();
    let answer = visit(&reported, "/", "ann").await;
    assert_eq!(answer.header("x-ratelimit-remaining"), Some("1"));
    assert_eq!(answer.header("ratelimit"), None);
    let denied = visit(&reported, "/", "ann").await;
    assert!(denied.is_denied());
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    for _ in 0..5 {
        let answer = visit(&shadow, "/", "bob").await;
        assert!(!answer.is_denied() && answer.standings().is_empty());
    }
}

on_both_stores!(
    a_changed_limit_keeps_its_usage,
    a_removed_limit_keeps_its_usage_until_it_returns,
    another_algorithm_or_period_starts_unused,
    limits_may_be_absent_for_a_while,
    settings_of_the_layer_are_kept,
    overrides_apply_to_the_current_limit,
    another_unit_of_counting_starts_unused,
    a_penalty_can_move_to_another_limit,
    a_late_refund_changes_no_rate,
);
