//! Handles slow and failing stores: a deadline, a circuit breaker per node, and fallback policies.
//!
//! | module | content |
//! | --- | --- |
//! | this module | The guarded store, its configuration, and its reports to the recorders |
//! | `call` | Calls the store: breakers, the deadline, the result, and what to do if it fails |
//! | `breaker` | Keeps calls from nodes that fail |
//! | `fallback` | Decides by the policies of the limits, in a memory store |
//! | `outage_log` | Reports outages to the log |

mod breaker;
mod call;
mod fallback;
#[cfg(feature = "tracing")]
mod outage_log;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

pub use self::breaker::CircuitBreaker;
use self::breaker::{Breakers, Changes};
pub(crate) use self::call::{Deadline, ReservationGuard};
#[cfg(feature = "tracing")]
use self::outage_log::OutageLog;
use crate::algorithm::Lockout;
use crate::decision::{DecidedBy, Decision};
use crate::error::{ConfigError, StoreError};
use crate::key::hash::KeyHasher;
use crate::key::head::RequestHead;
use crate::limit::{Limits, OnStoreError};
use crate::recorder::{DecisionRecord, Event, Reason, Recorders, Rejection};
use crate::store::{MemoryStore, Purpose, Store};

/// The settings for failures of a limiter's store, and its recorders.
#[derive(Clone)]
pub(crate) struct GuardedStoreConfig {
    pub(crate) deadline: Duration,
    pub(crate) breaker: CircuitBreaker,
    pub(crate) on_store_error: OnStoreError,
    pub(crate) recorders: Recorders,
    /// The share of a limit, in percent, from which a key is near it.
    pub(crate) near_percent: u32,
    /// Whether all limits are in shadow mode.
    pub(crate) is_shadow: bool,
}

impl Default for GuardedStoreConfig {
    fn default() -> Self {
        Self {
            deadline: Duration::from_millis(50),
            breaker: CircuitBreaker::new(),
            on_store_error: OnStoreError::default(),
            recorders: Recorders::default(),
            near_percent: 80,
            is_shadow: false,
        }
    }
}

/// The limits of a limiter, their store, and the settings for failures of the store.
///
/// Clones share the store, the breakers, the local store and the outage log, which limiters with the same store share,
/// too.
#[derive(Clone)]
pub(crate) struct GuardedStore {
    pub(crate) limits: Limits,
    store: Arc<dyn Store>,
    /// What makes the decisions that take no call: only a store that keeps states in this process makes others than
    /// denials.
    by_at_once: DecidedBy,
    config: GuardedStoreConfig,
    breakers: Arc<Breakers>,
    /// Hashes the hashes of keys again with a random secret, because an attacker who knows the fleet's secret could
    /// otherwise construct colliding keys for the local store.
    local_hasher: KeyHasher,
    /// The memory in which limits with the policy `DecideLocally` are decided, created when it is first needed.
    local: Arc<OnceLock<MemoryStore>>,
    #[cfg(feature = "tracing")]
    outage_log: Arc<OutageLog>,
}

impl GuardedStore {
    /// Guards a store.
    ///
    /// # Errors
    ///
    /// Returns an error if the deadline is 0, or `near_percent` is not 1 to 100.
    pub(crate) fn new(
        mut limits: Limits,
        store: Arc<dyn Store>,
        config: GuardedStoreConfig,
    ) -> Result<Self, ConfigError> {
        if config.deadline.is_zero() {
            return Err(ConfigError::new("deadline is 0: use at least 1 ns"));
        }
        if !(1..=100).contains(&config.near_percent) {
            return Err(ConfigError::new(format!("near_limit is {} percent: use 1 to 100", config.near_percent)));
        }
        limits.set_store(&*store, config.is_shadow);
        let keeps_states_here = store.usage().keys.is_some();
        config.recorders.iter().for_each(|recorder| recorder.prepare(&limits.names, Some(&store)));
        Ok(Self {
            by_at_once: if keeps_states_here { DecidedBy::Memory } else { DecidedBy::RememberedDenial },
            store,
            breakers: Breakers::new(config.breaker),
            local_hasher: KeyHasher::random(),
            local: Arc::default(),
            config,
            #[cfg(feature = "tracing")]
            outage_log: OutageLog::of_store(limits.hasher.store),
            limits,
        })
    }

    /// Returns the same store for other limits: it shares the breakers and the local store.
    pub(crate) fn with_limits(&self, limits: &Limits) -> Self {
        let mut guarded = Self { limits: limits.clone(), ..self.clone() };
        guarded.limits.set_store(&*self.store, self.config.is_shadow);
        guarded
    }

    #[inline]
    pub(crate) fn hasher(&self) -> &KeyHasher {
        &self.limits.hasher
    }
}

impl fmt::Debug for GuardedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedStore").field("limits", &self.limits).field("store", &self.store).finish_non_exhaustive()
    }
}

/// Reports decisions, failures of the store, and changes of breakers to the recorders and to the log.
impl GuardedStore {
    pub(crate) fn report_event(&self, event: &Event<'_>) {
        self.config.recorders.iter().for_each(|recorder| recorder.event(event));
    }

    /// Returns the instant at which a decision begins, if it takes something and there are recorders.
    #[inline]
    pub(crate) fn start_recording(&self, purpose: Purpose) -> Option<Instant> {
        let is_recorded = purpose == Purpose::Take && !self.config.recorders.is_empty();
        is_recorded.then(Instant::now)
    }

    /// Records a decision that has begun at an instant, if it is to be recorded.
    #[inline]
    fn record(&self, began: Option<Instant>, decision: &Decision) {
        if let Some(began) = began {
            self.record_since(began, decision);
        }
    }

    #[cold]
    fn record_since(&self, began: Instant, decision: &Decision) {
        let record = DecisionRecord {
            decision,
            names: &self.limits.names,
            duration: began.elapsed(),
            near_percent: self.config.near_percent,
        };
        self.config.recorders.iter().for_each(|recorder| recorder.decision(&record));
        for outcome in decision.outcomes() {
            if let Some(limit) = self.limits.get(outcome.limit()) {
                let (limit, is_shadow) = (limit.name(), limit.is_shadow());
                if decision.is_charged() && outcome.uses_overage() {
                    self.report_event(&Event::OverageUsed { limit, outcome });
                }
                if let Some(Lockout { level, span }) = outcome.lockout() {
                    self.report_event(&Event::PenaltyBegan { limit, level, span });
                }
                if is_shadow && !outcome.is_allowed() {
                    self.report_event(&Event::ShadowDenied { limit, outcome });
                }
            }
        }
    }

    /// Records that a layer rejects a request. `decision` is the one that denied it, if a limit did. `wait` is what the
    /// client is told.
    pub(crate) fn reject<'a>(
        &'a self,
        reason: Reason,
        decision: Option<&'a Decision>,
        wait: Option<Duration>,
        head: &RequestHead<'a>,
    ) -> Rejection<'a> {
        let rejection = Rejection { reason, decision, names: &self.limits.names, wait, head: *head };
        self.config.recorders.iter().for_each(|recorder| recorder.rejection(&rejection));
        rejection
    }

    fn report_failure(&self, error: &StoreError) {
        self.report_event(&Event::StoreFailed { error });
        #[cfg(feature = "tracing")]
        self.outage_log.failed(error, &*self.store, || self.describe());
    }

    fn report_changes(&self, changes: Changes) {
        for (node, state) in changes {
            self.report_event(&Event::BreakerChanged { state, node: node.as_ref() });
            #[cfg(feature = "tracing")]
            self.outage_log.breaker_changed(&self.breakers, node.as_ref(), state, &*self.store, || self.describe());
        }
    }
}
