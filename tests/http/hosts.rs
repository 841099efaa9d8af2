//! Limits by host: no spelling of a host, and no version of HTTP, has a bucket of its own or evades a limit.

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::{Request, Version};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tower_ratelimit::key::{self, KeyExtractor};
use tower_ratelimit::rules::{self, Extractors};
use tower_ratelimit::when::{self, Condition};
use tower_ratelimit::{KeyList, OnMissingKey, RateLimitLayer, RequestHead};

use crate::service::{builder, limited, one, panic_message, per_day, per_minute, serve};
use support::answer::{Answer, ask, statuses};
use support::server::Server;

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
    let limit = per_day("site", spellings.len() as u32).by(key::host());
    let service = limited(limit);
    for (index, request) in spellings.iter().enumerate() {
        let left = spellings.len() - index - 1;
        assert_eq!(ask(&service, request.clone()).await.remaining(), left as i64, "{request:?}");
    }
    let count = spellings.len();
    assert_eq!(statuses(&service, spellings).await, vec![429; count]);
    // Other hosts have other buckets.
    assert_eq!(statuses(&service, ["example.com", "www.example.org"].map(|host| to("/", &[host]))).await, [200, 200]);
}

#[tokio::test]
async fn all_spellings_of_an_address_share_a_bucket() {
    let requests = [
        to("/", &["[2001:db8::a]"]),
        to("/", &["[2001:DB8:0::A]:443"]),
        to("http://[2001:0db8::000a]/", &[]),
        to("/", &["192.0.2.1"]),
        to("/", &["[::ffff:192.0.2.1]:80"]),
    ];
    assert_eq!(statuses(&limited(one().by(key::host())), requests).await, [200, 429, 429, 200, 429]);
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
        let service = limited(limit);
        assert_eq!(statuses(&service, ambiguous()).await, [400; 13]);
    }
}

#[tokio::test]
async fn a_host_that_is_absent_or_empty_is_missing() {
    let requests = || [to("/", &[]), to("/", &[""])];
    assert_eq!(statuses(&limited(one().by(key::host())), requests()).await, [400, 400]);
    let skipped = limited(one().by(key::host()).on_missing_key(OnMissingKey::Skip));
    assert_eq!(statuses(&skipped, requests()).await, [200, 200]);
    for request in requests() {
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
    let (all, host) = (|| builder(per_minute("all", 20)), || when::host("example.org"));
    let listed = KeyList::new(key::host(), ["example.org"]);
    // All requests are charged.
    for service in [limited(per_minute("all", 20).when(host())), serve(all().never_limit(host()))] {
        for (index, request) in ambiguous().into_iter().enumerate() {
            assert_eq!(ask(&service, request.clone()).await.remaining(), 19 - index as i64, "{request:?}");
        }
    }
    for rejected in [all().always_reject(host()), all().always_reject(listed)] {
        assert_eq!(statuses(&serve(rejected), ambiguous()).await, [403; 13]);
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
        assert_eq!(statuses(&serve(builder(one()).always_reject(blocked)), spellings()).await, [403; 11], "{entry}");
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
    for message in [
        panic_message(|| key::header("Host")),
        panic_message(|| when::header("Host", "example.org")),
        panic_message(|| KeyList::new(key::header("Host"), ["example.org"])),
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
        let expected = format!("{host:?} is not a host: write a name such as \"example.org\", without a port");
        assert!(panic_message(|| when::host(host)).starts_with(&expected), "{host}");
    }
}

/// Each version has its own way to transmit the host, and the server its own way to report it.
#[tokio::test]
async fn one_client_is_limited_over_http_1_and_http_2_together() {
    let limits = [per_day("key", 9).by(key::host()), per_day("condition", 9).when(when::host("127.0.0.1"))];
    let app = Router::new().route("/", get(async || "hello")).layer(RateLimitLayer::new(limits));
    let server = Server::axum(app).await;
    let http_2 = Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Full<Bytes>>();
    let request = || Request::get(server.uri("/")).body(Full::default()).unwrap();
    for left in [8, 6] {
        let answer = server.send(request()).await;
        assert_eq!((answer.remaining_of("key"), answer.remaining_of("condition")), (left, left));
        let answer = Answer::of(http_2.request(request()).await.unwrap()).await;
        assert_eq!((answer.remaining_of("key"), answer.remaining_of("condition")), (left - 1, left - 1));
    }
}
