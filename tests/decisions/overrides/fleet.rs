//! Several processes on one Redis: each sees the overrides of another at its next decision, in as few calls as
//! possible.

use std::time::{Duration, Instant};

use deadpool_redis::redis::cmd;
use support::calls::Calls;
use support::limits::{Patient, all};
use support::redis_server::{RedisServer, wait_until};
use support::store_fixture::{connect, midnight};
use support::time::LONGEST;
use tower_ratelimit::{
    DecidedBy, FixedWindow, Limit, Limiter, OnStoreError, RedisStore, Share, SlidingLog, StoreErrorKind,
};

use crate::overrides::{first, holding, left, set};

fn window(limit: u32) -> FixedWindow {
    FixedWindow::new(limit, LONGEST)
}

fn limiter(store: RedisStore, limit: Limit) -> Limiter {
    Limiter::builder(limit.overridable()).patient().store(store).build()
}

async fn node(server: &RedisServer) -> Limiter {
    limiter(connect(server).await, Limit::new("daily", window(100)))
}

/// Returns the number of script calls of an operation.
async fn taking<T>(server: &RedisServer, of: impl Future<Output = T>) -> (u64, T) {
    let before = server.calls("evalsha");
    let result = of.await;
    (server.calls("evalsha") - before, result)
}

#[tokio::test]
async fn the_next_decision_of_any_node_uses_the_override() {
    let server = RedisServer::start();
    let [one, other] = [node(&server).await, node(&server).await];
    for node in [&one, &other] {
        assert_eq!(left(node, "42").await, 100);
    }
    set(&one, "42", window(200)).await;
    // The script applies it, also for the process that has not set it.
    assert_eq!(taking(&server, left(&one, "42")).await, (1, 200));
    assert_eq!(taking(&server, left(&other, "42")).await, (1, 200));
    for (node, left_then) in [(&one, 200), (&other, 199)] {
        assert_eq!(taking(&server, left(node, "42")).await, (1, left_then));
        assert_eq!(taking(&server, node.allows("42", 1)).await, (1, true));
    }
    set(&one, "42", window(50)).await;
    assert_eq!(taking(&server, left(&other, "42")).await, (1, 48));
    first(&one).remove_override("42").await.unwrap();
    for node in [&one, &other] {
        assert_eq!(taking(&server, left(node, "42")).await, (1, 98));
    }
    // A new node.
    set(&one, "42", window(300)).await;
    let new = node(&server).await;
    assert_eq!(first(&new).get_override("42").await.unwrap().unwrap().algorithm, window(300).into());
    assert_eq!(taking(&server, left(&new, "42")).await, (1, 298));
}

/// Keys without overrides take one call each, and leave only their state in Redis.
#[tokio::test]
async fn a_flood_of_new_keys_costs_no_more_than_without_overrides() {
    let server = RedisServer::start();
    let node = node(&server).await;
    set(&node, "42", window(200)).await;
    let flood = async {
        for n in 0..500_u64 {
            assert!(node.allows(n, 1).await);
        }
    };
    assert_eq!(taking(&server, flood).await.0, 500);
    assert_eq!(server.ask::<u64>(&cmd("DBSIZE")), 501);
    // The flood has not evicted known overrides, either.
    assert_eq!(taking(&server, left(&node, "42")).await, (1, 200));
}

#[tokio::test]
async fn an_override_expires_by_the_clock_of_redis() {
    let server = RedisServer::start();
    let [one, other] = [node(&server).await, node(&server).await];
    let span = Duration::from_millis(400);
    let before = Instant::now();
    first(&one).set_override("42", window(200), Some(span)).await.unwrap();
    let set = Instant::now();
    let mut seen = [0, 0];
    loop {
        let asked = Instant::now();
        let are = [left(&one, "42").await, left(&other, "42").await];
        let answered = Instant::now();
        for (seen, is) in seen.iter_mut().zip(are) {
            assert!(matches!(is, 100 | 200));
            // Within these bounds on any machine.
            assert!(is == 100 || asked < set + span + Duration::from_millis(1), "it holds for too long");
            assert!(is == 200 || answered + Duration::from_millis(1) > before + span, "it holds too short");
            *seen += usize::from(is == 200);
        }
        if are == [100, 100] {
            break;
        }
    }
    assert!(seen.iter().all(|seen| *seen > 0), "{seen:?}");
    wait_until("Redis removes the override by itself", || server.keys("*").is_empty());
}

/// The process that sets an override clears its cached denials. Another node keeps them for their lifetime.
#[tokio::test]
async fn an_override_ends_cached_denials_here_at_once_and_elsewhere_later() {
    let server = RedisServer::start();
    for (name, small) in all(5, LONGEST) {
        let [long, short] = [600_000, 200].map(Duration::from_millis);
        let node =
            async |remembered| limiter(connect(&server).await.remember_denials(remembered), Limit::new(name, small));
        let [one, other] = [node(long).await, node(short).await];
        for _ in 0..5 {
            assert!(one.allows("42", 1).await, "{name}");
        }
        for node in [&one, &other] {
            assert!(!node.allows("42", 1).await, "{name}");
        }
        let (asked, denied) = taking(&server, one.allows("42", 1)).await;
        assert_eq!((asked, denied), (0, false), "{name}: a denial is remembered");
        set(&one, "42", holding(small, 50)).await;
        assert!(one.allows("42", 1).await, "{name}");
        let set = Instant::now();
        while !other.allows("42", 1).await {
            assert!(set.elapsed() < Duration::from_secs(20), "{name}: it is denied on and on");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // After the removal of the larger size, the cached denial ends, and the smaller size denies.
        first(&one).remove_override("42").await.unwrap();
        assert!(!one.allows("42", 1).await, "{name}");
    }
}

/// Of the requests of one call, only some must be repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_request_of_a_call_is_decided_by_its_own_size() {
    let server = RedisServer::start();
    let sizes = |customer: u32| if customer.is_multiple_of(3) { 100 } else { 10 + customer };
    let node = node(&server).await;
    for customer in (0..32_u32).filter(|customer| sizes(*customer) != 100) {
        first(&node).set_override(customer, window(sizes(customer)), None).await.unwrap();
    }
    let cold = self::node(&server).await;
    let (made, taken) = taking(&server, async {
        let mut tasks = tokio::task::JoinSet::new();
        for customer in 0..32_u32 {
            for _ in 0..4 {
                let cold = cold.clone();
                tasks.spawn(async move {
                    let mut allowed = 0;
                    for _ in 0..40 {
                        allowed += u32::from(cold.allows(customer, 1).await);
                    }
                    (customer, allowed)
                });
            }
        }
        let mut taken = [0; 32];
        for (customer, allowed) in tasks.join_all().await {
            taken[customer as usize] += allowed;
        }
        taken
    })
    .await;
    for (customer, taken) in (0..32).zip(taken) {
        assert_eq!(taken, sizes(customer).min(160), "customer {customer}");
    }
    assert!(made < 32 * 160, "{made} calls: none was shared");
}

#[tokio::test]
async fn a_restart_without_persistence_resets_limits() {
    let mut server = RedisServer::start();
    let node = node(&server).await;
    set(&node, "42", window(200)).await;
    assert_eq!(left(&node, "42").await, 200);
    server.restart();
    let until = Instant::now() + Duration::from_secs(20);
    let left = loop {
        match node.peek("42", 1).await {
            Ok(decision) => break decision.outcomes()[0].remaining(),
            Err(error) => assert!(Instant::now() < until, "{error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(left, 100);
}

/// During an outage of Redis, keys have a share of the limit's own size.
#[tokio::test]
async fn a_local_decision_uses_no_override() {
    let mut server = RedisServer::start();
    let limit = || Limit::new("daily", window(100)).on_store_error(OnStoreError::DecideLocally(Share::one_of(2)));
    let store = connect(&server).await.clock(midnight());
    set(&limiter(store.clone(), limit()), "42", window(200)).await;
    let limiter = limiter(store, limit());
    assert_eq!(left(&limiter, "42").await, 200);
    server.stop();
    let local = async |key: &str| {
        let decision = limiter.acquire(key, 1).await.unwrap();
        assert_eq!(decision.decided_by(), DecidedBy::Local);
        let left = decision.outcomes()[0].remaining();
        limiter.refund(decision.into_receipt()).await.unwrap();
        assert_eq!(limiter.left(key).await, [left + 1], "{key} is given back");
        left
    };
    assert_eq!((local("42").await, local("43").await), (49, 49));
}

#[tokio::test]
async fn an_unreadable_override_fails_only_its_own_key() {
    let server = RedisServer::start();
    let node = node(&server).await;
    set(&node, "42", window(200)).await;
    let key = server.keys("*:override");
    for garbage in ["", "garbage", "eighteen bytes, no", "a text that is somewhat longer than that"] {
        server.ask::<()>(cmd("SET").arg(&key[0]).arg(garbage));
        let error = node.peek("42", 1).await.expect_err(garbage);
        assert_eq!(error.kind(), StoreErrorKind::Failed);
        first(&node).get_override("42").await.expect_err(garbage);
        assert_eq!(left(&node, "43").await, 100);
    }
    server.ask::<()>(cmd("DEL").arg(&key[0]));
    server.ask::<()>(cmd("LPUSH").arg(&key[0]).arg("a list"));
    node.peek("42", 1).await.unwrap_err();
    // Removing or setting the override again repairs it.
    first(&node).remove_override("42").await.unwrap();
    assert_eq!(left(&node, "42").await, 100);
}

/// Stores with different prefixes share no overrides.
#[tokio::test]
async fn prefixes_keep_overrides_apart() {
    let server = RedisServer::start();
    let store = connect(&server).await;
    let [shop, blog] = ["shop", "blog"]
        .map(|prefix| limiter(store.clone().prefix(prefix), Limit::new("log", SlidingLog::new(9, LONGEST))));
    set(&shop, "42", SlidingLog::new(20, LONGEST)).await;
    assert_eq!((left(&shop, "42").await, left(&blog, "42").await), (20, 9));
}
