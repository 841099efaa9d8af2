//! The strikes and lockouts of a key under a [`Penalty`].

use std::time::Duration;

use super::penalty::Penalty;
use super::rule::{Availability, QuotaSnapshot};
use super::state::CompactState;

/// A lockout that a strike has begun.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Lockout {
    /// From 1 for the first one that is remembered.
    pub(crate) level: u64,
    /// In µs.
    pub(crate) span: u64,
}

impl Lockout {
    pub(crate) fn duration(self) -> Duration {
        Duration::from_micros(self.span)
    }
}

impl Penalty {
    /// Returns how long a key is still locked out, in µs, or 0.
    pub(crate) fn locked_for(state: &CompactState, now: u64) -> u64 {
        DecodedPenalty::decode(state).locked_until.saturating_sub(now)
    }

    /// Counts a denial of a key that is not locked out. Returns the lockout that this begins, if it does.
    pub(crate) fn strike(&self, state: &mut CompactState, now: u64) -> Option<Lockout> {
        let decoded = DecodedPenalty::decode(state);
        let strikes = if now < decoded.strikes_until { decoded.strikes + 1 } else { 1 };
        let strikes_until = if strikes > 1 { decoded.strikes_until } else { now + self.within };
        let level = if now < decoded.level_until { decoded.level } else { 0 };
        if strikes < self.denials.into() {
            *state =
                DecodedPenalty { strikes, strikes_until, level, level_until: decoded.level_until, locked_until: 0 }
                    .encode();
            return None;
        }
        let level = (level + 1).min(MAX_LEVEL);
        let span = self.lockout_span(level);
        let locked_until = now + span;
        let level_until = locked_until + self.remembered.unwrap_or(span);
        *state = DecodedPenalty { strikes: 0, strikes_until: 0, level, level_until, locked_until }.encode();
        Some(Lockout { level, span })
    }

    /// Restricts the availability of a cost of at least 1 under the limit by a lockout.
    pub(crate) fn restrict(state: &CompactState, now: u64, availability: Availability) -> Availability {
        match (Self::locked_for(state, now), availability) {
            (0, availability) | (_, availability @ Availability::Never) => availability,
            (left, Availability::After(wait)) => Availability::After(wait.max(left)),
            (left, Availability::Now { .. }) => Availability::After(left),
        }
    }

    /// Restricts the remaining tokens of the limit by a lockout. The key is unused again once its strikes and its
    /// level are forgotten, too.
    pub(crate) fn restrict_snapshot(state: &CompactState, now: u64, limit: QuotaSnapshot) -> QuotaSnapshot {
        let reset_after = limit.reset_after.max(state.expires_at.saturating_sub(now));
        match Self::locked_for(state, now) {
            0 => QuotaSnapshot { reset_after, ..limit },
            left => {
                let more_after = if limit.remaining > 0 { Some(0) } else { limit.more_after };
                QuotaSnapshot { remaining: 0, more_after: more_after.map(|after| after.max(left)), reset_after }
            }
        }
    }

    /// Returns the length of a lockout of `level`, from 1, in µs.
    fn lockout_span(&self, level: u64) -> u64 {
        let doubled = u128::from(self.first) << (level - 1).min(MAX_DOUBLINGS);
        doubled.min(self.longest.unwrap_or(self.first).into()) as u64
    }
}

/// A span of 1 µs that is doubled this often exceeds 366 days.
const MAX_DOUBLINGS: u64 = 45;

/// The decoded state of a key's penalty.
///
/// A key has strikes or a lockout, and in both cases may have a level. There are two instants: `level_until`, and the
/// end of the strikes or of the lockout. The state's `expires_at` is the later one, and `at` the earlier one. The lower
/// half of its `detail` is the strikes, the upper half the level, plus [`LEVEL_IS_LATER`].
#[derive(Clone, Copy, Debug, Default)]
struct DecodedPenalty {
    strikes: u64,
    /// When the strikes are forgotten, if there are any.
    strikes_until: u64,
    /// The level of the last lockout, or 0.
    level: u64,
    /// When the level is forgotten.
    level_until: u64,
    locked_until: u64,
}

const MAX_LEVEL: u64 = (1 << 6) - 1;
/// Marks a key with strikes whose level ends later than these.
const LEVEL_IS_LATER: u64 = MAX_LEVEL + 1;

impl DecodedPenalty {
    fn decode(state: &CompactState) -> Self {
        let CompactState { expires_at: later, at: earlier, detail } = *state;
        let (strikes, level) = (detail & u64::from(u32::MAX), detail >> 32 & MAX_LEVEL);
        match (strikes, level) {
            (0, 0) => Self::default(),
            (0, _) => Self { level, level_until: later, locked_until: earlier, ..Self::default() },
            _ if detail >> 32 & LEVEL_IS_LATER == 0 => {
                Self { strikes, strikes_until: later, level, level_until: earlier, locked_until: 0 }
            }
            _ => Self { strikes, strikes_until: earlier, level, level_until: later, locked_until: 0 },
        }
    }

    fn encode(self) -> CompactState {
        let Self { strikes, strikes_until, level, level_until, locked_until } = self;
        let (expires_at, at, level) = match strikes {
            0 => (level_until, locked_until, level),
            _ if level > 0 && level_until > strikes_until => (level_until, strikes_until, level + LEVEL_IS_LATER),
            _ => (strikes_until, level_until, level),
        };
        CompactState { expires_at, at, detail: level << 32 | strikes }
    }
}
