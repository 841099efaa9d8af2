//! Compares this crate with its peers. `cargo bench --bench peers` takes a quarter of an hour; `-- --quick` runs a
//! smoke test in two minutes; `-- SECTION…` runs some of decisions, memory, attack, layers, server, redis, leases,
//! admission, and growth.
//!
//! The comparison is a package of its own, `benches/peers`, so that only those who run it build the peers.
//! `src/guide/numbers.md` lists some of the results.

use std::path::Path;
use std::process::{Command, exit};

fn main() {
    let (asked, arguments): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|argument| argument == "--bench");
    if asked.is_empty() {
        // `cargo test --benches` also runs benches. Only check that they run.
        return;
    }
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers/Cargo.toml");
    // Some peers declare a newer compiler than they need.
    let status = Command::new(env!("CARGO"))
        .args(["run", "--release", "--ignore-rust-version", "--manifest-path"])
        .arg(manifest)
        .arg("--")
        .args(arguments)
        .status()
        .expect("cargo runs");
    exit(status.code().unwrap_or(1));
}
