//! The layout of the documentation.

use std::fs;

/// The longest line of code. Pages show it without scrolling.
const COLUMNS: usize = 100;

/// Returns the documents whose code people read in a browser: the README and the pages of the guide, with their paths.
fn documents() -> Vec<(String, String)> {
    let pages = fs::read_dir(support::repository("src/guide")).unwrap().map(|entry| entry.unwrap().file_name());
    let pages = pages.map(|name| format!("src/guide/{}", name.to_str().unwrap())).filter(|path| path.ends_with(".md"));
    let paths = pages.chain(["README.md".to_owned()]);
    paths.map(|path| (fs::read_to_string(support::repository(&path)).unwrap(), path)).collect()
}

/// Returns the lines of code that are too long, with their numbers. Blocks of `text`, which show output, do not count.
fn long_lines(document: &str) -> Vec<(usize, &str)> {
    let mut language = None;
    let mut code = Vec::new();
    for (index, line) in document.lines().enumerate() {
        match line.trim_start().strip_prefix("```") {
            Some(name) => language = language.is_none().then_some(name),
            None if language.is_some_and(|name| name != "text") => code.push((index + 1, line)),
            None => {}
        }
    }
    code.retain(|(_, line)| line.chars().count() > COLUMNS);
    code
}

#[test]
fn code_in_the_guide_fits_into_100_columns() {
    let documents = documents();
    assert!(documents.len() > 20, "only {} pages were found", documents.len());
    let mut long = Vec::new();
    for (document, path) in &documents {
        long.extend(long_lines(document).into_iter().map(|(number, line)| format!("{path}:{number}: {line}")));
    }
    assert!(long.is_empty(), "{} lines are too long: {long:#?}", long.len());
}

#[test]
fn only_long_lines_of_code_are_found() {
    let (long, fitting) = ("é".repeat(101), "é".repeat(100));
    let document = format!(
        "{long}\n```rust\n{fitting}\n{long}\n```\n{long}\n```text\n{long}\n```\n- item:\n  ```sh\n{long}\n  ```\n"
    );
    let numbers: Vec<usize> = long_lines(&document).into_iter().map(|(number, _)| number).collect();
    assert_eq!(numbers, [4, 12]);
}
