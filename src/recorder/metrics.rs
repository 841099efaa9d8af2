//! Metrics of decisions and events, through the `metrics` facade.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use metrics::{Counter, Gauge, Histogram, Label, Unit, counter, gauge, histogram};

use super::per_limit::PerLimit;
use super::{
    BreakerState, DecisionRecord, DecisionSource, Event, Fallback, LimitOutcome, LimitRecord, Recorder, RejectionRecord,
};
use crate::error::StoreErrorKind;
use crate::key::KeyError;
use crate::reason::Reason;

/// The shortest time between two readings of the store's keys, memory and queue.
const USAGE_INTERVAL: Duration = Duration::from_secs(1);

/// The number of variants, whose last one is named here.
const SOURCES: usize = DecisionSource::Fallback as usize + 1;
const OUTCOMES: usize = LimitOutcome::Denied as usize + 1;

/// The values of the label `reason`.
const REJECTIONS: [&str; 6] = ["limited", "missing_key", "ambiguous_key", "no_peer_address", "listed", "store_failed"];

/// Counts decisions and events through the [`metrics`] facade. Requires the feature `metrics`.
///
/// Install an exporter, such as that for Prometheus, before the first request: earlier counts are lost. No label depends on a
/// key, so the number of series does not grow with the number of clients. Metrics of a limit with a
/// [detail](crate::Limit::metric_detail) also have the label `detail`, with at most 100 values.
///
/// | metric | type | labels | |
/// |---|---|---|---|
/// | `ratelimit_decisions_total` | counter | `limit`, `outcome`, `decided_by` | decisions of a limit, by its [outcome](LimitOutcome) and [source](DecisionSource) |
/// | `ratelimit_tokens_total` | counter | `limit` | tokens charged; refunds are not subtracted |
/// | `ratelimit_near_limit_total` | counter | `limit` | allowed requests whose key was [near its limit](crate::Builder::near_limit) |
/// | `ratelimit_rejections_total` | counter | `reason` | requests that a layer rejected: `limited`, `missing_key`, `ambiguous_key`, `no_peer_address`, `listed` or `store_failed` |
/// | `ratelimit_penalties_total` | counter | `limit` | [lockouts](crate::Limit::penalty) that began |
/// | `ratelimit_list_matches_total` | counter | `action` | requests on a [list](crate::Builder::always_reject) |
/// | `ratelimit_store_duration_seconds` | histogram | `decided_by` | duration of decisions that waited for the store |
/// | `ratelimit_store_errors_total` | counter | `kind` | requests that the store did not decide, by [kind of error](crate::StoreErrorKind) |
/// | `ratelimit_fallbacks_total` | counter | `to` | these requests, by how they were [handled](crate::OnStoreError) |
/// | `ratelimit_breaker_state` | gauge | `node` | the [circuit breaker](crate::CircuitBreaker): 0 closed, 1 half-open, 2 open |
/// | `ratelimit_queue_length` | gauge | | requests that wait to be sent to the store |
/// | `ratelimit_keys` | gauge | | keys in the memory store |
/// | `ratelimit_memory_bytes` | gauge | | bytes that these keys take |
/// | `ratelimit_rules_info` | gauge | | the number of limits in force that were [loaded at runtime](crate::LiveLimits) |
/// | `ratelimit_rules_loads_total` | counter | `result` | replacements of these limits: `applied` or `rejected` |
///
/// The length of the queue, the number of keys and their bytes are read at most once a second, when a request is decided. For
/// limiters with different stores, use a recorder with another [label](Self::label) for each.
///
/// ```
/// use tower_ratelimit::{FixedWindow, Limit, MetricsRecorder, RateLimitLayer};
///
/// // Install an exporter first, such as `metrics_exporter_prometheus::PrometheusBuilder::new().install()?`.
/// let limits = RateLimitLayer::builder([Limit::new("all", FixedWindow::per_minute(100))])
///     .recorder(MetricsRecorder::new())
///     .build();
/// # let _ = limits;
/// ```
#[derive(Debug)]
pub struct MetricsRecorder {
    labels: Vec<Label>,
    limits: PerLimit<LimitHandles>,
    durations: [OnceLock<Histogram>; SOURCES],
    rejections: [OnceLock<Counter>; REJECTIONS.len()],
    usage: OnceLock<UsageHandles>,
    began: Instant,
    /// When the store's usage is read next, in µs after `began`.
    next_usage: AtomicU64,
}

/// The handles of a limit's metrics. A counter is registered when it is first needed, so that no series is exported that
/// can't occur.
#[derive(Debug)]
struct LimitHandles {
    labels: Vec<Label>,
    /// The handles of each [detail](crate::Limit::metric_detail).
    details: PerLimit<LimitHandles>,
    decisions: [[OnceLock<Counter>; SOURCES]; OUTCOMES],
    tokens: OnceLock<Counter>,
    near_limit: OnceLock<Counter>,
}

#[derive(Debug)]
struct UsageHandles {
    keys: Gauge,
    bytes: Gauge,
    queued: Gauge,
}

impl MetricsRecorder {
    /// Creates a recorder, and describes its metrics to the exporter.
    #[must_use]
    pub fn new() -> Self {
        describe();
        Self {
            labels: Vec::new(),
            limits: PerLimit::new(),
            durations: Default::default(),
            rejections: Default::default(),
            usage: OnceLock::new(),
            began: Instant::now(),
            next_usage: AtomicU64::new(0),
        }
    }

    /// Adds a label to all metrics of this recorder, such as the name of the limiter, if there are several.
    #[must_use]
    pub fn label(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.labels.push(Label::new(name, value.into()));
        self
    }

    fn labels<const N: usize>(&self, labels: [(&'static str, &str); N]) -> Vec<Label> {
        with_labels(&self.labels, labels)
    }

    /// Reads the store's usage, unless it was read within [`USAGE_INTERVAL`].
    fn record_usage(&self, decision: &DecisionRecord<'_>) {
        let now = self.began.elapsed();
        let (next, after) = (self.next_usage.load(Ordering::Relaxed), (now + USAGE_INTERVAL).as_micros() as u64);
        let is_due = now.as_micros() as u64 >= next
            && self.next_usage.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if !is_due {
            return;
        }
        let handles = self.usage.get_or_init(|| UsageHandles {
            keys: gauge!("ratelimit_keys", self.labels.clone()),
            bytes: gauge!("ratelimit_memory_bytes", self.labels.clone()),
            queued: gauge!("ratelimit_queue_length", self.labels.clone()),
        });
        let usage = decision.store_usage();
        let gauges = [(&handles.keys, usage.keys), (&handles.bytes, usage.bytes), (&handles.queued, usage.queued)];
        for (gauge, value) in gauges {
            gauge.set(value.unwrap_or(0) as f64);
        }
    }
}

impl Default for MetricsRecorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder for MetricsRecorder {
    fn decision(&self, decision: &DecisionRecord<'_>) {
        let source = decision.source();
        for limit in decision.limits() {
            let create = |name: &str| LimitHandles::new(self.labels([("limit", name)]));
            self.limits.with(limit.limit(), create, |handles| match limit.detail() {
                None => handles.count(&limit, source),
                Some(detail) => handles.of_detail(detail, |handles| handles.count(&limit, source)),
            });
        }
        if matches!(source, DecisionSource::Store | DecisionSource::Fallback) {
            let labels = || self.labels([("decided_by", source.as_str())]);
            let duration = &self.durations[source as usize];
            let duration = duration.get_or_init(|| histogram!("ratelimit_store_duration_seconds", labels()));
            duration.record(decision.duration().as_secs_f64());
        }
        self.record_usage(decision);
    }

    fn rejection(&self, rejection: &RejectionRecord<'_>) {
        let index = match rejection.reason() {
            Reason::Limited { .. } => 0,
            Reason::MissingKey(KeyError::Ambiguous) => 2,
            Reason::MissingKey(KeyError::FromServer) => 3,
            Reason::MissingKey(_) => 1,
            Reason::Listed(_) => 4,
            Reason::StoreFailed => 5,
        };
        let labels = || self.labels([("reason", REJECTIONS[index])]);
        self.rejections[index].get_or_init(|| counter!("ratelimit_rejections_total", labels())).increment(1);
    }

    fn event(&self, event: &Event<'_>) {
        match event {
            Event::StoreFailed { error } => {
                counter!("ratelimit_store_errors_total", self.labels([("kind", kind(error.kind()))])).increment(1);
            }
            Event::FellBack { to } => {
                let to = match to {
                    Fallback::Rejected => "rejected",
                    Fallback::Allowed => "allowed",
                    Fallback::DecidedLocally { .. } => "decided_locally",
                };
                counter!("ratelimit_fallbacks_total", self.labels([("to", to)])).increment(1);
            }
            Event::PenaltyBegan { limit, .. } => {
                counter!("ratelimit_penalties_total", self.labels([("limit", limit)])).increment(1);
            }
            Event::ListMatched { action } => {
                let action = match action.status() {
                    Some(http::StatusCode::FORBIDDEN) => "forbidden",
                    Some(_) => "too_many_requests",
                    None => "shadow",
                };
                counter!("ratelimit_list_matches_total", self.labels([("action", action)])).increment(1);
            }
            Event::BreakerChanged { state, node } => {
                let state = match state {
                    BreakerState::Closed => 0.0,
                    BreakerState::HalfOpen => 1.0,
                    BreakerState::Open => 2.0,
                };
                let node = node.map_or("store", |node| node.name());
                gauge!("ratelimit_breaker_state", self.labels([("node", node)])).set(state);
            }
            Event::RulesReplaced { limits } => {
                gauge!("ratelimit_rules_info", self.labels.clone()).set(*limits as f64);
                counter!("ratelimit_rules_loads_total", self.labels([("result", "applied")])).increment(1);
                // An increase from 0 can be seen by a query, unlike a series that begins at 1.
                counter!("ratelimit_rules_loads_total", self.labels([("result", "rejected")])).increment(0);
            }
            Event::RulesRejected { .. } => {
                counter!("ratelimit_rules_loads_total", self.labels([("result", "rejected")])).increment(1);
            }
            // Decisions include these.
            Event::OverageUsed { .. } | Event::ShadowDenied { .. } | Event::Shortfall { .. } => {}
        }
    }
}

impl LimitHandles {
    fn new(labels: Vec<Label>) -> Self {
        Self {
            details: PerLimit::new(),
            decisions: Default::default(),
            tokens: OnceLock::new(),
            near_limit: OnceLock::new(),
            labels,
        }
    }

    fn of_detail(&self, detail: &str, count: impl FnOnce(&Self)) {
        let create = |detail: &str| Self::new(with_labels(&self.labels, [("detail", detail)]));
        self.details.with(detail, create, count);
    }

    fn count(&self, limit: &LimitRecord<'_>, source: DecisionSource) {
        let outcome = limit.outcome();
        let labels = || with_labels(&self.labels, [("outcome", outcome.as_str()), ("decided_by", source.as_str())]);
        let decisions = &self.decisions[outcome as usize][source as usize];
        decisions.get_or_init(|| counter!("ratelimit_decisions_total", labels())).increment(1);
        let tokens = || counter!("ratelimit_tokens_total", self.labels.clone());
        self.tokens.get_or_init(tokens).increment(limit.charged());
        let near_limit = || counter!("ratelimit_near_limit_total", self.labels.clone());
        self.near_limit.get_or_init(near_limit).increment(limit.is_near_limit().into());
    }
}

fn with_labels<const N: usize>(common: &[Label], labels: [(&'static str, &str); N]) -> Vec<Label> {
    let labels = labels.into_iter().map(|(name, value)| Label::new(name, value.to_owned()));
    common.iter().cloned().chain(labels).collect()
}

fn kind(kind: StoreErrorKind) -> &'static str {
    match kind {
        StoreErrorKind::Failed => "failed",
        StoreErrorKind::TimedOut => "timed_out",
        StoreErrorKind::QueueFull => "queue_full",
        StoreErrorKind::BreakerOpen => "breaker_open",
        StoreErrorKind::NotSupported => "not_supported",
        StoreErrorKind::Full => "full",
        StoreErrorKind::ChargeCount { .. } => "charge_count",
    }
}

/// Describes the metrics to the exporter.
fn describe() {
    use metrics::{describe_counter, describe_gauge, describe_histogram};
    describe_counter!("ratelimit_decisions_total", "Decisions of a limit, by outcome and by who decided.");
    describe_counter!("ratelimit_tokens_total", "Tokens charged by a limit. Refunds are not subtracted.");
    describe_counter!("ratelimit_near_limit_total", "Allowed requests whose key was near its limit.");
    describe_counter!("ratelimit_rejections_total", "Requests that a layer rejected, by reason.");
    describe_counter!("ratelimit_penalties_total", "Lockouts that began.");
    describe_counter!("ratelimit_list_matches_total", "Requests that matched a list.");
    describe_histogram!(
        "ratelimit_store_duration_seconds",
        Unit::Seconds,
        "Time of decisions that waited for the store."
    );
    describe_counter!("ratelimit_store_errors_total", "Requests that the store did not decide, by kind of error.");
    describe_counter!("ratelimit_fallbacks_total", "Requests handled by the fallback policy.");
    describe_gauge!("ratelimit_breaker_state", "State of a circuit breaker: 0 closed, 1 half-open, 2 open.");
    describe_gauge!("ratelimit_queue_length", "Requests that wait to be sent to the store.");
    describe_gauge!("ratelimit_keys", "Keys in the memory store.");
    describe_gauge!("ratelimit_memory_bytes", Unit::Bytes, "Bytes that the keys in the memory store take.");
    describe_gauge!("ratelimit_rules_info", "Limits in force that were loaded at runtime.");
    describe_counter!("ratelimit_rules_loads_total", "Loads of limits at runtime, by result.");
}
