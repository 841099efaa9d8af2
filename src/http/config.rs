//! The configuration of a layer, and the state that the layers of one limiter share: one around a router, and others
//! around routes with costs of their own.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::{Extensions, Response};
use smallvec::SmallVec;

use super::headers::Headers;
use super::options::{HttpOptions, Lists};
use super::response::RejectionFormat;
use crate::error::ConfigError;
use crate::key::heads::RequestHead;
#[cfg(feature = "tracing")]
use crate::limit::Limit;
use crate::limit::{CostRule, Live, LiveLimits};
use crate::recorder::{Event, Reason};
use crate::resilience::GuardedStore;
use crate::select::ListAction;
use crate::store::decision::Decision;

/// The configuration of a layer.
#[derive(Clone)]
pub(super) struct LayerConfig {
    pub(super) client: Arc<GuardedStore>,
    pub(super) lists: Lists,
    pub(super) cost: CostRule,
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
    pub(super) fn new(client: GuardedStore, options: HttpOptions) -> Self {
        let HttpOptions { lists, cost, styles, format, permits } = options;
        Self {
            headers: Headers::new(styles, client.limits().as_slice()),
            client: Arc::new(client),
            lists,
            cost,
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
    /// See [`following`](Self::following).
    pub(super) fn with_cost(&self, cost: CostRule) -> Result<Arc<Self>, ConfigError> {
        let limits = self.live.as_ref().map(|live| live.limits());
        let layer = Self { cost, layer: next_layer(), live: None, ..self.clone() }.following(limits)?;
        self.group.has_several_layers.store(true, Ordering::Relaxed);
        Ok(layer)
    }

    /// Checks the configuration, and derives it from live limits, if there are any.
    ///
    /// # Errors
    ///
    /// An enforced limit could never allow a constant cost, or a path in a cost table does not start with a slash.
    pub(super) fn following(mut self, limits: Option<&LiveLimits>) -> Result<Arc<Self>, ConfigError> {
        let derive = |config: &Self, limits: &_| {
            let client = Arc::new(config.client.with_limits(limits));
            let mut config = Self { client, live: None, ..config.clone() };
            config.headers.set_limits(config.client.limits().as_slice());
            config.check_cost().map(|()| config)
        };
        match limits {
            Some(limits) => self.live = Some(limits.derive(&self, derive)?),
            None => self.check_cost()?,
        }
        Ok(Arc::new(self))
    }

    fn check_cost(&self) -> Result<(), ConfigError> {
        self.cost.validate()?;
        self.cost.largest().map_or(Ok(()), |largest| self.client.limits().check_cost(largest))
    }

    /// Returns the configuration for a new request, which keeps it to its end.
    #[inline]
    pub(super) fn current(self: &Arc<Self>) -> Arc<Self> {
        match &self.live {
            None => self.clone(),
            Some(live) => live.current(),
        }
    }

    /// Records the rejection of a request, and returns the response to it. It has the headers of the decision, if there
    /// is one and `with_headers` is set.
    pub(super) fn reject(
        &self,
        reason: Reason,
        denied: Option<&Decision>,
        with_headers: bool,
        head: &RequestHead<'_>,
    ) -> Response<Bytes> {
        let Self { client, headers, format, .. } = self;
        let rejection = client.reject(reason, denied, format.jitter(), head);
        format.response(&rejection, headers, denied.filter(|_| with_headers))
    }

    /// Returns whether a request that is forwarded may be charged more or less later, so that its charges are recorded.
    pub(super) fn needs_ledger(&self) -> bool {
        self.permits || self.group.has_several_layers() || self.client.limits().settles_by_response
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
        matched.iter().for_each(|&action| self.client.report_event(&Event::ListMatched { action }));
    }

    /// Logs once that a request has passed the layer twice. Only the limiter's first requests are examined.
    #[inline]
    pub(super) fn report_repeated_layer(self: &Arc<Self>, extensions: &mut Extensions) {
        if self.group.marked.load(Ordering::Relaxed) >= MARKED_REQUESTS || !self.group.mark(self.layer, extensions) {
            return;
        }
        self.group.repeats_layer.get_or_init(|| {
            // Merging the headers would report this once more.
            self.headers.repeats_name.get_or_init(|| ());
            #[cfg(feature = "tracing")]
            tracing::warn!(
                limit = self.current().client.limits().as_slice().first().map_or("", Limit::name),
                "a request passed the same layer twice, and was charged twice: apply the layer once, to a router or \
                 to its routes. For a route that costs something else, use `layer.cost(…)`. If a handler sends \
                 requests to its own service, it must not copy the extensions of the request it handles",
            );
        });
    }
}

impl fmt::Debug for LayerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerConfig").field("client", &self.client).finish_non_exhaustive()
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
    /// Set when this is logged: each once for each limiter.
    repeats_layer: OnceLock<()>,
    pub(super) lacks_address: OnceLock<()>,
    pub(super) lacks_extension: OnceLock<()>,
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
