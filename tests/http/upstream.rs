//! Rate limit headers of the service within the layer, beside those of the layer.

use std::convert::Infallible;
use std::future::ready;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tower::{Layer, service_fn};
use tower_ratelimit::{Builder, HeaderStyle, HttpOptions, Limit, RateLimitLayer, Rejection, ResetFormat, TokenBucket};

use crate::service::{Hello, builder, get, grpc, per_minute, serve, triple};
use crate::store::MIDNIGHT;
use support::answer::{Answer, Member, ask};

const TRIPLE: [&str; 3] = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
const BOTH: [HeaderStyle; 2] =
    [HeaderStyle::XRateLimit(ResetFormat::Seconds), HeaderStyle::XRateLimitDashed(ResetFormat::Epoch)];

fn five() -> Limit {
    per_minute("five", 5)
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

/// Returns the values of both triples.
fn both(answer: &Answer) -> [[&str; 3]; 2] {
    ["x-ratelimit", "x-rate-limit"].map(|prefix| triple(answer, prefix))
}

/// Statuses and headers by which a service rejects a request.
const REJECTIONS: [(u16, &[(&str, &str)]); 5] = [
    (429, &[]),
    (503, &[]),
    (402, &[("retry-after", "7")]),
    (200, &[("grpc-status", "8")]),
    (200, &[("grpc-status", "14")]),
];

/// It has no numbers of a limit that passed, and keeps its own.
#[tokio::test]
async fn a_rejection_by_the_service_has_only_its_own_numbers() {
    for layer in [
        builder(per_minute("many", 20)).headers(BOTH).build(),
        builder(per_minute("many", 20)).headers(BOTH).permits().build(),
    ] {
        for (status, headers) in REJECTIONS {
            for count in 0..=3 {
                let own = TRIPLE.map(|name| (name, "9"));
                let answer = behind(&layer, status, &[headers, &own[..count]].concat()).await;
                let expected = [0, 1, 2].map(|index| if index < count { "9" } else { "" });
                assert_eq!(both(&answer), [expected, [""; 3]], "{status} {headers:?}");
            }
        }
    }
    for status in [200, 404, 500] {
        let answer = behind(&builder(five()).headers(BOTH).build(), status, &[("grpc-status", "5")]).await;
        assert!(both(&answer).as_flattened().iter().all(|value| !value.is_empty()), "{status}");
    }
}

/// Its response says when to retry, and the limit that passed does not.
#[tokio::test]
async fn a_nested_denial_that_no_wait_helps_shows_its_own_numbers() {
    let reject = |_: &Rejection<'_>| (StatusCode::TOO_MANY_REQUESTS, "no");
    for (inner, request, status, grpc_status) in [
        (builder(five()), get("/"), 429, None),
        (builder(five()).permits(), get("/"), 429, None),
        (builder(five()).on_reject(reject), get("/"), 429, None),
        (builder(five()), grpc(), 200, Some("8")),
    ] {
        let outer = builder(per_minute("two", 2)).headers(BOTH).build();
        let service = outer.layer(serve(inner.cost_by(|_| 6).headers(BOTH)));
        let denied = ask(&service, request).await;
        assert_eq!((denied.status.as_u16(), denied.header("grpc-status")), (status, grpc_status));
        assert_eq!((triple(&denied, "x-ratelimit"), denied.header("retry-after")), (["5", "5", "0"], None));
    }
}

/// Every part of a triple that a service may send, with more and with fewer tokens than the layer has left.
#[tokio::test]
async fn a_triple_has_one_author_and_is_complete() {
    for sent in 0..8 {
        for remaining in ["0", "9", "what?"] {
            let values = ["9", remaining, "1767999999"];
            let headers = TRIPLE.into_iter().zip(values).enumerate().filter(|(index, _)| sent & 1 << index != 0);
            let headers: Vec<_> = headers.map(|(_, header)| header).collect();
            let answer = behind(&builder(five()).headers(BOTH).build(), 200, &headers).await;
            let is_kept = headers.len() == 3 && remaining == "0";
            let expected = if is_kept { values } else { ["5", "4", "60"] };
            assert_eq!(both(&answer), [expected, ["5", "4", &(MIDNIGHT + 60).to_string()]], "{headers:?}");
        }
    }
}

/// Returns the policies and the standings of a response whose fields the service has begun.
async fn merged(policy: &'static str, standing: &'static str) -> (Vec<Member>, Vec<Member>) {
    let answer = behind(&builder(five()).build(), 200, &[("ratelimit-policy", policy), ("ratelimit", standing)]).await;
    (answer.policies(), answer.standings())
}

fn own() -> Member {
    Member::new("five", &[("r", 4), ("t", 60)])
}

/// Clients ignore a field that is not a list of strings with parameters.
#[tokio::test]
async fn fields_that_cannot_be_parsed_are_replaced() {
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
            let expected = (Some(Member::new("five", &[("q", 5), ("w", 60)])), Some(own()));
            assert_eq!((policies.into_iter().last(), standings.into_iter().last()), expected, "{policy} | {standing}");
        }
        assert_eq!(merged(malformed, malformed).await.1, [own()], "{malformed}");
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
        let answer = behind(&builder(five()).build(), 200, &[("ratelimit", standing)]).await;
        let joined = answer.all("ratelimit").join(", ");
        assert!(joined.starts_with(standing.trim()) && joined.ends_with(r#""five";r=4;t=60"#), "{joined}");
        // With parameters of all types, which `Answer::standings` does not know.
        let list: sfv::List = sfv::Parser::new(&joined).parse().expect("a list");
        let names = list.iter().map(|entry| match entry {
            sfv::ListEntry::Item(item) => item.bare_item.as_string().expect("a string").as_str(),
            sfv::ListEntry::InnerList(list) => panic!("{list:?}"),
        });
        assert_eq!(names.collect::<Vec<_>>(), [name, "five"]);
    }
}

/// Also one that only the service sends, and whichever of the fields repeats it.
#[tokio::test]
async fn a_name_that_the_service_repeats_is_sent_once() {
    let policies = "\"api\";q=9, \"api\";q=8";
    for (standing, count, standings) in [
        ("\"api\";r=5, \"api\";r=3", 2, vec![Member::new("api", &[("r", 3)]), own()]),
        ("\"five\";r=5, \"five\";r=3", 2, vec![Member::new("five", &[("r", 3)])]),
        ("\"api\";r=5", 2, vec![Member::new("api", &[("r", 5)]), own()]),
        ("", 1, vec![own()]),
        // The last of equal parameters counts.
        ("\"five\";r=9;r=3", 2, vec![Member::new("five", &[("r", 3)])]),
    ] {
        let (policies, found) = merged(policies, standing).await;
        assert_eq!((policies.len(), found), (count, standings), "{standing}");
    }
    let answer = behind(&builder(five()).build(), 200, &[("ratelimit", "\"five\";r=9;r=3")]).await;
    assert_eq!(answer.all("ratelimit"), ["\"five\";r=3"]);
}

/// Clients accept 8 KiB of headers in all.
#[tokio::test]
async fn only_the_tightest_limits_are_reported() {
    for count in [1_u32, 16, 17, 64] {
        // The first has the most tokens.
        let limit = |index| per_minute(format!("{index:064}"), 2 * count - 1 - index).soft(100);
        let limits = || builder((0..count).map(limit).collect::<Vec<_>>()).cost(count.into());
        let styles = [HeaderStyle::IETF, HeaderStyle::Overage, BOTH[0]];
        for layer in [limits().headers(styles).build(), limits().headers(styles).permits().build()] {
            // None has any left after the second request.
            for (tightest, size, has_overage) in
                [(count.saturating_sub(16)..count, count, false), (0..count.min(16), 2 * count - 1, true)]
            {
                let answer = ask(&layer.layer(Hello::default()), get("/")).await;
                assert!(!answer.is_denied());
                let names: Vec<_> = tightest.map(|index| format!("{index:064}")).collect();
                for members in [answer.standings(), answer.policies()] {
                    assert_eq!(members.into_iter().map(|member| member.name).collect::<Vec<_>>(), names);
                }
                assert_eq!(triple(&answer, "x-ratelimit")[0], size.to_string());
                let overage = answer.header("ratelimit-overage").map_or(0, |names| names.split(", ").count());
                assert_eq!(overage, if has_overage { names.len() } else { 0 });
                let size: usize = answer.headers.values().map(|value| value.len()).sum();
                assert!(size < 4_096, "{size} bytes");
            }
        }
    }
}

/// The limit that denies is reported, although others have fewer tokens left.
#[tokio::test]
async fn a_limit_that_denies_is_among_the_tightest() {
    let limits = (0..40).map(|index| per_minute(index.to_string(), 9).cost(9));
    let denying = Limit::new("denying", TokenBucket::per_minute(100)).cost_by(|_| 101);
    let denied = ask(&serve(builder(limits.chain([denying]).collect::<Vec<_>>())), get("/")).await;
    assert!(denied.is_denied());
    assert_eq!((denied.standings().len(), denied.remaining_of("denying")), (16, 100));
}

/// JavaScript's timers fire at once if they are set to more than 2^31 − 1 milliseconds.
#[tokio::test]
async fn no_client_is_sent_a_longer_wait_than_timers_have() {
    let yearly = || builder(Limit::new("yearly", TokenBucket::new(1, 1, Duration::from_secs(366 * 86_400))));
    let day = Duration::from_secs(86_400);
    let builders: [(Builder<HttpOptions>, u64); 8] = [
        (yearly(), 2_147_483),
        (yearly().permits(), 2_147_483),
        (yearly().problem_json(), 2_147_483),
        (yearly().retry_after_jitter(day), 2_147_483),
        (yearly().max_retry_after(day), 86_400),
        (yearly().max_retry_after(day + Duration::from_millis(999)), 86_400),
        (yearly().max_retry_after(Duration::ZERO), 1),
        (yearly().max_retry_after(Duration::MAX), 366 * 86_400),
    ];
    for (builder, longest) in builders {
        let service = serve(builder.headers([HeaderStyle::IETF, HeaderStyle::XRetryAfter, BOTH[0], BOTH[1]]));
        let text = longest.to_string();
        for is_denied in [false, true] {
            let answer = ask(&service, get("/")).await;
            assert_eq!(answer.is_denied(), is_denied);
            assert_eq!(answer.all("ratelimit"), [format!("\"yearly\";r=0;t={longest}")]);
            assert_eq!(both(&answer).map(|triple| triple[2]), [&text, &(MIDNIGHT + longest).to_string()]);
            let wait = is_denied.then_some(text.as_str());
            assert_eq!((answer.header("retry-after"), answer.header("x-ratelimit-retry-after")), (wait, wait));
            let is_written = answer.body.contains("24 days 21 hours");
            assert_eq!(is_written, is_denied && longest == 2_147_483, "{}", answer.body);
        }
        let answer = ask(&service, grpc()).await;
        let milliseconds = (longest * 1_000).min(i32::MAX as u64).to_string();
        assert_eq!(answer.header("grpc-retry-pushback-ms"), Some(milliseconds.as_str()));
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
        let service = serve(builder(five().cost(5)).headers(HeaderStyle::XRetryAfter).on_reject(reject));
        ask(&service, get("/")).await;
        let denied = ask(&service, get("/")).await;
        assert_eq!(denied.header("retry-after"), Some(wait));
        assert_eq!(denied.header("x-ratelimit-retry-after"), Some(seconds));
    }
}
