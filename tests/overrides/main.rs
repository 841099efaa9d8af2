//! Other sizes of a limit for single keys: on every store, the same.
#![allow(clippy::unwrap_used)]

#[path = "../http/answer.rs"]
#[allow(dead_code, reason = "it has more to say than is asked here")]
mod answer;
mod expiry;
mod fleet;
mod keys;
#[path = "../support/limits.rs"]
mod limits;
mod place;
mod races;
#[path = "../support/redis_server.rs"]
mod redis_server;
mod requests;
mod sizes;
mod stores;
mod thresholds;

use std::time::Duration;

const DAY: Duration = Duration::from_secs(86_400);
