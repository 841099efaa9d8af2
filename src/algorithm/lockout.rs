//! The strikes and lockouts of a key under a [`Penalty`](super::Penalty).
//!
//! A penalty is an algorithm, too: a charge is a strike, and a locked-out key has to wait.

use std::num::NonZeroU64;
use std::time::Duration;

use super::settings::{Algorithm, Kind};
use super::state::CompactState;

/// A lockout that a strike has begun.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Lockout {
    /// From 1 for the first one that is remembered.
    pub(crate) level: NonZeroU64,
    /// In µs.
    pub(crate) span: u64,
}

/// Returns how long a key is still locked out, in µs, or 0.
pub(super) fn wait(state: &CompactState, now: u64) -> u64 {
    DecodedPenalty::decode(state).locked_until.saturating_sub(now)
}

/// Counts a denial of a key that is not locked out. Returns 0, as strikes use no tokens.
pub(super) fn charge(penalty: &Algorithm, state: &mut CompactState, now: u64) -> u64 {
    let decoded = DecodedPenalty::decode(state);
    let strikes = if now < decoded.strikes_until { decoded.strikes + 1 } else { 1 };
    let strikes_until = if strikes > 1 { decoded.strikes_until } else { now + penalty.span };
    let level = if now < decoded.level_until { decoded.level } else { 0 };
    *state = if strikes < penalty.amount.into() {
        DecodedPenalty { strikes, strikes_until, level, level_until: decoded.level_until, locked_until: 0 }
    } else {
        let level = (level + 1).min(MAX_LEVEL);
        let span = span(penalty, level);
        let locked_until = now + span;
        let memory = match penalty.kind {
            Kind::Penalty { memory, .. } if memory > 0 => memory,
            _ => span,
        };
        DecodedPenalty { strikes: 0, strikes_until: 0, level, level_until: locked_until + memory, locked_until }
    }
    .encode();
    0
}

/// Returns the length of a lockout of `level`, from 1, in µs.
fn span(penalty: &Algorithm, level: u64) -> u64 {
    let Kind::Penalty { longest, .. } = penalty.kind else { return penalty.capacity };
    let doubled = u128::from(penalty.capacity) << (level - 1).min(MAX_DOUBLINGS);
    doubled.min(longest.into()) as u64
}

impl Lockout {
    /// Creates a lockout of a level from 1, or `None` for a level of 0.
    pub(crate) fn new(level: u32, span: u64) -> Option<Self> {
        Some(Self { level: NonZeroU64::new(level.into())?, span })
    }

    /// Returns the lockout that the strike which has left `state` at `now` has begun, if it has.
    pub(crate) fn begun(state: &CompactState, now: u64) -> Option<Self> {
        let level = NonZeroU64::new(DecodedPenalty::decode(state).level)?;
        Some(Self { level, span: wait(state, now) }).filter(|lockout| lockout.span > 0)
    }

    pub(crate) fn duration(self) -> Duration {
        Duration::from_micros(self.span)
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
