//! Instants and spans.

use std::time::Duration;

/// Midnight of 1 January 2026 in µs. All windows up to a day start here.
pub const MIDNIGHT: u64 = 1_767_225_600_000_000;

pub const MICRO: Duration = Duration::from_micros(1);
pub const SECOND: Duration = Duration::from_secs(1);
pub const MINUTE: Duration = Duration::from_secs(60);
pub const HOUR: Duration = Duration::from_secs(3_600);
pub const DAY: Duration = Duration::from_secs(86_400);

/// The longest period of a limit, which does not end during a test.
pub const LONGEST: Duration = Duration::from_secs(366 * 86_400);
