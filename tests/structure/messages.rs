//! Messages say what to do, and the guide's page on troubleshooting quotes only messages that exist.

use std::fs;
use std::path::PathBuf;

const PAGE: &str = "src/guide/troubleshooting.md";

/// The most words of the page, so that it holds only what messages can't say.
const MOST_WORDS: usize = 2_500;

/// The calls with the texts of warnings and of invalid configurations.
const CALLS: &[&str] = &["tracing::error!(", "tracing::warn!(", "ConfigError::new(", "Fault::setting("];

/// Returns the files of the crate, without tests and documentation.
pub(crate) fn files() -> Vec<PathBuf> {
    let (mut files, mut folders) = (Vec::new(), vec![support::repository("src")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() && !["tests", "guide", "conformance"].contains(&name) {
                folders.push(path);
            } else if name.ends_with(".rs") && name != "tests.rs" {
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

/// Returns the text of a literal, where `…` stands for values.
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

/// Returns the position of the closing bracket of a call, given where its arguments begin. Skips brackets in literals.
fn end(code: &str, literals: &[Literal], from: usize) -> usize {
    let mut depth = 1;
    for (offset, character) in code[from..].char_indices() {
        let at = from + offset;
        if literals.iter().any(|literal| (literal.start..literal.end).contains(&at)) {
            continue;
        }
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    code.len()
}

/// Returns the code of a file without its tests.
fn without_tests(code: &str) -> &str {
    code.split("\n#[cfg(test)]\nmod tests").next().unwrap()
}

/// Returns the number of words of a text. Other signs do not count.
fn words(text: &str) -> usize {
    text.split_whitespace().filter(|word| word.chars().any(char::is_alphabetic)).count()
}

/// Returns the texts of warnings and of invalid configurations, each with whether it says what to do: after a colon, or
/// in the field `error`, which has an error of the crate.
fn remedies(code: &str) -> Vec<(String, bool)> {
    let code = without_tests(code);
    let literals = literals(code);
    let mut remedies = Vec::new();
    for call in CALLS {
        for (found, _) in code.match_indices(call) {
            let from = found + call.len();
            let end = end(code, &literals, from);
            let inside = literals.iter().filter(|literal| (from..end).contains(&literal.start));
            let text = inside.map(|literal| literal.text.as_str()).collect::<Vec<_>>().join(" ");
            let has_remedy =
                text.contains(": ") || ["%error", "error ="].iter().any(|field| code[from..end].contains(field));
            // Others are composed before the call.
            if words(&text) >= 3 {
                remedies.push((text, has_remedy));
            }
        }
    }
    remedies
}

#[test]
fn warnings_and_invalid_configurations_have_a_colon_or_an_error() {
    let (mut found, mut missing) = (0, Vec::new());
    for file in files() {
        for (text, has_remedy) in remedies(&fs::read_to_string(&file).unwrap()) {
            found += 1;
            if !has_remedy {
                missing.push(format!("{}: {text}", file.display()));
            }
        }
    }
    assert!(found > 50, "only {found} messages were found");
    assert!(missing.is_empty(), "end these with a colon and the remedy: {missing:#?}");
}

#[test]
fn only_messages_without_a_remedy_are_found() {
    let code = r#"
        // "not a comment at all"
        fn log() { tracing::warn!(a = b("(so"), "the \"store\" of {name:?} \
            failed") }
        fn other() { let name = "nothing of this kind"; }
        fn with_error() { tracing::error!(
            %error,
            "the store has failed",
        ) }
        fn with_remedy() { ConfigError::new(format!("the limit is {limit}: use 1")) }
        #[cfg(test)]
mod tests { fn test() { tracing::warn!("a line of a test") } }
    "#;
    let code = code.replace("        #[cfg(test)]", "#[cfg(test)]");
    let found = remedies(&code);
    let found: Vec<_> = found.iter().map(|(text, has_remedy)| (text.as_str(), *has_remedy)).collect();
    let expected =
        [("the store has failed", true), ("(so the \"store\" of … failed", false), ("the limit is …: use 1", true)];
    assert_eq!(found, expected);
}

/// Returns the texts in quotation marks of at least three words. Code does not count.
fn quotes(page: &str) -> Vec<String> {
    let prose: String = page.split("```").step_by(2).collect();
    let prose: String = prose.split('`').step_by(2).collect();
    let quotes = prose.split('"').skip(1).step_by(2);
    quotes.filter(|quote| words(quote) >= 3).map(str::to_owned).collect()
}

#[test]
fn the_page_quotes_messages_that_exist() {
    let page = fs::read_to_string(support::repository(PAGE)).unwrap();
    let codes: Vec<String> = files().iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let messages: Vec<Literal> = codes.iter().flat_map(|code| literals(without_tests(code))).collect();
    let quotes = quotes(&page);
    assert!(quotes.len() > 10, "only {} messages are quoted", quotes.len());
    let is_stale = |quote: &&String| !messages.iter().any(|message| message.text.contains(quote.as_str()));
    let stale: Vec<_> = quotes.iter().filter(is_stale).collect();
    assert!(stale.is_empty(), "{PAGE} quotes messages that no longer exist: {stale:#?}");
}

#[test]
fn only_quotes_of_messages_are_found() {
    let page =
        "A \"short\" one, `code(\"is not a quote\")`.\n```text\n\"nor is a block\"\n```\n\"the store failed: …\"\n";
    assert_eq!(quotes(page), ["the store failed: …"]);
}

#[test]
fn the_page_is_short() {
    let page = fs::read_to_string(support::repository(PAGE)).unwrap();
    let words = page.split_whitespace().count();
    assert!(words <= MOST_WORDS, "{PAGE} has {words} words");
}
