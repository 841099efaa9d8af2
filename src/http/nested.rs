//! Layers inside layers: several of one limiter, with different costs, or one that is applied twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use http::Extensions;
use smallvec::SmallVec;

/// A layer among those of its limiter: one around a router, and others around routes with costs of their own.
#[derive(Clone)]
pub(super) struct Nested {
    group: Arc<LayerGroup>,
    /// The number of the layer, among those of all limiters.
    pub(super) number: u64,
}

/// The state that the layers of one limiter share.
#[derive(Default)]
struct LayerGroup {
    /// Whether a request may pass several layers of the group: from the second one on, even if no service is created from
    /// it.
    has_several_layers: AtomicBool,
    /// The number of requests that were marked with the layers that they pass.
    marked: AtomicUsize,
    /// Whether a request has passed one of the layers twice.
    is_repeated: AtomicBool,
}

/// The layers that a request has passed, among its extensions.
#[derive(Clone, Default)]
struct PassedLayers(SmallVec<[u64; 2]>);

/// The layers that have reported the lists that a request is on, at most one of each limiter, among its extensions.
#[derive(Clone, Default)]
struct ListReporters(SmallVec<[Nested; 1]>);

/// The number of requests of a limiter that are marked to detect layers that are applied twice. Later requests are not
/// marked, because a mark costs up to two allocations.
const MARKED_REQUESTS: usize = 64;

impl Nested {
    /// Creates the first layer of a limiter.
    pub(super) fn first() -> Self {
        Self { group: Arc::default(), number: next_number() }
    }

    /// Creates another layer of the same limiter, which requests do not pass yet.
    pub(super) fn another(&self) -> Self {
        Self { group: self.group.clone(), number: next_number() }
    }

    /// Expects requests to pass several layers of the limiter, which charge them differently.
    pub(super) fn expect_several_layers(&self) {
        self.group.has_several_layers.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn has_several_layers(&self) -> bool {
        self.group.has_several_layers.load(Ordering::Relaxed)
    }

    pub(super) fn is_of_same_limiter(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.group, &other.group)
    }

    /// Returns whether this is the limiter's first request that passes the layer twice. Only the first requests are
    /// examined.
    #[inline]
    pub(super) fn is_first_repetition(&self, extensions: &mut Extensions) -> bool {
        self.group.marked.load(Ordering::Relaxed) < MARKED_REQUESTS
            && self.mark(extensions)
            && !self.group.is_repeated.swap(true, Ordering::Relaxed)
    }

    /// Marks a request as having passed the layer. Returns whether it has passed it before.
    #[cold]
    fn mark(&self, extensions: &mut Extensions) -> bool {
        let PassedLayers(passed) = extensions.get_or_insert_default();
        if passed.is_empty() {
            self.group.marked.fetch_add(1, Ordering::Relaxed);
        }
        let is_repeated = passed.contains(&self.number);
        if !is_repeated {
            passed.push(self.number);
        }
        is_repeated
    }

    /// Returns whether no outer layer of the limiter has reported the lists that a request is on.
    pub(super) fn reports_lists(&self, extensions: &mut Extensions) -> bool {
        if !self.has_several_layers() {
            return true;
        }
        let ListReporters(reporters) = extensions.get_or_insert_default();
        let reporter = reporters.iter().find(|reporter| reporter.is_of_same_limiter(self));
        // The layer itself may have reported another request with the same extensions.
        let is_own = reporter.is_none_or(|reporter| reporter.number == self.number);
        if reporter.is_none() {
            reporters.push(self.clone());
        }
        is_own
    }
}

fn next_number() -> u64 {
    static LAYERS: AtomicU64 = AtomicU64::new(0);
    LAYERS.fetch_add(1, Ordering::Relaxed)
}
