//! SIGTERM under load loses no answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use http::Method;
use support::http_client::Connection;
use tokio::task::JoinSet;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::program::{Program, send, wait_until};

const RULES: &str = "
domain: test
descriptors:
- key: remote_address
  rate_limit: { unit: year, requests_per_unit: 1_000_000 }
- key: path
  value: /slow
  rate_limit: { period: 10s, requests_per_unit: 10, algorithm: leaky_bucket_queue }
";

#[tokio::test]
async fn sigterm_under_load_loses_no_answer() {
    let mut program = Program::with_rules(RULES, &["--drain-seconds", "2"]);
    let address = program.address;
    let answers = Arc::new(AtomicU64::new(0));
    let mut clients = JoinSet::new();
    // Like proxies, clients send checks until the health check fails.
    for _ in 0..4 {
        let answers = answers.clone();
        clients.spawn(async move {
            let headers = [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/"), ("x-forwarded-for", "192.0.2.1")];
            let mut connection = Connection::open(address).await;
            loop {
                assert_eq!(connection.get("/auth/test", &headers).await, 200);
                answers.fetch_add(1, Ordering::Relaxed);
                // After the signal, each connection answers one more check.
                if send(address, Method::GET, "/healthz", &[], "").await.status == 503 {
                    return;
                }
            }
        });
    }
    for _ in 0..4 {
        let answers = answers.clone();
        clients.spawn(async move {
            let entry = Entry { key: "remote_address".to_owned(), value: "192.0.2.1".to_owned() };
            let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
            let call = RateLimitRequest { domain: "test".to_owned(), descriptors: vec![descriptor], hits_addend: 0 };
            let channel = Channel::from_shared(format!("http://{address}")).expect("an address");
            let channel = channel.connect().await.expect("a connection");
            let (mut client, mut health) = (RateLimitServiceClient::new(channel.clone()), HealthClient::new(channel));
            loop {
                client.should_rate_limit(call.clone()).await.expect("an answer");
                answers.fetch_add(1, Ordering::Relaxed);
                let status = health.check(HealthCheckRequest::default()).await.expect("an answer").into_inner();
                if status.status() != ServingStatus::Serving {
                    return;
                }
            }
        });
    }
    // The second of them waits in a queue, beyond the drain.
    let slow = [("x-forwarded-method", "GET"), ("x-forwarded-uri", "/slow"), ("x-forwarded-for", "192.0.2.1")];
    for _ in 0..4 {
        clients.spawn(async move {
            assert_eq!(send(address, Method::GET, "/auth/test", &slow, "").await.status, 200);
        });
    }
    wait_until("clients send checks", async || answers.load(Ordering::Relaxed) > 200).await;
    program.signal("TERM");
    wait_until("the health check fails", async || send(address, Method::GET, "/healthz", &[], "").await.status == 503)
        .await;
    let late = send(
        address,
        Method::GET,
        "/auth/test",
        &[("x-forwarded-method", "GET"), ("x-forwarded-uri", "/"), ("x-forwarded-for", "192.0.2.1")],
        "",
    );
    assert_eq!(late.await.header("connection"), Some("close"), "answers go on for a while");
    while let Some(client) = clients.join_next().await {
        client.expect("no answer is lost");
    }
    wait_until("it ends", async || program.process.try_wait().expect("a child").is_some()).await;
    assert!(program.process.wait().expect("it has ended").success(), "{}", program.log());
}

#[tokio::test]
async fn idle_connections_do_not_delay_shutdown() {
    let mut program = Program::with_rules(RULES, &["--drain-seconds", "0"]);
    let mut connection = Connection::open(program.address).await;
    assert_eq!(connection.get("/healthz", &[]).await, 200);
    let _unused = tokio::net::TcpStream::connect(program.address).await.expect("a connection");
    let began = std::time::Instant::now();
    program.signal("TERM");
    wait_until("it ends", async || program.process.try_wait().expect("a child").is_some()).await;
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_second_signal_ends_the_process_at_once() {
    let mut program = Program::with_rules(RULES, &["--drain-seconds", "600"]);
    program.signal("TERM");
    wait_until("it drains", async || program.log().contains("shutting down")).await;
    program.signal("INT");
    wait_until("it ends", async || program.process.try_wait().expect("a child").is_some()).await;
    assert!(!program.process.wait().expect("it has ended").success(), "{}", program.log());
}
