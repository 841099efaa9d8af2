//! The public types of limits: each creates an [`Algorithm`](super::Algorithm).

mod buckets;
mod calendar_window;
mod windows;

pub use self::buckets::{LeakyBucket, LeakyBucketQueue, TokenBucket};
pub use self::calendar_window::CalendarWindow;
pub use self::windows::{FixedWindow, SlidingLog, SlidingWindow, SlidingWindowCounter};
