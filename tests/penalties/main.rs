//! Who is denied too often is refused for a while: on every store, the same.
#![allow(clippy::unwrap_used)]

#[path = "../http/answer.rs"]
#[allow(dead_code, reason = "it has more to say than is asked here")]
mod answer;
#[path = "../support/limits.rs"]
mod limits;
#[path = "../support/redis_server.rs"]
mod redis_server;
#[path = "../support/split_mix.rs"]
mod split_mix;

mod bounded;
mod exact;
mod fallback;
mod http;
mod oracle;
mod place;
mod random;
mod redis;
