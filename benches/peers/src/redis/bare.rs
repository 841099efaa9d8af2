//! Scripts that are called as most clients do: one call for each decision.

use deadpool_redis::{Config, Pool, Runtime};
use futures_util::future::BoxFuture;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Script};

use super::call::Call;
use super::server::RedisServer;
use crate::keys;
use crate::subject::{PATIENCE, Shared};

/// Nearly the least that a limiter with an exact clock does: read the time and a number, write it, set its expiry.
const GCRA: &str = "
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    local at = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now) + ARGV[1]
    if at - now > tonumber(ARGV[2]) then return {0, at - now} end
    redis.call('SET', KEYS[1], string.format('%.0f', at), 'PX', math.ceil((at - now) / 1000))
    return {1, at - now}";

/// A connection that can be shared.
pub async fn connect(url: &str) -> MultiplexedConnection {
    let client = Client::open(url).expect("a client");
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
    client.get_multiplexed_async_connection_with_config(&config).await.expect("a connection")
}

/// The minimal script, on one shared connection.
pub struct Bare {
    script: Script,
    connection: MultiplexedConnection,
}

impl Bare {
    pub fn new(connection: MultiplexedConnection) -> Self {
        Self { script: Script::new(GCRA), connection }
    }
}

impl Shared for Bare {
    fn decide(&self, key: u64) -> BoxFuture<'_, bool> {
        let mut connection = self.connection.clone();
        let mut call = self.script.key(format!("bare:{}", keys::name(key as u32)));
        // 100 million at once, one more every 10 s.
        call.arg(10_000_000_u64).arg(1_000_000_000_000_000_u64);
        Box::pin(async move {
            let (allowed, _): (u64, u64) = call.invoke_async(&mut connection).await.expect("a reply");
            allowed == 1
        })
    }
}

/// This crate's script, on one shared connection.
pub struct OwnScript {
    pub call: Call,
    pub connection: MultiplexedConnection,
}

impl Shared for OwnScript {
    fn decide(&self, key: u64) -> BoxFuture<'_, bool> {
        let mut connection = self.connection.clone();
        Box::pin(async move {
            self.call.send(&mut connection, key).await;
            true
        })
    }
}

/// The same, each call on a connection from a pool, as pools are usually used.
pub struct Pooled {
    call: Call,
    pool: Pool,
}

impl Pooled {
    pub fn new(call: Call, server: &RedisServer) -> Self {
        let pool = Config::from_url(server.url()).create_pool(Some(Runtime::Tokio1)).expect("a pool");
        Self { call, pool }
    }
}

impl Shared for Pooled {
    fn decide(&self, key: u64) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            let mut connection = self.pool.get().await.expect("a connection");
            self.call.send(&mut connection, key).await;
            true
        })
    }
}
