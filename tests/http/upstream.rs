//! Rate limit headers of the service within the layer, beside those of the layer.

use std::convert::Infallible;
use std::future::ready;
use std::time::Duration;

use http::{HeaderMap, Request, Response, StatusCode};
use tower::{Layer, ServiceBuilder, service_fn};
use tower_ratelimit::{
    Builder, FixedWindow, HeaderStyle, HttpOptions, Limit, RateLimitLayer, Rejection, ResetFormat, TokenBucket,
};

use crate::service::{Hello, get};
use crate::store::{MIDNIGHT, paused_store};
use support::answer::{Answer, Member, ask};

const TRIPLE: [&str; 3] = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
const DASHED: [&str; 3] = ["x-rate-limit-limit", "x-rate-limit-remaining", "x-rate-limit-reset"];
const BOTH: [HeaderStyle; 2] =
    [HeaderStyle::XRateLimit(ResetFormat::Seconds), HeaderStyle::XRateLimitDashed(ResetFormat::Epoch)];

fn layer(limit: Limit) -> Builder<HttpOptions> {
    RateLimitLayer::builder([limit]).store(paused_store())
}

fn five() -> Limit {
    Limit::new("five", FixedWindow::per_minute(5))
}

/// Returns a response of a service with this status and these headers, behind a layer.
async fn behind(layer: &RateLimitLayer, status: u16, headers: &[(&'static str, &'static str)]) -> Answer {
    let headers = headers.to_vec();
    let service = service_fn(move |_: Request<()>| {
        let response =
            headers.iter().fold(Response::builder(), |response, (name, value)| response.header(*name, *value));
        ready(Ok::<_, Infallible>(response.status(status).body(String::new()).unwrap()))
    });
    ask(&layer.layer(service), get("/")).await
}

/// Returns the values of a triple, as far as there are some.
fn triple(answer: &Answer, names: [&str; 3]) -> [Option<String>; 3] {
    names.map(|name| answer.header(name).map(str::to_owned))
}

fn texts(values: [&str; 3]) -> [Option<String>; 3] {
    values.map(|value| Some(value.to_owned()))
}

/// Statuses and headers by which a service rejects a request.
const REJECTIONS: [(u16, &[(&str, &str)]); 5] = [
    (429, &[]),
    (503, &[]),
    (402, &[("retry-after", "7")]),
    (200, &[("grpc-status", "8")]),
    (200, &[("grpc-status", "14")]),
];

#[tokio::test]
async fn a_rejection_by_the_service_has_no_numbers_of_a_limit_that_passed() {
    for layer in [layer(five()).headers(BOTH).build(), layer(five()).headers(BOTH).permits().build()] {
        for (status, headers) in REJECTIONS {
            let answer = behind(&layer, status, headers).await;
            let none = [const { None }; 3];
            assert_eq!(
                (triple(&answer, TRIPLE), triple(&answer, DASHED)),
                (none.clone(), none),
                "{status} {headers:?}"
            );
        }
    }
    let layer = layer(five()).headers(BOTH).build();
    for status in [200, 404, 500] {
        let answer = behind(&layer, status, &[("grpc-status", "5")]).await;
        assert!(triple(&answer, TRIPLE).iter().chain(&triple(&answer, DASHED)).all(Option::is_some), "{status}");
    }
}

#[tokio::test]
async fn a_rejection_by_the_service_keeps_its_own_numbers() {
    for (status, headers) in REJECTIONS {
        let limits = layer(five()).headers(BOTH).build();
        for count in 1..=3 {
            let own = TRIPLE.map(|name| (name, "9"));
            let answer = behind(&limits, status, &[headers, &own[..count]].concat()).await;
            let expected = [0, 1, 2].map(|index| (index < count).then(|| "9".to_owned()));
            assert_eq!(triple(&answer, TRIPLE), expected, "{status} {headers:?}");
            assert_eq!(triple(&answer, DASHED), [const { None }; 3], "{status} {headers:?}");
        }
    }
}

/// Its response says when to retry, and the limit that passed does not.
#[tokio::test]
async fn a_nested_denial_that_no_wait_helps_shows_its_own_numbers() {
    let reject = |_: &Rejection<'_>| (StatusCode::TOO_MANY_REQUESTS, "no");
    for inner in [layer(five()), layer(five()).permits(), layer(five()).on_reject(reject)] {
        let (outer, inner) = (layer(Limit::new("two", FixedWindow::per_minute(2))).headers(BOTH), inner.cost_by(|_| 6));
        let service =
            ServiceBuilder::new().layer(outer.build()).layer(inner.headers(BOTH).build()).service(Hello::default());
        let denied = ask(&service, get("/")).await;
        assert_eq!((denied.status, denied.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, None));
        assert_eq!(triple(&denied, TRIPLE), texts(["5", "5", "0"]));
    }
}

#[tokio::test]
async fn a_grpc_denial_of_an_inner_layer_keeps_its_numbers() {
    let outer = layer(Limit::new("two", FixedWindow::per_minute(9))).headers(BOTH).build();
    let inner = layer(five()).headers(BOTH).cost_by(|_| 6).build();
    let service = ServiceBuilder::new().layer(outer).layer(inner).service(Hello::default());
    let call = Request::post("/").version(http::Version::HTTP_2).header("content-type", "application/grpc");
    let denied = ask(&service, call.body(()).unwrap()).await;
    assert_eq!(denied.header("grpc-status"), Some("8"));
    assert_eq!(triple(&denied, TRIPLE), texts(["5", "5", "0"]));
}

/// Every part of a triple that a service may send, with more and with fewer tokens than the layer has left.
#[tokio::test]
async fn a_triple_has_one_author_and_is_complete() {
    for sent in 0..8 {
        for remaining in ["0", "9"] {
            let values = ["9", remaining, "1767999999"];
            let headers: Vec<_> =
                TRIPLE.into_iter().zip(values).enumerate().filter(|(index, _)| sent & 1 << index != 0).collect();
            let headers: Vec<_> = headers.into_iter().map(|(_, header)| header).collect();
            let answer = behind(&layer(five()).headers(BOTH).build(), 200, &headers).await;
            let is_kept = headers.len() == 3 && remaining == "0";
            let expected = if is_kept { texts(values) } else { texts(["5", "4", "60"]) };
            assert_eq!(triple(&answer, TRIPLE), expected, "{headers:?}");
            assert_eq!(triple(&answer, DASHED), texts(["5", "4", &(MIDNIGHT + 60).to_string()]), "{headers:?}");
        }
    }
}

/// A response with as many headers as fit has the whole triple or none of it.
#[tokio::test]
async fn a_triple_is_whole_where_headers_are_full() {
    for room in 0..6 {
        let mut full = HeaderMap::new();
        let mut other = (0..).map(|other| http::HeaderName::try_from(format!("x-{other}")).unwrap());
        while full.try_insert(other.next().unwrap(), "".parse().unwrap()).is_ok() {}
        (0..room).for_each(|other| _ = full.remove(format!("x-{other}")));
        let service = service_fn(move |_: Request<()>| {
            let mut response = Response::new(String::new());
            *response.headers_mut() = full.clone();
            ready(Ok::<_, Infallible>(response))
        });
        let layer = layer(five()).headers(HeaderStyle::XRateLimit(ResetFormat::Seconds)).build();
        let answer = ask(&layer.layer(service), get("/")).await;
        let count = triple(&answer, TRIPLE).iter().flatten().count();
        assert!(matches!(count, 0 | 3) && (room < 3 || count == 3), "{count} of {room}");
    }
}

const OWN: [(&str, i64, i64); 1] = [("five", 4, 60)];

/// Returns the policies and the standings of a response whose fields the service has begun.
async fn merged(policy: &'static str, standing: &'static str) -> (Vec<Member>, Vec<Member>) {
    let answer = behind(&layer(five()).build(), 200, &[("ratelimit-policy", policy), ("ratelimit", standing)]).await;
    (answer.policies(), answer.standings())
}

/// Clients ignore a field that is not a list of strings with parameters.
#[tokio::test]
async fn fields_that_cannot_be_parsed_are_replaced() {
    let [(name, left, reset)] = OWN;
    let own = || Member::new(name, &[("r", left), ("t", reset)]);
    for malformed in [
        "limit=10, remaining=5, reset=3",
        "limit=10;remaining=5",
        "10, 10;w=1, 50;w=60",
        "api;r=1",
        r#""api"#,
        r#""api";r=1,"#,
        r#", "api";r=1"#,
        r#""api";r=1,,"b";r=2"#,
        r#""api" ;r=1"#,
        r#""api";r=1 ;t=2"#,
        "\"api\";\tr=1",
        "\"a\tpi\";r=1",
        r#""api" r=1"#,
        r#""api";r=1;"#,
        r#""api";;r=1"#,
        r#""api";r="#,
        r#""api";=1"#,
        r#""api";R=1"#,
        r#""api";1r=1"#,
        r#""api";-r=1"#,
        r#""api";r=1x"#,
        r#""api";r=+1"#,
        r#""api";r=1234567890123456"#,
        r#""api";r=1 2"#,
        r#""a"pi";r=1"#,
        r#""a"p"i";r=1"#,
        r#""a\pi";r=1"#,
        r#""api\";r=1"#,
        r#""api";pk="x\y";r=1"#,
        r#""api";pk=:a b:;r=1"#,
        r#""api";pk=:YQ;r=1"#,
        r#""api";pk=:;r=1"#,
        r#"("api";r=1)"#,
        r#"?1"#,
        ",,",
        "",
        "é",
    ] {
        for (policy, standing) in [(malformed, malformed), (malformed, r#""api";r=1"#), (r#""api";q=1"#, malformed)] {
            let (policies, standings) = merged(policy, standing).await;
            assert_eq!(policies.last(), Some(&Member::new(name, &[("q", 5), ("w", 60)])), "{policy} | {standing}");
            assert_eq!(standings.last(), Some(&own()), "{policy} | {standing}");
            if standing == malformed {
                assert_eq!(standings, [own()], "{standing}");
            }
        }
    }
}

/// With all that the grammar allows: spaces, escapes, byte sequences, and extensions.
#[tokio::test]
async fn fields_that_can_be_parsed_are_kept() {
    for (standing, name) in [
        (r#""api";r=1"#, "api"),
        (r#""api"; r=1;  t=2"#, "api"),
        ("\"api\";r=1 \t ", "api"),
        (r#""a\\p\"i";r=1;acme-burst="a;r=\"9\\""#, r#"a\p"i"#),
        (r#""api";r=1;pk=:aGVsbG8=:"#, "api"),
        (r#""";r=123456789012345"#, ""),
        (r#""api";t=1"#, "api"),
        (r#""api";r=1;is-soft;scope=user;share=0.5;delta=-1;at=@1767225600"#, "api"),
    ] {
        let answer = behind(&layer(five()).build(), 200, &[("ratelimit", standing)]).await;
        let joined = answer.all("ratelimit").join(", ");
        assert!(joined.starts_with(standing.trim()) && joined.ends_with(r#""five";r=4;t=60"#), "{joined}");
        let list: sfv::List = sfv::Parser::new(&joined).parse().expect("a list");
        let names = list.iter().map(|entry| match entry {
            sfv::ListEntry::Item(item) => item.bare_item.as_string().expect("a string").as_str().to_owned(),
            sfv::ListEntry::InnerList(list) => panic!("{list:?}"),
        });
        assert_eq!(names.collect::<Vec<_>>(), [name, "five"]);
    }
}

/// Also one that only the service sends, and whichever of the fields repeats it.
#[tokio::test]
async fn a_name_that_the_service_repeats_is_sent_once() {
    let [(name, left, reset)] = OWN;
    let own = Member::new(name, &[("r", left), ("t", reset)]);
    let policies = r#""api";q=9, "api";q=8"#;
    let (one, standings) = merged(policies, r#""api";r=5, "api";r=3"#).await;
    assert_eq!((one.len(), standings), (2, vec![Member::new("api", &[("r", 3)]), own]));
    let (one, standings) = merged(policies, r#""five";r=5, "five";r=3"#).await;
    assert_eq!((one.len(), standings), (2, vec![Member::new("five", &[("r", 3)])]));
    assert_eq!(merged(policies, r#""api";r=5"#).await.0.len(), 2);
    assert_eq!(merged(policies, "").await.0.len(), 1);
    // The last of equal parameters counts.
    assert_eq!(merged(policies, r#""five";r=9;r=3"#).await.1.len(), 1);
    let answer = behind(&layer(five()).build(), 200, &[("ratelimit", r#""five";r=9;r=3"#)]).await;
    assert_eq!(answer.all("ratelimit"), [r#""five";r=3"#]);
}

/// Clients accept 8 KiB of headers in all.
#[tokio::test]
async fn only_the_tightest_limits_are_reported() {
    let limits = |count: u32| {
        // The first has the most tokens.
        let limit =
            move |index| Limit::new(format!("{index:064}"), FixedWindow::per_minute(2 * count - 1 - index)).soft(100);
        (0..count).map(limit).collect::<Vec<_>>()
    };
    let styles = [HeaderStyle::IETF, HeaderStyle::Overage, HeaderStyle::XRateLimit(ResetFormat::Seconds)];
    for count in [1, 16, 17, 64] {
        let build =
            |builder: Builder<HttpOptions>| builder.store(paused_store()).headers(styles).cost(u64::from(count));
        let builder = || build(RateLimitLayer::builder(limits(count)));
        for layer in [builder().build(), builder().permits().build()] {
            for used in 1..3 {
                let answer = ask(&layer.layer(Hello::default()), get("/")).await;
                assert!(!answer.is_refused());
                // None has any left after the second request.
                let tightest = if used == 1 { count.saturating_sub(16)..count } else { 0..count.min(16) };
                let names: Vec<_> = tightest.map(|index| format!("{index:064}")).collect();
                let reported = |members: Vec<Member>| members.into_iter().map(|member| member.name).collect::<Vec<_>>();
                assert_eq!(reported(answer.standings()), names);
                assert_eq!(reported(answer.policies()), names);
                assert_eq!(
                    answer.header("x-ratelimit-limit"),
                    Some((if used == 1 { count } else { 2 * count - 1 }).to_string().as_str())
                );
                let overage = answer.header("ratelimit-overage").map_or(0, |names| names.split(", ").count());
                assert_eq!(overage, if used == 1 { 0 } else { names.len() });
                let size: usize = answer.headers.values().map(|value| value.len()).sum();
                assert!(size < 4_096, "{size} bytes");
            }
        }
    }
}

/// The limit that denies is reported, although others have fewer tokens left.
#[tokio::test]
async fn a_limit_that_denies_is_among_the_tightest() {
    let mut limits: Vec<_> =
        (0..40).map(|index| Limit::new(index.to_string(), FixedWindow::per_minute(9)).cost(9)).collect();
    limits.push(Limit::new("denying", TokenBucket::per_minute(100)).cost_by(|_| 101));
    let layer = RateLimitLayer::builder(limits).store(paused_store()).build();
    let denied = ask(&layer.layer(Hello::default()), get("/")).await;
    assert!(denied.is_refused());
    assert_eq!((denied.standings().len(), denied.remaining_of("denying")), (16, 100));
}

/// JavaScript's timers fire at once if they are set to more than 2^31 − 1 milliseconds.
#[tokio::test]
async fn no_client_is_told_a_longer_wait_than_timers_have() {
    let yearly = || layer(Limit::new("yearly", TokenBucket::new(1, 1, Duration::from_secs(366 * 86_400))));
    let day = Duration::from_secs(86_400);
    for (builder, longest) in [
        (yearly(), 2_147_483),
        (yearly().permits(), 2_147_483),
        (yearly().problem_json(), 2_147_483),
        (yearly().retry_after_jitter(day), 2_147_483),
        (yearly().max_retry_after(day), 86_400),
        (yearly().max_retry_after(day + Duration::from_millis(999)), 86_400),
        (yearly().max_retry_after(Duration::ZERO), 1),
        (yearly().max_retry_after(Duration::MAX), 366 * 86_400),
    ] {
        let styles = [HeaderStyle::IETF, HeaderStyle::XRetryAfter, BOTH[0], BOTH[1]];
        let service = builder.headers(styles).build().layer(Hello::default());
        let text = Some(longest.to_string());
        let told = |answer: &Answer, name: &str| answer.header(name).map(str::to_owned);
        for is_denied in [false, true] {
            let answer = ask(&service, get("/")).await;
            assert_eq!(answer.is_refused(), is_denied);
            assert_eq!(answer.standings(), [Member::new("yearly", &[("r", 0), ("t", longest as i64)])]);
            assert_eq!(told(&answer, "x-ratelimit-reset"), text);
            assert_eq!(told(&answer, "x-rate-limit-reset"), Some((MIDNIGHT + longest).to_string()));
            let wait = text.clone().filter(|_| is_denied);
            assert_eq!((told(&answer, "retry-after"), told(&answer, "x-ratelimit-retry-after")), (wait.clone(), wait));
            if is_denied && longest == 2_147_483 {
                assert!(answer.body.contains("24 days 21 hours"), "{}", answer.body);
            }
        }
        let call = Request::post("/").version(http::Version::HTTP_2).header("content-type", "application/grpc");
        let answer = ask(&service, call.body(()).unwrap()).await;
        let milliseconds = (longest * 1_000).min(i32::MAX as u64).to_string();
        assert_eq!(told(&answer, "grpc-retry-pushback-ms"), Some(milliseconds));
        let details = tonic::Status::from_header_map(&answer.headers).expect("a status");
        let details = tonic_types::StatusExt::get_error_details(&details);
        let delay = details.retry_info().and_then(|info| info.retry_delay);
        assert_eq!(delay, Some(Duration::from_secs(longest)));
    }
}

/// A closure may know better when to retry.
#[tokio::test]
async fn both_headers_with_the_wait_have_that_of_a_custom_response() {
    for (wait, seconds) in [("7", "7"), ("Sat, 28 Nov 2026 12:00:00 GMT", "60")] {
        let reject = move |rejection: &Rejection<'_>| (rejection.status(), [("retry-after", wait)], "no");
        let service =
            layer(five().cost(5)).headers(HeaderStyle::XRetryAfter).on_reject(reject).build().layer(Hello::default());
        ask(&service, get("/")).await;
        let denied = ask(&service, get("/")).await;
        assert_eq!(denied.header("retry-after"), Some(wait));
        assert_eq!(denied.header("x-ratelimit-retry-after"), Some(seconds));
    }
}
