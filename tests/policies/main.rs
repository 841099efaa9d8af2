//! The worked policies of `examples/policies` do what the guide says: the very programs, through
//! connections. In memory and on Redis, the same tests.

#[allow(dead_code, reason = "other tests use more of it")]
#[path = "../http/answer.rs"]
mod answer;
#[path = "../support/patient.rs"]
mod patient;
#[allow(dead_code, reason = "a program's `main` is run as a program")]
#[path = "../../examples/policies/main.rs"]
mod policies;
#[path = "../support/redis_server.rs"]
mod redis_server;
#[allow(dead_code, reason = "other tests use more of it")]
#[path = "../http/server.rs"]
mod server;

mod bodies;
mod guide;
mod heads;
mod outcomes;
mod site;
mod tries;
