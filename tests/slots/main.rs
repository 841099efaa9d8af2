//! Concurrency limits.

mod stores;
