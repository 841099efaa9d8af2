//! The script that decides requests in Redis.
//!
//! `lua/` holds the script: each algorithm has a file, the counterpart of one in [`algorithm`](crate::algorithm).

/// The script, which is the same for all limits, so that a server keeps one: its files, one after the other. The tests
/// write it to `target/script.lua`.
pub(super) const TEXT: &str = concat!(
    include_str!("lua/prelude.lua"),
    include_str!("lua/bucket.lua"),
    "\nelseif tag == INTERVAL_BUCKET then\n",
    include_str!("lua/interval_bucket.lua"),
    "\nelseif tag == FIXED_WINDOW or tag == CALENDAR_WINDOW then\n",
    include_str!("lua/window.lua"),
    "\nelseif tag == COUNTER_DOWN or tag == COUNTER_UP then\n",
    include_str!("lua/counter.lua"),
    "\nelseif tag == LOG then\n",
    include_str!("lua/log.lua"),
    "\nelseif tag == PENALTY then\n",
    include_str!("lua/penalty.lua"),
    "\nend\nerror({ err = 'UNSUPPORTED the script has no algorithm with the tag ' .. string.char(tag) })\nend\n\n",
    include_str!("lua/main.lua"),
);

/// A script of its own, which checks the commands that the other one calls.
pub(super) const CHECK: &str = include_str!("lua/check.lua");

/// The operation of the script on the keys of a request. Capital letters stand for those that decide.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Task {
    Acquire = b'A' as isize,
    Peek = b'P' as isize,
    /// Charges nothing, like a peek, but counts denials as strikes.
    PeekWithStrikes = b'S' as isize,
    Refund = b'r' as isize,
    GetOverride = b'g' as isize,
    SetOverride = b'o' as isize,
    /// Deletes the keys.
    Reset = b'x' as isize,
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use mlua::Lua;

    use super::{CHECK, TEXT};

    #[test]
    fn the_scripts_compile() {
        for text in [TEXT, CHECK] {
            assert!(Lua::new().load(text).into_function().is_ok());
        }
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("target");
        fs::create_dir_all(&target).unwrap();
        fs::write(target.join("script.lua"), TEXT).unwrap();
    }

    #[test]
    fn each_algorithm_compiles_on_its_own() {
        for (name, text) in [
            ("bucket", include_str!("lua/bucket.lua")),
            ("interval_bucket", include_str!("lua/interval_bucket.lua")),
            ("window", include_str!("lua/window.lua")),
            ("counter", include_str!("lua/counter.lua")),
            ("log", include_str!("lua/log.lua")),
            ("penalty", include_str!("lua/penalty.lua")),
        ] {
            assert!(Lua::new().load(text).into_function().is_ok(), "{name}");
        }
    }
}
