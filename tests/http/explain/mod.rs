//! Explanations of requests.

mod example_server;
mod examples;
mod random;
