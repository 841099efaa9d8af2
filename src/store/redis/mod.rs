//! The store in Redis, for a fleet.

mod ask;
mod beliefs;
mod cluster;
mod config;
mod connection;
mod decision;
mod denials;
mod deployment;
#[cfg(feature = "rules")]
mod document;
mod error;
mod key;
mod limit_data;
mod overrides;
mod queue;
mod reserve;
mod script;
mod sentinel;
mod server;
mod slot;
#[cfg(test)]
mod tests;
#[cfg(feature = "redis-tls")]
mod tls;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;

use self::ask::Asked;
use self::beliefs::Beliefs;
pub use self::config::RedisConfig;
use self::denials::{Denials, Watch};
use self::deployment::Deployment;
use self::error::Fault;
use self::reserve::Apart;
use self::script::{Request, Task, TimedReply};
use super::{Charge, LimitSpec, Node, OverrideStore, Refund, Store, StoreFuture};
use crate::decision::Decision;
use crate::error::StoreError;
use crate::hash::{KeyHash, KeyHasher};
use crate::time::{Clock, SystemClock};

/// Remembers keys in Redis (6.2 or later) or Valkey, so that a fleet shares its limits: with the
/// answers of a [`MemoryStore`](crate::MemoryStore), to the microsecond.
///
/// All limits of a request are decided and charged by one script, in one round trip, at one instant of
/// Redis' clock; requests that wait for Redis at the same time share a round trip. A key is called
/// `prefix:{hash}:limit:rule`, holds 18 bytes (a sliding log 18 for each request, a sliding window for each
/// bucket in use), and vanishes at the millisecond at which it is as if it had never been used; that of a bucket which
/// is charged again before that, up to a sixteenth of its filling time later.
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
/// Its clones share connections.
///
/// [Overrides](crate::Overrides) lie beside the keys that they are about, in `prefix:{hash}:limit:rule:override`.
/// The script compares them with what this process believes them to be; only if one was set, removed or has
/// expired meanwhile does a decision take a second round trip.
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
    /// Its address, without credentials.
    name: Arc<str>,
    prefix: Arc<str>,
    hasher: KeyHasher,
    clock: Option<Arc<dyn Clock>>,
    denials: Option<Arc<Denials>>,
    beliefs: Arc<Beliefs>,
}

/// For how long a denial is told without asking Redis again, unless the store is told otherwise.
const REMEMBERED: Duration = Duration::from_secs(1);

/// How often the script is asked for one decision. Once, unless an override was set, removed or has expired that
/// this process does not know of; more than twice if that happens again between two calls.
const TRIES: usize = 64;

/// How often of these because a request brought no window that holds Redis' present instant: twice, should Redis'
/// clock be set in between.
const CORRECTIONS: usize = 2;

/// The secret of fleets that were given none: keys are hashed so that they have one size, and by
/// whoever knows this crate.
const NO_SECRET: [u8; 16] = *b"tower-ratelimit\0";

impl RedisStore {
    /// Connects to the Redis at `url`, such as `redis://user:password@host:6379/0`: short for
    /// [`RedisConfig::node`] and [`connect`](RedisConfig::connect).
    ///
    /// # Errors
    ///
    /// When the URL is not one of Redis, or there is no Redis that answers and lets us load a
    /// script.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        RedisConfig::node(url).connect().await
    }

    fn over(deployment: Deployment, name: String) -> Self {
        Self {
            deployment,
            name: name.into(),
            prefix: key::PREFIX.into(),
            hasher: KeyHasher::with_secret(NO_SECRET),
            clock: None,
            denials: Denials::new(REMEMBERED),
            beliefs: Arc::default(),
        }
    }

    /// What the names of keys start with: `ratelimit`, unless this says otherwise. Stores of
    /// different prefixes share nothing. All but ASCII letters, digits and `-._/` is
    /// percent-encoded.
    #[must_use]
    pub fn prefix(self, prefix: &str) -> Self {
        let mut escaped = String::new();
        key::escape(prefix, &mut escaped);
        Self { prefix: escaped.into(), ..self }.forgetful()
    }

    /// The secret that keys are hashed with, the same for a whole fleet. Without one, who can read
    /// Redis can find out whether a key that they guess was used, and who can choose keys can make
    /// up two that share a bucket.
    #[must_use]
    pub fn secret(self, secret: [u8; 16]) -> Self {
        Self { hasher: KeyHasher::with_secret(secret), ..self }.forgetful()
    }

    /// Replaces Redis' clock, for tests. Keys are then kept for ten minutes longer than they mean
    /// something, as Redis' own clock goes on.
    #[must_use]
    pub fn clock(self, clock: impl Clock) -> Self {
        Self { clock: Some(Arc::new(clock)), ..self }.forgetful()
    }

    /// For how long a denial is told again before Redis is asked again: one second, unless this says
    /// otherwise; for [`Duration::ZERO`], Redis is asked each time.
    ///
    /// Who was denied is denied here until the wait is over that they were told, exactly, so that a
    /// flood from one client does not reach Redis. What this process does to a key (a charge, a
    /// refund, a reset) and what it asks (a smaller cost, a raised limit) counts at once; what another
    /// process gives back or resets counts when Redis is asked again: hence this bound, a call per
    /// second and key. What is *left* of limits that did have room can be as old.
    ///
    /// So does a refund or reset that was given up (by a deadline), if Redis does it after all, and later.
    ///
    /// Denials by a limit with a [`Penalty`](crate::Penalty) are counted in Redis, each of them, until the key
    /// is refused: that is remembered. Where only another limit denies, what other processes have taken from
    /// the one with the penalty meanwhile can be as late, and a strike be missed for it.
    ///
    /// At most 8,192 denials are remembered, in less than 5 MB, none before the first one. Clones of
    /// this store share them.
    #[must_use]
    pub fn remember_denials(self, span: Duration) -> Self {
        Self { denials: Denials::new(span), ..self }
    }

    /// Remembers denials and overrides of its own: those of other keys, or by another clock, mean nothing to it.
    fn forgetful(self) -> Self {
        let denials = self.denials.as_ref().and_then(|denials| Denials::new(denials.life()));
        Self { denials, beliefs: Arc::default(), ..self }
    }

    fn run(&self, task: Task, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        let clock = self.now();
        if let Some(decision) = self.remembered_at(clock, charges) {
            return StoreFuture::remembered(decision);
        }
        let watch = self.watch(charges.iter().map(|charge| (charge.spec, charge.key)), task == Task::Acquire);
        if self.are_apart(charges) {
            let apart = Apart::new(self.clone(), charges, watch);
            return StoreFuture::pending(async move { Ok(apart.decide(task).await?) });
        }
        let store = self.clone();
        let mut asked = self.asked(charges);
        StoreFuture::pending(async move {
            let (now, found) = store.find(task, clock, &mut asked).await?;
            let decision = decision::of(task, now, &asked, &found)?;
            if let Some(watch) = watch {
                watch.decided(asked, found, &decision);
            }
            Ok(decision)
        })
    }

    /// Charges, of the sizes that limits are believed to have for their keys.
    fn asked(&self, charges: &[Charge<'_>]) -> SmallVec<[Asked; 2]> {
        charges.iter().map(|charge| Asked::new(charge, &self.beliefs)).collect()
    }

    /// What the script finds. It is asked again if an override is not what it was believed to be, or if its clock
    /// is in no window that it was sent.
    async fn find(&self, task: Task, clock: Option<u64>, asked: &mut [Asked]) -> TimedReply {
        // Only calendars ask.
        let mut present = if asked.iter().any(Asked::is_of_a_calendar) { self.present(clock) } else { 0 };
        let mut corrections = 0..CORRECTIONS;
        for _ in 0..TRIES {
            let request = ask::charges(&self.prefix, task, present, asked);
            match self.deployment.ask(clock.map(script::encode_clock), request).await {
                Ok((_, found)) if found.has_override_changed() => ask::correct(asked, &found, &self.beliefs)?,
                Ok(found) => return Ok(found),
                Err(fault) => match fault.present().filter(|_| corrections.next().is_some()) {
                    Some(now) => present = now,
                    None => return Err(fault),
                },
            }
        }
        Err(Fault::Changing)
    }

    fn remembered_at(&self, clock: Option<u64>, charges: &[Charge<'_>]) -> Option<Decision> {
        let denials = self.denials.as_ref()?;
        if !charges.iter().any(|charge| charge.spec.is_overridable()) {
            return denials.answer(charges, clock, u64::MAX);
        }
        let asked = self.asked(charges);
        let charges: SmallVec<[Charge<'_>; 4]> = asked.iter().map(Asked::charge).collect();
        let until = asked.iter().filter_map(Asked::until).min().unwrap_or(u64::MAX);
        denials.answer(&charges, clock, until)
    }

    /// Has the script change what `keys` hold, by a request for each slot, all at the same time.
    fn change<'a>(
        &self,
        requests: Vec<Request>,
        keys: impl Iterator<Item = (&'a Arc<LimitSpec>, KeyHash)>,
    ) -> StoreFuture<()> {
        let watch = self.watch(keys, true);
        let deployment = self.deployment.clone();
        let clock = self.now().map(script::encode_clock);
        StoreFuture::pending(async move {
            let replies = join_all(requests.into_iter().map(|request| deployment.ask(clock, request))).await;
            drop(watch);
            Ok(replies.into_iter().try_for_each(|reply| reply.map(drop))?)
        })
    }

    /// Whether no one call may carry the keys of all charges: those of several subjects in a Cluster.
    fn are_apart(&self, charges: &[Charge<'_>]) -> bool {
        let mut keys = charges.iter().map(|charge| charge.key);
        self.deployment.is_cluster() && keys.next().is_some_and(|first| keys.any(|key| key != first))
    }

    /// What one call may carry together.
    fn by_slot<T: Copy>(&self, all: &[T], key: impl Fn(&T) -> KeyHash) -> Vec<Vec<T>> {
        if !self.deployment.is_cluster() {
            return vec![all.to_vec()];
        }
        let slots = slot::group(all.iter().copied(), key);
        slots.into_iter().map(|(_, slot)| slot.into_iter().map(|(_, one)| one).collect()).collect()
    }

    /// The present instant, where a clock is handed in.
    fn now(&self) -> Option<u64> {
        self.clock.as_ref().map(|clock| clock.now().as_micros())
    }

    /// What this machine takes for the present instant, unless that is handed in: its wall clock may have
    /// been set since it started.
    fn present(&self, clock: Option<u64>) -> u64 {
        clock.unwrap_or_else(|| SystemClock::new().now().as_micros())
    }

    fn watch<'a>(&self, keys: impl Iterator<Item = (&'a Arc<LimitSpec>, KeyHash)>, changes: bool) -> Option<Watch> {
        let denials = self.denials.as_ref()?;
        Some(denials.watch(keys.map(|(spec, key)| spec.fingerprint(key)), changes))
    }
}

impl Store for RedisStore {
    fn hasher(&self) -> KeyHasher {
        self.hasher
    }

    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.run(Task::Acquire, charges)
    }

    fn peek(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.run(Task::Peek, charges)
    }

    fn remembered(&self, charges: &[Charge<'_>]) -> Option<Decision> {
        self.remembered_at(self.now(), charges)
    }

    fn name(&self) -> Option<String> {
        Some(self.name.to_string())
    }

    fn node(&self, key: KeyHash) -> Option<Node> {
        self.deployment.node(key)
    }

    fn refund(&self, refunds: &[Refund<'_>]) -> StoreFuture<()> {
        if refunds.is_empty() {
            return StoreFuture::ready(Ok(()));
        }
        let requests = self.by_slot(refunds, |refund| refund.key);
        let requests = requests.iter().map(|refunds| ask::refunds(&self.prefix, refunds)).collect();
        self.change(requests, refunds.iter().map(|refund| (refund.spec, refund.key)))
    }

    fn reset(&self, keys: &[(&Arc<LimitSpec>, KeyHash)]) -> StoreFuture<()> {
        let requests = self.by_slot(keys, |(_, key)| *key);
        let requests = requests.iter().map(|keys| ask::resets(&self.prefix, keys)).collect();
        self.change(requests, keys.iter().copied())
    }

    fn overrides(&self) -> Option<&dyn OverrideStore> {
        Some(self)
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("prefix", &self.prefix).field("clock", &self.clock).finish_non_exhaustive()
    }
}
