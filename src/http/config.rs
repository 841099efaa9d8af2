//! The configuration of a layer, and the state that the layers of one limiter share: one around a router, and others
//! around routes with costs of their own.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use http::{Extensions, Response};
use smallvec::SmallVec;

use super::headers::Headers;
use super::options::HttpOptions;
use super::response::RejectionFormat;
use crate::decision::Decision;
use crate::engine::Engine;
use crate::error::ConfigError;
use crate::key::head::RequestHead;
#[cfg(feature = "tracing")]
use crate::limit::Limit;
use crate::limit::{CostRule, Live, LiveLimits};
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
    /// Shared with the route costs of the same limiter, which are layers of their own.
    pub(super) group: Arc<LayerGroup>,
    /// The number of the layer, among those of all limiters.
    pub(super) layer: u64,
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
            group: Arc::default(),
            layer: next_layer(),
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
        let layer = Self { requests, layer: next_layer(), live: None, ..self.clone() }.checked(limits)?;
        self.group.has_several_layers.store(true, Ordering::Relaxed);
        Ok(layer)
    }

    /// Checks the configuration, and derives it from live limits, if there are any.
    ///
    /// # Errors
    ///
    /// An enforced limit could never allow a constant cost, or a path in a cost table does not start with a slash, or
    /// has a query.
    pub(super) fn checked(mut self, limits: Option<&LiveLimits>) -> Result<Arc<Self>, ConfigError> {
        let derive = |config: &Self, limits: &_| {
            let mut config = Self { requests: config.requests.with_limits(limits), live: None, ..config.clone() };
            config.headers.set_limits(&config.requests.engine.limits);
            config.requests.check_cost().map(|()| config)
        };
        match limits {
            Some(limits) => self.live = Some(limits.derive(&self, derive)?),
            None => self.requests.check_cost()?,
        }
        Ok(Arc::new(self))
    }

    #[inline]
    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.requests.engine
    }

    /// Returns the configuration for a new request, which keeps it to its end.
    #[inline]
    pub(super) fn current(self: &Arc<Self>) -> Arc<Self> {
        match &self.live {
            None => self.clone(),
            Some(live) => live.current(),
        }
    }

    /// Records the rejection of a request, and returns the response to it, without the headers that report limits.
    pub(super) fn reject(&self, reason: Reason, denied: Option<&Decision>, head: &RequestHead<'_>) -> Response<Bytes> {
        let rejection = self.engine().reject(reason, denied, self.format.wait(&reason), head);
        self.format.response(&rejection, &self.headers)
    }

    /// Returns whether a request that is forwarded may be charged more or less later, so that its charges are recorded.
    pub(super) fn needs_ledger(&self) -> bool {
        self.permits || self.group.has_several_layers() || self.engine().limits.settles_by_response
    }

    /// Reports the lists that a request is on, unless an outer layer of the same limiter has.
    #[cold]
    pub(super) fn report_lists(&self, matched: &[ListAction], extensions: &mut Extensions) {
        if self.group.has_several_layers() {
            let ListReporters(reporters) = extensions.get_or_insert_default();
            match reporters.iter().find(|(group, _)| Arc::ptr_eq(group, &self.group)) {
                Some((_, layer)) if *layer != self.layer => return,
                // Another request with the extensions of one that this layer has reported.
                Some(_) => {}
                None => reporters.push((self.group.clone(), self.layer)),
            }
        }
        matched.iter().for_each(|&action| self.engine().report_event(&Event::ListMatched { action }));
    }

    /// Logs once that a request has passed the layer twice. Only the limiter's first requests are examined.
    #[inline]
    pub(super) fn report_repeated_layer(self: &Arc<Self>, extensions: &mut Extensions) {
        if self.group.marked.load(Ordering::Relaxed) < MARKED_REQUESTS
            && self.group.mark(self.layer, extensions)
            && !self.group.repeats_layer.swap(true, Ordering::Relaxed)
        {
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

/// The state that the layers of one limiter share.
#[derive(Debug, Default)]
pub(super) struct LayerGroup {
    /// Whether a request may pass several layers of the group, which charge it differently: from the first route cost
    /// on, even if no service is created from it.
    has_several_layers: AtomicBool,
    /// The number of requests that were marked with the layers that they pass.
    marked: AtomicUsize,
    /// Whether it was logged that a request passed one of the layers twice.
    repeats_layer: AtomicBool,
}

/// Returns the number of a new layer.
fn next_layer() -> u64 {
    static LAYERS: AtomicU64 = AtomicU64::new(0);
    LAYERS.fetch_add(1, Ordering::Relaxed)
}

/// The layers that a request has passed, among its extensions.
#[derive(Clone, Default)]
struct PassedLayers(SmallVec<[u64; 2]>);

/// The layers that have reported the lists that a request is on, at most one of each limiter, among its extensions.
#[derive(Clone, Default)]
struct ListReporters(SmallVec<[(Arc<LayerGroup>, u64); 1]>);

/// The number of requests of a limiter that are marked to detect layers that are applied twice. Later requests are not
/// marked, because a mark costs up to two allocations.
const MARKED_REQUESTS: usize = 64;

impl LayerGroup {
    /// Returns whether a request may pass several layers of the group, which charge it differently.
    pub(super) fn has_several_layers(&self) -> bool {
        self.has_several_layers.load(Ordering::Relaxed)
    }

    /// Marks one of the first requests as having passed `layer`. Returns whether it has passed `layer` before.
    #[cold]
    fn mark(&self, layer: u64, extensions: &mut Extensions) -> bool {
        let PassedLayers(passed) = extensions.get_or_insert_default();
        if passed.is_empty() {
            self.marked.fetch_add(1, Ordering::Relaxed);
        }
        let is_repeated = passed.contains(&layer);
        if !is_repeated {
            passed.push(layer);
        }
        is_repeated
    }
}
