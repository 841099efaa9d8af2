//! Calendar windows in time zones. The same tests run in memory and on Redis.
#![allow(clippy::unwrap_used)]

mod changes;
mod dates;
mod http;
mod identity;
mod random;
mod redis_clock;
mod starts;

use std::time::Duration;

use support::store_fixture::StoreFixture;
use tower_ratelimit::{Algorithm, Decision, Limit, Limiter};

/// Returns a limiter with one limit.
fn quota(fixture: &StoreFixture, algorithm: impl Into<Algorithm>) -> Limiter {
    fixture.limiter(Limit::new("quota", algorithm))
}

/// Returns an instant such as `2026-03-29T02:30:00Z` in µs.
fn at(text: &str) -> u64 {
    text.parse::<jiff::Timestamp>().unwrap().as_microsecond().try_into().unwrap()
}

fn remaining(decision: &Decision) -> u64 {
    decision.outcomes()[0].remaining()
}

/// Returns the time until the key is unused again, in µs.
fn reset_after(decision: &Decision) -> u64 {
    decision.outcomes()[0].reset_after().as_micros().try_into().unwrap()
}

fn micros(span: Option<Duration>) -> Option<u64> {
    span.map(|span| span.as_micros().try_into().unwrap())
}
