//! Overrides that change during concurrent decisions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::Request;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tower_ratelimit::{FixedWindow, Limit, MemoryStore, RateLimitLayer, Store, key};

use support::answer::ask;
use support::patient::Patient;
use support::redis_server::RedisServer;
use support::store_fixture::connect;
use support::time::LONGEST as LONG;

/// Each decision applies a single size. By their sizes and remaining tokens, the allowed requests were the first, the
/// second and so on, and none was the 301st of 300.
async fn race(stores: [Arc<dyn Store>; 2]) {
    let limit = || [Limit::new("daily", FixedWindow::new(200, LONG)).by(key::header("x-customer")).overridable()];
    let layers = stores.map(|store| RateLimitLayer::builder(limit()).store(store).patient().build());
    let overrides = layers[0].limit("daily").unwrap();
    let apps = layers.map(|layer| Router::new().route("/", get(async || "")).layer(layer));
    let is_over = Arc::new(AtomicBool::new(false));
    // Requests start after the first override is set.
    let start = Arc::new(Barrier::new(65));

    let mut tasks = JoinSet::new();
    for task in 0..64 {
        let (app, start) = (apps[task % 2].clone(), start.clone());
        tasks.spawn(async move {
            start.wait().await;
            let mut seen = Vec::new();
            for _ in 0..12 {
                let request = Request::get("/").header("x-customer", "42").body(Body::empty()).unwrap();
                let answer = ask(&app, request).await;
                let size = answer.policies()[0].get("q").unwrap();
                seen.push((!answer.is_denied(), size, answer.remaining()));
            }
            seen
        });
    }
    let over = is_over.clone();
    let setter = tokio::spawn(async move {
        overrides.set_override("42", FixedWindow::new(100, LONG), None).await.unwrap();
        start.wait().await;
        while !over.load(Ordering::Relaxed) {
            for size in [100, 300, 200] {
                match size {
                    200 => overrides.remove_override("42").await.unwrap(),
                    _ => overrides.set_override("42", FixedWindow::new(size, LONG), None).await.unwrap(),
                }
                tokio::task::yield_now().await;
            }
        }
    });
    let seen: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    is_over.store(true, Ordering::Relaxed);
    setter.await.unwrap();

    assert!(seen.iter().all(|(_, size, _)| [100, 200, 300].contains(size)), "{seen:?}");
    let mut taken: Vec<i64> = seen.iter().filter(|(allowed, ..)| *allowed).map(|(_, size, left)| size - left).collect();
    taken.sort_unstable();
    assert!(taken.len() >= 100, "only {} of 768 were allowed", taken.len());
    let expected: Vec<i64> = (1..=taken.len() as i64).collect();
    assert_eq!(taken, expected, "each takes the next token");
    assert!(taken.len() <= 300, "{} of at most 300 were allowed", taken.len());
    for (allowed, size, left) in &seen {
        assert!(if *allowed { *left >= 0 && left < size } else { *left == 0 }, "{allowed} {size} {left}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_overrides_in_memory_never_mix_sizes() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    race([store.clone(), store]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_overrides_on_redis_never_mix_sizes() {
    let server = RedisServer::start();
    // Changes may come between any two calls, so a request may have to be repeated more often than allowed.
    let store = async || connect(&server).await.remember_denials(Duration::ZERO);
    let [one, other] = [store().await, store().await];
    race([Arc::new(one), Arc::new(other)]).await;
}
