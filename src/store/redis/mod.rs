//! The store in Redis, for a fleet.

mod ask;
mod cluster;
mod connection;
mod deployment;
mod error;
mod key;
mod queue;
mod reserve;
mod script;
mod server;
mod slot;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use futures_util::future::join_all;

use self::cluster::Cluster;
use self::connection::Connections;
use self::deployment::Deployment;
use self::error::Fault;
use self::queue::Queue;
use self::reserve::Apart;
use self::script::{Found, Request, Task};
use self::server::Server;
use super::{Answer, Charge, Refund, Store, Terms};
use crate::decision::Decision;
use crate::error::StoreError;
use crate::hash::{KeyHash, KeyHasher};
use crate::time::Clock;

/// Remembers keys in Redis (6.2 or later) or Valkey, so that a fleet shares its limits: with the
/// answers of a [`MemoryStore`](crate::MemoryStore), to the microsecond.
///
/// All limits of a request are decided and charged by one script, in one round trip, at one instant
/// of Redis' clock; requests that wait for Redis at the same time share a round trip. A key is called `prefix:{hash}:limit:algorithm`, holds 18 bytes (a sliding log
/// 18 for each request, a sliding window for each bucket in use), and vanishes at the millisecond at
/// which it is as if it had never been used.
///
/// ```no_run
/// use tower_ratelimit::{FixedWindow, Limit, Limiter, RedisStore};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::connect("redis://127.0.0.1:6379").await?.secret(*b"0123456789abcdef");
/// let limiter = Limiter::new([Limit::new("mails", FixedWindow::per_day(20))]).store(store);
/// assert!(limiter.acquire("ann@example.org", 1).await?.is_allowed());
/// # Ok(())
/// # }
/// ```
///
/// Its clones share connections.
///
/// # In a Cluster
///
/// The limits of one subject share a slot, and are decided in one round trip as on one server. So are
/// those of several subjects (a user and a tenant, say), if they happen to share one. If not, all slots
/// are first asked at the same time whether they have room, which is where most denials end; then each
/// slot that is charged costs another round trip, in turn. If one has filled up meanwhile and denies,
/// what the others took is given back.
///
/// - Never is more admitted than a limit allows, and nothing stays charged for a denied request. But
///   what is taken and given back is missing for a moment, in which others may be denied for it.
/// - In a [`LeakyBucketQueue`](crate::LeakyBucketQueue) a place is only given back while nobody queues
///   behind it. Or else it passes unused.
/// - Whoever is given up between two slots (by a deadline) is given back what was taken, in the background.
/// - If a slot does not answer, the request is an error, and what others took is given back. What can't
///   be (they do not answer either, or the process ends), and what the silent one may have taken, stays
///   charged.
/// - Each slot decides at an instant of its own master's clock; [`Decision::at`] is the latest of these.
///
/// A charge is only sent again if the Cluster says that it did not run (its slot has moved), or if it
/// could not be sent. Without a master, requests of its slots are errors until its replica has taken its
/// place. Those of other slots go on, if the Cluster is told `cluster-require-full-coverage no`. While a
/// slot is being moved, requests with several keys in it can be errors (`TRYAGAIN`).
///
/// What a master had not told its replica when it died is forgotten, as Redis does not wait for that.
#[derive(Clone)]
pub struct RedisStore {
    deployment: Deployment,
    prefix: Arc<str>,
    hasher: KeyHasher,
    clock: Option<Arc<dyn Clock>>,
}

/// The secret of fleets that were given none: keys are hashed so that they have one size, and by
/// whoever knows this crate.
const NO_SECRET: [u8; 16] = *b"tower-ratelimit\0";

impl RedisStore {
    /// Connects to the Redis at `url`, such as `redis://user:password@host:6379/0`.
    ///
    /// # Errors
    ///
    /// When the URL is not one of Redis, or there is no Redis that answers and lets us load a
    /// script.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        Ok(Self::of(Deployment::Single(Queue::new(Server::Single(Connections::open(url).await?)))))
    }

    /// Connects to a Redis Cluster, of which one of the masters at `urls` is asked for the others.
    /// All are spoken to as the first URL says: with its user, its password and its TLS.
    ///
    /// # Errors
    ///
    /// When a URL is not one of Redis, there is none, or none of the servers answers or is part of a
    /// Cluster.
    pub async fn connect_cluster<'a>(urls: impl IntoIterator<Item = &'a str>) -> Result<Self, StoreError> {
        Ok(Self::of(Deployment::Cluster(Cluster::open(urls).await?)))
    }

    fn of(deployment: Deployment) -> Self {
        Self { deployment, prefix: key::PREFIX.into(), hasher: KeyHasher::with_secret(NO_SECRET), clock: None }
    }

    /// What the names of keys start with: `ratelimit`, unless this says otherwise. Stores of
    /// different prefixes share nothing. All but ASCII letters, digits and `-._/` is
    /// percent-encoded.
    #[must_use]
    pub fn prefix(self, prefix: &str) -> Self {
        let mut escaped = String::new();
        key::escape(prefix, &mut escaped);
        Self { prefix: escaped.into(), ..self }
    }

    /// The secret that keys are hashed with, the same for a whole fleet. Without one, who can read
    /// Redis can find out whether a key that they guess was used, and who can choose keys can make
    /// up two that share a bucket.
    #[must_use]
    pub fn secret(self, secret: [u8; 16]) -> Self {
        Self { hasher: KeyHasher::with_secret(secret), ..self }
    }

    /// Replaces Redis' clock, for tests. Keys are then kept for ten minutes longer than they mean
    /// something, as Redis' own clock goes on.
    #[must_use]
    pub fn clock(self, clock: impl Clock) -> Self {
        Self { clock: Some(Arc::new(clock)), ..self }
    }

    /// Has the script do what is asked, and reads its reply by `read`.
    fn ask<T>(
        &self,
        request: Request,
        read: impl FnOnce(u64, Found) -> Result<T, Fault> + Send + 'static,
    ) -> Answer<T> {
        let deployment = self.deployment.clone();
        let clock = self.instant();
        Answer::pending(async move {
            let (now, found) = deployment.ask(clock, request).await?;
            Ok(read(now, found)?)
        })
    }

    /// The clock that was handed in, as the script reads it.
    fn instant(&self) -> Option<[u8; 24]> {
        self.clock.as_ref().map(|clock| script::clock(clock.now().as_micros()))
    }

    fn decide(&self, task: Task, charges: &[Charge<'_>]) -> Answer<Decision> {
        if self.are_apart(charges.iter().map(|charge| charge.key)) {
            let apart = Apart::new(self.clone(), charges);
            return Answer::pending(async move { Ok(apart.decide(task).await?) });
        }
        let (request, asked) = ask::charges(&self.prefix, task, charges);
        self.ask(request, move |now, found| ask::decision(task, now, &asked, &found))
    }

    /// Whether no one call may carry all these keys: those of several subjects in a Cluster.
    fn are_apart(&self, mut keys: impl Iterator<Item = KeyHash>) -> bool {
        self.deployment.is_cluster() && keys.next().is_some_and(|first| keys.any(|key| key != first))
    }

    /// Has each slot's script do its part, all at the same time.
    fn each(&self, requests: Vec<Request>) -> Answer<()> {
        let store = self.clone();
        Answer::pending(async move {
            let clock = store.instant();
            let ask = |request| store.deployment.ask(clock, request);
            let replies = join_all(requests.into_iter().map(ask)).await;
            Ok(replies.into_iter().try_for_each(|reply| reply.map(drop))?)
        })
    }
}

impl Store for RedisStore {
    fn hasher(&self) -> KeyHasher {
        self.hasher
    }

    fn acquire(&self, charges: &[Charge<'_>]) -> Answer<Decision> {
        self.decide(Task::Acquire, charges)
    }

    fn peek(&self, charges: &[Charge<'_>]) -> Answer<Decision> {
        self.decide(Task::Peek, charges)
    }

    fn refund(&self, refunds: &[Refund<'_>]) -> Answer<()> {
        if refunds.is_empty() {
            return Answer::ready(Ok(()));
        }
        if self.are_apart(refunds.iter().map(|refund| refund.key)) {
            let slots = slot::group(refunds.iter().copied(), |refund| refund.key);
            let slots = slots.into_iter().map(|(_, refunds)| refunds.into_iter().map(|(_, refund)| refund));
            return self.each(slots.map(|refunds| ask::refunds(&self.prefix, &refunds.collect::<Vec<_>>())).collect());
        }
        self.ask(ask::refunds(&self.prefix, refunds), |_, _| Ok(()))
    }

    fn reset(&self, keys: &[(&Arc<Terms>, KeyHash)]) -> Answer<()> {
        if self.are_apart(keys.iter().map(|(_, key)| *key)) {
            let slots = slot::group(keys.iter().copied(), |(_, key)| *key);
            let slots = slots.into_iter().map(|(_, keys)| keys.into_iter().map(|(_, key)| key));
            return self.each(slots.map(|keys| ask::resets(&self.prefix, &keys.collect::<Vec<_>>())).collect());
        }
        self.ask(ask::resets(&self.prefix, keys), |_, _| Ok(()))
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("prefix", &self.prefix).field("clock", &self.clock).finish_non_exhaustive()
    }
}
