//! By plan: 10 a minute are free, 100 with `pro`, 1,000 with `enterprise`, and staff have no limit. Each plan also has
//! a quota, which begins anew on the customer's billing day.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::get;
use tower_ratelimit::{CalendarWindow, FixedWindow, Limit, RateLimitLayer, RequestHead, Store, key, when};

pub(crate) const TRY: &str = "
curl -i http://HOST/reports -H 'authorization: Bearer free-1'
curl -i http://HOST/reports -H 'authorization: Bearer pro-2'
curl -i http://HOST/reports -H 'authorization: Bearer staff-4'
";

pub(crate) fn app(store: Arc<dyn Store>) -> Router {
    let id = key::extension(|customer: &Customer| customer.id);
    let by_plan = Limit::new("by-plan", FixedWindow::per_minute(10)).by(id.clone()).size_by(|head| {
        match head.extensions.get::<Customer>()?.plan {
            Plan::Pro => Some(FixedWindow::per_minute(100).into()),
            Plan::Enterprise => Some(FixedWindow::per_minute(1_000).into()),
            Plan::Free | Plan::Staff => None,
        }
    });
    let quota = Limit::new("quota", CalendarWindow::monthly(100)).by(id).size_by(|head| {
        let customer = head.extensions.get::<Customer>()?;
        let quota = match customer.plan {
            Plan::Pro => CalendarWindow::monthly(10_000),
            Plan::Enterprise => CalendarWindow::monthly(1_000_000),
            Plan::Free | Plan::Staff => CalendarWindow::monthly(100),
        };
        // At midnight UTC, and on the last day of months without this day. An invalid day is the first.
        Some(quota.try_from_day(customer.billing_day).unwrap_or(quota).into())
    });
    let limits = RateLimitLayer::builder([by_plan, quota]).never_limit(when::from_fn(is_staff)).store(store).build();
    Router::new()
        .route("/reports", get("a report\n"))
        .route_layer(limits)
        // The last is the outermost: it says who it is before the limiter asks.
        .route_layer(middleware::from_fn(authenticate))
}

fn is_staff(head: &RequestHead<'_>) -> bool {
    head.extensions.get::<Customer>().is_some_and(|customer| customer.plan == Plan::Staff)
}

#[derive(Clone, Copy, PartialEq)]
enum Plan {
    Free,
    Pro,
    Enterprise,
    Staff,
}

#[derive(Clone)]
struct Customer {
    id: u64,
    plan: Plan,
    /// From 1 to 31.
    billing_day: u8,
}

/// Here yours looks a token up, and a client without a good one gets no further.
async fn authenticate(mut request: Request, next: Next) -> Result<Response, StatusCode> {
    let token = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let customer = match token {
        Some("free-1") => Customer { id: 1, plan: Plan::Free, billing_day: 5 },
        Some("pro-2") => Customer { id: 2, plan: Plan::Pro, billing_day: 15 },
        Some("enterprise-3") => Customer { id: 3, plan: Plan::Enterprise, billing_day: 31 },
        Some("staff-4") => Customer { id: 4, plan: Plan::Staff, billing_day: 1 },
        _ => return Err(StatusCode::UNAUTHORIZED),
    };
    request.extensions_mut().insert(customer);
    Ok(next.run(request).await)
}
