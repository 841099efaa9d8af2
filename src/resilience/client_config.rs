//! The settings of a store client.

use std::sync::Arc;
use std::time::Duration;

use super::settings::CircuitBreaker;
use crate::on_store_error::OnStoreError;
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
