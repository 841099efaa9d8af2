//! The connection of a limiter to its store: the store, the limits, and the settings for failures.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::breakers::Breakers;
use super::local_store::LocalStore;
#[cfg(feature = "tracing")]
use super::outage_log::OutageLog;
use super::settings::CircuitBreaker;
use crate::error::{ConfigError, Fault};
use crate::hash::KeyHasher;
use crate::limit::{Limit, Limits, LimitsSnapshot};
use crate::observe::Observer;
use crate::on_store_error::OnStoreError;
use crate::store::{MemoryStore, Store};

/// The limits of a limiter, their store, and the settings for failures of the store.
///
/// Clones share the store, the breakers, the local store and the outage log.
#[derive(Clone)]
pub(crate) struct StoreClient {
    pub(super) limits: Limits,
    pub(super) store: Arc<dyn Store>,
    hasher: KeyHasher,
    pub(super) breakers: Arc<Breakers>,
    pub(super) deadline: Duration,
    on_store_error: OnStoreError,
    pub(super) local: LocalStore,
    pub(super) observer: Observer,
    /// Whether an observer may be interested in decisions that the store made.
    pub(super) reports_decisions: bool,
    /// Whether all limits are in shadow mode.
    is_shadow: bool,
    /// Whether limits can be replaced, so that charges may refer to other positions.
    pub(super) is_replaceable: bool,
    #[cfg(feature = "tracing")]
    pub(super) outage_log: Arc<OutageLog>,
}

/// The default time limit for a store's answer.
const DEADLINE: Duration = Duration::from_millis(50);

impl StoreClient {
    pub(crate) fn new(limits: Vec<Limit>) -> Result<Self, ConfigError> {
        let store = MemoryStore::new();
        Ok(Self::over(Limits::new(limits, &store.hasher())?, store))
    }

    /// Creates a client for the present snapshot of live limits.
    pub(crate) fn following(set: &LimitsSnapshot) -> Self {
        let store = MemoryStore::new();
        Self { is_replaceable: true, ..Self::over(set.limits(&store.hasher()), store) }
    }

    fn over(limits: Limits, store: MemoryStore) -> Self {
        let on_store_error = OnStoreError::default();
        let local = LocalStore::new(&limits, on_store_error);
        Self {
            limits,
            hasher: store.hasher(),
            store: Arc::new(store),
            breakers: Breakers::new(CircuitBreaker::new()),
            deadline: DEADLINE,
            on_store_error,
            local,
            observer: Observer::default(),
            reports_decisions: false,
            is_shadow: false,
            is_replaceable: false,
            #[cfg(feature = "tracing")]
            outage_log: Arc::new(OutageLog::new()),
        }
    }

    /// Creates a client for other limits that shares the store, the breakers and the local store.
    pub(crate) fn with_limits(&self, set: &Arc<LimitsSnapshot>) -> Self {
        let mut client = Self { limits: set.limits(&self.hasher), ..self.clone() };
        if client.is_shadow {
            client.limits.shadow();
        }
        client.local.set_policies(&client.limits, client.on_store_error);
        client.reports_decisions = client.observer.is_set() && client.limits.has_thresholds();
        client
    }

    /// Replaces the store, and resets all that is known about its health.
    pub(crate) fn set_store(&mut self, store: impl Store) {
        self.hasher = store.hasher();
        self.limits.set_hasher(&self.hasher);
        self.store = Arc::new(store);
        self.breakers = Breakers::new(self.breakers.settings());
        self.local = LocalStore::new(&self.limits, self.on_store_error);
        #[cfg(feature = "tracing")]
        {
            self.outage_log = Arc::new(OutageLog::new());
        }
    }

    pub(crate) fn set_deadline(&mut self, deadline: Duration) -> Result<(), ConfigError> {
        if deadline.is_zero() {
            return Err(Fault::WaitZero { what: "deadline" }.into());
        }
        self.deadline = deadline;
        Ok(())
    }

    pub(crate) fn set_breaker(&mut self, settings: CircuitBreaker) {
        self.breakers = Breakers::new(settings);
    }

    pub(crate) fn set_policy(&mut self, policy: OnStoreError) {
        self.on_store_error = policy;
        self.local.set_policies(&self.limits, policy);
    }

    pub(crate) fn set_observer(&mut self, observer: Observer) {
        self.observer = observer;
        self.reports_decisions = self.observer.is_set() && self.limits.has_thresholds();
    }

    /// Puts all limits in shadow mode.
    pub(crate) fn shadow(&mut self) {
        self.is_shadow = true;
        self.limits.shadow();
        self.local.set_policies(&self.limits, self.on_store_error);
        self.reports_decisions = self.observer.is_set();
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    #[inline]
    pub(crate) fn hasher(&self) -> &KeyHasher {
        &self.hasher
    }
}

impl fmt::Debug for StoreClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreClient")
            .field("limits", &self.limits.as_slice())
            .field("store", &self.store)
            .field("deadline", &self.deadline)
            .field("circuit_breaker", &self.breakers.settings())
            .field("on_store_error", &self.on_store_error)
            .field("observer", &self.observer)
            .finish_non_exhaustive()
    }
}
