//! Random pauses, so that a fleet does not retry in step.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Returns a random duration between half of `pause` and all of it.
pub(crate) fn jittered(pause: Duration) -> Duration {
    pause / 2 + random_up_to(pause / 2)
}

/// Returns a random duration between zero and `longest`.
pub(crate) fn random_up_to(longest: Duration) -> Duration {
    let random = RandomState::new().hash_one(()) >> 32;
    longest.mul_f64(random as f64 / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_random_within_their_bounds() {
        let pause = Duration::from_millis(100);
        let drawn: Vec<Duration> = (0..100).map(|_| jittered(pause)).collect();
        assert!(drawn.iter().all(|drawn| (pause / 2..=pause).contains(drawn)), "{drawn:?}");
        let mut different = drawn.clone();
        different.sort();
        different.dedup();
        assert!(different.len() > 90, "{drawn:?}");
    }
}
