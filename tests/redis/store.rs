//! The Redis store, on a real server.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use deadpool_redis::redis::cmd;
use http::Request;
use support::answer::ask;
use support::calls::Calls;
use support::limits::{Patient, all};
use support::redis_server::{RedisServer, expiry_of};
use support::store_fixture::connect;
use tower_ratelimit::{
    Algorithm, CostTable, FixedWindow, Limit, Limiter, MemoryStore, RateLimitLayer, RedisConfig, RedisStore,
    SlidingLog, Store, StoreErrorKind, TokenBucket,
};

const DAY: Duration = Duration::from_secs(86_400);

fn limits(tokens: u32, period: Duration) -> Vec<Limit> {
    all(tokens, period).map(|(name, algorithm)| Limit::new(name, algorithm)).into()
}

/// Only a Cluster has slots.
#[tokio::test]
async fn keys_of_several_subjects_are_refunded_by_one_call() {
    let server = RedisServer::start();
    let limits = ["user", "tenant"].map(|name| Limit::new(name, FixedWindow::per_day(10)));
    let limiter = Limiter::builder(limits).patient().store(connect(&server).await).build();
    let decision = limiter.acquire_charges(&[(&"ann", 1), (&"acme", 1)]).await.expect("a decision");
    let before = server.calls("evalsha");
    limiter.refund(decision.into_receipt()).await.expect("a refund");
    assert_eq!(server.calls("evalsha") - before, 1);
}

/// The layer of a route, inside the layer of the router, takes a second one.
#[tokio::test]
async fn a_table_charges_the_cost_of_a_route_by_one_call() {
    let server = RedisServer::start();
    let limit = Limit::new("log", SlidingLog::per_day(100));
    let limits = RateLimitLayer::builder([limit]).patient().store(connect(&server).await).build();
    let report = get(async || "a report");
    let table = limits.costs(CostTable::new().path("/report", 10));
    let by_table = Router::new().route("/report", report.clone()).layer(table);
    let by_route = Router::new().route("/report", report.route_layer(limits.cost(10))).layer(limits);
    for (app, calls, left) in [(by_table, 1, 90), (by_route, 2, 80)] {
        let before = server.calls("evalsha");
        let answer = ask(&app, Request::get("/report").body(Body::empty()).expect("a request")).await;
        assert_eq!((answer.status.as_u16(), answer.remaining()), (200, left));
        assert_eq!(server.calls("evalsha") - before, calls);
    }
}

#[tokio::test]
async fn every_key_has_a_ttl_no_longer_than_its_state_and_a_second() {
    let server = RedisServer::start();
    // Calendar windows last a day.
    let limits = limits(10, Duration::from_secs(4)).into_iter().filter(|limit| limit.name() != "calendar_window");
    let limiter = Limiter::builder(limits).patient().store(connect(&server).await).build();
    let mut connection = server.connection().await;
    // The fixed window ends at a multiple of 4 s, and its key expires a second later.
    while SystemTime::UNIX_EPOCH.elapsed().expect("a time after 1970").as_secs() % 4 > 1 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for round in 0..3 {
        let decision = limiter.acquire("key", 2).await.expect("a decision");
        assert!(decision.is_allowed(), "round {round}: {decision:?}");
        if round == 1 {
            limiter.refund(decision.into_receipt()).await.expect("a refund");
        }
        let decision = limiter.peek("key", 1).await.expect("a decision");
        assert_eq!(server.keys("*").len(), 8);
        for outcome in decision.outcomes() {
            let name = limiter.limits()[outcome.limit()].name();
            let mut left: Vec<i64> = Vec::new();
            for key in server.keys("*").iter().filter(|key| key.contains(&format!("}}:{name}:"))) {
                left.push(cmd("PTTL").arg(key).query_async(&mut connection).await.expect("a time to live"));
            }
            let [left] = left[..] else { panic!("{name} has {left:?}") };
            // For a bucket, up to a sixteenth of the time that it takes to refill.
            let most = outcome.reset_after().as_micros().div_ceil(1_000) as i64 + 1 + 4_000 / 16 + 1_000;
            assert!(0 < left && left <= most, "{name}: {left} ms of {most}");
        }
    }
    let gone = async {
        while !server.keys("*").is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.expect("what means nothing is gone");
}

/// Limiters of two sizes, like old and new processes, which keep a key for up to 6 s and 625 s longer.
#[tokio::test]
async fn the_ttl_of_a_busy_key_is_renewed_in_steps() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let mut connection = server.connection().await;
    let limiters = [100, 10_000].map(|tokens| {
        let bucket = TokenBucket::new(tokens, 1, Duration::from_secs(1));
        (
            u64::from(tokens) * 1_000 / 16,
            Limiter::builder(Limit::new("limit", bucket)).patient().store(store.clone()).build(),
        )
    });
    let (mut expiries, mut rounded) = (Vec::new(), 0);
    for round in 0..100 {
        let (most, limiter) = &limiters[usize::from(round % 10 == 9)];
        let decision = limiter.acquire("key", 1).await.expect("a decision");
        assert!(decision.is_allowed(), "round {round}: {decision:?}");
        let key = server.keys("*").remove(0);
        let expires = expiry_of(&key, &mut connection).await;
        let reset = decision.at().as_micros() + decision.outcomes()[0].reset_after().as_micros() as u64;
        let least = reset.div_ceil(1_000) + 1_000;
        assert!((least..=least + most).contains(&expires), "round {round}: {expires} for {least}");
        assert!(round > 0 || expires == least, "a key that is charged once lives no longer");
        rounded += u32::from(expires > least);
        expiries.push(expires);
    }
    assert!(rounded > 80, "{rounded} of 100 are rounded up");
    expiries.dedup();
    assert!((10..60).contains(&expiries.len()), "it is set {} times by 100 charges", expiries.len());
}

#[tokio::test]
async fn refunds_and_resets_restore_the_state() {
    let server = RedisServer::start();
    let limiter =
        Limiter::builder(limits(5, Duration::from_secs(3_600))).patient().store(connect(&server).await).build();

    let decision = limiter.acquire("key", 5).await.expect("a decision");
    limiter.refund(decision.into_receipt()).await.expect("a refund");
    assert_eq!(server.keys("*"), [""; 0], "what is empty is deleted");

    assert!(limiter.allows("key", 5).await);
    assert!(!limiter.allows("key", 1).await);
    assert!(limiter.allows("another", 5).await);
    limiter.reset("key").await.expect("a reset");
    assert_eq!(server.keys("*").len(), 9);
    assert!(limiter.allows("key", 5).await);
}

#[tokio::test]
async fn a_denied_request_takes_nothing_from_any_limit() {
    let server = RedisServer::start();
    let limiter =
        Limiter::builder([Limit::new("wide", FixedWindow::per_day(100)), Limit::new("narrow", SlidingLog::per_day(1))])
            .patient()
            .store(connect(&server).await)
            .build();
    assert!(limiter.allows("key", 1).await);
    for _ in 0..10 {
        let decision = limiter.acquire("key", 1).await.expect("a decision");
        assert!(!decision.is_allowed());
        assert_eq!(decision.outcomes()[0].remaining(), 99);
    }
}

/// Many tasks on two stores, like two machines.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_are_admitted_exactly_the_limit() {
    let server = RedisServer::start();
    let stores = [connect(&server).await, connect(&server).await];
    for (name, algorithm) in all(100, Duration::from_secs(86_400)) {
        let tasks: Vec<_> = (0..64)
            .map(|task| {
                let limiter =
                    Limiter::builder(Limit::new(name, algorithm)).patient().store(stores[task % 2].clone()).build();
                tokio::spawn(async move {
                    let mut allowed = 0;
                    for _ in 0..5 {
                        allowed += u32::from(limiter.allows("key", 1).await);
                    }
                    allowed
                })
            })
            .collect();
        let mut allowed = 0;
        for task in tasks {
            allowed += task.await.expect("a task");
        }
        assert_eq!(allowed, 100, "{name}");
    }
}

#[tokio::test]
async fn concurrent_requests_are_sent_in_one_call() {
    let server = RedisServer::start();
    let limiter = Limiter::builder(Limit::new("limit", FixedWindow::per_day(1_000)))
        .patient()
        .store(connect(&server).await)
        .build();
    let mut connection = server.connection().await;
    let () = cmd("CONFIG").arg("RESETSTAT").query_async(&mut connection).await.expect("a reset");
    let calls: Vec<_> = (0..200)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.acquire("key", 1).await })
        })
        .collect();
    let mut left = Vec::new();
    for call in calls {
        left.push(call.await.expect("a task").expect("a decision").outcomes()[0].remaining());
    }
    left.sort_unstable();
    assert_eq!(left, (800..1_000).collect::<Vec<_>>(), "each has an answer of its own");
    let calls = server.calls("evalsha");
    assert!(calls <= 20, "{calls} calls for 200 decisions");
}

/// Redis serves no other client during a call, so the number of charges per call is bounded.
#[tokio::test]
async fn requests_of_many_limits_share_calls_of_at_most_256_charges() {
    let server = RedisServer::start();
    let limits = (0..64).map(|limit| Limit::new(format!("limit {limit}"), FixedWindow::per_day(1_000)));
    let limiter = Limiter::builder(limits).patient().store(connect(&server).await).build();
    let mut connection = server.connection().await;
    let () = cmd("CONFIG").arg("RESETSTAT").query_async(&mut connection).await.expect("a reset");
    let calls: Vec<_> = (0..64)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.acquire("key", 1).await })
        })
        .collect();
    for call in calls {
        assert!(call.await.expect("a task").expect("a decision").is_allowed());
    }
    let decision = limiter.peek("key", 1).await.expect("a decision");
    assert!(decision.outcomes().iter().all(|outcome| outcome.remaining() == 1_000 - 64));
    let calls = server.calls("evalsha") - 1;
    assert!(calls >= 64 * 64 / 256, "{calls} calls for 64 requests of 64 limits");
    assert!(calls <= 40, "{calls} calls for 64 requests of 64 limits");
}

#[tokio::test]
async fn a_request_canceled_in_the_queue_is_not_charged_and_delays_nobody() {
    let server = RedisServer::start();
    let limiter = Limiter::builder(Limit::new("limit", FixedWindow::per_day(1_000)))
        .patient()
        .store(connect(&server).await)
        .build();
    let mut connection = server.connection().await;
    let () = cmd("CONFIG").arg("RESETSTAT").query_async(&mut connection).await.expect("a reset");
    server.pause();
    // The first fifty are sent in two calls that Redis runs when it continues. The others wait for a reply.
    let mut calls = Vec::new();
    for _ in 0..3 {
        calls.extend((0..50).map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.acquire("key", 1).await })
        }));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    calls.iter().for_each(tokio::task::JoinHandle::abort);
    for call in calls {
        assert!(call.await.is_err(), "it was given up");
    }
    server.resume();
    let begun = Instant::now();
    while server.calls("evalsha") < 2 {
        assert!(begun.elapsed() < Duration::from_secs(60), "it runs what had left");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let decision = limiter.acquire("key", 1).await.expect("a decision");
    assert_eq!(decision.outcomes()[0].remaining(), 1_000 - 50 - 1);
}

#[tokio::test]
async fn a_script_that_was_flushed_is_loaded_once_within_the_same_calls() {
    let server = RedisServer::start();
    let limiter = Limiter::builder(Limit::new("limit", FixedWindow::per_day(1_000)))
        .patient()
        .store(connect(&server).await)
        .build();
    let mut connection = server.connection().await;
    let () = cmd("SCRIPT").arg("FLUSH").query_async(&mut connection).await.expect("a flush");
    // The log contains every command. (Redis before 7.0 does not count subcommands such as `SCRIPT LOAD`.)
    for (setting, value) in [("slowlog-max-len", 10_000), ("slowlog-log-slower-than", 0)] {
        let () =
            cmd("CONFIG").arg("SET").arg(setting).arg(value).query_async(&mut connection).await.expect("a setting");
    }
    // On a loaded machine, it also contains the slow command that loaded the script when the store connected.
    let () = cmd("SLOWLOG").arg("RESET").query_async(&mut connection).await.expect("an empty log");

    let calls: Vec<_> = (0..100)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.acquire("key", 1).await })
        })
        .collect();
    for call in calls {
        assert!(call.await.expect("a task").expect("a decision").is_allowed());
    }
    assert_eq!(limiter.peek("key", 1).await.expect("a decision").outcomes()[0].remaining(), 900);
    type Entry = (u64, u64, u64, Vec<Vec<u8>>, String, String);
    let log: Vec<Entry> = cmd("SLOWLOG").arg("GET").arg(10_000).query_async(&mut connection).await.expect("a log");
    let commands: Vec<_> = log.iter().map(|(_, _, _, words, ..)| words.join(&b' ')).collect();
    assert!(commands.iter().any(|command| command.starts_with(b"EVALSHA ")), "the log has the calls");
    assert_eq!(commands.iter().filter(|command| command.starts_with(b"SCRIPT LOAD ")).count(), 1);
}

#[tokio::test]
async fn keys_of_other_applications_are_errors_and_are_kept() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let mut connection = server.connection().await;
    for (name, algorithm) in all(10, Duration::from_secs(3_600)) {
        let free = Limit::new("free", FixedWindow::per_day(10));
        let limiter = Limiter::builder([free, Limit::new(name, algorithm)]).patient().store(store.clone()).build();
        assert!(limiter.allows(name, 1).await);
        let ours = server.keys("*");
        let ours = ours.iter().find(|key| key.contains(&format!("}}:{name}:"))).expect("our key").clone();
        for wrong in ["SET", "LPUSH", "SADD"] {
            let () = cmd("DEL").arg(&ours).query_async(&mut connection).await.expect("a deletion");
            let () = cmd(wrong).arg(&ours).arg("17").query_async(&mut connection).await.expect("a write");
            let error = limiter.acquire(name, 1).await.expect_err("no decision");
            let text = format!("{error:?}");
            assert!(text.contains("WRONGTYPE") || text.contains("UNREADABLE"), "{name}: {text}");
            let kept: String = cmd("TYPE").arg(&ours).query_async(&mut connection).await.expect("a type");
            assert_ne!(kept, "none");
        }
        limiter.reset(name).await.expect("a reset");
        assert_eq!(limiter.acquire(name, 1).await.expect("a decision").outcomes()[0].remaining(), 9, "{name}");
        limiter.reset(name).await.expect("a reset");
    }
}

/// Requests with such a key fail. All others are decided.
#[tokio::test]
async fn a_key_of_another_application_fails_no_other_request() {
    let server = RedisServer::start();
    let limiter = Limiter::builder(Limit::new("limit", FixedWindow::per_day(1_000)))
        .store(connect(&server).await)
        .deadline(Duration::from_secs(30))
        .build();
    let mut connection = server.connection().await;
    for (key, wrong) in [("spoilt", "LPUSH"), ("also spoilt", "SET")] {
        let before = server.keys("*");
        assert!(limiter.allows(key, 1).await);
        let after = server.keys("*");
        let ours = after.iter().find(|key| !before.contains(key)).expect("our key");
        let () = cmd("DEL").arg(ours).query_async(&mut connection).await.expect("a deletion");
        let () = cmd(wrong).arg(ours).arg("17").query_async(&mut connection).await.expect("a write");
        for _ in 0..20 {
            let error = limiter.acquire(key, 1).await.expect_err("no decision");
            assert_eq!(error.kind(), StoreErrorKind::Failed, "{error:?}");
            assert!(limiter.peek(key, 1).await.is_err());
        }
        assert!(limiter.allows("another", 1).await);
        limiter.reset(key).await.expect("a reset");
    }
}

#[tokio::test]
async fn prefixes_and_secrets_separate_stores() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let used = |store: RedisStore| async move {
        let limiter = Limiter::builder(Limit::new("limit", FixedWindow::per_day(10))).patient().store(store).build();
        limiter.acquire("key", 1).await.expect("a decision").outcomes()[0].remaining()
    };
    assert_eq!(used(store.clone()).await, 9);
    assert_eq!(used(store.clone()).await, 8);
    assert_eq!(used(store.clone().prefix("another {one}")).await, 9);
    assert_eq!(used(store.clone().secret([7; 16])).await, 9);
    let names = server.keys("*");
    assert!(names.iter().any(|name| name.starts_with("another%20%7bone%7d:{")), "{names:?}");
}

/// A store that is connected anew, like that of another process, is the same one.
#[tokio::test]
async fn a_receipt_is_refunded_in_its_own_store() {
    let server = RedisServer::start();
    let limiter = |store: RedisStore| {
        Limiter::builder(Limit::new("limit", FixedWindow::per_day(10))).patient().store(store).build()
    };
    let (one, other) = (limiter(connect(&server).await), limiter(connect(&server).await.prefix("other")));
    let left = async |limiter: &Limiter| limiter.peek("key", 0).await.expect("a decision").outcomes()[0].remaining();
    let [first, second] = [one.acquire("key", 2).await, one.acquire("key", 3).await];
    assert!(other.allows("key", 5).await);
    other.refund(first.expect("a decision").into_receipt()).await.expect_err("nothing is refunded");
    assert_eq!((left(&one).await, left(&other).await), (5, 5));
    let same = limiter(connect(&server).await);
    same.refund(second.expect("a decision").into_receipt()).await.expect("a refund");
    assert_eq!((left(&one).await, left(&other).await), (8, 5));
}

/// As in memory, the count of a window means nothing to a window of another length.
#[tokio::test]
async fn another_period_starts_unused() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    for ((name, long), (_, longer)) in all(5, DAY).into_iter().zip(all(5, 7 * DAY)) {
        let left = async |algorithm: Algorithm, cost: u64| {
            let limiter = Limiter::builder(Limit::new(name, algorithm)).patient().store(store.clone()).build();
            limiter.acquire("key", cost).await.expect("a decision").outcomes()[0].remaining()
        };
        assert_eq!(left(long, 3).await, 2, "{name}");
        assert_eq!(left(longer, 1).await, 4, "{name}");
        assert_eq!(left(long, 0).await, 2, "{name}");
    }
}

/// A bucket that refills at intervals drains within 142 years in whole intervals, its overage included.
#[tokio::test]
async fn an_override_has_as_much_overage_as_in_memory() {
    let server = RedisServer::start();
    let stores: [Arc<dyn Store>; 2] = [Arc::new(MemoryStore::new()), Arc::new(connect(&server).await)];
    let sizes = [(1_000, 142_000, 142_100), (30_157_471, 4_000_000_000, 4_290_000_000)];
    for (store, (amount, tokens, more)) in stores.iter().flat_map(|store| sizes.map(|size| (store, size))) {
        let size = |tokens| TokenBucket::new(tokens, amount, 366 * DAY).at_intervals();
        let limit = Limit::new(format!("limit of {amount}"), size(amount)).overridable();
        // The process that sets the override has no overage.
        let [hard, soft] = [limit.clone(), limit.clone().soft(20)]
            .map(|limit| Limiter::builder([limit]).patient().store(store.clone()).build());
        let handle = hard.limit(limit.name()).expect("a limit");
        handle.set_override("ann", size(tokens), None).await.expect("an override");
        for (cost, is_allowed) in [(more, false), (tokens.into(), true)] {
            let decision = soft.acquire("ann", cost).await.expect("a decision");
            assert_eq!(decision.is_allowed(), is_allowed, "a cost of {cost}");
        }
    }
}

#[tokio::test]
async fn connection_errors_state_the_reason() {
    let error = RedisStore::connect("http://localhost").await.expect_err("no connection");
    assert!(format!("{error:?}").contains("redis://host:port"), "{error:?}");
    let error = RedisStore::connect("redis://127.0.0.1:1").await.expect_err("no connection");
    assert!(format!("{error:?}").contains("no connection to Redis"), "{error:?}");
    // The address, without secrets.
    let error = RedisStore::connect("redis://ann:h1dden@127.0.0.1:1/3").await.expect_err("no connection");
    let text = error.to_string();
    let expected = "the rate limit store at 127.0.0.1:1 can't be used: there is no connection to Redis: Redis can't be reached: check";
    assert!(text.starts_with(expected), "{text}");
    assert_eq!(text, format!("{error:?}"));
    assert!(text.contains("refused") && !text.contains("h1dden"), "{text}");
    assert_eq!(text.matches("refused").count(), 1, "{text}");
    for config in [
        RedisConfig::cluster(["redis://:h1dden@127.0.0.1:1", "redis://127.0.0.1:2"]),
        RedisConfig::sentinel("mymaster", ["redis://:h1dden@127.0.0.1:1", "redis://:h1dden@127.0.0.1:2"]),
    ] {
        let text = format!("{:?}", config.connect().await.expect_err("no connection"));
        assert!(text.contains("127.0.0.1:1, 127.0.0.1:2 can't be used: "), "{text}");
        assert!(!text.contains("h1dden"), "{text}");
    }
    let error = RedisConfig::node("redis://127.0.0.1:1").connections(0).connect_lazily().expect_err("rejected");
    assert!(error.to_string().starts_with("the rate limit store can't be used: "), "{error}");
}

/// Prints the memory of keys as documented in `src/guide/redis.md`, and fails if it has grown.
#[tokio::test]
async fn keys_are_small() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let mut connection = server.connection().await;
    for (name, algorithm) in all(200, Duration::from_secs(3_600)) {
        let limiter = Limiter::builder(Limit::new("limit", algorithm)).patient().store(store.clone()).build();
        let mut sizes = Vec::new();
        for _ in 0..100 {
            assert!(limiter.allows("key", 1).await);
            let key = server.keys("*").remove(0);
            let size: u64 = cmd("MEMORY").arg("USAGE").arg(key).query_async(&mut connection).await.expect("a size");
            sizes.push(size);
        }
        println!("{name}: {} bytes after 1 request, {} after 100", sizes[0], sizes[99]);
        let most = if name == "sliding_log" { 2_600 } else { 240 };
        assert!(sizes[99] <= most, "{name}: {sizes:?}");
        limiter.reset("key").await.expect("a reset");
    }
}
