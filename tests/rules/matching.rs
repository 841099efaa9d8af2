//! The limits that apply to a request: a table, and random files compared with a naive model of the reference service.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::future::ready;

use http::Request;
use proptest::prelude::*;
use tower_ratelimit::rules::{self, Extractors};
use tower_ratelimit::{Decision, RequestHead, RequestLimiter, key};

use crate::service::{Limited, with};

/// `a=x>b` stands for a limit of that name on the descriptor `b` without a value, in `a` with the value `x`.
fn file(paths: &[&str]) -> String {
    let mut yaml = String::from("domain: d\ndescriptors:\n");
    for path in paths {
        let (path, policy) = path.split_once(' ').unwrap_or((path, "unit: year, requests_per_unit: 9"));
        let entries: Vec<&str> = path.split('>').collect();
        let ends = "] }".repeat(entries.len() - 1);
        let entries: Vec<String> = entries
            .iter()
            .map(|entry| match entry.split_once('=') {
                Some((key, value)) => format!("{{ key: header.{key}, value: '{value}'"),
                None => format!("{{ key: header.{entry}"),
            })
            .collect();
        let limit =
            if policy == "free" { " }".to_owned() } else { format!(", rate_limit: {{ name: '{path}', {policy} }} }}") };
        writeln!(yaml, "- {}{limit}{ends}", entries.join(", descriptors: [")).unwrap();
    }
    yaml
}

/// The limits of the file, the entries of the request, and the limits that apply.
type Row = (&'static [&'static str], &'static [(&'static str, &'static str)], &'static [&'static str]);

#[test]
fn the_limits_that_apply() {
    let table: &[Row] = &[
        (&["a"], &[("a", "x")], &["a"]),
        (&["a"], &[("b", "x")], &[]),
        (&["a=x"], &[("a", "x")], &["a=x"]),
        (&["a=x"], &[("a", "xx")], &[]),
        (&["a=x"], &[("a", "X")], &[]),
        // The most specific value, in any order.
        (&["a", "a=x"], &[("a", "x")], &["a=x"]),
        (&["a=x", "a"], &[("a", "x")], &["a=x"]),
        (&["a=x", "a"], &[("a", "y")], &["a"]),
        (&["a", "a=x*", "a=xy"], &[("a", "xy")], &["a=xy"]),
        (&["a", "a=x*", "a=xy"], &[("a", "xz")], &["a=x*"]),
        (&["a", "a=x*", "a=xy"], &[("a", "zz")], &["a"]),
        // The first of several patterns.
        (&["a=x*", "a=*y"], &[("a", "xy")], &["a=x*"]),
        (&["a=*y", "a=x*"], &[("a", "xy")], &["a=*y"]),
        (&["a=*y", "a=x*"], &[("a", "xz")], &["a=x*"]),
        // Patterns match whole values, and each `*` matches any text.
        (&["a=x*y"], &[("a", "xy")], &["a=x*y"]),
        (&["a=x*y"], &[("a", "x/z/y")], &["a=x*y"]),
        (&["a=x*y"], &[("a", "xyz")], &[]),
        (&["a=xy*yx"], &[("a", "xyx")], &[]),
        (&["a=/v/*/r/*/e"], &[("a", "/v/1/r/2/e")], &["a=/v/*/r/*/e"]),
        (&["a=/v/*/r/*/e"], &[("a", "/v/1/2/e")], &[]),
        (&["a=*ab*b"], &[("a", "abb")], &["a=*ab*b"]),
        (&["a=*ab*ab"], &[("a", "ab")], &[]),
        (&["a=*"], &[("a", "x")], &["a=*"]),
        (&["a=**"], &[("a", "x")], &["a=**"]),
        // A value without a limit is not limited.
        (&["a", "a=x free"], &[("a", "x")], &[]),
        (&["a", "a=x unlimited: true"], &[("a", "x")], &[]),
        (&["a", "a=x* free"], &[("a", "xy")], &[]),
        // The choice on one level is final.
        (&["a>b"], &[("a", "x")], &[]),
        (&["a>b"], &[("b", "x")], &[]),
        (&["a>b"], &[("a", "x"), ("b", "x")], &["a>b"]),
        (&["a=x>b=y"], &[("a", "x"), ("b", "z")], &[]),
        (&["a>b", "a=x free"], &[("a", "x"), ("b", "x")], &[]),
        (&["a>b", "a=x>c"], &[("a", "x"), ("b", "x"), ("c", "x")], &["a=x>c"]),
        (&["a>b", "a=x>c"], &[("a", "y"), ("b", "x"), ("c", "x")], &["a>b"]),
        (&["a=x>a=x*"], &[("a", "x")], &["a=x>a=x*"]),
        (&["a=x>a=xy"], &[("a", "x")], &[]),
        // All paths share a bucket.
        (&["a", "b=x>c", "b"], &[("a", "1"), ("b", "x"), ("c", "2")], &["a", "b=x>c"]),
        // A limit is replaced only if the replacing limit applies.
        (&["a", "b unit: day, requests_per_unit: 5, replaces: [{name: a}]"], &[("a", "1"), ("b", "1")], &["b"]),
        (&["a", "b unit: day, requests_per_unit: 5, replaces: [{name: a}]"], &[("a", "1")], &["a"]),
        (&["a", "b=x unit: day, requests_per_unit: 5, replaces: [{name: a}]"], &[("a", "1"), ("b", "y")], &["a"]),
        (&["a", "b unlimited: true, replaces: [{name: a}]"], &[("a", "1"), ("b", "1")], &[]),
        (
            &["a", "b unit: day, requests_per_unit: 5, shadow_mode: true, replaces: [{name: a}]"],
            &[("a", "1"), ("b", "1")],
            &[],
        ),
        (
            &[
                "a unit: day, requests_per_unit: 5, replaces: [{name: b}]",
                "b unit: day, requests_per_unit: 5, replaces: [{name: a}]",
            ],
            &[("a", "1"), ("b", "1")],
            &[],
        ),
    ];
    for (paths, request, expected) in table {
        // Another limit, so that at least one applies.
        let paths: Vec<&str> = paths.iter().copied().chain(["z"]).collect();
        let limited = Limited::by(&file(&paths));
        let left = limited.send(with(request)).left;
        let applied: BTreeSet<&str> = left.keys().map(String::as_str).collect();
        assert_eq!(applied, expected.iter().copied().collect(), "{paths:?} {request:?}");
    }
}

/// A descriptor as plain data.
#[derive(Clone, Debug)]
struct Node {
    key: char,
    value: String,
    share: bool,
    limit: Option<Plain>,
    within: Vec<Node>,
}

#[derive(Clone, Debug)]
struct Plain {
    /// The number of allowed requests, which identifies the limit.
    id: u32,
    is_unlimited: bool,
    name: Option<char>,
    replaces: Vec<char>,
}

fn node() -> impl Strategy<Value = Node> {
    let key = prop::sample::select(vec!['a', 'b', 'c']);
    let value = prop::sample::select(vec!["", "", "x", "y", "xy", "x*", "*y", "x*y", "*", "*x*"]);
    let name = prop::option::weighted(0.5, prop::sample::select(vec!['m', 'n']));
    let replaces = prop::collection::vec(prop::sample::select(vec!['m', 'n', 'o']), 0..2);
    let limit = (prop::bool::weighted(0.1), name, replaces).prop_map(|(is_unlimited, name, mut replaces)| {
        replaces.retain(|replaced| Some(*replaced) != name);
        Plain { id: 0, is_unlimited, name, replaces }
    });
    let leaf =
        (key, value, any::<bool>(), prop::option::weighted(0.8, limit)).prop_map(|(key, value, share, limit)| Node {
            key,
            value: value.to_owned(),
            share: share && value.contains('*'),
            limit,
            within: Vec::new(),
        });
    leaf.clone().prop_recursive(3, 24, 4, move |inner| {
        (leaf.clone(), prop::collection::vec(inner, 0..4)).prop_map(|(mut node, within)| {
            node.within = within;
            node
        })
    })
}

/// Removes duplicates within a list, and numbers the limits.
fn number(nodes: &mut Vec<Node>, next: &mut u32) {
    let mut known = BTreeSet::new();
    nodes.retain(|node| known.insert((node.key, node.value.clone())));
    for node in nodes {
        if let Some(limit) = &mut node.limit {
            (limit.id, *next) = (*next, *next + 10);
        }
        number(&mut node.within, next);
    }
}

fn print(nodes: &[Node], indent: usize, yaml: &mut String) {
    let space = " ".repeat(indent);
    for node in nodes {
        writeln!(yaml, "{space}- key: {}", node.key).unwrap();
        if !node.value.is_empty() {
            writeln!(yaml, "{space}  value: '{}'\n{space}  share_threshold: {}", node.value, node.share).unwrap();
        }
        if let Some(Plain { id, is_unlimited, name, replaces }) = &node.limit {
            let allowed =
                if *is_unlimited { "unlimited: true".into() } else { format!("unit: year, requests_per_unit: {id}") };
            let name = name.map_or(String::new(), |name| format!(", name: {name}"));
            let replaces: Vec<String> = replaces.iter().map(|name| format!("{{ name: {name} }}")).collect();
            writeln!(yaml, "{space}  rate_limit: {{ {allowed}{name}, replaces: [{}] }}", replaces.join(", ")).unwrap();
        }
        if !node.within.is_empty() {
            writeln!(yaml, "{space}  descriptors:").unwrap();
            print(&node.within, indent + 2, yaml);
        }
    }
}

fn fits(pattern: &[u8], text: &[u8]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|skipped| fits(rest, &text[skipped..])),
        Some((first, rest)) => text.first() == Some(first) && fits(rest, &text[1..]),
    }
}

/// Returns the reference's choice among descriptors for one entry of a proxy.
fn choose<'a>(nodes: &'a [Node], key: char, value: &str) -> Option<&'a Node> {
    let mut same_key = nodes.iter().filter(|node| node.key == key);
    let exact = same_key.clone().find(|node| node.value == value);
    let like =
        || same_key.clone().find(|node| node.value.contains('*') && fits(node.value.as_bytes(), value.as_bytes()));
    exact.or_else(like).or_else(|| same_key.find(|node| node.value.is_empty()))
}

/// Returns the limit of one descriptor of a proxy, and the values that distinguish its buckets.
fn look_up<'a>(mut nodes: &'a [Node], sent: &[(char, &str)]) -> Option<(&'a Plain, Vec<String>)> {
    let mut bucket = Vec::new();
    for (index, (key, value)) in sent.iter().enumerate() {
        let node = choose(nodes, *key, value)?;
        bucket.push(if node.share { node.value.clone() } else { (*value).to_owned() });
        if index + 1 == sent.len() {
            return node.limit.as_ref().map(|limit| (limit, bucket));
        }
        nodes = &node.within;
    }
    None
}

/// Returns all limits that apply, with their buckets, if the proxy sends every possible descriptor.
fn applied(nodes: &[Node], request: &BTreeMap<char, &str>) -> BTreeMap<u32, Vec<String>> {
    let mut sent: Vec<Vec<(char, &str)>> = vec![Vec::new()];
    let mut met = Vec::new();
    for _ in 0..4 {
        sent = sent
            .iter()
            .flat_map(|descriptor| {
                request.iter().map(|(key, value)| descriptor.iter().copied().chain([(*key, *value)]).collect())
            })
            .collect();
        met.extend(sent.iter().filter_map(|descriptor| look_up(nodes, descriptor)));
    }
    let replaced: BTreeSet<char> = met.iter().flat_map(|(limit, _)| limit.replaces.iter().copied()).collect();
    met.retain(|(limit, _)| !limit.is_unlimited && limit.name.is_none_or(|name| !replaced.contains(&name)));
    met.into_iter().map(|(limit, bucket)| (limit.id, bucket)).collect()
}

/// Returns the limits of the descriptors of one call, with their buckets.
fn applied_to_call<'a>(nodes: &'a [Node], call: &[Vec<(char, &str)>]) -> Vec<Option<(&'a Plain, Vec<String>)>> {
    let found: Vec<_> = call.iter().map(|sent| look_up(nodes, sent)).collect();
    let replaced: BTreeSet<char> = found.iter().flatten().flat_map(|(limit, _)| limit.replaces.clone()).collect();
    let applies = |limit: &Plain| !limit.is_unlimited && limit.name.is_none_or(|name| !replaced.contains(&name));
    found.iter().map(|found| found.clone().filter(|(limit, _)| applies(limit))).collect()
}

/// A file with a limit that always applies and is never replaced.
fn document() -> impl Strategy<Value = (Vec<Node>, String)> {
    prop::collection::vec(node(), 1..5).prop_filter_map("too many limits", |mut nodes| {
        let always = Plain { id: 0, is_unlimited: false, name: None, replaces: Vec::new() };
        nodes.push(Node { key: 'z', value: String::new(), share: false, within: Vec::new(), limit: Some(always) });
        let mut next = 1_000;
        number(&mut nodes, &mut next);
        let mut yaml = String::from("domain: d\ndescriptors:\n");
        print(&nodes, 0, &mut yaml);
        for name in ['m', 'n', 'o'] {
            // No request has the header. A name that is replaced has to exist.
            writeln!(yaml, "- {{ key: header.{name}, rate_limit: {{ unlimited: true, name: {name} }} }}").unwrap();
        }
        (next < 1_600).then_some((nodes, yaml))
    })
}

/// Descriptors whose entries may repeat a key.
fn call() -> impl Strategy<Value = Vec<Vec<(char, &'static str)>>> {
    let value = prop::sample::select(vec!["x", "y", "xy", "z"]);
    let entry = (prop::sample::select(vec!['a', 'b', 'c', 'd']), value);
    prop::collection::vec(prop::collection::vec(entry, 1..4), 1..4)
}

fn request() -> impl Strategy<Value = BTreeMap<char, &'static str>> {
    let value = prop::sample::select(vec!["x", "y", "xy", "xxy", "yx", "z"]);
    prop::collection::btree_map(prop::sample::select(vec!['a', 'b', 'c']), value, 0..4)
}

proptest! {
    #![proptest_config(support::cases(300))]

    #[test]
    fn rules_apply_as_in_the_reference(
        (nodes, yaml) in document(),
        requests in prop::collection::vec(request(), 2..4),
        later in prop::sample::subsequence(vec!['a', 'b', 'c'], 0..=3),
    ) {
        let mut extractors = Extractors::new().register("z", key::header("z"));
        for name in ['a', 'b', 'c'] {
            extractors = if later.contains(&name) {
                extractors.register(name, key::from_async_fn(move |head| ready(head.header(&name.to_string()).map(str::to_owned))))
            } else {
                extractors.register(name, key::header(&name.to_string()))
            };
        }
        let limited = Limited::with(&yaml, &extractors);
        let mut used: BTreeMap<(u32, Vec<String>), u32> = BTreeMap::new();
        for request in requests {
            let headers: Vec<(String, &str)> = request.iter().map(|(key, value)| (key.to_string(), *value)).collect();
            let headers: Vec<(&str, &str)> = headers.iter().map(|(key, value)| (key.as_str(), *value)).collect();
            let mut expected: Vec<u32> = Vec::new();
            for (id, bucket) in applied(&nodes, &request) {
                let uses = used.entry((id, bucket)).or_default();
                *uses += 1;
                expected.push(id - *uses);
            }
            expected.sort_unstable();
            let mut left: Vec<u32> = limited.send(with(&headers)).left.into_values().collect();
            left.sort_unstable();
            prop_assert_eq!(left, expected, "{}{:?}", yaml, request);
        }
    }
    #[test]
    fn descriptors_have_the_limits_of_the_reference(
        (nodes, yaml) in document(),
        calls in prop::collection::vec(call(), 1..4),
    ) {
        let extractors = ["a", "b", "c", "z"].into_iter().fold(Extractors::new(), Extractors::register_descriptor_key);
        let limits = rules::from_yaml(&yaml, &extractors).unwrap();
        let limiter = RequestLimiter::builder(limits).try_build().unwrap();
        let mut used: BTreeMap<(u32, Vec<String>), u32> = BTreeMap::new();
        for call in calls {
            let applied = applied_to_call(&nodes, &call);
            for (limit, bucket) in applied.iter().flatten() {
                *used.entry((limit.id, bucket.clone())).or_default() += 1;
            }
            let expected: Vec<Option<u64>> = applied
                .iter()
                .map(|found| found.clone().map(|(limit, bucket)| u64::from(limit.id - used[&(limit.id, bucket)])))
                .collect();
            let entries = call.iter().map(|entries| entries.iter().map(|(key, value)| (key.to_string(), *value)));
            let requests: Vec<Request<()>> = rules::descriptors(entries);
            let heads: Vec<_> = requests.iter().map(RequestHead::of).collect();
            let decisions = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(limiter.decide_all(&heads)).unwrap();
            let left = |decision: &Decision| decision.outcomes().first().map(|outcome| outcome.remaining());
            prop_assert_eq!(decisions.iter().map(left).collect::<Vec<_>>(), expected, "{}{:?}", yaml, call);
        }
    }
}
