//! Who may connect, and how they say who they are.

use std::time::Duration;

use deadpool_redis::redis::cmd;
use tower_ratelimit::{
    Algorithm, FixedWindow, LeakyBucket, LeakyBucketQueue, Limit, Limiter, RedisConfig, SlidingLog, SlidingWindow,
    SlidingWindowCounter, TokenBucket,
};

use crate::patient::Patient;
use crate::redis_server::RedisServer;
use crate::{charge, limiter};

/// As the documentation of `RedisConfig` has it.
const PERMISSIONS: &str = "resetkeys ~ratelimit:* -@all +evalsha +script|load +script|exists \
     +time +get +set +setrange +del +lindex +lrange +lset +ltrim +rpush +pexpireat";

fn allow(server: &RedisServer, user: &str, rules: &str) {
    let () = server.ask(
        cmd("ACL").arg("SETUSER").arg(user).arg("on").arg(">s3cret").arg(rules.split_whitespace().collect::<Vec<_>>()),
    );
}

#[tokio::test]
async fn all_that_the_store_does_is_allowed_by_what_is_documented() {
    let server = RedisServer::start();
    allow(&server, "limits", PERMISSIONS);
    let store = RedisConfig::node(server.url())
        .patient()
        .credentials("limits", "s3cret")
        .connect()
        .await
        .expect("a connection");
    let period = Duration::from_secs(3_600);
    let algorithms: [Algorithm; 8] = [
        FixedWindow::new(10, period).into(),
        SlidingLog::new(10, period).into(),
        SlidingWindow::new(10, period).into(),
        SlidingWindowCounter::new(10, period).into(),
        TokenBucket::new(10, 10, period).into(),
        TokenBucket::new(10, 10, period).at_intervals().into(),
        LeakyBucket::new(10, 10, period).into(),
        LeakyBucketQueue::new(9, 10, period).into(),
    ];
    for (n, algorithm) in algorithms.into_iter().enumerate() {
        let limiter = Limiter::new([Limit::new(format!("limit-{n}"), algorithm)]).patient().store(store.clone());
        // The second of two refunds leaves something, the last one nothing.
        let mut receipts = Vec::new();
        for cost in [1, 2, 3] {
            receipts.push(
                limiter.acquire("key", cost).await.unwrap_or_else(|error| panic!("{n}: {error:?}")).into_receipt(),
            );
        }
        for receipt in receipts.into_iter().rev() {
            limiter.refund(receipt).await.unwrap_or_else(|error| panic!("{n}: {error:?}"));
        }
        for _ in 0..12 {
            let _ = limiter.acquire("key", 1).await.unwrap_or_else(|error| panic!("{n}: {error:?}"));
        }
        let _ = limiter.peek("key", 1).await.expect("a decision");
        limiter.reset("key").await.expect("a reset");
    }
    // Trimming a log takes requests that no longer count.
    let brief =
        Limiter::new([Limit::new("brief", SlidingLog::new(10, Duration::from_millis(20)))]).store(store.clone());
    for _ in 0..5 {
        let _ = brief.acquire("key", 1).await.unwrap_or_else(|error| panic!("{error:?}"));
        tokio::time::sleep(Duration::from_millis(12)).await;
    }
    let () = server.ask(cmd("SCRIPT").arg("FLUSH"));
    let _ = brief.acquire("key", 1).await.expect("a decision, as it may load the script again");
    let denied: Vec<deadpool_redis::redis::Value> = server.ask(cmd("ACL").arg("LOG"));
    let denied: Vec<String> =
        denied.iter().map(|entry| format!("{entry:?}")).filter(|entry| !entry.contains("client|setinfo")).collect();
    assert!(denied.is_empty(), "{denied:?}");
}

/// Else the documentation lists too much.
#[tokio::test]
async fn without_any_of_the_permissions_something_fails() {
    let server = RedisServer::start();
    for without in PERMISSIONS
        .split_whitespace()
        .filter(|rule| ["+evalsha", "+script|load", "+time", "+get", "+set"].contains(rule))
    {
        allow(&server, without, &PERMISSIONS.replace(&format!("{without} "), ""));
        let config = RedisConfig::node(server.url()).patient().credentials(without, "s3cret");
        let () = server.ask(cmd("SCRIPT").arg("FLUSH"));
        let error = match config.connect().await {
            Ok(store) => limiter(store).acquire("key", 1).await.expect_err("not allowed"),
            Err(error) => error,
        };
        let text = format!("{error:?}");
        assert!(text.contains("ACL SETUSER") || text.contains("can't run this command"), "{without}: {text}");
    }
}

#[tokio::test]
async fn a_wrong_password_is_told_and_never_shown() {
    let server = RedisServer::start_with(&["--requirepass", "correct"]);
    let address = format!("127.0.0.1:{}", server.port());
    let store =
        RedisConfig::node(format!("redis://:correct@{address}")).patient().connect().await.expect("a connection");
    assert_eq!(charge(&limiter(store)).await, 1);
    for config in [
        RedisConfig::node(format!("redis://{address}")).patient(),
        RedisConfig::node(format!("redis://:h1dden@{address}")).patient(),
        RedisConfig::node(format!("redis://nobody:h1dden@{address}")).patient(),
        RedisConfig::node(format!("redis://:correct@{address}")).patient().credentials("default", "h1dden"),
    ] {
        assert!(!format!("{config:?}").contains("h1dden"), "{config:?}");
        let error = config.clone().connect().await.expect_err("refused");
        assert!(format!("{error:?}").contains("refused the user or the password"), "{error:?}");
        let all = format!("{error} {error:?}");
        assert!(!all.contains("h1dden") && !all.contains("correct"), "{all}");
        let lazy = limiter(config.connect_lazily().expect("a store"));
        let error = lazy.acquire("key", 1).await.expect_err("refused");
        assert!(format!("{error:?}").contains("refused the user or the password"), "{error:?}");
    }
    let error = RedisConfig::node("redis://:h1dden@:::").connect_lazily().expect_err("unreadable");
    assert!(!format!("{error} {error:?}").contains("h1dden"), "{error:?}");
    assert!(!format!("{:?}", RedisConfig::node("redis://:h1dden@:::")).contains("h1dden"));
}

#[test]
fn a_bad_configuration_is_refused_when_it_is_connected() {
    let node = || RedisConfig::node("redis://127.0.0.1");
    let none: [&str; 0] = [];
    for (config, told) in [
        (RedisConfig::node("http://localhost"), "redis://host:port"),
        (node().connections(0), "0 connections: use 1 to 1024"),
        (node().queue_capacity(0), "queue_capacity is 0: let at least 1 request wait"),
        (node().response_timeout(Duration::ZERO), "response_timeout is 0ns: use at least 1 ms"),
        (node().connect_timeout(Duration::from_micros(1)), "connect_timeout is 1µs"),
        (RedisConfig::sentinel("limits", none), "no Sentinel"),
        (RedisConfig::sentinel("limits", ["redis://a/1"]), "sentinel_database"),
        (RedisConfig::sentinel("limits", ["redis://:one@a", "redis://:two@b"]), "use one for all"),
    ] {
        let text = format!("{:?}", config.connect_lazily().expect_err("refused"));
        assert!(text.contains(told), "{text}");
    }
}

#[cfg(not(feature = "redis-tls"))]
#[test]
fn tls_without_its_feature_is_refused() {
    for config in [
        RedisConfig::node("rediss://127.0.0.1"),
        RedisConfig::sentinel("limits", ["valkeys://127.0.0.1"]),
        RedisConfig::sentinel("limits", ["redis://127.0.0.1"]).sentinel_master_tls(true),
    ] {
        let text = format!("{:?}", config.connect_lazily().expect_err("refused"));
        assert!(text.contains("enable its feature `redis-tls`"), "{text}");
    }
}
