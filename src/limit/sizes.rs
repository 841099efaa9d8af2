//! Other sizes of a limit, for some requests or for single keys.

use std::sync::Arc;

use super::definition::Limit;
use crate::algorithm::Algorithm;
use crate::error::ConfigError;
use crate::key::heads::RequestHead;
use crate::when::Condition;

impl Limit {
    /// Gives the limit another size for requests that meet a condition. Of several sizes, including those of
    /// [`size_by`](Self::size_by), the first one that applies counts.
    ///
    /// Clients see the size that applied. A key's usage carries over to another size with the same algorithm and
    /// period. With another algorithm or period, the key starts unused. In a bucket with another rate, the used tokens
    /// stay used, including fractions, and each request counts them as they come back at its own rate.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, key, when};
    ///
    /// let daily = Limit::new("daily", FixedWindow::per_day(100))
    ///     .by(key::header("x-api-key"))
    ///     .size_when(when::header("x-plan", "pro"), FixedWindow::per_day(10_000));
    /// # let _ = daily;
    /// ```
    pub fn size_when(self, when: impl Condition, algorithm: impl Into<Algorithm>) -> Self {
        let algorithm = algorithm.into();
        self.size_by(move |head| when.holds(head).then_some(algorithm))
    }

    /// Computes another size of the limit for a request. `None` keeps the limit's own size. See
    /// [`size_when`](Self::size_when). Called inline for each request that the limit applies to; must be fast and must not
    /// block.
    ///
    /// ```
    /// use std::collections::HashMap;
    /// use tower_ratelimit::{FixedWindow, Limit, key};
    ///
    /// let contracts = HashMap::from([("customer-42".to_owned(), 10_000)]);
    /// let daily = Limit::new("daily", FixedWindow::per_day(100)).by(key::header("x-customer")).size_by(
    ///     move |head| Some(FixedWindow::per_day(*contracts.get(head.header("x-customer")?)?).into()),
    /// );
    /// # let _ = daily;
    /// ```
    pub fn size_by(mut self, size: impl Fn(&RequestHead<'_>) -> Option<Algorithm> + Send + Sync + 'static) -> Self {
        self.sizes.push(Arc::new(size));
        self
    }

    /// Allows [`Overrides`](crate::Overrides): other sizes for single keys, set at runtime and kept in the store. An
    /// override takes precedence over [`size_when`](Self::size_when), if both have the same algorithm and period.
    ///
    /// ```
    /// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, key};
    ///
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let daily = Limit::new("daily", FixedWindow::per_day(100)).by(key::header("x-customer")).overridable();
    /// let limits = RateLimitLayer::new([daily]);
    ///
    /// let overrides = limits.overrides("daily").unwrap();
    /// overrides.set("42", FixedWindow::per_day(10_000), None).await.unwrap();
    /// # });
    /// ```
    pub fn overridable(self) -> Self {
        Self { is_overridable: true, ..self }
    }

    /// Returns whether the limit allows overrides. See [`overridable`](Self::overridable).
    #[must_use]
    pub fn is_overridable(&self) -> bool {
        self.is_overridable
    }

    /// Returns an error if `algorithm` can't be an override of this limit.
    pub(crate) fn check_override(&self, algorithm: &Algorithm) -> Result<(), ConfigError> {
        if self.algorithm.with_size(algorithm.size()) != Some(*algorithm) {
            let [is, given] = [&self.algorithm, algorithm].map(Algorithm::to_string);
            return Err(ConfigError::new(format!(
                "{given} is not a size of the limit {:?}, which is {is}: use the same algorithm and period, and change only \
                 the tokens",
                self.name
            )));
        }
        self.check_overage(algorithm)
    }

    pub(super) fn has_other_sizes(&self) -> bool {
        !self.sizes.is_empty()
    }

    /// Returns the size for a request, if it differs from the limit's own.
    pub(super) fn size_for(&self, head: &RequestHead<'_>) -> Option<Algorithm> {
        let size = self.sizes.iter().find_map(|size| size(head));
        size.filter(|size| *size != self.algorithm)
    }
}
