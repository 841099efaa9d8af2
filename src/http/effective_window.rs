//! The effective window of a limit: the time for which a client should make the remaining tokens last.

use std::time::Duration;

use crate::algorithm::{Algorithm, Kind};
use crate::decision::{Outcome, Verdict};
use crate::time::{Timestamp, ceil_seconds};

/// The way in which a limit regains tokens. Its effective window depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Replenishment {
    /// Windows of this algorithm begin and end at fixed times.
    Window(Algorithm),
    /// `capacity` tokens come back in each period of `micros`.
    Rolling { capacity: u64, micros: u128 },
}

impl Replenishment {
    pub(super) fn of(algorithm: &Algorithm) -> Self {
        match algorithm.kind {
            Kind::FixedWindow | Kind::CalendarWindow(_) => Self::Window(*algorithm),
            _ => Self::Rolling { capacity: algorithm.capacity(), micros: algorithm.window().as_micros() },
        }
    }

    /// Returns the calendar window, if the limit is one: its length depends on the date.
    pub(super) fn calendar(&self) -> Option<&Algorithm> {
        match self {
            Self::Window(window) if matches!(window.kind, Kind::CalendarWindow(_)) => Some(window),
            _ => None,
        }
    }

    /// Returns the effective window in seconds: see [`HeaderStyle::IetfDraft11`](super::HeaderStyle::IetfDraft11).
    pub(super) fn effective_window(&self, outcome: &Outcome, at: Timestamp) -> u64 {
        let until_more = outcome.more_after().map(|wait| wait.as_micros());
        let micros = match self {
            Self::Window(algorithm) => until_more.unwrap_or_else(|| algorithm.window_at(at).as_micros()),
            Self::Rolling { capacity, micros } => {
                let until_refilled = micros.saturating_mul(outcome.remaining().into()).div_ceil(u128::from(*capacity));
                until_refilled.max(until_more.unwrap_or(0))
            }
        };
        let window = Duration::from_micros(micros.min(u64::MAX.into()) as u64);
        ceil_seconds(match outcome.verdict() {
            Verdict::Deny { retry_after: Some(wait) } => window.min(wait),
            Verdict::Deny { retry_after: None } | Verdict::Allow { .. } => window,
        })
    }
}
