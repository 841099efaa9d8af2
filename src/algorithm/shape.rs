//! What limits of one shape share: their constructors, and decisions made for them.

/// `new`, `try_new` and `per_…` of a limit with a `limit` per `period`, by its `of`.
macro_rules! window_constructors {
    ($name:ident, $what:literal) => {
        impl $name {
            #[doc = concat!("At most `limit` tokens, from 1, in ", $what, " `period`, from 1 µs to 366 days.")]
            ///
            /// # Panics
            ///
            /// When one is out of its range; at compile time in a constant.
            /// [`try_new`](Self::try_new) returns an error instead.
            #[must_use]
            #[track_caller]
            pub const fn new(limit: u32, period: std::time::Duration) -> Self {
                Self::of(
                    $crate::quota::checked!($crate::quota::tokens("limit", limit)),
                    $crate::quota::checked!($crate::quota::span("period", period)),
                )
            }

            /// Like [`new`](Self::new), for values that are not known to be right.
            ///
            /// # Errors
            ///
            /// When `limit` is 0, or `period` is 0, over 366 days, or not whole microseconds.
            pub fn try_new(limit: u32, period: std::time::Duration) -> Result<Self, $crate::error::ConfigError> {
                Ok(Self::of($crate::quota::tokens("limit", limit)?, $crate::quota::span("period", period)?))
            }

            $crate::algorithm::shape::window_constructors!(@unit per_second, SECOND, "second", $what);
            $crate::algorithm::shape::window_constructors!(@unit per_minute, MINUTE, "minute", $what);
            $crate::algorithm::shape::window_constructors!(@unit per_hour, HOUR, "hour", $what);
            $crate::algorithm::shape::window_constructors!(@unit per_day, DAY, "day", $what);

            pub(super) const fn capacity(&self) -> u64 {
                self.limit as u64
            }

            pub(super) const fn window(&self) -> u128 {
                self.period as u128
            }

            pub(super) const fn share(mut self, parts: u32) -> Self {
                (self.limit, self.period) = $crate::algorithm::share::window(self.limit, self.period, parts);
                self
            }

            pub(super) const fn raised(mut self, percent: u32) -> Self {
                self.limit = $crate::algorithm::share::raised(self.limit, percent);
                self
            }

            pub(super) const fn cycle(&self) -> u64 {
                self.period
            }

            pub(super) const fn size(&self) -> $crate::algorithm::Size {
                [self.limit, 0]
            }

            pub(super) fn sized(mut self, [limit, _]: $crate::algorithm::Size) -> Option<Self> {
                self.limit = limit;
                (limit > 0).then_some(self)
            }
        }
    };
    (@unit $per:ident, $span:ident, $unit:literal, $what:literal) => {
        #[doc = concat!("At most `limit` tokens in ", $what, " ", $unit, ".")]
        ///
        /// # Panics
        ///
        /// When `limit` is 0; at compile time in a constant.
        #[must_use]
        #[track_caller]
        pub const fn $per(limit: u32) -> Self {
            Self::new(limit, $crate::quota::$span)
        }
    };
}
pub(super) use window_constructors;

/// `new`, `try_new`, `per_…` and the setter of the capacity of a limit with a `capacity`, and an `amount` per
/// `interval`, by its `of`.
macro_rules! bucket_constructors {
    ($name:ident, $set:ident, $holds:literal, $moves:literal) => {
        impl $name {
            #[doc = concat!("`capacity` tokens ", $holds, ", `amount` ", $moves, " evenly per `interval`: tokens from 1,")]
            /// an interval from 1 µs to 366 days.
            ///
            /// # Panics
            ///
            /// When one is out of its range; at compile time in a constant.
            /// [`try_new`](Self::try_new) returns an error instead.
            #[must_use]
            #[track_caller]
            pub const fn new(capacity: u32, amount: u32, interval: std::time::Duration) -> Self {
                Self::of(
                    $crate::quota::checked!($crate::quota::tokens("capacity", capacity)),
                    $crate::quota::checked!($crate::quota::tokens("amount", amount)),
                    $crate::quota::checked!($crate::quota::span("interval", interval)),
                )
            }

            /// Like [`new`](Self::new), for values that are not known to be right.
            ///
            /// # Errors
            ///
            /// When `capacity` or `amount` is 0, or `interval` is 0, over 366 days, or not whole
            /// microseconds.
            pub fn try_new(
                capacity: u32,
                amount: u32,
                interval: std::time::Duration,
            ) -> Result<Self, $crate::error::ConfigError> {
                Ok(Self::of(
                    $crate::quota::tokens("capacity", capacity)?,
                    $crate::quota::tokens("amount", amount)?,
                    $crate::quota::span("interval", interval)?,
                ))
            }

            $crate::algorithm::shape::bucket_constructors!(@unit per_second, SECOND, "second", $holds, $moves);
            $crate::algorithm::shape::bucket_constructors!(@unit per_minute, MINUTE, "minute", $holds, $moves);
            $crate::algorithm::shape::bucket_constructors!(@unit per_hour, HOUR, "hour", $holds, $moves);
            $crate::algorithm::shape::bucket_constructors!(@unit per_day, DAY, "day", $holds, $moves);

            #[doc = concat!("Another capacity, from 1: the tokens ", $holds, ". It may be smaller than the amount.")]
            ///
            /// # Panics
            ///
            /// When `capacity` is 0; at compile time in a constant.
            #[must_use]
            #[track_caller]
            pub const fn $set(mut self, capacity: u32) -> Self {
                self.capacity = $crate::quota::checked!($crate::quota::tokens(stringify!($set), capacity));
                self
            }

            pub(super) const fn raised(mut self, percent: u32) -> Self {
                self.capacity = $crate::algorithm::share::raised(self.capacity, percent);
                self
            }

            pub(super) const fn cycle(&self) -> u64 {
                self.interval
            }

            pub(super) const fn size(&self) -> $crate::algorithm::Size {
                [self.capacity, self.amount]
            }

            pub(super) fn sized(mut self, [capacity, amount]: $crate::algorithm::Size) -> Option<Self> {
                (self.capacity, self.amount) = (capacity, amount);
                (capacity > 0 && amount > 0).then_some(self)
            }

            /// A share of one whose tokens move evenly.
            fn even_share(mut self, parts: u32) -> Self {
                self.capacity = $crate::algorithm::share::tokens(self.capacity, parts);
                (self.amount, self.interval) = $crate::algorithm::share::rate(self.amount, self.interval, parts);
                self
            }
        }
    };
    (@unit $per:ident, $span:ident, $unit:literal, $holds:literal, $moves:literal) => {
        #[doc = concat!("`tokens` ", $holds, ", and as many ", $moves, " each ", $unit, ".")]
        ///
        /// # Panics
        ///
        /// When `tokens` is 0; at compile time in a constant.
        #[must_use]
        #[track_caller]
        pub const fn $per(tokens: u32) -> Self {
            Self::new(tokens, tokens, $crate::quota::$span)
        }
    };
}
pub(super) use bucket_constructors;

/// The decisions of a limit that a kernel makes for it.
macro_rules! decided_by {
    ($limit:ty, $kernel:ident over $state:ty) => {
        impl $crate::algorithm::Exact<$state> for $limit {
            #[inline(always)]
            fn peek(&self, state: &$state, now: u64, cost: u64) -> $crate::algorithm::Room {
                self.$kernel().peek(state, now, cost)
            }

            #[inline]
            fn commit(&self, state: &mut $state, now: u64, cost: u64) -> $crate::record::Record {
                self.$kernel().commit(state, now, cost)
            }

            #[inline(always)]
            fn take(
                &self,
                state: &mut $state,
                now: u64,
                cost: u64,
            ) -> ($crate::record::Record, $crate::algorithm::Standing) {
                self.$kernel().take(state, now, cost)
            }

            #[inline(always)]
            fn take_at_once(
                &self,
                state: &mut $state,
                now: u64,
                cost: u64,
            ) -> Option<($crate::algorithm::Room, $crate::record::Record, $crate::algorithm::Standing)> {
                self.$kernel().take_at_once(state, now, cost)
            }

            #[inline]
            fn standing(&self, state: &$state, now: u64) -> $crate::algorithm::Standing {
                self.$kernel().standing(state, now)
            }

            #[inline(always)]
            fn adopt(&self, state: &mut $state, now: u64) {
                self.$kernel().adopt(state, now);
            }

            fn refund(&self, state: &mut $state, mark: $crate::record::Record, now: u64, cost: u64) {
                self.$kernel().refund(state, mark, now, cost);
            }
        }
    };
}
pub(super) use decided_by;
