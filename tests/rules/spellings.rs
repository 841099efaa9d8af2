//! Hosts, bearer tokens, and values of headers in all their spellings, in a rules file.

use http::Request;
use tower_ratelimit::key;
use tower_ratelimit::rules::{self, Extractors};

use crate::service::{Limited, from, with};

fn file(key: &str, value: &str) -> String {
    let value = if value.is_empty() { String::new() } else { format!("value: '{value}', ") };
    let limit = "rate_limit: { name: one, unit: year, requests_per_unit: 9 }";
    format!("domain: d\ndescriptors:\n- {{ key: {key}, {value}{limit} }}\n")
}

#[test]
fn values_of_headers_match_in_all_their_spellings() {
    for (name, value, same, other) in [
        ("upgrade", "websocket", &["websocket", "WebSocket"] as &[&str], "h2c"),
        ("upgrade", "WebSocket", &["websocket", "WEBSOCKET"], "h2c"),
        ("Upgrade", "Web*", &["websocket", "WEBSOCKET"], "h2c"),
        ("content-type", "application/json", &["Application/JSON", "application/json; charset=utf-8"], "text/json"),
        ("content-type", "Application/*", &["application/json", "APPLICATION/xml;a=b"], "text/json"),
        ("content-encoding", "gzip", &["GZip"], "br"),
        ("authorization", "Basic dTpw", &["basic dTpw", "BASIC  dTpw"], "Basic dtpw"),
        ("authorization", "Bearer *", &["bearer aB", "BEARER aB"], "Basic dTpw"),
        ("authorization", "Bearer*", &["bearer aB", "BEARER aB"], "Basic dTpw"),
        ("authorization", "Bearer aB*", &["bearer aBc"], "bearer abc"),
        ("authorization", "*aB", &["bearer aB"], "bearer ab"),
    ] {
        let limited = Limited::by(&file(&format!("header.{name}"), value));
        for spelling in same {
            let left = limited.send(with(&[(name, spelling)])).left;
            assert!(left.contains_key("one"), "{name}: {value}: {spelling}");
        }
        assert!(limited.send(with(&[(name, other)])).left.is_empty(), "{name}: {value}: {other}");
    }
}

#[test]
fn all_spellings_of_a_header_value_share_a_bucket() {
    let limited = Limited::by(&file("header.upgrade", ""));
    for (value, left) in [("websocket", 8), ("WebSocket", 7), ("WEBSOCKET", 6), ("h2c", 8)] {
        assert_eq!(limited.send(with(&[("upgrade", value)])).left["one"], left, "{value}");
    }
}

#[test]
fn a_content_type_with_parameters_is_rejected() {
    for value in ["text/html; charset=utf-8", "text/html;*"] {
        let error = rules::from_yaml(&file("header.content-type", value), &Extractors::new()).unwrap_err().to_string();
        let expected = "is compared without parameters: leave out the semicolon and what follows";
        assert!(error.contains(&format!("{value:?} {expected}")), "{error}");
    }
}

#[test]
fn extractors_of_an_application_are_compared_in_all_spellings_too() {
    let extractors = Extractors::new().register("protocol", key::header("upgrade")).register("site", key::host());
    let limited = Limited::with(&file("protocol", "WebSocket"), &extractors);
    assert!(limited.send(with(&[("upgrade", "websocket")])).left.contains_key("one"));
    let limited = Limited::with(&file("site", "Example.org"), &extractors);
    assert!(limited.send(with(&[("host", "EXAMPLE.org:80")])).left.contains_key("one"));
}

#[test]
fn each_bearer_token_has_a_bucket() {
    let limited = Limited::by(&file("bearer", ""));
    for (value, left) in [("Bearer a", 8), ("bearer a", 7), ("BEARER  a", 6), ("Bearer A", 8)] {
        assert_eq!(limited.send(with(&[("authorization", value)])).left["one"], left, "{value}");
    }
    assert!(limited.send(with(&[("authorization", "Basic dTpw")])).left.is_empty());
    assert_eq!(limited.send(with(&[("authorization", "Bearer a b")])).status, 400);
}

/// They would be sent to all clients.
#[test]
fn names_hide_credentials_of_a_file() {
    for key in ["bearer", "header.authorization", "header.x-api-key", "query.token"] {
        let limit = "rate_limit: { unit: year, requests_per_unit: 9 }";
        let yaml = format!("domain: d\ndescriptors:\n- {{ key: {key}, value: s3cr3t, {limit} }}\n");
        let limits = tower_ratelimit::rules::from_yaml(&yaml, &Extractors::new()).unwrap();
        assert_eq!(limits[0].name(), format!("d.{key}_*"));
        let twice = format!("{yaml}- {{ key: {key}, value: s3cr3t, {limit} }}\n");
        let error = tower_ratelimit::rules::from_yaml(&twice, &Extractors::new()).unwrap_err().to_string();
        assert!(error.contains("is the same as on line") && !error.contains("s3cr3t"), "{error}");
    }
}

#[test]
fn each_host_has_a_bucket() {
    let limited = Limited::by(&file("host", ""));
    let h2 = Request::get("https://example.org/").version(http::Version::HTTP_2).body(()).unwrap();
    assert_eq!(limited.send(with(&[("host", "example.org")])).left["one"], 8);
    assert_eq!(limited.send(h2).left["one"], 7);
    assert_eq!(limited.send(with(&[("host", "example.com")])).left["one"], 8);
    assert!(limited.send(with(&[])).left.is_empty());
    assert_eq!(limited.send(with(&[("host", "example.org"), ("host", "example.com")])).status, 400);
}

/// Addresses are compared as text with a pattern, and are written in lower case.
#[test]
fn a_pattern_for_addresses_may_be_written_in_upper_case() {
    let limited = Limited::by(&file("remote_address", "2001:DB8:*"));
    assert!(limited.send(from("2001:db8::1")).left.contains_key("one"));
    assert!(limited.send(from("2001:db9::1")).left.is_empty());
}
