//! Nested layers with limits of the same name.

use std::convert::Infallible;
use std::future::ready;

use http::{Request, Response};
use tower::{Layer, ServiceBuilder, service_fn};
use tower_ratelimit::{Builder, FixedWindow, HeaderStyle, HttpOptions, Limit, RateLimitLayer, ResetFormat};

use crate::service::{Hello, get};
use crate::store::paused_store;
use support::answer::{Answer, Member, ask};

fn layer(limits: impl IntoIterator<Item = Limit>) -> Builder<HttpOptions> {
    RateLimitLayer::builder(limits).store(paused_store())
}

fn hourly(name: &str, limit: u32) -> Limit {
    Limit::new(name, FixedWindow::per_hour(limit))
}

fn daily(name: &str, limit: u32) -> Limit {
    Limit::new(name, FixedWindow::per_day(limit))
}

/// Returns the response to a first request of `outer` around `inner`.
async fn reported(outer: RateLimitLayer, inner: RateLimitLayer) -> Answer {
    ask(&ServiceBuilder::new().layer(outer).layer(inner).service(Hello::default()), get("/")).await
}

#[tokio::test]
async fn headers_show_the_lower_of_two_limits_of_one_name() {
    let policies = [Member::new("api", &[("q", 5), ("w", 3_600)])];
    let standings = [Member::new("api", &[("r", 4), ("t", 3_600)])];
    let few = || layer([hourly("api", 5)]);
    let many = || layer([daily("api", 9)]);
    for (outer, inner) in [(few().build(), many().build()), (many().build(), few().build())] {
        let answer = reported(outer, inner).await;
        assert_eq!((answer.policies().as_slice(), answer.standings().as_slice()), (&policies[..], &standings[..]));
    }
    // The same with several header styles, and with a ledger.
    let styles = [HeaderStyle::IETF, HeaderStyle::XRateLimit(ResetFormat::Seconds)];
    for (outer, inner) in [
        (few().permits().build(), many().build()),
        (many().build(), few().headers(styles).build()),
        (many().headers(styles).build(), few().build()),
    ] {
        let answer = reported(outer, inner).await;
        assert_eq!((answer.policies().as_slice(), answer.standings().as_slice()), (&policies[..], &standings[..]));
    }
}

/// Otherwise, the headers might describe different limits.
#[tokio::test]
async fn all_headers_describe_the_inner_of_two_limits_with_equal_remaining() {
    let styles = [HeaderStyle::IETF, HeaderStyle::XRateLimit(ResetFormat::Seconds)];
    for (outer, inner, window) in
        [(hourly("api", 5), daily("api", 5), 86_400), (daily("api", 5), hourly("api", 5), 3_600)]
    {
        let answer = reported(layer([outer]).headers(styles).build(), layer([inner]).headers(styles).build()).await;
        assert_eq!(answer.policies(), [Member::new("api", &[("q", 5), ("w", window)])]);
        assert_eq!(answer.standings(), [Member::new("api", &[("r", 4), ("t", window)])]);
        assert_eq!(answer.header("x-ratelimit-reset"), Some(window.to_string().as_str()));
    }
}

#[tokio::test]
async fn limits_of_different_names_keep_their_order() {
    let name = r#"a, "b\"#;
    let outer = layer([hourly("outer", 8), hourly(name, 3), hourly("api", 5)]).build();
    let inner = layer([daily("api", 9), daily("inner", 7), daily(name, 2)]).build();
    let answer = reported(outer, inner).await;
    let named = |members: Vec<Member>, key| -> Vec<(String, i64)> {
        members.into_iter().map(|member| (member.name.clone(), member.get(key).unwrap())).collect()
    };
    let expected = |members: [(&str, i64); 4]| members.map(|(name, number)| (name.to_owned(), number));
    assert_eq!(named(answer.standings(), "r"), expected([("inner", 6), (name, 1), ("outer", 7), ("api", 4)]));
    assert_eq!(named(answer.policies(), "q"), expected([("inner", 7), (name, 2), ("outer", 8), ("api", 5)]));
    assert_eq!(named(answer.policies(), "w")[1..3], [(name.to_owned(), 86_400), ("outer".to_owned(), 3_600)]);
}

/// Headers of the inner service are merged, too, and replaced if they cannot be parsed.
#[tokio::test]
async fn headers_of_the_service_are_merged_or_replaced() {
    let merged_with_inner = async |policy: &'static str, standing: &'static str| {
        let inner = service_fn(move |_: Request<()>| {
            let response = Response::builder().header("ratelimit-policy", policy).header("ratelimit", standing);
            ready(Ok::<_, Infallible>(response.body(String::new()).unwrap()))
        });
        let answer = ask(&layer([hourly("api", 5)]).build().layer(inner), get("/")).await;
        (answer.all("ratelimit-policy").join(" | "), answer.all("ratelimit").join(" | "))
    };
    let own = (r#""api";q=5;w=3600"#, r#""api";r=4;t=3600"#);
    let both = |(policy, standing): (&str, &str)| (policy.to_owned(), standing.to_owned());
    assert_eq!(merged_with_inner(r#""api";q=7"#, r#""api";r=2"#).await, both((r#""api";q=7"#, r#""api";r=2"#)));
    assert_eq!(merged_with_inner(r#""api";q=7"#, r#""api";r=6"#).await, both(own));
    // A member without remaining tokens is ignored.
    assert_eq!(merged_with_inner(r#""api";q=7"#, r#""api";t=6"#).await, both(own));
    assert_eq!(merged_with_inner(r#""api";q=7"#, r#""api";t=6;r=0"#).await.1, r#""api";t=6;r=0"#);
    // A policy without a `RateLimit` member is matched by name.
    assert_eq!(merged_with_inner(r#""other";q=7"#, r#""api";r=6"#).await.0, r#""other";q=7, "api";q=5;w=3600"#);
    for unreadable in ["limit=5, remaining=1", r#""api"#, "\"a\\", ",,", "api;r=1", ""] {
        assert_eq!(merged_with_inner(unreadable, unreadable).await, both(own));
    }
}

#[tokio::test]
async fn overage_of_one_name_is_sent_once() {
    let soft = |names: &[&str]| {
        let limits = names.iter().map(|name| hourly(name, 1).soft(200));
        layer(limits.collect::<Vec<_>>()).headers([HeaderStyle::Overage]).build()
    };
    let service = ServiceBuilder::new().layer(soft(&["a", "b"])).layer(soft(&["b", "c"])).service(Hello::default());
    ask(&service, get("/")).await;
    let answer = ask(&service, get("/")).await;
    assert_eq!(answer.all("ratelimit-overage").join(", "), r#""b", "c", "a""#);
}

/// `Retry-After` comes from the inner layer, so the `X-RateLimit` headers must describe the same limit.
#[tokio::test]
async fn x_ratelimit_headers_of_a_denial_are_kept() {
    let style = [HeaderStyle::XRateLimit(ResetFormat::Seconds)];
    let inner = layer([hourly("inner", 5)]).headers(style).cost(3).build();
    let outer = layer([daily("outer", 3)]).headers(style).build();
    let service = ServiceBuilder::new().layer(outer).layer(inner).service(Hello::default());
    assert!(!ask(&service, get("/")).await.is_refused());
    let denied = ask(&service, get("/")).await;
    assert!(denied.is_refused());
    let triple = ["limit", "remaining", "reset"].map(|name| denied.header(&format!("x-ratelimit-{name}")).unwrap());
    assert_eq!((triple, denied.header("retry-after")), (["5", "2", "3600"], Some("3600")));
}
