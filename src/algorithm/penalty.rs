//! Penalties for keys that are denied too often.
//!
//! A key has strikes or a lockout, and in both cases may have a level. There are two instants: when the level is
//! forgotten, and the end of the strikes or of the lockout. The state's `expires_at` is the later one, and `at` the
//! earlier one. The lower half of its `detail` is the strikes, the upper half the level, plus [`LEVEL_IS_LATER`].

use std::time::Duration;

use super::state::CompactState;
use crate::error::validation::{self, checked};
use crate::error::{ConfigError, Fault};

/// Locks out keys that a limit has denied too often, for longer each time. Set it by
/// [`Limit::penalty`](crate::Limit::penalty).
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Limit, Penalty, SlidingLog, key};
///
/// // Five denials within a minute lock a client out for a minute, then for two, and so on up to a day.
/// let penalty = Penalty::after(5, Duration::from_secs(60))
///     .locked_out_for(Duration::from_secs(60))
///     .doubling_up_to(Duration::from_secs(86_400));
/// let codes = Limit::new("codes", SlidingLog::per_minute(10)).by(key::peer_ip()).penalty(penalty);
/// # let _ = codes;
/// ```
///
/// # Decisions
///
/// These rules hold for each key of the limit, to the microsecond, on every store. Let n be the number of denials, W
/// the span within which they count, B and M the lengths of the first and the longest lockout, and Q how long a lockout
/// is remembered after its end: as long as it lasted, unless set by [`remembered_for`](Self::remembered_for).
///
/// - **Strike**: a request that costs the limit at least 1 token and that the limit denies, while the key is not locked
///   out, even without [charges in flight](#charges-in-flight). A peek is not a strike, nor is a request that only other
///   limits deny. A cost over the capacity is a strike, too. If several layers charge one request, their denials are one
///   strike, while each denied [charge by a handler](crate::Permit::charge) is a strike of its own.
///   [Settling](crate::Permit::settle) and [waiting](crate::Limiter::wait) make no strikes.
/// - **Span**: a strike at t that is in no earlier span begins one. Strikes in `[t, t + W)` count together.
/// - **Lockout**: the n-th strike of a span, at t, begins a lockout of the next level: level 1, if no lockout is
///   remembered. At level k, it lasts L = min(B·2^(k − 1), M): all requests in `[t, t + L)` are denied, including the
///   n-th strike itself. None of them is a strike, and none extends the lockout. The strikes before it are forgotten.
/// - **Memory**: the level is remembered until t + L + Q. A lockout that begins then or later is of level 1.
///
/// While a key is locked out, `remaining` is 0, and `retry_after` is the time to the end of the lockout, or longer if
/// the limit itself says so. `reset_after` includes the time until strikes and level are forgotten. A cost of 0 is
/// always allowed. A request that a lockout denies charges no other limit. A request that other limits deny
/// leaves the penalty as it is, unless this limit denies it too.
///
/// # Charges in flight
///
/// Under a limit with [`count_if`](crate::Limit::count_if), [`settle_by`](crate::Limit::settle_by) or
/// [`settle_at_end`](crate::Limit::settle_at_end), a charge is in flight until the response or its body has settled it,
/// or the request is dropped. A denial is no strike if the limit would allow the request without the charges of the key
/// that were in flight in this process during the decision, as far as they still count. So valid requests that arrive at
/// once lock nobody out, and failures count once they are known. A strike that can't be counted within the
/// deadline is left out. [The guide](crate::guide::limits#penalties) describes what several processes can't know of each
/// other.
///
/// Charges that only a [`Permit`](crate::Permit) or [`Limiter::refund`](crate::Limiter::refund) refunds are not in
/// flight: denials that are due to them are strikes.
///
/// # State
///
/// The penalty keeps 24 bytes per key in memory, or one more key in Redis, which the same script reads and writes as
/// the limit's own. A limit without a penalty costs nothing more. [`Limiter::reset`](crate::Limiter::reset) and
/// [`Permit::reset`](crate::Permit::reset) clear it; refunds do not change it. Limits that share their keys' state
/// share lockouts, too, if they have a penalty. If the size of the limit is changed, a key stays locked out. If the
/// settings of the penalty are changed, its state is kept, and later strikes follow the new settings. A limit in
/// [shadow](crate::Limit::shadow) mode has no penalty.
///
/// A clock that steps back shortens no lockout. A memory store at its [`max_keys`](crate::MemoryStore::max_keys) evicts
/// strikes and lockouts like the state of a denied key: among denied keys, those that expire first are evicted first.
/// So in a full store, strikes with a span much shorter than the periods of the other limits are lost first. Strikes
/// never evict the state of the same request; a store without room for both counts none.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[must_use]
pub struct Penalty {
    pub(crate) denials: u16,
    /// In µs, as all spans.
    pub(crate) within: u64,
    pub(crate) first: u64,
    /// 0 for lockouts that all last as long as the first.
    longest: u64,
    /// 0 for as long as the lockout lasted.
    pub(crate) remembered: u64,
}

const MAX_DENIALS: u32 = 1_000;

impl Penalty {
    /// Locks a key out after so many denials, 1 to 1,000, within a span of 1 µs to 366 days. Lockouts last as long as
    /// the span, unless set by [`locked_out_for`](Self::locked_out_for).
    ///
    /// # Panics
    ///
    /// Panics if an argument is out of its range, or the span is not in whole microseconds. In a constant, this is a
    /// compile-time error. [`try_after`](Self::try_after) returns an error instead.
    #[track_caller]
    pub const fn after(denials: u32, within: Duration) -> Self {
        checked!(Self::checked_after(denials, within))
    }

    /// Fallible version of [`after`](Self::after).
    ///
    /// # Errors
    ///
    /// Returns an error if an argument is out of its range, or the span is not in whole microseconds.
    pub fn try_after(denials: u32, within: Duration) -> Result<Self, ConfigError> {
        Ok(Self::checked_after(denials, within)?)
    }

    const fn checked_after(denials: u32, within: Duration) -> Result<Self, Fault> {
        if denials == 0 || denials > MAX_DENIALS {
            let message = Fault::new("a lockout begins after ").number(denials as u64);
            return Err(message.text(" denials: use 1 to 1,000, or leave the penalty out"));
        }
        match validation::span("a penalty's span", within) {
            Ok(within) => Ok(Self { denials: denials as u16, within, first: within, longest: 0, remembered: 0 }),
            Err(fault) => Err(fault),
        }
    }

    /// Sets how long the first lockout lasts, from 1 µs to 366 days.
    ///
    /// # Panics
    ///
    /// Panics if the span is out of its range, not in whole microseconds, or longer than the [longest
    /// lockout](Self::doubling_up_to). In a constant, this is a compile-time error.
    #[track_caller]
    pub const fn locked_out_for(self, span: Duration) -> Self {
        checked!(self.checked_locked_out_for(span))
    }

    pub(crate) const fn checked_locked_out_for(mut self, span: Duration) -> Result<Self, Fault> {
        match validation::span("a lockout", span) {
            Ok(first) => self.first = first,
            Err(fault) => return Err(fault),
        }
        self.checked_order()
    }

    /// Doubles the length of each further lockout, up to `longest`, which is at most 366 days. By default, all lockouts
    /// last as long as the first.
    ///
    /// # Panics
    ///
    /// Panics if the span is out of its range, not in whole microseconds, or shorter than the first lockout. In a
    /// constant, this is a compile-time error.
    #[doc(alias = "backoff")]
    #[track_caller]
    pub const fn doubling_up_to(self, longest: Duration) -> Self {
        checked!(self.checked_doubling_up_to(longest))
    }

    pub(crate) const fn checked_doubling_up_to(mut self, longest: Duration) -> Result<Self, Fault> {
        match validation::span("the longest lockout", longest) {
            Ok(longest) => self.longest = longest,
            Err(fault) => return Err(fault),
        }
        self.checked_order()
    }

    /// Sets how long after its end a lockout is remembered, so that the next one is longer: from 1 µs to 366 days.
    /// Defaults to the length of the lockout.
    ///
    /// # Panics
    ///
    /// Panics if the span is out of its range, or not in whole microseconds. In a constant, this is a compile-time
    /// error.
    #[track_caller]
    pub const fn remembered_for(self, span: Duration) -> Self {
        checked!(self.checked_remembered_for(span))
    }

    pub(crate) const fn checked_remembered_for(mut self, span: Duration) -> Result<Self, Fault> {
        match validation::span("the memory of a lockout", span) {
            Ok(span) => self.remembered = span,
            Err(fault) => return Err(fault),
        }
        Ok(self)
    }

    /// Returns the length of the longest lockout, in µs.
    pub(crate) fn longest(&self) -> u64 {
        self.longest.max(self.first)
    }

    const fn checked_order(self) -> Result<Self, Fault> {
        if self.longest > 0 && self.longest < self.first {
            return Err(Fault::new("the first lockout lasts ")
                .duration(Duration::from_micros(self.first))
                .text(", longer than the longest, ")
                .duration(Duration::from_micros(self.longest))
                .text(": shorten the first, or lengthen the longest"));
        }
        Ok(self)
    }
}

const MAX_LEVEL: u64 = (1 << 6) - 1;
/// Added to the level if it is forgotten after the strikes.
const LEVEL_IS_LATER: u64 = MAX_LEVEL + 1;

impl Penalty {
    /// Returns how long a key is still locked out, in µs, or 0.
    pub(crate) fn lockout_left(state: &CompactState, now: u64) -> u64 {
        match state.halves() {
            [level, 0] if level > 0 => state.at.saturating_sub(now),
            _ => 0,
        }
    }

    /// Returns the state after a denial of a key that is not locked out.
    pub(crate) fn strike(&self, state: &CompactState, now: u64) -> CompactState {
        let [level, strikes] = state.halves();
        let (strikes_end, level_end) = match strikes > 0 && level < LEVEL_IS_LATER {
            true => (state.expires_at, state.at),
            false => (state.at, state.expires_at),
        };
        let level = if now < level_end { level & MAX_LEVEL } else { 0 };
        let (strikes, strikes_end) =
            if now < strikes_end { (strikes + 1, strikes_end) } else { (1, now + self.within) };
        if strikes >= self.denials.into() {
            let level = (level + 1).min(MAX_LEVEL);
            let span = self.first.saturating_mul(1 << (level - 1)).min(self.longest());
            let memory = if self.remembered > 0 { self.remembered } else { span };
            CompactState { expires_at: now + span + memory, at: now + span, detail: level << 32 }
        } else if level > 0 && level_end > strikes_end {
            CompactState { expires_at: level_end, at: strikes_end, detail: (level + LEVEL_IS_LATER) << 32 | strikes }
        } else {
            CompactState { expires_at: strikes_end, at: level_end, detail: level << 32 | strikes }
        }
    }
}

/// A lockout that a strike has begun.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Lockout {
    /// From 1 for the first one that is remembered.
    pub(crate) level: u32,
    pub(crate) span: Duration,
}

impl Lockout {
    /// Returns the lockout that the strike which has left `state` at `now` has begun, if it has.
    pub(crate) fn begun(state: &CompactState, now: u64) -> Option<Self> {
        let ([level, _], span) = (state.halves(), Penalty::lockout_left(state, now));
        (span > 0).then_some(Self { level: level as u32, span: Duration::from_micros(span) })
    }
}
