//! The policies of `examples/policies` behave as the guide says. The tests run the programs, in memory and on Redis.

#[allow(dead_code, reason = "a program's `main` is run as a program")]
#[path = "../../../examples/policies/main.rs"]
mod example;

mod bodies;
mod commands;
mod guide;
mod heads;
mod outcomes;
mod site;
