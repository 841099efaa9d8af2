//! One post a second, and 150 friends a day. To befriend somebody is a post, too: it counts under both
//! limits or, when one of them denies it, under neither.

use std::sync::Arc;

use axum::Router;
use axum::routing::post;
use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, Store, TokenBucket, key, when};

pub(crate) const TRY: &str = "
curl -i -X POST http://HOST/friends -H 'x-user: ann'
curl -i -X POST http://HOST/posts -H 'x-user: ann'
";

pub(crate) fn app(store: Arc<dyn Store>) -> Router {
    // The gateway in front has found out who `x-user` is, and lets no client write it.
    let posts = Limit::new("posts", TokenBucket::per_second(1)).by(key::header("x-user"));
    let friends = Limit::new("friends", FixedWindow::per_day(150)).by(key::header("x-user"));
    let limits = [posts, friends.when(when::route("/friends"))];
    let limits = RateLimitLayer::builder(limits).store(store).build();
    Router::new().route("/posts", post("posted\n")).route("/friends", post("you are friends now\n")).route_layer(limits)
}
