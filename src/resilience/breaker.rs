//! The circuit breaker of one node: closed, open, or half open.

use std::time::Duration;

use tokio::time::Instant;

use super::settings::CircuitBreaker;
use crate::recorder::BreakerState;
use crate::time::jittered;

/// A logical time: the number of failures counted, and of trials and probes begun.
pub(super) type Tick = u64;

#[derive(Debug)]
pub(super) struct Breaker {
    phase: Phase,
    /// Consecutive failures while closed.
    failures: u32,
    /// The tick at which the last failure was counted.
    counted: Tick,
    /// The next pause before jitter.
    pause: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Closed,
    Open {
        until: Instant,
    },
    /// The pause is over, and a probe runs in the background. Another probe may begin at `until`.
    Probing {
        began: Tick,
        until: Instant,
    },
    HalfOpen,
    /// A request is the trial of the node. Another trial may begin at `until`, since callers can keep a future without
    /// polling it.
    Trying {
        began: Tick,
        until: Instant,
    },
}

/// Whether a request may use a node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum NodeAdmission {
    Proceed,
    /// The request may use the node, and is the trial that shows whether it works.
    Trial,
    /// The request may not use the node, which is due to be probed.
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

    /// Records the failure of a request that `began` while the breaker was closed, and opens after too many.
    ///
    /// Concurrent requests often share a call or a connection, so only the first of their failures counts, at the `next`
    /// tick.
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

    /// Records the success of a request that began while the breaker was closed.
    pub(super) fn succeed(&mut self) {
        if self.is_closed() {
            self.failures = 0;
        }
    }

    /// Ends the trial that `began` at a tick, unless another has begun since.
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

    /// Ends the trial that `began` at a tick without a result.
    pub(super) fn withdraw_trial(&mut self, began: Tick) {
        if self.is_trial(began) {
            self.phase = Phase::HalfOpen;
        }
    }

    /// Ends the probe that `began` at a tick, unless another has begun since.
    pub(super) fn end_probe(&mut self, began: Tick, worked: bool, settings: CircuitBreaker) -> Option<BreakerState> {
        if !self.is_probe(began) {
            return None;
        }
        if worked {
            self.phase = Phase::HalfOpen;
            return Some(BreakerState::HalfOpen);
        }
        // The state stays open for observers.
        self.open(settings);
        None
    }

    /// Ends the probe that `began` at a tick without a result.
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

/// Returns the instant `time` after `now`.
pub(super) fn after(now: Instant, time: Duration) -> Instant {
    // A pause that overflows is replaced by a year.
    now.checked_add(time).unwrap_or(now + Duration::from_secs(31_536_000))
}
