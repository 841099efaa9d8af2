//! This crate beside its peers: `cargo bench --bench peers`, in a quarter of an hour; `-- --quick` for a smoke test in
//! two minutes; `-- SECTION…` for some of decisions, memory, attack, layers, server, redis, admission, growth.
//!
//! They are compared by a package of their own, `benches/peers`, so that nobody builds the peers who does not ask
//! for this. `docs/numbers.md` has what came of it.

use std::path::Path;
use std::process::{Command, exit};

fn main() {
    let (asked, arguments): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|argument| argument == "--bench");
    if asked.is_empty() {
        // `cargo test --benches` runs benches, too, to see whether they run.
        return;
    }
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers/Cargo.toml");
    // Some peers ask for a newer compiler than they need.
    let status = Command::new(env!("CARGO"))
        .args(["run", "--release", "--ignore-rust-version", "--manifest-path"])
        .arg(manifest)
        .arg("--")
        .args(arguments)
        .status()
        .expect("cargo runs");
    exit(status.code().unwrap_or(1));
}
