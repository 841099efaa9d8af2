//! The circuit breaker of one node: closed, open, or half open.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use tokio::time::Instant;

use super::settings::CircuitBreaker;
use crate::observe::BreakerState;

/// A moment in the order in which failures were counted, and trials and probes begun.
pub(super) type Tick = u64;

#[derive(Debug)]
pub(super) struct Breaker {
    phase: Phase,
    /// Counted failures in a row, while it is closed.
    failures: u32,
    /// When the last of them was counted.
    counted: Tick,
    /// The longest that the next pause may be.
    pause: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Closed,
    Open {
        until: Instant,
    },
    /// The pause is over, and the node is asked in the background. Another probe may begin at `until`.
    Probing {
        began: Tick,
        until: Instant,
    },
    HalfOpen,
    /// A request tries whether the node works. Another may at `until`: callers need not await an answer that they hold.
    Trying {
        began: Tick,
        until: Instant,
    },
}

/// Whether a request may ask a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum NodeAdmission {
    Proceed,
    /// The request may ask, and is the trial that shows whether the node works.
    Trial,
    /// The request may not ask, and the node is due to be probed.
    Probe,
    Reject,
}

impl Breaker {
    pub(super) fn new(settings: CircuitBreaker) -> Self {
        Self { phase: Phase::Closed, failures: 0, counted: 0, pause: settings.first_pause() }
    }

    /// Returns whether the breaker is closed and has counted no failure.
    pub(super) fn has_no_failures(&self) -> bool {
        self.failures == 0 && self.is_closed()
    }

    pub(super) fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    pub(super) fn admission(&self, now: Instant) -> NodeAdmission {
        match self.phase {
            Phase::Closed => NodeAdmission::Proceed,
            Phase::Trying { until, .. } if now < until => NodeAdmission::Reject,
            Phase::HalfOpen | Phase::Trying { .. } => NodeAdmission::Trial,
            Phase::Open { until } | Phase::Probing { until, .. } if now < until => NodeAdmission::Reject,
            Phase::Open { .. } | Phase::Probing { .. } => NodeAdmission::Probe,
        }
    }

    pub(super) fn begin_trial(&mut self, began: Tick, until: Instant) {
        self.phase = Phase::Trying { began, until };
    }

    pub(super) fn begin_probe(&mut self, began: Tick, until: Instant) {
        self.phase = Phase::Probing { began, until };
    }

    /// Notes a failure of a request that `began` while the breaker was closed, and opens after too many.
    ///
    /// Requests that are under way at the same time often share a call, or a connection: of those that fail, only the
    /// first counts, at the `next` tick.
    pub(super) fn fail(
        &mut self,
        began: Tick,
        next: impl FnOnce() -> Tick,
        settings: CircuitBreaker,
    ) -> Option<BreakerState> {
        if !self.is_closed() || began < self.counted {
            return None;
        }
        self.counted = next();
        self.failures = self.failures.saturating_add(1);
        if self.failures < settings.failures {
            return None;
        }
        self.open(settings);
        Some(BreakerState::Open)
    }

    /// Notes the success of a request that began while the breaker was closed.
    pub(super) fn succeed(&mut self) {
        if self.is_closed() {
            self.failures = 0;
        }
    }

    /// Ends the trial that `began` then, unless another one has begun since.
    pub(super) fn end_trial(&mut self, began: Tick, worked: bool, settings: CircuitBreaker) -> Option<BreakerState> {
        if !self.is_trial(began) {
            return None;
        }
        if worked {
            self.phase = Phase::Closed;
            self.failures = 0;
            return Some(BreakerState::Closed);
        }
        self.open(settings);
        Some(BreakerState::Open)
    }

    /// Ends the trial that `began` then without a result.
    pub(super) fn withdraw_trial(&mut self, began: Tick) {
        if self.is_trial(began) {
            self.phase = Phase::HalfOpen;
        }
    }

    /// Ends the probe that `began` then, unless another one has begun since.
    pub(super) fn end_probe(&mut self, began: Tick, worked: bool, settings: CircuitBreaker) -> Option<BreakerState> {
        if !self.is_probe(began) {
            return None;
        }
        if worked {
            self.phase = Phase::HalfOpen;
            return Some(BreakerState::HalfOpen);
        }
        // It has been open all along.
        self.open(settings);
        None
    }

    /// Ends the probe that `began` then without a result.
    pub(super) fn withdraw_probe(&mut self, began: Tick) {
        if self.is_probe(began) {
            self.phase = Phase::Open { until: Instant::now() };
        }
    }

    /// Turns a probe into a trial by the request itself.
    pub(super) fn turn_into_trial(&mut self, probe: Tick) {
        if let Phase::Probing { began, until } = self.phase
            && began == probe
        {
            self.phase = Phase::Trying { began, until };
        }
    }

    fn is_trial(&self, began: Tick) -> bool {
        matches!(self.phase, Phase::Trying { began: latest, .. } if latest == began)
    }

    fn is_probe(&self, began: Tick) -> bool {
        matches!(self.phase, Phase::Probing { began: latest, .. } if latest == began)
    }

    fn open(&mut self, settings: CircuitBreaker) {
        self.phase = Phase::Open { until: after(Instant::now(), jittered(self.pause)) };
        self.pause = self.pause.saturating_mul(2).min(settings.longest_pause);
    }
}

/// The instant `time` from `now`.
pub(super) fn after(now: Instant, time: Duration) -> Instant {
    // A year off is as good as never.
    now.checked_add(time).unwrap_or(now + Duration::from_secs(31_536_000))
}

/// Between half of `pause` and all of it.
fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(()) >> 32;
    let share = random as f64 / f64::from(u32::MAX);
    pause / 2 + (pause / 2).mul_f64(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_differ_and_keep_their_bounds() {
        let pause = Duration::from_millis(100);
        let drawn: Vec<Duration> = (0..100).map(|_| jittered(pause)).collect();
        assert!(drawn.iter().all(|drawn| (pause / 2..=pause).contains(drawn)), "{drawn:?}");
        let mut different = drawn.clone();
        different.sort();
        different.dedup();
        assert!(different.len() > 90, "{drawn:?}");
    }
}
