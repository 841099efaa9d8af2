//! The rate limit headers of responses.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::ready;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_ratelimit::{
    Algorithm, FixedWindow, HeaderStyle, LeakyBucket, LeakyBucketQueue, Limit, Limiter, LiveLimits, RateLimitLayer,
    Rejection, RequestHead, ResetFormat, SlidingLog, SlidingWindowCounter, Timestamp, TokenBucket, when,
};

use crate::service::{
    Hello, builder, clocked, get, grpc, limited, one, per_day, per_hour, per_minute, serve, triple, with,
};
use crate::store::MIDNIGHT;
use support::answer::{Answer, Member, ask};
use support::faulty_store::{FaultyStore, Mode};
use support::limits::kind;

const SECONDS: HeaderStyle = HeaderStyle::XRateLimit(ResetFormat::Seconds);
const DASHED: HeaderStyle = HeaderStyle::XRateLimitDashed(ResetFormat::Epoch);
const ALL: [HeaderStyle; 5] = [HeaderStyle::IETF, SECONDS, DASHED, HeaderStyle::Overage, HeaderStyle::XRetryAfter];

fn two() -> Limit {
    per_minute("two", 2)
}

fn queue() -> Limit {
    Limit::new("queue", LeakyBucketQueue::new(9, 1, Duration::from_secs(60)))
}

/// Returns the rate limit headers.
fn reported(answer: &Answer) -> Vec<(&str, &str)> {
    let others = ["content-type", "cache-control", "retry-after"];
    let headers = answer.headers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap()));
    let mut reported: Vec<_> = headers.filter(|(name, _)| !others.contains(name)).collect();
    reported.sort_unstable();
    reported
}

#[tokio::test]
async fn t_is_the_time_for_which_r_must_suffice_or_in_draft_10_the_time_until_there_is_more() {
    let draft_11 = [
        "\"burst\";r=19;t=2",
        "\"daily\";r=9999;t=86400",
        "\"fast\";r=4;t=1",
        "\"odd\";r=4;t=2",
        "\"queue\";r=9;t=540",
        // Nine tokens come back in 54 seconds, but none within a minute of the only request.
        "\"log\";r=9;t=60",
        "\"thirds\";r=2;t=7",
        "\"untouched\";r=5;t=60",
    ];
    let mut draft_10 = draft_11;
    (draft_10[0], draft_10[4]) = ("\"burst\";r=19;t=1", "\"queue\";r=9;t=60");
    (draft_10[6], draft_10[7]) = ("\"thirds\";r=2;t=4", "\"untouched\";r=5");
    for (style, standings) in [
        (HeaderStyle::IetfDraft11, draft_11),
        (HeaderStyle::IETF, draft_11),
        (HeaderStyle::default(), draft_11),
        (HeaderStyle::IetfDraft10, draft_10),
    ] {
        let (builder, clock) = clocked([
            Limit::new("burst", TokenBucket::new(20, 10, Duration::from_secs(1))),
            per_day("daily", 10_000),
            Limit::new("fast", FixedWindow::new(5, Duration::from_millis(999))),
            Limit::new("odd", FixedWindow::new(5, Duration::from_millis(1_500))),
            queue(),
            Limit::new("log", SlidingLog::per_minute(10)),
            Limit::new("thirds", TokenBucket::new(3, 3, Duration::from_secs(10))),
            Limit::new("untouched", TokenBucket::per_minute(5)).cost(0),
        ]);
        clock.advance(Duration::from_micros(1));
        let answer = ask(&serve(builder.headers([style])), get("/")).await;
        // A window shorter than a second cannot be expressed.
        let policies = "\"burst\";q=20;w=2, \"daily\";q=10000;w=86400, \"fast\";q=5, \"odd\";q=5;w=2, \
                        \"queue\";q=10;w=600, \"log\";q=10;w=60, \"thirds\";q=3;w=10, \"untouched\";q=5;w=60";
        assert_eq!(answer.all("ratelimit-policy"), [policies], "the same in every draft");
        assert_eq!(answer.all("ratelimit"), [standings.join(", ")], "{style:?}");
    }
}

/// A single limit has its own code path. The effective window of an untouched limit is its window.
#[tokio::test]
async fn a_single_limit_has_the_t_of_its_draft() {
    for (limit, style, standing) in [
        (queue(), HeaderStyle::IetfDraft11, "\"queue\";r=9;t=540"),
        (queue(), HeaderStyle::IetfDraft10, "\"queue\";r=9;t=60"),
        (two().cost(0), HeaderStyle::IETF, "\"two\";r=2;t=60"),
        (two().cost(0), HeaderStyle::IetfDraft10, "\"two\";r=2"),
    ] {
        assert_eq!(ask(&serve(builder(limit).headers(style)), get("/")).await.all("ratelimit"), [standing]);
    }
}

/// Draft 11: `Retry-After` should not be before the end of the effective window.
#[tokio::test]
async fn in_draft_11_t_is_never_later_than_retry_after() {
    let limit =
        Limit::new("ten", TokenBucket::per_minute(10)).cost_by(|head| head.header("cost").unwrap().parse().unwrap());
    let service = limited(limit);
    let mut denied = 0;
    for cost in [7, 5, 4, 3, 1, 2] {
        let answer = ask(&service, with(&[("cost", &cost.to_string())])).await;
        if answer.is_denied() {
            denied += 1;
            let retry_after: i64 = answer.header("retry-after").expect("waiting helps").parse().expect("a number");
            let t = answer.standings()[0].get("t");
            assert!(t.is_some_and(|t| (1..=retry_after).contains(&t)), "{cost}: {answer:?}");
        }
    }
    assert_eq!(denied, 4);
}

/// `r` requests spread over `t` seconds are never denied, and are no faster than the limit's rate.
#[tokio::test]
async fn in_draft_11_a_client_that_paces_itself_keeps_to_the_limits_rate() {
    let period = Duration::from_secs(20);
    let algorithms: [Algorithm; 6] = [
        FixedWindow::new(10, period).into(),
        SlidingLog::new(10, period).into(),
        SlidingWindowCounter::new(10, period).into(),
        TokenBucket::new(10, 10, period).into(),
        TokenBucket::new(10, 5, period).at_intervals().into(),
        LeakyBucket::new(10, 10, period).into(),
    ];
    for algorithm in algorithms {
        let (builder, clock) = clocked(Limit::new("ten", algorithm));
        let service = serve(builder);
        let (mut allowed, mut elapsed) = (0, Duration::ZERO);
        while elapsed < 50 * period {
            let answer = ask(&service, get("/")).await;
            assert!(!answer.is_denied(), "{algorithm:?} after {elapsed:?}: {answer:?}");
            allowed += 1;
            let standing = &answer.standings()[0];
            let (r, t) = (standing.get("r").expect("r is required"), standing.get("t").expect("there is a window"));
            // The suggested rate is at most that of the limit. (The rest of a fixed window may be short.)
            let w = algorithm.window_at(Timestamp::EPOCH).as_secs() as i64;
            let is_sustainable = r * w <= t * algorithm.capacity() as i64;
            assert!(is_sustainable || kind(&algorithm) == "a fixed window", "{algorithm:?}: {standing:?}");
            let pause = Duration::from_secs(t as u64) / u32::try_from(r).expect("it is small").max(1);
            clock.advance(pause);
            elapsed += pause;
        }
        // Rounding to seconds loses some of it.
        let most = 50 * algorithm.capacity();
        assert!((most / 4..=most + 10).contains(&allowed), "{algorithm:?}: {allowed} of {most}");
    }
}

#[tokio::test]
async fn names_are_escaped() {
    let name = r#"a "quoted" \name\, with;all=that"#;
    let longest = "~".repeat(64);
    let answer = ask(&limited([per_minute(name, 2), per_minute(&longest, 3)]), get("/")).await;
    assert_eq!(answer.policies().iter().map(|member| member.name.as_str()).collect::<Vec<_>>(), [name, &longest]);
    assert_eq!((answer.remaining_of(name), answer.remaining_of(&longest)), (1, 2));
}

#[tokio::test]
async fn x_ratelimit_headers_of_allowed_and_denied_requests() {
    let (builder, clock) = clocked(two());
    let service = serve(builder.headers([SECONDS, DASHED]));
    clock.advance(Duration::from_millis(1_500));
    for left in ["1", "0", "0"] {
        let expected = [
            ("x-rate-limit-limit", "2"),
            ("x-rate-limit-remaining", left),
            ("x-rate-limit-reset", &(MIDNIGHT + 60).to_string()),
            ("x-ratelimit-limit", "2"),
            ("x-ratelimit-remaining", left),
            ("x-ratelimit-reset", "59"),
        ];
        assert_eq!(reported(&ask(&service, get("/")).await), expected);
    }
}

#[tokio::test]
async fn x_ratelimit_reset_is_rounded_up() {
    let styles = [HeaderStyle::XRateLimit(ResetFormat::Epoch), HeaderStyle::XRateLimitDashed(ResetFormat::Seconds)];
    let (builder, clock) = clocked(Limit::new("two", TokenBucket::new(2, 1, Duration::from_millis(1_500))));
    let service = serve(builder.headers(styles));
    // The first is 1.5 s from a microsecond past midnight, and rounded up. A reset at a whole second, after two
    // requests, is not.
    for (now, instant, seconds) in [(1, 2, "2"), (100_000_000, 102, "2"), (100_000_000, 103, "3")] {
        clock.set(Timestamp::from_micros(MIDNIGHT * 1_000_000 + now));
        let answer = ask(&service, get("/")).await;
        assert_eq!(answer.header("x-ratelimit-reset"), Some((MIDNIGHT + instant).to_string().as_str()));
        assert_eq!(answer.header("x-rate-limit-reset"), Some(seconds));
    }
}

/// Numbers with and without zeros, up to the largest.
#[tokio::test]
async fn every_number_is_exact_in_headers() {
    let (builder, clock) = clocked(Limit::new("one", FixedWindow::new(1, Duration::from_secs(1_111))));
    clock.set(Timestamp::EPOCH);
    let service = serve(builder.headers([HeaderStyle::IETF, SECONDS, HeaderStyle::XRetryAfter]));
    ask(&service, get("/")).await;
    for seconds in (2..=1_111).rev() {
        let answer = ask(&service, get("/")).await;
        let text = seconds.to_string();
        for name in ["retry-after", "x-ratelimit-retry-after", "x-ratelimit-reset"] {
            assert_eq!(answer.header(name), Some(text.as_str()), "{name}");
        }
        assert_eq!(answer.all("ratelimit"), [format!("\"one\";r=0;t={seconds}")]);
        let plural = |number: i64, unit: &str| format!("{number} {unit}{}", if number == 1 { "" } else { "s" });
        let wait = match (seconds / 60, seconds % 60) {
            (0, rest) => plural(rest, "second"),
            (minutes, 0) => plural(minutes, "minute"),
            (minutes, rest) => plural(minutes, "minute") + " " + &plural(rest, "second"),
        };
        assert_eq!(answer.body, format!("Too many requests: try again in {wait}.\n"));
        clock.advance(Duration::from_secs(1));
    }
}

#[tokio::test]
async fn x_ratelimit_headers_of_large_numbers() {
    for (capacity, seconds) in [(1_000, 1_000), (1_001, 1_000), (1_001, 999), (u32::MAX, 31_622_400)] {
        let (builder, clock) = clocked(Limit::new("large", FixedWindow::new(capacity, Duration::from_secs(seconds))));
        clock.set(Timestamp::EPOCH);
        let answer = ask(&serve(builder.headers(SECONDS)), get("/")).await;
        let expected = [capacity.to_string(), (capacity - 1).to_string(), seconds.to_string()];
        assert_eq!((triple(&answer, "x-ratelimit"), reported(&answer).len()), (expected.each_ref().map(|n| &**n), 3));
    }
}

#[tokio::test]
async fn a_header_style_set_twice_is_sent_once() {
    let epoch = HeaderStyle::XRateLimit(ResetFormat::Epoch);
    let answer =
        ask(&serve(builder(two()).headers([HeaderStyle::IETF, SECONDS, HeaderStyle::IetfDraft10, epoch])), get("/"))
            .await;
    assert_eq!((answer.all("ratelimit").len(), answer.header("x-ratelimit-reset")), (1, Some("60")));
}

#[tokio::test]
async fn a_rejection_has_retry_after_in_every_style_and_under_another_name_if_configured() {
    for (styles, other) in [(&[HeaderStyle::XRetryAfter][..], Some("60")), (&[], None)] {
        let service = serve(builder(two()).headers(styles.iter().copied()));
        for is_denied in [false, false, true] {
            let answer = ask(&service, get("/")).await;
            assert_eq!(answer.header("retry-after"), is_denied.then_some("60"));
            let other = other.filter(|_| is_denied).map(|wait| ("x-ratelimit-retry-after", wait));
            assert_eq!(reported(&answer), Vec::from_iter(other));
        }
    }
}

/// httprate#47, boundary#4094, tower_governor lib.rs:125 and others: `Retry-After` was 0. axum-governor respond.rs:63: it
/// was rounded down.
#[tokio::test]
async fn waits_are_whole_seconds_rounded_up() {
    for (micros, seconds) in [
        (1, "1"),
        (1_000, "1"),
        (999_999, "1"),
        (1_000_000, "1"),
        (1_000_001, "2"),
        (1_999_000, "2"),
        (61_200_000, "62"),
        (24 * 86_400_000_000, "2073600"),
    ] {
        let limit = Limit::new("one", TokenBucket::new(1, 1, Duration::from_micros(micros)));
        let service = serve(builder(limit).headers(HeaderStyle::XRetryAfter));
        ask(&service, get("/")).await;
        let denied = ask(&service, get("/")).await;
        for name in ["retry-after", "x-ratelimit-retry-after"] {
            assert_eq!(denied.header(name), Some(seconds), "{name} of {micros} µs");
        }
    }
}

/// The `X-RateLimit` headers describe the limit that denies, or else the one with the least remaining tokens.
#[tokio::test]
async fn x_ratelimit_headers_describe_the_limit_with_the_least_remaining() {
    let limits = [
        per_hour("wide", 100),
        per_minute("tight", 5),
        // This limit has the least remaining tokens, but another one denies.
        Limit::new("least", FixedWindow::per_second(1)).cost(0),
        // Clients do not see limits in shadow mode.
        Limit::new("trial", FixedWindow::per_second(3)).shadow(),
    ];
    let service = serve(builder(limits).headers([SECONDS, HeaderStyle::XRetryAfter]).cost(3));
    for (numbers, wait) in [(["1", "1", "0"], None), (["5", "2", "60"], Some("60"))] {
        let answer = ask(&service, get("/")).await;
        assert_eq!((triple(&answer, "x-ratelimit"), answer.header("x-ratelimit-retry-after")), (numbers, wait));
    }
}

/// In any order of the limits, the one that resets last is described.
#[tokio::test]
async fn x_ratelimit_headers_describe_the_last_limit_to_reset_among_equals() {
    let [minutely, hourly] = [per_minute("minutely", 5), per_hour("hourly", 5)];
    for limits in [[minutely.clone(), hourly.clone()], [hourly, minutely]] {
        let answer = ask(&serve(builder(limits).headers(SECONDS)), get("/")).await;
        assert_eq!(triple(&answer, "x-ratelimit"), ["5", "4", "3600"]);
    }
}

/// In any order of the limits.
#[tokio::test]
async fn x_ratelimit_headers_describe_the_limit_that_denies_longest() {
    let hourly = per_hour("hourly", 4);
    for (other, longest) in [
        // A shorter wait, although fewer tokens remain.
        (per_minute("minutely", 3), "4"),
        // No wait can help: the cost of the second request exceeds the capacity.
        (per_minute("small", 2), "2"),
    ] {
        for limits in [[hourly.clone(), other.clone()], [other, hourly.clone()]] {
            let cost = |head: &RequestHead<'_>| if head.uri.path() == "/large" { 3 } else { 2 };
            let service = serve(builder(limits).headers(SECONDS).cost_by(cost));
            assert!(!ask(&service, get("/")).await.is_denied());
            let denied = ask(&service, get("/large")).await;
            assert_eq!((denied.is_denied(), triple(&denied, "x-ratelimit")[0]), (true, longest));
        }
    }
}

#[tokio::test]
async fn all_headers_show_the_size_for_the_request() {
    for (pro, policy, standing, size) in [
        (TokenBucket::per_hour(60).into(), "\"two\";q=60;w=3600", "\"two\";r=59;t=3540", "60"),
        // The period differs, and the tokens do not.
        (Algorithm::from(FixedWindow::per_hour(2)), "\"two\";q=2;w=3600", "\"two\";r=1;t=3600", "2"),
    ] {
        let limit = two().size_when(when::header("x-plan", "pro"), pro);
        let service = serve(builder(limit).headers([HeaderStyle::IETF, SECONDS]));
        for (plan, policy, standing, size) in
            [("pro", policy, standing, size), ("free", "\"two\";q=2;w=60", "\"two\";r=1;t=60", "2")]
        {
            let answer = ask(&service, with(&[("x-plan", plan)])).await;
            assert_eq!((answer.all("ratelimit-policy"), answer.all("ratelimit")), (vec![policy], vec![standing]));
            assert_eq!(triple(&answer, "x-ratelimit")[0], size);
        }
    }
}

/// A denied request uses no overage, even if another limit has some.
#[tokio::test]
async fn overage_is_reported_only_if_the_request_is_allowed() {
    let service = serve(builder([per_minute("soft", 1).soft(200), two()]).headers(HeaderStyle::Overage));
    for overage in [None, Some("\"soft\""), None] {
        assert_eq!(ask(&service, get("/")).await.header("ratelimit-overage"), overage);
    }
}

/// Two nested layers: lists are merged, and of the `X-RateLimit` headers those with fewer remaining tokens are kept,
/// whichever layer is outside.
#[tokio::test]
async fn headers_of_nested_layers_list_all_limits() {
    for wide_is_outside in [true, false] {
        let [wide, tight] =
            [per_hour("wide", 100), two()].map(|limit| builder(limit).headers([HeaderStyle::IETF, SECONDS]).build());
        let (outer, inner) = if wide_is_outside { (wide, tight) } else { (tight, wide) };
        let service = ServiceBuilder::new().layer(outer).layer(inner).service(Hello::default());
        for (wide, tight) in [(99, 1), (98, 0)] {
            let answer = ask(&service, get("/")).await;
            assert_eq!((answer.remaining_of("wide"), answer.remaining_of("two")), (wide, tight));
            assert_eq!(answer.all("ratelimit").len(), 2);
            assert_eq!(triple(&answer, "x-ratelimit"), ["2", &tight.to_string(), "60"]);
        }
        let denied = ask(&service, get("/")).await;
        assert_eq!((triple(&denied, "x-ratelimit")[1], denied.header("retry-after")), ("0", Some("60")));
        assert_eq!(denied.remaining_of("two"), 0);
    }
}

#[test]
fn every_header_is_exposed_by_cors() {
    let draft = &["retry-after", "ratelimit-policy", "ratelimit"][..];
    let triple = ["x-rate-limit-limit", "x-rate-limit-remaining", "x-rate-limit-reset"];
    let all = ["x-ratelimit-retry-after", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
    for (styles, names) in [
        (&[][..], &["retry-after"][..]),
        (&[HeaderStyle::IETF], draft),
        (&[HeaderStyle::IETF, HeaderStyle::IetfDraft10], draft),
        (&[DASHED], &[&["retry-after"], &triple[..]].concat()),
        (&[HeaderStyle::XRetryAfter, SECONDS], &[&["retry-after"], &all[..]].concat()),
    ] {
        let layer = builder(two()).headers(styles.iter().copied()).build();
        assert_eq!(layer.exposed_headers().iter().map(HeaderName::as_str).collect::<Vec<_>>(), names);
    }
}

#[tokio::test]
async fn x_ratelimit_retry_after_is_sent_while_the_store_fails() {
    let failing = || {
        let store = FaultyStore::new(Mode::FailsAtOnce);
        RateLimitLayer::builder(two()).store(store).headers(HeaderStyle::XRetryAfter)
    };
    let reject = |_: &Rejection<'_>| (StatusCode::SERVICE_UNAVAILABLE, "later");
    for (builder, request, status) in [
        (failing(), get("/"), None),
        (failing().problem_json(), get("/"), None),
        (failing().on_reject(reject), get("/"), None),
        (failing(), grpc(), Some("14")),
    ] {
        let answer = ask(&serve(builder), request).await;
        assert_eq!((answer.header("grpc-status"), answer.all("x-ratelimit-retry-after")), (status, vec!["1"]));
        assert_eq!(answer.all("retry-after").len(), usize::from(status.is_none()));
    }
}

#[tokio::test]
async fn a_single_limit_and_a_single_style_need_no_list() {
    let live = LiveLimits::new(two());
    live.replace(two()).unwrap();
    for builder in [RateLimitLayer::builder(two()), RateLimitLayer::live_builder(&live)] {
        assert_eq!(ask(&serve(builder.headers(SECONDS)), get("/")).await.header("x-ratelimit-remaining"), Some("1"));
    }
    assert_eq!((RateLimitLayer::new(two()).limits().len(), Limiter::new(two()).limits().len()), (1, 1));
    // The types of empty lists are still inferred.
    assert!(ask(&serve(RateLimitLayer::builder([]).headers([])), get("/")).await.header("ratelimit").is_none());
}

/// Returns a response with these headers, and as many others as a map can hold but for `left`.
fn full_response(headers: &[(&'static str, &'static str)], left: usize) -> Response<String> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, HeaderValue::from_static(value));
    }
    let others = (0..).map(|other| HeaderName::try_from(format!("x-{other}")).unwrap());
    let mut is_added = |name| map.try_insert(name, HeaderValue::from_static("")).is_ok();
    assert!(others.map_while(|name| is_added(name).then_some(())).count() > 10_000);
    (0..left).for_each(|other| _ = map.remove(format!("x-{other}")));
    let mut response = Response::new("hello".to_owned());
    *response.headers_mut() = map;
    response
}

/// It has the whole triple or none of it.
#[tokio::test]
async fn a_response_with_very_many_headers_is_forwarded() {
    let own = [
        ("ratelimit", "\"two\";r=5"),
        ("ratelimit-policy", "\"two\";q=9"),
        ("ratelimit-overage", "\"two\""),
        ("x-ratelimit-limit", "9"),
        ("x-ratelimit-remaining", "5"),
        ("x-ratelimit-reset", "5"),
    ];
    for own in [&[], &own[..]] {
        for left in 0..8 {
            let full = full_response(own, left);
            let count = full.headers().len();
            let inner = service_fn(move |_: Request<()>| ready(Ok::<_, Infallible>(full.clone())));
            for styles in [&ALL[..1], &ALL[1..2], &ALL] {
                let service = builder(two().soft(100)).headers(styles.iter().copied()).build().layer(inner.clone());
                for _ in 0..3 {
                    let response = service.clone().oneshot(get("/")).await.unwrap();
                    assert_eq!(response.status(), 200);
                    let headers = response.headers();
                    assert!((count..=count + 8).contains(&headers.len()), "{}", headers.len());
                    let names = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
                    let triple = names.iter().filter(|name| headers.contains_key(**name)).count();
                    assert!(matches!(triple, 0 | 3), "{triple} headers");
                    assert!(styles.len() != 1 || styles[0] != SECONDS || left < 3 || triple == 3, "{left} would fit");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_custom_rejection_with_very_many_headers_is_sent() {
    for left in 0..8 {
        let respond = move |_: &Rejection<'_>| full_response(&[], left);
        let service = serve(builder(one()).headers(ALL).on_reject(respond));
        let _ = ask(&service, get("/")).await;
        let response = service.oneshot(get("/")).await.unwrap();
        // The most important header comes first.
        assert_eq!(response.headers().contains_key("retry-after"), left > 0);
    }
}

/// Each denial has a random addition to its wait, the same in all places.
#[tokio::test]
async fn a_jitter_is_added_to_the_wait_that_clients_are_sent() {
    let [exact, jittered] = [0, 8].map(|longest| {
        let builder = builder(one()).headers([HeaderStyle::XRetryAfter, HeaderStyle::IETF]);
        serve(builder.retry_after_jitter(Duration::from_secs(longest)))
    });
    let mut waits = BTreeSet::new();
    for service in [&exact, &jittered] {
        assert!(!ask(service, get("/")).await.is_denied());
    }
    for _ in 0..200 {
        assert_eq!(ask(&exact, get("/")).await.header("retry-after"), Some("60"));
        let answer = ask(&jittered, get("/")).await;
        let seconds: u64 = answer.header("retry-after").expect("a wait").parse().unwrap();
        assert!((60..=68).contains(&seconds), "{seconds}");
        assert_eq!(answer.header("x-ratelimit-retry-after"), answer.header("retry-after"));
        let text = match seconds - 60 {
            0 => "1 minute".to_owned(),
            1 => "1 minute 1 second".to_owned(),
            more => format!("1 minute {more} seconds"),
        };
        assert_eq!(answer.body, format!("Too many requests: try again in {text}.\n"));
        assert_eq!(answer.standings(), [Member::new("one", &[("r", 0), ("t", 60)])]);
        waits.insert(seconds);

        let answer = ask(&jittered, grpc()).await;
        let pushback: u64 = answer.header("grpc-retry-pushback-ms").expect("a wait").parse().unwrap();
        assert!((60_000..=68_000).contains(&pushback), "{pushback}");
    }
    assert!(waits.len() > 4, "the waits hardly differ: {waits:?}");
}
