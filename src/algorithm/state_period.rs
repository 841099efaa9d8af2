//! The period that the state of a key is relative to.

use std::fmt;

use super::calendar::Calendar;

/// The period to which the state of a key belongs: a period or an interval in µs, a period in several buckets, or a
/// calendar.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum StatePeriod {
    Micros(u64),
    Buckets(u64, u32),
    Calendar(Calendar),
}

/// As it appears in storage keys: `60s`, `1500000u`, `3600s.10`, `m15.Europe/Berlin`.
impl fmt::Display for StatePeriod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Micros(micros) if micros % 1_000_000 == 0 => write!(f, "{}s", micros / 1_000_000),
            Self::Micros(micros) => write!(f, "{micros}u"),
            Self::Buckets(micros, buckets) => write!(f, "{}.{buckets}", Self::Micros(*micros)),
            Self::Calendar(calendar) => write!(f, "{calendar}"),
        }
    }
}
