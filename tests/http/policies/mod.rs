//! The worked policies of `examples/policies` do what the guide says: the very programs, through
//! connections. In memory and on Redis, the same tests.

#[allow(dead_code, reason = "a program's `main` is run as a program")]
#[path = "../../../examples/policies/main.rs"]
mod example;

mod bodies;
mod commands;
mod guide;
mod heads;
mod outcomes;
mod site;
