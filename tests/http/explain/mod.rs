//! Explanations of what limits would do.

mod examples;
mod random;
