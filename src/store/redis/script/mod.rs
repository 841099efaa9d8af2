//! The script that decides requests in Redis, and the encoding of its requests and replies.
//!
//! `lua/` holds the script: `decide.lua` performs requests, and each algorithm has a file of its own, the counterpart of
//! a rule in [`algorithm`](crate::algorithm). The tests compare both.

mod args;
mod inline;
mod records;
mod reply;
mod request;
pub(super) mod state;
mod text;

pub(super) use self::reply::{Replies, Reply, TimedReply};
pub(super) use self::request::{Request, Task, encode_clock, evalsha};
#[cfg(test)]
pub(super) use self::request::{encode, name, name_of_override};
pub(super) use self::text::{CHECK, TEXT};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use mlua::{Function, Lua, Table};

    use super::args;
    use super::text::{ALGORITHMS, OTHERS, modules};
    use crate::algorithm::{
        Algorithm, CalendarWindow, FixedWindow, Kind, LeakyBucket, LeakyBucketQueue, Refill, SlidingLog, SlidingWindow,
        SlidingWindowCounter, TokenBucket,
    };

    /// One algorithm of each kind.
    fn algorithms() -> Vec<Algorithm> {
        let minute = Duration::from_secs(60);
        let first = FixedWindow::new(1, minute).into();
        let next = |last: &Algorithm| {
            // The match is exhaustive, so no kind can be left out.
            Some(match last.kind {
                Kind::FixedWindow => SlidingLog::new(1, minute).into(),
                Kind::SlidingLog => SlidingWindow::new(1, minute).into(),
                Kind::SlidingWindow { .. } => SlidingWindowCounter::new(1, minute).into(),
                Kind::SlidingWindowCounter(_) => LeakyBucket::new(1, 1, minute).into(),
                Kind::LeakyBucket => LeakyBucketQueue::new(1, 1, minute).into(),
                Kind::LeakyBucketQueue => CalendarWindow::daily(1).into(),
                Kind::CalendarWindow(_) => TokenBucket::new(1, 1, minute).into(),
                Kind::TokenBucket(Refill::Continuous) => TokenBucket::new(1, 1, minute).at_intervals().into(),
                Kind::TokenBucket(Refill::Interval) | Kind::Penalty { .. } => return None,
            })
        };
        std::iter::successors(Some(first), next).collect()
    }

    /// The files of algorithms, by tag.
    fn rules() -> Vec<(&'static str, &'static str)> {
        ALGORITHMS.iter().flat_map(|(tags, source)| tags.iter().map(|tag| (*tag, *source))).collect()
    }

    /// A Lua state with the parts of Redis that a file looks up when it is loaded.
    fn lua() -> Lua {
        let lua = Lua::new();
        let redis = "redis = { call = function() end } struct = { pack = function() end, unpack = function() end }";
        lua.load(redis).exec().unwrap();
        lua
    }

    /// Runs a file on its own. The files that it loads are replaced by tables that have every function.
    fn load(lua: &Lua, name: &str, source: &str) -> Table {
        let anything: Table =
            lua.load("return setmetatable({}, { __index = function() return function() end end })").eval().unwrap();
        let other = anything.clone();
        let load = lua.create_function(move |_, _: mlua::MultiValue| Ok(other.clone())).unwrap();
        let chunk = lua.load(source).set_name(name).into_function().unwrap();
        chunk.call((load, 1_000, 0)).unwrap()
    }

    #[test]
    fn each_algorithm_has_a_file_and_each_file_an_algorithm() {
        let codecs: BTreeSet<String> =
            algorithms().iter().map(|algorithm| char::from(args::tag(algorithm)).into()).collect();
        let files: BTreeSet<String> = rules().into_iter().map(|(tag, _)| tag.to_owned()).collect();
        assert_eq!(codecs, files);
    }

    #[test]
    fn each_file_of_an_algorithm_returns_its_functions() {
        let lua = lua();
        for (tag, source) in rules() {
            let rule = load(&lua, tag, source);
            for function in ["parse", "peek", "commit", "refund", "resize"] {
                assert!(rule.get::<Function>(function).is_ok(), "{function} of {tag}");
            }
        }
    }

    #[test]
    fn each_file_that_others_load_returns_its_functions() {
        let lua = lua();
        for (name, functions) in [
            ("key", &["check", "encode", "decode", "read", "write", "overwrite", "expire"][..]),
            ("arithmetic", &["mul_div"]),
            ("gcra_history", &["level", "refund", "resize"]),
            ("penalty", &["parse", "peek", "strike"]),
            ("override", &["parse", "apply", "current", "set"]),
        ] {
            let (_, source) = modules().find(|(names, _)| *names == [name]).unwrap();
            let loaded = load(&lua, name, source);
            for function in functions {
                assert!(loaded.get::<Function>(*function).is_ok(), "{function} of {name}");
            }
        }
    }

    #[test]
    fn each_file_compiles_on_its_own() {
        let lua = Lua::new();
        let modules = modules().map(|(names, source)| (names[0], source));
        for (name, source) in modules.chain(OTHERS) {
            assert!(lua.load(source).into_function().is_ok(), "{name}");
        }
    }
}
