//! The fields of a rules file.

use std::time::Duration;

use tower_ratelimit::rules::{self, Extractors};
use tower_ratelimit::{
    Algorithm, CalendarWindow, FixedWindow, LeakyBucket, LeakyBucketQueue, Limit, Rounding, SlidingLog, SlidingWindow,
    SlidingWindowCounter, TokenBucket, Weekday,
};

fn limits(descriptors: &str) -> Vec<Limit> {
    let yaml = format!("domain: shop\ndescriptors:\n{descriptors}");
    rules::from_yaml(&yaml, &Extractors::new()).unwrap()
}

/// Returns the algorithm of a `rate_limit` block.
fn algorithm(fields: &str) -> Algorithm {
    let limits = limits(&format!("- {{ key: method, rate_limit: {{ {fields} }} }}"));
    assert_eq!(limits.len(), 1);
    *limits[0].algorithm()
}

#[test]
fn units_are_those_of_the_reference() {
    let day = 86_400;
    let units = [
        ("second", 1),
        ("minute", 60),
        ("hour", 3_600),
        ("day", day),
        ("week", 7 * day),
        ("month", 30 * day),
        ("year", 365 * day),
        ("MINUTE", 60),
        ("Hour", 3_600),
    ];
    for (unit, seconds) in units {
        let expected = FixedWindow::new(7, Duration::from_secs(seconds));
        assert_eq!(algorithm(&format!("unit: {unit}, requests_per_unit: 7")), expected.into(), "{unit}");
    }
}

#[test]
fn periods_are_sums_of_whole_units() {
    let periods = [
        ("250us", 250),
        ("250µs", 250),
        ("500ms", 500_000),
        ("90s", 90_000_000),
        ("5m", 300_000_000),
        ("1h30m", 5_400_000_000),
        ("2d", 172_800_000_000),
        ("1w", 604_800_000_000),
        ("366d", 31_622_400_000_000),
    ];
    for (period, micros) in periods {
        let expected = FixedWindow::new(7, Duration::from_micros(micros));
        assert_eq!(algorithm(&format!("period: {period}, requests_per_unit: 7")), expected.into(), "{period}");
    }
}

#[test]
fn fields_of_algorithms_have_the_defaults_of_the_code() {
    let second = Duration::from_secs(1);
    let cases: [(&str, Algorithm); 18] = [
        ("", FixedWindow::per_second(60).into()),
        ("algorithm: fixed_window", FixedWindow::per_second(60).into()),
        ("algorithm: sliding_log", SlidingLog::per_second(60).into()),
        ("algorithm: sliding_window", SlidingWindow::per_second(60).into()),
        ("algorithm: sliding_window, buckets: 4", SlidingWindow::per_second(60).buckets(4).into()),
        ("algorithm: sliding_window_counter", SlidingWindowCounter::per_second(60).into()),
        ("algorithm: sliding_window_counter, rounding: up", SlidingWindowCounter::per_second(60).into()),
        (
            "algorithm: sliding_window_counter, rounding: down",
            SlidingWindowCounter::per_second(60).rounding(Rounding::Down).into(),
        ),
        ("algorithm: sliding_window_counter, weight: 40%", SlidingWindowCounter::per_second(60).weight(40).into()),
        ("algorithm: token_bucket", TokenBucket::per_second(60).into()),
        ("algorithm: token_bucket, burst: 100", TokenBucket::new(100, 60, second).into()),
        ("algorithm: token_bucket, refill: continuous", TokenBucket::per_second(60).into()),
        (
            "algorithm: token_bucket, burst: 20, refill: interval",
            TokenBucket::new(20, 60, second).at_intervals().into(),
        ),
        ("algorithm: leaky_bucket", LeakyBucket::per_second(60).into()),
        ("algorithm: leaky_bucket, burst: 1_000", LeakyBucket::new(1_000, 60, second).into()),
        ("algorithm: leaky_bucket_queue", LeakyBucketQueue::per_second(60).into()),
        ("algorithm: leaky_bucket_queue, waiting: 5", LeakyBucketQueue::new(5, 60, second).into()),
        ("algorithm: leaky_bucket_queue, waiting: 5, burst: 8", LeakyBucketQueue::new(5, 60, second).burst(8).into()),
    ];
    for (fields, expected) in cases {
        assert_eq!(algorithm(&format!("unit: second, requests_per_unit: 60, {fields}")), expected, "{fields}");
    }
}

#[test]
fn calendars_have_windows_of_their_units() {
    let cases = [
        ("unit: day, calendar: UTC", CalendarWindow::daily(7)),
        ("unit: week, calendar: UTC", CalendarWindow::weekly(7, Weekday::Monday)),
        ("unit: week, calendar: utc, starts: sunday", CalendarWindow::weekly(7, Weekday::Sunday)),
        ("unit: MONTH, calendar: UTC, algorithm: fixed_window", CalendarWindow::monthly(7)),
        ("unit: month, calendar: UTC, day: 15", CalendarWindow::monthly(7).from_day(15)),
        ("unit: month, calendar: UTC, day: 31", CalendarWindow::monthly(7).from_day(31)),
        ("unit: year, calendar: UTC", CalendarWindow::yearly(7)),
    ];
    for (fields, expected) in cases {
        assert_eq!(algorithm(&format!("{fields}, requests_per_unit: 7")), expected.into(), "{fields}");
    }
    // Without a calendar, a month has 30 days.
    assert_eq!(
        algorithm("unit: month, requests_per_unit: 7"),
        FixedWindow::new(7, Duration::from_secs(2_592_000)).into()
    );
}

#[cfg(feature = "time-zones")]
#[test]
fn fields_of_calendars_select_the_zone_and_the_day() {
    let berlin = CalendarWindow::monthly(7).from_day(15).in_zone("Europe/Berlin");
    assert_eq!(algorithm("unit: month, requests_per_unit: 7, calendar: Europe/Berlin, day: 15"), berlin.into());
    assert_ne!(algorithm("unit: month, requests_per_unit: 7, calendar: UTC, day: 15"), berlin.into());
}

#[cfg(not(feature = "time-zones"))]
#[test]
fn a_time_zone_needs_a_feature() {
    let yaml = "{ domain: a, descriptors: [{ key: method, rate_limit: \
                { unit: day, requests_per_unit: 7, calendar: Europe/Berlin } }] }";
    let error = rules::from_yaml(yaml, &Extractors::new()).unwrap_err().to_string();
    let reported = "the time zone \"Europe/Berlin\" needs the feature `time-zones`: turn it on, or use \"UTC\"";
    assert!(error.contains(reported), "{error}");
}

#[test]
fn limits_are_named_by_the_file_or_by_their_path() {
    let names = |descriptors: &str| -> Vec<String> {
        limits(descriptors).iter().map(|limit| limit.name().to_owned()).collect()
    };
    let limit = "rate_limit: { unit: day, requests_per_unit: 5 }";
    assert_eq!(names(&format!("- {{ key: method, value: GET, {limit} }}")), ["shop.method_GET"]);
    let nested = format!("- {{ key: path, value: /login, descriptors: [{{ key: remote_address, {limit} }}] }}");
    assert_eq!(names(&nested), ["shop.path_/login.remote_address"]);
    let named = "- { key: method, rate_limit: { name: all of it, unit: day, requests_per_unit: 5 } }";
    assert_eq!(names(named), ["all of it"]);
    // An unlimited rule, which replaces others by its name, takes it from no limit.
    let unlimited = "- { key: path, rate_limit: { name: all of it, unlimited: true } }";
    assert_eq!(names(&format!("{named}\n{unlimited}")), ["all of it"]);
}

#[test]
fn duplicate_and_unprintable_names_are_made_distinct() {
    let limit = "rate_limit: { name: same, unit: day, requests_per_unit: 5 }";
    let twins = limits(&format!("- {{ key: method, {limit} }}\n- {{ key: path, {limit} }}"));
    let long = "é".repeat(200);
    let strange =
        limits(&format!("- {{ key: header.a, value: {long}, rate_limit: {{ unit: day, requests_per_unit: 5 }} }}"));
    let names: Vec<&str> = twins.iter().chain(&strange).map(Limit::name).collect();
    assert!(names[0].starts_with("same~") && names[1].starts_with("same~"), "{names:?}");
    assert_ne!(names[0], names[1]);
    assert_eq!(names[2].len(), 64);
    assert!(names[2].starts_with("shop.header.a_???"), "{names:?}");
    for length in [64, 65] {
        let name = "n".repeat(length);
        let long =
            limits(&format!("- {{ key: path, rate_limit: {{ name: {name}, unit: day, requests_per_unit: 5 }} }}"));
        assert_eq!((long[0].name() == name, long[0].name().len()), (length == 64, 64));
    }
    // The name is part of storage keys, so it must not change between versions.
    assert_eq!(names[0], "same~5111bf129938e6c0");
}

#[test]
fn unlimited_rules_add_no_limit_and_shadow_rules_are_not_enforced() {
    let yaml = "
- { key: method, rate_limit: { unlimited: true } }
- { key: method, value: PUT, rate_limit: { unlimited: yes, requests_per_unit: 5 } }
- { key: path, shadow_mode: true, rate_limit: { unit: day, requests_per_unit: 5 } }
- { key: path, value: /a, rate_limit: { unit: day, requests_per_unit: 5, shadow_mode: true } }
- { key: path, value: /b }
";
    let limits = limits(yaml);
    assert_eq!(limits.len(), 2);
    assert!(limits.iter().all(Limit::is_shadow));
}

/// A value is text, even if it looks like a number.
#[test]
fn limits_have_the_path_and_the_modes_of_the_file() {
    let yaml = "
- key: path
  value: /a*
  share_threshold: true
  value_to_metric: on
  rate_limit:
    name: as
    unit: day
    requests_per_unit: 1_000
    cost: 2
    soft: 20%
    key: [header.x-api-key, remote_address]
    replaces: [{ name: a }, { name: b }]
  descriptors:
  - key: method
    value: 1.50
    detailed_metric: true
    shadow_mode: true
    metadata: { any: [thing, 1.5] }
    rate_limit: { unit: day, requests_per_unit: 5 }
- { key: header.a, rate_limit: { name: a, unlimited: true } }
- { key: header.b, rate_limit: { name: b, unlimited: true } }
";
    let [outer, nested] = &limits(yaml)[..] else { panic!("two limits") };
    assert_eq!((outer.name(), outer.is_shadow()), ("as", false));
    assert_eq!(*outer.algorithm(), FixedWindow::per_day(1_000).into());
    assert_eq!((nested.name(), nested.is_shadow()), ("shop.path_/a*.method_1.50", true));
}

#[test]
fn json_and_aliases_load() {
    let json = r#"{"domain":"shop","descriptors":[{"key":"method","value":"GET",
        "rate_limit":{"unit":"day","requests_per_unit":5,"unlimited":false,"replaces":[]}}]}"#;
    assert_eq!(rules::from_yaml(json, &Extractors::new()).unwrap().len(), 1);
    let yaml = "\u{feff}---\r\ndomain: shop\r\ndescriptors:\r\n- key: path\r\n  rate_limit: &five {unit: day, requests_per_unit: 5}\r\n- key: method\r\n  rate_limit: *five\r\n...\r\n";
    assert_eq!(rules::from_yaml(yaml, &Extractors::new()).unwrap().len(), 2);
}

#[test]
fn limits_are_overridable_if_the_file_says_so() {
    let yaml = "
- { key: method, rate_limit: { name: open, unit: day, requests_per_unit: 5, overridable: true } }
- { key: path, rate_limit: { name: closed, unit: day, requests_per_unit: 5 } }
";
    let is_overridable: Vec<bool> = limits(yaml).iter().map(Limit::is_overridable).collect();
    assert_eq!(is_overridable, [true, false]);
}

/// As the error about two limits of a descriptor advises.
#[test]
fn a_nested_descriptor_with_the_same_key_is_a_second_limit() {
    let yaml = "
domain: shop
descriptors:
- key: path
  value: /login
  rate_limit: { name: minutely, unit: minute, requests_per_unit: 5 }
  descriptors:
  - key: path
    rate_limit: { name: daily, unit: day, requests_per_unit: 50 }
";
    let limited =
        crate::service::Limited::with(yaml, &Extractors::new().register("path", tower_ratelimit::key::path()));
    let request = http::Request::get("/login").body(()).unwrap();
    let left: Vec<_> = limited.send(request).left.into_iter().collect();
    assert_eq!(left, [("daily".to_owned(), 49), ("minutely".to_owned(), 4)]);
}
