//! The public type of the store, its settings, and how it connects.

use std::fmt;
#[cfg(feature = "rules")]
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "rules")]
use redis::{Value, cmd, from_redis_value};
use smallvec::smallvec;

use super::cluster::{Cluster, slot_of};
use super::config::{RedisConfig, Servers};
use super::error::Fault;
use super::queue::{Command, CommandReply};
use super::request::{Reply, Request, encode_clock};
use super::workers::Workers;
use crate::error::StoreError;
use crate::key::hash::KeyHasher;
use crate::store::{Remembering, SharedHasher, escape};
use crate::time::Clock;
#[cfg(feature = "rules")]
use crate::time::SystemClock;

/// Stores limits in Redis (6.2 or later) or Valkey, shared by all instances of a service.
///
/// It decides exactly as a [`MemoryStore`](crate::MemoryStore) would, to the microsecond, except that denials are
/// [remembered](Self::remember_denials), and that limits may be in several slots of [a Cluster](#in-a-cluster). One
/// script decides and charges all limits of a request together, in one round trip, at one instant of Redis' clock.
/// Concurrent requests share round trips.
///
/// A key is named `prefix:{hash}:limit:rule` and holds 22 or 29 bytes; a sliding log 15 bytes per request, a sliding
/// window 15 bytes per bucket in use. Redis deletes a key a second after its state equals that of an unused key. The key
/// of a bucket that is charged again may live longer, by up to a sixteenth of the time that the bucket takes to fill.
///
/// Clones share connections and remembered denials.
///
/// ```no_run
/// use tower_ratelimit::{FixedWindow, Limit, Limiter, RedisStore};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::connect("redis://127.0.0.1:6379").await?.secret(*b"0123456789abcdef");
/// let limiter = Limiter::builder([Limit::new("mails", FixedWindow::per_day(20))]).store(store).build();
/// assert!(limiter.acquire("ann@example.org", 1).await?.is_allowed());
/// # Ok(())
/// # }
/// ```
///
/// # Overrides
///
/// An [override](crate::LimitHandle#overrides) has a key of its own, `prefix:{hash}:limit:rule:override`, which the
/// script reads with the state of the key.
///
/// # In a Cluster
///
/// The limits of one subject share a slot, and are decided in one round trip. So are limits of several subjects, such
/// as a user and a tenant, whose slots happen to be the same. Otherwise the store first peeks at all slots
/// concurrently, which is where most denials end. It then charges the slots in turn, with one round trip each. If a
/// slot has filled up meanwhile and denies, the store refunds the others.
///
/// - No limit ever admits more than it allows, and a denied request leaves nothing charged. While tokens are reserved
///   and not yet refunded, other requests may be denied for them.
/// - A [`LeakyBucketQueue`](crate::LeakyBucketQueue) can refund a slot only if no other request is queued behind it.
///   Otherwise, the slot passes unused.
/// - If the caller gives up between two slots, for instance at a deadline, the store refunds in the background. So such
///   requests are errors outside a Tokio runtime.
/// - If a slot does not answer, the request fails, unless another slot denies it. The store refunds the others. Tokens
///   stay charged if they cannot be refunded (another slot does not answer either, or the process ends), and if the
///   silent slot has charged them.
/// - Each slot decides at an instant of its own master's clock. [`Decision::at`](crate::Decision::at) is the latest.
///
/// A charge is sent again only if the Cluster reports that it did not run (the slot has moved), or if it could not be
/// sent. While a slot has no master, requests for it fail until a replica takes over; requests for other slots proceed
/// if the Cluster is configured with `cluster-require-full-coverage no`. While a slot is being migrated, requests with
/// several keys in it may fail (`TRYAGAIN`).
///
/// Redis replicates asynchronously: charges that a master had not replicated when it failed are lost.
#[derive(Clone, Debug)]
pub struct RedisStore(pub(super) Remembering<SlotStore>);

/// The store of the keys of one slot, or of one server, which remembers no denials.
#[derive(Clone)]
pub(super) struct SlotStore {
    pub(super) deployment: Deployment,
    /// The address of the server, without credentials.
    pub(super) name: Arc<str>,
    pub(super) prefix: Arc<str>,
    pub(super) hasher: SharedHasher,
    pub(super) clock: Option<Arc<dyn Clock>>,
}

impl RedisStore {
    /// Connects to the Redis at `url`, such as `redis://user:password@host:6379/0`.
    ///
    /// Short for [`RedisConfig::node`] and [`connect`](RedisConfig::connect).
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is invalid (its [`source`](std::error::Error::source) is then a
    /// [`ConfigError`](crate::ConfigError)), if Redis does not answer or rejects the credentials, or if a command that
    /// the store needs is not permitted.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        RedisConfig::node(url).connect().await
    }

    /// Sets the prefix of all key names. Defaults to that of the configuration, `ratelimit` if it has none. If Redis
    /// restricts the user to some keys, set it by [`RedisConfig::prefix`], so that connecting checks it.
    ///
    /// Stores with different prefixes share nothing. All characters but ASCII letters, digits and `-._/` are
    /// percent-encoded.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.0.configure().prefix = escape(prefix).into();
        self
    }

    /// Sets the secret that keys are hashed with. Defaults to a constant that is public, of which a warning is logged.
    ///
    /// All instances of a service must use the same secret. With a secret, those who can read Redis cannot test whether
    /// a guessed key, such as a client's address, was used; and clients cannot construct two keys that share a state.
    #[must_use]
    pub fn secret(mut self, secret: [u8; 16]) -> Self {
        self.0.configure().hasher = SharedHasher(KeyHasher::with_secret(secret), None);
        self
    }

    /// Replaces Redis' clock, for tests. Keys then live ten minutes longer, because Redis expires them by its own
    /// clock.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.0.configure().clock = Some(Arc::new(clock));
        self
    }

    /// Sets for how long a denial is repeated without calling Redis again. Defaults to one second; [`Duration::ZERO`]
    /// turns this off.
    ///
    /// A denied key is denied locally until its `retry_after` has passed, exactly, so that a flood of requests from one
    /// client does not reach Redis. Changes by this process (a charge, a refund, a reset, a smaller cost, a raised
    /// limit) take effect at once. Refunds and resets by other processes take effect when Redis is called again, so
    /// this duration bounds the delay, at the price of one call per duration and key. It also bounds the age of
    /// `remaining` that such a denial reports for limits that still have tokens. A refund or reset whose caller gave
    /// up, for instance at a deadline, may also take effect late.
    ///
    /// Each denial by a limit with a [`Penalty`](crate::Penalty) counts as a strike in Redis, so such denials are
    /// cached only once the key is locked out. If only another limit denies, charges that other processes make to the
    /// limit with the penalty are seen late, and a strike may be missed.
    ///
    /// Denials of requests with more than eight limits, of which each with a penalty counts twice, or with keys in
    /// several slots of a Cluster, are not cached.
    ///
    /// At most 8,192 denials are cached, in less than 5 MB, or 20 MB if all are of eight limits. Clones of this store
    /// share them.
    #[must_use]
    pub fn remember_denials(self, span: Duration) -> Self {
        Self(self.0.remember_denials(span))
    }
}

impl SlotStore {
    /// Returns the current time (in µs) of the clock that replaces Redis', if there is one.
    pub(super) fn test_clock(&self) -> Option<u64> {
        self.clock.as_ref().map(|clock| clock.now().as_micros())
    }

    /// Sends `request` to the script, to be decided by Redis' own clock or by that of a test. Returns its instant (in
    /// µs) and its reply.
    pub(super) async fn send(&self, request: Request) -> Result<(u64, Reply), Fault> {
        let key = request.keys.first().filter(|_| self.deployment.is_cluster());
        let slot = key.map_or(0, |key| slot_of(key));
        let command = Command::Script(self.test_clock().map(encode_clock), smallvec![request]);
        match self.deployment.send(slot, command).await? {
            CommandReply::Script(now, reply) => Ok((now, reply)),
            CommandReply::Other(_) => Err(Fault::Reply("expected a reply of the script")),
        }
    }
}

/// Documents that all instances share, stored without expiry: the text at `prefix:name`, and at `prefix:name:version` a
/// version that differs for each published text.
#[cfg(feature = "rules")]
impl RedisStore {
    /// Replaces a text. Writes the version last, so that a reader that sees it also sees the text.
    pub(crate) async fn publish(&self, name: &str, text: &str) -> Result<(), StoreError> {
        let random = RandomState::new().hash_one(text);
        let version = format!("{:x}-{random:016x}", SystemClock::new().now().as_micros());
        for (name, value) in [(name, text), (&format!("{name}:version"), &version)] {
            self.query("SET", name, Some(value)).await?;
        }
        Ok(())
    }

    /// Returns the version of the current text.
    pub(crate) async fn version(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.text(&format!("{name}:version")).await
    }

    /// Returns the current text.
    pub(crate) async fn text(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let text = self.query("GET", name, None).await?;
        from_redis_value(text).map_err(|_| Fault::Reply("expected a text").into())
    }

    /// Sends a command on the key of a text.
    async fn query(&self, command: &str, name: &str, value: Option<&str>) -> Result<Value, Fault> {
        let SlotStore { deployment, prefix, .. } = &self.0.inner;
        let key = format!("{prefix}:{name}");
        let command = Command::Other(cmd(command).arg(&key).arg(value).clone());
        deployment.send(slot_of(&key), command).await?.into_value()
    }
}

impl RedisConfig {
    /// Connects, loads the script, and checks that the server permits all [commands](RedisConfig#permissions) on keys
    /// of the [prefix](RedisConfig::prefix), and that it accepts writes.
    ///
    /// # Errors
    ///
    /// Returns an error if the configuration is invalid (its [`source`](std::error::Error::source) is then a
    /// [`ConfigError`](crate::ConfigError)), if Redis does not answer or rejects the credentials, if a command or key
    /// that the store needs is not permitted, or if Redis accepts no writes, for example because it is a replica or its
    /// memory is full. A Cluster may lack less than half of its masters.
    pub async fn connect(self) -> Result<RedisStore, StoreError> {
        let store = self.build()?;
        let SlotStore { deployment, name, .. } = &store.0.inner;
        let opened = match deployment {
            Deployment::Single(workers) => workers.open().await,
            Deployment::Cluster(cluster) => cluster.open().await,
        };
        opened.map_err(|fault| StoreError::unusable(Some(name.to_string()), fault))?;
        Ok(store)
    }

    /// Connects in the background, for services that must start while Redis is down.
    ///
    /// Decisions fail until there is a connection. Outside a Tokio runtime, the first decision connects.
    ///
    /// # Errors
    ///
    /// Returns an error if the configuration is invalid. Its [`source`](std::error::Error::source) is a
    /// [`ConfigError`](crate::ConfigError).
    pub fn connect_lazily(self) -> Result<RedisStore, StoreError> {
        let store = self.build()?;
        match &store.0.inner.deployment {
            Deployment::Single(workers) => workers.start(self.connections, Vec::new()),
            Deployment::Cluster(cluster) => cluster.refresh(),
        }
        Ok(store)
    }

    /// Creates the store. Its connections are opened later.
    ///
    /// # Errors
    ///
    /// Returns [`Fault::Setting`] if the configuration is invalid.
    fn build(&self) -> Result<RedisStore, Fault> {
        let (servers, _) = self.servers()?;
        let deployment = match &self.servers {
            Servers::Cluster => Deployment::Cluster(Arc::new(Cluster::new(servers, self.clone())?)),
            _ => Deployment::Single(Arc::new(Workers::new(self, None))),
        };
        Ok(RedisStore(Remembering::new(SlotStore {
            deployment,
            name: self.address().into(),
            prefix: self.prefix.as_str().into(),
            hasher: SharedHasher::public(),
            clock: None,
        })))
    }
}

impl fmt::Debug for SlotStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotStore").field("prefix", &self.prefix).field("clock", &self.clock).finish_non_exhaustive()
    }
}

#[derive(Clone)]
pub(super) enum Deployment {
    Single(Arc<Workers>),
    Cluster(Arc<Cluster>),
}

impl Deployment {
    async fn send(&self, slot: u16, command: Command) -> Result<CommandReply, Fault> {
        match self {
            Self::Single(workers) => workers.send(slot, command, false).await,
            // Boxed, because this future is larger than that of a single server.
            Self::Cluster(cluster) => Box::pin(cluster.send(slot, command)).await,
        }
    }

    /// Returns whether keys have slots.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use futures_util::FutureExt;

    use super::*;
    use crate::error::ConfigError;

    #[test]
    fn connecting_outside_a_runtime_is_an_error() {
        let url = "redis://127.0.0.1:1";
        for config in [RedisConfig::node(url), RedisConfig::sentinel("main", [url]), RedisConfig::cluster([url])] {
            let error = config.connect().now_or_never().expect("an answer").unwrap_err();
            assert!(format!("{error:?}").contains("there is no Tokio runtime"), "{error:?}");
        }
    }

    #[test]
    fn an_invalid_configuration_is_a_config_error() {
        let node = || RedisConfig::node("redis://127.0.0.1:6379");
        let no_urls: [&str; 0] = [];
        for (config, expected) in [
            (RedisConfig::node("redis//localhost"), "the URL of Redis is invalid: write redis://host:port"),
            (node().connections(0), "the configuration of Redis is invalid: 0 connections: use 1 to 1024"),
            (node().queue_capacity(0), "the configuration of Redis is invalid: queue_capacity is 0"),
            (RedisConfig::sentinel("main", no_urls), "the configuration of Redis is invalid: there is no URL"),
            (RedisConfig::cluster(no_urls), "the configuration of Redis is invalid: there is no URL"),
            (
                RedisConfig::cluster(["redis+unix:///run/redis.sock"]),
                "the configuration of Redis is invalid: \
                 a Cluster is not reachable through the Unix socket /run/redis.sock",
            ),
        ] {
            let error = config.connect_lazily().unwrap_err();
            let cause = error.source().and_then(|source| source.downcast_ref::<ConfigError>()).unwrap();
            assert!(cause.to_string().starts_with(expected), "{cause}");
            assert_eq!(error.to_string(), format!("the rate limit store can't be used: {cause}"));
        }
    }
}
