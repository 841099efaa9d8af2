//! The use of Redis by penalties.

use std::time::Duration;

use deadpool_redis::redis::cmd;
use support::calls::Calls;
use support::event_log::EventLog;
use support::limits::{Patient, acquire_costs};
use support::redis_server::RedisServer;
use support::store_fixture::connect;
use support::time::{DAY, LONGEST, MINUTE, SECOND};
use tower_ratelimit::{Builder, FixedWindow, Limit, Limiter, Penalty, RedisStore, TokenBucket};

/// Returns a store that remembers denials for longer than a test takes.
async fn store(server: &RedisServer) -> RedisStore {
    connect(server).await.remember_denials(10 * MINUTE)
}

fn limiter(store: RedisStore, limits: impl IntoIterator<Item = Limit>) -> Builder {
    Limiter::builder(limits).store(store).patient()
}

fn one(penalty: Penalty) -> Limit {
    Limit::new("one", FixedWindow::new(1, LONGEST)).penalty(penalty)
}

/// Each denial reaches Redis until the key is locked out. After that, the lockout is cached.
#[tokio::test]
async fn denials_count_until_the_lockout_which_is_cached() {
    let server = RedisServer::start();
    let limiter = limiter(store(&server).await, one(Penalty::after(5, DAY).locked_out_for(DAY))).build();
    let ask = async || limiter.acquire("key", 1).await.unwrap();
    let before = server.calls("evalsha");
    assert!(ask().await.is_allowed());
    for _ in 0..4 {
        assert!(!ask().await.is_locked_out());
    }
    assert!(ask().await.is_locked_out());
    assert_eq!(server.calls("evalsha") - before, 6, "one round trip for each");
    for _ in 0..100 {
        assert!(ask().await.is_locked_out());
    }
    assert_eq!(server.calls("evalsha") - before, 7, "the first denial by the lockout is remembered");
    limiter.reset("key").await.unwrap();
    assert!(ask().await.is_allowed(), "a reset by this process counts at once");
}

/// The end is exact, although the clock of Redis runs on while the lockout is cached.
#[tokio::test]
async fn a_cached_lockout_ends_on_time() {
    let server = RedisServer::start();
    let limit = Limit::new("bucket", TokenBucket::new(1, 1, Duration::from_millis(10)));
    let penalty = Penalty::after(1, SECOND).locked_out_for(3 * SECOND);
    let limiter = limiter(store(&server).await, limit.penalty(penalty)).build();
    let ask = async || limiter.acquire("key", 1).await.unwrap();
    while !ask().await.is_locked_out() {}
    let mut wait = 3 * SECOND;
    for _ in 0..50 {
        let next = ask().await.retry_after().expect("the lockout has not ended");
        assert!(next <= wait, "{next:?} after {wait:?}");
        wait = next;
    }
    // After the announced wait, a request is allowed, regardless of the denied ones in between.
    tokio::time::sleep(wait).await;
    assert!(ask().await.is_allowed());
}

#[tokio::test]
async fn processes_count_together() {
    let server = RedisServer::start();
    let limit = one(Penalty::after(4, DAY).locked_out_for(DAY));
    let limiters = [store(&server).await, store(&server).await].map(|store| limiter(store, limit.clone()).build());
    let mut decided = Vec::new();
    for n in [0, 0, 1, 0, 1, 0, 1] {
        let decision = limiters[n].acquire("key", 1).await.unwrap();
        decided.push((decision.is_allowed(), decision.is_locked_out()));
    }
    let [allowed, denied, locked_out] = [(true, false), (false, false), (false, true)];
    assert_eq!(decided, [allowed, denied, denied, denied, locked_out, locked_out, locked_out]);
}

/// Of concurrent requests, each denial is a strike, and one begins the lockout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_concurrent_denials_begins_the_lockout() {
    let server = RedisServer::start();
    let events = EventLog::default();
    let limiter = limiter(store(&server).await, one(Penalty::after(20, DAY).locked_out_for(DAY)));
    let limiter = limiter.observe(events.observer()).build();
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
    assert_eq!(events.take(), ["one 1 86400s"]);
}

/// A penalty takes one more key, from the first strike on. Limits without penalties take none.
#[tokio::test]
async fn a_limit_without_a_penalty_costs_nothing_more() {
    let server = RedisServer::start();
    let store = store(&server).await.remember_denials(Duration::ZERO);
    let plain = limiter(store.clone(), Limit::new("plain", FixedWindow::new(1, LONGEST))).build();
    let with_penalty = limiter(store, one(Penalty::after(5, MINUTE).locked_out_for(MINUTE))).build();
    let commands_of = async |limiter: &Limiter| {
        let calls = || ["get", "set", "evalsha"].map(|command| server.calls(command));
        let before = calls();
        for _ in 0..4 {
            let _ = limiter.acquire("key", 1).await.unwrap();
        }
        let after = calls();
        ([0, 1, 2].map(|command| after[command] - before[command]), server.keys("*").len())
    };
    assert_eq!(commands_of(&plain).await, ([4, 1, 4], 1));
    // The second and the third strike do not move the expiry of the strikes, so they set a part of the key only.
    assert_eq!(commands_of(&with_penalty).await, ([8, 1 + 1, 4], 3));
    let [of_penalty] = server.keys("*:p").try_into().unwrap();
    assert_eq!(server.ask::<usize>(cmd("STRLEN").arg(&of_penalty)), 22);
    let left: i64 = server.ask(cmd("PTTL").arg(&of_penalty));
    assert!((1..=61_000).contains(&left), "{left} ms, of strikes that count for a minute");
    with_penalty.reset("key").await.unwrap();
    assert_eq!(server.keys("*").len(), 1);
}

/// A key with another value is an error of its own request only, and not of others in the same call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreadable_key_fails_no_other_request() {
    let server = RedisServer::start();
    let store = store(&server).await.remember_denials(Duration::ZERO);
    let two = Limit::new("two", FixedWindow::new(2, DAY)).penalty(Penalty::after(2, DAY));
    let limiter = limiter(store, [one(Penalty::after(1, DAY)), two]).build();
    for _ in 0..2 {
        let _ = limiter.acquire("broken", 1).await.unwrap();
    }
    server.ask::<()>(cmd("SET").arg(&server.keys("*:one:*:p")[0]).arg("something else").arg("EX").arg(600));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..60 {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            match n % 3 {
                0 => assert!(limiter.acquire("broken", 1).await.is_err()),
                _ => assert!(limiter.allows(n, 1).await),
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
    let store = store(&server).await;
    let small = Limit::new("small", FixedWindow::new(1, LONGEST));
    let large = Limit::new("large", FixedWindow::new(5, LONGEST)).penalty(Penalty::after(1, DAY).locked_out_for(DAY));
    let alone = limiter(store.clone(), large.clone()).build();
    let limiter = limiter(store, [small, large]).build();
    let ask = async |costs: [u64; 2]| acquire_costs(&limiter, "key", &costs).await.unwrap();
    assert!(ask([1, 1]).await.is_allowed());
    let deny_50 = async |is_locked_out| {
        let before = server.calls("evalsha");
        for _ in 0..50 {
            let decision = ask([1, 1]).await;
            assert_eq!((decision.is_allowed(), decision.is_locked_out()), (false, is_locked_out));
        }
        server.calls("evalsha") - before
    };
    assert_eq!(deny_50(false).await, 1, "a flood does not reach Redis");
    assert!(alone.allows("key", 4).await);
    assert!(ask([1, 1]).await.is_locked_out(), "both deny now, and one denial is enough");
    assert_eq!(deny_50(true).await, 1);
}
