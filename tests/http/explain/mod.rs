//! Explanations of what limits would do.

mod example_server;
mod examples;
mod random;
