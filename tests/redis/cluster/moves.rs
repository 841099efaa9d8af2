//! Slots that move, and scripts that are flushed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use support::calls::Calls;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tower_ratelimit::Limiter;

use crate::cluster::{daily, slot, store};
use support::limits::Patient;
use support::redis_cluster::RedisCluster;
use support::redis_server::wait_until;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_flushed_under_load_are_loaded_again_within_the_same_calls() {
    let cluster = RedisCluster::start(0);
    let limiter = Limiter::builder([daily("limit", 100_000)]).patient().store(store(&cluster).await).build();
    let (done, taken) = (Arc::new(AtomicBool::new(false)), Arc::new([const { AtomicU32::new(0) }; 16]));
    let mut tasks = JoinSet::new();
    for task in 0..taken.len() {
        let (limiter, done, taken) = (limiter.clone(), done.clone(), taken.clone());
        tasks.spawn(async move {
            while !done.load(Ordering::Relaxed) {
                let decision = limiter.acquire(task, 1).await;
                assert!(decision.unwrap_or_else(|error| panic!("{error:?}")).is_allowed());
                taken[task].fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let counts = || taken.each_ref().map(|count| count.load(Ordering::Relaxed));
    tokio::task::block_in_place(|| {
        for _ in 0..20 {
            (0..3).for_each(|node| cluster.run(node, "SCRIPT FLUSH"));
            // A call that repeatedly finds the script flushed fails.
            let before = counts();
            wait_until("all go on", || {
                assert!(tasks.try_join_next().is_none(), "a request failed");
                counts().iter().zip(&before).all(|(now, before)| now > before)
            });
        }
    });
    done.store(true, Ordering::Relaxed);
    tasks.join_all().await;
    for (task, taken) in counts().into_iter().enumerate() {
        let left = limiter.peek(task, 1).await.expect("a decision").outcomes()[0].remaining();
        assert_eq!(left, 100_000 - u64::from(taken), "task {task}");
    }
}

/// Moves the slot of a key while it is used, key by key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_loses_no_count_and_charges_nothing_twice() {
    let cluster = RedisCluster::start(0);
    let limiter = Limiter::builder([daily("limit", 1_000_000)]).patient().store(store(&cluster).await).build();
    assert!(limiter.allows("key", 1).await);
    let (mut from, slot, key) = slot(&cluster, "limit");
    let (done, taken) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(1)));
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let (limiter, done, taken) = (limiter.clone(), done.clone(), taken.clone());
        tasks.spawn(async move {
            while !done.load(Ordering::Relaxed) {
                let decision = limiter.acquire("key", 1).await;
                assert!(decision.unwrap_or_else(|error| panic!("{error:?}")).is_allowed());
                taken.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    tokio::task::block_in_place(|| {
        let pause = || {
            let before = taken.load(Ordering::Relaxed);
            wait_until("requests go on", || taken.load(Ordering::Relaxed) > before + 100);
        };
        for _ in 0..4 {
            let to = (from + 1) % 3;
            let ids = (cluster.id(from), cluster.id(to));
            cluster.run(to, &format!("CLUSTER SETSLOT {slot} IMPORTING {}", ids.0));
            cluster.run(from, &format!("CLUSTER SETSLOT {slot} MIGRATING {}", ids.1));
            pause();
            cluster.run(from, &format!("MIGRATE 127.0.0.1 {} {key} 0 5000", cluster.port(to)));
            pause();
            for node in [to, from, (to + 1) % 3] {
                cluster.run(node, &format!("CLUSTER SETSLOT {slot} NODE {}", ids.1));
            }
            pause();
            from = to;
        }
    });
    done.store(true, Ordering::Relaxed);
    tasks.join_all().await;
    let left = limiter.peek("key", 1).await.expect("a decision").outcomes()[0].remaining();
    assert_eq!(left, 1_000_000 - u64::from(taken.load(Ordering::Relaxed)));
}

/// Even if the slots have just been loaded, and are not loaded again so soon.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_has_moved_redirects_few_requests() {
    let cluster = RedisCluster::start(0);
    let limiter = Limiter::builder([daily("limit", 1_000)]).patient().store(store(&cluster).await).build();
    assert!(limiter.allows("key", 1).await);
    let (mut from, slot, key) = slot(&cluster, "limit");
    let mut redirected = Vec::new();
    for _ in 0..4 {
        let to = (from + 1) % 3;
        let ids = (cluster.id(from), cluster.id(to));
        cluster.run(from, "CONFIG RESETSTAT");
        cluster.run(to, &format!("CLUSTER SETSLOT {slot} IMPORTING {}", ids.0));
        cluster.run(from, &format!("CLUSTER SETSLOT {slot} MIGRATING {}", ids.1));
        cluster.run(from, &format!("MIGRATE 127.0.0.1 {} {key} 0 5000", cluster.port(to)));
        for node in [to, from, (to + 1) % 3] {
            cluster.run(node, &format!("CLUSTER SETSLOT {slot} NODE {}", ids.1));
        }
        for _ in 0..20 {
            assert!(limiter.allows("key", 1).await);
        }
        let errors: String = cluster.ask(from, "INFO errorstats");
        let moved = errors.split("errorstat_MOVED:count=").nth(1).and_then(|count| count.lines().next());
        redirected.push(moved.map_or(0, |count| count.trim().parse::<u32>().expect("a count")));
        from = to;
    }
    // Slots that were being loaded during a move may be those before it.
    assert!(redirected[0] > 0 && redirected.iter().all(|moved| *moved <= 3), "{redirected:?} of 20 each");
}

/// Requests of two keys in one slot, of which one has already moved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_a_slot_under_migration_are_decided() {
    let cluster = RedisCluster::start(0);
    let store = store(&cluster).await;
    let limiter = |subject: usize| {
        Limiter::builder([daily(&format!("of {subject}"), 1_000)]).patient().store(store.clone()).build()
    };
    let mut slots = HashMap::new();
    let (one, other) = (0..20_000)
        .find_map(|subject| {
            let slot = slot_of(&limiter(subject), subject, &cluster);
            slots.insert(slot, subject).map(|before| (before, subject))
        })
        .expect("two subjects of one slot");
    let (from, slot, key) = slot(&cluster, &format!("of%20{one}"));
    let to = (from + 1) % 3;
    cluster.run(to, &format!("CLUSTER SETSLOT {slot} IMPORTING {}", cluster.id(from)));
    cluster.run(from, &format!("CLUSTER SETSLOT {slot} MIGRATING {}", cluster.id(to)));
    cluster.run(from, &format!("MIGRATE 127.0.0.1 {} {key} 0 5000", cluster.port(to)));
    let mut tasks = JoinSet::new();
    for task in 0..200 {
        let subject = if task % 2 == 0 { one } else { other };
        let limiter = limiter(subject);
        tasks.spawn(async move { limiter.acquire(subject, 1).await.map(drop).map_err(|error| format!("{error:?}")) });
    }
    for answer in tasks.join_all().await {
        answer.expect("a decision");
    }
    for subject in [one, other] {
        let decision = limiter(subject).peek(subject, 1).await.expect("a decision");
        assert_eq!(decision.outcomes()[0].remaining(), 1_000 - 101);
    }
}

fn slot_of(limiter: &Limiter, subject: usize, cluster: &RedisCluster) -> u16 {
    tokio::task::block_in_place(|| {
        Handle::current().block_on(limiter.acquire(subject, 1)).map(drop).expect("a decision");
    });
    slot(cluster, &format!("of%20{subject}")).1
}
