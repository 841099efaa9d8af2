//! Failed logins: 20 an hour from each address, and five in a quarter of an hour for each account, which is then locked
//! out for longer each time. The account is in the body, so the handler charges it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use serde::Deserialize;
use tower_ratelimit::{AcquireError, Limit, Limiter, Penalty, RateLimitLayer, SlidingLog, Store, key};

pub(crate) const TRY: &str = "
curl -i http://HOST/login -H 'content-type: application/json' -d '{\"account\": \"ann\", \"password\": \"guess\"}'
curl -i http://HOST/login -H 'content-type: application/json' -d '{\"account\": \"ann\", \"password\": \"open sesame\"}'
";

const QUARTER: Duration = Duration::from_secs(15 * 60);

pub(crate) fn app(store: Arc<dyn Store>) -> Router {
    // Attempts at a locked account count, too.
    let failures = [StatusCode::UNAUTHORIZED, StatusCode::TOO_MANY_REQUESTS];
    let by_address = Limit::new("failed-logins", SlidingLog::per_hour(20))
        .by(key::peer_ip())
        .count_if(move |response| failures.contains(&response.status));
    let limits = RateLimitLayer::builder([by_address]).store(store.clone()).build();
    // The sixth attempt locks the account out for a quarter of an hour. Each further lockout is
    // twice as long, up to a day.
    let lockout = Penalty::after(1, QUARTER).doubling_up_to(Duration::from_secs(86_400));
    let by_account = Limit::new("failed-logins-of-account", SlidingLog::new(5, QUARTER));
    let accounts = Limiter::builder([by_account.penalty(lockout)]).store(store).build();
    Router::new().route("/login", post(login).route_layer(limits)).with_state(accounts)
}

#[derive(Deserialize)]
struct Login {
    account: String,
    password: String,
}

async fn login(
    State(accounts): State<Limiter>,
    Json(login): Json<Login>,
) -> Result<(StatusCode, &'static str), AcquireError> {
    // One spelling for each account, or each spelling would have five guesses.
    let account = login.account.trim().to_lowercase();
    // Charged before the password is checked, so that guesses at once can't exceed the limit.
    accounts.try_acquire(&account, 1).await?;
    if login.password != "open sesame" {
        return Ok((StatusCode::UNAUTHORIZED, "no\n"));
    }
    // Ends the failures and lockouts of the account, but not those of the address, which an
    // attacker with an account could reset. If the store fails, they stay.
    let _ = accounts.reset(&account).await;
    Ok((StatusCode::OK, "welcome\n"))
}
