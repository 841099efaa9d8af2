//! Processes that share a store over networks that delay, lose and separate, in simulated time.

use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::split_mix::Random;
use tokio::time::{Instant, sleep};
use tower_ratelimit::store::{Answer, Charges, KeyHasher, Purpose, Remembering, StoreFuture};
use tower_ratelimit::{Clock, Limit, Limiter, LiveLimits, MemoryStore, Store, Timestamp};

use crate::judge::Rule;

/// The clock of the store. It runs at another rate than those of the processes, and may step back.
#[derive(Debug)]
pub(crate) struct StoreClock {
    began: Instant,
    start: u64,
    /// By how many millionths it is faster.
    ppm: i64,
    /// By how many µs it was stepped.
    steps: AtomicI64,
}

impl StoreClock {
    pub(crate) fn new(start: u64, ppm: i64) -> Arc<Self> {
        Arc::new(Self { began: Instant::now(), start, ppm, steps: AtomicI64::new(0) })
    }

    pub(crate) fn step_back(&self, micros: u64) {
        self.steps.fetch_sub(micros as i64, Ordering::Relaxed);
    }
}

impl Clock for StoreClock {
    fn now(&self) -> Timestamp {
        let elapsed = self.began.elapsed().as_micros() as i64;
        let now = self.start as i64 + elapsed + elapsed * self.ppm / 1_000_000 + self.steps.load(Ordering::Relaxed);
        Timestamp::from_micros(now as u64)
    }
}

/// Counts the calls of a run.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    pub(crate) decisions: AtomicU64,
    pub(crate) refunds: AtomicU64,
}

/// The connection of a process to the store.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    store: Arc<MemoryStore>,
    random: Arc<Mutex<Random>>,
    pub(crate) network: Network,
    is_cut: Arc<AtomicBool>,
    pub(crate) calls: Arc<Calls>,
}

/// How long messages take, at least and at most, in µs, and how many of a thousand are lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Network {
    pub(crate) least: u64,
    pub(crate) most: u64,
    pub(crate) lost: u64,
}

impl Link {
    /// Takes a message to the other side, unless it is lost.
    async fn pass(&self) {
        let (delay, is_lost) = {
            let mut random = self.random.lock().unwrap();
            let Network { least, most, lost } = self.network;
            (least + random.below(most - least + 1), random.below(1_000) < lost)
        };
        sleep(Duration::from_micros(delay)).await;
        if is_lost || self.is_cut.load(Ordering::Relaxed) {
            pending().await
        }
    }

    /// Calls the store, and counts that.
    fn call<T: Send + Unpin + 'static>(
        &self,
        count: fn(&Calls) -> &AtomicU64,
        operation: impl FnOnce(&MemoryStore) -> StoreFuture<T> + Send + 'static,
    ) -> StoreFuture<T> {
        let link = self.clone();
        count(&link.calls).fetch_add(1, Ordering::Relaxed);
        StoreFuture::pending(async move {
            link.pass().await;
            let answer = operation(&link.store).await;
            link.pass().await;
            answer
        })
    }
}

impl Store for Link {
    fn hasher(&self) -> KeyHasher {
        self.store.hasher()
    }

    fn decide(&self, charges: &mut Charges, purpose: Purpose, longest_wait: Duration) -> StoreFuture<Answer> {
        let mut charges = charges.clone();
        self.call(
            |calls| &calls.decisions,
            move |store| {
                let answer = store.decide(&mut charges, purpose, longest_wait).into_ready();
                StoreFuture::ready(answer.unwrap().map(|answer| {
                    let at = answer.finish(&mut charges);
                    Answer::with_charges(at, charges)
                }))
            },
        )
    }

    fn refund(&self, charges: &Charges) -> StoreFuture<()> {
        let charges = charges.clone();
        self.call(|calls| &calls.refunds, move |store| store.refund(&charges))
    }

    fn reset(&self, charges: &Charges) -> StoreFuture<()> {
        let charges = charges.clone();
        self.call(|calls| &calls.refunds, move |store| store.reset(&charges))
    }
}

/// A process.
pub(crate) struct Process {
    pub(crate) limiter: Limiter,
    pub(crate) limits: LiveLimits,
    pub(crate) link: Link,
}

impl Process {
    pub(crate) fn start(
        rules: &[Rule],
        term: Duration,
        store: &Arc<MemoryStore>,
        network: Network,
        seed: u64,
        calls: &Arc<Calls>,
    ) -> Self {
        let link = Link {
            store: store.clone(),
            random: Arc::new(Mutex::new(Random(seed))),
            network,
            is_cut: Arc::default(),
            calls: calls.clone(),
        };
        let limits = LiveLimits::new(limits(rules, term));
        let builder = Limiter::live_builder(&limits).store(Remembering::new(link.clone()));
        Self { limiter: builder.deadline(Duration::from_secs(1)).build(), limits, link }
    }

    /// Cuts the process off, or connects it again. One that is never connected again has crashed, for the others.
    pub(crate) fn cut(&self, is_cut: bool) {
        self.link.is_cut.store(is_cut, Ordering::Relaxed);
    }
}

/// Returns limits, which are leased unless the term is 0.
pub(crate) fn limits(rules: &[Rule], term: Duration) -> Vec<Limit> {
    let limit = |(number, rule): (usize, &Rule)| {
        let limit = Limit::new(format!("limit {number}"), rule.algorithm());
        if term.is_zero() { limit } else { limit.leased(term) }
    };
    rules.iter().enumerate().map(limit).collect()
}
