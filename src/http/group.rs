//! The layers that charge the same limiter: one around a router, and others around routes with costs of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::Extensions;
use smallvec::SmallVec;

/// The state that the layers of one limiter share.
#[derive(Debug, Default)]
pub(super) struct LayerGroup {
    /// The number of layers from which a service was created.
    registered: AtomicUsize,
    /// The number of requests that were marked with the layers that they pass.
    marked: AtomicUsize,
    pub(super) repeated_layer: ReportOnce,
    pub(super) missing_address: ReportOnce,
    pub(super) missing_extension: ReportOnce,
}

/// Identifies a layer among those of its group.
#[derive(Clone, Debug, Default)]
pub(super) struct LayerId(Arc<AtomicBool>);

/// A problem that is logged once for each limiter.
#[derive(Debug, Default)]
pub(super) struct ReportOnce(AtomicBool);

/// The layers that a request has passed, among its extensions.
#[derive(Clone, Default)]
struct PassedLayers(SmallVec<[LayerId; 2]>);

/// The number of requests of a limiter that are marked to detect layers that are applied twice. Later requests are not
/// marked, because a mark costs up to two allocations.
const MARKED_REQUESTS: usize = 64;

impl LayerGroup {
    /// Registers a layer when a service is created from it.
    pub(super) fn register(&self, layer: &LayerId) {
        if !layer.0.swap(true, Ordering::Relaxed) {
            self.registered.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns whether a request may pass several layers of the group, which charge it differently.
    pub(super) fn has_several_layers(&self) -> bool {
        self.registered.load(Ordering::Relaxed) > 1
    }

    /// Marks one of the first requests as having passed `layer`. Returns whether it has passed `layer` before.
    #[inline]
    pub(super) fn mark(&self, layer: &LayerId, extensions: &mut Extensions) -> bool {
        self.marked.load(Ordering::Relaxed) < MARKED_REQUESTS && self.mark_first(layer, extensions)
    }

    #[cold]
    fn mark_first(&self, layer: &LayerId, extensions: &mut Extensions) -> bool {
        let PassedLayers(passed) = extensions.get_or_insert_default();
        if passed.is_empty() {
            self.marked.fetch_add(1, Ordering::Relaxed);
        }
        let is_repeated = passed.contains(layer);
        if !is_repeated {
            passed.push(layer.clone());
        }
        is_repeated
    }
}

impl PartialEq for LayerId {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl ReportOnce {
    /// Returns whether the problem has not been reported yet, and marks it as reported.
    pub(super) fn is_first(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }
}
