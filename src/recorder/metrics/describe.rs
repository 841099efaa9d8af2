//! Descriptions of the metrics for exporters.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

/// Describes the metrics to the exporter.
pub(super) fn describe() {
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
    describe_gauge!("ratelimit_breaker_state", "State of a circuit breaker: 0 closed, 1 open.");
    describe_gauge!("ratelimit_queue_length", "Requests that wait to be sent to the store.");
    describe_gauge!("ratelimit_keys", "Keys in the memory store.");
    describe_gauge!("ratelimit_memory_bytes", Unit::Bytes, "Bytes that the keys in the memory store take.");
    describe_gauge!("ratelimit_rules_info", "Limits in force that were loaded at runtime.");
    describe_counter!("ratelimit_rules_loads_total", "Loads of limits at runtime, by result.");
}
