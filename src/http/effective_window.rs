//! The effective window of a limit: how long what is left of it has to suffice.

use crate::algorithm::Algorithm;
use crate::decision::{Outcome, Verdict};
use crate::time::{self, Timestamp, ceil_seconds};

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
        let until_more = outcome.more_after().map(|wait| wait.as_micros());
        let micros = match self {
            Self::Window(algorithm) => until_more.unwrap_or_else(|| algorithm.window_at(at).as_micros()),
            Self::Rolling { capacity, micros } => {
                let until_as_many = micros.saturating_mul(outcome.remaining().into()).div_ceil(u128::from(*capacity));
                until_as_many.max(until_more.unwrap_or(0))
            }
        };
        let window = time::micros(micros);
        ceil_seconds(match outcome.verdict() {
            Verdict::Deny { retry_after: Some(wait) } => window.min(wait),
            Verdict::Deny { retry_after: None } | Verdict::Allow { .. } => window,
        })
    }
}
