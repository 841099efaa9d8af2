//! Overrides in responses, and in later charges.

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::routing::{get, put};
use http::{Request, StatusCode};
use support::answer::{Answer, Member, ask};
use support::calls::Outcomes;
use support::store_fixture::{StoreFixture, on_both_stores, user_key, visit};
use support::time::DAY;
use tower_ratelimit::{
    CalendarWindow, FixedWindow, HeaderStyle, Limit, LimitHandle, Permit, RateLimitLayer, ResetFormat, StoreErrorKind,
    TokenBucket, when,
};

on_both_stores!(
    a_raised_limit_shows_in_the_next_response,
    an_override_takes_precedence_over_the_size_of_a_request,
    a_route_is_charged_by_the_size_that_applies,
    a_permit_charges_the_current_size_and_refunds_the_earlier_one,
    a_permit_charges_the_current_size_even_if_the_override_is_gone,
    settling_uses_the_capacity_that_is_left,
    a_handle_of_a_limit_with_several_periods_needs_the_size,
    a_handle_at_a_size_is_of_the_keys_with_that_size,
);

async fn raise(State(daily): State<LimitHandle>, Path(customer): Path<String>, body: String) -> StatusCode {
    let Ok(limit) = body.parse() else { return StatusCode::BAD_REQUEST };
    let Ok(size) = FixedWindow::try_new(limit, DAY) else { return StatusCode::BAD_REQUEST };
    match daily.set_override(&customer, size, None).await {
        Ok(()) => StatusCode::NO_CONTENT,
        Err(error) if error.kind() == StoreErrorKind::InvalidCall => StatusCode::BAD_REQUEST,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

async fn lower(State(daily): State<LimitHandle>, Path(customer): Path<String>) -> StatusCode {
    daily.remove_override(&customer).await.map_or(StatusCode::SERVICE_UNAVAILABLE, |()| StatusCode::NO_CONTENT)
}

fn app(layer: RateLimitLayer) -> Router {
    let daily = layer.limit("daily").unwrap().at_size(FixedWindow::new(1, DAY));
    let admin = Router::new().route("/customers/{customer}", put(raise).delete(lower)).with_state(daily);
    Router::new()
        .route("/", get(async || "cheap"))
        .route("/expensive", get(async || "expensive").route_layer(layer.cost(3)))
        .layer(layer)
        .merge(admin)
}

async fn admin(app: &Router, method: &str, customer: &str, body: &str) -> u16 {
    let request = Request::builder().method(method).uri(format!("/customers/{customer}"));
    ask(app, request.body(Body::from(body.to_owned())).unwrap()).await.status.as_u16()
}

fn daily(limit: u32) -> Limit {
    Limit::new("daily", FixedWindow::new(limit, DAY)).by(user_key()).overridable()
}

async fn a_raised_limit_shows_in_the_next_response(fixture: StoreFixture) {
    let styles = [HeaderStyle::IETF, HeaderStyle::XRateLimit(ResetFormat::Seconds)];
    let limits = [daily(2), Limit::new("all", FixedWindow::new(100, DAY))];
    let app = app(fixture.builder(limits).headers(styles).build());
    let reported = async |customer| {
        let answer = visit(&app, "/", customer).await;
        let limit = answer.header("x-ratelimit-limit").unwrap().parse::<u32>().unwrap();
        let policies = [
            Member::new("daily", &[("q", limit.into()), ("w", 86_400)]),
            Member::new("all", &[("q", 100), ("w", 86_400)]),
        ];
        assert_eq!(answer.policies(), policies);
        (answer.status.as_u16(), limit, answer.remaining_of("daily"))
    };
    for expected in [(200, 2, 1), (200, 2, 0), (429, 2, 0), (429, 2, 0)] {
        assert_eq!(reported("42").await, expected);
    }
    assert_eq!(admin(&app, "PUT", "42", "5").await, 204);
    assert_eq!((reported("42").await, reported("43").await), ((200, 5, 2), (200, 2, 1)));
    assert_eq!(admin(&app, "PUT", "42", "1").await, 204);
    assert_eq!(reported("42").await, (429, 1, 0));
    assert_eq!((admin(&app, "PUT", "42", "0").await, admin(&app, "DELETE", "42", "").await), (400, 204));
    assert_eq!(reported("42").await, (429, 2, 0));
}

/// The override of the key applies, not the size for its plan. Under another algorithm, the key has no override.
async fn an_override_takes_precedence_over_the_size_of_a_request(fixture: StoreFixture) {
    let limit = daily(2)
        .size_when(when::header("x-plan", "pro"), FixedWindow::new(10, DAY))
        .size_when(when::header("x-plan", "bucket"), TokenBucket::new(7, 7, DAY));
    let app = app(fixture.builder(limit).build());
    let ask_as = async |plan: &str| {
        let request = Request::get("/").header("x-user", "42").header("x-plan", plan);
        let answer = ask(&app, request.body(Body::empty()).unwrap()).await;
        (answer.policies()[0].get("q").unwrap(), answer.remaining())
    };
    assert_eq!(ask_as("pro").await, (10, 9));
    admin(&app, "PUT", "42", "50").await;
    let answers = [ask_as("free").await, ask_as("pro").await, ask_as("bucket").await];
    assert_eq!(answers, [(50, 48), (50, 47), (7, 6)]);
    admin(&app, "DELETE", "42", "").await;
    assert_eq!(ask_as("pro").await, (10, 6));
}

/// A route that costs more charges the difference by the override of the key, and refunds by it.
async fn a_route_is_charged_by_the_size_that_applies(fixture: StoreFixture) {
    let small = Limit::new("small", FixedWindow::new(4, DAY)).by(user_key());
    let app = app(fixture.builder([daily(2), small]).build());
    admin(&app, "PUT", "42", "100").await;
    for (path, status, left) in [("/expensive", 200, 97), ("/expensive", 429, 97), ("/", 200, 96)] {
        let answer = visit(&app, path, "42").await;
        let limit = answer.policies()[0].get("q");
        assert_eq!((answer.status.as_u16(), answer.remaining_of("daily"), limit), (status, left, Some(100)), "{path}");
    }
}

/// An override that is set during a request applies to its later charges. Refunds use the sizes of the charges.
async fn a_permit_charges_the_current_size_and_refunds_the_earlier_one(fixture: StoreFixture) {
    let bucket = Limit::new("bucket", TokenBucket::new(50, 50, DAY)).by(user_key()).overridable();
    let layer = fixture.builder([bucket]).permits().build();
    let bucket = layer.limit("bucket").unwrap();
    let work = {
        let bucket = bucket.clone();
        async move |permit: Permit| {
            bucket.set_override("42", TokenBucket::new(100, 50, DAY), None).await.unwrap();
            let charged = permit.charge(60).await.unwrap();
            assert!(charged.is_allowed());
            let left_then = charged.remaining()[0];
            bucket.remove_override("42").await.unwrap();
            permit.refund().await.unwrap();
            format!("{left_then} {}", permit.decision().remaining()[0])
        }
    };
    let app = Router::new().route("/", get(work)).layer(layer);
    let answer = visit(&app, "/", "42").await;
    // 60 of 100 tokens are charged, and the earlier one, rounded up.
    assert_eq!(answer.body, "39 50");
    assert_eq!(answer.policies()[0].get("q"), Some(50));
}

/// Later charges do not use the size at the time of the request.
async fn a_permit_charges_the_current_size_even_if_the_override_is_gone(fixture: StoreFixture) {
    let layer = fixture.builder([daily(10)]).permits().build();
    let daily = layer.limit("daily").unwrap();
    daily.set_override("42", FixedWindow::new(100, DAY), None).await.unwrap();
    let work = async move |permit: Permit| {
        assert!(permit.charge(4).await.unwrap().is_allowed());
        daily.remove_override("42").await.unwrap();
        let denied = permit.charge(6).await.unwrap();
        format!("{} {}", denied.is_allowed(), denied.remaining()[0])
    };
    let app = Router::new().route("/", get(work)).layer(layer);
    let answer = visit(&app, "/", "42").await;
    assert_eq!((answer.body.as_str(), answer.remaining()), ("false 5", 5));
    assert_eq!(answer.policies()[0].get("q"), Some(10));
}

async fn settling_uses_the_capacity_that_is_left(fixture: StoreFixture) {
    let layer = fixture.builder([daily(10).soft(50)]).permits().build();
    let daily = layer.limit("daily").unwrap();
    let work = async |permit: Permit, body: String| {
        let settled = permit.settle(body.parse().unwrap()).await.unwrap();
        format!("{} {}", settled.shortfall, settled.decision.remaining()[0])
    };
    let app = Router::new().route("/", put(work)).layer(layer);
    let settle = async |actual: &str| {
        let request = Request::put("/").header("x-user", "42").body(Body::from(actual.to_owned())).unwrap();
        ask(&app, request).await.body
    };
    daily.set_override("42", FixedWindow::new(100, DAY), None).await.unwrap();
    assert_eq!(settle("40").await, "0 60");
    assert_eq!(settle("10").await, "0 50");
    // 100 and an overage of 50 % are 150. 50 are used, so 100 can be charged.
    assert_eq!(settle("120").await, "20 0");
}

fn months(day: u8) -> CalendarWindow {
    CalendarWindow::monthly(3).from_day(day)
}

/// A limit whose months begin on the day that the request names.
fn billed() -> Limit {
    let day = |text: &str| text.parse().ok().filter(|day| *day > 1);
    Limit::new("billed", months(1))
        .by(user_key())
        .overridable()
        .size_by(move |head| Some(months(day(head.header("x-day")?)?).into()))
}

async fn on_day(app: &Router, day: &str) -> Answer {
    let request = Request::get("/").header("x-user", "42").header("x-day", day).body(Body::empty()).unwrap();
    ask(app, request).await
}

async fn a_handle_of_a_limit_with_several_periods_needs_the_size(fixture: StoreFixture) {
    let known = Limit::new("known", months(1)).by(user_key()).overridable();
    let layer = fixture.builder([billed(), known.size_when(when::header("x-day", "17"), months(17))]).build();
    let handles = ["billed", "known"].map(|name| layer.limit(name).unwrap());
    let app = Router::new().route("/", get(async || "")).layer(layer);
    assert_eq!(on_day(&app, "17").await.remaining_of("billed"), 2);
    for handle in handles {
        let expected = format!(
            "the limit {:?} has sizes of several algorithms or periods: choose one by `LimitHandle::at_size`",
            handle.name()
        );
        for error in [
            handle.reset("42").await.unwrap_err(),
            handle.peek("42", 0).await.unwrap_err(),
            handle.get_override("42").await.unwrap_err(),
            handle.set_override("42", CalendarWindow::monthly(9), None).await.unwrap_err(),
            handle.remove_override("42").await.unwrap_err(),
        ] {
            assert_eq!((error.kind(), error.to_string()), (StoreErrorKind::InvalidCall, expected.clone()));
        }
    }
}

async fn a_handle_at_a_size_is_of_the_keys_with_that_size(fixture: StoreFixture) {
    let layer = fixture.builder([billed()]).build();
    let (first, later) = {
        let handle = layer.limit("billed").unwrap();
        (handle.at_size(months(1)), handle.at_size(months(17)))
    };
    let app = Router::new().route("/", get(async || "")).layer(layer);
    let left = async |handle: &LimitHandle| handle.peek("42", 0).await.unwrap().remaining()[0];
    assert_eq!([on_day(&app, "17").await.remaining(), on_day(&app, "1").await.remaining()], [2, 2]);
    assert_eq!(on_day(&app, "17").await.remaining(), 1);
    assert_eq!((left(&first).await, left(&later).await), (2, 1));
    later.reset("42").await.unwrap();
    assert_eq!((left(&first).await, left(&later).await), (2, 3));
    let error = later.set_override("42", CalendarWindow::monthly(9), None).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidCall);
    later.set_override("42", CalendarWindow::monthly(9).from_day(17), None).await.unwrap();
    assert_eq!([on_day(&app, "17").await.remaining(), on_day(&app, "1").await.remaining()], [8, 1]);
    later.remove_override("42").await.unwrap();
    assert_eq!(on_day(&app, "17").await.remaining(), 1);
}

/// Sizes of one algorithm and period share the state of a key, so a handle needs no size.
#[tokio::test]
async fn a_handle_of_a_limit_with_plans_needs_no_size() {
    let plans = daily(2).size_by(|head| head.header("x-plan").map(|_| FixedWindow::new(10, DAY).into()));
    let layer = RateLimitLayer::new([plans.size_when(when::header("x-plan", "pro"), FixedWindow::new(20, DAY))]);
    let handle = layer.limit("daily").unwrap();
    let app = Router::new().route("/", get(async || "")).layer(layer);
    let request = || Request::get("/").header("x-user", "42").header("x-plan", "pro").body(Body::empty()).unwrap();
    assert_eq!(ask(&app, request()).await.remaining(), 9);
    handle.reset("42").await.unwrap();
    assert_eq!(ask(&app, request()).await.remaining(), 9);
    handle.set_override("42", FixedWindow::new(30, DAY), None).await.unwrap();
    assert_eq!(ask(&app, request()).await.remaining(), 28);
}

#[tokio::test]
async fn a_size_that_a_limit_does_not_have_is_an_error() {
    let layer = RateLimitLayer::new([daily(2)]);
    let error = layer.limit("daily").unwrap().at_size(FixedWindow::per_hour(1)).reset("42").await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidCall);
    assert!(error.to_string().contains("is not a size of the limit \"daily\""), "{error}");
}
