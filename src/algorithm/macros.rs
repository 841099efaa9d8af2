//! Constructors and accessors that windows, or buckets, have in common.

/// The constructors of a limit with a `limit` per `period`, from its `from_checked`. `$new` and `$per` are the words
/// before the period in their documentation.
macro_rules! window_constructors {
    ($name:ident, $new:literal, $per:literal) => {
        impl $name {
            #[doc = concat!("Allows `limit` tokens, at least 1, in ", $new, " `period`: 1 µs to 366 days.")]
            ///
            /// # Panics
            ///
            /// Panics if an argument is out of its range, or `period` is not in whole microseconds. In a constant, this
            /// is a compile-time error. [`try_new`](Self::try_new) returns an error instead.
            #[must_use]
            #[track_caller]
            pub const fn new(limit: u32, period: std::time::Duration) -> Self {
                Self::from_checked(
                    $crate::validation::checked!($crate::validation::tokens("limit", limit)),
                    $crate::validation::checked!($crate::validation::span("period", period)),
                )
            }

            /// Fallible version of [`new`](Self::new).
            ///
            /// # Errors
            ///
            /// Returns an error if `limit` is 0, or `period` is 0, longer than 366 days, or not in whole microseconds.
            pub fn try_new(limit: u32, period: std::time::Duration) -> Result<Self, $crate::error::ConfigError> {
                Ok(Self::from_checked(
                    $crate::validation::tokens("limit", limit)?,
                    $crate::validation::span("period", period)?,
                ))
            }

            $crate::algorithm::macros::window_constructors!(@unit per_second, try_per_second, SECOND, "second", $per);
            $crate::algorithm::macros::window_constructors!(@unit per_minute, try_per_minute, MINUTE, "minute", $per);
            $crate::algorithm::macros::window_constructors!(@unit per_hour, try_per_hour, HOUR, "hour", $per);
            $crate::algorithm::macros::window_constructors!(@unit per_day, try_per_day, DAY, "day", $per);

            /// Returns the number of tokens per period.
            #[must_use]
            pub const fn limit(&self) -> u32 {
                self.limit
            }

            /// Returns the period.
            #[must_use]
            pub const fn period(&self) -> std::time::Duration {
                std::time::Duration::from_micros(self.period)
            }
        }
    };
    (@unit $name:ident, $try_name:ident, $span:ident, $unit:literal, $per:literal) => {
        #[doc = concat!("Allows `limit` tokens, at least 1, in ", $per, " ", $unit, ".")]
        ///
        /// # Panics
        ///
        /// Panics if `limit` is 0. In a constant, this is a compile-time error.
        #[doc = concat!("[`", stringify!($try_name), "`](Self::", stringify!($try_name), ") returns an error instead.")]
        #[must_use]
        #[track_caller]
        pub const fn $name(limit: u32) -> Self {
            Self::new(limit, $crate::validation::$span)
        }

        #[doc = concat!("Fallible version of [`", stringify!($name), "`](Self::", stringify!($name), ").")]
        ///
        /// # Errors
        ///
        /// Returns an error if `limit` is 0.
        pub fn $try_name(limit: u32) -> Result<Self, $crate::error::ConfigError> {
            Self::try_new(limit, $crate::validation::$span)
        }
    };
}
pub(super) use window_constructors;

/// The constructors, the setter of the capacity and the accessors of a limit with a `capacity` and an `amount` per
/// `interval`. The literals are sentences of their documentation.
macro_rules! bucket_constructors {
    ($name:ident, $set:ident, $try_set:ident, new: $new:literal, unit: $unit_doc:literal, set: $set_doc:literal) => {
        impl $name {
            #[doc = $new]
            ///
            /// Both numbers of tokens are at least 1, and the interval is 1 µs to 366 days. All tokens must drain within
            /// 2^52 µs, 142 years.
            ///
            /// # Panics
            ///
            /// Panics if an argument is out of its range, or `interval` is not in whole microseconds. In a constant,
            /// this is a compile-time error. [`try_new`](Self::try_new) returns an error instead.
            #[must_use]
            #[track_caller]
            pub const fn new(capacity: u32, amount: u32, interval: std::time::Duration) -> Self {
                let bucket = Self::from_checked(
                    $crate::validation::checked!($crate::validation::tokens("capacity", capacity)),
                    $crate::validation::checked!($crate::validation::tokens("amount", amount)),
                    $crate::validation::checked!($crate::validation::span("interval", interval)),
                );
                $crate::validation::checked!(bucket.checked());
                bucket
            }

            /// Fallible version of [`new`](Self::new).
            ///
            /// # Errors
            ///
            /// Returns an error if `capacity` or `amount` is 0, `interval` is 0, longer than 366 days, or not in whole
            /// microseconds, or the tokens do not drain within 142 years.
            pub fn try_new(
                capacity: u32,
                amount: u32,
                interval: std::time::Duration,
            ) -> Result<Self, $crate::error::ConfigError> {
                let bucket = Self::from_checked(
                    $crate::validation::tokens("capacity", capacity)?,
                    $crate::validation::tokens("amount", amount)?,
                    $crate::validation::span("interval", interval)?,
                );
                bucket.checked()?;
                Ok(bucket)
            }

            /// Checks that all tokens drain soon enough.
            const fn checked(&self) -> Result<(), $crate::error::Fault> {
                $crate::validation::drain(self.capacity(), self.amount, self.interval)
            }

            $crate::algorithm::macros::bucket_constructors!(@unit per_second, try_per_second, SECOND, "second", $unit_doc, $set);
            $crate::algorithm::macros::bucket_constructors!(@unit per_minute, try_per_minute, MINUTE, "minute", $unit_doc, $set);
            $crate::algorithm::macros::bucket_constructors!(@unit per_hour, try_per_hour, HOUR, "hour", $unit_doc, $set);
            $crate::algorithm::macros::bucket_constructors!(@unit per_day, try_per_day, DAY, "day", $unit_doc, $set);

            #[doc = concat!($set_doc, " At least 1. It may be less than the amount.")]
            ///
            /// # Panics
            ///
            /// Panics if `capacity` is 0, or takes more than 142 years to drain. In a constant, this is a compile-time error.
            #[doc = concat!("[`", stringify!($try_set), "`](Self::", stringify!($try_set), ") returns an error instead.")]
            #[must_use]
            #[track_caller]
            pub const fn $set(mut self, capacity: u32) -> Self {
                self.capacity = $crate::validation::checked!($crate::validation::tokens(stringify!($set), capacity));
                $crate::validation::checked!(self.checked());
                self
            }

            #[doc = concat!("Fallible version of [`", stringify!($set), "`](Self::", stringify!($set), ").")]
            ///
            /// # Errors
            ///
            /// Returns an error if `capacity` is 0, or takes more than 142 years to drain.
            pub fn $try_set(mut self, capacity: u32) -> Result<Self, $crate::error::ConfigError> {
                self.capacity = $crate::validation::tokens(stringify!($set), capacity)?;
                self.checked()?;
                Ok(self)
            }

            /// Returns the number of tokens per [`interval`](Self::interval).
            #[must_use]
            pub const fn amount(&self) -> u32 {
                self.amount
            }

            /// Returns the interval of the [`amount`](Self::amount).
            #[must_use]
            pub const fn interval(&self) -> std::time::Duration {
                std::time::Duration::from_micros(self.interval)
            }
        }
    };
    (@unit $name:ident, $try_name:ident, $span:ident, $unit:literal, $unit_doc:literal, $set:ident) => {
        #[doc = concat!($unit_doc, " per ", $unit, ". [`", stringify!($set), "`](Self::", stringify!($set), ") sets another capacity.")]
        ///
        /// # Panics
        ///
        /// Panics if `rate` is 0. In a constant, this is a compile-time error.
        #[doc = concat!("[`", stringify!($try_name), "`](Self::", stringify!($try_name), ") returns an error instead.")]
        #[must_use]
        #[track_caller]
        pub const fn $name(rate: u32) -> Self {
            let rate = $crate::validation::checked!($crate::validation::tokens("rate", rate));
            Self::new(rate, rate, $crate::validation::$span)
        }

        #[doc = concat!("Fallible version of [`", stringify!($name), "`](Self::", stringify!($name), ").")]
        ///
        /// # Errors
        ///
        /// Returns an error if `rate` is 0.
        pub fn $try_name(rate: u32) -> Result<Self, $crate::error::ConfigError> {
            let rate = $crate::validation::tokens("rate", rate)?;
            Self::try_new(rate, rate, $crate::validation::$span)
        }
    };
}
pub(super) use bucket_constructors;
