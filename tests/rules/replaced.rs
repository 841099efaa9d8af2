//! Limits that replace others, which only those do that apply.

use std::future::{poll_fn, ready};
use std::task::Poll;

use http::{Request, StatusCode};
use tower_ratelimit::explain::LimitStatus;
use tower_ratelimit::key::{self, KeyError};
use tower_ratelimit::rules::{self, Extractors};
use tower_ratelimit::{Limit, LiveLimits, RateLimitLayer, when};

use crate::service::{Limited, with};

/// Returns extractors with `later.NAME`, which finds the header NAME asynchronously.
fn extractors() -> Extractors {
    ["x-user", "x-team"].into_iter().fold(Extractors::new(), |extractors, name| {
        let later = key::from_async_fn(move |head| ready(head.header(name).map(str::to_owned)));
        extractors.register(format!("later.{name}"), later)
    })
}

/// Returns the limit `general` of 5 requests for all, `special` with more fields, which replaces it, and `other`, which
/// no request matches.
fn file(special: &str) -> String {
    format!(
        "
domain: shop
descriptors:
- {{ key: method, rate_limit: {{ name: general, unit: year, requests_per_unit: 5 }} }}
- {{ key: path, rate_limit: {{ name: special, replaces: [{{ name: general }}], {special} }} }}
- {{ key: header.x-other, value: x, rate_limit: {{ name: other, unit: year, requests_per_unit: 5 }} }}
"
    )
}

const LIMITED: &str = "unit: year, requests_per_unit: 1000";

fn limits(special: &str) -> Vec<Limit> {
    rules::from_yaml(&file(special), &extractors()).unwrap()
}

/// Returns the number of 100 requests that are allowed.
fn allowed(limited: &Limited, headers: &[(&str, &str)]) -> usize {
    (0..100).filter(|_| limited.allows(with(headers))).count()
}

/// Returns the names of the limits that apply, by the headers of the response and by its explanation.
#[track_caller]
fn applied(limited: &Limited, request: Request<()>) -> Vec<String> {
    let explanation = limited.explain(&request);
    let explained = explanation.limits.iter().filter(|limit| limit.applied().is_some());
    let mut explained: Vec<String> = explained.map(|limit| limit.name.to_string()).collect();
    explained.sort_unstable();
    let applied: Vec<String> = limited.send(request).left.into_keys().collect();
    assert_eq!(explained, applied, "{explanation}");
    applied
}

fn status(limited: &Limited, request: &Request<()>, name: &str) -> LimitStatus {
    let explanation = limited.explain(request);
    explanation.limits.into_iter().find(|limit| &*limit.name == name).expect("a limit").status
}

#[test]
fn a_limit_that_is_skipped_for_lack_of_its_key_replaces_no_other() {
    for key in ["header.x-user", "later.x-user"] {
        let limited = Limited::of(limits(&format!("{LIMITED}, key: [{key}], on_missing_key: skip")));
        assert_eq!(allowed(&limited, &[]), 5, "{key}");
        assert_eq!(allowed(&limited, &[("x-user", "ann")]), 100, "{key}");
        let explained = |headers: &[(&str, &str)], name| status(&limited, &with(headers), name);
        assert!(matches!(explained(&[], "special"), LimitStatus::Skipped { error: KeyError::NotSent, .. }));
        assert!(matches!(explained(&[], "general"), LimitStatus::Applies(_)));
        assert_eq!(explained(&[("x-user", "ann")], "general"), LimitStatus::Replaced);
        assert_eq!(explained(&[("x-user", "ann")], "other"), LimitStatus::NotMatched);
    }
}

/// The fields of the special limit, the values of `x-user`, and the limits that apply, or `None` for a bad request.
type Row = (&'static str, &'static [&'static str], Option<&'static [&'static str]>);

#[test]
fn a_limit_replaces_others_where_its_policy_for_missing_keys_makes_it_apply() {
    let table: &[Row] = &[
        ("on_missing_key: skip", &["ann"], Some(&["special"])),
        ("on_missing_key: skip", &[], Some(&["general"])),
        ("on_missing_key: skip", &["ann", "bob"], None),
        ("on_missing_key: share", &["ann"], Some(&["special"])),
        // The limit applies under the shared key.
        ("on_missing_key: share", &[], Some(&["special"])),
        ("on_missing_key: share", &["ann", "bob"], None),
        ("on_missing_key: reject", &["ann"], Some(&["special"])),
        ("on_missing_key: reject", &[], None),
        ("on_missing_key: reject", &["ann", "bob"], None),
        // Headers do not show a limit in shadow mode.
        ("on_missing_key: reject, shadow_mode: true", &["ann"], Some(&[])),
        ("on_missing_key: reject, shadow_mode: true", &[], Some(&["general"])),
        ("on_missing_key: share, shadow_mode: true", &[], Some(&[])),
        ("on_missing_key: share, shadow_mode: true", &["ann", "bob"], Some(&["general"])),
    ];
    for key in ["header.x-user", "later.x-user"] {
        for (fields, users, expected) in table {
            let limited = Limited::of(limits(&format!("{LIMITED}, key: [{key}], {fields}")));
            let headers: Vec<_> = users.iter().map(|user| ("x-user", *user)).collect();
            let row = format!("{key}, {fields}, {users:?}");
            let coverage = limited.send(with(&headers));
            let left: Vec<&str> = coverage.left.keys().map(String::as_str).collect();
            match expected {
                Some(expected) => assert_eq!((coverage.status, &*left), (StatusCode::OK, *expected), "{row}"),
                None => assert_eq!(coverage.status, StatusCode::BAD_REQUEST, "{row}"),
            }
            let general = status(&limited, &with(&headers), "general");
            let is_replaced = *expected == Some(&["special"]) || *expected == Some(&[]);
            assert_eq!(general == LimitStatus::Replaced, is_replaced, "{row}: {general:?}");
        }
    }
}

#[test]
fn a_limit_whose_condition_does_not_hold_replaces_no_other() {
    for key in ["method", "later.x-user"] {
        let pro = |limit: Limit| match limit.name() {
            "special" => limit.when(when::header("x-plan", "pro")),
            _ => limit,
        };
        let limits: Vec<Limit> = limits(&format!("{LIMITED}, key: [{key}]")).into_iter().map(pro).collect();
        let limited = Limited::of(limits.clone());
        let user = ("x-user", "ann");
        assert_eq!(allowed(&limited, &[user]), 5, "{key}");
        assert_eq!(applied(&limited, with(&[user, ("x-plan", "pro")])), ["special"], "{key}");
        assert_eq!(status(&limited, &with(&[user]), "special"), LimitStatus::ConditionNotMet);
        assert_eq!(status(&limited, &with(&[user, ("x-plan", "pro")]), "general"), LimitStatus::Replaced);
        // A client gains nothing by a second line.
        let both = with(&[user, ("x-plan", "pro"), ("x-plan", "free")]);
        let limited = Limited::of(limits);
        assert_eq!(applied(&limited, both), ["general", "special"], "{key}");
    }
}

#[test]
fn a_limit_that_the_limiter_lacks_replaces_no_other() {
    for key in ["method", "later.x-user"] {
        let mut limits = limits(&format!("{LIMITED}, key: [{key}]"));
        limits.retain(|limit| limit.name() != "special");
        let limited = Limited::of(limits);
        assert_eq!(allowed(&limited, &[("x-user", "ann")]), 5, "{key}");
        assert!(matches!(status(&limited, &with(&[("x-user", "ann")]), "general"), LimitStatus::Applies(_)));
    }
}

#[test]
fn a_live_limit_that_is_removed_replaces_no_other() {
    let all = limits(LIMITED);
    let live = LiveLimits::new(all.clone());
    let limited = Limited::of_builder(RateLimitLayer::live_builder(&live));
    assert_eq!(applied(&limited, with(&[])), ["special"]);
    live.replace(all.iter().filter(|limit| limit.name() != "special").cloned()).unwrap();
    assert_eq!(applied(&limited, with(&[])), ["general"]);
    live.replace(all).unwrap();
    assert_eq!(applied(&limited, with(&[])), ["special"]);
}

#[test]
fn an_unlimited_entry_replaces_others() {
    for fields in ["unlimited: true", "unlimited: true, key: [header.x-user], on_missing_key: skip"] {
        let limited = Limited::of(limits(fields));
        assert_eq!(allowed(&limited, &[]), 100, "{fields}");
        assert_eq!(status(&limited, &with(&[]), "general"), LimitStatus::Replaced);
    }
}

/// A request whose address is unknown, or whose header is repeated, might have any value: limits apply in doubt.
#[test]
fn an_unlimited_entry_replaces_no_other_without_the_value_of_its_descriptor() {
    for (key, request) in [
        ("remote_address, value: 192.0.2.1", with(&[])),
        ("remote_address", with(&[])),
        ("header.x-user, value: ann", with(&[("x-user", "ann"), ("x-user", "bob")])),
    ] {
        let limited = Limited::by(&format!(
            "
domain: shop
descriptors:
- {{ key: method, rate_limit: {{ name: general, unit: year, requests_per_unit: 5 }} }}
- {{ key: {key}, rate_limit: {{ unlimited: true, replaces: [{{ name: general }}] }} }}
"
        ));
        assert_eq!(applied(&limited, request), ["general"], "{key}");
    }
}

#[test]
fn a_replaced_limit_replaces_others_if_it_applies() {
    let yaml = |user: &str, team: &str| {
        format!(
            "
domain: shop
descriptors:
- {{ key: method, rate_limit: {{ name: a, unit: year, requests_per_unit: 5 }} }}
- key: path
  rate_limit: {{ name: b, {LIMITED}, key: [{user}], on_missing_key: skip, replaces: [{{ name: a }}] }}
  descriptors:
  - key: path
    rate_limit: {{ name: c, {LIMITED}, key: [{team}], on_missing_key: skip, replaces: [{{ name: b }}] }}
"
        )
    };
    for (user, team) in
        [("header.x-user", "header.x-team"), ("later.x-user", "header.x-team"), ("header.x-user", "later.x-team")]
    {
        let limited = Limited::with(&yaml(user, team), &extractors());
        for (headers, expected) in [
            (&[("x-user", "ann"), ("x-team", "ops")][..], &["c"][..]),
            (&[("x-user", "ann")], &["b"]),
            (&[("x-team", "ops")], &["a", "c"]),
            (&[], &["a"]),
        ] {
            assert_eq!(applied(&limited, with(headers)), expected, "{user}, {team}, {headers:?}");
        }
    }
}

/// A replaced limit that replaces no other needs no key.
#[test]
fn keys_of_replaced_limits_are_not_awaited() {
    let yaml = format!(
        "
domain: shop
descriptors:
- {{ key: method, rate_limit: {{ name: general, {LIMITED}, key: [never] }} }}
- {{ key: path, rate_limit: {{ name: special, {LIMITED}, key: [later.x-user], replaces: [{{ name: general }}] }} }}
"
    );
    let never = key::from_async_fn(|_| poll_fn(|_| -> Poll<Option<u64>> { panic!("the key is awaited") }));
    let limited = Limited::with(&yaml, &extractors().register("never", never));
    assert_eq!(applied(&limited, with(&[("x-user", "ann")])), ["special"]);
}
