//! Limits whose keys are in different slots.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use support::calls::Calls;
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinSet;
use tower_ratelimit::key::Key;
use tower_ratelimit::{
    Clock, DecidedBy, Decision, Event, Limit, Limiter, OnStoreError, Penalty, RedisConfig, RedisStore, SystemClock,
    Timestamp,
};

use crate::cluster::{DAY, daily, slot, store};
use support::limits::{Patient, all};
use support::redis_cluster::RedisCluster;

/// Concurrent users of one tenant on several clients, who exhaust all limits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_in_different_slots_are_charged_together_or_not_at_all() {
    let cluster = RedisCluster::start(0);
    let connect = async || RedisConfig::cluster(cluster.urls()).patient().connect().await.expect("a connection");
    let stores = [connect().await, connect().await];
    // Four users are allowed 30 each, and the tenant 75 in total.
    for (name, algorithm) in all(75, DAY) {
        let limits = || [daily(&format!("user of {name}"), 30), Limit::new(name, algorithm)];
        let mut tasks = JoinSet::new();
        for task in 0..48_usize {
            let limiter = Limiter::builder(limits()).patient().store(stores[task % 2].clone()).build();
            tasks.spawn(async move {
                let user = task % 4;
                let mut allowed = [0_u64; 4];
                for _ in 0..6 {
                    let decision = limiter.acquire_charges(&[(&user, 1), (&"tenant", 1)]).await.expect("a decision");
                    allowed[user] += u64::from(decision.is_allowed());
                }
                allowed
            });
        }
        let mut taken = [0; 4];
        for allowed in tasks.join_all().await {
            (0..4).for_each(|user| taken[user] += allowed[user]);
        }
        let limiter = Limiter::builder(limits()).patient().store(stores[0].clone()).build();
        let mut left_of_tenant = 75 - taken.iter().sum::<u64>();
        for (user, taken) in taken.into_iter().enumerate() {
            let decision = peek(&limiter, user, "tenant").await;
            assert_eq!(decision.outcomes()[0].remaining(), 30 - taken, "{name}, user {user}");
            assert_eq!(decision.outcomes()[1].remaining(), left_of_tenant, "{name}");
        }
        // All remaining tokens can be taken.
        for user in 0..4_usize {
            while limiter.acquire_charges(&[(&user, 1), (&"tenant", 1)]).await.expect("a decision").is_allowed() {
                left_of_tenant -= 1;
            }
        }
        assert_eq!(left_of_tenant, 0, "{name}");
    }
}

/// A limiter has no peek with a key for each limit, but a cost of 0 charges nothing.
async fn peek(limiter: &Limiter, one: impl Key + Sync, other: impl Key + Sync) -> Decision {
    limiter.acquire_charges(&[(&one, 0), (&other, 0)]).await.expect("a decision")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_in_one_slot_never_charges_another() {
    let cluster = RedisCluster::start(0);
    let limiter =
        Limiter::builder([daily("user", 1_000), daily("tenant", 1)]).patient().store(store(&cluster).await).build();
    assert!(limiter.acquire_charges(&[(&0, 1), (&"tenant", 1)]).await.expect("a decision").is_allowed());
    (0..3).for_each(|node| cluster.run(node, "CONFIG RESETSTAT"));
    for user in 0..20 {
        let decision = limiter.acquire_charges(&[(&user, 1), (&"tenant", 1)]).await.expect("a decision");
        assert!(!decision.is_allowed());
        assert!(decision.outcomes()[0].verdict().is_allowed());
        assert!(decision.retry_after().is_some_and(|wait| wait <= DAY), "{decision:?}");
    }
    for node in 0..3 {
        let stats: String = cluster.ask(node, "INFO commandstats");
        assert!(!stats.contains("cmdstat_set:") && !stats.contains("cmdstat_del:"), "{stats}");
    }
}

/// Returns a limiter of a user and a tenant that allows requests while the store fails.
fn lenient(store: RedisStore) -> Limiter {
    let user = daily("user", 1).penalty(Penalty::after(1, DAY));
    Limiter::builder([user, daily("tenant", 100)]).patient().store(store).on_store_error(OnStoreError::Allow).build()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_stands_in_a_cluster_that_rejects_its_strike() {
    let cluster = RedisCluster::start(0);
    let limiter = lenient(store(&cluster).await);
    let ask = async |user: u32| limiter.acquire_charges(&[(&user, 1), (&"tenant", 1)]).await.expect("a decision");
    for user in 0..20 {
        assert!(ask(user).await.is_allowed());
    }
    (0..3).for_each(|node| cluster.run(node, "CONFIG SET maxmemory 1"));
    for user in 0..20 {
        let decision = ask(user).await;
        assert_eq!(decision.decided_by(), DecidedBy::Store);
        assert!(!decision.is_allowed() && !decision.is_locked_out(), "{decision:?}");
    }
    assert_eq!(ask(20).await.decided_by(), DecidedBy::Unlimited, "a charge is rejected");
    (0..3).for_each(|node| cluster.run(node, "CONFIG SET maxmemory 0"));
    assert!(ask(0).await.is_locked_out());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_stands_although_the_master_of_another_slot_is_down() {
    let mut cluster = RedisCluster::start(0);
    let limiter = lenient(store(&cluster).await);
    let mut users = Vec::new();
    for user in 0..20 {
        assert!(limiter.acquire_charges(&[(&user, 1), (&"tenant", 1)]).await.expect("a decision").is_allowed());
        let new: Vec<_> = cluster.keys().into_iter().filter(|key| !users.contains(key)).collect();
        users.extend(new);
    }
    let of = |what: &str| users.iter().filter(|(_, key)| key.contains(what)).map(|(node, _)| *node).collect::<Vec<_>>();
    let down = of(":tenant:")[0];
    cluster.kill(down);
    let mut apart = 0;
    for (user, node) in of(":user:").into_iter().enumerate() {
        let charges: [(&(dyn Key + Sync), u64); 2] = [(&(user as i32), 1), (&"tenant", 1)];
        let decision = limiter.acquire_charges(&charges).await.expect("a decision");
        assert_eq!(decision.is_allowed(), node == down, "{decision:?}");
        apart += usize::from(node != down);
    }
    assert!(apart > 0);
}

/// A denial changes nothing, so cached denials of its keys stay valid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denials_by_several_slots_do_not_affect_those_of_one() {
    let cluster = RedisCluster::start(0);
    let store = store(&cluster).await.remember_denials(Duration::from_secs(600));
    let both = Limiter::builder([daily("user", 1), daily("tenant", 1)]).patient().store(store.clone()).build();
    let one = Limiter::builder([daily("user", 1)]).patient().store(store).build();
    assert!(both.acquire_charges(&[(&"ann", 1), (&"tenant", 1)]).await.expect("a decision").is_allowed());
    let is_asked = async || {
        (0..3).for_each(|node| cluster.run(node, "CONFIG RESETSTAT"));
        assert!(!one.allows("ann", 1).await);
        (0..3).any(|node| cluster.ask::<String>(node, "INFO commandstats").contains("cmdstat_evalsha:"))
    };
    // The charge is visible shortly after its reply.
    let started = Instant::now();
    while is_asked().await {
        assert!(started.elapsed() < Duration::from_secs(20), "nothing is remembered");
    }
    for costs in [[1, 1], [1, 0]] {
        let charges: [(&(dyn Key + Sync), u64); 2] = [(&"ann", costs[0]), (&"tenant", costs[1])];
        assert!(!both.acquire_charges(&charges).await.expect("a decision").is_allowed());
        assert!(!is_asked().await, "{costs:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_are_admitted_exactly_two_shared_limits() {
    let cluster = RedisCluster::start(0);
    let store = store(&cluster).await;
    for pair in 0..8 {
        let limiter = Limiter::builder([daily("one", 40), daily("other", 40)]).patient().store(store.clone()).build();
        let mut tasks = JoinSet::new();
        for _ in 0..100 {
            let limiter = limiter.clone();
            tasks.spawn(async move {
                let keys = (format!("one of {pair}"), format!("other of {pair}"));
                limiter.acquire_charges(&[(&keys.0, 1), (&keys.1, 1)]).await.expect("a decision").is_allowed()
            });
        }
        let allowed = tasks.join_all().await.into_iter().filter(|allowed| *allowed).count();
        assert_eq!(allowed, 40, "pair {pair}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_canceled_between_slots_leaves_no_partial_charge() {
    let cluster = RedisCluster::start(0);
    let limiter =
        Limiter::builder([daily("one", 10_000), daily("other", 10_000)]).patient().store(store(&cluster).await).build();
    // Each request gets a little longer than the one before, until some are in time, however busy the machine is.
    let (mut allowed, mut given) = (0, Duration::ZERO);
    while allowed < 50 {
        let charges: [(&(dyn Key + Sync), u64); 2] = [(&"a", 1), (&"b", 1)];
        let call = limiter.acquire_charges(&charges);
        allowed += u64::from(tokio::time::timeout(given, call).await.is_ok());
        given += given / 50 + Duration::from_micros(2);
    }
    // Cancelled requests are refunded in the background. A request that was cancelled when its reply arrived may be
    // charged, but then by both limits.
    let started = Instant::now();
    loop {
        let decision = peek(&limiter, "a", "b").await;
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
async fn charges_before_an_error_are_refunded() {
    let cluster = RedisCluster::start(0);
    let limiter =
        Limiter::builder([daily("one", 10), daily("other", 10)]).patient().store(store(&cluster).await).build();
    assert!(limiter.acquire_charges(&[(&"a", 1), (&"b", 1)]).await.expect("a decision").is_allowed());
    let (node, _, key) = slot(&cluster, "other");
    cluster.run(node, &format!("DEL {key}"));
    cluster.run(node, &format!("LPUSH {key} 1"));
    for costs in [[1, 0], [1, 1]] {
        let error = limiter.acquire_charges(&[(&"a", costs[0]), (&"b", costs[1])]).await.expect_err("no decision");
        assert!(format!("{error:?}").contains("WRONGTYPE"), "{error:?}");
    }
    cluster.run(node, &format!("DEL {key}"));
    let started = Instant::now();
    loop {
        let decision = peek(&limiter, "a", "b").await;
        if decision.outcomes()[0].remaining() == 9 {
            break;
        }
        assert!(started.elapsed() < Duration::from_secs(20), "it is given back at last: {decision:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A server without memory answers peeks, but charges nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_before_a_charge_that_fails_are_refunded() {
    let cluster = RedisCluster::start(0);
    let limiter =
        Limiter::builder([daily("user", 10), daily("tenant", 1_000)]).patient().store(store(&cluster).await).build();
    let mut allowed = [0_u64; 20];
    for node in 0..3 {
        cluster.run(node, "CONFIG SET maxmemory 1");
        for (user, allowed) in allowed.iter_mut().enumerate() {
            match limiter.acquire_charges(&[(&user, 1), (&"tenant", 1)]).await {
                Ok(decision) => *allowed += u64::from(decision.is_allowed()),
                Err(error) => assert!(format!("{error:?}").contains("OOM"), "{error:?}"),
            }
        }
        cluster.run(node, "CONFIG SET maxmemory 0");
    }
    let of_tenant: u64 = allowed.iter().sum();
    assert!((1..60).contains(&of_tenant), "{allowed:?}");
    for (user, taken) in allowed.into_iter().enumerate() {
        let expected = [10 - taken, 1_000 - of_tenant];
        let started = Instant::now();
        loop {
            let decision = peek(&limiter, user, "tenant").await;
            if [0, 1].map(|limit| decision.outcomes()[limit].remaining()) == expected {
                break;
            }
            assert!(started.elapsed() < Duration::from_secs(20), "user {user}: {expected:?}, not {decision:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A denial before any charge is exactly one strike.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denials_in_another_slot_are_strikes() {
    let cluster = RedisCluster::start(0);
    let began = Arc::new(AtomicUsize::new(0));
    let noted = began.clone();
    let tenant = daily("tenant", 1).penalty(Penalty::after(3, DAY).locked_out_for(DAY));
    let limiter = Limiter::builder([daily("user", 100), tenant]).patient().store(store(&cluster).await);
    let limiter = limiter
        .observe(move |event| {
            if let Event::PenaltyBegan { .. } = event {
                noted.fetch_add(1, Ordering::Relaxed);
            }
        })
        .build();
    let ask = async |user: usize| limiter.acquire_charges(&[(&user, 1), (&"tenant", 1)]).await.expect("a decision");
    assert!(ask(0).await.is_allowed());
    for user in 1..3 {
        assert!(!ask(user).await.is_locked_out());
    }
    assert_eq!(began.load(Ordering::Relaxed), 0);
    assert!(ask(3).await.is_locked_out());
    assert!(ask(4).await.is_locked_out());
    assert_eq!(began.load(Ordering::Relaxed), 1);
    assert_eq!(ask(4).await.outcomes()[0].remaining(), 100, "who is denied takes nothing from others");
    // Each of the two limits alone has one slot, and is decided there.
    let alone = limiter.acquire_charges(&[(&5_usize, 0), (&"tenant", 1)]).await.expect("a decision");
    assert!(alone.is_locked_out());
}

/// No slot sees the quotas of another. An exhausted quota does not deny while a quota in another slot has capacity.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quotas_in_different_slots_deny_only_if_none_has_room() {
    let cluster = RedisCluster::start(0);
    let connect = async || RedisConfig::cluster(cluster.urls()).patient().connect().await.expect("a connection");
    let stores = [connect().await, connect().await];
    let limits = || [daily("own", 10).quota_mode(), daily("team", 25).quota_mode(), daily("all", 1_000)];
    let mut tasks = JoinSet::new();
    for task in 0..12_usize {
        let limiter = Limiter::builder(limits()).patient().store(stores[task % 2].clone()).build();
        tasks.spawn(async move {
            let mut allowed = 0_u64;
            for _ in 0..5 {
                let decision =
                    limiter.acquire_charges(&[(&7, 1), (&"team", 1), (&"all", 1)]).await.expect("a decision");
                allowed += u64::from(decision.is_allowed());
            }
            allowed
        });
    }
    let allowed = tasks.join_all().await.into_iter().sum::<u64>();
    assert_eq!(allowed, 25, "as many as the larger quota has, which every request is charged to");
    let limiter = Limiter::builder(limits()).patient().store(stores[0].clone()).build();
    let denied = limiter.acquire_charges(&[(&7, 1), (&"team", 1), (&"all", 1)]).await.expect("a decision");
    assert!(!denied.is_allowed() && denied.retry_after().is_some_and(|wait| wait <= DAY), "{denied:?}");
    let left: Vec<u64> = denied.outcomes().iter().map(|outcome| outcome.remaining()).collect();
    assert_eq!(left, [0, 0, 975], "a denied request was charged nowhere");
    // The quota of another user still has capacity, although that of the team has none.
    let other = limiter.acquire_charges(&[(&8, 1), (&"team", 1), (&"all", 1)]).await.expect("a decision");
    assert!(other.is_allowed());
    // A quota that costs nothing has capacity, also in the slot of an exhausted one.
    let free = limiter.acquire_charges(&[(&"team", 0), (&"team", 1), (&"all", 1)]).await.expect("a decision");
    assert!(free.is_allowed());
}

/// A clock that exhausts two quotas when it is read for one time, and resets them when it is read for a later one: in
/// between two calls of the store, which reads its clock for each.
#[derive(Debug)]
struct Meddling {
    reads: AtomicUsize,
    exhausts_at: usize,
    resets_at: usize,
    /// With the key of each.
    quotas: [(Limiter, String); 2],
    runtime: Handle,
}

impl Clock for Meddling {
    fn now(&self) -> Timestamp {
        let read = self.reads.fetch_add(1, Ordering::Relaxed);
        let meddle = async || {
            for (limiter, key) in &self.quotas {
                if read == self.exhausts_at {
                    let _ = limiter.acquire(key, 2).await.expect("a decision");
                } else {
                    limiter.reset(key).await.expect("a reset");
                }
            }
        };
        if read == self.exhausts_at || read == self.resets_at {
            thread::scope(|scope| scope.spawn(|| self.runtime.block_on(meddle())).join().expect("no panic"));
        }
        SystemClock::new().now()
    }
}

#[test]
fn a_request_whose_reservation_was_taken_back_is_never_allowed() {
    let cluster = RedisCluster::start(0);
    let [runtime, other] = [(); 2].map(|()| Runtime::new().expect("a runtime"));
    let (own_store, other_store) = (runtime.block_on(store(&cluster)), other.block_on(store(&cluster)));
    let single = |limit| Limiter::builder([limit]).patient().store(other_store.clone()).build();
    let mut allowed = [0, 0];
    for (exhausts_at, resets_at) in (0..10).flat_map(|first| (first + 1..12).map(move |second| (first, second))) {
        let [own, team, all] = ["own", "team", "all"].map(|key| format!("{key} {exhausts_at} {resets_at}"));
        let quotas = [(single(daily("own", 2)), own.clone()), (single(daily("team", 2)), team.clone())];
        let reads = AtomicUsize::new(0);
        let clock = Meddling { reads, exhausts_at, resets_at, quotas, runtime: other.handle().clone() };
        let limits = [daily("own", 2).quota_mode(), daily("team", 2).quota_mode(), daily("all", 1_000)];
        let limiter = Limiter::builder(limits).patient().store(own_store.clone().clock(clock)).build();
        let decision = runtime.block_on(limiter.acquire_charges(&[(&own, 1), (&team, 1), (&all, 1)]));
        let is_allowed = decision.expect("a decision").is_allowed();
        allowed[usize::from(is_allowed)] += 1;
        let left = other.block_on(single(daily("all", 1_000)).acquire(&all, 0)).expect("a decision");
        let charged = 1_000 - left.outcomes()[0].remaining();
        assert_eq!(charged, u64::from(is_allowed), "exhausted at read {exhausts_at}, reset at {resets_at}");
    }
    assert!(allowed.iter().all(|requests| *requests > 0), "{allowed:?} were denied and allowed");
}
