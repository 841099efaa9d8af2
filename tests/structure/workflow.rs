//! The workflow on GitHub runs the checks of `.ci/run`, and builds with the oldest supported compiler.

use std::fs;

fn text(path: &str) -> String {
    fs::read_to_string(support::repository(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the commands of the workflow.
fn commands() -> Vec<String> {
    let workflow = text(".github/workflows/ci.yml");
    workflow.lines().filter_map(|line| line.trim().strip_prefix("- run: ")).map(str::to_owned).collect()
}

#[test]
fn the_workflow_runs_all_checks() {
    assert!(commands().contains(&".ci/run".to_owned()), "{:?}", commands());
}

#[test]
fn the_workflow_and_the_readme_name_the_oldest_compiler() {
    let manifest = text("Cargo.toml");
    let oldest = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).expect("a version");
    let oldest = oldest.trim_matches('"');
    for command in [
        format!("rustup toolchain install {oldest} --profile minimal"),
        format!("cargo +{oldest} check --package tower-ratelimit --all-features"),
        format!("cargo +{oldest} check --package tower-ratelimit --no-default-features"),
    ] {
        assert!(commands().contains(&command), "{command} is not among {:?}", commands());
    }
    assert!(text("README.md").contains(&format!("Requires Rust {oldest} or later.")));
}
