//! Outages of a single server.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use deadpool_redis::redis::{cmd, pipe};
use tokio::runtime::Handle;
use tower_ratelimit::{BreakerState, CircuitBreaker, Event, RedisConfig};

use crate::connections::{charge, charged, connect, limiter, resume, short_deadline, until};
use support::patient::{Patient, connected};
use support::proxy::Proxy;
use support::redis_server::{Folder, RedisServer};

#[tokio::test]
async fn a_restarted_server_is_used_again() {
    let mut server = RedisServer::start();
    let limiter = limiter(connect(&server).await).build();
    for _ in 0..100 {
        charge(&limiter).await;
    }
    server.stop();
    let mut text = String::new();
    for _ in 0..20 {
        text = format!("{:?}", limiter.acquire("key", 1).await.expect_err("no server"));
    }
    assert!(text.contains("no connection to Redis: Redis can't be reached"), "{text}");
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    server.start_again();
    println!("restarted: {:?}", resume(&limiter).await);
    assert!((1..100).contains(&charged(&limiter).await), "the server is empty");
}

#[tokio::test]
async fn cut_connections_neither_lose_nor_repeat_charges() {
    let server = RedisServer::start();
    let limiter = limiter(connect(&server).await).build();
    let () = server.ask(cmd("CONFIG").arg("RESETSTAT"));
    let (mut answered, mut failed) = (0, 0);
    for n in 0..600 {
        if n % 20 == 0 {
            // Calls in flight are cut, too.
            let calls: Vec<_> = (0..5)
                .map(|_| limiter.clone())
                .map(|it| tokio::spawn(async move { it.acquire("key", 1).await }))
                .collect();
            // Until the workers have sent them.
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            let _: u32 = server.ask(cmd("CLIENT").arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]));
            for call in calls {
                match call.await.expect("a task") {
                    Ok(_) => answered += 1,
                    Err(_) => failed += 1,
                }
            }
        }
        match limiter.acquire("key", 1).await {
            Ok(_) => answered += 1,
            Err(_) => failed += 1,
        }
    }
    let ran = server.calls("evalsha");
    let charged = charged(&limiter).await;
    println!("{answered} answered, {failed} failed, {charged} charged in {ran} calls");
    assert!(ran <= charged, "requests share calls");
    assert!(failed > 0 && answered > 600, "{failed} failed, {answered} were answered");
    assert!(
        (answered..=answered + failed).contains(&charged),
        "{charged} charged, {answered} answered, {failed} failed"
    );
}

/// Calls of one connection continue on the other one.
#[tokio::test]
async fn a_cut_connection_fails_only_its_own_requests() {
    let server = RedisServer::start();
    let limiter = limiter(connect(&server).await).build();
    for _ in 0..4 {
        charge(&limiter).await;
    }
    let clients: String = server.ask(cmd("CLIENT").arg("LIST"));
    let ours = clients.lines().find(|client| client.contains("cmd=evalsha")).expect("a connection of ours");
    let id = ours.split(['=', ' ']).nth(1).expect("its id");
    let _: u32 = server.ask(cmd("CLIENT").arg(&["KILL", "ID", id]));
    let mut failed = 0;
    for _ in 0..50 {
        failed += u32::from(limiter.acquire("key", 1).await.is_err());
    }
    assert!(failed <= 1, "{failed} failed");
}

/// The requests on the cut connection fail. Others do not, because the other connection works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connection_under_load_does_not_open_the_circuit_breaker() {
    const TASKS: usize = 64;
    let server = RedisServer::start();
    let openings = Arc::new(AtomicUsize::new(0));
    let counted = openings.clone();
    // The default circuit breaker.
    let limiter = limiter(connect(&server).await)
        .circuit_breaker(CircuitBreaker::new())
        .observe(move |event| {
            if let Event::BreakerChanged { state: BreakerState::Open, .. } = event {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        })
        .build();
    let (answered, rejected) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (limiter, answered, rejected) = (limiter.clone(), answered.clone(), rejected.clone());
            tokio::spawn(async move {
                loop {
                    let is_answered = limiter.acquire("key", 1).await.is_ok();
                    if is_answered { &answered } else { &rejected }.fetch_add(1, Ordering::Relaxed);
                    // Rejections that are ready at once would delay the replies of Redis.
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    // At times, the connection is idle.
    for _ in 0..10 {
        let many = answered.load(Ordering::Relaxed) + 20 * TASKS;
        until("requests are answered", || answered.load(Ordering::Relaxed) >= many).await;
        let clients: String = server.ask(cmd("CLIENT").arg("LIST"));
        let ours = clients.lines().find(|client| client.contains("cmd=evalsha")).expect("a connection of ours");
        let id = ours.split(['=', ' ']).nth(1).expect("its id");
        let before = rejected.load(Ordering::Relaxed);
        let _: u32 = server.ask(cmd("CLIENT").arg(&["KILL", "ID", id]));
        let many = answered.load(Ordering::Relaxed) + 20 * TASKS;
        until("requests are answered again", || answered.load(Ordering::Relaxed) >= many).await;
        let rejected = rejected.load(Ordering::Relaxed) - before;
        println!("{rejected} rejected, {} openings so far", openings.load(Ordering::Relaxed));
        assert!(rejected < 200, "{rejected} requests were rejected");
    }
    assert_eq!(openings.load(Ordering::Relaxed), 0, "openings of the circuit breaker");
    tasks.iter().for_each(|task| task.abort());
}

#[tokio::test]
async fn a_stopped_server_is_used_again_when_it_continues() {
    let server = RedisServer::start();
    let limiter = limiter(connected(RedisConfig::node(server.url())).await).build();
    assert_eq!(charge(&limiter).await, 1);
    server.pause();
    let paused = Instant::now();
    let mut sent = 1;
    while paused.elapsed() < Duration::from_secs(3) {
        assert!(!matches!(short_deadline(&limiter).await, Some(Ok(()))), "there can be no reply");
        sent += 1;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.resume();
    println!("resumed: {:?}", resume(&limiter).await);
    let charged = charged(&limiter).await;
    assert!((2..=sent + 1).contains(&charged), "{charged} of {sent}");
}

/// The peer of a connection vanishes silently, and callers cancel their requests before the connection's own timeout.
#[tokio::test]
async fn a_dead_connection_is_replaced_even_if_all_callers_cancel() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port()).await;
    let config = RedisConfig::node(proxy.url()).patient().response_timeout(Duration::from_millis(300));
    let limiter = limiter(config.connect().await.expect("a connection")).build();
    let opened = || proxy.opened.load(Ordering::Relaxed);
    resume(&limiter).await;
    let before = opened();
    proxy.kill().await;
    assert!(!matches!(short_deadline(&limiter).await, Some(Ok(()))), "the connections are dead");
    // Each dead connection is detected by the requests on it.
    let mut tries = 0;
    while opened() < before + 2 {
        assert!(tries < 200, "both are replaced");
        tries += 1;
        let _ = short_deadline(&limiter).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    println!("both were replaced after {tries} tries");
    // After that, requests succeed, unless the machine stops for so long that a live connection seems dead.
    let is_well = async || {
        let before = opened();
        let mut answered = 0;
        for _ in 0..10 {
            answered += u32::from(limiter.acquire("key", 1).await.is_ok());
        }
        answered == 10 && opened() == before
    };
    let mut rounds = 0;
    while !is_well().await {
        assert!(rounds < 10, "all is well at last");
        rounds += 1;
    }
}

#[tokio::test]
async fn a_cancelled_call_does_not_replace_a_live_connection() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port()).await;
    let limiter = limiter(RedisConfig::node(proxy.url()).patient().connect().await.expect("a connection")).build();
    server.pause();
    for _ in 0..3 {
        assert!(short_deadline(&limiter).await.is_none(), "the server waits");
    }
    server.resume();
    println!("resumed: {:?}", resume(&limiter).await);
    assert_eq!(proxy.opened.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_service_can_start_before_its_redis() {
    let mut server = RedisServer::not_started();
    let limiter = limiter(RedisConfig::node(server.url()).patient().connect_lazily().expect("a store")).build();
    let text = format!("{:?}", limiter.acquire("key", 1).await.expect_err("no server"));
    assert!(text.contains("no connection to Redis"), "{text}");
    tokio::time::sleep(Duration::from_millis(200)).await;
    server.start_again();
    println!("started: {:?}", resume(&limiter).await);
}

#[test]
fn a_store_survives_the_runtime_that_connected_it() {
    let server = RedisServer::start();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let lazy = limiter(RedisConfig::node(server.url()).patient().connect_lazily().expect("a store")).build();
    let eager = runtime().block_on(async { limiter(connect(&server).await).build() });
    for limiter in [lazy, eager] {
        for _ in 0..3 {
            runtime().block_on(resume(&limiter));
        }
    }
}

#[tokio::test]
async fn a_dropped_store_leaves_no_task() {
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let mut server = RedisServer::start();
    assert_eq!(tasks(), 0);
    let store = connect(&server).await;
    let limiter = limiter(store).build();
    charge(&limiter).await;
    server.stop();
    limiter.acquire("key", 1).await.expect_err("no server");
    // The store tries to connect.
    assert!(tasks() > 0);
    let clone = limiter.clone();
    drop(limiter);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(tasks() > 0, "a clone keeps it");
    drop(clone);
    until("no task is left", || tasks() == 0).await;
}

#[tokio::test]
async fn a_script_that_is_flushed_after_each_load_is_named_as_the_cause() {
    let server = RedisServer::start();
    let limiter = limiter(connect(&server).await).build();
    let mut connection = server.connection().await;
    let flushing = tokio::spawn(async move {
        let mut flushes = pipe();
        for _ in 0..100 {
            flushes.cmd("SCRIPT").arg("FLUSH").ignore();
        }
        loop {
            let () = flushes.query_async(&mut connection).await.expect("flushed");
        }
    });
    let error = loop {
        if let Err(error) = limiter.acquire("key", 1).await {
            break error.to_string();
        }
    };
    flushing.abort();
    assert!(error.contains("SCRIPT FLUSH"), "{error}");
    assert_eq!(charge(&limiter).await, charged(&limiter).await);
}

#[tokio::test]
async fn only_script_calls_are_sent_while_redis_works() {
    let server = RedisServer::start();
    let limiter = limiter(connect(&server).await).build();
    let () = server.ask(cmd("CONFIG").arg("RESETSTAT"));
    for _ in 0..10 {
        charge(&limiter).await;
    }
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(server.calls("evalsha"), 10);
    let stats: String = server.ask(cmd("INFO").arg("commandstats"));
    assert!(!stats.contains("cmdstat_ping") && !stats.contains("cmdstat_script"), "{stats}");
}

#[tokio::test]
async fn a_replica_is_reported_until_it_becomes_a_master() {
    let server = RedisServer::start();
    let limiter = limiter(connect(&server).await).build();
    charge(&limiter).await;
    let () = server.ask(cmd("REPLICAOF").arg("127.0.0.1").arg(1));
    let () = server.ask(cmd("CONFIG").arg("RESETSTAT"));
    for _ in 0..200 {
        // A replica decides what changes nothing, which does not make the connection a good one.
        let _ = limiter.peek("key", 1).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        let text = format!("{:?}", limiter.acquire("key", 1).await.expect_err("a replica"));
        assert!(text.contains("READONLY"), "{text}");
    }
    let opened: String = server.ask(cmd("INFO").arg("stats"));
    let opened = opened.lines().find_map(|line| line.strip_prefix("total_connections_received:")).expect("a count");
    let opened: u32 = opened.parse().expect("a count");
    assert!((2..100).contains(&opened), "{opened} were opened: replaced, but not for every call");
    let () = server.ask(cmd("REPLICAOF").arg("NO").arg("ONE"));
    resume(&limiter).await;
}

#[tokio::test]
async fn requests_wait_for_a_server_that_loads_its_data() {
    let folder = Folder::new();
    let dir = folder.path().to_str().expect("a path");
    // While it loads data, Redis replies after each 2 MB, about every half a second. (Redis before 7.0 cannot be
    // configured to reply sooner.)
    let mut server = RedisServer::start_with(&["--dir", dir, "--key-load-delay", "300", "--rdbcompression", "no"]);
    let fill = "for i = 1, 10000 do redis.call('SET', 'other' .. i, string.rep('x', 1000)) end";
    let () = server.ask(cmd("EVAL").arg(fill).arg(0));
    let () = server.ask(&cmd("SAVE"));
    let limiter = limiter(connect(&server).await).build();
    server.restart();
    let text = format!("{:?}", RedisConfig::node(server.url()).patient().connect().await.expect_err("it loads"));
    assert!(text.contains("loading its data"), "{text}");
    println!("loaded: {:?}", resume(&limiter).await);
}
