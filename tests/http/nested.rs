//! Limiters around each other.
