//! Explanations of decisions by Redis.

use support::explained::{Checked, Choices, Stores, check_layer, check_limiter};
use support::patient::{Patient, connected};
use support::redis_server::RedisServer;
use tower_ratelimit::{ManualClock, RedisConfig, RedisStore};

/// Queues delay requests by Tokio's clock, which is not paused here.
const CHOICES: Choices = Choices { queues: false };

async fn stores(server: &RedisServer, case: &str) -> Stores<RedisStore> {
    let clock = ManualClock::default();
    let store = connected(RedisConfig::node(server.url()).patient()).await.clock(clock.clone());
    let prefix = |name| store.clone().prefix(&format!("{case}-{name}"));
    Stores { explained: prefix("explained"), control: prefix("control"), clock }
}

#[tokio::test]
async fn explanations_agree_with_the_decisions_of_redis() {
    let server = RedisServer::start();
    let mut checked = Checked::default();
    for seed in 0..20 {
        check_layer(seed, 25, CHOICES, stores(&server, &format!("layer-{seed}")).await, &mut checked).await;
        check_limiter(seed, 25, CHOICES, stores(&server, &format!("limiter-{seed}")).await, &mut checked).await;
    }
    assert!(checked.allowed > 50 && checked.denied > 50 && checked.locked_out > 0, "{checked:?}");
}
