//! The layers of the crate: imports only go down, and there are no cycles.

mod documents;
mod graph;
mod messages;
mod search;
mod source;
mod workflow;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use self::graph::Graph;
use self::source::Source;

/// Every folder, and every file next to `lib.rs`, from the lowest level to the highest. A file belongs to the innermost
/// entry that contains it, and only imports from its own level and those before it.
const LEVELS: &[&str] = &[
    // Foundation
    "text",
    "error",
    "time",
    "key::cidrs",
    "key::hash",
    // Pure rules
    "algorithm::calendar",
    "algorithm",
    "algorithm::builders",
    // Decisions
    "decision",
    // Stores
    "store",
    "store::denials",
    "store::remembering",
    "store::cas",
    "store::memory",
    "store::redis::error",
    "store::redis::config",
    "store::redis::request",
    "store::redis::script",
    "store::redis::connector",
    "store::redis::queue",
    "store::redis::calls",
    "store::redis::workers",
    "store::redis::cluster",
    "store::redis::store",
    "store::redis::operations",
    "store::redis",
    // Limits: keys, conditions and costs
    "key::spelling",
    "key::head",
    "key",
    "select",
    "limit::cost",
    "recorder",
    "limit",
    // Around a store
    "engine",
    "explain",
    // Limits from files or from Redis
    "rules",
    // Decisions without HTTP and with it
    "limiter",
    "client",
    "conformance",
    "request",
    "http::text",
    "http::headers",
    "http",
    // Pages of documentation, which link to everything
    "guide",
];

/// The files that hold the rule of an algorithm.
const ALGORITHMS: &[&str] =
    &["algorithm::bucket", "algorithm::counter", "algorithm::interval_bucket", "algorithm::log", "algorithm::window"];

fn sources() -> Vec<Source> {
    let root = support::repository("src");
    let mut folders = vec![root.clone()];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            let relative = path.strip_prefix(&root).unwrap().with_extension("");
            let mut module: Vec<String> = relative.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
            if path.is_dir() {
                folders.extend((module.last().unwrap() != "tests").then_some(path));
            } else if path.extension().is_some_and(|extension| extension == "rs") && module.last().unwrap() != "tests" {
                module.pop_if(|last| last == "mod" || last == "lib");
                sources.push(Source::parse(module, &fs::read_to_string(&path).unwrap()));
            }
        }
    }
    sources
}

fn level(levels: &[&str], file: &str) -> Option<usize> {
    let ends = file.match_indices("::").map(|(at, _)| at).chain([file.len()]);
    ends.filter_map(|end| levels.iter().position(|level| *level == &file[..end])).last()
}

fn upward(graph: &Graph, levels: &[&str]) -> BTreeSet<(String, String)> {
    let is_upward = |(from, to): &&(String, String)| level(levels, from) < level(levels, to);
    graph.imports.iter().filter(is_upward).cloned().collect()
}

#[test]
fn every_folder_and_every_file_of_the_root_has_a_level_of_its_own() {
    let files = sources();
    let mut places: BTreeSet<String> = files.iter().filter_map(|file| file.module.first().cloned()).collect();
    for file in files.iter().filter(|file| file.module.len() > 2) {
        places.insert(file.module[..file.module.len() - 1].join("::"));
    }
    let missing: Vec<_> = places.iter().filter(|place| !LEVELS.contains(&place.as_str())).collect();
    assert!(missing.is_empty(), "give each a line in LEVELS: {missing:?}");
    let names: BTreeSet<String> = files.iter().map(|file| file.module.join("::")).collect();
    let obsolete: Vec<_> = LEVELS.iter().filter(|level| !names.contains(**level)).collect();
    assert!(obsolete.is_empty(), "remove from LEVELS: {obsolete:?}");
    assert_eq!(LEVELS.iter().collect::<BTreeSet<_>>().len(), LEVELS.len(), "a level is listed twice");
}

#[test]
fn no_import_goes_up() {
    let graph = Graph::new(sources());
    assert!(graph.imports.len() > 500, "only {} imports were found", graph.imports.len());
    let upward = upward(&graph, LEVELS);
    assert!(upward.is_empty(), "{upward:#?}");
}

#[test]
fn no_files_import_each_other() {
    let cyclic = Graph::new(sources()).cyclic();
    assert!(cyclic.is_empty(), "{cyclic:#?}");
}

/// Each algorithm can be read and removed without the others.
#[test]
fn no_algorithm_imports_another() {
    let graph = Graph::new(sources());
    let is_algorithm = |file: &str| ALGORITHMS.contains(&file);
    let between: Vec<_> = graph.imports.iter().filter(|(from, to)| is_algorithm(from) && is_algorithm(to)).collect();
    assert!(between.is_empty(), "{between:?}");
}

/// Returns the graph of files that exist only in the test.
fn graph(files: &[(&str, &str)]) -> Graph {
    let module = |path: &str| path.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
    Graph::new(files.iter().map(|(path, text)| Source::parse(module(path), text)).collect())
}

fn imports(files: &[(&str, &str)]) -> Vec<String> {
    graph(files).imports.iter().map(|(from, to)| format!("{from} -> {to}")).collect()
}

#[test]
fn imports_are_read_as_they_are_written() {
    let root = ("", "pub use a::{A, inner::B as C};\nmod a; mod d; mod e;");
    let a = ("a", "mod inner; pub use inner::B; pub struct A;");
    let inner = ("a::inner", "pub struct B;");
    for (text, expected) in [
        ("use crate::A;", &["d -> a"][..]),
        ("use crate::C;", &["d -> a::inner"]),
        ("use super::a::{self, B};", &["d -> a", "d -> a::inner"]),
        ("use crate::{\n    a::{inner::{B as Other}},\n    A,\n};", &["d -> a", "d -> a::inner"]),
        ("use crate::a::*;", &["d -> a"]),
        ("pub(in crate::a) fn f() { for _ in crate::C::new() {} }", &["d -> a::inner"]),
        ("fn f(_: crate::a::A) {}", &["d -> a"]),
        ("macro_rules! m { () => { $crate::C::new() } }", &["d -> a::inner"]),
        ("fn f<'a>(_: &'a str) -> super::A {}", &["d -> a"]),
        ("fn f(_: &str) -> impl crate::A + use<> { g::<crate::C>() }", &["d -> a", "d -> a::inner"]),
        ("#[cfg(test)]\nuse crate::A;\n#[cfg(test)]\nmod tests { use crate::A; fn f() {} }", &[]),
        ("// use crate::A;\n/// crate::A\nconst T: &str = \"crate::A\"; const C: char = '\"'; use std::fmt;", &[]),
        ("const T: &str = r#\"\"crate::A\"#; const Q: &str = \"\\\"\"; fn f() -> crate::A {}", &["d -> a"]),
    ] {
        assert_eq!(imports(&[root, a, inner, ("d", text)]), expected, "{text}");
    }
}

#[test]
fn a_reexport_is_an_import_only_where_its_name_is_used() {
    let child = ("a::child", "use super::Own; pub struct Name;");
    assert_eq!(imports(&[("a", "mod child; pub use child::Name; pub struct Own;"), child]), ["a::child -> a"]);
    let using = ("a", "mod child; pub use child::Name; pub struct Own(Name);");
    assert_eq!(imports(&[using, child]), ["a -> a::child", "a::child -> a"]);
}

#[test]
fn an_import_of_what_a_parent_imports_leads_to_where_it_is_defined() {
    let parent = ("a", "mod child; use crate::b::Name; fn f(_: Name) {}");
    assert_eq!(
        imports(&[parent, ("a::child", "use super::Name;"), ("b", "pub struct Name;")]),
        ["a -> b", "a::child -> b"]
    );
    // The same through a glob import.
    let root = ("", "pub use b::*;");
    assert_eq!(imports(&[root, ("a", "use crate::Name;"), ("b", "pub struct Name;")]), ["a -> b"]);
}

#[test]
fn cycles_are_found() {
    let root = ("", "pub use c::Name;");
    let files =
        [root, ("a", "use crate::b;"), ("b", "fn f() -> crate::Name {}"), ("c", "use super::a::f; struct Name;")];
    assert_eq!(graph(&files).cyclic().len(), 3);
    assert_eq!(graph(&files[..3]).cyclic().len(), 0);
    // A parent and its child.
    let files = [("a", "mod child; use child::Name;"), ("a::child", "use super::Own; use std::fmt;")];
    assert_eq!(graph(&files).cyclic().len(), 2);
}

#[test]
fn upward_imports_are_found() {
    let files = [("a", "use crate::b::inner::Name;"), ("b", "use crate::a;"), ("b::inner", "use super::Own;")];
    let found = |levels| upward(&graph(&files), levels).into_iter().map(|(from, _)| from).collect::<Vec<_>>();
    assert_eq!(found(&["a", "b"]), ["a"]);
    assert_eq!(found(&["b", "a"]), ["b"]);
    // A nested folder has a level of its own.
    assert_eq!(found(&["b::inner", "a", "b"]), ["b::inner"]);
}
