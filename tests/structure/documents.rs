//! The layout of the documentation.

use std::fs;

use crate::messages::files;

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

/// Methods that return `Self`, but set nothing that has a default.
const NO_SETTINGS: &[&str] = &["bytes", "from_memory", "keys", "queued", "saturating_add", "without_lease"];

/// Returns the names of the public methods that take `self` by value and return `Self`.
fn setters(code: &str) -> Vec<&str> {
    let code = code.split("\n#[cfg(test)]\nmod tests").next().unwrap();
    let methods = code.split("pub fn ").skip(1).chain(code.split("pub const fn ").skip(1));
    let setters = methods.filter_map(|method| {
        let (signature, _) = method.split_once('{')?;
        let (name, arguments) = signature.split_once('(')?;
        let receiver = arguments.trim_start().trim_start_matches("mut ").strip_prefix("self")?;
        let is_setter = receiver.starts_with([',', ')']) && signature.trim_end().ends_with("-> Self");
        is_setter.then(|| name.split('<').next().unwrap()).filter(|name| !name.starts_with('$'))
    });
    setters.collect()
}

#[test]
fn the_page_of_settings_lists_every_setter() {
    let page = fs::read_to_string(support::repository("src/guide/settings.md")).unwrap();
    let listed: Vec<&str> = page.split(|character: char| !character.is_alphanumeric() && character != '_').collect();
    let (mut found, mut missing) = (0, Vec::new());
    for file in files() {
        for setter in setters(&fs::read_to_string(&file).unwrap()) {
            found += 1;
            if !listed.contains(&setter) && !NO_SETTINGS.contains(&setter) {
                missing.push(format!("{}: {setter}", file.display()));
            }
        }
    }
    assert!(found > 60, "only {found} setters were found");
    assert!(missing.is_empty(), "add these to src/guide/settings.md: {missing:#?}");
}
