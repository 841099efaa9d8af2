//! Checks over HTTP, with the original request in headers or behind a prefix.

use std::net::Ipv4Addr;

use http::Method;

use crate::program::{Program, send, send_from};

const RULES: &str = "
domain: test
descriptors:
- key: path
  value: /login
  descriptors:
  - key: method
    value: POST
    descriptors:
    - key: remote_address
      rate_limit: { name: login, unit: year, requests_per_unit: 1 }
- key: host
  value: shop.example
  descriptors:
  - key: header.x-user
    rate_limit: { name: user, unit: year, requests_per_unit: 1, on_missing_key: share }
- key: query.page
  rate_limit: { name: page, unit: year, requests_per_unit: 1 }
- key: query.denied
  rate_limit: { name: of the check, unit: year, requests_per_unit: 0 }
- key: remote_address
  rate_limit: { name: address, unit: year, requests_per_unit: 5 }
";

#[tokio::test]
async fn rules_see_the_original_request() {
    let program = Program::with_rules(RULES, &[]);
    let policies = |answer: &support::answer::Answer| answer.header("ratelimit-policy").unwrap_or_default().to_owned();
    let answer = program.auth("POST", "//%6cogin?a=b", "192.0.2.1", &[]).await;
    assert_eq!((answer.status.as_u16(), answer.body.as_str()), (200, ""));
    assert!(policies(&answer).contains("login"), "{answer:?}");
    let denied = program.auth("POST", "/login", "192.0.2.1", &[]).await;
    assert_eq!(denied.status, 429);
    assert!(denied.header("retry-after").is_some() && denied.body.contains("Too many requests"), "{denied:?}");
    // Another address, method and path.
    assert_eq!(program.auth("POST", "/login", "192.0.2.2", &[]).await.status, 200);
    assert_eq!(policies(&program.auth("GET", "/login", "192.0.2.1", &[]).await), "\"address\";q=5;w=31536000");
    assert_eq!(policies(&program.auth("POST", "/other", "192.0.2.1", &[]).await), "\"address\";q=5;w=31536000");
    // The query of the client, and not of the check.
    let pages = ["/?page=1", "/?page=2", "/?page=1"];
    for (uri, status) in pages.into_iter().zip([200, 200, 429]) {
        assert_eq!(program.auth("GET", uri, "192.0.2.5", &[]).await.status, status, "{uri}");
    }
    // The host and a header of the client.
    let shop = [("x-forwarded-host", "shop.example"), ("x-user", "ann")];
    assert!(policies(&program.auth("GET", "/", "192.0.2.3", &shop).await).contains("user"));
    assert_eq!(program.auth("GET", "/", "192.0.2.3", &shop).await.status, 429);
    let other = [("x-forwarded-host", "shop.example"), ("x-user", "bob")];
    assert_eq!(program.auth("GET", "/", "192.0.2.3", &other).await.status, 200);
}

#[tokio::test]
async fn ext_authz_sends_the_original_path_behind_a_prefix() {
    let program = Program::with_rules(RULES, &[]);
    let address = program.address;
    let send = |method: Method, path: &'static str| {
        let headers = [("x-forwarded-for", "192.0.2.1"), ("host", "shop.example"), ("x-user", "ann")];
        async move { send(address, method, path, &headers, "").await.status.as_u16() }
    };
    assert_eq!(send(Method::POST, "/ext_authz/test/login?x=/y").await, 200, "the first login of the first user");
    assert_eq!(send(Method::POST, "/ext_authz/test/login").await, 429);
    assert_eq!(send(Method::GET, "/ext_authz/test/").await, 429, "the same user");
    assert_eq!(send(Method::GET, "/ext_authz/test").await, 429);
    assert_eq!(send(Method::GET, "/ext_authz/other/login").await, 404);
}

#[tokio::test]
async fn denials_can_be_403_for_nginx() {
    let program = Program::with_rules(RULES, &[]);
    let headers = [("x-forwarded-method", "POST"), ("x-forwarded-uri", "/login"), ("x-forwarded-for", "192.0.2.1")];
    let path = "/auth/test?denied=403";
    assert_eq!(program.get(path, &headers).await.status, 200);
    let denied = program.get(path, &headers).await;
    assert_eq!(denied.status, 403);
    assert!(denied.header("retry-after").is_some() && denied.header("ratelimit").is_some());
    assert_eq!(program.get("/auth/test?denied=200", &headers).await.status, 400);
}

/// A denial in the form of gRPC would have the status 200, so that the proxy would forward the request.
#[tokio::test]
async fn denials_of_grpc_requests_are_no_success() {
    let program = Program::with_rules(RULES, &[]);
    let more = [("content-type", "application/grpc"), ("te", "trailers")];
    assert_eq!(program.auth("POST", "/login", "192.0.2.1", &more).await.status, 200);
    for content_type in ["application/grpc", "application/grpc+proto", "application/grpc-web"] {
        let answer = program.auth("POST", "/login", "192.0.2.1", &[("content-type", content_type), more[1]]).await;
        assert_eq!(answer.status, 429, "{content_type}");
    }
}

#[tokio::test]
async fn a_check_without_the_request_is_an_error() {
    let program = Program::with_rules(RULES, &[]);
    let (method, uri) = (("x-forwarded-method", "GET"), ("x-forwarded-uri", "/"));
    for (headers, expected) in [
        (&[method][..], "x-forwarded-uri is missing"),
        (&[uri], "x-forwarded-method is missing"),
        (&[method, uri, ("x-forwarded-uri", "/login")], "x-forwarded-uri occurs several times"),
        (&[method, uri, ("x-forwarded-method", "POST")], "x-forwarded-method occurs several times"),
        (&[method, uri, ("x-forwarded-host", "a"), ("x-forwarded-host", "b")], "x-forwarded-host occurs several times"),
        (&[("x-forwarded-method", "G T"), uri], "x-forwarded-method: "),
        (&[method, ("x-forwarded-uri", "/a b")], "x-forwarded-uri: "),
    ] {
        let answer = program.get("/auth/test", headers).await;
        assert_eq!(answer.status, 400, "{headers:?}");
        assert!(answer.body.contains(expected), "{answer:?}");
    }
    assert_eq!(program.get("/auth/other", &[method, uri]).await.status, 404);
    assert_eq!(program.get("/aut/test", &[method, uri]).await.status, 404);
}

#[tokio::test]
async fn untrusted_peers_are_rejected_and_charge_nothing() {
    let program = Program::with_rules(RULES, &["--trusted-proxies", "127.0.0.1"]);
    let stranger = Ipv4Addr::new(127, 0, 0, 9);
    let headers = [("x-forwarded-method", "POST"), ("x-forwarded-uri", "/login"), ("x-forwarded-for", "192.0.2.1")];
    for path in [
        "/auth/test",
        "/auth/test?denied=403",
        "/ext_authz/test/login",
        "/json",
        "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
    ] {
        let answer = send_from(stranger, program.address, Method::POST, path, &headers, "{}").await;
        assert_eq!(answer.status, 421, "{path}");
        assert!(answer.body.contains("--trusted-proxies"), "{answer:?}");
    }
    assert_eq!(send_from(stranger, program.address, Method::GET, "/healthz", &[], "").await.status, 200);
    assert_eq!(program.get("/auth/test", &headers).await.status, 200);
}

#[tokio::test]
async fn addresses_left_of_the_client_are_forged() {
    let program = Program::with_rules(RULES, &["--trusted-proxies", "127.0.0.1,10.0.0.0/8"]);
    assert_eq!(program.auth("POST", "/login", "192.0.2.1", &[]).await.status, 200);
    for forged in ["203.0.113.5, 192.0.2.1", "10.0.0.9, 192.0.2.1, 10.0.0.1", "unknown, 192.0.2.1"] {
        assert_eq!(program.auth("POST", "/login", forged, &[]).await.status, 429, "{forged}");
    }
}

#[tokio::test]
async fn explanations_charge_nothing_and_are_not_for_proxies() {
    let program = Program::with_rules(RULES, &[]);
    let described = r#"{"domain": "test", "method": "POST", "path": "/%6cogin", "address": "192.0.2.1"}"#;
    let json = ("content-type", "application/json");
    for _ in 0..3 {
        let answer = send(program.admin, Method::POST, "/explain", &[json], described).await;
        assert!(answer.body.starts_with("allowed") && answer.body.contains("\n  login (path=/login"), "{answer:?}");
    }
    let answer =
        send(program.admin, Method::POST, "/explain", &[json, ("accept", "application/json")], described).await;
    let explanations: serde_json::Value = serde_json::from_str(&answer.body).expect("JSON");
    assert_eq!(explanations[0]["conclusion"]["result"], "allowed", "{explanations}");
    let descriptors =
        r#"{"domain": "test", "descriptors": [{"entries": [{"key": "remote_address", "value": "192.0.2.1"}]}]}"#;
    let answer = send(program.admin, Method::POST, "/explain", &[json], descriptors).await;
    assert!(answer.body.contains("address (remote_address): allowed, 4 of 5 left"), "{answer:?}");
    assert!(answer.body.contains("by remote_address 192.0.2.1"), "{answer:?}");
    let descriptor = r#"{"entries": [{"key": "remote_address", "value": "192.0.2.1"}]}"#;
    let many = format!(r#"{{"domain": "test", "descriptors": [{}]}}"#, vec![descriptor; 65].join(","));
    let answer = send(program.admin, Method::POST, "/explain", &[json], &many).await;
    assert!(answer.status == 400 && answer.body.contains("65 descriptors: send at most 64"), "{answer:?}");
    for wrong in [r#"{"domain": "other"}"#, r#"{"domain": "test", "path": "a b"}"#, r#"{"domain": "test", "pth": "/"}"#]
    {
        assert!(
            send(program.admin, Method::POST, "/explain", &[json], wrong).await.status.is_client_error(),
            "{wrong}"
        );
    }
    assert_eq!(send(program.address, Method::POST, "/explain", &[json], described).await.status, 404);
    assert_eq!(program.get("/metrics", &[]).await.status, 404);
}
