//! Authentication and permissions.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use deadpool_redis::redis::cmd;
use tower_ratelimit::{
    Algorithm, FixedWindow, LeakyBucket, LeakyBucketQueue, Limit, Limiter, Penalty, RedisConfig, SlidingLog,
    SlidingWindow, SlidingWindowCounter, TokenBucket,
};

use crate::connections::{DEADLINE, charge, limiter, resume, until};
use support::patient::Patient;
use support::permissions::{documented, documented_for, each_missing, names_the_remedy, rejected, set_user};
use support::redis_server::RedisServer;

const HOUR: Duration = Duration::from_secs(3_600);

fn user(server: &RedisServer, name: &str, rules: &[&str]) -> RedisConfig {
    let () = server.ask(&set_user(name, rules));
    RedisConfig::node(server.url()).patient().credentials(name, "s3cret")
}

/// Returns the commands and keys that a server has rejected since the last call.
fn rejected_by(server: &RedisServer) -> Vec<String> {
    let rejected = rejected(&server.ask::<Vec<_>>(cmd("ACL").arg("LOG")));
    let () = server.ask(cmd("ACL").arg(&["LOG", "RESET"]));
    rejected
}

/// Calls every operation of a store, on a server that does not know the script.
async fn use_all(server: &RedisServer, config: RedisConfig) -> Result<(), Box<dyn std::error::Error>> {
    let () = server.ask(cmd("SCRIPT").arg("FLUSH"));
    let store = config.connect().await?;
    let algorithms: [Algorithm; 8] = [
        FixedWindow::new(10, HOUR).into(),
        SlidingLog::new(10, HOUR).into(),
        SlidingWindow::new(10, HOUR).into(),
        SlidingWindowCounter::new(10, HOUR).into(),
        TokenBucket::new(10, 10, HOUR).into(),
        TokenBucket::new(10, 10, HOUR).at_intervals().into(),
        LeakyBucket::new(10, 10, HOUR).into(),
        LeakyBucketQueue::new(9, 10, HOUR).into(),
    ];
    for (n, algorithm) in algorithms.into_iter().enumerate() {
        let limit = Limit::new(format!("limit-{n}"), algorithm).penalty(Penalty::after(2, HOUR).locked_out_for(HOUR));
        let limiter = Limiter::builder([limit]).patient().store(store.clone()).build();
        // The second of two refunds leaves a state, and the last one leaves none.
        let mut receipts = Vec::new();
        for cost in [1, 2, 3] {
            receipts.push(limiter.acquire("key", cost).await?.into_receipt());
        }
        for receipt in receipts.into_iter().rev() {
            limiter.refund(receipt).await?;
        }
        for _ in 0..12 {
            let _ = limiter.acquire("key", 1).await?;
        }
        let _ = limiter.peek("key", 1).await?;
        limiter.reset("key").await?;
    }
    // Trimming a log removes expired requests.
    let brief = Limiter::builder(Limit::new("brief", SlidingLog::new(10, Duration::from_millis(20))))
        .patient()
        .store(store.clone())
        .build();
    for _ in 0..5 {
        let _ = brief.acquire("key", 1).await?;
        tokio::time::sleep(Duration::from_millis(12)).await;
    }
    let sizes = Limiter::builder(Limit::new("sizes", FixedWindow::per_hour(10)).overridable())
        .patient()
        .store(store.clone())
        .build();
    let overrides = sizes.limit("sizes")?;
    for expires_after in [None, Some(HOUR)] {
        overrides.set_override("key", FixedWindow::per_hour(20), expires_after).await?;
        let _ = sizes.acquire("key", 1).await?;
        let _ = overrides.get_override("key").await?;
    }
    overrides.remove_override("key").await?;
    {
        let text = "domain: d\ndescriptors:\n- key: path\n  rate_limit: {unit: hour, requests_per_unit: 1}\n";
        let extractors = tower_ratelimit::rules::Extractors::new();
        store.publish_rules(text, &extractors).await?;
        let _ = store.follow_rules(extractors, []).await?;
    }
    // The script is loaded again after a flush.
    let () = server.ask(cmd("SCRIPT").arg("FLUSH"));
    let _ = brief.acquire("key", 1).await?;
    Ok(())
}

#[tokio::test]
async fn documented_permissions_suffice() {
    let server = RedisServer::start();
    let config = user(&server, "limits", &documented());
    use_all(&server, config).await.unwrap_or_else(|error| panic!("{error:?}"));
    assert_eq!(rejected_by(&server), [""; 0]);
}

#[tokio::test]
async fn documented_permissions_suffice_in_another_database() {
    let server = RedisServer::start();
    let rules = [documented(), documented_for("a database other than 0")].concat();
    let () = server.ask(&set_user("limits", &rules));
    let config = RedisConfig::node(format!("{}/3", server.url())).patient().credentials("limits", "s3cret");
    assert_eq!(charge(&limiter(config.connect().await.expect("a connection")).build()).await, 1);
    assert_eq!(rejected_by(&server), [""; 0]);
    let () = server.ask(&set_user("limits", &documented()));
    let config = RedisConfig::node(format!("{}/3", server.url())).patient().credentials("limits", "s3cret");
    let error = format!("{:?}", config.connect().await.expect_err("it may not select a database"));
    assert!(names_the_remedy(&error), "{error}");
}

/// As with the tokens of cloud providers, which are valid for some minutes.
#[tokio::test]
async fn passwords_are_renewed_for_each_connection() {
    let server = RedisServer::start();
    let password = Arc::new(Mutex::new("first".to_owned()));
    let rotate = |to: &str| {
        let mut command = set_user("limits", &documented());
        let () = server.ask(command.arg("resetpass").arg(format!(">{to}")));
        *password.lock().expect("the password") = to.to_owned();
        let _: u32 = server.ask(cmd("CLIENT").arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]));
    };
    rotate("first");
    let current = password.clone();
    let config = RedisConfig::node(server.url()).patient().before_connect(move |config| {
        let password = current.lock().expect("the password").clone();
        async move { Ok(config.credentials("limits", password)) }
    });
    let limiter = limiter(config.connect().await.expect("a connection")).build();
    let before = charge(&limiter).await;
    for password in ["second", "third"] {
        rotate(password);
        resume(&limiter).await;
    }
    assert!(charge(&limiter).await >= before + 3);
    assert_eq!(rejected_by(&server), [""; 0]);

    let config = RedisConfig::node(server.url()).before_connect(async |_| Err("the token service is down".into()));
    assert!(!format!("{config:?}").contains("token"), "{config:?}");
    let error = config.connect().await.expect_err("no token").to_string();
    assert!(error.contains("`RedisConfig::before_connect` failed: the token service is down"), "{error}");
}

/// A connection is checked when a caller cancels its request, and when another connection is cut.
#[tokio::test]
async fn documented_permissions_suffice_to_check_a_connection() {
    let server = RedisServer::start();
    let store = user(&server, "limits", &documented()).connect().await.expect("a connection");
    let limiter = limiter(store).build();
    assert_eq!(charge(&limiter).await, 1);
    server.pause();
    tokio::time::timeout(DEADLINE, limiter.acquire("key", 1)).await.expect_err("the server is paused");
    // The check is sent before the server continues.
    tokio::time::sleep(DEADLINE).await;
    server.resume();
    for _ in 0..10 {
        charge(&limiter).await;
    }
    let id: u64 = server.ask(cmd("CLIENT").arg("ID"));
    let clients: String = server.ask(cmd("CLIENT").arg("LIST"));
    let of_limits = clients.lines().find(|client| client.contains("user=limits")).expect("a connection of the store");
    let of_limits: u64 = of_limits.split(['=', ' ']).nth(1).and_then(|id| id.parse().ok()).expect("its number");
    assert_ne!(id, of_limits);
    let _: u32 = server.ask(cmd("CLIENT").arg("KILL").arg("ID").arg(of_limits));
    until("the connection is replaced", || {
        let clients: String = server.ask(cmd("CLIENT").arg("LIST"));
        clients.lines().filter(|client| client.contains("user=limits")).count() == 2
    })
    .await;
    for _ in 0..10 {
        charge(&limiter).await;
    }
    assert_eq!(rejected_by(&server), [""; 0]);
}

#[tokio::test]
async fn documented_permissions_suffice_with_another_prefix() {
    let server = RedisServer::start();
    let rules: Vec<_> = documented().into_iter().map(|rule| rule.replace("~ratelimit:", "~mails:")).collect();
    let rules: Vec<_> = rules.iter().map(String::as_str).collect();
    let store = user(&server, "limits", &rules).prefix("mails").connect().await.expect("a connection");
    assert_eq!(charge(&limiter(store).build()).await, 1);
    assert_eq!(rejected_by(&server), [""; 0]);
}

/// Returns the commands that are documented, without their subcommands.
fn commands() -> BTreeSet<&'static str> {
    documented().iter().filter_map(|rule| rule.strip_prefix('+')?.split('|').next()).collect()
}

#[tokio::test]
async fn connecting_names_each_command_that_the_user_may_not_call() {
    let server = RedisServer::start();
    // Scripts of Redis before 7.0 cannot check permissions.
    let is_old = server.ask::<String>(cmd("INFO").arg("server")).contains("redis_version:6.");
    for command in commands().into_iter().filter(|command| !is_old || ["evalsha", "script", "time"].contains(command)) {
        let rules: Vec<_> = documented().into_iter().filter(|rule| !rule.starts_with(&format!("+{command}"))).collect();
        let error = user(&server, command, &rules).connect().await.expect_err(command).to_string();
        assert!(names_the_remedy(&error) && error.contains(&format!("'{command}")), "{error}");
    }
    if !is_old {
        let rules = [documented(), vec!["-lindex", "-lset"]].concat();
        let error = user(&server, "limits", &rules).connect().await.expect_err("two are missing").to_string();
        assert!(error.contains("'lindex', 'lset'"), "{error}");
    }
}

#[tokio::test]
async fn connecting_names_each_command_that_the_server_lacks() {
    for command in commands() {
        let server = RedisServer::start_with(&["--rename-command", command, ""]);
        let error = RedisConfig::node(server.url()).patient().connect().await.expect_err(command).to_string();
        // Redis before 7.0 writes backquotes.
        let names_it = error.to_lowercase().replace('`', "'").contains(&format!("'{command}'"));
        assert!(names_it && error.contains("rename-command"), "{error}");
    }
}

/// Redis repeats the arguments of an unknown command in its error.
#[tokio::test]
async fn errors_show_no_arguments_of_commands() {
    let check = |error: &dyn Error| {
        let mut next = Some(error);
        while let Some(error) = next {
            let text = format!("{error} {error:?}");
            assert!(!text.contains("h1dden") && !text.contains("args") && !text.contains("ratelimit:"), "{text}");
            next = error.source();
        }
    };
    let server = RedisServer::start_with(&["--rename-command", "HELLO", ""]);
    let config = RedisConfig::node(server.url()).patient().credentials("limits", "h1dden");
    check(&config.connect().await.expect_err("no HELLO"));
    let server = RedisServer::start_with(&["--rename-command", "EVALSHA", ""]);
    let store = RedisConfig::node(server.url()).patient().connect_lazily().expect("a store");
    check(&limiter(store).build().acquire("key", 1).await.expect_err("no EVALSHA"));
    let server = RedisServer::start_with(&["--rename-command", "SET", ""]);
    let store = RedisConfig::node(server.url()).patient().connect_lazily().expect("a store");
    let text = "domain: h1dden\ndescriptors:\n- key: path\n  rate_limit: {unit: hour, requests_per_unit: 1}\n";
    let extractors = tower_ratelimit::rules::Extractors::new();
    check(&store.publish_rules(text, &extractors).await.expect_err("no SET"));
}

/// Otherwise, the documentation grants too much, or the error is incomplete.
#[tokio::test]
async fn errors_name_each_missing_permission() {
    let server = RedisServer::start();
    let missing = each_missing(&documented());
    assert!(missing.len() > 10, "{missing:?}");
    for (without, rules) in missing {
        let config = user(&server, without, &rules);
        let error = use_all(&server, config).await.expect_err(without);
        assert!(names_the_remedy(&format!("{error:?}")), "without {without}: {error:?}");
        let () = server.ask(&cmd("FLUSHALL"));
    }
}

#[test]
fn the_documentation_of_the_configuration_grants_the_same_permissions() {
    let source = include_str!("../../../src/store/redis/config.rs");
    let words: Vec<&str> = source.split(|c: char| c.is_whitespace() || "`;,.".contains(c)).collect();
    let others = ["a database other than 0", "a master behind Sentinel", "the Sentinels themselves", "a Cluster"];
    for rule in documented().into_iter().chain(others.into_iter().flat_map(documented_for)) {
        assert!(words.contains(&rule), "{rule}");
    }
}

#[tokio::test]
async fn a_wrong_password_is_reported_and_never_printed() {
    let server = RedisServer::start_with(&["--requirepass", "correct"]);
    let address = format!("127.0.0.1:{}", server.port());
    let store =
        RedisConfig::node(format!("redis://:correct@{address}")).patient().connect().await.expect("a connection");
    assert_eq!(charge(&limiter(store).build()).await, 1);
    for config in [
        RedisConfig::node(format!("redis://{address}")).patient(),
        RedisConfig::node(format!("redis://:h1dden@{address}")).patient(),
        RedisConfig::node(format!("redis://nobody:h1dden@{address}")).patient(),
        RedisConfig::node(format!("redis://:correct@{address}")).patient().credentials("default", "h1dden"),
    ] {
        assert!(!format!("{config:?}").contains("h1dden"), "{config:?}");
        let error = config.clone().connect().await.expect_err("rejected");
        assert!(format!("{error:?}").contains("rejected the user or the password"), "{error:?}");
        let all = format!("{error} {error:?}");
        assert!(!all.contains("h1dden") && !all.contains("correct"), "{all}");
        let lazy = limiter(config.connect_lazily().expect("a store")).build();
        let error = lazy.acquire("key", 1).await.expect_err("rejected");
        assert!(format!("{error:?}").contains("rejected the user or the password"), "{error:?}");
    }
    let error = RedisConfig::node("redis://:h1dden@:::").connect_lazily().expect_err("unreadable");
    assert!(!format!("{error} {error:?}").contains("h1dden"), "{error:?}");
    assert!(!format!("{:?}", RedisConfig::node("redis://:h1dden@:::")).contains("h1dden"));
}

#[test]
fn connecting_with_a_bad_configuration_is_an_error() {
    let node = || RedisConfig::node("redis://127.0.0.1");
    let none: [&str; 0] = [];
    for (config, reported) in [
        (RedisConfig::node("http://localhost"), "redis://host:port"),
        (node().connections(0), "0 connections: use 1 to 1024"),
        (node().queue_capacity(0), "queue_capacity is 0: let at least 1 request wait"),
        (node().response_timeout(Duration::ZERO), "response_timeout is 0 seconds: use at least 1 ms"),
        (node().connect_timeout(Duration::from_micros(1)), "connect_timeout is 1 µs"),
        (RedisConfig::sentinel("limits", none), "there is no URL"),
        (RedisConfig::sentinel("limits", ["redis://a/1"]), "master_database"),
    ] {
        let text = format!("{:?}", config.connect_lazily().expect_err("rejected"));
        assert!(text.contains(reported), "{text}");
    }
}

#[cfg(not(feature = "redis-tls"))]
#[test]
fn tls_needs_a_feature() {
    for config in [
        RedisConfig::node("rediss://127.0.0.1"),
        RedisConfig::sentinel("limits", ["valkeys://127.0.0.1"]),
        RedisConfig::sentinel("limits", ["redis://127.0.0.1"]).master_tls(true),
    ] {
        let text = format!("{:?}", config.connect_lazily().expect_err("rejected"));
        assert!(text.contains("enable its feature `redis-tls`"), "{text}");
    }
}
