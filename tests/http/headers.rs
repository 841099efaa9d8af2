//! The rate limit headers of responses.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::ready;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_ratelimit::{
    Algorithm, Builder, FixedWindow, HeaderStyle, HttpOptions, LeakyBucket, LeakyBucketQueue, Limit, Limiter,
    LiveLimits, ManualClock, MemoryStore, RateLimitLayer, Rejection, RequestHead, ResetFormat, SlidingLog,
    SlidingWindowCounter, Timestamp, TokenBucket, when,
};

use crate::service::{Hello, get, with};
use crate::store::{MIDNIGHT, midnight, paused_store};
use support::answer::{Answer, Member, ask};
use support::faulty_store::{FaultyStore, Mode};
use support::limits::kind;

fn layer(limits: impl IntoIterator<Item = Limit>) -> (Builder<HttpOptions>, ManualClock) {
    let clock = midnight();
    (RateLimitLayer::builder(limits).store(MemoryStore::new().clock(clock.clone())), clock)
}

fn two() -> Limit {
    Limit::new("two", FixedWindow::per_minute(2))
}

/// Returns the rate limit headers.
fn reported(answer: &Answer) -> Vec<(String, String)> {
    let others = ["content-type", "cache-control", "retry-after"];
    let headers = answer.headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
    let mut reported: Vec<_> = headers.filter(|(name, _)| !others.contains(&name.as_str())).collect();
    reported.sort();
    reported
}

fn texts(headers: &[(&str, &str)]) -> Vec<(String, String)> {
    headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// Returns a response of each kind, at a microsecond past midnight.
async fn answer_in(style: HeaderStyle) -> Answer {
    let (layer, clock) = layer([
        Limit::new("burst", TokenBucket::new(20, 10, Duration::from_secs(1))),
        Limit::new("daily", FixedWindow::per_day(10_000)),
        Limit::new("fast", FixedWindow::new(5, Duration::from_millis(999))),
        Limit::new("odd", FixedWindow::new(5, Duration::from_millis(1_500))),
        Limit::new("queue", LeakyBucketQueue::new(9, 1, Duration::from_secs(60))),
        Limit::new("log", SlidingLog::per_minute(10)),
        Limit::new("thirds", TokenBucket::new(3, 3, Duration::from_secs(10))),
        Limit::new("untouched", TokenBucket::per_minute(5)).cost(0),
    ]);
    let service = layer.headers([style]).build().layer(Hello::default());
    clock.advance(Duration::from_micros(1));
    let answer = ask(&service, get("/")).await;
    let policies = [
        Member::new("burst", &[("q", 20), ("w", 2)]),
        Member::new("daily", &[("q", 10_000), ("w", 86_400)]),
        // A window shorter than a second cannot be expressed.
        Member::new("fast", &[("q", 5)]),
        Member::new("odd", &[("q", 5), ("w", 2)]),
        Member::new("queue", &[("q", 10), ("w", 600)]),
        Member::new("log", &[("q", 10), ("w", 60)]),
        Member::new("thirds", &[("q", 3), ("w", 10)]),
        Member::new("untouched", &[("q", 5), ("w", 60)]),
    ];
    assert_eq!(answer.policies(), policies, "the same in every draft");
    answer
}

#[tokio::test]
async fn in_draft_11_t_is_the_time_for_which_r_must_suffice() {
    let standings = [
        Member::new("burst", &[("r", 19), ("t", 2)]),
        Member::new("daily", &[("r", 9_999), ("t", 86_400)]),
        Member::new("fast", &[("r", 4), ("t", 1)]),
        Member::new("odd", &[("r", 4), ("t", 2)]),
        Member::new("queue", &[("r", 9), ("t", 540)]),
        // Nine tokens come back in 54 seconds, but none within a minute of the only request.
        Member::new("log", &[("r", 9), ("t", 60)]),
        Member::new("thirds", &[("r", 2), ("t", 7)]),
        Member::new("untouched", &[("r", 5), ("t", 60)]),
    ];
    assert_eq!(answer_in(HeaderStyle::IetfDraft11).await.standings(), standings);
    assert_eq!(answer_in(HeaderStyle::IETF).await.standings(), standings);
    assert_eq!(answer_in(HeaderStyle::default()).await.standings(), standings);
}

#[tokio::test]
async fn in_draft_10_t_is_the_time_until_there_is_more() {
    let standings = [
        Member::new("burst", &[("r", 19), ("t", 1)]),
        Member::new("daily", &[("r", 9_999), ("t", 86_400)]),
        Member::new("fast", &[("r", 4), ("t", 1)]),
        Member::new("odd", &[("r", 4), ("t", 2)]),
        Member::new("queue", &[("r", 9), ("t", 60)]),
        Member::new("log", &[("r", 9), ("t", 60)]),
        Member::new("thirds", &[("r", 2), ("t", 4)]),
        Member::new("untouched", &[("r", 5)]),
    ];
    assert_eq!(answer_in(HeaderStyle::IetfDraft10).await.standings(), standings);
}

/// A single limit has its own code path.
#[tokio::test]
async fn a_single_limit_has_the_t_of_its_draft() {
    for (style, t) in [(HeaderStyle::IetfDraft11, 540), (HeaderStyle::IetfDraft10, 60)] {
        let limit = Limit::new("queue", LeakyBucketQueue::new(9, 1, Duration::from_secs(60)));
        let service = layer([limit]).0.headers([style]).build().layer(Hello::default());
        assert_eq!(ask(&service, get("/")).await.standings(), [Member::new("queue", &[("r", 9), ("t", t)])]);
    }
}

/// Draft 11: `Retry-After` should not be before the end of the effective window.
#[tokio::test]
async fn in_draft_11_t_is_never_later_than_retry_after() {
    let limit = Limit::new("ten", TokenBucket::per_minute(10));
    let service =
        layer([limit]).0.cost_by(|head| head.header("cost").unwrap().parse().unwrap()).build().layer(Hello::default());
    let mut denied = 0;
    for cost in [7, 5, 4, 3, 1, 2] {
        let answer = ask(&service, with(&[("cost", &cost.to_string())])).await;
        let [standing] = &answer.standings()[..] else { panic!("there is one limit") };
        if answer.is_refused() {
            denied += 1;
            let retry_after: i64 = answer.header("retry-after").expect("waiting helps").parse().expect("a number");
            assert!(standing.get("t").is_some_and(|t| (1..=retry_after).contains(&t)), "{cost}: {answer:?}");
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
        let (layer, clock) = layer([Limit::new("ten", algorithm)]);
        let service = layer.build().layer(Hello::default());
        let mut allowed = 0;
        let mut elapsed = Duration::ZERO;
        while elapsed < 50 * period {
            let answer = ask(&service, get("/")).await;
            assert!(!answer.is_refused(), "{algorithm:?} after {elapsed:?}: {answer:?}");
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
        let most = 50 * 10 * algorithm.capacity() / 10;
        assert!((most / 4..=most + 10).contains(&allowed), "{algorithm:?}: {allowed} of {most}");
    }
}

#[tokio::test]
async fn names_are_escaped() {
    let name = r#"a "quoted" \name\, with;all=that"#;
    let longest = "~".repeat(64);
    let service =
        layer([Limit::new(name, FixedWindow::per_minute(2)), Limit::new(&longest, FixedWindow::per_minute(3))])
            .0
            .build()
            .layer(Hello::default());
    let answer = ask(&service, get("/")).await;
    assert_eq!(answer.policies().iter().map(|member| member.name.as_str()).collect::<Vec<_>>(), [name, &longest]);
    assert_eq!((answer.remaining_of(name), answer.remaining_of(&longest)), (1, 2));
}

#[tokio::test]
async fn the_effective_window_of_an_untouched_limit_is_its_window() {
    let service = layer([two().cost(0)]).0.build().layer(Hello::default());
    assert_eq!(ask(&service, get("/")).await.standings(), [Member::new("two", &[("r", 2), ("t", 60)])]);
    let service = layer([two().cost(0)]).0.headers([HeaderStyle::IetfDraft10]).build().layer(Hello::default());
    assert_eq!(ask(&service, get("/")).await.standings(), [Member::new("two", &[("r", 2)])]);
}

#[tokio::test]
async fn x_ratelimit_headers_of_allowed_and_denied_requests() {
    let styles = [HeaderStyle::XRateLimit(ResetFormat::Seconds), HeaderStyle::XRateLimitDashed(ResetFormat::Epoch)];
    let (layer, clock) = layer([two()]);
    let service = layer.headers(styles).build().layer(Hello::default());
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
        assert_eq!(reported(&ask(&service, get("/")).await), texts(&expected));
    }
}

#[tokio::test]
async fn x_ratelimit_reset_is_rounded_up() {
    let styles = [HeaderStyle::XRateLimit(ResetFormat::Epoch), HeaderStyle::XRateLimitDashed(ResetFormat::Seconds)];
    let (layer, clock) = layer([Limit::new("two", TokenBucket::new(2, 1, Duration::from_millis(1_500)))]);
    let service = layer.headers(styles).build().layer(Hello::default());
    clock.advance(Duration::from_micros(1));
    let answer = ask(&service, get("/")).await;
    // Both are 1.5 s from a microsecond past midnight, and rounded up.
    assert_eq!(answer.header("x-ratelimit-reset"), Some((MIDNIGHT + 2).to_string().as_str()));
    assert_eq!(answer.header("x-rate-limit-reset"), Some("2"));
    // A reset at a whole second is not rounded up.
    clock.set(tower_ratelimit::Timestamp::from_micros((MIDNIGHT + 100) * 1_000_000));
    let answers = [ask(&service, get("/")).await, ask(&service, get("/")).await];
    assert_eq!(answers[1].header("x-ratelimit-reset"), Some((MIDNIGHT + 103).to_string().as_str()));
    assert_eq!(answers[1].header("x-rate-limit-reset"), Some("3"));
}

/// Numbers with and without zeros, up to the largest.
#[tokio::test]
async fn every_number_is_exact_in_headers() {
    let long = Duration::from_secs(1_111);
    let one = Limit::new("one", FixedWindow::new(1, long));
    let clock = ManualClock::new(tower_ratelimit::Timestamp::from_micros(0));
    let layer = RateLimitLayer::builder([one]).store(MemoryStore::new().clock(clock.clone()));
    let styles = [HeaderStyle::IETF, HeaderStyle::XRateLimit(ResetFormat::Seconds), HeaderStyle::XRetryAfter];
    let service = layer.headers(styles).build().layer(Hello::default());
    ask(&service, get("/")).await;
    for seconds in (2..=1_111).rev() {
        let answer = ask(&service, get("/")).await;
        let text = seconds.to_string();
        for name in ["retry-after", "x-ratelimit-retry-after", "x-ratelimit-reset"] {
            assert_eq!(answer.header(name), Some(text.as_str()), "{name}");
        }
        assert_eq!(answer.standings(), [Member::new("one", &[("r", 0), ("t", seconds)])]);
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
        let limit = Limit::new("large", FixedWindow::new(capacity, Duration::from_secs(seconds)));
        let clock = ManualClock::new(tower_ratelimit::Timestamp::from_micros(0));
        let layer = RateLimitLayer::builder([limit]).store(MemoryStore::new().clock(clock));
        let service = layer.headers([HeaderStyle::XRateLimit(ResetFormat::Seconds)]).build().layer(Hello::default());
        let expected = [
            ("x-ratelimit-limit", capacity.to_string()),
            ("x-ratelimit-remaining", (capacity - 1).to_string()),
            ("x-ratelimit-reset", seconds.to_string()),
        ];
        let expected = expected.map(|(name, number)| (name.to_owned(), number));
        assert_eq!(reported(&ask(&service, get("/")).await), expected);
    }
}

/// More are too many: see `only_the_tightest_limits_are_reported`.
#[tokio::test]
async fn draft_headers_list_many_limits() {
    for count in 1..=16 {
        let names: Vec<String> = (0..count).map(|index| format!("limit-{index}")).collect();
        let limits = names.iter().map(|name| Limit::new(name, FixedWindow::per_minute(2)));
        let (layer, _) = layer(limits);
        let answer = ask(&layer.build().layer(Hello::default()), get("/")).await;
        let standing = |name: &String| Member::new(name, &[("r", 1), ("t", 60)]);
        assert_eq!(answer.standings(), names.iter().map(standing).collect::<Vec<_>>());
        let policy = |name: &String| Member::new(name, &[("q", 2), ("w", 60)]);
        assert_eq!(answer.policies(), names.iter().map(policy).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_header_style_set_twice_is_sent_once() {
    let styles = [
        HeaderStyle::IETF,
        HeaderStyle::XRateLimit(ResetFormat::Seconds),
        HeaderStyle::IetfDraft10,
        HeaderStyle::XRateLimit(ResetFormat::Epoch),
    ];
    let (layer, _) = layer([two()]);
    let answer = ask(&layer.headers(styles).build().layer(Hello::default()), get("/")).await;
    assert_eq!(answer.all("ratelimit").len(), 1);
    assert!(answer.header("x-ratelimit-reset").is_some_and(|reset| reset.len() < 10), "{answer:?}");
}

#[tokio::test]
async fn retry_after_is_sent_under_other_names_too() {
    let service = layer([two()]).0.headers([HeaderStyle::XRetryAfter]).build().layer(Hello::default());
    assert_eq!(reported(&ask(&service, get("/")).await), []);
    ask(&service, get("/")).await;
    let refused = ask(&service, get("/")).await;
    assert_eq!(reported(&refused), texts(&[("x-ratelimit-retry-after", "60")]));
    assert_eq!(refused.header("retry-after"), Some("60"));
}

#[tokio::test]
async fn x_ratelimit_retry_after_is_rounded_up_like_retry_after() {
    for (micros, seconds) in [(1, "1"), (999_999, "1"), (1_000_001, "2"), (1_500_000, "2"), (61_200_000, "62")] {
        let limit = Limit::new("one", TokenBucket::new(1, 1, Duration::from_micros(micros)));
        let service = layer([limit]).0.headers([HeaderStyle::XRetryAfter]).build().layer(Hello::default());
        ask(&service, get("/")).await;
        let denied = ask(&service, get("/")).await;
        assert_eq!(denied.header("x-ratelimit-retry-after"), Some(seconds), "{micros} µs");
        assert_eq!(denied.header("retry-after"), Some(seconds), "{micros} µs");
    }
}

#[tokio::test]
async fn a_rejection_has_retry_after_in_every_style() {
    let service = layer([two()]).0.headers([]).build().layer(Hello::default());
    for expected in [None, None, Some("60")] {
        let answer = ask(&service, get("/")).await;
        assert_eq!(reported(&answer), []);
        assert_eq!(answer.header("retry-after"), expected);
    }
}

/// The `X-RateLimit` headers describe the limit that denies, or else the one with the least remaining tokens.
#[tokio::test]
async fn x_ratelimit_headers_describe_the_limit_with_the_least_remaining() {
    let limits = [
        Limit::new("wide", FixedWindow::per_hour(100)),
        Limit::new("tight", FixedWindow::per_minute(5)),
        // This limit has the least remaining tokens, but another one denies.
        Limit::new("least", FixedWindow::per_second(1)).cost(0),
        // Clients do not see limits in shadow mode.
        Limit::new("trial", FixedWindow::per_second(3)).shadow(),
    ];
    let styles = [HeaderStyle::XRateLimit(ResetFormat::Seconds), HeaderStyle::XRetryAfter];
    let (layer, _) = layer(limits);
    let service = layer.headers(styles).cost(3).build().layer(Hello::default());
    let triple = |answer: &Answer| {
        ["limit", "remaining", "reset"].map(|name| answer.header(&format!("x-ratelimit-{name}")).unwrap().to_owned())
    };
    assert_eq!(triple(&ask(&service, get("/")).await), ["1", "1", "0"]);
    let denied = ask(&service, get("/")).await;
    assert!(denied.is_refused());
    assert_eq!(triple(&denied), ["5", "2", "60"]);
    assert_eq!(denied.header("x-ratelimit-retry-after"), Some("60"));
}

/// In any order of the limits, the one that resets last is described.
#[tokio::test]
async fn x_ratelimit_headers_describe_the_last_limit_to_reset_among_equals() {
    for reverse in [false, true] {
        let mut limits =
            [Limit::new("minutely", FixedWindow::per_minute(5)), Limit::new("hourly", FixedWindow::per_hour(5))];
        if reverse {
            limits.reverse();
        }
        let (layer, _) = layer(limits);
        let service = layer.headers([HeaderStyle::XRateLimit(ResetFormat::Seconds)]).build().layer(Hello::default());
        let answer = ask(&service, get("/")).await;
        assert_eq!(answer.header("x-ratelimit-remaining"), Some("4"));
        assert_eq!(answer.header("x-ratelimit-reset"), Some("3600"), "reversed: {reverse}");
    }
}

/// In any order of the limits.
#[tokio::test]
async fn x_ratelimit_headers_describe_the_limit_that_denies_longest() {
    let hourly = Limit::new("hourly", FixedWindow::per_hour(4));
    for (other, longest) in [
        // A shorter wait, although fewer tokens remain.
        (Limit::new("minutely", FixedWindow::per_minute(3)), "4"),
        // No wait can help: the cost of the second request exceeds the capacity.
        (Limit::new("small", FixedWindow::per_minute(2)), "2"),
    ] {
        for limits in [[hourly.clone(), other.clone()], [other, hourly.clone()]] {
            let cost = |head: &RequestHead<'_>| if head.uri.path() == "/large" { 3 } else { 2 };
            let (layer, _) = layer(limits);
            let layer = layer.headers([HeaderStyle::XRateLimit(ResetFormat::Seconds)]).cost_by(cost).build();
            let service = layer.layer(Hello::default());
            assert!(!ask(&service, get("/")).await.is_refused());
            let denied = ask(&service, get("/large")).await;
            assert!(denied.is_refused());
            assert_eq!(denied.header("x-ratelimit-limit"), Some(longest));
        }
    }
}

#[tokio::test]
async fn all_headers_show_the_size_for_the_request() {
    let styles = [HeaderStyle::IETF, HeaderStyle::XRateLimit(ResetFormat::Seconds)];
    let limit = two().size_when(when::header("x-plan", "pro"), TokenBucket::per_hour(60));
    let service = layer([limit]).0.headers(styles).build().layer(Hello::default());
    for (plan, left, t, size, window) in [("pro", 59, 3_540, 60, 3_600), ("free", 1, 60, 2, 60)] {
        let answer = ask(&service, with(&[("x-plan", plan)])).await;
        assert_eq!(answer.policies(), [Member::new("two", &[("q", size), ("w", window)])]);
        assert_eq!(answer.standings(), [Member::new("two", &[("r", left), ("t", t)])]);
        assert_eq!(answer.header("x-ratelimit-limit"), Some(size.to_string().as_str()));
    }
}

#[tokio::test]
async fn the_policy_shows_the_period_for_the_request_even_if_the_tokens_are_those_of_the_limit() {
    let limit = two().size_when(when::header("x-plan", "pro"), FixedWindow::per_hour(2));
    let service = layer([limit]).0.build().layer(Hello::default());
    for (plan, window) in [("pro", 3_600), ("free", 60)] {
        let answer = ask(&service, with(&[("x-plan", plan)])).await;
        assert_eq!(answer.policies(), [Member::new("two", &[("q", 2), ("w", window)])]);
    }
}

/// A denied request uses no overage, even if another limit has some.
#[tokio::test]
async fn overage_is_reported_only_if_the_request_is_allowed() {
    let soft = Limit::new("soft", FixedWindow::per_minute(1)).soft(200);
    let service = layer([soft, two()]).0.headers([HeaderStyle::Overage]).build().layer(Hello::default());
    for overage in [None, Some("\"soft\""), None] {
        assert_eq!(ask(&service, get("/")).await.header("ratelimit-overage"), overage);
    }
}

/// Two nested layers: lists are merged, and of the `X-RateLimit` headers those with fewer remaining tokens are kept,
/// whichever layer is outside.
#[tokio::test]
async fn headers_of_nested_layers_list_all_limits() {
    for wide_is_outside in [true, false] {
        let styles = [HeaderStyle::IETF, HeaderStyle::XRateLimit(ResetFormat::Seconds)];
        let wide = layer([Limit::new("wide", FixedWindow::per_hour(100))]).0.headers(styles).build();
        let tight = layer([two()]).0.headers(styles).build();
        let (outer, inner) = if wide_is_outside { (wide, tight) } else { (tight, wide) };
        let service = ServiceBuilder::new().layer(outer).layer(inner).service(Hello::default());
        for (wide, tight) in [(99, 1), (98, 0)] {
            let answer = ask(&service, get("/")).await;
            assert_eq!((answer.remaining_of("wide"), answer.remaining_of("two")), (wide, tight));
            assert_eq!(answer.all("ratelimit").len(), 2);
            assert_eq!(answer.header("x-ratelimit-limit"), Some("2"));
            assert_eq!(answer.header("x-ratelimit-remaining"), Some(tight.to_string().as_str()));
            assert_eq!(answer.header("x-ratelimit-reset"), Some("60"));
        }
        let refused = ask(&service, get("/")).await;
        assert_eq!(refused.header("x-ratelimit-remaining"), Some("0"));
        assert_eq!(refused.header("retry-after"), Some("60"));
        assert_eq!(refused.remaining_of("two"), 0);
    }
}

/// Headers of the service are only overwritten if fewer tokens remain.
#[tokio::test]
async fn x_ratelimit_headers_of_the_inner_service_win_if_lower() {
    let merged_with_inner = async |remaining: &'static str| {
        let inner = service_fn(move |_: Request<()>| {
            let response = Response::builder().header("x-ratelimit-limit", "7").header("x-ratelimit-reset", "9");
            let response = response.header("x-ratelimit-remaining", remaining).body(String::new()).unwrap();
            ready(Ok::<_, Infallible>(response))
        });
        let layer = layer([two()]).0.headers([HeaderStyle::XRateLimit(ResetFormat::Seconds)]).build();
        let answer = ask(&layer.layer(inner), get("/")).await;
        ["limit", "remaining", "reset"].map(|name| answer.header(&format!("x-ratelimit-{name}")).unwrap().to_owned())
    };
    assert_eq!(merged_with_inner("0").await, ["7", "0", "9"]);
    assert_eq!(merged_with_inner("2").await, ["2", "1", "60"]);
    assert_eq!(merged_with_inner("what?").await, ["2", "1", "60"]);
}

#[test]
fn every_header_is_exposed_by_cors() {
    let names = |styles: &[HeaderStyle]| {
        let layer = RateLimitLayer::builder([two()]).store(paused_store()).headers(styles.iter().copied()).build();
        layer.exposed_headers().iter().map(|name| name.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&[]), ["retry-after"]);
    let draft = ["retry-after", "ratelimit-policy", "ratelimit"];
    assert_eq!(names(&[HeaderStyle::IETF]), draft);
    assert_eq!(names(&[HeaderStyle::IETF, HeaderStyle::IetfDraft10]), draft);
    let dashed = ["retry-after", "x-rate-limit-limit", "x-rate-limit-remaining", "x-rate-limit-reset"];
    assert_eq!(names(&[HeaderStyle::XRateLimitDashed(ResetFormat::Epoch)]), dashed);
    let many = [HeaderStyle::XRetryAfter, HeaderStyle::XRateLimit(ResetFormat::Epoch)];
    let both = ["x-ratelimit-retry-after", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
    assert_eq!(names(&many)[1..], both);
}

#[tokio::test]
async fn x_ratelimit_retry_after_is_sent_while_the_store_fails() {
    let failing = || FaultyStore::over(paused_store(), Mode::FailsAtOnce);
    let layer = || RateLimitLayer::builder([two()]).store(failing()).headers([HeaderStyle::XRetryAfter]);
    let reject = |_: &Rejection<'_>| (StatusCode::SERVICE_UNAVAILABLE, "later");
    for layer in [layer().build(), layer().problem_json().build(), layer().on_reject(reject).build()] {
        let response = ask(&layer.layer(Hello::default()), get("/")).await;
        assert_eq!((response.all("retry-after"), response.all("x-ratelimit-retry-after")), (vec!["1"], vec!["1"]));
    }
    let call = Request::post("/").version(Version::HTTP_2).header("content-type", "application/grpc");
    let response = ask(&layer().build().layer(Hello::default()), call.body(()).unwrap()).await;
    assert_eq!((response.header("grpc-status"), response.all("x-ratelimit-retry-after")), (Some("14"), vec!["1"]));
}

#[tokio::test]
async fn a_single_limit_and_a_single_style_need_no_list() {
    let one = || Limit::new("one", FixedWindow::per_minute(2));
    let live = LiveLimits::new(one());
    live.replace(one()).unwrap();
    let layers = [RateLimitLayer::builder(one()), RateLimitLayer::live_builder(&live)];
    for layer in layers {
        let service = layer.headers(HeaderStyle::XRateLimit(ResetFormat::Seconds)).build().layer(Hello::default());
        assert_eq!(ask(&service, get("/")).await.header("x-ratelimit-remaining"), Some("1"));
    }
    assert_eq!(RateLimitLayer::new(one()).limits().len(), 1);
    assert_eq!(Limiter::new(one()).limits().len(), 1);
    // The types of empty lists are still inferred.
    let bare = RateLimitLayer::builder([]).headers([]).build().layer(Hello::default());
    assert!(ask(&bare, get("/")).await.header("ratelimit").is_none());
}

/// Returns the headers of a response, and as many others as a map can hold.
fn full_headers(headers: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, HeaderValue::from_static(value));
    }
    let others = (0..).map(|other| HeaderName::try_from(format!("x-{other}")).unwrap());
    let mut is_added = |name| map.try_insert(name, HeaderValue::from_static("")).is_ok();
    assert!(others.map_while(|name| is_added(name).then_some(())).count() > 10_000);
    map
}

fn response_with(headers: HeaderMap) -> Response<String> {
    let mut response = Response::new("hello".to_owned());
    *response.headers_mut() = headers;
    response
}

fn all_styles() -> [HeaderStyle; 5] {
    let (seconds, epoch) =
        (HeaderStyle::XRateLimit(ResetFormat::Seconds), HeaderStyle::XRateLimitDashed(ResetFormat::Epoch));
    [HeaderStyle::IETF, seconds, epoch, HeaderStyle::Overage, HeaderStyle::XRetryAfter]
}

#[tokio::test]
async fn a_response_with_very_many_headers_is_forwarded() {
    let inner: [&[_]; 2] = [
        &[],
        &[
            ("ratelimit", r#""two";r=5"#),
            ("ratelimit-policy", r#""two";q=9"#),
            ("ratelimit-overage", r#""two""#),
            ("x-ratelimit-limit", "9"),
            ("x-ratelimit-remaining", "5"),
            ("x-ratelimit-reset", "5"),
        ],
    ];
    for headers in inner {
        for room in 0..8 {
            let mut headers = full_headers(headers);
            (0..room).for_each(|other| _ = headers.remove(format!("x-{other}")));
            let count = headers.len();
            let inner = service_fn(move |_: Request<()>| ready(Ok::<_, Infallible>(response_with(headers.clone()))));
            for styles in [vec![HeaderStyle::IETF], all_styles().into()] {
                let (layer, _) = layer([two().soft(100)]);
                let service = layer.headers(styles).build().layer(inner.clone());
                for _ in 0..3 {
                    let response = service.clone().oneshot(get("/")).await.unwrap();
                    assert_eq!(response.status(), StatusCode::OK);
                    assert!((count..=count + 8).contains(&response.headers().len()), "{}", response.headers().len());
                }
            }
        }
    }
}

#[tokio::test]
async fn a_custom_rejection_with_very_many_headers_is_sent() {
    for room in 0..8 {
        let (layer, _) = layer([Limit::new("one", FixedWindow::per_minute(1))]);
        let respond = move |_: &Rejection<'_>| {
            let mut headers = full_headers(&[]);
            (0..room).for_each(|other| _ = headers.remove(format!("x-{other}")));
            response_with(headers)
        };
        let service = layer.headers(all_styles()).on_reject(respond).build().layer(Hello::default());
        let _ = ask(&service, get("/")).await;
        let response = service.oneshot(get("/")).await.unwrap();
        // The most important header comes first.
        assert_eq!(response.headers().contains_key("retry-after"), room > 0);
    }
}

/// The wait of each denial is told with a random addition, the same in all places.
#[tokio::test]
async fn a_jitter_is_added_to_the_wait_that_clients_are_told() {
    let spread = |longest| {
        let layer = RateLimitLayer::builder([Limit::new("one", FixedWindow::per_minute(1))]).store(paused_store());
        let layer = layer.headers([HeaderStyle::XRetryAfter, HeaderStyle::IETF]).retry_after_jitter(longest);
        layer.build().layer(Hello::default())
    };
    let (exact, jittered) = (spread(Duration::ZERO), spread(Duration::from_secs(8)));
    let mut told = BTreeSet::new();
    for service in [&exact, &jittered] {
        assert!(!ask(service, Request::new(())).await.is_refused());
    }
    for _ in 0..200 {
        assert_eq!(ask(&exact, Request::new(())).await.header("retry-after"), Some("60"));
        let answer = ask(&jittered, Request::new(())).await;
        let seconds: u64 = answer.header("retry-after").expect("a wait").parse().unwrap();
        assert!((60..=68).contains(&seconds), "{seconds}");
        assert_eq!(answer.header("x-ratelimit-retry-after"), answer.header("retry-after"));
        let text = match seconds - 60 {
            0 => "1 minute".to_owned(),
            1 => "1 minute 1 second".to_owned(),
            more => format!("1 minute {more} seconds"),
        };
        assert_eq!(answer.body, format!("Too many requests: try again in {text}.\n"));
        assert_eq!(answer.header("ratelimit"), Some("\"one\";r=0;t=60"));
        told.insert(seconds);

        let call = Request::post("/").version(Version::HTTP_2).header("content-type", "application/grpc");
        let answer = ask(&jittered, call.body(()).unwrap()).await;
        let pushback: u64 = answer.header("grpc-retry-pushback-ms").expect("a wait").parse().unwrap();
        assert!((60_000..=68_000).contains(&pushback), "{pushback}");
    }
    assert!(told.len() > 4, "the waits hardly differ: {told:?}");
}
