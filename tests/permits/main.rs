//! What a request costs after all: by its response, and by its handler's permit. In memory and on Redis,
//! the same tests.

#[allow(dead_code, reason = "other tests use more of it")]
#[path = "../http/answer.rs"]
mod answer;
#[path = "../support/patient.rs"]
mod patient;
#[path = "../support/redis_server.rs"]
mod redis_server;
#[allow(dead_code, reason = "other tests use more of it")]
#[path = "../http/server.rs"]
mod server;
mod shop;
#[path = "../support/split_mix.rs"]
mod split_mix;

mod failures;
mod handlers;
mod losses;
mod random;
mod rates;
mod responses;
mod sizes;
mod wire;
