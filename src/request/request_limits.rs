//! The limits of a limiter, and what decides which of them apply to a request.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::lists::Lists;
use crate::engine::Engine;
use crate::error::ConfigError;
use crate::limit::{CostRule, Limits};

/// The limits of a limiter, and what decides which of them apply to a request.
#[derive(Clone)]
pub(crate) struct RequestLimits {
    pub(crate) engine: Arc<Engine>,
    pub(crate) lists: Lists,
    /// The cost under limits without one of their own.
    pub(crate) cost: CostRule,
    pub(super) warned: Arc<Warned>,
}

/// The mistakes that were logged, each once for each limiter.
#[derive(Default)]
pub(super) struct Warned {
    pub(super) lacks_address: AtomicBool,
    pub(super) lacks_client: AtomicBool,
    pub(super) lacks_extension: AtomicBool,
}

impl RequestLimits {
    pub(crate) fn new(engine: Engine, lists: Lists, cost: CostRule) -> Self {
        Self { engine: Arc::new(engine), lists, cost, warned: Arc::default() }
    }

    /// Returns the same with another cost.
    pub(crate) fn with_cost(&self, cost: CostRule) -> Self {
        Self { cost, ..self.clone() }
    }

    /// Returns the same for other limits.
    ///
    /// # Errors
    ///
    /// See [`checked`](Self::checked). The store can't keep a limit.
    pub(crate) fn with_limits(&self, limits: &Limits) -> Result<Self, ConfigError> {
        Self { engine: Arc::new(self.engine.with_limits(limits)?), ..self.clone() }.checked()
    }

    /// Checks the cost.
    ///
    /// # Errors
    ///
    /// An enforced limit could never allow a constant cost, or a path in a cost table does not start with a slash, or
    /// has a query.
    pub(crate) fn checked(self) -> Result<Self, ConfigError> {
        self.cost.validate()?;
        self.cost.largest().map_or(Ok(()), |largest| self.engine.limits.check_cost(largest))?;
        Ok(self)
    }
}
