//! Imports run down: nothing on a floor knows the floors above it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::PathBuf;

/// The floors, from the ground up, by the modules at the crate's root.
const FLOORS: &[(&str, &[&str])] = &[
    ("foundation", &["quota", "time", "hash", "node", "error", "cidrs"]),
    ("algorithms", &["algorithm"]),
    ("decisions", &["limit_spec", "decision"]),
    ("who remembers", &["store"]),
    (
        "what applies to a request",
        &[
            "request",
            "response",
            "when",
            "signal",
            "key",
            "list",
            "cost",
            "limit",
            "observe",
            "on_store_error",
            "resilience",
            "builder",
            "limit_handle",
            "overrides",
            "limiter",
            "rules",
        ],
    ),
    ("HTTP", &["http"]),
];

/// The files that hold the settings of an algorithm.
const ALGORITHMS: &[&str] = &[
    "calendar_window",
    "fixed_window",
    "leaky_bucket",
    "leaky_bucket_queue",
    "penalty",
    "sliding_log",
    "sliding_window",
    "sliding_window_counter",
    "token_bucket",
];

/// A file of the crate, by its path of modules: `["store", "memory", "table"]`.
struct Source {
    module: Vec<String>,
    text: String,
}

struct Arrow {
    from: String,
    to: String,
    path: String,
}

impl fmt::Display for Arrow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}: {}", self.from, self.to, self.path)
    }
}

fn sources() -> Vec<Source> {
    let root = support::repository("src");
    let mut folders = vec![root.clone()];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let relative = path.strip_prefix(&root).unwrap().with_extension("");
                let mut module: Vec<String> = relative.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
                if module.last().is_some_and(|last| last == "mod") {
                    module.pop();
                }
                sources.push(Source { module, text: fs::read_to_string(&path).unwrap() });
            }
        }
    }
    sources
}

/// What of a file is code, in one line: no comments, and no tests at its end.
fn code(text: &str) -> String {
    let lines = text.lines().map(str::trim).take_while(|line| *line != "#[cfg(test)]");
    lines.map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join(" ")
}

/// What stands behind each `marker` in the code, up to the end of the path: `store::Terms`, or a
/// list in braces.
fn paths<'a>(code: &'a str, marker: &str) -> impl Iterator<Item = &'a str> {
    let starts = code.match_indices(marker).filter(|(at, _)| !code[..*at].ends_with(|c| is_word(c) || c == ':'));
    let starts: Vec<usize> = starts.map(|(at, marker)| at + marker.len()).collect();
    starts.into_iter().map(|start| {
        let path = &code[start..];
        let end = if path.starts_with('{') { path.find(';') } else { path.find(|c| !is_word(c) && c != ':') };
        &path[..end.unwrap_or(path.len())]
    })
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// The modules that a path or a list of paths begins with.
fn heads(path: &str) -> Vec<String> {
    let Some(list) = path.strip_prefix('{') else {
        return vec![path.chars().take_while(|&c| is_word(c)).collect()];
    };
    let mut depth = 0;
    let parts = list.split(|c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        depth <= 0 && (c == ',' || c == '}')
    });
    parts
        .map(|part| part.trim().chars().take_while(|&c| is_word(c)).collect())
        .filter(|head: &String| !head.is_empty())
        .collect()
}

/// Under which root module each name of `pub use` in the crate's root can be found.
fn reexports(root: &str) -> BTreeMap<String, String> {
    let code = code(root);
    let uses = code.split(';').filter_map(|item| item.trim().strip_prefix("pub use ").map(str::to_owned));
    let names = uses.flat_map(|path| {
        let module = heads(&path).remove(0);
        let names = path[module.len() + 2..].to_owned();
        heads(&names).into_iter().map(move |name| (name, module.clone())).collect::<Vec<_>>()
    });
    names.collect()
}

/// Every path from one module to another, with the modules' names at the crate's root.
fn arrows(sources: &[Source]) -> Vec<Arrow> {
    let root = sources.iter().find(|source| source.module == ["lib"]).expect("a root");
    let reexported = reexports(&root.text);
    let mut arrows = Vec::new();
    for source in sources.iter().filter(|source| source.module != ["lib"]) {
        let code = code(&source.text);
        // As many `super::` as lead to the root.
        let out = "super::".repeat(source.module.len());
        for path in paths(&code, "crate::").chain(paths(&code, &out)) {
            for to in heads(path).into_iter().filter(|to| to != "super") {
                let to = reexported.get(&to).unwrap_or(&to).clone();
                arrows.push(Arrow { from: source.module[0].clone(), to, path: path.to_owned() });
            }
        }
    }
    arrows
}

fn floor(module: &str) -> Option<usize> {
    FLOORS.iter().position(|(_, modules)| modules.contains(&module))
}

#[test]
fn every_file_is_on_a_floor() {
    let homeless = sources().into_iter().map(|source| source.module[0].clone());
    let homeless: Vec<_> = homeless.filter(|module| module != "lib" && floor(module).is_none()).collect();
    assert!(homeless.is_empty(), "{homeless:?} stand on no floor: give them one");
}

#[test]
fn no_import_runs_up() {
    let sources = sources();
    let arrows = arrows(&sources);
    assert!(arrows.len() > 50, "only {} imports were found: are they read right?", arrows.len());
    let leads_up = |arrow: &&Arrow| match (floor(&arrow.from), floor(&arrow.to)) {
        (Some(from), Some(to)) => to > from,
        _ => true,
    };
    let up: Vec<_> = arrows.iter().filter(leads_up).map(Arrow::to_string).collect();
    assert!(up.is_empty(), "imports that run up, or to no floor:\n{}", up.join("\n"));
}

/// The imports between the files of the folder `algorithm`, by their paths of modules.
fn algorithm_imports(sources: &[Source]) -> Vec<(Vec<String>, Vec<String>)> {
    let files: Vec<&Source> = sources.iter().filter(|source| source.module[0] == "algorithm").collect();
    let is_folder = |module: &[String]| {
        files.iter().any(|file| file.module.len() > module.len() && file.module.starts_with(module))
    };
    let mut imports = Vec::new();
    for file in &files {
        let code = code(&file.text);
        let parent = &file.module[..file.module.len() - 1];
        let mut roots = vec![("super::", parent.to_vec()), ("crate::algorithm::", vec!["algorithm".to_owned()])];
        if is_folder(&file.module) {
            roots.push(("self::", file.module.clone()));
        }
        for (marker, root) in roots {
            for head in paths(&code, marker).flat_map(heads) {
                let child: Vec<String> = root.iter().cloned().chain([head]).collect();
                // What is no file is an item of the folder's own.
                let is_file = files.iter().any(|other| other.module == child);
                let to = if is_file { child } else { root.clone() };
                if to != file.module && to.first().is_some_and(|first| first == "algorithm") {
                    imports.push((file.module.clone(), to));
                }
            }
        }
    }
    imports
}

/// Each algorithm can be read, and taken out, without the others.
#[test]
fn no_algorithm_imports_another() {
    let imports = algorithm_imports(&sources());
    let is_algorithm = |module: &[String]| ALGORITHMS.contains(&module[1..].join("/").as_str());
    let between: Vec<_> = imports.iter().filter(|(from, to)| is_algorithm(from) && is_algorithm(to)).collect();
    assert!(between.is_empty(), "{between:?}");
}

#[test]
fn no_files_of_the_algorithms_import_each_other() {
    let mut imports = algorithm_imports(&sources());
    assert!(imports.len() > 50, "only {} imports were found: are they read right?", imports.len());
    // Files that import nothing that is left are in no cycle.
    loop {
        let before = imports.len();
        let importing: Vec<_> = imports.iter().map(|(from, _)| from.clone()).collect();
        imports.retain(|(_, to)| importing.contains(to));
        if imports.len() == before {
            break;
        }
    }
    assert!(imports.is_empty(), "cycles among {imports:?}");
}

#[test]
fn imports_are_read_as_they_are_written() {
    let source = |path: &str, text: &str| Source {
        module: path.split("::").map(str::to_owned).collect(),
        text: text.to_owned(),
    };
    let sources = [
        source("lib", "pub use decision::{Decision, Level};\npub use limit::Limit;"),
        source(
            "store::memory",
            "use crate::{\n    key::{Key, KeyBuf},\n    time,\n};\n// crate::http\n/// crate::cost",
        ),
        source("time", "fn f(_: crate::Limit) { $crate::quota::checked!() }"),
        source("error", "use super::limiter::Limiter;\n#[cfg(test)]\nmod tests {\n    use super::*;\n}"),
        source("key::part", "use super::super::store::Terms; use super::peer;"),
    ];
    let read: Vec<_> = arrows(&sources).into_iter().map(|arrow| format!("{} {}", arrow.from, arrow.to)).collect();
    assert_eq!(read, ["store key", "store time", "time limit", "time quota", "error limiter", "key store"]);
}
