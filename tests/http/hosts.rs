//! Limits by host: no spelling of a host, and no version of HTTP, has a bucket of its own or evades a limit.

use std::panic::catch_unwind;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::{Request, Version};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tower::Layer;
use tower_ratelimit::key::{self, KeyExtractor};
use tower_ratelimit::rules::{self, Extractors};
use tower_ratelimit::when::{self, Condition};
use tower_ratelimit::{FixedWindow, KeyList, Limit, OnMissingKey, RateLimit, RateLimitLayer, RequestHead};

use crate::service::Hello;
use crate::store::paused_store;
use support::answer::ask;
use support::server::Server;

fn one() -> Limit {
    Limit::new("one", FixedWindow::per_day(1))
}

fn limited(limits: impl IntoIterator<Item = Limit>) -> RateLimit<Hello> {
    RateLimitLayer::builder(limits).store(paused_store()).build().layer(Hello::default())
}

/// Returns a request to a URI with lines of `Host`.
fn to(uri: &str, hosts: &[&str]) -> Request<()> {
    let request = hosts.iter().fold(Request::get(uri), |request, host| request.header("host", *host));
    request.body(()).unwrap()
}

/// Requests to `example.org` in all spellings.
fn spellings() -> Vec<Request<()>> {
    let mut requests: Vec<_> = [
        "example.org",
        "EXAMPLE.ORG",
        "example.org.",
        "Example.org:80",
        "example.org:443",
        "example.org:",
        "example.org:8443",
    ]
    .into_iter()
    .map(|host| to("/", &[host]))
    .collect();
    // HTTP/2 has no header for it.
    for uri in ["https://example.org/", "https://EXAMPLE.org.:443/a", "http://example.org:80/"] {
        let mut request = to(uri, &[]);
        *request.version_mut() = Version::HTTP_2;
        requests.push(request);
    }
    // A proxy may send the header, too, and the whole URI over HTTP/1.1.
    requests.push(to("https://example.org/", &["Example.org:443"]));
    requests
}

/// Requests that another program may understand as ones for another host.
fn ambiguous() -> Vec<Request<()>> {
    vec![
        to("/", &["example.org", "example.com"]),
        to("/", &["example.org", "example.org"]),
        to("/", &["", "example.org"]),
        to("https://example.org/", &["example.com"]),
        to("https://example.com/", &["example.org"]),
        to("https://user@example.org/", &[]),
        to("https://example.org/", &["user@example.org"]),
        to("/", &["example.org@example.com"]),
        to("/", &["ex%61mple.org"]),
        to("/", &["example.org:http"]),
        to("/", &["example.org, example.com"]),
        to("/", &["example..org"]),
        to("/", &["[2001:db8::1"]),
    ]
}

#[tokio::test]
async fn all_spellings_of_a_host_share_a_bucket() {
    let spellings = spellings();
    let limit = Limit::new("site", FixedWindow::per_day(spellings.len() as u32)).by(key::host());
    let service = limited([limit]);
    for (index, request) in spellings.iter().enumerate() {
        let left = spellings.len() - index - 1;
        assert_eq!(ask(&service, request.clone()).await.remaining(), left as i64, "{request:?}");
    }
    for request in spellings {
        assert!(ask(&service, request).await.is_refused());
    }
    assert!(!ask(&service, to("/", &["example.com"])).await.is_refused(), "another host has another bucket");
    assert!(!ask(&service, to("/", &["www.example.org"])).await.is_refused());
}

#[tokio::test]
async fn all_spellings_of_an_address_share_a_bucket() {
    let service = limited([one().by(key::host())]);
    assert!(!ask(&service, to("/", &["[2001:db8::a]"])).await.is_refused());
    for request in [to("/", &["[2001:DB8:0::A]:443"]), to("http://[2001:0db8::000a]/", &[])] {
        assert!(ask(&service, request).await.is_refused());
    }
    assert!(!ask(&service, to("/", &["192.0.2.1"])).await.is_refused());
    assert!(ask(&service, to("/", &["[::ffff:192.0.2.1]:80"])).await.is_refused());
}

#[tokio::test]
async fn a_request_without_a_single_host_is_a_bad_request() {
    for limit in [
        one().by(key::host()),
        one().by(key::host()).on_missing_key(OnMissingKey::Skip),
        one().by(key::host().or(key::path())),
        one().by((key::path(), key::host())),
        one().by(key::from_fn(|head| head.host().map(String::from))),
    ] {
        let service = limited([limit]);
        for request in ambiguous() {
            assert_eq!(ask(&service, request.clone()).await.status, 400, "{request:?}");
        }
    }
}

#[tokio::test]
async fn a_host_that_is_absent_or_empty_is_missing() {
    for request in [to("/", &[]), to("/", &[""])] {
        assert_eq!(ask(&limited([one().by(key::host())]), request.clone()).await.status, 400);
        let skipped = limited([one().by(key::host()).on_missing_key(OnMissingKey::Skip)]);
        assert_eq!(ask(&skipped, request.clone()).await.status, 200);
        assert!(!when::host("example.org").may_hold(&RequestHead::of(&request)));
    }
}

#[tokio::test]
async fn a_condition_holds_for_all_spellings_of_a_host() {
    for condition in ["example.org", "Example.ORG."] {
        for request in spellings() {
            let head = RequestHead::of(&request);
            assert!(when::host(condition).holds(&head) && when::host(condition).may_hold(&head), "{request:?}");
            assert!(!when::host("example.com").may_hold(&head), "{request:?}");
        }
    }
}

#[tokio::test]
async fn an_ambiguous_host_evades_no_limit_and_has_no_exemption() {
    for request in ambiguous() {
        let all = || Limit::new("all", FixedWindow::per_day(9));
        let service = limited([all().when(when::host("example.org"))]);
        assert_eq!(ask(&service, request.clone()).await.remaining(), 8, "{request:?}");
        let layer = RateLimitLayer::builder([all()]).store(paused_store()).never_limit(when::host("example.org"));
        let service = layer.build().layer(Hello::default());
        assert_eq!(ask(&service, request.clone()).await.remaining(), 8, "{request:?}");
        for rejected in [
            RateLimitLayer::builder([all()]).always_reject(when::host("example.org")),
            RateLimitLayer::builder([all()]).always_reject(KeyList::new(key::host(), ["example.org"])),
        ] {
            let service = rejected.store(paused_store()).build().layer(Hello::default());
            assert_eq!(ask(&service, request.clone()).await.status, 403, "{request:?}");
        }
    }
}

#[tokio::test]
async fn lists_and_rules_contain_all_spellings_of_a_host() {
    let yaml = |value: &str| {
        let limit = "rate_limit: { name: one, unit: year, requests_per_unit: 99 }";
        format!("domain: d\ndescriptors:\n- {{ key: host, value: '{value}', {limit} }}\n")
    };
    for entry in ["example.org", "Example.ORG", "example.org.", "example.org:443"] {
        let blocked = KeyList::new(key::host(), [] as [&str; 0]);
        blocked.replace([entry]).unwrap();
        let service = RateLimitLayer::builder([one()]).always_reject(blocked).build().layer(Hello::default());
        for request in spellings() {
            assert_eq!(ask(&service, request).await.status, 403, "{entry}");
        }
    }
    let invalid = KeyList::try_new(key::host(), ["a b"]).unwrap_err().to_string();
    assert!(invalid.contains("\"a b\" is not a host"), "{invalid}");
    for pattern in ["[2001:DB8::*]", "[2001:db8:*]", "[*]"] {
        let limits = rules::from_yaml(&yaml(pattern), &Extractors::new()).unwrap();
        assert_eq!(ask(&limited(limits), to("/", &["[2001:db8::7]"])).await.remaining(), 98, "{pattern}");
    }
    for value in ["example.org", "Example.ORG.", "*.ORG", "example.*"] {
        let limits = rules::from_yaml(&yaml(value), &Extractors::new()).unwrap();
        let service = limited(limits);
        for (index, request) in spellings().into_iter().enumerate() {
            assert_eq!(ask(&service, request).await.remaining(), 98 - index as i64, "{value}");
        }
        assert_eq!(ask(&service, to("/", &["sub.example.com"])).await.header("ratelimit"), None);
    }
    for (value, expected) in [
        ("a b", "\"a b\" is not a host: write a name such as \"example.org\", without a port"),
        ("*.example.org:443", "\"*.example.org:443\" matches no host: leave out the port and the last dot"),
        ("*.example.org.", "\"*.example.org.\" matches no host: leave out the port and the last dot"),
    ] {
        let error = rules::from_yaml(&yaml(value), &Extractors::new()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// It would never apply to HTTP/2, and differ by spelling.
#[test]
fn a_header_of_the_host_is_rejected_wherever_it_is_configured() {
    let yaml = "domain: d\ndescriptors:\n- { key: header.Host, rate_limit: { unit: year, requests_per_unit: 1 } }\n";
    let message = |configure: fn()| *catch_unwind(configure).unwrap_err().downcast::<String>().unwrap();
    for message in [
        message(|| drop(key::header("Host"))),
        message(|| drop(when::header("Host", "example.org"))),
        message(|| drop(KeyList::new(key::header("Host"), ["example.org"]))),
        rules::from_yaml(yaml, &Extractors::new()).unwrap_err().to_string(),
    ] {
        let expected = "\"Host\" is not a header in all versions of HTTP: \
                        use `key::host()`, `when::host(…)`, or `key: host` in rules";
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn a_condition_on_something_else_than_a_host_is_rejected() {
    for host in ["", "https://example.org", "example.org/", "bücher.example", "*.example.org", "2001:db8::1"] {
        let panic = catch_unwind(|| drop(when::host(host))).unwrap_err();
        let expected = format!("{host:?} is not a host: write a name such as \"example.org\", without a port");
        assert!(panic.downcast_ref::<String>().unwrap().starts_with(&expected), "{host}");
    }
}

/// Each version has its own way to transmit the host, and the server its own way to report it.
#[tokio::test]
async fn one_client_is_limited_over_http_1_and_http_2_together() {
    let limits = [
        Limit::new("key", FixedWindow::per_day(9)).by(key::host()),
        Limit::new("condition", FixedWindow::per_day(9)).when(when::host("127.0.0.1")),
    ];
    let app = Router::new().route("/", get(async || "hello")).layer(RateLimitLayer::new(limits));
    let server = Server::axum(app).await;
    let http_2 = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Full<Bytes>>();
    let request = || Request::get(server.uri("/")).body(Full::default()).unwrap();
    for left in [8, 6] {
        let answer = server.send(request()).await;
        assert_eq!((answer.remaining_of("key"), answer.remaining_of("condition")), (left, left));
        let answer = support::answer::Answer::of(http_2.request(request()).await.unwrap()).await;
        assert_eq!((answer.remaining_of("key"), answer.remaining_of("condition")), (left - 1, left - 1));
    }
}
