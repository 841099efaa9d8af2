//! The use of Redis by penalties.

use std::time::Duration;

use deadpool_redis::redis::cmd;
use support::limits::acquire_costs;
use tower_ratelimit::{Builder, FixedWindow, Limit, Limiter, Penalty, RedisConfig, RedisStore, TokenBucket};

use crate::penalties::backend::{DAY, MINUTE, SECOND};
use support::limits::Patient;
use support::redis_server::RedisServer;

async fn store(server: &RedisServer) -> RedisStore {
    RedisConfig::node(server.url()).patient().connect().await.unwrap()
}

fn limiter(store: RedisStore, limit: Limit) -> Builder {
    Limiter::builder([limit]).store(store).patient()
}

fn calls(server: &RedisServer, command: &str) -> u64 {
    let stats: String = server.ask(cmd("INFO").arg("commandstats"));
    let calls = stats.split(&format!("cmdstat_{command}:calls=")).nth(1).and_then(|calls| calls.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}

fn one(penalty: Penalty) -> Limit {
    Limit::new("one", FixedWindow::new(1, 366 * DAY)).penalty(penalty)
}

/// Each denial reaches Redis until the key is locked out. After that, the lockout is cached.
#[tokio::test]
async fn denials_count_until_the_lockout_which_is_cached() {
    let server = RedisServer::start();
    let store = store(&server).await.remember_denials(Duration::from_secs(600));
    let limiter = limiter(store, one(Penalty::after(5, DAY).locked_out_for(DAY))).build();
    let ask = async || limiter.acquire("key", 1).await.unwrap();
    let before = calls(&server, "evalsha");
    assert!(ask().await.is_allowed());
    for _ in 0..4 {
        assert!(!ask().await.is_locked_out());
    }
    assert!(ask().await.is_locked_out());
    assert_eq!(calls(&server, "evalsha") - before, 6, "one round trip for each");
    for _ in 0..100 {
        assert!(ask().await.is_locked_out());
    }
    let after = calls(&server, "evalsha") - before;
    assert_eq!(after, 7, "the first that is refused is remembered");
    limiter.reset("key").await.unwrap();
    assert!(ask().await.is_allowed(), "what this process resets counts at once");
}

/// The end is exact, although the clock of Redis runs on while the lockout is cached.
#[tokio::test]
async fn a_cached_lockout_ends_on_time() {
    let server = RedisServer::start();
    let store = store(&server).await.remember_denials(Duration::from_secs(600));
    let limit = Limit::new("bucket", TokenBucket::new(1, 1, Duration::from_millis(10)));
    let limiter =
        limiter(store, limit.penalty(Penalty::after(1, SECOND).locked_out_for(Duration::from_secs(3)))).build();
    let ask = async || limiter.acquire("key", 1).await.unwrap();
    while !ask().await.is_locked_out() {}
    let mut reported = 0;
    // After the announced wait, a request is allowed, regardless of denied ones in between.
    loop {
        let decision = ask().await;
        let wait = decision.retry_after().expect("the refusal goes on");
        assert!(wait <= Duration::from_secs(3), "{wait:?}");
        reported += 1;
        if reported > 50 {
            tokio::time::sleep(wait).await;
            assert!(ask().await.is_allowed());
            break;
        }
    }
}

#[tokio::test]
async fn processes_count_together() {
    let server = RedisServer::start();
    let limit = one(Penalty::after(4, DAY).locked_out_for(DAY));
    let limiters = [limiter(store(&server).await, limit.clone()).build(), limiter(store(&server).await, limit).build()];
    assert!(limiters[0].acquire("key", 1).await.unwrap().is_allowed());
    for n in 0..3 {
        assert!(!limiters[n % 2].acquire("key", 1).await.unwrap().is_locked_out());
    }
    assert!(limiters[1].acquire("key", 1).await.unwrap().is_locked_out());
    for limiter in limiters {
        assert!(limiter.acquire("key", 1).await.unwrap().is_locked_out());
    }
}

/// Of concurrent requests, each denial is a strike, and one begins the lockout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_concurrent_denials_begins_the_lockout() {
    let server = RedisServer::start();
    let began = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let noted = began.clone();
    let limiter = limiter(store(&server).await, one(Penalty::after(20, DAY).locked_out_for(DAY)));
    let limiter = limiter
        .observe(move |event| {
            if let tower_ratelimit::Event::PenaltyBegan { .. } = event {
                noted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        })
        .build();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..64 {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            let decision = limiter.acquire("key", 1).await.unwrap();
            (decision.is_allowed(), decision.is_locked_out())
        });
    }
    let answers = tasks.join_all().await;
    let count = |wanted| answers.iter().filter(|answer| **answer == wanted).count();
    assert_eq!((count((true, false)), count((false, false)), count((false, true))), (1, 19, 44));
    assert_eq!(began.load(std::sync::atomic::Ordering::Relaxed), 1);
}

/// A penalty takes one more key, from the first strike on. Limits without penalties take none.
#[tokio::test]
async fn a_limit_without_a_penalty_costs_nothing_more() {
    let server = RedisServer::start();
    let store = store(&server).await.remember_denials(Duration::ZERO);
    let plain = limiter(store.clone(), Limit::new("plain", FixedWindow::new(1, 366 * DAY))).build();
    let with_penalty = limiter(store, one(Penalty::after(5, MINUTE).locked_out_for(MINUTE))).build();
    let keys = || server.ask::<Vec<String>>(cmd("KEYS").arg("*"));
    let commands_of = async |limiter: &Limiter| {
        let before = (calls(&server, "get"), calls(&server, "set"), calls(&server, "evalsha"));
        for _ in 0..4 {
            let _ = limiter.acquire("key", 1).await.unwrap();
        }
        let after = (calls(&server, "get"), calls(&server, "set"), calls(&server, "evalsha"));
        (after.0 - before.0, after.1 - before.1, after.2 - before.2)
    };
    assert_eq!(commands_of(&plain).await, (4, 1, 4));
    assert_eq!(keys().len(), 1);
    // The second and the third strike do not move the expiry of the strikes, so they set a part of the key only.
    assert_eq!(commands_of(&with_penalty).await, (8, 1 + 1, 4));
    assert_eq!(keys().len(), 3);
    let of_penalty: Vec<String> = keys().into_iter().filter(|key| key.ends_with(":p")).collect();
    let [of_penalty] = of_penalty.as_slice() else { panic!("{of_penalty:?}") };
    assert_eq!(server.ask::<usize>(cmd("STRLEN").arg(of_penalty)), 22);
    let left: i64 = server.ask(cmd("PTTL").arg(of_penalty));
    assert!((1..=61_000).contains(&left), "{left} ms, of strikes that count for a minute");
    with_penalty.reset("key").await.unwrap();
    assert_eq!(keys().len(), 1);
}

/// A key with another value is an error of its own request only, and not of others in the same call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreadable_key_fails_no_other_request() {
    let server = RedisServer::start();
    let store = store(&server).await.remember_denials(Duration::ZERO);
    let limits =
        || [one(Penalty::after(1, DAY)), Limit::new("two", FixedWindow::new(2, DAY)).penalty(Penalty::after(2, DAY))];
    let limiter = Limiter::builder(limits()).store(store).patient().build();
    for _ in 0..2 {
        let _ = limiter.acquire("broken", 1).await.unwrap();
    }
    let keys: Vec<String> = server.ask(cmd("KEYS").arg("*:one:*:p"));
    server.ask::<()>(cmd("SET").arg(&keys[0]).arg("something else").arg("EX").arg(600));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..60 {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            match n % 3 {
                0 => assert!(limiter.acquire("broken", 1).await.is_err()),
                _ => assert!(limiter.acquire(n, 1).await.unwrap().is_allowed()),
            }
        });
    }
    tasks.join_all().await;
}

/// A denial by another limit is cached while the limit with the penalty has capacity. Charges of this process to the
/// latter count at once, and the next denial is a strike.
#[tokio::test]
async fn a_cached_denial_of_another_limit_does_not_hide_a_strike() {
    let server = RedisServer::start();
    let store = store(&server).await.remember_denials(Duration::from_secs(600));
    let small = Limit::new("small", FixedWindow::new(1, 366 * DAY));
    let large = Limit::new("large", FixedWindow::new(5, 366 * DAY)).penalty(Penalty::after(1, DAY).locked_out_for(DAY));
    let alone = limiter(store.clone(), large.clone()).build();
    let limiter = Limiter::builder([small, large]).store(store).patient().build();
    let ask = async |costs: [u64; 2]| acquire_costs(&limiter, "key", &costs).await.unwrap();
    assert!(ask([1, 1]).await.is_allowed());
    let before = calls(&server, "evalsha");
    for _ in 0..50 {
        assert!(!ask([1, 1]).await.is_locked_out());
    }
    assert_eq!(calls(&server, "evalsha") - before, 1, "a flood does not reach Redis");
    assert!(alone.acquire("key", 4).await.unwrap().is_allowed());
    assert!(ask([1, 1]).await.is_locked_out(), "both deny now, and one is all that it takes");
    let before = calls(&server, "evalsha");
    for _ in 0..50 {
        assert!(ask([1, 1]).await.is_locked_out());
    }
    assert_eq!(calls(&server, "evalsha") - before, 1);
}
