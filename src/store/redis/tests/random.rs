//! Random limits, costs and instants, biased towards edge cases.

use std::time::Duration;

use crate::algorithm::{
    Algorithm, CalendarWindow, FixedWindow, LeakyBucket, LeakyBucketQueue, Penalty, Rounding, SlidingLog,
    SlidingWindow, SlidingWindowCounter, TokenBucket, Weekday,
};

pub(super) use super::split_mix::Random;
use crate::error::validation;

/// Returns a bucket of this kind, with no more capacity than drains in the longest time.
fn bucket(tag: &str, capacity: u32, amount: u32, micros: u64, burst: u64) -> Algorithm {
    let most = match tag {
        "ti" => validation::most_tokens(1, micros) * u64::from(amount),
        _ => validation::most_tokens(amount, micros) - u64::from(tag == "lq"),
    };
    let burst = burst.min(most - 1);
    let (capacity, span) = (u64::from(capacity).min(most - burst) as u32, Duration::from_micros(micros));
    match tag {
        "tb" => TokenBucket::new(capacity, amount, span).into(),
        "ti" => TokenBucket::new(capacity, amount, span).at_intervals().into(),
        "lb" => LeakyBucket::new(capacity, amount, span).into(),
        _ => LeakyBucketQueue::new(capacity, amount, span).burst(burst as u32).into(),
    }
}

impl Random {
    pub(super) fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Returns a number from 1 to `most`, with a uniformly distributed number of digits.
    pub(super) fn up_to(&mut self, most: u64) -> u64 {
        match self.below(12) {
            0 => 1,
            1 => most,
            _ => {
                let bits = self.below(u64::from(64 - most.leading_zeros())) + 1;
                (self.next() >> (64 - bits)).clamp(1, most)
            }
        }
    }

    fn tokens(&mut self) -> u32 {
        let most = if self.one_in(4) { u64::from(u32::MAX) } else { 12 };
        self.up_to(most) as u32
    }

    fn micros(&mut self) -> u64 {
        const ROUND: [u64; 8] =
            [1, 10, 1_000, 60_000_000, 1_000_000, 86_400_000_000, 3_600_000_000, 31_622_400_000_000];
        match self.below(3) {
            0 => ROUND[self.below(8) as usize],
            1 => self.up_to(100),
            _ => self.up_to(31_622_400_000_000),
        }
    }

    pub(super) fn algorithm(&mut self, kind: u64) -> Algorithm {
        let [one, other] = [self.tokens(), self.tokens()];
        let micros = self.micros();
        let burst = if self.one_in(2) { 0 } else { u64::from(self.tokens()) };
        let span = Duration::from_micros(micros);
        match kind {
            0 => FixedWindow::new(one, span).into(),
            1 => SlidingLog::new(one, span).into(),
            2 => {
                let buckets = (1..=self.up_to(5_000)).rev().find(|buckets| micros.is_multiple_of(*buckets)).unwrap();
                SlidingWindow::new(one, span).buckets(buckets as u32).into()
            }
            3 => {
                let rounding = if self.one_in(2) { Rounding::Up } else { Rounding::Down };
                let weight = if self.one_in(2) { 100 } else { self.up_to(100) as u32 };
                SlidingWindowCounter::new(one, span).rounding(rounding).weight(weight).into()
            }
            4 => bucket("tb", one, other, micros, burst),
            5 => bucket("ti", one, other, micros, burst),
            6 => bucket("lb", one, other, micros, burst),
            7 => bucket("lq", one, other, micros, burst),
            _ => self.calendar(one).into(),
        }
    }

    pub(super) fn penalty(&mut self) -> Penalty {
        let most = if self.one_in(4) { 1_000 } else { 4 };
        let denials = self.up_to(most) as u32;
        let mut spans = [self.micros(), self.micros(), self.micros(), self.micros()].map(Duration::from_micros);
        spans[1..3].sort();
        let penalty = Penalty::after(denials, spans[0]).locked_out_for(spans[1]);
        let penalty = if self.one_in(4) { penalty } else { penalty.doubling_up_to(spans[2]) };
        if self.one_in(2) { penalty } else { penalty.remembered_for(spans[3]) }
    }

    fn calendar(&mut self, limit: u32) -> CalendarWindow {
        let window = match self.below(4) {
            0 => CalendarWindow::daily(limit),
            1 => CalendarWindow::weekly(limit, if self.one_in(2) { Weekday::Sunday } else { Weekday::Thursday }),
            2 => CalendarWindow::monthly(limit).from_day(1 + self.below(31) as u8),
            _ => CalendarWindow::yearly(limit),
        };
        #[cfg(feature = "time-zones")]
        if self.one_in(2) {
            const ZONES: [&str; 5] =
                ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo", "Pacific/Apia"];
            return window.in_zone(ZONES[self.below(5) as usize]);
        }
        window
    }

    /// Leases the limit, if that is possible.
    pub(super) fn leased(&mut self, algorithm: Algorithm) -> Algorithm {
        let term = Duration::from_micros(self.up_to(60_000_000).max(1_000));
        algorithm.leased(term).unwrap_or(algorithm)
    }

    /// Returns a size that an override may give the limit.
    pub(super) fn override_of(&mut self, algorithm: &Algorithm) -> Algorithm {
        match algorithm.is_bucket() {
            true => self.resized(algorithm),
            false => algorithm.with_size([self.tokens(), 0]).unwrap(),
        }
    }

    /// Returns the same bucket with another capacity and rate.
    pub(super) fn resized(&mut self, algorithm: &Algorithm) -> Algorithm {
        let [one, other] = [self.tokens(), self.tokens()];
        if algorithm.term > 0 {
            let resized = self.resized(&algorithm.without_lease());
            return resized.leased(Duration::from_micros(algorithm.term.into())).unwrap_or(*algorithm);
        }
        match algorithm.tag() {
            tag @ ("tb" | "ti" | "lb" | "lq") => {
                let resized = bucket(tag, one, other, algorithm.span, algorithm.at_once().saturating_sub(1));
                // At a slower rate, the same burst may be out of range.
                if resized.at_once() == algorithm.at_once() { resized } else { *algorithm }
            }
            _ => *algorithm,
        }
    }

    pub(super) fn cost(&mut self, capacity: u64) -> u64 {
        match self.below(16) {
            0 => 0,
            1 => capacity,
            2 => capacity + 1,
            3 => self.next(),
            4..8 => self.up_to(capacity),
            _ => self.up_to(capacity.min(3)),
        }
    }
}
