//! The database of the guide with its test, in a package like those of users. In the tests of this repository, Tokio's
//! clock can be paused, and so the crate reads the time in another way.

use std::fs;
use std::path::Path;
use std::process::Command;

use support::repository;

/// Returns the first block of code in a language, without the lines that the guide hides.
fn block(page: &str, language: &str) -> String {
    let code = page.split_once(&format!("\n```{language}\n")).expect("a block").1.split("\n```").next().unwrap();
    code.lines().filter(|line| *line != "#" && !line.starts_with("# ")).map(|line| format!("{line}\n")).collect()
}

#[test]
fn the_database_of_the_guide_conforms_in_a_package_of_a_user() {
    let page = fs::read_to_string(repository("src/guide/stores.md")).unwrap();
    let version = "version = \"0.1\"";
    let dependencies = block(&page, "toml");
    assert!(dependencies.contains(version), "{dependencies}");
    // Without the default features, it builds faster.
    let local = format!("path = {:?}, default-features = false", repository("").to_str().unwrap());
    let manifest = format!(
        "[package]\nname = \"user\"\nedition = \"2024\"\n\n[lib]\npath = \"lib.rs\"\n\n[workspace]\n\n\
         [profile.dev]\ndebug = false\n\n{}",
        dependencies.replace(version, &local)
    );
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("user");
    fs::create_dir_all(&folder).unwrap();
    let library = format!("#![cfg(test)]\n{}", block(&page, "rust"));
    // A file that is written again is compiled again.
    for (name, text) in [("Cargo.toml", &manifest), ("lib.rs", &library)] {
        if !fs::read_to_string(folder.join(name)).is_ok_and(|written| written == *text) {
            fs::write(folder.join(name), text).unwrap();
        }
    }
    // The same versions, which are there already.
    fs::copy(repository("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--offline", "--quiet", "--lib"]).current_dir(&folder).env_remove("CARGO_TARGET_DIR");
    let output = cargo.output().expect("cargo runs");
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
