//! A Redis that does not answer.

use std::time::{Duration, Instant};

use serde_json::json;
use support::certificates::{Authority, url};
use support::redis_cluster::RedisCluster;
use support::redis_server::{Folder, RedisServer};
use support::sentinel::{self, Sentinels};

use crate::program::{Program, wait_until};

const RULES: &str = "
domain: test
descriptors:
- key: remote_address
  rate_limit: { name: address, unit: year, requests_per_unit: 4 }
";

#[tokio::test]
async fn the_policy_answers_within_the_deadline() {
    let deadline = Duration::from_millis(300);
    let redis = RedisServer::start();
    for (policy, statuses) in [("reject", [503; 4]), ("allow", [200; 4]), ("decide-locally", [200, 200, 429, 429])] {
        let url = redis.url();
        let arguments = ["--redis", &url, "--on-store-error", policy, "--processes", "2", "--deadline-ms", "300"];
        let program = Program::with_rules(RULES, &arguments);
        assert_eq!(program.auth("GET", "/", "192.0.2.1", &[]).await.status, 200);
        redis.pause();
        for status in statuses {
            let began = Instant::now();
            let answer = program.auth("GET", "/", "192.0.2.2", &[]).await;
            assert_eq!(answer.status, status, "{policy}: {answer:?}");
            // Generous, for a loaded machine.
            assert!(began.elapsed() < 10 * deadline, "{policy}: {:?}", began.elapsed());
        }
        let entries = json!([{ "key": "remote_address", "value": "192.0.2.3" }]);
        let call = |is_negative: bool| {
            let descriptor = json!({ "entries": entries, "isNegativeHits": is_negative });
            json!({ "domain": "test", "descriptors": [descriptor] })
        };
        let expected = if policy == "reject" { 503 } else { 200 };
        assert_eq!(program.json(call(false)).await.status, expected, "{policy}");
        assert_eq!(program.json(call(true)).await.status, 503, "{policy}: nothing is refunded");
        assert_eq!(program.get("/healthz", &[]).await.status, 200, "the store is not part of the health");
        redis.resume();
        wait_until("the store decides", async || {
            program.auth("GET", "/", "192.0.2.4", &[]).await.header("ratelimit").is_some()
        })
        .await;
    }
}

#[tokio::test]
async fn the_store_can_be_part_of_the_health() {
    let mut redis = RedisServer::not_started();
    let url = redis.url();
    let arguments = ["--redis", &url, "--start-without-redis", "--health-needs-store", "--on-store-error", "allow"];
    let program = Program::with_rules(RULES, &arguments);
    let has_health =
        async |status: u16| wait_until("health", async || program.get("/healthz", &[]).await.status == status).await;
    has_health(503).await;
    assert_eq!(program.auth("GET", "/", "192.0.2.1", &[]).await.status, 200);
    redis.start_again();
    has_health(200).await;
    redis.pause();
    has_health(503).await;
    redis.resume();
    has_health(200).await;
}

/// Redis as a Cluster, behind Sentinels, and with TLS and a password.
#[tokio::test]
async fn every_deployment_of_redis_counts() {
    let cluster = RedisCluster::start(0);
    let master = RedisServer::start();
    let sentinels = Sentinels::watch(1, &master, 0);
    let (folder, authority) = (Folder::new(), Authority::new());
    let (secure, authorities) = (authority.server(false), folder.write("ca.pem", &authority.pem));
    let ann = ["--user", "ann", "on", ">other", "~own*", "&*", "+@all"];
    let locked = RedisServer::start_with(&[&["--requirepass", "secret"][..], &ann].concat());
    for (redis, more) in [
        (cluster.urls().join(","), &["--redis-cluster"][..]),
        (sentinels.urls().join(","), &["--redis-sentinel", sentinel::MASTER]),
        (url(&secure), &["--redis-ca", &authorities]),
        (locked.url(), &["--redis-password", "secret", "--redis-prefix", "own"]),
        (locked.url(), &["--redis-user", "ann", "--redis-password", "other", "--redis-prefix", "own-of-ann"]),
    ] {
        let program = Program::with_rules(RULES, &[&["--redis", &redis, "--deadline-ms", "5000"], more].concat());
        let mut statuses = Vec::new();
        for _ in 0..5 {
            statuses.push(program.auth("GET", "/", "192.0.2.1", &[]).await.status.as_u16());
        }
        assert_eq!(statuses, [200, 200, 200, 200, 429], "{more:?}");
        let decided =
            r#"ratelimit_decisions_total{domain="test",limit="address",outcome="allowed",decided_by="store"}"#;
        assert_eq!(program.metric(decided).await, 4.0, "{more:?}");
    }
}
