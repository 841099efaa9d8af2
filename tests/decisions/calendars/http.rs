//! Responses under calendar quotas.

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Request, StatusCode};
use support::answer::{Answer, Member, ask};
use support::store_fixture::{StoreFixture, on_both_stores};
use tower_ratelimit::{CalendarWindow, FixedWindow, HeaderStyle, Limit, RateLimitLayer, ResetFormat, when};

use crate::calendars::at;

on_both_stores!(headers_show_the_length_of_the_current_window, an_override_keeps_the_window_in_headers,);

const HOUR: i64 = 3_600;

fn app(layer: RateLimitLayer) -> Router {
    Router::new().route("/", get(async || "hello")).layer(layer)
}

async fn visit(app: &Router) -> Answer {
    ask(app, Request::get("/").body(Body::empty()).unwrap()).await
}

fn policies(day: i64, month: i64) -> [Member; 3] {
    [
        Member::new("daily", &[("q", 2), ("w", day * HOUR)]),
        Member::new("hourly", &[("q", 100), ("w", HOUR)]),
        Member::new("monthly", &[("q", 50), ("w", month * HOUR)]),
    ]
}

async fn headers_show_the_length_of_the_current_window(fixture: StoreFixture) {
    let limits = [
        Limit::new("daily", CalendarWindow::daily(2).in_zone("Europe/Berlin")),
        Limit::new("hourly", FixedWindow::per_hour(100)),
        Limit::new("monthly", CalendarWindow::monthly(50).from_day(15).in_zone("Europe/Berlin")),
    ];
    let styles = [HeaderStyle::IETF, HeaderStyle::XRateLimit(ResetFormat::Epoch)];
    let app = app(fixture.builder(limits).headers(styles).build());
    // A day of 23 hours, and the month that contains it.
    fixture.set(at("2026-03-28T23:00:00Z"));
    let answer = visit(&app).await;
    assert_eq!(answer.policies(), policies(23, 31 * 24 - 1));
    let standings = [
        Member::new("daily", &[("r", 1), ("t", 23 * HOUR)]),
        Member::new("hourly", &[("r", 99), ("t", HOUR)]),
        Member::new("monthly", &[("r", 49), ("t", (17 * 24 - 1) * HOUR)]),
    ];
    assert_eq!(answer.standings(), standings);
    assert_eq!(answer.header("x-ratelimit-limit"), Some("2"));
    let end = at("2026-03-29T22:00:00Z") / 1_000_000;
    assert_eq!(answer.header("x-ratelimit-reset"), Some(end.to_string().as_str()));

    fixture.set(at("2026-03-29T21:59:58.500Z"));
    assert_eq!(visit(&app).await.status, StatusCode::OK);
    let denied = visit(&app).await;
    assert_eq!((denied.status, denied.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, Some("2")));
    assert_eq!(denied.policies(), policies(23, 31 * 24 - 1));

    for (now, day, month) in [
        ("2026-03-29T22:00:00Z", 24, 31 * 24 - 1),
        ("2026-10-25T12:00:00Z", 25, 31 * 24 + 1),
        ("2026-02-20T12:00:00Z", 24, 28 * 24),
    ] {
        fixture.set(at(now));
        assert_eq!(visit(&app).await.policies(), policies(day, month), "{now}");
    }
}

/// Headers show the other sizes of some requests.
async fn an_override_keeps_the_window_in_headers(fixture: StoreFixture) {
    let daily = |limit| CalendarWindow::daily(limit).in_zone("Europe/Berlin");
    let limit = Limit::new("daily", daily(2)).size_when(when::header("x-plan", "pro"), daily(9));
    let app = app(fixture.builder(limit).build());
    fixture.set(at("2026-10-25T12:00:00Z"));
    // Usage is shared by all sizes.
    for (plan, size, remaining) in [("pro", 9, 8), ("free", 2, 0)] {
        let answer = ask(&app, Request::get("/").header("x-plan", plan).body(Body::empty()).unwrap()).await;
        assert_eq!(answer.policies(), [Member::new("daily", &[("q", size), ("w", 25 * HOUR)])]);
        assert_eq!(answer.remaining(), remaining);
    }
}
