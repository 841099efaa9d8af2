//! The configuration of a layer, derived from its options and its limits.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::{Extensions, Response};

use super::headers::Headers;
use super::nested::Nested;
use super::options::HttpOptions;
use super::rejection::RejectionFormat;
use crate::decision::Decision;
use crate::engine::Engine;
use crate::error::ConfigError;
use crate::key::head::RequestHead;
use crate::limit::{CostRule, Limit, Live, LiveLimits};
use crate::recorder::{Event, Reason};
use crate::request::RequestLimits;
use crate::select::ListAction;

/// The configuration of a layer.
#[derive(Clone)]
pub(super) struct LayerConfig {
    /// The limits, with the lists and the cost of the layer.
    pub(super) requests: RequestLimits,
    pub(super) headers: Headers,
    pub(super) format: RejectionFormat,
    /// Whether requests carry a [`Permit`](crate::Permit).
    pub(super) permits: bool,
    /// Whether the type of bodies is kept, so that nothing observes their ends.
    keeps_body: bool,
    /// The layer among the route costs of the same limiter, which are layers of their own.
    pub(super) nested: Nested,
    /// The configuration for the current limits, if they can be replaced.
    pub(super) live: Option<Arc<Live<LayerConfig>>>,
}

impl LayerConfig {
    /// Creates the configuration of a limiter's first layer.
    pub(super) fn new(engine: Engine, options: HttpOptions) -> Self {
        let HttpOptions { requests, styles, format, permits } = options;
        Self {
            headers: Headers::new(styles, format.longest_wait(), &engine.limits),
            requests: RequestLimits::new(engine, requests.lists, requests.cost),
            format,
            permits,
            keeps_body: false,
            nested: Nested::first(),
            live: None,
        }
    }

    /// Returns the configuration of another layer of the same limiter, in which requests have another cost.
    ///
    /// # Errors
    ///
    /// See [`checked`](Self::checked).
    pub(super) fn with_cost(&self, cost: CostRule) -> Result<Arc<Self>, ConfigError> {
        let limits = self.live.as_ref().map(|live| &live.limits);
        let requests = self.requests.with_cost(cost);
        let layer = Self { requests, nested: self.nested.another(), live: None, ..self.clone() }.checked(limits)?;
        self.nested.expect_several_layers();
        Ok(layer)
    }

    /// Returns the same configuration for a layer that keeps the type of bodies.
    ///
    /// # Errors
    ///
    /// See [`checked`](Self::checked).
    pub(super) fn with_kept_body(&self) -> Result<Arc<Self>, ConfigError> {
        let limits = self.live.as_ref().map(|live| &live.limits);
        Self { keeps_body: true, live: None, ..self.clone() }.checked(limits)
    }

    /// Checks the configuration, and derives it from live limits, if there are any.
    ///
    /// # Errors
    ///
    /// See [`RequestLimits::checked`]. A limit needs the ends of bodies whose type is kept.
    pub(super) fn checked(mut self, limits: Option<&LiveLimits>) -> Result<Arc<Self>, ConfigError> {
        let derive = |config: &Self, limits: &_| {
            let requests = config.requests.with_limits(limits)?;
            let mut config = Self { requests, live: None, ..config.clone() };
            config.headers.set_limits(&config.requests.engine.limits);
            config.check_body()?;
            Ok(config)
        };
        match limits {
            Some(limits) => self.live = Some(limits.derive(&self, derive)?),
            None => {
                self.requests = self.requests.checked()?;
                self.check_body()?;
            }
        }
        Ok(Arc::new(self))
    }

    fn check_body(&self) -> Result<(), ConfigError> {
        let needs_body = |limit: &&Limit| self.keeps_body && (limit.cost_at_end.is_some() || limit.holds_until_end());
        let Some(limit) = self.engine().limits.iter().find(needs_body) else { return Ok(()) };
        let message = format!(
            "the limit {:?} settles or holds slots until the end of a response's body, which a layer with `keep_body` \
             can't observe: leave out `keep_body`",
            limit.name()
        );
        Err(ConfigError { message, rule: limit.rule_position.clone() })
    }

    #[inline]
    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.requests.engine
    }

    /// Returns the configuration for a new request, which keeps it to its end.
    #[inline]
    pub(super) fn current(self: &Arc<Self>) -> Cow<'_, Arc<Self>> {
        Live::current_or(&self.live, self)
    }

    /// Records the rejection of a request, and returns the response to it, without the headers that report limits.
    pub(super) fn reject(&self, reason: Reason, denied: Option<&Decision>, head: &RequestHead<'_>) -> Response<Bytes> {
        let rejection = self.engine().reject(reason, denied, self.format.wait(&reason), head);
        self.format.response(&rejection, &self.headers)
    }

    /// Returns whether a request that is forwarded may be charged more or less later, so that its charges are recorded.
    pub(super) fn needs_ledger(&self) -> bool {
        self.permits || self.nested.has_several_layers() || self.engine().limits.settles_by_response
    }

    /// Reports the lists that a request is on, unless an outer layer of the same limiter has.
    #[cold]
    pub(super) fn report_lists(&self, matched: &[ListAction], extensions: &mut Extensions) {
        if self.nested.reports_lists(extensions) {
            matched.iter().for_each(|&action| self.engine().report_event(&Event::ListMatched { action }));
        }
    }

    /// Logs once that a request has passed the layer twice.
    #[inline]
    pub(super) fn report_repeated_layer(self: &Arc<Self>, extensions: &mut Extensions) {
        if self.nested.is_first_repetition(extensions) {
            // Merging the headers would report this once more.
            self.headers.repeats_name.store(true, Ordering::Relaxed);
            #[cfg(feature = "tracing")]
            tracing::warn!(
                limit = self.current().engine().limits.first().map_or("", Limit::name),
                "a request passed the same layer twice, and was charged twice: apply the layer once, to a router or \
                 to its routes. For a route that costs something else, use `layer.cost(…)`. If a handler sends \
                 requests to its own service, it must not copy the extensions of the request it handles",
            );
        }
    }
}

impl fmt::Debug for LayerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerConfig").field("engine", self.engine()).finish_non_exhaustive()
    }
}
