//! Metrics of decisions and events, through the `metrics` facade.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use metrics::{
    Counter, Gauge, Histogram, Label, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};

use super::per_label::PerLabel;
use super::{BreakerState, DecisionRecord, Event, Fallback, LimitRecord, Reason, Recorder, Rejection};
use crate::decision::{DecidedBy, OutcomeKind};
use crate::error::printable;
use crate::key::KeyError;
use crate::store::Store;
use crate::time::Cooldown;

/// Counts decisions and events through the [`metrics`] facade. Requires the feature `metrics`.
///
/// Install an exporter, such as that for Prometheus, before limiters are built: earlier counts are lost. Counters of
/// labels that are known by then begin at 0, so that queries see their first increment. No label
/// depends on a key, so the number of series does not grow with the number of clients. Metrics of a limit with a
/// [detail](crate::Limit::metric_detail) also have the label `detail`, with at most 100 values.
///
/// | metric | type | labels | |
/// |---|---|---|---|
/// | `ratelimit_decisions_total` | counter | `limit`, `outcome`, `decided_by` | decisions of a limit, by its [outcome](crate::OutcomeKind) and by [what decided](DecidedBy) |
/// | `ratelimit_tokens_total` | counter | `limit` | tokens charged; refunds are not subtracted |
/// | `ratelimit_near_limit_total` | counter | `limit` | allowed requests whose key was [near its limit](crate::Builder::near_limit) |
/// | `ratelimit_rejections_total` | counter | `reason` | requests that a layer rejected: `limited`, `missing_key`, `ambiguous_key`, `no_peer_address`, `listed` or `store_failed` |
/// | `ratelimit_penalties_total` | counter | `limit` | [lockouts](crate::Limit::penalty) that began |
/// | `ratelimit_list_matches_total` | counter | `action` | requests on a [list](crate::Builder::always_reject) |
/// | `ratelimit_store_duration_seconds` | histogram | `decided_by` | duration of decisions, if the store does not answer at once; select `decided_by="store"` for those that the store made |
/// | `ratelimit_store_errors_total` | counter | `kind` | requests that the store did not decide, by [kind of error](crate::StoreErrorKind), such as `failed`, `timed_out` or `breaker_open` |
/// | `ratelimit_fallbacks_total` | counter | `to` | these requests, by how they were [handled](crate::OnStoreError): `rejected`, `allowed` or `decided_locally` |
/// | `ratelimit_breaker_state` | gauge | `node` | the [circuit breaker](crate::CircuitBreaker): 0 closed, 1 open; absent until it first opens |
/// | `ratelimit_queue_length` | gauge | | requests that wait to be sent to the store |
/// | `ratelimit_keys` | gauge | | keys in the memory store |
/// | `ratelimit_memory_bytes` | gauge | | bytes that these keys take |
/// | `ratelimit_rules_info` | gauge | | the number of limits in force that were [loaded at runtime](crate::LiveLimits) |
/// | `ratelimit_rules_loads_total` | counter | `result` | replacements of these limits: `applied` or `rejected` |
/// | `ratelimit_slots` | gauge | `limit` | slots of a [concurrency limit](crate::Concurrency) that requests of this process hold |
/// | `ratelimit_slot_seconds` | histogram | `limit` | the time for which requests held a slot |
/// | `ratelimit_slots_expired_total` | counter | `limit` | slots that expired although their requests were in flight, because they could not be renewed in time |
/// | `ratelimit_leased_tokens` | gauge | `limit` | tokens of [leases](crate::Limit::leased) that have not ended |
/// | `ratelimit_leased_tokens_total` | counter | `limit` | tokens leased from the store |
/// | `ratelimit_leased_tokens_returned_total` | counter | `limit` | of these, tokens that were returned unspent |
/// | `ratelimit_leased_tokens_expired_total` | counter | `limit` | of these, unspent tokens that could not be returned, because the store failed |
/// | `ratelimit_shortfall_tokens_total` | counter | `limit` | tokens that a settlement could not charge, because they exceeded the limit and its [debt](crate::Limit::debt) |
/// | `ratelimit_client_wait_seconds` | histogram | `reason` | waits of a client's calls: in a `PaceLayer` (`pace`), and before a retry (`retry`) |
/// | `ratelimit_client_retries_total` | counter | `result` | retries of a client: `sent`, or not sent because the budget was exhausted (`budget_exhausted`) |
///
/// The length of the queue, the number of keys and their bytes are read at most once a second, when a request is
/// decided, and by [`refresh`](Self::refresh). They are those of the last limiter in use: for limiters with
/// different stores, use a recorder with another [label](Self::label) for each.
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
    limits: PerLabel<LimitMetrics>,
    /// Histograms, by the source of decisions.
    durations: [OnceLock<Histogram>; DECIDERS],
    /// Other counters, by their names and by the values of a label.
    counters: PerLabel<PerLabel<Counter>>,
    /// The stores of limiters, in the order in which they were built.
    stores: Mutex<Vec<Weak<dyn Store>>>,
    usage_reading: Cooldown,
}

impl MetricsRecorder {
    /// Creates a recorder, and describes its metrics to the exporter.
    #[must_use]
    pub fn new() -> Self {
        describe();
        Self {
            labels: Vec::new(),
            limits: PerLabel::default(),
            durations: Default::default(),
            counters: PerLabel::default(),
            stores: Mutex::default(),
            usage_reading: Cooldown::default(),
        }
    }

    /// Adds a label to all metrics of this recorder, such as the name of the limiter, if there are several.
    #[must_use]
    pub fn label(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.labels.push(Label::new(name, value.into()));
        self
    }

    /// Reads the length of the queue, the number of keys and their bytes from the store. Call it before the exporter
    /// renders the metrics, or every few seconds. Otherwise, a process without requests reports the values of its last
    /// decision.
    ///
    /// ```ignore
    /// use std::sync::Arc;
    /// use axum::{Router, routing::get};
    /// use metrics_exporter_prometheus::PrometheusBuilder;
    /// use tower_ratelimit::MetricsRecorder;
    ///
    /// let exporter = PrometheusBuilder::new().install_recorder()?;
    /// let recorder = Arc::new(MetricsRecorder::new()); // also passed to limiters
    /// let export = move || async move {
    ///     recorder.refresh();
    ///     exporter.render()
    /// };
    /// let app: Router = Router::new().route("/metrics", get(export));
    /// ```
    pub fn refresh(&self) {
        let last = self.stores.lock().unwrap_or_else(PoisonError::into_inner).iter().rev().find_map(Weak::upgrade);
        let usage = last.map(|store| store.usage()).unwrap_or_default();
        let gauges = [
            ("ratelimit_keys", usage.keys),
            ("ratelimit_memory_bytes", usage.bytes),
            ("ratelimit_queue_length", usage.queued),
        ];
        for (name, value) in gauges {
            gauge!(name, self.labels.clone()).set(value.unwrap_or(0) as f64);
        }
    }

    /// Returns the metrics of a limit. At first, registers the counters of the outcomes that nearly all limits can have.
    fn limit(&self, name: &str, by: DecidedBy) -> &LimitMetrics {
        self.limits.get(name, |name| {
            let metrics = LimitMetrics::new(with_labels(&self.labels, [("limit", name)]));
            for outcome in [OutcomeKind::Allowed, OutcomeKind::Denied] {
                metrics.increment(outcome, by, [0; 3]);
            }
            metrics
        })
    }

    /// Increments the counter of a name for a value of its label.
    fn increment(&self, (name, label): (&'static str, &'static str), value: &str, by: u64) {
        let counters = self.counters.get(name, |_| PerLabel::default());
        counters.get(value, |value| counter!(name, with_labels(&self.labels, [(label, value)]))).increment(by);
    }

    /// Returns a gauge of a limit.
    fn gauge(&self, name: &'static str, limit: &str) -> Gauge {
        gauge!(name, with_labels(&self.labels, [("limit", limit)]))
    }

    /// Records the wait of a client's call.
    fn record_client_wait(&self, reason: &str, wait: Duration) {
        let labels = with_labels(&self.labels, [("reason", reason)]);
        histogram!("ratelimit_client_wait_seconds", labels).record(wait.as_secs_f64());
    }
}

impl Default for MetricsRecorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder for MetricsRecorder {
    /// Registers the counters of all labels that are known, because a query can't see the increment with which a series
    /// begins.
    fn prepare(&self, names: &[Arc<str>], store: Option<&Arc<dyn Store>>) {
        for (counter, values) in COUNTERS {
            values.iter().for_each(|value| self.increment(counter, value, 0));
        }
        let Some(store) = store else {
            return gauge!("ratelimit_rules_info", self.labels.clone()).set(names.len() as f64);
        };
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        stores.retain(|store| store.strong_count() > 0);
        stores.push(Arc::downgrade(store));
        drop(stores);
        self.refresh();
        let by = if store.usage().keys.is_some() { DecidedBy::Memory } else { DecidedBy::Store };
        for name in names {
            self.limit(name, by);
        }
    }

    fn decision(&self, decision: &DecisionRecord<'_>) {
        let by = decision.decision.decided_by();
        for limit in decision.limits() {
            self.limit(limit.name, by).count(&limit, by);
        }
        if !matches!(by, DecidedBy::Memory | DecidedBy::RememberedDenial | DecidedBy::Lease) {
            let labels = || with_labels(&self.labels, [("decided_by", by.as_str())]);
            let durations = &self.durations[by as usize];
            let durations = durations.get_or_init(|| histogram!("ratelimit_store_duration_seconds", labels()));
            durations.record(decision.duration.as_secs_f64());
        }
        if self.usage_reading.try_start(USAGE_INTERVAL) {
            self.refresh();
        }
    }

    fn rejection(&self, rejection: &Rejection<'_>) {
        let reason = match rejection.reason {
            Reason::Limited { .. } => "limited",
            Reason::MissingKey(KeyError::Ambiguous) => "ambiguous_key",
            Reason::MissingKey(KeyError::NotProvided) => "no_peer_address",
            Reason::MissingKey(_) => "missing_key",
            Reason::Listed(_) => "listed",
            Reason::TooManyLimits => "too_many_limits",
            Reason::StoreFailed => "store_failed",
        };
        self.increment(COUNTERS[1].0, reason, 1);
    }

    fn event(&self, event: &Event<'_>) {
        let [loads, _, errors, fallbacks, matches] = COUNTERS;
        let (counter, value) = match event {
            Event::StoreFailed { error } => (errors.0, errors.1[error.kind() as usize]),
            Event::FellBack { to } => {
                let to = match to {
                    Fallback::Rejected => "rejected",
                    Fallback::Allowed => "allowed",
                    Fallback::DecidedLocally { .. } => "decided_locally",
                };
                (fallbacks.0, to)
            }
            Event::PenaltyBegan { limit, .. } => (("ratelimit_penalties_total", "limit"), *limit),
            Event::ListMatched { action } => (matches.0, matches.1[*action as usize]),
            Event::BreakerChanged { state, node } => {
                let node = node.map_or("store", |node| node.name());
                let is_open = f64::from(*state == BreakerState::Open);
                return gauge!("ratelimit_breaker_state", with_labels(&self.labels, [("node", node)])).set(is_open);
            }
            Event::LimitsReplaced { limits } => {
                gauge!("ratelimit_rules_info", self.labels.clone()).set(*limits as f64);
                (loads.0, "applied")
            }
            Event::LimitsRejected { .. } => (loads.0, "rejected"),
            Event::CallDelayed { wait } => return self.record_client_wait("pace", *wait),
            Event::CallRetried { wait } => {
                self.record_client_wait("retry", *wait);
                (CLIENT_RETRIES, "sent")
            }
            Event::SlotTaken { limit } => {
                // From now on, a query sees its first increment.
                self.increment(SLOTS_EXPIRED, limit, 0);
                return self.gauge("ratelimit_slots", limit).increment(1.0);
            }
            Event::SlotReleased { limit, held } => {
                histogram!("ratelimit_slot_seconds", with_labels(&self.labels, [("limit", *limit)]))
                    .record(held.as_secs_f64());
                return self.gauge("ratelimit_slots", limit).decrement(1.0);
            }
            Event::SlotsExpired { limit, slots } => return self.increment(SLOTS_EXPIRED, limit, *slots),
            Event::LeaseBegan { limit, tokens } => {
                self.gauge("ratelimit_leased_tokens", limit).increment(*tokens as f64);
                // From now on, queries see their first increments.
                LEASED.iter().for_each(|name| self.increment((name, "limit"), limit, 0));
                return self.increment((LEASED[0], "limit"), limit, *tokens);
            }
            Event::LeaseEnded { limit, tokens, unspent, returned } => {
                self.gauge("ratelimit_leased_tokens", limit).decrement(*tokens as f64);
                let [_, to_store, expired] = LEASED;
                return self.increment((if *returned { to_store } else { expired }, "limit"), limit, *unspent);
            }
            Event::Shortfall { limit, tokens } => {
                return self.increment(("ratelimit_shortfall_tokens_total", "limit"), limit, *tokens);
            }
            Event::RetryBudgetExhausted => (CLIENT_RETRIES, "budget_exhausted"),
            // Decisions include them.
            Event::OverageUsed { .. } | Event::ShadowDenied { .. } => return,
        };
        self.increment(counter, value, 1);
    }
}

/// The other counters by name and label, with all values of the label, in the order of the variants of enums.
#[rustfmt::skip]
const COUNTERS: [((&str, &str), &[&str]); 5] = [
    (("ratelimit_rules_loads_total", "result"), &["applied", "rejected"]),
    (
        ("ratelimit_rejections_total", "reason"),
        &["limited", "missing_key", "ambiguous_key", "no_peer_address", "listed", "store_failed"],
    ),
    (
        ("ratelimit_store_errors_total", "kind"),
        &["failed", "timed_out", "queue_full", "contention", "breaker_open", "not_supported", "full", "invalid_call"],
    ),
    (("ratelimit_fallbacks_total", "to"), &["rejected", "allowed", "decided_locally"]),
    (("ratelimit_list_matches_total", "action"), &["forbidden", "too_many_requests", "shadow"]),
];

/// Registered with the first slot.
const SLOTS_EXPIRED: (&str, &str) = ("ratelimit_slots_expired_total", "limit");

/// Registered with the first lease.
const LEASED: [&str; 3] = [
    "ratelimit_leased_tokens_total",
    "ratelimit_leased_tokens_returned_total",
    "ratelimit_leased_tokens_expired_total",
];

/// Not registered in advance, as most recorders have no client.
const CLIENT_RETRIES: (&str, &str) = ("ratelimit_client_retries_total", "result");

/// The shortest time between two readings of the store's keys, memory and queue.
const USAGE_INTERVAL: Duration = Duration::from_secs(1);

/// The maximum number of distinct details of a limit.
const MAX_DETAILS: usize = 100;

/// The numbers of variants, whose last ones are named here.
const DECIDERS: usize = DecidedBy::Unlimited as usize + 1;
const OUTCOMES: usize = OutcomeKind::Denied as usize + 1;

/// The handles of a limit's metrics.
#[derive(Debug, Default)]
struct LimitMetrics {
    labels: Vec<Label>,
    /// The handles of each [detail](crate::Limit::metric_detail).
    details: PerLabel<LimitMetrics, MAX_DETAILS>,
    decisions: [[OnceLock<Counter>; DECIDERS]; OUTCOMES],
    tokens: OnceLock<Counter>,
    near_limit: OnceLock<Counter>,
}

impl LimitMetrics {
    fn new(labels: Vec<Label>) -> Self {
        Self { labels, ..Self::default() }
    }

    /// Counts a decision of the limit under its detail, if it has one.
    fn count(&self, limit: &LimitRecord<'_>, by: DecidedBy) {
        let create = |detail: &str| Self::new(with_labels(&self.labels, [("detail", detail)]));
        let handles = limit.detail.map_or(self, |detail| self.details.get(detail, create));
        handles.increment(limit.outcome.kind(), by, [1, limit.charged(), limit.is_near_limit().into()]);
    }

    /// Increments the counters of decisions, of tokens, and of requests near the limit.
    fn increment(&self, outcome: OutcomeKind, by: DecidedBy, counts: [u64; 3]) {
        let Self { labels, decisions, tokens, near_limit, .. } = self;
        let all = || with_labels(labels, [("outcome", outcome.as_str()), ("decided_by", by.as_str())]);
        let decisions = &decisions[outcome as usize][by as usize];
        decisions.get_or_init(|| counter!("ratelimit_decisions_total", all())).increment(counts[0]);
        tokens.get_or_init(|| counter!("ratelimit_tokens_total", labels.clone())).increment(counts[1]);
        near_limit.get_or_init(|| counter!("ratelimit_near_limit_total", labels.clone())).increment(counts[2]);
    }
}

/// Returns the common labels and those of one metric, whose values a client may have chosen.
fn with_labels<const N: usize>(common: &[Label], labels: [(&'static str, &str); N]) -> Vec<Label> {
    let labels = labels.into_iter().map(|(name, value)| Label::new(name, printable(value)));
    common.iter().cloned().chain(labels).collect()
}

/// Describes the metrics to the exporter.
fn describe() {
    describe_counter!("ratelimit_decisions_total", "Decisions of a limit, by outcome and by the part that decided.");
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
    describe_gauge!("ratelimit_breaker_state", "State of a circuit breaker: 0 closed, 1 open.");
    describe_gauge!("ratelimit_queue_length", "Requests that wait to be sent to the store.");
    describe_gauge!("ratelimit_keys", "Keys in the memory store.");
    describe_gauge!("ratelimit_memory_bytes", Unit::Bytes, "Bytes that the keys in the memory store take.");
    describe_gauge!("ratelimit_rules_info", "Limits in force that were loaded at runtime.");
    describe_counter!("ratelimit_rules_loads_total", "Loads of limits at runtime, by result.");
    describe_gauge!("ratelimit_slots", "Slots that requests of this process hold.");
    describe_histogram!("ratelimit_slot_seconds", Unit::Seconds, "Time for which requests held a slot.");
    describe_counter!("ratelimit_slots_expired_total", "Slots that expired although their requests were in flight.");
    describe_gauge!("ratelimit_leased_tokens", "Tokens of leases that have not ended.");
    describe_counter!("ratelimit_leased_tokens_total", "Tokens leased from the store.");
    describe_counter!("ratelimit_leased_tokens_returned_total", "Leased tokens returned to the store, unspent.");
    describe_counter!("ratelimit_leased_tokens_expired_total", "Leased tokens that could not be returned.");
    describe_histogram!("ratelimit_client_wait_seconds", Unit::Seconds, "Waits of a client's calls, by reason.");
    describe_counter!("ratelimit_client_retries_total", "Retries of a client, by result.");
}
