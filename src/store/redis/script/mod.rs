//! The script that decides requests in Redis, and the encoding of what it is sent and replies.
//!
//! `lua/` holds the script: `decide.lua` performs requests, and each algorithm has a file of its own, the counterpart of
//! a rule in [`algorithm`](crate::algorithm). The tests compare both.

pub(super) mod codec;
mod inline;
mod reply;
mod request;

use std::sync::LazyLock;

use self::inline::inline;
pub(super) use self::reply::{Replies, Reply, TimedReply};
#[cfg(test)]
pub(super) use self::request::encode;
pub(super) use self::request::{LimitArgs, Mode, Request, Task, encode_clock, evalsha};

/// The main file.
const MAIN: &str = include_str!("lua/decide.lua");

const KEY: &str = include_str!("lua/key.lua");
const SINGLE: &str = include_str!("lua/single.lua");
const GCRA: &str = include_str!("lua/gcra.lua");
const WINDOW: &str = include_str!("lua/window.lua");

/// The files that another one runs when a request needs them, by the names or the tags that select each.
pub(super) const MODULES: [(&[&str], &str); 12] = [
    (&["limits"], include_str!("lua/limits.lua")),
    (&["task"], include_str!("lua/task.lua")),
    (&["key"], KEY),
    (&["instant"], include_str!("lua/instant.lua")),
    (&["d", "q"], GCRA),
    (&["gcra_backlog"], include_str!("lua/gcra_backlog.lua")),
    (&["i"], include_str!("lua/interval_bucket.lua")),
    (&["w", "k"], WINDOW),
    (&["c"], include_str!("lua/sliding_window_counter.lua")),
    (&["l"], include_str!("lua/log.lua")),
    (&["penalty"], include_str!("lua/penalty.lua")),
    (&["override"], include_str!("lua/override.lua")),
];

/// The script. It is the same for all limits, so that a server keeps one script.
///
/// A file of Lua is a chunk that gets its arguments as `...`. A call of a script runs all of it anew, and a function or a
/// table that it creates costs about 0.1 µs: so each file is the body of a branch of one function `module`, and runs when
/// it is first needed. For requests of one limit, the most frequent algorithms are [inlined](inline).
pub(super) static TEXT: LazyLock<String> = LazyLock::new(|| {
    let gcra = inline(SINGLE, &[KEY, GCRA]);
    let window = inline(SINGLE, &[KEY, WINDOW]);
    let singles = [(&["single d"][..], gcra.as_str()), (&["single w"], window.as_str())];
    let mut text = String::from("local function module(name, ...)\n");
    for (position, (names, source)) in singles.into_iter().chain(MODULES).enumerate() {
        let keyword = if position == 0 { "if" } else { "elseif" };
        let conditions: Vec<_> = names.iter().map(|name| format!("name == '{name}'")).collect();
        text += &format!("{keyword} {} then\n{source}", conditions.join(" or "));
    }
    text += "else\nerror({ err = 'UNSUPPORTED the script has no algorithm with the tag ' .. name })\nend\nend\n";
    text + MAIN
});
