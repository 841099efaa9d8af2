//! Overrides of keys in several slots.

use tower_ratelimit::key::Key;
use tower_ratelimit::{FixedWindow, Limit, Limiter, TokenBucket};

use crate::cluster::DAY;
use crate::cluster::store;
use support::limits::Patient;
use support::redis_cluster::RedisCluster;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overrides_apply_in_every_slot() {
    let cluster = RedisCluster::start(0);
    let limits = || {
        [
            Limit::new("user", FixedWindow::new(10, DAY * 366)).overridable(),
            Limit::new("tenant", TokenBucket::new(10, 10, DAY * 366)).overridable(),
        ]
    };
    let one = Limiter::builder(limits()).patient().store(store(&cluster).await).build();
    let other = Limiter::builder(limits()).patient().store(store(&cluster).await).build();
    let (users, tenants) = (one.limit("user").unwrap(), one.limit("tenant").unwrap());

    let acquire = async |node: &Limiter, user: u64, cost: u64| {
        let charges: [(&(dyn Key + Sync), u64); 2] = [(&user, cost), (&"tenant", cost)];
        let decision = node.acquire_charges(&charges).await.unwrap();
        let left: Vec<u64> = decision.outcomes().iter().map(|outcome| outcome.remaining()).collect();
        (decision.is_allowed(), left[0], left[1])
    };
    for user in 0..6_u64 {
        // Both processes know of no overrides.
        assert_eq!(acquire(&one, user, 0).await, (true, 10, 10));
        assert_eq!(acquire(&other, user, 0).await, (true, 10, 10));
    }
    tenants.set_override("tenant", TokenBucket::new(1_000, 10, DAY * 366), None).await.unwrap();
    for user in 0..6_u64 {
        users.set_override(user, FixedWindow::new(30 + user as u32, DAY * 366), None).await.unwrap();
    }
    let mut tenant = 1_000;
    for user in 0..6_u64 {
        tenant -= 20;
        assert_eq!(acquire(&other, user, 20).await, (true, 10 + user, tenant), "user {user}");
        assert_eq!(acquire(&one, user, 20).await, (false, 10 + user, tenant), "user {user}");
        users.remove_override(user).await.unwrap();
        assert_eq!(acquire(&other, user, 1).await, (false, 0, tenant), "user {user}");
        assert_eq!(users.get_override(user).await.unwrap(), None);
    }
    // If another slot denies, a charge is refunded by the size of the charge.
    users.set_override(9_u64, FixedWindow::new(5, DAY * 366), None).await.unwrap();
    assert_eq!(acquire(&other, 9, 6).await, (false, 5, tenant));
    assert_eq!(acquire(&other, 9, 5).await, (true, 0, tenant - 5));

    // Each override is in the slot of its key.
    let keys = cluster.keys();
    let overrides: Vec<_> = keys.iter().filter(|(_, key)| key.ends_with(":override")).collect();
    assert_eq!(overrides.len(), 2);
    for (node, key) in overrides {
        let of = key.strip_suffix(":override").unwrap();
        assert!(keys.iter().any(|(at, key)| at == node && key == of), "{of}");
        let [one, other]: [u16; 2] =
            [key.as_str(), of].map(|key| cluster.ask(*node, &format!("CLUSTER KEYSLOT {key}")));
        assert_eq!(one, other);
    }
}
