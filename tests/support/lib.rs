//! Fixtures that tests share.
#![allow(missing_docs, missing_debug_implementations, reason = "only tests use them")]
#![allow(clippy::new_without_default, clippy::should_implement_trait, reason = "only tests use them")]

pub mod answer;
pub mod calls;
pub mod certificates;
pub mod countries;
pub mod database;
pub mod dates;
pub mod event_log;
pub mod example_server;
pub mod explained;
pub mod faulty_store;
pub mod frames;
pub mod http_client;
pub mod limits;
pub mod memcached_server;
pub mod model;
#[cfg(target_os = "linux")]
pub mod moved_clock;
pub mod patient;
pub mod permissions;
pub mod process;
pub mod proxy;
pub mod recording;
pub mod redis_cluster;
// Published with the crate, because its unit tests use them.
#[path = "../../src/store/redis/tests/redis_server.rs"]
pub mod redis_server;
pub mod rule;
pub mod sentinel;
pub mod server;
#[path = "../../src/store/redis/tests/split_mix.rs"]
pub mod split_mix;
pub mod store_fixture;
pub mod time;

use std::path::{Path, PathBuf};

use proptest::test_runner::Config;

/// Returns the path of a file of this repository.
pub fn repository(path: impl AsRef<Path>) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

/// Returns a configuration with `count` cases, or the number in the environment variable `PROPTEST_CASES`.
pub fn cases(count: u32) -> Config {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => Config::default(),
        None => Config::with_cases(count),
    }
}
