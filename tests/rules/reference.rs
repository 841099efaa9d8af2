//! Files in the format of Envoy's rate limit service, modelled on those of its documentation and its tests:
//! `reference/NAME.yaml`, with the expected result in `reference/NAME.txt`. With `UPDATE_EXPECTED=1`, the result is
//! written there, for review.

use std::path::{Path, PathBuf};
use std::{env, fs};

use tower_ratelimit::rules::{self, Extractors};
use tower_ratelimit::{Limit, key};

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("rules/reference");
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension != "txt"));
    files.sort();
    files
}

/// Returns extractors of all keys in a text. Values that a proxy would send need one that the user registers.
fn extractors(text: &str) -> Extractors {
    let keys = text.lines().filter_map(|line| line.split_once("key:"));
    let names = keys.map(|(_, name)| name.trim_matches([' ', '"', '}']).split(',').next().unwrap());
    let unknown = names.filter(|name| !["remote_address", "method", "path"].contains(name));
    unknown.fold(Extractors::new(), |extractors, name| extractors.register(name, key::header("x-any")))
}

/// Returns the limits, or the errors.
fn outcome(file: &Path) -> String {
    let extractors = extractors(&fs::read_to_string(file).unwrap());
    match rules::from_file(file, &extractors) {
        Ok(limits) => {
            limits.iter().map(|limit| format!("{}: {}{}\n", limit.name(), limit.algorithm(), mode(limit))).collect()
        }
        Err(error) => format!("{error}\n").replace(&format!("{}/", file.parent().unwrap().display()), ""),
    }
}

#[test]
fn reference_files_load_or_name_what_is_unsupported() {
    let files = files();
    assert!(files.len() >= 25, "only {} files were found", files.len());
    let mut wrong = String::new();
    for file in files {
        let outcome = outcome(&file);
        let expected = file.with_extension("txt");
        if env::var_os("UPDATE_EXPECTED").is_some() {
            fs::write(&expected, &outcome).unwrap();
        }
        let expected = fs::read_to_string(&expected).unwrap_or_default();
        if outcome != expected {
            wrong += &format!("{}\nexpected:\n{expected}came:\n{outcome}\n", file.display());
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

fn mode(limit: &Limit) -> &'static str {
    match limit {
        _ if limit.is_shadow() => ", in the shadow",
        _ if limit.is_quota() => ", in quota mode",
        _ => "",
    }
}
