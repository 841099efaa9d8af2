#![doc = include_str!("algorithms.md")]
//!
//! # Diagrams
//!
//! Each diagram shows the same requests, decided by another algorithm: two bursts around the edge of a window, and then
//! a steady rate. A dot is a request that is allowed, a cross one that is denied. The curve shows the tokens that
//! remain. The diagrams are drawn from runs of this crate.
//!
//! ## [`TokenBucket`](crate::TokenBucket)
//!
#![doc = include_str!("diagrams/token_bucket.svg")]
//!
//! The bucket is full at first, so a burst of its capacity is allowed at once. Afterwards, each second brings one
//! token. A fraction of a token is not shown.
//!
#![doc = include_str!("diagrams/token_bucket_at_intervals.svg")]
//!
//! With [`at_intervals`](crate::TokenBucket::at_intervals), all tokens come back together, in intervals that begin when
//! a full bucket is first used.
//!
//! ## [`FixedWindow`](crate::FixedWindow) and [`CalendarWindow`](crate::CalendarWindow)
//!
#![doc = include_str!("diagrams/fixed_window.svg")]
//!
//! The dashed lines are the edges of windows. The two bursts are in different windows, so that eight requests are
//! allowed within two seconds: twice the limit. A calendar window differs only in its edges.
//!
//! ## [`SlidingWindowCounter`](crate::SlidingWindowCounter)
//!
#![doc = include_str!("diagrams/sliding_window_counter.svg")]
//!
//! After an edge, requests of the previous window still count, with a weight that falls as the current window passes.
//!
//! ## [`SlidingWindow`](crate::SlidingWindow)
//!
#![doc = include_str!("diagrams/sliding_window.svg")]
//!
//! Requests are counted in buckets of a second. At 7 s, all four requests of the first bucket expire together.
//!
//! ## [`SlidingLog`](crate::SlidingLog)
//!
#![doc = include_str!("diagrams/sliding_log.svg")]
//!
//! Each request expires on its own, four seconds after it was allowed. No span of four seconds ever has more than four
//! requests.
//!
//! ## [`LeakyBucket`](crate::LeakyBucket)
//!
#![doc = include_str!("diagrams/leaky_bucket.svg")]
//!
//! The same limit as the token bucket, seen from the other side: the curve is the level, and requests must fit below
//! the rim.
//!
//! ## [`LeakyBucketQueue`](crate::LeakyBucketQueue)
//!
#![doc = include_str!("diagrams/leaky_bucket_queue.svg")]
//!
//! Requests wait in the queue and proceed one second apart. Only those that find it full are denied.
