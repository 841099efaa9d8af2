//! The client through which a limiter uses its store, and its configuration.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::breaker::{Breakers, CircuitBreaker};
use super::fallback::LocalStore;
#[cfg(feature = "tracing")]
use super::outage_log::OutageLog;
use crate::error::ConfigError;
use crate::hash::KeyHasher;
use crate::limit::Limits;
use crate::limit::OnStoreError;
use crate::recorder::Recorders;
use crate::store::{MemoryStore, Store};

/// The store of a limiter, the settings for its failures, and the recorders.
#[derive(Clone, Debug)]
pub(crate) struct ClientConfig {
    /// `None` stands for a new memory store.
    pub(crate) store: Option<Arc<dyn Store>>,
    pub(crate) deadline: Duration,
    pub(crate) breaker: CircuitBreaker,
    pub(crate) on_store_error: OnStoreError,
    pub(crate) recorders: Recorders,
    /// The share of a limit, in percent, from which a key is near it.
    pub(crate) near_percent: u32,
    /// Whether no limit is enforced.
    pub(crate) is_shadow: bool,
}

impl ClientConfig {
    pub(crate) const DEFAULT_DEADLINE: Duration = Duration::from_millis(50);

    /// Returns the store, which is created here unless one was set.
    pub(crate) fn store(&mut self) -> &Arc<dyn Store> {
        self.store.get_or_insert_with(|| Arc::new(MemoryStore::new()))
    }
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            store: None,
            deadline: Self::DEFAULT_DEADLINE,
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
    pub(super) recorders: Recorders,
    pub(super) near_percent: u32,
    /// Whether all limits are in shadow mode.
    is_shadow: bool,
    #[cfg(feature = "tracing")]
    pub(super) outage_log: Arc<OutageLog>,
}

impl StoreClient {
    /// Creates a client of the configured store.
    ///
    /// # Errors
    ///
    /// Returns an error if the deadline is 0, or `near_percent` is not 1 to 100.
    pub(crate) fn new(mut limits: Limits, mut config: ClientConfig) -> Result<Self, ConfigError> {
        if config.deadline.is_zero() {
            return Err(ConfigError::new("deadline is 0: use at least 1 ns"));
        }
        if !(1..=100).contains(&config.near_percent) {
            return Err(ConfigError::new(format!("near_limit is {} percent: use 1 to 100", config.near_percent)));
        }
        let store = config.store().clone();
        limits.set_store(&*store, config.is_shadow);
        Ok(Self {
            hasher: store.hasher(),
            store,
            breakers: Breakers::new(config.breaker),
            deadline: config.deadline,
            on_store_error: config.on_store_error,
            local: LocalStore::new(&limits, config.on_store_error),
            recorders: config.recorders,
            near_percent: config.near_percent,
            is_shadow: config.is_shadow,
            limits,
            #[cfg(feature = "tracing")]
            outage_log: Arc::new(OutageLog::new()),
        })
    }

    /// Creates a client for other limits that shares the store, the breakers and the local store.
    pub(crate) fn with_limits(&self, limits: &Limits) -> Self {
        let mut client = Self { limits: limits.clone(), ..self.clone() };
        client.limits.set_store(&*self.store, self.is_shadow);
        client.local.set_policies(&client.limits, client.on_store_error);
        client
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the name of the store, if it has one.
    pub(crate) fn store_name(&self) -> Option<String> {
        self.store.name()
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
            .field("recorders", &self.recorders)
            .finish_non_exhaustive()
    }
}
