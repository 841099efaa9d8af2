//! Assembles the text of the script from its files.

use std::sync::LazyLock;

use super::inline::{Records, inline};
use super::records::Record;

const GCRA: &str = include_str!("lua/gcra.lua");
const WINDOW: &str = include_str!("lua/window.lua");

/// The files of the algorithms, by the [tags](super::args::tag) of those that each decides for.
pub(super) const ALGORITHMS: [(&[&str], &str); 5] = [
    (&["d", "q"], GCRA),
    (&["i"], include_str!("lua/interval_bucket.lua")),
    (&["w", "k"], WINDOW),
    (&["c"], include_str!("lua/sliding_window_counter.lua")),
    (&["l"], include_str!("lua/log.lua")),
];

const MAIN: &str = include_str!("lua/decide.lua");

const REQUESTS: &str = include_str!("lua/requests.lua");
const LIMITS: &str = include_str!("lua/limits.lua");
const TASK: &str = include_str!("lua/task.lua");
const LOAD: &str = include_str!("lua/load.lua");
const KEY: &str = include_str!("lua/key.lua");
const PENALTY: &str = include_str!("lua/penalty.lua");

/// A script of its own, which checks the commands that the other one calls.
pub(in crate::store::redis) const CHECK: &str = include_str!("lua/check.lua");

/// The other files.
#[cfg(test)]
pub(super) const OTHERS: [(&str, &str); 6] =
    [("decide", MAIN), ("requests", REQUESTS), ("limits", LIMITS), ("task", TASK), ("load", LOAD), ("check", CHECK)];

/// The files that those of algorithms use, and those of penalties and overrides, by name.
const LIBRARIES: [(&[&str], &str); 5] = [
    (&["key"], KEY),
    (&["arithmetic"], include_str!("lua/arithmetic.lua")),
    (&["gcra_history"], include_str!("lua/gcra_history.lua")),
    (&["penalty"], PENALTY),
    (&["override"], include_str!("lua/override.lua")),
];

/// Returns the files that `load` runs when a request needs them, by the names or the tags that select each.
pub(super) fn modules() -> impl Iterator<Item = (&'static [&'static str], &'static str)> {
    LIBRARIES.into_iter().chain(ALGORITHMS)
}

/// The script. It is the same for all limits, so that a server keeps one script.
///
/// A file of Lua is a chunk that gets its arguments as `...`. A call of a script runs all of it anew, and a function or
/// a table that it creates costs about 0.1 µs: so each file becomes a function that is created when it is first needed.
/// The most frequent algorithms are [inlined](mod@super::inline), and the fields of records become
/// [positions](mod@super::records).
pub(in crate::store::redis) static TEXT: LazyLock<String> = LazyLock::new(|| {
    let shared = [Record::of("progress", MAIN), Record::of("limit", LIMITS), Record::of("penalty", PENALTY)];
    let gcra_charge = Record::of("charge", GCRA);
    let by_position = |source: &str| {
        // limits.lua needs the cost of a charge, with which all begin, and gcra_history.lua the charges of gcra.lua.
        let charge = Record::of("charge", source).or_else(|| gcra_charge.clone());
        shared.iter().chain([&charge]).flatten().fold(source.to_owned(), |text, record| record.by_position(&text))
    };
    let [gcra, window, limits] = [GCRA, WINDOW, LIMITS].map(by_position);
    let requests = shared.iter().flatten().fold(REQUESTS.to_owned(), |text, record| record.by_position(&text));
    let libraries = [("keys", KEY), ("gcra", GCRA), ("window", WINDOW)];
    let requests = inline(&requests, &libraries, Records::AsVariables);
    let limits = inline(&limits, &[("keys", KEY), ("gcra", &gcra), ("window", &window)], Records::Keep);
    let mut text = format!("local function perform{}\nlocal function module(name)\n", function(&requests));
    let performers = [(&["limits"][..], limits), (&["task"], by_position(TASK)), (&["load"], by_position(LOAD))];
    let modules = modules().map(|(names, source)| (names, by_position(source)));
    for (position, (names, source)) in performers.into_iter().chain(modules).enumerate() {
        let keyword = if position == 0 { "if" } else { "elseif" };
        let conditions: Vec<_> = names.iter().map(|name| format!("name == '{name}'")).collect();
        text += &format!("{keyword} {} then\nreturn function{}", conditions.join(" or "), function(&source));
    }
    text += "end\nerror({ err = 'UNSUPPORTED the script has no algorithm with the tag ' .. name })\nend\n";
    text + &by_position(MAIN)
});

/// Returns the parameters and the body of a file as a function. A function with `...` would take longer to call.
fn function(source: &str) -> String {
    let Some((before, body)) = source.split_once(" = ...\n") else { return format!("()\n{source}end\n") };
    let (comment, parameters) = before.rsplit_once("local ").expect("a file that names its arguments");
    format!("({parameters})\n{comment}{body}end\n")
}
