//! The script that decides requests on a server, made of the files in `lua/`.
//!
//! Each algorithm has a file, the counterpart of one in [`algorithm`](crate::algorithm). `main.lua` performs most
//! requests itself.

use std::cmp::Reverse;

use super::request::Task;
use crate::algorithm::ScriptTag;
use crate::decision::Veto;

/// Checks the commands that the script calls, in a script of its own.
pub(super) const CHECK: &str = include_str!("lua/check.lua");

/// Files, and the numbers that each is for, with their names in the files.
type Files = &'static [(&'static [(&'static str, u8)], &'static str)];

macro_rules! files {
    ($kind:ident: $($file:literal $($name:ident)*;)*) => {
        &[$((
            &[$((concat!(stringify!($kind), ".", stringify!($name)), $kind::$name as u8)),*],
            include_str!(concat!("lua/", $file)),
        )),*]
    };
}

const ALGORITHMS: Files = files! { ScriptTag:
    "bucket.lua" Bucket Queue;
    "leased_bucket.lua" LeasedBucket;
    "interval_bucket.lua" IntervalBucket;
    "window.lua" FixedWindow CalendarWindow;
    "counter.lua" CounterDown CounterUp;
    "log.lua" Log;
    "penalty.lua" Penalty;
};

const TASKS: Files = files! { Task:
    "decide.lua" Acquire Peek PeekWithStrikes Lease;
    "change.lua" Refund Renew GetOverride SetOverride Reset;
};

/// Returns the script, which is the same for all limits, so that a server keeps one. The tests write it to
/// `target/script.lua`.
pub(super) fn script() -> String {
    let script = include_str!("lua/main.lua")
        .replace("-- Insert the algorithms here.", &branches("tag", ALGORITHMS))
        .replace("-- Insert the tasks here.", &branches("task", TASKS));
    let vetoes = [("Veto.Quota", Veto::Quota as u8), ("Veto.Shadow", Veto::Shadow as u8)];
    let names = ALGORITHMS.iter().chain(TASKS).flat_map(|(names, _)| *names).chain(&vetoes);
    let mut names: Vec<_> = names.collect();
    // A name may begin with another one, so the longest come first.
    names.sort_by_key(|(name, _)| Reverse(name.len()));
    names.into_iter().fold(script, |script, (name, number)| script.replace(name, &number.to_string()))
}

/// Returns the files, each on the condition that `variable` is one of its numbers. A file ends with a `return`.
fn branches(variable: &str, files: Files) -> String {
    let mut branches = String::new();
    for (names, text) in files {
        let conditions: Vec<_> = names.iter().map(|(name, _)| format!("{variable} == {name}")).collect();
        branches += &format!("if {} then\n{text}end\n", conditions.join(" or "));
    }
    branches
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use mlua::Lua;

    use super::*;

    #[test]
    fn the_scripts_compile() {
        for text in [&script(), CHECK] {
            Lua::new().load(text).into_function().unwrap();
        }
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("target");
        fs::create_dir_all(&target).unwrap();
        fs::write(target.join("script.lua"), script()).unwrap();
    }

    #[test]
    fn the_script_has_numbers_in_place_of_all_names() {
        let script = script();
        let code = script.lines().filter(|line| !line.trim_start().starts_with("--"));
        for kind in ["ScriptTag", "Task", "Veto"] {
            let name = code.clone().find(|line| line.contains(&format!("{kind}.")));
            assert_eq!(name, None, "{kind}");
        }
    }
}
