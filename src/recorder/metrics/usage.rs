//! The usage of the store.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use metrics::{Gauge, Label, gauge};

use crate::recorder::DecisionRecord;

/// The shortest time between two readings of the store's keys, memory and queue.
const INTERVAL: Duration = Duration::from_secs(1);

/// Gauges of the store's keys, memory and queue, which decisions update.
#[derive(Debug)]
pub(super) struct UsageGauges {
    handles: OnceLock<Handles>,
    began: Instant,
    /// When the usage is read next, in µs after `began`.
    next: AtomicU64,
}

#[derive(Debug)]
struct Handles {
    keys: Gauge,
    bytes: Gauge,
    queued: Gauge,
}

impl UsageGauges {
    pub(super) fn new() -> Self {
        Self { handles: OnceLock::new(), began: Instant::now(), next: AtomicU64::new(0) }
    }

    /// Reads the usage of the store that decided, unless it was read within [`INTERVAL`].
    pub(super) fn record(&self, decision: &DecisionRecord<'_>, labels: &[Label]) {
        if !self.is_due() {
            return;
        }
        let handles = self.handles.get_or_init(|| Handles {
            keys: gauge!("ratelimit_keys", labels.to_vec()),
            bytes: gauge!("ratelimit_memory_bytes", labels.to_vec()),
            queued: gauge!("ratelimit_queue_length", labels.to_vec()),
        });
        let usage = decision.store_usage();
        let gauges = [(&handles.keys, usage.keys), (&handles.bytes, usage.bytes), (&handles.queued, usage.queued)];
        for (gauge, value) in gauges {
            gauge.set(value.unwrap_or(0) as f64);
        }
    }

    /// Returns whether the usage is to be read now. Of concurrent calls, one returns `true`.
    fn is_due(&self) -> bool {
        let now = self.began.elapsed();
        let (next, after) = (self.next.load(Ordering::Relaxed), (now + INTERVAL).as_micros() as u64);
        now.as_micros() as u64 >= next
            && self.next.compare_exchange(next, after, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}
