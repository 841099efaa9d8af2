//! Decisions in `tracing` spans, and logs of denied keys.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tracing::Span;

use super::{DecisionRecord, LimitRecord, Recorder};
use crate::decision::OutcomeKind;
use crate::text::RoundedUp;
use crate::time::Cooldown;

/// The most keys whose first denial is logged in one interval. The denials of more keys are only counted.
const MAX_LOGGED: usize = 100;

/// Records decisions in the current [`tracing`] span, and logs the first denial of each key. Requires the feature
/// `tracing`.
///
/// **Fields of the current span**, such as that of tower-http's `TraceLayer`, if the span declares them:
///
/// | field | |
/// |---|---|
/// | `ratelimit.allowed` | whether the request was allowed |
/// | `ratelimit.limit` | the limit that denied it, or else the one with the least remaining |
/// | `ratelimit.remaining` | the tokens that remain under this limit |
/// | `ratelimit.decided_by` | [what decided](crate::DecidedBy) |
///
/// **Events.** The first denial of a key by a limit within an interval is logged at level `INFO`, with the key's
/// fingerprint. Further denials of the key are not logged, and neither are keys beyond 100 in an interval: the field
/// `suppressed` of the next line counts both.
///
/// ```
/// use axum::Router;
/// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, TraceRecorder};
///
/// let limits = RateLimitLayer::builder([Limit::new("all", FixedWindow::per_minute(100))])
///     .recorder(TraceRecorder::new())
///     .build();
///
/// // An outer layer opens the span, which declares the fields.
/// let span = tracing::info_span!("request", ratelimit.allowed = tracing::field::Empty);
/// # let _ = (span, Router::<()>::new().layer(limits));
/// ```
#[derive(Debug)]
pub struct TraceRecorder {
    interval: Duration,
    denials: Mutex<LoggedDenials>,
}

/// The keys whose denials were logged in the current interval.
#[derive(Debug)]
struct LoggedDenials {
    interval: Cooldown,
    fingerprints: HashSet<u128>,
    suppressed: u64,
}

impl TraceRecorder {
    /// Creates a recorder that logs the first denial of each key within a minute.
    #[must_use]
    pub fn new() -> Self {
        let fingerprints = HashSet::with_capacity(MAX_LOGGED);
        let denials = LoggedDenials { interval: Cooldown::default(), fingerprints, suppressed: 0 };
        Self { interval: Duration::from_secs(60), denials: Mutex::new(denials) }
    }

    /// Sets the interval in which the denials of a key are logged once. Defaults to a minute.
    #[must_use]
    pub fn denial_interval(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    /// Returns the number of suppressed denials since the last line, if the denial of this key is to be logged.
    fn first_denial(&self, fingerprint: u128) -> Option<u64> {
        let mut denials = self.denials.lock().unwrap_or_else(PoisonError::into_inner);
        if denials.interval.try_start(self.interval) {
            denials.fingerprints.clear();
        }
        if denials.fingerprints.len() >= MAX_LOGGED || !denials.fingerprints.insert(fingerprint) {
            denials.suppressed += 1;
            return None;
        }
        Some(std::mem::take(&mut denials.suppressed))
    }
}

impl Default for TraceRecorder {
    fn default() -> Self {
        Self::new()
    }
}

impl Recorder for TraceRecorder {
    fn decision(&self, decision: &DecisionRecord<'_>) {
        let denied = |limit: &LimitRecord<'_>| limit.outcome.kind() == OutcomeKind::Denied;
        // The one that denies the request, which a limit in shadow mode does not.
        let deciding = decision.limits().min_by_key(|limit| (!denied(limit), limit.outcome.remaining()));
        let span = Span::current();
        if !span.is_disabled() {
            span.record("ratelimit.allowed", decision.decision.is_allowed());
            span.record("ratelimit.decided_by", decision.decision.decided_by().as_str());
            if let Some(limit) = &deciding {
                span.record("ratelimit.limit", limit.name);
                span.record("ratelimit.remaining", limit.outcome.remaining());
            }
        }
        for LimitRecord { name, outcome, .. } in decision.limits().filter(denied) {
            let Some(suppressed) = self.first_denial(outcome.fingerprint()) else { continue };
            tracing::info!(
                limit = name,
                key = format_args!("{:032x}", outcome.fingerprint()),
                cost = outcome.cost(),
                retry_after = outcome.verdict().retry_after().map(|wait| tracing::field::display(RoundedUp(wait))),
                penalty = outcome.is_locked_out(),
                suppressed,
                "a limit denied a key"
            );
        }
    }
}
