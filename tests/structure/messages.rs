//! Every log line and every error of the crate is documented in the guide's page on troubleshooting.

use std::fs;
use std::path::PathBuf;

const PAGE: &str = "src/guide/troubleshooting.md";

/// The code that contains texts of messages, with its brackets.
const REGIONS: &[(&str, char, char)] = &[
    ("tracing::error!(", '(', ')'),
    ("tracing::warn!(", '(', ')'),
    ("tracing::info!(", '(', ')'),
    ("fmt::Display for ", '{', '}'),
    // The texts of `StoreError`, of invalid values, and of rejections.
    ("Self::of(", '(', ')'),
    ("StoreError::new(", '(', ')'),
    ("StoreError::of_one_request(", '(', ')'),
    ("Fault::new(", '(', ')'),
    (".text(", '(', ')'),
    ("fn sentence<", '{', '}'),
    (" assert!(", '(', ')'),
    // Invalid configurations.
    ("ConfigError::new(", '(', ')'),
    ("Fault::setting(", '(', ')'),
    ("let what = ", '=', ';'),
    // Errors of the compiler about the traits of the crate.
    ("on_unimplemented(\n    message = ", '=', ','),
];

/// Returns the files of the crate, without tests, documentation, and the texts of explanations, which are not errors.
pub(crate) fn files() -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![support::repository("src")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() && !["tests", "guide", "conformance"].contains(&name) {
                folders.push(path);
            } else if name.ends_with(".rs") && !["tests.rs", "explain.rs", "dry_run.rs"].contains(&name) {
                files.push(path);
            }
        }
    }
    files
}

/// A string literal with its position.
struct Literal {
    start: usize,
    end: usize,
    text: String,
}

/// Returns the string literals of some code. Comments and characters are skipped.
fn literals(code: &str) -> Vec<Literal> {
    let bytes = code.as_bytes();
    let (mut literals, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => at += code[at..].find('\n').unwrap_or(code.len() - at),
            // A character, not a lifetime.
            b'\'' if bytes.get(at + 2) == Some(&b'\'') => at += 3,
            b'\'' if bytes.get(at + 1) == Some(&b'\\') => at += 3,
            b'"' => {
                let start = at;
                at += 1;
                while bytes[at] != b'"' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
                literals.push(Literal { start, end: at, text: text(&code[start + 1..at - 1]) });
            }
            _ => at += 1,
        }
    }
    literals
}

/// Returns the text of a literal as in the page, where `…` stands for values.
fn text(literal: &str) -> String {
    let mut text = String::new();
    let mut rest = literal;
    while let Some(character) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("\\\n") {
            rest = after.trim_start();
        } else if let Some(after) = rest.strip_prefix("\\\"") {
            text.push('"');
            rest = after;
        } else if let Some((_, after)) = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
            text.push('…');
            rest = after;
        } else {
            text.push(character);
            rest = &rest[character.len_utf8()..];
        }
    }
    text.trim().to_owned()
}

/// Returns the end of a region whose opening bracket is at or after `from`. Brackets in literals do not count.
fn end(code: &str, literals: &[Literal], from: usize, open: char, close: char) -> usize {
    let mut depth = 0;
    for (offset, character) in code[from..].char_indices() {
        let at = from + offset;
        if literals.iter().any(|literal| (literal.start..literal.end).contains(&at)) {
            continue;
        }
        if character == open {
            depth += 1;
        } else if character == close {
            depth -= 1;
            if depth <= 0 {
                return at;
            }
        }
    }
    code.len()
}

/// Returns the messages in some code: the literals in the regions, or all of them.
fn messages(code: &str, all: bool) -> Vec<String> {
    let code = code.split("\n#[cfg(test)]\nmod tests").next().unwrap();
    let literals = literals(code);
    let mut messages = Vec::new();
    if all {
        let is_of_a_bug = |literal: &&Literal| {
            let before = &code[..literal.start];
            before.ends_with("expect(") || before.ends_with("unreachable!(")
        };
        messages.extend(literals.iter().filter(|literal| !is_of_a_bug(literal)).map(|literal| literal.text.clone()));
    }
    for (marker, open, close) in REGIONS {
        for (found, _) in code.match_indices(marker) {
            let from = found + marker.len() - usize::from(marker.ends_with(*open)) - usize::from(*open == '=') * 2;
            let end = end(code, &literals, from, *open, *close);
            let inside = literals.iter().filter(|literal| (from..end).contains(&literal.start));
            messages.extend(inside.map(|literal| literal.text.clone()));
        }
    }
    let is_word = |word: &&str| word.chars().any(char::is_alphabetic);
    messages.retain(|message| message.split_whitespace().filter(is_word).count() >= 3);
    messages
}

#[test]
fn every_message_is_documented() {
    let page = fs::read_to_string(support::repository(PAGE)).unwrap();
    let (mut found, mut missing) = (0, Vec::new());
    for file in files() {
        // The hint of an error in a rules file is composed of parts.
        let is_of_rules = file.parent().unwrap().ends_with("rules");
        for message in messages(&fs::read_to_string(&file).unwrap(), is_of_rules) {
            found += 1;
            if !page.contains(&message) {
                missing.push(format!("{}: {message}", file.display()));
            }
        }
    }
    assert!(found > 100, "only {found} messages were found");
    assert!(missing.is_empty(), "add these to {PAGE}: {missing:#?}");
}

#[test]
fn messages_are_found_as_they_are_written() {
    let code = r#"
        // "not a comment at all"
        impl fmt::Display for E { fn fmt() { write!(f, "the limit {name:?} is \
            \"too\" small") } }
        fn other() { let name = "nothing of this kind"; }
        fn log() { tracing::warn!(a = b("not so) fast"), "the store (or node) failed"); }
    "#;
    let found = ["not so) fast", "the store (or node) failed", "the limit … is \"too\" small"];
    assert_eq!(messages(code, false), found);
    assert_eq!(messages(code, true).iter().filter(|message| *message == "nothing of this kind").count(), 1);
}
