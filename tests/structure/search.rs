//! The words that lead to items in rustdoc's search.

use std::fs;

use crate::messages::files;

/// Words that people look for, and the items that answer them. Rustdoc finds an item first by its name and by its
/// aliases, if one of them is all of the query, without regard to case, `_` and `"`.
const WORDS: &[(&str, &str)] = &[
    // Algorithms
    ("gcra", "TokenBucket"),
    ("token bucket", "TokenBucket"),
    ("leaky bucket", "LeakyBucket"),
    ("slow down", "LeakyBucketQueue"),
    ("fixed window", "FixedWindow"),
    ("sliding window", "SlidingWindow"),
    ("quota", "CalendarWindow"),
    ("per day", "daily"),
    ("per month", "monthly"),
    ("time zone", "in_zone"),
    // Kinds of limits
    ("ban", "penalty"),
    ("lockout", "penalty"),
    ("backoff", "doubling_up_to"),
    ("exempt", "never_limit"),
    ("allowlist", "never_limit"),
    ("whitelist", "never_limit"),
    ("blacklist", "always_reject"),
    ("denylist", "always_reject"),
    ("shadow mode", "shadow"),
    ("bulkhead", "concurrent"),
    ("in flight", "concurrent"),
    ("semaphore", "hold"),
    // Keys
    ("api key", "header"),
    ("bearer", "bearer"),
    ("jwt", "extension"),
    ("cloudflare", "TrustedProxies"),
    ("nginx", "TrustedProxies"),
    ("proxy", "TrustedProxies"),
    ("x-forwarded-for", "TrustedProxies"),
    // Responses
    ("429", "guide::responses"),
    ("cors", "exposed_headers"),
    ("grpc", "guide::responses"),
    ("retry-after", "guide::responses"),
    // Clients
    ("retry", "RetryPolicy"),
    ("exponential backoff", "RetryPolicy"),
    ("retry budget", "RetryPolicy"),
    ("throttle client", "PaceLayer"),
    ("adaptive", "PaceLayer"),
    // Examples
    ("auth_request", "guide::tasks"),
    ("brute force", "guide::tasks"),
    ("login", "guide::tasks"),
    ("country", "guide::tasks"),
    ("debounce", "guide::policies"),
    ("geoip", "guide::tasks"),
    ("standalone", "guide::tasks"),
    ("outgoing", "PaceLayer"),
    ("worker", "layer"),
    ("envoy", "guide::rules"),
    ("governor", "guide::migration"),
    ("limit_conn", "guide::migration"),
    ("llm", "guide::streams"),
    ("sse", "guide::streams"),
    ("throttle", "wait"),
    ("websocket", "guide::streams"),
    // Operation
    ("bloom filter", "Sketch"),
    ("count-min sketch", "Sketch"),
    ("fixed memory", "overflow"),
    ("circuit breaker", "circuit_breaker"),
    ("failover", "guide::redis"),
    ("multi-region", "guide::leases"),
    ("prefetch", "leased"),
    ("redis cluster", "cluster"),
    ("sentinel", "sentinel"),
    ("dashboard", "guide::monitoring"),
    ("prometheus", "guide::monitoring"),
    ("dry run", "dry_run"),
    ("mock clock", "guide::testing"),
];

/// An alias, and the line of the item that has it.
#[derive(Debug)]
struct Alias {
    word: String,
    item: String,
}

impl Alias {
    /// Returns the name of the item, with `guide::` for a page of the guide.
    fn name(&self) -> String {
        let line = self.item.trim_start();
        let after = |keyword| line.split_once(keyword).map(|(_, rest)| rest);
        if let Some(page) = line.strip_prefix("pub mod ") {
            return format!("guide::{}", name(page));
        }
        let path = line.strip_prefix("pub use ").or_else(|| after("fn ")).unwrap_or_else(|| panic!("{line}"));
        name(path.rsplit("::").next().unwrap()).to_owned()
    }
}

/// Returns the identifier at the beginning of a text.
fn name(text: &str) -> &str {
    text.split(|character: char| !character.is_alphanumeric() && character != '_').next().unwrap()
}

/// Returns the aliases in a file.
fn aliases(code: &str) -> Vec<Alias> {
    let (mut words, mut aliases) = (Vec::new(), Vec::new());
    for line in code.lines() {
        let attribute = line.trim_start();
        if let Some(word) = attribute.strip_prefix("#[doc(alias = \"") {
            words.push(word.strip_suffix("\")]").unwrap_or_else(|| panic!("one alias in a line: {line}")).to_owned());
        } else if !attribute.starts_with("#[") {
            aliases.extend(words.drain(..).map(|word| Alias { word, item: line.to_owned() }));
        }
    }
    aliases
}

/// Returns the code of the crate with its guide.
fn code() -> String {
    let files = files().into_iter().chain([support::repository("src/guide/mod.rs")]);
    files.map(|file| fs::read_to_string(file).unwrap()).collect()
}

/// Returns a text as rustdoc compares it.
fn normal(text: &str) -> String {
    text.replace(['_', '"'], "").to_lowercase()
}

#[test]
fn words_that_people_look_for_lead_to_one_item() {
    let code = code();
    let aliases = aliases(&code);
    assert!(aliases.len() > 40, "only {} aliases were found", aliases.len());
    for (word, item) in WORDS {
        if normal(word) == normal(item) {
            assert!(code.contains(&format!(" fn {item}")), "there is no function {item}");
            continue;
        }
        let same = aliases.iter().filter(|alias| normal(&alias.word) == normal(word));
        assert_eq!(same.map(Alias::name).collect::<Vec<_>>(), [*item], "{word}");
    }
}

/// Rustdoc 1.95 ignores the aliases of an item that a private module defines, but not those of its re-export.
#[test]
fn aliases_of_reexported_items_are_on_their_reexports() {
    let is_found =
        |alias: &Alias| ["pub mod ", "pub use ", " "].iter().any(|beginning| alias.item.starts_with(beginning));
    let (_, ignored): (Vec<_>, Vec<_>) = aliases(&code()).into_iter().partition(is_found);
    assert!(ignored.is_empty(), "move these aliases to the `pub use` of the item: {ignored:#?}");
}

#[test]
fn aliases_belong_to_the_next_item() {
    let code = "#[doc(alias = \"a b\")]\n    #[must_use]\n    pub const fn method<T>() {}\n\
                #[doc(alias = \"c\")]\n#[doc(alias = \"d\")]\npub use x::Y;\npub use x::Z;\n\
                #[doc(alias = \"e\")]\n#[doc = include_str!(\"f.md\")]\npub mod f {}\n";
    let found: Vec<_> = aliases(code).iter().map(|alias| (alias.word.clone(), alias.name())).collect();
    let expected = [("a b", "method"), ("c", "Y"), ("d", "Y"), ("e", "guide::f")];
    assert_eq!(found, expected.map(|(word, name)| (word.to_owned(), name.to_owned())));
}
