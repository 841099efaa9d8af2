//! Random files neither panic nor hang.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use support::redis_server::Folder;
use tower_ratelimit::rules::{self, Extractors};

/// Loads a text. Every error has a message and a position in the text.
fn load(text: &str) {
    let started = Instant::now();
    let loaded = rules::from_yaml(text, &Extractors::new());
    assert!(started.elapsed() < Duration::from_secs(60), "{} bytes took {:?}", text.len(), started.elapsed());
    if let Err(error) = loaded {
        let lines = text.lines().count();
        assert!(!error.problems().is_empty());
        for problem in error.problems() {
            assert!(!problem.message().is_empty());
            assert!(problem.line() <= lines + 1, "{problem:?} in {text:?}");
        }
    }
}

/// Returns all files of the other tests.
fn files() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("rules");
    let files = ["broken", "reference"].map(|name| fs::read_dir(folder.join(name)).unwrap());
    let paths = files.into_iter().flatten().map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|name| name != "txt"))
        .map(|path| fs::read_to_string(path).unwrap())
        .collect()
}

#[test]
fn endless_repetition_is_rejected_early() {
    let pieces = [
        "[",
        "{",
        "- ",
        "? ",
        "a: ",
        "[a, ",
        "{a: ",
        "\"",
        "'",
        "|\n",
        "&a ",
        "*a ",
        "!!str ",
        "! ",
        "# \n",
        "---\n",
        "...\n",
        "%YAML 1.2\n",
        "\n",
        " ",
        "\t",
        ",",
        ":",
        "a\n",
        "- a\n",
        "a: b\n",
        "- [",
        "- - ",
        "&a [*a, ",
        "\u{feff}",
        "\u{2028}",
        "é",
        "- {key: path}\n",
        "\"\\",
        "> \n",
        "a: |\n ",
        "[a]: ",
        "{a: b}: ",
    ];
    let starts = ["", "domain: shop\ndescriptors:\n", "domain: shop\ndescriptors: ", "domain: "];
    for start in starts {
        for piece in pieces {
            load(&format!("{start}{}", piece.repeat(20_000)));
        }
    }
}

#[test]
fn a_file_may_be_long_but_not_endless() {
    let rule = "- { key: header.x, rate_limit: { unit: day, requests_per_unit: 5 } }\n";
    let error =
        rules::from_yaml(&format!("domain: d\ndescriptors:\n{}", rule.repeat(70_000)), &Extractors::new()).unwrap_err();
    assert_eq!(error.to_string(), "the file has more than 4194304 bytes: use several files");
    let rules = (0..5_000)
        .map(|id| format!("- {{ key: header.x, value: '{id}', rate_limit: {{ unit: day, requests_per_unit: 5 }} }}\n"));
    let yaml = format!("domain: d\ndescriptors:\n{}", rules.collect::<String>());
    assert_eq!(rules::from_yaml(&yaml, &Extractors::new()).unwrap().len(), 5_000);
}

#[test]
fn at_most_a_hundred_problems_are_reported() {
    let error = rules::from_yaml(&format!("domain: d\ndescriptors:\n{}", "- a: b\n".repeat(1_000)), &Extractors::new())
        .unwrap_err();
    assert_eq!(error.problems().len(), 100);
    let error = error.to_string();
    let last = error.lines().nth(99).unwrap();
    assert!(last.starts_with("102:3: there is no field `a` here: use `key`, "), "{last}");
    assert!(error.ends_with("\nand 900 more"), "{error}");
}

/// Its beginning would be a valid file with fewer limits.
#[test]
fn a_file_that_is_too_long_is_not_cut() {
    let folder = Folder::new();
    let rule = "- { key: header.x, rate_limit: { unit: day, requests_per_unit: 5 } }\n";
    for (bytes, is_read) in [(4_194_304, true), (4_194_305, false)] {
        let start = format!("domain: d\ndescriptors:\n{rule}#");
        let path = folder.write("limits.yaml", format!("{start}{}", "x".repeat(bytes - start.len())));
        let limits = rules::from_file(path, &Extractors::new());
        assert_eq!(limits.map(|limits| limits.len()).ok(), is_read.then_some(1), "{bytes} bytes");
    }
}

/// A device that never ends, given by mistake.
#[cfg(unix)]
#[test]
fn an_endless_file_is_an_error() {
    assert!(rules::from_file("/dev/zero", &Extractors::new()).is_err());
}

proptest! {
    #[test]
    fn no_text_panics(text in any::<String>()) {
        load(&text);
    }

    #[test]
    fn no_text_that_looks_like_yaml_panics(text in "([-?:,&*!|>'\"%@`#{}\\[\\]~ \n\t]|a|b|1|key: |<<|domain: d\n|descriptors:\n|  ){0,60}") {
        load(&text);
    }

    /// Files with a part removed, doubled or moved.
    #[test]
    fn no_edited_file_panics(
        file in prop::sample::select(files()),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..12_usize, any::<prop::sample::Index>(), any::<bool>()), 1..6),
    ) {
        let mut text: Vec<char> = file.chars().collect();
        for (from, len, to, is_moved) in edits {
            if text.is_empty() {
                break;
            }
            let from = from.index(text.len());
            let piece: Vec<char> = text[from..text.len().min(from + len)].to_vec();
            if is_moved {
                text.drain(from..from + piece.len());
            }
            let to = to.index(text.len() + 1);
            text.splice(to..to, piece);
        }
        load(&text.into_iter().collect::<String>());
    }
}
