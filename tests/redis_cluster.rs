//! The store in a Redis Cluster, on a real one.
#![cfg(feature = "redis")]

#[path = "support/redis_cluster.rs"]
mod redis_cluster;
#[path = "support/redis_server.rs"]
mod redis_server;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redis_cluster::{RedisCluster, wait};
use redis_server::RedisServer;
use tokio::task::JoinSet;
use tower_ratelimit::{
    Algorithm, Decision, FixedWindow, LeakyBucket, LeakyBucketQueue, Limit, Limiter, ManualClock, MemoryStore,
    RedisStore, SlidingLog, SlidingWindow, SlidingWindowCounter, Timestamp, TokenBucket,
};

const DAY: Duration = Duration::from_secs(86_400);

fn all(tokens: u32, period: Duration) -> [(&'static str, Algorithm); 8] {
    [
        ("fixed_window", FixedWindow::new(tokens, period).into()),
        ("sliding_log", SlidingLog::new(tokens, period).into()),
        ("sliding_window", SlidingWindow::new(tokens, period).into()),
        ("sliding_window_counter", SlidingWindowCounter::new(tokens, period).into()),
        ("token_bucket", TokenBucket::new(tokens, tokens, period).into()),
        ("token_bucket-at-intervals", TokenBucket::new(tokens, tokens, period).at_intervals().into()),
        ("leaky_bucket", LeakyBucket::new(tokens, tokens, period).into()),
        ("leaky_bucket_queue", LeakyBucketQueue::new(tokens - 1, tokens, period).into()),
    ]
}

async fn store(cluster: &RedisCluster) -> RedisStore {
    let urls = cluster.urls();
    RedisStore::connect_cluster(urls.iter().map(String::as_str)).await.expect("a connection")
}

fn daily(name: &str, limit: u32) -> Limit {
    Limit::new(name, FixedWindow::per_day(limit))
}

fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// All of a decision but its receipt.
fn told(decision: &Decision) -> String {
    let outcomes = decision.outcomes().iter().map(|outcome| {
        let (after, reset) = (outcome.more_after(), outcome.reset_after());
        format!("{} {:?} {} {after:?} {reset:?}", outcome.limit(), outcome.verdict(), outcome.remaining())
    });
    format!("{:?} {:?} {:?}", decision.at(), decision.verdict(), outcomes.collect::<Vec<_>>())
}

/// The slot of a subject: that of its only key.
fn slot(cluster: &RedisCluster, limit: &str) -> (usize, u16, String) {
    let keys = cluster.keys();
    let mut of_limit = keys.into_iter().filter(|(_, key)| key.contains(&format!("}}:{limit}:")));
    let (node, key) = of_limit.next().expect("a key");
    assert!(of_limit.next().is_none(), "{limit} has one key");
    (node, cluster.ask(node, &format!("CLUSTER KEYSLOT {key}")), key)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_decides_as_memory_does_for_one_subject_and_for_several() {
    let cluster = RedisCluster::start(0);
    let start = Timestamp::from_micros(1_767_225_600_000_000);
    let clocks = [ManualClock::new(start), ManualClock::new(start)];
    let limits = || all(7, Duration::from_secs(10)).map(|(name, algorithm)| Limit::new(name, algorithm));
    let shared = Limiter::new(limits()).store(store(&cluster).await.clock(clocks[0].clone()));
    let memory = Limiter::new(limits()).store(MemoryStore::new().clock(clocks[1].clone()));
    let mut receipts = Vec::new();
    for step in 0..300_u64 {
        let by = Duration::from_micros([0, 1, 999_999, 1_250_000, 3_333_333][step as usize % 5]);
        clocks.iter().for_each(|clock| clock.advance(by));
        // One subject, or one for each two limits, in as many slots.
        let spread = step % 3 != 0;
        let names: Vec<_> =
            (0..8).map(|limit| if spread { format!("subject {}", limit / 2) } else { "one".into() }).collect();
        let costs: Vec<u64> = (0..8).map(|limit| (step * 7 + limit * 5) % 4 % 3).collect();
        let charges: Vec<(&(dyn tower_ratelimit::key::Key + Sync), u64)> =
            names.iter().zip(&costs).map(|(name, cost)| (name as _, *cost)).collect();
        let (one, other) = (shared.acquire_all(&charges).await, memory.acquire_all(&charges).await);
        let (one, other) = (one.expect("a decision"), other.expect("a decision"));
        assert_eq!(told(&one), told(&other), "step {step}: {costs:?}");
        receipts.push((one.into_receipt(), other.into_receipt()));
        if step % 4 == 3 {
            for (one, other) in receipts.drain(..).step_by(2) {
                shared.refund(one).await.expect("a refund");
                memory.refund(other).await.expect("a refund");
            }
        }
        if step == 200 {
            shared.reset("one").await.expect("a reset");
            memory.reset("one").await.expect("a reset");
        }
    }
    for (node, key) in cluster.keys() {
        let left: i64 = cluster.ask(node, &format!("PTTL {key}"));
        assert!(left > 0, "{key} has {left} ms to live");
    }
    let masters: Vec<_> = cluster.keys().into_iter().map(|(node, _)| node).collect();
    assert!((0..3).filter(|node| masters.contains(node)).count() > 1, "several masters took part: {masters:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_are_admitted_exactly_the_limit() {
    let cluster = RedisCluster::start(0);
    let stores = [store(&cluster).await, store(&cluster).await];
    for (name, algorithm) in all(100, DAY) {
        let mut tasks = JoinSet::new();
        for task in 0..64 {
            let limiter = Limiter::new([Limit::new(name, algorithm)]).store(stores[task % 2].clone());
            tasks.spawn(async move {
                let mut allowed = 0;
                for _ in 0..5 {
                    allowed += u32::from(limiter.acquire("key", 1).await.expect("a decision").is_allowed());
                }
                allowed
            });
        }
        assert_eq!(tasks.join_all().await.into_iter().sum::<u32>(), 100, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_on_one_key_leave_together_and_many_keys_all_at_once() {
    let cluster = RedisCluster::start(0);
    let limiter = Limiter::new([daily("limit", 1_000)]).store(store(&cluster).await);
    (0..3).for_each(|node| cluster.tell(node, "CONFIG RESETSTAT"));
    let mut calls = JoinSet::new();
    for _ in 0..200 {
        let limiter = limiter.clone();
        calls.spawn(async move { limiter.acquire("key", 1).await.expect("a decision").outcomes()[0].remaining() });
    }
    let mut left = calls.join_all().await;
    left.sort_unstable();
    assert_eq!(left, (800..1_000).collect::<Vec<_>>(), "each has an answer of its own");
    let count = |stats: String| {
        let calls = stats.split("cmdstat_evalsha:calls=").nth(1).and_then(|calls| calls.split(',').next());
        calls.map_or(0, |calls| calls.parse::<u32>().expect("a count"))
    };
    let calls: u32 = (0..3).map(|node| count(cluster.ask(node, "INFO commandstats"))).sum();
    assert!(calls <= 20, "{calls} calls for 200 decisions");

    let mut calls = JoinSet::new();
    for key in 0..200 {
        let limiter = limiter.clone();
        calls.spawn(async move { limiter.acquire(key, 1).await.expect("a decision").outcomes()[0].remaining() });
    }
    assert_eq!(calls.join_all().await, [999; 200]);
}

/// Users of one tenant, each limit exhausted by many at a time, on several clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_in_different_slots_are_charged_together_or_not_at_all() {
    let cluster = RedisCluster::start(0);
    let stores = [store(&cluster).await, store(&cluster).await];
    // Four users may take 30 each, of which the tenant allows 75 in all.
    for (name, algorithm) in all(75, DAY) {
        let limits = || [daily(&format!("user of {name}"), 30), Limit::new(name, algorithm)];
        let mut tasks = JoinSet::new();
        for task in 0..48_usize {
            let limiter = Limiter::new(limits()).store(stores[task % 2].clone());
            tasks.spawn(async move {
                let user = task % 4;
                let mut allowed = [0_u64; 4];
                for _ in 0..6 {
                    let decision = limiter.acquire_all(&[(&user, 1), (&"tenant", 1)]).await.expect("a decision");
                    allowed[user] += u64::from(decision.is_allowed());
                }
                allowed
            });
        }
        let mut taken = [0; 4];
        for allowed in tasks.join_all().await {
            (0..4).for_each(|user| taken[user] += allowed[user]);
        }
        let limiter = Limiter::new(limits()).store(stores[0].clone());
        let mut left_of_tenant = 75 - taken.iter().sum::<u64>();
        for (user, taken) in taken.into_iter().enumerate() {
            let decision = limiter.peek_all(user, "tenant").await;
            assert_eq!(decision.outcomes()[0].remaining(), 30 - taken, "{name}, user {user}");
            assert_eq!(decision.outcomes()[1].remaining(), left_of_tenant, "{name}");
        }
        // What is left can be taken to the last token.
        for user in 0..4_usize {
            while limiter.acquire_all(&[(&user, 1), (&"tenant", 1)]).await.expect("a decision").is_allowed() {
                left_of_tenant -= 1;
            }
        }
        assert_eq!(left_of_tenant, 0, "{name}");
    }
}

trait PeekAll {
    async fn peek_all(&self, user: usize, tenant: &str) -> Decision;
}

impl PeekAll for Limiter {
    /// A limiter has no peek with a key for each limit, but a cost of 0 takes nothing.
    async fn peek_all(&self, user: usize, tenant: &str) -> Decision {
        self.acquire_all(&[(&user, 0), (&tenant, 0)]).await.expect("a decision")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_wants_the_same_two_limits_gets_exactly_what_they_allow() {
    let cluster = RedisCluster::start(0);
    let store = store(&cluster).await;
    for pair in 0..8 {
        let limiter = Limiter::new([daily("one", 40), daily("other", 40)]).store(store.clone());
        let mut tasks = JoinSet::new();
        for _ in 0..100 {
            let limiter = limiter.clone();
            tasks.spawn(async move {
                let keys = (format!("one of {pair}"), format!("other of {pair}"));
                limiter.acquire_all(&[(&keys.0, 1), (&keys.1, 1)]).await.expect("a decision").is_allowed()
            });
        }
        let allowed = tasks.join_all().await.into_iter().filter(|allowed| *allowed).count();
        assert_eq!(allowed, 40, "pair {pair}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gives_up_in_between_leaves_nothing_half_charged() {
    let cluster = RedisCluster::start(0);
    let limiter = Limiter::new([daily("one", 10_000), daily("other", 10_000)]).store(store(&cluster).await);
    let mut allowed = 0;
    for round in 0..400_u64 {
        let charges: [(&(dyn tower_ratelimit::key::Key + Sync), u64); 2] = [(&"a", 1), (&"b", 1)];
        let call = limiter.acquire_all(&charges);
        let given = Duration::from_micros(round * 5);
        allowed += u64::from(tokio::time::timeout(given, call).await.is_ok());
    }
    assert!((1..400).contains(&allowed), "{allowed} were in time");
    // What was given up is given back by and by; what was answered as it was given up may be charged, but
    // by both limits.
    let started = Instant::now();
    loop {
        let decision = limiter.acquire_all(&[(&"a", 0), (&"b", 0)]).await.expect("a decision");
        let [one, other] = [0, 1].map(|limit| 10_000 - decision.outcomes()[limit].remaining());
        if one == other {
            assert!((allowed..allowed + 20).contains(&one), "{one} charged, {allowed} allowed");
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "{one} and {other} charged");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_flushed_under_load_are_loaded_again_within_the_same_calls() {
    let cluster = RedisCluster::start(0);
    let limiter = Limiter::new([daily("limit", 100_000)]).store(store(&cluster).await);
    let done = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for task in 0..16_u64 {
        let (limiter, done) = (limiter.clone(), done.clone());
        tasks.spawn(async move {
            let mut taken = 0;
            while !done.load(Ordering::Relaxed) {
                let decision = limiter.acquire(task, 1).await;
                assert!(decision.unwrap_or_else(|error| panic!("{}", chain(&error))).is_allowed());
                taken += 1;
            }
            (task, taken)
        });
    }
    for _ in 0..20 {
        tokio::task::block_in_place(|| (0..3).for_each(|node| cluster.tell(node, "SCRIPT FLUSH")));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    done.store(true, Ordering::Relaxed);
    for (task, taken) in tasks.join_all().await {
        let left = limiter.peek(task, 1).await.expect("a decision").outcomes()[0].remaining();
        assert_eq!(left, 100_000 - taken, "task {task}");
    }
}

/// Moves the slot of a key while it is used, key by key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_loses_no_count_and_charges_nothing_twice() {
    let cluster = RedisCluster::start(0);
    let limiter = Limiter::new([daily("limit", 1_000_000)]).store(store(&cluster).await);
    assert!(limiter.acquire("key", 1).await.expect("a decision").is_allowed());
    let (mut from, slot, key) = slot(&cluster, "limit");
    let (done, taken) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(1)));
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let (limiter, done, taken) = (limiter.clone(), done.clone(), taken.clone());
        tasks.spawn(async move {
            while !done.load(Ordering::Relaxed) {
                let decision = limiter.acquire("key", 1).await;
                assert!(decision.unwrap_or_else(|error| panic!("{}", chain(&error))).is_allowed());
                taken.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    tokio::task::block_in_place(|| {
        let pause = || {
            let before = taken.load(Ordering::Relaxed);
            wait("requests go on", || taken.load(Ordering::Relaxed) > before + 100);
        };
        for _ in 0..4 {
            let to = (from + 1) % 3;
            let ids = (cluster.id(from), cluster.id(to));
            cluster.tell(to, &format!("CLUSTER SETSLOT {slot} IMPORTING {}", ids.0));
            cluster.tell(from, &format!("CLUSTER SETSLOT {slot} MIGRATING {}", ids.1));
            pause();
            cluster.tell(from, &format!("MIGRATE 127.0.0.1 {} {key} 0 5000", cluster.port(to)));
            pause();
            for node in [to, from, (to + 1) % 3] {
                cluster.tell(node, &format!("CLUSTER SETSLOT {slot} NODE {}", ids.1));
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

/// Requests of two subjects in one slot, of which one key has moved already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subjects_of_a_slot_that_is_half_moved_are_all_decided() {
    let cluster = RedisCluster::start(0);
    let store = store(&cluster).await;
    let limiter = |subject: usize| Limiter::new([daily(&format!("of {subject}"), 1_000)]).store(store.clone());
    let mut slots = std::collections::HashMap::new();
    let (one, other) = (0..20_000)
        .find_map(|subject| {
            let slot = slot_of(&limiter(subject), subject, &cluster);
            slots.insert(slot, subject).map(|before| (before, subject))
        })
        .expect("two subjects of one slot");
    let (from, slot, key) = slot(&cluster, &format!("of%20{one}"));
    let to = (from + 1) % 3;
    cluster.tell(to, &format!("CLUSTER SETSLOT {slot} IMPORTING {}", cluster.id(from)));
    cluster.tell(from, &format!("CLUSTER SETSLOT {slot} MIGRATING {}", cluster.id(to)));
    cluster.tell(from, &format!("MIGRATE 127.0.0.1 {} {key} 0 5000", cluster.port(to)));
    let mut tasks = JoinSet::new();
    for task in 0..200 {
        let subject = if task % 2 == 0 { one } else { other };
        let limiter = limiter(subject);
        tasks.spawn(async move { limiter.acquire(subject, 1).await.map(drop).map_err(|error| chain(&error)) });
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
        tokio::runtime::Handle::current().block_on(limiter.acquire(subject, 1)).map(drop).expect("a decision");
    });
    slot(cluster, &format!("of%20{subject}")).1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_dies_is_replaced_and_others_do_not_notice() {
    dies(|cluster, node| cluster.kill(node), None).await;
}

/// Callers in a hurry never see that a master hangs: they only know that they gave up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_hangs_is_replaced_for_those_who_give_up_too() {
    dies(|cluster, node| cluster.signal(node, "STOP"), Some(Duration::from_millis(50))).await;
}

async fn dies(end: impl FnOnce(&mut RedisCluster, usize), patience: Option<Duration>) {
    let mut cluster = RedisCluster::start(1);
    let limiter = Limiter::new([daily("limit", 1_000_000)]).store(store(&cluster).await);
    let patience = patience.unwrap_or(Duration::from_secs(10));
    let answer = |key: u64| {
        let limiter = limiter.clone();
        async move { tokio::time::timeout(patience, limiter.acquire(key, 1)).await.is_ok_and(|answer| answer.is_ok()) }
    };
    // Keys of the first master, and of others.
    let (mut lost, mut kept) = (Vec::new(), Vec::new());
    for key in 0..60 {
        let before = cluster.keys().len();
        let first = cluster.ask::<Vec<String>>(0, "KEYS *").len();
        while !answer(key).await {}
        assert_eq!(cluster.keys().len(), before + 1);
        let of_first = cluster.ask::<Vec<String>>(0, "KEYS *").len() > first;
        if of_first { &mut lost } else { &mut kept }.push(key);
    }
    let replica = 3;
    wait("the replica has all", || cluster.ask::<i64>(replica, "DBSIZE") == lost.len() as i64);
    end(&mut cluster, 0);

    let started = Instant::now();
    let (mut served, mut missed) = (0, 0);
    let mut promoted = None;
    loop {
        let some = lost[served % lost.len()];
        let back = answer(some).await;
        for round in 0..3 {
            served += 1;
            missed += usize::from(!answer(kept[(served + round) % kept.len()]).await);
        }
        if promoted.is_none()
            && cluster
                .ask::<String>(1, "CLUSTER NODES")
                .lines()
                .any(|line| line.contains(&format!(":{}@", cluster.port(replica))) && line.contains("master"))
        {
            promoted = Some(Instant::now());
        }
        if back {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "the lost keys are back at last");
        assert!(promoted.is_none_or(|at| at.elapsed() < Duration::from_secs(5)), "they are back soon after");
    }
    // In a hurry, a few may have been late on a busy machine.
    assert!(missed * 20 <= served, "{missed} of {served} requests for other masters were not answered");
    for key in lost {
        while !answer(key).await {
            assert!(started.elapsed() < Duration::from_secs(60), "all lost keys are back at last");
        }
        let left = limiter.peek(key, 1).await.expect("a decision").outcomes()[0].remaining();
        assert!(left < 1_000_000 - 1, "what the replica had counts");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_replica_a_master_is_missed_until_it_returns() {
    let mut cluster = RedisCluster::start(0);
    let limiter = Limiter::new([daily("limit", 10)]).store(store(&cluster).await);
    let answer = async |key: u64| limiter.acquire(key, 1).await.is_ok();
    let (mut lost, mut kept) = (Vec::new(), Vec::new());
    for key in 0..30 {
        let before = cluster.ask::<i64>(0, "DBSIZE");
        assert!(answer(key).await);
        if cluster.ask::<i64>(0, "DBSIZE") > before { &mut lost } else { &mut kept }.push(key);
    }
    cluster.kill(0);
    for _ in 0..3 {
        for key in &kept {
            assert!(answer(*key).await, "others go on");
        }
        for key in &lost {
            assert!(!answer(*key).await);
        }
    }
    cluster.restart(0);
    let started = Instant::now();
    for key in lost.iter().chain(&kept) {
        while !answer(*key).await {
            assert!(started.elapsed() < Duration::from_secs(60), "it is found again at last");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn odd_names_of_limits_and_prefixes_share_their_subjects_slot() {
    let cluster = RedisCluster::start(0);
    for prefix in ["p", "{p}", "{}", "a:b{"] {
        let names = ["plain", "{", "}", "{}", "{a}", "}{b}", "a:b {x}*", "%7b"];
        let limiter = Limiter::new(names.map(|name| daily(name, 10))).store(store(&cluster).await.prefix(prefix));
        for key in 0..20_u64 {
            assert!(limiter.acquire(key, 1).await.expect("one slot").is_allowed());
        }
    }
    let mut slots = std::collections::HashMap::new();
    for (node, key) in cluster.keys() {
        let subject = key.split_once(":{").and_then(|(_, rest)| rest.get(..32)).expect("a hash").to_owned();
        let slot: u16 = cluster.ask(node, &format!("CLUSTER KEYSLOT {key}"));
        assert_eq!(*slots.entry(subject).or_insert(slot), slot, "{key}");
    }
    assert_eq!(slots.len(), 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_charge_without_an_answer_is_never_sent_again() {
    let cluster = RedisCluster::start(0);
    let limiter = Limiter::new([daily("limit", 1_000)]).store(store(&cluster).await);
    assert!(limiter.acquire("key", 1).await.expect("a decision").is_allowed());
    let (node, ..) = slot(&cluster, "limit");
    cluster.tell(node, "CLIENT PAUSE 1500");
    let mut calls = JoinSet::new();
    for _ in 0..3 {
        let limiter = limiter.clone();
        calls.spawn(async move { limiter.acquire("key", 1).await.map(drop).map_err(|error| chain(&error)) });
    }
    for answer in calls.join_all().await {
        answer.expect_err("no answer in half a second");
    }
    wait("the server goes on", || cluster.ask::<String>(node, "PING") == "PONG");
    let decision = limiter.peek("key", 1).await.expect("a decision");
    assert_eq!(decision.outcomes()[0].remaining(), 1_000 - 1 - 3, "each landed once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_taken_before_an_error_is_given_back() {
    let cluster = RedisCluster::start(0);
    let limiter = Limiter::new([daily("one", 10), daily("other", 10)]).store(store(&cluster).await);
    assert!(limiter.acquire_all(&[(&"a", 1), (&"b", 1)]).await.expect("a decision").is_allowed());
    let (node, _, key) = slot(&cluster, "other");
    cluster.tell(node, &format!("DEL {key}"));
    cluster.tell(node, &format!("LPUSH {key} 1"));
    for costs in [[1, 0], [1, 1]] {
        let error = limiter.acquire_all(&[(&"a", costs[0]), (&"b", costs[1])]).await.expect_err("no decision");
        assert!(chain(&error).contains("WRONGTYPE"), "{}", chain(&error));
    }
    cluster.tell(node, &format!("DEL {key}"));
    let started = Instant::now();
    loop {
        let decision = limiter.acquire_all(&[(&"a", 0), (&"b", 0)]).await.expect("a decision");
        if decision.outcomes()[0].remaining() == 9 {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "it is given back at last: {decision:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The least that a user must be allowed, on every master.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_credentials_of_the_first_url_are_those_for_all_masters() {
    let cluster = RedisCluster::start(0);
    let may = "~ratelimit:* -@all +asking +cluster|slots +evalsha +script|exists +script|load +ping \
               +time +get +set +del +rpush +lindex +lrange +lset +ltrim +pexpireat";
    for node in 0..3 {
        cluster.tell(node, &format!("ACL SETUSER limiter on >secret {may}"));
        cluster.tell(node, "ACL SETUSER default -@scripting");
    }
    let url = |user: &str| format!("redis://{user}127.0.0.1:{}", cluster.port(0));
    let store = RedisStore::connect_cluster([&*url("limiter:secret@")]).await.expect("a connection");
    let limits = all(10, DAY).map(|(name, algorithm)| Limit::new(name, algorithm));
    let limiter = Limiter::new(limits).store(store);
    for key in 0..30_u64 {
        let decision = limiter.acquire(key, 1).await.unwrap_or_else(|error| panic!("{}", chain(&error)));
        assert!(decision.is_allowed());
    }
    let masters: Vec<_> = cluster.keys().into_iter().map(|(node, _)| node).collect();
    assert!((0..3).all(|node| masters.contains(&node)), "all masters took part");
    let error = RedisStore::connect_cluster([&*url("limiter:wrong@")]).await.expect_err("a wrong password");
    assert!(chain(&error).to_lowercase().contains("password"), "{}", chain(&error));
}

#[tokio::test]
async fn what_is_no_cluster_is_refused_when_it_is_connected() {
    let single = RedisServer::start();
    let single = single.url();
    let cases: [(&[&str], &str); 5] = [
        (&[], "there is no URL"),
        (&["redis://127.0.0.1:1"], "refused"),
        (&["http://127.0.0.1"], "URL"),
        (&["unix:///tmp/none"], "Unix sockets"),
        (&[&single], "cluster support disabled"),
    ];
    for (urls, why) in cases {
        let error = RedisStore::connect_cluster(urls.iter().copied()).await.expect_err("no Cluster");
        assert!(chain(&error).contains(why), "{urls:?}: {}", chain(&error));
    }
}
