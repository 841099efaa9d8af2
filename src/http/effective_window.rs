//! The effective window of a limit: how long what is left of it has to suffice.

use crate::algorithm::Algorithm;
use crate::decision::{Outcome, Verdict};
use crate::time::{Timestamp, ceil_seconds};

/// What the effective window of a limit depends on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pace {
    /// Windows of this algorithm begin and end at fixed times.
    Window(Algorithm),
    /// As many tokens as the capacity come back in a period.
    Rolling { capacity: u64, micros: u128 },
}

impl Pace {
    pub(super) fn of(algorithm: &Algorithm) -> Self {
        match algorithm {
            Algorithm::FixedWindow(_) | Algorithm::CalendarWindow(_) => Self::Window(*algorithm),
            _ => Self::Rolling { capacity: algorithm.capacity(), micros: algorithm.window().as_micros() },
        }
    }

    /// Returns the algorithm if the length of its window depends on the date.
    pub(super) fn calendar(&self) -> Option<&Algorithm> {
        match self {
            Self::Window(calendar @ Algorithm::CalendarWindow(_)) => Some(calendar),
            _ => None,
        }
    }

    /// Returns the effective window in seconds: see [`HeaderStyle::IetfDraft11`](super::HeaderStyle::IetfDraft11).
    pub(super) fn effective_window(&self, outcome: &Outcome, at: Timestamp) -> u64 {
        let until_more = outcome.more_after().map(ceil_seconds);
        let seconds = match *self {
            Self::Window(algorithm) => until_more.unwrap_or_else(|| ceil_seconds(algorithm.window_at(at))),
            Self::Rolling { capacity, micros } => {
                let micros_for_all = micros.saturating_mul(outcome.remaining().into());
                let seconds = micros_for_all.div_ceil(u128::from(capacity) * 1_000_000);
                u64::try_from(seconds).unwrap_or(u64::MAX).max(until_more.unwrap_or(0))
            }
        };
        match outcome.verdict() {
            Verdict::Deny { retry_after: Some(wait) } => seconds.min(ceil_seconds(wait).max(1)),
            _ => seconds,
        }
    }
}
