//! Nested layers with limits of the same name.

use std::convert::Infallible;
use std::future::ready;

use http::{Request, Response};
use tower::{Layer, service_fn};
use tower_ratelimit::{Builder, HeaderStyle, HttpOptions, Limit, ResetFormat};

use crate::service::{Hello, builder, get, layer, per_day, per_hour, triple};
use support::answer::{Answer, Member, ask};

const SECONDS: HeaderStyle = HeaderStyle::XRateLimit(ResetFormat::Seconds);
const STYLES: [HeaderStyle; 2] = [HeaderStyle::IETF, SECONDS];

fn hourly(name: &str, limit: u32) -> Limit {
    per_hour(name, limit)
}

fn daily(name: &str, limit: u32) -> Limit {
    per_day(name, limit)
}

/// Returns the response to the last of some requests of `outer` around `inner`.
async fn reported(outer: Builder<HttpOptions>, inner: Builder<HttpOptions>, requests: usize) -> Answer {
    let service = outer.build().layer(inner.build().layer(Hello::default()));
    for _ in 1..requests {
        assert!(!ask(&service, get("/")).await.is_denied());
    }
    ask(&service, get("/")).await
}

/// The headers show the lower of two limits of one name, with several header styles and with a ledger. If equal tokens
/// remain, all headers show the inner one. Otherwise, they might describe different limits.
#[tokio::test]
async fn all_headers_show_the_lower_of_two_limits_of_one_name_or_the_inner_one() {
    let few = || builder(hourly("api", 5));
    let (many, same) = (|| builder(daily("api", 9)), || builder(daily("api", 5)));
    for (outer, inner, window, reset) in [
        (few(), many(), 3_600, None),
        (many(), few(), 3_600, None),
        (few().permits(), many(), 3_600, None),
        (many(), few().headers(STYLES), 3_600, None),
        (many().headers(STYLES), few(), 3_600, None),
        (few().headers(STYLES), same().headers(STYLES), 86_400, Some("86400")),
        (same().headers(STYLES), few().headers(STYLES), 3_600, Some("3600")),
    ] {
        let answer = reported(outer, inner, 1).await;
        assert_eq!(answer.all("ratelimit-policy"), [format!("\"api\";q=5;w={window}")]);
        assert_eq!(answer.all("ratelimit"), [format!("\"api\";r=4;t={window}")]);
        assert!(reset.is_none_or(|reset| triple(&answer, "x-ratelimit")[2] == reset), "{answer:?}");
    }
}

#[tokio::test]
async fn limits_of_different_names_keep_their_order() {
    let name = r#"a, "b\"#;
    let outer = builder([hourly("outer", 8), hourly(name, 3), hourly("api", 5)]);
    let answer = reported(outer, builder([daily("api", 9), daily("inner", 7), daily(name, 2)]), 1).await;
    let expected = [("inner", 7, 86_400), (name, 2, 86_400), ("outer", 8, 3_600), ("api", 5, 3_600)];
    assert_eq!(answer.policies(), expected.map(|(name, q, w)| Member::new(name, &[("q", q), ("w", w)])));
    assert_eq!(answer.standings(), expected.map(|(name, q, w)| Member::new(name, &[("r", q - 1), ("t", w)])));
}

/// Headers of the inner service are merged, too, and replaced if they cannot be parsed.
#[tokio::test]
async fn headers_of_the_service_are_merged_or_replaced() {
    let own = ("\"api\";q=5;w=3600", "\"api\";r=4;t=3600");
    let unreadable = ["limit=5, remaining=1", "\"api", "\"a\\", ",,", "api;r=1", ""].map(|text| (text, text, own));
    let readable = [
        ("\"api\";q=7", "\"api\";r=2", ("\"api\";q=7", "\"api\";r=2")),
        ("\"api\";q=7", "\"api\";r=6", own),
        // A member without remaining tokens is ignored.
        ("\"api\";q=7", "\"api\";t=6", own),
        ("\"api\";q=7", "\"api\";t=6;r=0", ("\"api\";q=7", "\"api\";t=6;r=0")),
        // A policy without a `RateLimit` member is matched by name.
        ("\"other\";q=7", "\"api\";r=6", ("\"other\";q=7, \"api\";q=5;w=3600", own.1)),
    ];
    for (policy, standing, expected) in unreadable.into_iter().chain(readable) {
        let inner = service_fn(move |_: Request<()>| {
            let response = Response::builder().header("ratelimit-policy", policy).header("ratelimit", standing);
            ready(Ok::<_, Infallible>(response.body(String::new()).unwrap()))
        });
        let answer = ask(&layer(hourly("api", 5)).layer(inner), get("/")).await;
        let found = ["ratelimit-policy", "ratelimit"].map(|name| answer.all(name).join(", "));
        assert_eq!(found, [expected.0, expected.1], "{policy} {standing}");
    }
}

#[tokio::test]
async fn overage_of_one_name_is_sent_once() {
    let soft = |names: [&str; 2]| builder(names.map(|name| hourly(name, 1).soft(200))).headers(HeaderStyle::Overage);
    let answer = reported(soft(["a", "b"]), soft(["b", "c"]), 2).await;
    assert_eq!(answer.all("ratelimit-overage").join(", "), "\"b\", \"c\", \"a\"");
}

/// `Retry-After` comes from the inner layer, so the `X-RateLimit` headers must describe the same limit.
#[tokio::test]
async fn x_ratelimit_headers_of_a_denial_are_kept() {
    let inner = builder(hourly("inner", 5)).headers(SECONDS).cost(3);
    let denied = reported(builder(daily("outer", 3)).headers(SECONDS), inner, 2).await;
    assert!(denied.is_denied());
    assert_eq!((triple(&denied, "x-ratelimit"), denied.header("retry-after")), (["5", "2", "3600"], Some("3600")));
}
