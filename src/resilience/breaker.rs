//! A circuit breaker: a store that has failed too often is left alone for a while.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::settings::CircuitBreaker;
use crate::observe::BreakerState;

/// The breaker of one limiter, whose clones share it.
#[derive(Debug)]
pub(super) struct Breaker {
    settings: CircuitBreaker,
    /// How often it has opened and closed: even while it is closed.
    epoch: AtomicU32,
    /// Failures in a row, of this epoch or of one before.
    failures: AtomicU32,
    circuit: Mutex<Circuit>,
}

#[derive(Debug)]
struct Circuit {
    phase: Phase,
    /// How long the next pause is at most.
    pause: Duration,
    /// Which trial or probe is the latest. What an earlier one says comes too late.
    turn: u64,
}

#[derive(Debug)]
enum Phase {
    Closed,
    Open {
        until: Instant,
    },
    /// The pause is over, and the store is asked in the background; from then on another may.
    Probing {
        until: Instant,
    },
    HalfOpen,
    /// A request tries whether the store works; from then on another may: whoever holds an answer
    /// need not wait for it.
    Trying {
        until: Instant,
    },
}

/// Whether a request may ask the store.
pub(super) enum Pass {
    Ask(Attempt),
    /// No, but it may see to it that the store is probed.
    Probe(Attempt),
    No,
}

impl Breaker {
    pub(super) fn new(settings: CircuitBreaker) -> Arc<Self> {
        let circuit = Circuit { phase: Phase::Closed, pause: settings.first_pause(), turn: 0 };
        Arc::new(Self { settings, epoch: AtomicU32::new(0), failures: AtomicU32::new(0), circuit: Mutex::new(circuit) })
    }

    pub(super) fn settings(&self) -> CircuitBreaker {
        self.settings
    }

    /// The present epoch, while requests may ask the store.
    #[inline]
    pub(super) fn closed(&self) -> Option<u32> {
        let epoch = self.epoch.load(Ordering::Relaxed);
        epoch.is_multiple_of(2).then_some(epoch)
    }

    /// Whether a request may ask the store, for `deadline`, which may `probe` it instead.
    pub(super) fn pass(self: &Arc<Self>, probe: bool, deadline: Duration) -> Pass {
        let attempt = |kind| Attempt { breaker: self.clone(), kind: Some(kind) };
        if let Some(epoch) = self.closed() {
            return Pass::Ask(Attempt::usual(self, epoch));
        }
        let mut circuit = self.circuit();
        let now = Instant::now();
        // Who is about to reach its deadline is not overtaken.
        let until = after(now, deadline.saturating_mul(2));
        match circuit.phase {
            // It has closed in between.
            Phase::Closed => Pass::Ask(attempt(Kind::Usual { epoch: self.epoch.load(Ordering::Relaxed) })),
            Phase::Trying { until: then } if now < then => Pass::No,
            Phase::HalfOpen | Phase::Trying { .. } => {
                Pass::Ask(attempt(Kind::Trial { turn: circuit.begin(Phase::Trying { until }) }))
            }
            Phase::Open { until: then } | Phase::Probing { until: then } if !probe || now < then => Pass::No,
            Phase::Open { .. } | Phase::Probing { .. } => {
                Pass::Probe(attempt(Kind::Probe { turn: circuit.begin(Phase::Probing { until }) }))
            }
        }
    }

    /// Counts a failure of a request of `epoch`, and opens after too many.
    fn fail(&self, epoch: u32) -> Option<BreakerState> {
        if self.settings.failures == 0 || self.epoch.load(Ordering::Relaxed) != epoch {
            return None;
        }
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if failures < self.settings.failures {
            return None;
        }
        let mut circuit = self.circuit();
        if self.epoch.load(Ordering::Relaxed) != epoch {
            // Another was faster.
            return None;
        }
        self.epoch.store(epoch.wrapping_add(1), Ordering::Relaxed);
        circuit.pause = self.settings.first_pause();
        circuit.open(self.settings.longest_pause);
        Some(BreakerState::Open)
    }

    fn succeed(&self, epoch: u32) {
        if self.failures.load(Ordering::Relaxed) > 0 && self.epoch.load(Ordering::Relaxed) == epoch {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    fn reopen(&self, turn: u64) -> Option<BreakerState> {
        self.circuit_in(turn)?.open(self.settings.longest_pause);
        Some(BreakerState::Open)
    }

    fn half_open(&self, turn: u64) -> Option<BreakerState> {
        self.circuit_in(turn)?.phase = Phase::HalfOpen;
        Some(BreakerState::HalfOpen)
    }

    fn close(&self, turn: u64) -> Option<BreakerState> {
        let mut circuit = self.circuit_in(turn)?;
        circuit.phase = Phase::Closed;
        self.failures.store(0, Ordering::Relaxed);
        self.epoch.fetch_add(1, Ordering::Relaxed);
        Some(BreakerState::Closed)
    }

    fn circuit(&self) -> MutexGuard<'_, Circuit> {
        self.circuit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The circuit, unless another trial or probe has overtaken that of `turn`.
    fn circuit_in(&self, turn: u64) -> Option<MutexGuard<'_, Circuit>> {
        Some(self.circuit()).filter(|circuit| circuit.turn == turn)
    }
}

impl Circuit {
    fn open(&mut self, longest: Duration) {
        self.phase = Phase::Open { until: after(Instant::now(), jittered(self.pause)) };
        self.pause = self.pause.saturating_mul(2).min(longest);
    }

    /// Begins the turn of a trial or probe.
    fn begin(&mut self, phase: Phase) -> u64 {
        self.phase = phase;
        self.turn += 1;
        self.turn
    }
}

fn after(now: Instant, time: Duration) -> Instant {
    // A year off is as good as never.
    now.checked_add(time).unwrap_or(now + Duration::from_secs(31_536_000))
}

/// Between half of `pause` and all of it.
fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(()) >> 32;
    let share = random as f64 / f64::from(u32::MAX);
    pause / 2 + (pause / 2).mul_f64(share)
}

/// One attempt at the store. Given up, or ended by a panic, it says nothing of the store, but makes way
/// for the next.
#[derive(Debug)]
#[must_use = "what it says of the store is to be told by `end`"]
pub(crate) struct Attempt {
    breaker: Arc<Breaker>,
    /// None, once it has ended.
    kind: Option<Kind>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Usual { epoch: u32 },
    Trial { turn: u64 },
    Probe { turn: u64 },
}

impl Attempt {
    /// A request's, while the breaker is closed.
    pub(super) fn usual(breaker: &Arc<Breaker>, epoch: u32) -> Self {
        Self { breaker: breaker.clone(), kind: Some(Kind::Usual { epoch }) }
    }

    /// Of a probe, a request that asks the store itself.
    pub(super) fn into_trial(mut self) -> Self {
        if let Some(Kind::Probe { turn }) = self.kind {
            self.kind = Some(Kind::Trial { turn });
            if let Some(mut circuit) = self.breaker.circuit_in(turn)
                && let Phase::Probing { until } = circuit.phase
            {
                circuit.phase = Phase::Trying { until };
            }
        }
        self
    }

    /// What an answer says of the store: the state that the breaker is in now, if it has changed.
    pub(super) fn end(mut self, worked: bool) -> Option<BreakerState> {
        match self.kind.take()? {
            Kind::Usual { epoch } if worked => self.breaker.succeed(epoch),
            Kind::Usual { epoch } => return self.breaker.fail(epoch),
            Kind::Trial { turn } if worked => return self.breaker.close(turn),
            Kind::Probe { turn } if worked => return self.breaker.half_open(turn),
            Kind::Trial { turn } => return self.breaker.reopen(turn),
            // It has been open all along.
            Kind::Probe { turn } => drop(self.breaker.reopen(turn)),
        }
        None
    }

    /// The store was not asked after all, and nothing is known of it: the next may.
    pub(super) fn withdraw(mut self) {
        match self.kind.take() {
            Some(Kind::Trial { turn }) => drop(self.breaker.half_open(turn)),
            Some(Kind::Probe { turn }) => {
                if let Some(mut circuit) = self.breaker.circuit_in(turn) {
                    circuit.phase = Phase::Open { until: Instant::now() };
                }
            }
            Some(Kind::Usual { .. }) | None => {}
        }
    }

    /// The same for an answer that was there at once: it has cost nobody any time, and is not counted
    /// unless it was waited for.
    pub(super) fn end_at_once(mut self, worked: bool) -> Option<BreakerState> {
        if let Some(Kind::Usual { .. }) = self.kind {
            self.kind = None;
        }
        self.end(worked)
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        match self.kind {
            Some(Kind::Trial { turn }) if !std::thread::panicking() => drop(self.breaker.half_open(turn)),
            Some(Kind::Trial { turn } | Kind::Probe { turn }) => drop(self.breaker.reopen(turn)),
            Some(Kind::Usual { .. }) | None => {}
        }
    }
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
