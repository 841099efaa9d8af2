//! Envoy's rate limit service, with a client of its public definition, and in JSON.

use std::slice;
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{Entry, RateLimitOverride};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::UInt64Value;
use serde_json::{Value, json};
use support::redis_server::RedisServer;
use tonic::transport::Channel;
use tonic::{Code as Status, Status as GrpcError};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::program::{Program, wait_until};

/// A limit of each kind that the API reports differently.
const RULES: &str = "
domain: test
descriptors:
- key: generic_key
  value: five
  rate_limit: { name: five, unit: year, requests_per_unit: 5 }
  descriptors:
  - key: generic_key
    rate_limit: { name: nested, unit: hour, requests_per_unit: 100 }
- key: generic_key
  value: bucket
  rate_limit: { name: bucket, unit: minute, requests_per_unit: 60, algorithm: token_bucket, burst: 300 }
- key: generic_key
  value: odd
  rate_limit: { name: odd, period: 7m, requests_per_unit: 5 }
- key: generic_key
  value: month
  rate_limit: { name: month, unit: month, requests_per_unit: 9, calendar: UTC }
- key: generic_key
  value: shadow
  shadow_mode: true
  rate_limit: { name: shadow, unit: year, requests_per_unit: 1 }
- key: header_match
  value: a
  quota_mode: true
  rate_limit: { name: quota a, unit: year, requests_per_unit: 1 }
- key: header_match
  value: b
  quota_mode: true
  rate_limit: { name: quota b, unit: year, requests_per_unit: 2 }
- key: remote_address
  rate_limit: { name: address, unit: year, requests_per_unit: 2 }
- key: generic_key
  value: keyed
  rate_limit: { name: keyed, unit: year, requests_per_unit: 5, key: header.x-user }
- key: generic_key
  value: better
  rate_limit: { name: better, unit: year, requests_per_unit: 50, replaces: [{ name: five }] }
";

struct Client {
    program: Program,
    grpc: RateLimitServiceClient<Channel>,
}

impl Client {
    async fn start(arguments: &[&str]) -> Self {
        Self::with(RULES, arguments).await
    }

    async fn with(rules: &str, arguments: &[&str]) -> Self {
        let program = Program::with_rules(rules, arguments);
        let grpc = RateLimitServiceClient::connect(format!("http://{}", program.address)).await.expect("a connection");
        Self { program, grpc }
    }

    async fn call(&mut self, call: RateLimitRequest) -> Result<RateLimitResponse, GrpcError> {
        self.grpc.should_rate_limit(call).await.map(tonic::Response::into_inner)
    }

    /// Sends descriptors, and returns whether they are allowed, with the code and the remaining tokens of each.
    async fn check(&mut self, descriptors: &[RateLimitDescriptor]) -> (bool, Vec<(bool, u32)>) {
        let answer = self.call(call(descriptors)).await.expect("an answer");
        let status = |status: &DescriptorStatus| (status.code() == Code::Ok, status.limit_remaining);
        (answer.overall_code() == Code::Ok, answer.statuses.iter().map(status).collect())
    }
}

fn call(descriptors: &[RateLimitDescriptor]) -> RateLimitRequest {
    RateLimitRequest { domain: "test".to_owned(), descriptors: descriptors.to_vec(), hits_addend: 0 }
}

fn of(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).to_owned(), value: (*value).to_owned() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..Default::default() }
}

fn generic(value: &str) -> RateLimitDescriptor {
    of(&[("generic_key", value)])
}

fn with_hits(descriptor: RateLimitDescriptor, value: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(UInt64Value { value }), ..descriptor }
}

fn negative(descriptor: RateLimitDescriptor) -> RateLimitDescriptor {
    RateLimitDescriptor { is_negative_hits: true, ..descriptor }
}

#[tokio::test]
async fn answers_have_a_status_for_each_descriptor_and_headers_of_the_tightest() {
    let mut client = Client::start(&[]).await;
    let answer = client.call(call(&["five", "bucket", "odd", "month", "other"].map(generic))).await.expect("an answer");
    assert_eq!(answer.overall_code(), Code::Ok);
    let limit = |status: &DescriptorStatus| {
        let RateLimit { requests_per_unit, .. } = status.current_limit.clone()?;
        let unit = status.current_limit.as_ref().map(RateLimit::unit)?;
        assert!(status.duration_until_reset.is_some_and(|reset| reset.seconds > 0 || reset.nanos > 0));
        Some((requests_per_unit, unit, status.limit_remaining))
    };
    let limits: Vec<_> = answer.statuses.iter().map(limit).collect();
    assert_eq!(
        limits,
        [
            Some((5, Unit::Year, 4)),
            Some((60, Unit::Minute, 299)),
            Some((5, Unit::Unknown, 4)),
            Some((9, Unit::Month, 8)),
            None
        ]
    );
    let headers: Vec<_> = answer.response_headers_to_add.iter().map(|header| (&*header.key, &*header.value)).collect();
    assert_eq!(headers[..2], [("RateLimit-Limit", "5, 5;w=31536000"), ("RateLimit-Remaining", "4")]);
    assert!(headers[2].0 == "RateLimit-Reset" && headers.len() == 3, "{headers:?}");

    let hits = with_hits(generic("five"), 5);
    let answer = client.call(call(&[generic("odd"), hits])).await.expect("an answer");
    assert_eq!(answer.overall_code(), Code::OverLimit);
    let codes: Vec<_> = answer.statuses.iter().map(DescriptorStatus::code).collect();
    assert_eq!(codes, [Code::Ok, Code::OverLimit]);
    assert_eq!(answer.statuses[0].limit_remaining, 4, "nothing was charged");
    let last = answer.response_headers_to_add.last().expect("headers");
    assert!(last.key == "Retry-After" && last.value.parse::<u64>().is_ok(), "{last:?}");
}

#[tokio::test]
async fn descriptors_are_charged_all_or_none() {
    let mut client = Client::start(&[]).await;
    let address = |value| of(&[("remote_address", value)]);
    assert_eq!(client.check(&[address("192.0.2.1"), generic("five")]).await, (true, vec![(true, 1), (true, 4)]));
    assert_eq!(client.check(&[address("192.0.2.1"), generic("five")]).await, (true, vec![(true, 0), (true, 3)]));
    assert_eq!(client.check(&[address("192.0.2.1"), generic("five")]).await, (false, vec![(false, 0), (true, 3)]));
    assert_eq!(client.check(&[address("192.0.2.2"), generic("five")]).await, (true, vec![(true, 1), (true, 2)]));
    // The same key twice.
    assert_eq!(client.check(&[address("192.0.2.3"), address("192.0.2.3")]).await, (true, vec![(true, 0), (true, 0)]));
}

#[tokio::test]
async fn descriptors_match_whole_paths() {
    let mut client = Client::start(&[]).await;
    let nested = of(&[("generic_key", "five"), ("generic_key", "x")]);
    assert_eq!(client.check(&[nested]).await, (true, vec![(true, 99)]), "not the limit around it");
    assert_eq!(client.check(&[generic("five")]).await, (true, vec![(true, 4)]));
    assert_eq!(
        client.check(&[generic("five"), generic("better")]).await,
        (true, vec![(true, 0), (true, 49)]),
        "replaced"
    );
    assert_eq!(client.check(&[generic("five")]).await, (true, vec![(true, 3)]));
    let unknown = of(&[("remote_address", "192.0.2.1"), ("generic_key", "five")]);
    assert_eq!(client.check(&[unknown]).await, (true, vec![(true, 0)]));
}

#[tokio::test]
async fn hits_are_of_the_call_or_of_the_descriptor() {
    let mut client = Client::start(&[]).await;
    let descriptors = [generic("five"), with_hits(generic("bucket"), 10), with_hits(generic("odd"), 0)];
    let call = RateLimitRequest { hits_addend: 2, ..call(&descriptors) };
    let answer = client.call(call).await.expect("an answer");
    let left: Vec<_> = answer.statuses.iter().map(|status| status.limit_remaining).collect();
    assert_eq!(left, [3, 290, 5]);
}

#[tokio::test]
async fn negative_hits_refund_what_was_used() {
    let redis = RedisServer::start();
    for arguments in [&[][..], &["--redis", &redis.url(), "--deadline-ms", "5000"]] {
        let mut client = Client::start(arguments).await;
        let hits = |hits| with_hits(generic("five"), hits);
        assert_eq!(client.check(&[hits(4)]).await, (true, vec![(true, 1)]));
        assert_eq!(client.check(&[negative(hits(2))]).await, (true, vec![(true, 3)]));
        // Refunded after the others are allowed,
        assert_eq!(client.check(&[negative(hits(1)), generic("odd")]).await, (true, vec![(true, 4), (true, 4)]));
        // and not if they are denied.
        let (is_allowed, codes) = client.check(&[negative(hits(1)), with_hits(generic("odd"), 9)]).await;
        assert_eq!((is_allowed, codes[0].0, codes[1]), (false, true, (false, 4)));
        assert_eq!(client.check(&[hits(0)]).await, (true, vec![(true, 4)]));
        // No more than was used.
        assert_eq!(client.check(&[negative(hits(u64::MAX))]).await, (true, vec![(true, 5)]));
        assert_eq!(client.check(&[hits(5)]).await, (true, vec![(true, 0)]));
        assert_eq!(client.check(&[generic("five")]).await, (false, vec![(false, 0)]));
        assert_eq!(client.check(&[negative(generic("five"))]).await, (true, vec![(true, 1)]));
        assert_eq!(client.check(&[generic("five")]).await, (true, vec![(true, 0)]), "a denial is not remembered");
    }
}

#[tokio::test]
async fn quotas_and_shadow_mode_are_of_the_rules() {
    let mut client = Client::start(&[]).await;
    for left in [0, 0] {
        assert_eq!(client.check(&[generic("shadow")]).await, (true, vec![(true, left)]));
    }
    let quotas = ["a", "b"].map(|value| of(&[("header_match", value)]));
    assert_eq!(client.check(&quotas).await, (true, vec![(true, 0), (true, 1)]));
    assert_eq!(client.check(&quotas).await, (true, vec![(true, 0), (true, 0)]), "one quota has room");
    assert!(!client.check(&quotas).await.0);
}

#[tokio::test]
async fn keys_near_their_limit_are_counted() {
    let mut client = Client::start(&["--near-limit", "60"]).await;
    for _ in 0..6 {
        client.check(&[generic("five")]).await;
    }
    let near = client.program.metric("ratelimit_near_limit_total{domain=\"test\",limit=\"five\"}").await;
    assert_eq!(near, 3.0, "the third, the fourth and the fifth");
}

#[tokio::test]
async fn mistakes_have_a_status() {
    let mut client = Client::start(&[]).await;
    let entry = generic("five");
    let limited = RateLimitDescriptor { limit: Some(RateLimitOverride::default()), ..entry.clone() };
    for (call, expected, message) in [
        (
            RateLimitRequest { domain: String::new(), ..call(slice::from_ref(&entry)) },
            Status::InvalidArgument,
            "the domain is empty",
        ),
        (call(&[]), Status::InvalidArgument, "no descriptor"),
        (call(&[entry.clone(), of(&[])]), Status::InvalidArgument, "no entry"),
        (call(&vec![entry.clone(); 65]), Status::InvalidArgument, "65 descriptors"),
        (call(&[limited]), Status::Unimplemented, "a `limit` of its own"),
    ] {
        let error = client.call(call).await.expect_err(message);
        assert_eq!(error.code(), expected, "{error}");
        assert!(error.message().contains(message), "{error}");
    }
    assert_eq!(client.check(slice::from_ref(&entry)).await, (true, vec![(true, 4)]), "nothing was charged");
    let other = RateLimitRequest { domain: "other".to_owned(), ..call(&[entry]) };
    let answer = client.call(other).await.expect("an answer");
    assert_eq!((answer.overall_code(), answer.statuses.len()), (Code::Ok, 1));
    assert_eq!(client.program.metric("ratelimit_unknown_domain_total").await, 1.0);
}

#[tokio::test]
async fn a_domain_without_rules_is_allowed_and_logged_once() {
    let program = Program::with_rules(RULES, &[]);
    let call = |domain: &str| {
        let entries = json!([{ "key": "generic_key", "value": "five" }]);
        json!({ "domain": domain, "descriptors": [{ "entries": entries }] })
    };
    for number in 0..120 {
        for _ in 0..2 {
            assert_eq!(program.json(call(&format!("other {number}"))).await.status, 200);
        }
    }
    assert_eq!(program.metric("ratelimit_unknown_domain_total").await, 240.0);
    let warnings = || program.log().lines().filter(|line| line.contains("domain without rules")).count();
    wait_until("warnings are logged", async || warnings() == 100).await;
    let log = program.log();
    let warning = log.lines().find(|line| line.contains("WARN")).expect("a warning");
    assert!(warning.contains("add its file to --rules") && warning.contains("other 0"), "{warning}");
}

#[tokio::test]
async fn a_call_whose_negative_hits_fail_charges_nothing() {
    let mut client = Client::start(&[]).await;
    let keyless = negative(generic("keyed"));
    let error = client.call(call(&[generic("five"), keyless])).await.expect_err("the key of the limit is missing");
    assert_eq!(error.code(), Status::InvalidArgument, "{error}");
    assert_eq!(client.check(&[with_hits(generic("five"), 0)]).await, (true, vec![(true, 5)]));
}

/// Two streams of each user.
const STREAMS: &str = "
domain: test
descriptors:
- key: generic_key
  value: stream
  descriptors:
  - key: header_match
    rate_limit: { name: streams, concurrent: 2, time_to_live: 4s }
";

#[tokio::test]
async fn streams_are_limited_until_their_negative_hits() {
    let redis = RedisServer::start();
    for arguments in [&[][..], &["--redis", &redis.url(), "--deadline-ms", "5000"]] {
        let mut client = Client::with(STREAMS, arguments).await;
        let stream = |user| of(&[("generic_key", "stream"), ("header_match", user)]);
        assert_eq!(client.check(&[stream("ann")]).await, (true, vec![(true, 1)]));
        assert_eq!(
            client.check(&[with_hits(stream("ann"), 9)]).await,
            (true, vec![(true, 0)]),
            "one, whatever the hits"
        );
        let answer = client.call(call(&[stream("ann")])).await.expect("an answer");
        let headers: Vec<_> =
            answer.response_headers_to_add.iter().map(|header| (&*header.key, &*header.value)).collect();
        let expected = [("Limit", "2"), ("Remaining", "0"), ("Reset", "1")];
        let expected = expected.map(|(name, value)| (format!("RateLimit-{name}"), value));
        assert_eq!(answer.overall_code(), Code::OverLimit);
        assert_eq!(headers[..3], expected.each_ref().map(|(name, value)| (name.as_str(), *value)));
        assert_eq!(headers[3], ("Retry-After", "1"));
        assert_eq!(client.check(&[stream("bob")]).await, (true, vec![(true, 1)]));

        // At the end of a denied request, Envoy sends the number of its attempts, which is 0.
        assert_eq!(client.check(&[negative(with_hits(stream("ann"), 0))]).await, (true, vec![(true, 0)]));
        assert_eq!(client.check(&[negative(with_hits(stream("ann"), 3))]).await, (true, vec![(true, 1)]));
        assert_eq!(client.check(&[stream("ann")]).await, (true, vec![(true, 0)]));
        // Forgotten streams end with the time to live.
        let mut other = client.grpc.clone();
        wait_until("the slots are free", async || {
            let answer = other.should_rate_limit(call(&[with_hits(stream("ann"), 0)])).await.expect("an answer");
            answer.into_inner().statuses[0].limit_remaining == 2
        })
        .await;
    }
}

/// A queue with a slot every 20 minutes, and a limit of one call.
const QUEUE: &str = "
domain: test
descriptors:
- key: generic_key
  value: queue
  rate_limit: { unit: hour, requests_per_unit: 3, algorithm: leaky_bucket_queue }
- key: generic_key
  value: one
  rate_limit: { unit: year, requests_per_unit: 1 }
";

fn json_call(values: &[&str]) -> Value {
    let descriptor = |value: &&str| json!({ "entries": [{ "key": "generic_key", "value": value }] });
    json!({ "domain": "test", "descriptors": values.iter().map(descriptor).collect::<Vec<_>>() })
}

#[tokio::test]
async fn denials_are_not_delayed() {
    let program = Program::with_rules(QUEUE, &[]);
    assert_eq!(program.json(json_call(&["queue", "one"])).await.status, 200);
    let began = Instant::now();
    assert_eq!(program.json(json_call(&["queue", "one"])).await.status, 429);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

#[tokio::test]
async fn cancelled_calls_free_their_slots() {
    let program = Program::with_rules(QUEUE, &[]);
    assert_eq!(program.json(json_call(&["queue"])).await.status, 200);
    let waits =
        async || tokio::time::timeout(Duration::from_millis(300), program.json(json_call(&["queue"]))).await.is_err();
    for _ in 0..5 {
        wait_until("the next call waits and is not denied", waits).await;
    }
    let mut grpc = RateLimitServiceClient::connect(format!("http://{}", program.address)).await.expect("a connection");
    for _ in 0..5 {
        let call = grpc.should_rate_limit(call(&[generic("queue")]));
        let _ = tokio::time::timeout(Duration::from_millis(300), call).await;
    }
    wait_until("calls over gRPC have freed their slots", waits).await;
}

#[tokio::test]
async fn json_is_the_same_service() {
    let program = Program::with_rules(RULES, &[]);
    let five = |more: &Value| {
        let mut descriptor = json!({ "entries": [{ "key": "generic_key", "value": "five" }] });
        descriptor.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "domain": "test", "descriptors": [descriptor] })
    };
    let answer = program.json(five(&json!({ "hitsAddend": "2" }))).await;
    let body: Value = serde_json::from_str(&answer.body).expect("JSON");
    assert_eq!((answer.status.as_u16(), &body["overallCode"]), (200, &json!("OK")));
    assert_eq!(body["statuses"][0]["currentLimit"], json!({ "requestsPerUnit": 5, "unit": "YEAR" }));
    assert_eq!(body["statuses"][0]["limitRemaining"], 3);
    assert!(body["statuses"][0]["durationUntilReset"].as_str().is_some_and(|reset| reset.ends_with('s')));
    let answer = program.json(five(&json!({ "hits_addend": 4 }))).await;
    assert_eq!(answer.status, 429);
    assert!(answer.body.contains("OVER_LIMIT") && answer.header("retry-after").is_some(), "{answer:?}");
    let answer = program.json(five(&json!({ "is_negative_hits": true }))).await;
    assert!(answer.status == 200 && answer.body.contains("\"limitRemaining\":4"), "{answer:?}");
    for (call, status) in [
        (json!({ "domain": "test" }), 400),
        (json!({ "domain": "test", "descriptor": [] }), 422),
        (five(&json!({ "hitsAddend": -1 })), 422),
        (five(&json!({ "limit": { "requestsPerUnit": 1, "unit": "DAY" } })), 501),
    ] {
        assert_eq!(program.json(call.clone()).await.status, status, "{call}");
    }
}

#[tokio::test]
async fn grpc_health_is_reported() {
    let client = Client::start(&[]).await;
    let channel = Channel::from_shared(format!("http://{}", client.program.address)).unwrap().connect().await.unwrap();
    for service in ["", "envoy.service.ratelimit.v3.RateLimitService"] {
        let request = HealthCheckRequest { service: service.to_owned() };
        let health = HealthClient::new(channel.clone()).check(request).await.expect("an answer").into_inner();
        assert_eq!(health.status(), ServingStatus::Serving);
    }
}
