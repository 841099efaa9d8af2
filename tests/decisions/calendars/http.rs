//! Responses under calendar quotas.

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Request, StatusCode};
use tower_ratelimit::{CalendarWindow, FixedWindow, HeaderStyle, Limit, RateLimitLayer, ResetFormat};

use crate::calendars::{Backend, at, on_each_backend};
use support::answer::{Answer, Member, ask};

const HOUR: i64 = 3_600;

fn app(backend: &Backend) -> Router {
    let limits = RateLimitLayer::builder([
        Limit::new("daily", CalendarWindow::daily(2).in_zone("Europe/Berlin")),
        Limit::new("hourly", FixedWindow::per_hour(100)),
        Limit::new("monthly", CalendarWindow::monthly(50).from_day(15).in_zone("Europe/Berlin")),
    ]);
    let limits = limits
        .store(backend.store.clone())
        .deadline(std::time::Duration::from_secs(30))
        .headers([HeaderStyle::IETF, HeaderStyle::XRateLimit(ResetFormat::Epoch)])
        .build();
    Router::new().route("/", get(async || "hello")).layer(limits)
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

#[tokio::test]
async fn headers_show_the_length_of_the_current_window() {
    on_each_backend(async |backend| {
        let app = app(backend);
        // A day of 23 hours, and the month that contains it.
        backend.set(at("2026-03-28T23:00:00Z"));
        let answer = visit(&app).await;
        assert_eq!(answer.policies(), policies(23, 31 * 24 - 1), "{}", backend.name);
        let standings = [
            Member::new("daily", &[("r", 1), ("t", 23 * HOUR)]),
            Member::new("hourly", &[("r", 99), ("t", HOUR)]),
            Member::new("monthly", &[("r", 49), ("t", (17 * 24 - 1) * HOUR)]),
        ];
        assert_eq!(answer.standings(), standings, "{}", backend.name);
        assert_eq!(answer.header("x-ratelimit-limit"), Some("2"));
        let end = at("2026-03-29T22:00:00Z") / 1_000_000;
        assert_eq!(answer.header("x-ratelimit-reset"), Some(end.to_string().as_str()), "{}", backend.name);

        backend.set(at("2026-03-29T21:59:58.500Z"));
        assert_eq!(visit(&app).await.status, StatusCode::OK, "{}", backend.name);
        let refused = visit(&app).await;
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS, "{}", backend.name);
        assert_eq!(refused.header("retry-after"), Some("2"), "{}", backend.name);
        assert_eq!(refused.policies(), policies(23, 31 * 24 - 1), "{}", backend.name);

        backend.set(at("2026-03-29T22:00:00Z"));
        assert_eq!(visit(&app).await.policies(), policies(24, 31 * 24 - 1), "{}", backend.name);
        backend.set(at("2026-10-25T12:00:00Z"));
        assert_eq!(visit(&app).await.policies(), policies(25, 31 * 24 + 1), "{}", backend.name);
        backend.set(at("2026-02-20T12:00:00Z"));
        assert_eq!(visit(&app).await.policies(), policies(24, 28 * 24), "{}", backend.name);
    })
    .await;
}

/// Headers show the other sizes of some requests.
#[tokio::test]
async fn an_override_keeps_the_window_in_headers() {
    use tower_ratelimit::when;
    on_each_backend(async |backend| {
        let daily = |limit| CalendarWindow::daily(limit).in_zone("Europe/Berlin");
        let limit = Limit::new("daily", daily(2)).size_when(when::header("x-plan", "pro"), daily(9));
        let limits = RateLimitLayer::builder([limit])
            .store(backend.store.clone())
            .deadline(std::time::Duration::from_secs(30))
            .build();
        let app = Router::new().route("/", get(async || "hello")).layer(limits);
        backend.set(at("2026-10-25T12:00:00Z"));
        let pro = Request::get("/").header("x-plan", "pro").body(Body::empty()).unwrap();
        let answer = ask(&app, pro).await;
        assert_eq!(answer.policies(), [Member::new("daily", &[("q", 9), ("w", 25 * HOUR)])], "{}", backend.name);
        let answer = visit(&app).await;
        assert_eq!(answer.policies(), [Member::new("daily", &[("q", 2), ("w", 25 * HOUR)])], "{}", backend.name);
        // Usage is shared by all sizes.
        assert_eq!(answer.remaining(), 0, "{}", backend.name);
    })
    .await;
}
