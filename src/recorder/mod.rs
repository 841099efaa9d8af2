//! Recorders of decisions, rejections and events, for metrics, traces and logs; and what they receive.

mod decision_record;
mod event;
#[cfg(feature = "metrics")]
mod metrics;
mod per_label;
mod rejection;
mod stats;
#[cfg(feature = "tracing")]
mod trace;

use std::sync::Arc;

pub use self::decision_record::{DecisionRecord, LimitRecord};
pub use self::event::{BreakerState, Event, Fallback};
#[cfg(feature = "metrics")]
pub use self::metrics::MetricsRecorder;
pub use self::rejection::{Reason, Rejection};
pub use self::stats::{LimitStats, Stats, TopKey};
#[cfg(feature = "tracing")]
pub use self::trace::TraceRecorder;
use crate::store::Store;

/// Receives every decision and every event of a limiter. Add one with
/// [`Builder::recorder`](crate::Builder::recorder).
///
/// The methods are called inline, by the task that handles the request, so keep them fast. The calls themselves do not
/// allocate.
///
/// `MetricsRecorder` (feature `metrics`), `TraceRecorder` (feature `tracing`) and [`Stats`] are
/// recorders. Write your own for anything else:
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use tower_ratelimit::{DecisionRecord, FixedWindow, Limit, OutcomeKind, RateLimitLayer, Recorder};
///
/// /// Counts the tokens that requests were denied.
/// #[derive(Default)]
/// struct DeniedTokens(AtomicU64);
///
/// impl Recorder for DeniedTokens {
///     fn decision(&self, decision: &DecisionRecord<'_>) {
///         for limit in decision.limits().filter(|limit| limit.outcome.kind() == OutcomeKind::Denied) {
///             self.0.fetch_add(limit.outcome.cost(), Ordering::Relaxed);
///         }
///     }
/// }
///
/// let denied = Arc::new(DeniedTokens::default());
/// let limits = RateLimitLayer::builder([Limit::new("all", FixedWindow::per_minute(100))])
///     .recorder(denied.clone())
///     .build();
/// # let _ = limits;
/// ```
pub trait Recorder: Send + Sync + 'static {
    /// Receives the names of a limiter's limits and its store when it is built, so that counters can exist before they
    /// are first incremented. For [`LiveLimits`](crate::LiveLimits), there is no store.
    fn prepare(&self, names: &[Arc<str>], store: Option<&Arc<dyn Store>>) {
        let _ = (names, store);
    }

    /// Receives each decision that charges a request if it allows it: those of a layer, of
    /// [`Limiter::acquire`](crate::Limiter::acquire) and similar methods, and of a [`Permit`](crate::Permit). Peeks are
    /// not recorded, nor are requests to which no limit applies: nothing is decided about them.
    ///
    /// A request for a [route with a cost of its own](crate::RateLimitLayer::cost) is decided twice if it passes an
    /// outer layer of the limiter first: once at that layer's cost, and once at the difference. A settlement that
    /// charges more is recorded, too. It is decided several times if there is too little capacity.
    fn decision(&self, decision: &DecisionRecord<'_>) {
        let _ = decision;
    }

    /// Receives each request that a layer or a [`RequestLimiter`](crate::RequestLimiter) rejects, with the
    /// [reason](Rejection::reason). If a limit denied it, the [`decision`](Self::decision) was recorded before. What a
    /// [`Limiter`](crate::Limiter) denies is reported as a decision only.
    fn rejection(&self, rejection: &Rejection<'_>) {
        let _ = rejection;
    }

    /// Receives each event.
    fn event(&self, event: &Event<'_>) {
        let _ = event;
    }
}

impl<R: Recorder + ?Sized> Recorder for Arc<R> {
    fn prepare(&self, names: &[Arc<str>], store: Option<&Arc<dyn Store>>) {
        (**self).prepare(names, store);
    }

    fn decision(&self, decision: &DecisionRecord<'_>) {
        (**self).decision(decision);
    }

    fn rejection(&self, rejection: &Rejection<'_>) {
        (**self).rejection(rejection);
    }

    fn event(&self, event: &Event<'_>) {
        (**self).event(event);
    }
}

/// The recorders of a limiter, which its clones share.
pub(crate) type Recorders = Vec<Arc<dyn Recorder>>;

/// Reports an event to all recorders.
pub(crate) fn report(recorders: &[Arc<dyn Recorder>], event: &Event<'_>) {
    recorders.iter().for_each(|recorder| recorder.event(event));
}

/// A closure that is called with each event.
pub(crate) struct Observer<F>(pub(crate) F);

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Recorder for Observer<F> {
    fn event(&self, event: &Event<'_>) {
        (self.0)(event);
    }
}
