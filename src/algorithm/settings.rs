//! The interface of the settings of algorithms.

use super::size::Size;
use super::state_period::StatePeriod;

/// The settings of an algorithm, such as [`FixedWindow`](super::FixedWindow).
pub(super) trait Settings: Copy {
    /// Returns the period to which the state of a key belongs.
    fn state_period(&self) -> StatePeriod;

    /// Returns the largest cost that can ever be allowed, in tokens.
    fn capacity(&self) -> u64;

    /// Returns the span over which the capacity is allowed, in µs.
    fn window(&self) -> u64;

    /// Returns the tokens of the limit: all that an override changes.
    fn size(&self) -> Size;

    /// Returns the settings with another size, or `None` if that is out of range.
    fn with_size(self, size: Size) -> Option<Self>;

    /// Returns the settings with `percent` more capacity, rounded down to whole tokens, and at most as much as is in range.
    fn with_overage(self, percent: u32) -> Self;

    /// Returns the limit that each of `parts` processes, from 1, may enforce without knowing of the others.
    fn share(self, parts: u32) -> Self;
}

/// The methods of [`Settings`] that windows with a `limit` and a `period` have in common.
macro_rules! window_settings {
    () => {
        fn capacity(&self) -> u64 {
            self.limit.into()
        }

        fn window(&self) -> u64 {
            self.period
        }

        fn size(&self) -> $crate::algorithm::size::Size {
            [self.limit, 0]
        }

        fn with_size(mut self, [limit, _]: $crate::algorithm::size::Size) -> Option<Self> {
            self.limit = limit;
            (limit > 0).then_some(self)
        }

        fn with_overage(mut self, percent: u32) -> Self {
            self.limit = $crate::algorithm::size::raised(self.limit, percent, u64::MAX);
            self
        }

        fn share(mut self, parts: u32) -> Self {
            (self.limit, self.period) = $crate::algorithm::size::share_of_window(self.limit, self.period, parts);
            self
        }
    };
}
pub(super) use window_settings;

/// The methods of [`Settings`] that limits with a `capacity` and an `amount` per `interval` have in common.
macro_rules! bucket_settings {
    () => {
        fn capacity(&self) -> u64 {
            Self::capacity(self)
        }

        fn size(&self) -> $crate::algorithm::size::Size {
            [self.capacity, self.amount]
        }

        fn with_size(mut self, [capacity, amount]: $crate::algorithm::size::Size) -> Option<Self> {
            (self.capacity, self.amount) = (capacity, amount);
            (capacity > 0 && amount > 0 && self.checked().is_ok()).then_some(self)
        }

        fn with_overage(mut self, percent: u32) -> Self {
            let most = $crate::validation::most_tokens(self.amount, self.interval);
            let more_than_set = Self::capacity(&self) - u64::from(self.capacity);
            self.capacity = $crate::algorithm::size::raised(self.capacity, percent, most - more_than_set);
            self
        }
    };
}
pub(super) use bucket_settings;
