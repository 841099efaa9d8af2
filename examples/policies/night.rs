//! 100 an hour, and a tenth of that from 1:00 to 6:00 for clients in Japan.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use tower_ratelimit::when::{self, Condition, TimeOfDay};
use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, Store, key};

pub(crate) const TRY: &str = "
curl -i http://HOST/search -H 'x-user: ann' -H 'cf-ipcountry: JP'
curl -i http://HOST/search -H 'x-user: bob' -H 'cf-ipcountry: DE'
";

pub(crate) fn app(store: Arc<dyn Store>) -> Router {
    app_by_night(store, night())
}

pub(crate) fn night() -> TimeOfDay {
    when::time_of_day("Asia/Tokyo", "1:00", "6:00")
}

pub(crate) fn app_by_night(store: Arc<dyn Store>, night: TimeOfDay) -> Router {
    // Where a client is, the CDN in front says: it replaces what a client writes there.
    let in_japan = when::header("cf-ipcountry", "JP");
    let searches = Limit::new("searches", FixedWindow::per_hour(100))
        .by(key::header("x-user"))
        .size_when(in_japan.and(night), FixedWindow::per_hour(10));
    Router::new().route("/search", get("found\n")).route_layer(RateLimitLayer::builder([searches]).store(store).build())
}
