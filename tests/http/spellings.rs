//! Values that a standard allows several spellings of: clients neither evade a condition nor gain buckets by them.

use http::Request;
use tower_ratelimit::key::{self, KeyExtractor};
use tower_ratelimit::when::{self, Condition};
use tower_ratelimit::{KeyList, OnMissingKey, RateLimitLayer, RequestHead};

use crate::service::{limited, lines, one, per_day, with};
use support::answer::{ask, statuses};

/// The headers, the configured value, and values that mean the same and another.
type Row = (&'static str, &'static str, &'static [&'static str], &'static str);

const SAME: &[Row] = &[
    ("upgrade", "websocket", &["websocket", "WebSocket", "WEBSOCKET"], "h2c"),
    ("connection", "Upgrade", &["upgrade", "UPGRADE"], "close"),
    ("transfer-encoding", "gzip, chunked", &["gzip,chunked", "GZip , Chunked"], "chunked"),
    ("content-encoding", "GZIP", &["gzip", "GZip"], "br"),
    ("te", "trailers", &["Trailers"], "deflate"),
    ("expect", "100-continue", &["100-Continue"], "200-ok"),
    ("accept-encoding", "br", &["BR"], "gzip"),
    ("accept-language", "de-CH", &["de-ch", "DE-CH"], "de"),
    ("cache-control", "no-cache", &["No-Cache"], "no-store"),
    ("origin", "https://example.org", &["HTTPS://Example.org"], "http://example.org"),
    (
        "content-type",
        "application/json",
        &["Application/JSON", "application/json;charset=utf-8", "application/json ; a=b"],
        "text/json",
    ),
    ("content-type", "Application/JSON", &["application/json", "APPLICATION/json;"], "application/jsonp"),
    ("authorization", "Basic dTpw", &["basic dTpw", "BASIC  dTpw"], "Basic dtpw"),
    ("proxy-authorization", "bearer aB", &["Bearer aB", "bEARER aB"], "Bearer ab"),
];

#[tokio::test]
async fn a_condition_on_a_header_knows_all_spellings_of_its_value() {
    for (name, value, same, other) in SAME {
        let condition = when::header(name, *value);
        for spelling in *same {
            let request = with(&[(name, spelling)]);
            let head = RequestHead::of(&request);
            assert!(condition.holds(&head) && condition.may_hold(&head), "{name}: {spelling}");
        }
        let request = with(&[(name, other)]);
        assert!(!condition.may_hold(&RequestHead::of(&request)), "{name}: {other}");
    }
}

#[tokio::test]
async fn a_list_of_header_values_knows_all_their_spellings() {
    for (name, value, same, other) in SAME {
        let list = KeyList::new(key::header(name), [*value]);
        for spelling in *same {
            let request = with(&[(name, spelling)]);
            assert!(list.holds(&RequestHead::of(&request)), "{name}: {spelling}");
            // In a line of several.
            let request = with(&[(name, "x"), (name, spelling)]);
            assert!(list.may_hold(&RequestHead::of(&request)), "{name}: {spelling}");
        }
        let request = with(&[(name, other)]);
        assert!(!list.may_hold(&RequestHead::of(&request)), "{name}: {other}");
    }
}

#[tokio::test]
async fn all_spellings_of_a_header_value_share_a_bucket() {
    for (name, value, same, other) in SAME {
        let service = limited(one().by(key::header(name)));
        let requests = [value].into_iter().chain(*same).chain([other]).map(|value| with(&[(name, value)]));
        let expected = [&[200], &vec![429; same.len()][..], &[200]].concat();
        assert_eq!(statuses(&service, requests).await, expected, "{name}: {same:?} {other}");
    }
}

#[test]
fn a_condition_on_a_content_type_with_parameters_compares_them() {
    let condition = when::header("content-type", "text/html; charset=UTF-8");
    for (value, holds) in [
        ("text/html; charset=UTF-8", true),
        ("Text/HTML;Charset=\"utf-8\"", true),
        ("text/html", false),
        ("text/html; charset=latin1", false),
    ] {
        let request = with(&[("content-type", value)]);
        assert_eq!(condition.may_hold(&RequestHead::of(&request)), holds, "{value}");
    }
}

/// A token, a name of a plan or a signature may differ from another only by case.
#[test]
fn other_values_are_compared_exactly() {
    for name in ["x-plan", "x-api-key", "user-agent", "if-none-match", "sec-websocket-key", "sec-websocket-protocol"] {
        let request = with(&[(name, "Pro")]);
        assert!(when::header(name, "Pro").holds(&RequestHead::of(&request)));
        assert!(!when::header(name, "pro").may_hold(&RequestHead::of(&request)), "{name}");
    }
}

fn bearer(credentials: &[&str]) -> Request<()> {
    lines("authorization", credentials)
}

#[tokio::test]
async fn a_bearer_token_has_one_bucket_however_its_scheme_is_spelled() {
    let service = limited(one().by(key::bearer()));
    for (token, status) in [
        ("Bearer aB-1._~+/==", 200),
        ("bearer aB-1._~+/==", 429),
        ("BEARER   aB-1._~+/==", 429),
        ("Bearer\taB-1._~+/==", 429),
        // Tokens are case-sensitive.
        ("Bearer ab-1._~+/==", 200),
        ("Bearer", 400),
        ("Bearer ", 400),
        ("Bearera", 400),
        ("Basic dTpw", 400),
        ("Token a", 400),
        ("", 400),
    ] {
        assert_eq!(ask(&service, bearer(&[token])).await.status, status, "{token}");
    }
}

#[tokio::test]
async fn an_ambiguous_bearer_token_is_a_bad_request() {
    let by = key::bearer().or(key::peer_ip());
    let limit = per_day("one", 9).by(by).on_missing_key(OnMissingKey::Skip);
    let service = limited(limit);
    let ambiguous: [&[&str]; 4] = [&["Bearer a b"], &["Bearer a, Basic b"], &["Bearer a,b"], &["Bearer a"; 2]];
    assert_eq!(statuses(&service, ambiguous.map(bearer)).await, [400; 4]);
    // Other schemes have no bearer token.
    assert_eq!(ask(&service, bearer(&["Basic dTpw"])).await.remaining(), 8);
    let tokens = KeyList::new(key::bearer(), ["leaked"]);
    assert!(tokens.holds(&RequestHead::of(&bearer(&["bearer leaked"]))));
}

/// The token is a credential.
#[tokio::test]
async fn a_bearer_token_is_hidden_in_explanations() {
    let limit = per_day("one", 1).by(key::bearer());
    let text = RateLimitLayer::new([limit]).explain(&RequestHead::of(&bearer(&["Bearer s3cr3t"]))).await.to_string();
    assert!(text.contains("by bearer token #") && !text.contains("s3cr3t"), "{text}");
}
