//! The times of the calls to one upstream, by an adaptive rate.
//!
//! At first, the rate doubles every 600 ms, as in the slow start of TCP. A rejection stops all calls for as long as the
//! server asks. The next rate lies between the rate that was rejected and that of the calls that were admitted, the
//! pause included, below which the limit can't be. From there, the rate grows by a cubic curve, as in CUBIC (RFC 9438)
//! and in the adaptive mode of AWS's clients: it soon approaches the rate that was rejected, and stays below it for a
//! minute. If there is no rejection for another minute, it grows exponentially.
//!
//! Because waits are whole seconds, a rejection often costs as many calls as a minute at a rate that is 2 % too low.

use std::cmp::Reverse;
use std::time::Duration;

use tokio::time::Instant;

use super::answer::Quota;

/// Calls per second to a new upstream.
const FIRST_RATE: f64 = 20.0;
/// The bounds of the rate.
const MIN_RATE: f64 = 0.5;
const MAX_RATE: f64 = 1_000_000.0;
/// The seconds in which the rate doubles until the first rejection.
const DOUBLING: f64 = 0.6;

/// The rate after a rejection, as a part of the rejected one: at most, and, once a limit is known, at least.
const DECREASE: f64 = 0.98;
const SHARP_DECREASE: f64 = 0.85;
/// The minimum number of calls between two rejections from which the limit can be estimated.
const MIN_ADMITTED: u32 = 10;
/// The rejected rate counts as at most this multiple of the rate after it: the first rejection may come late.
const HEADROOM: f64 = 1.15;

/// The part of the gap to the rejected rate by which the rate recovers quickly, and the seconds that this takes.
const RECOVERY: f64 = 0.3;
const RECOVERY_SECONDS: f64 = 6.0;
/// The seconds in which the rate then grows by as much again, if that is little or at least 2 %.
const SMALL_GROWTH_SECONDS: f64 = 60.0;
const LARGE_GROWTH_SECONDS: f64 = 15.0;
const LARGE_GROWTH: f64 = 0.02;

/// A call that is late by at most this does not delay the next one. Tokio's timers have a resolution of 1 ms.
const SLACK: Duration = Duration::from_millis(5);
/// The longest time for which calls are held because nothing remains of a quota. Then, one call tries.
const LONGEST_HOLD: Duration = Duration::from_secs(60);

/// The schedule of the calls to one upstream.
#[derive(Debug)]
pub(super) struct Schedule {
    /// The end of the last pause. No call leaves before.
    resumes: Instant,
    /// The end of the time in which calls are held because a quota is used up.
    held_until: Instant,
    /// When the rate allows the next call.
    next: Instant,
    /// When the last call left.
    last: Instant,
    curve: Option<Curve>,
    /// The time since the last pause in which calls left at the full rate, in seconds.
    grown: f64,
    /// The calls since the last pause that were not rejected.
    admitted: u32,
    /// The calls that were not answered yet.
    in_flight: u64,
    /// The rate that makes a quota last, and until when.
    quota: Option<(f64, Instant)>,
}

/// The growth of the rate after a rejection. `None` before the first one.
#[derive(Clone, Copy, Debug)]
struct Curve {
    plateau: f64,
    depth: f64,
}

impl Schedule {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            resumes: now,
            held_until: now,
            next: now,
            last: now,
            curve: None,
            grown: 0.0,
            admitted: 0,
            in_flight: 0,
            quota: None,
        }
    }

    /// Returns whether calls are held because one was rejected.
    pub(super) fn is_paused(&self, now: Instant) -> bool {
        now < self.resumes
    }

    /// Returns when the next call may leave.
    pub(super) fn next(&self) -> Instant {
        self.next.max(self.resumes).max(self.held_until)
    }

    /// Returns the rate in calls per second.
    fn rate(&self) -> f64 {
        let rate = match self.curve {
            None => FIRST_RATE * (self.grown / DOUBLING).exp2(),
            Some(Curve { plateau, depth }) => {
                let is_large = depth >= LARGE_GROWTH * plateau;
                let seconds = match self.grown - RECOVERY_SECONDS {
                    ..0.0 => RECOVERY_SECONDS,
                    _ if is_large => LARGE_GROWTH_SECONDS,
                    _ => SMALL_GROWTH_SECONDS,
                };
                let time = (self.grown - RECOVERY_SECONDS) / seconds;
                // After twice the time, the limit must have changed.
                (plateau + depth * time.min(2.0).powi(3)) * (3.0 * (time - 2.0).max(0.0)).exp2()
            }
        };
        rate.clamp(MIN_RATE, MAX_RATE)
    }

    /// Returns the time that `calls` calls take.
    pub(super) fn time_of(&self, calls: usize) -> Duration {
        Duration::from_secs_f64(calls as f64 / self.rate())
    }

    /// Lets a call leave, unless it is too early.
    pub(super) fn leave(&mut self, now: Instant) -> bool {
        let due = self.next();
        if now < due {
            return false;
        }
        let own = self.rate();
        let quota = self.quota.filter(|(rate, until)| *rate < own && now < *until);
        let interval = Duration::from_secs_f64(1.0 / quota.map_or(own, |(rate, _)| rate.max(MIN_RATE)));
        let since_last = now - self.last;
        // The rate grows only while it delays calls. Otherwise, its last rejection would say nothing about it.
        if quota.is_none() && since_last <= interval.mul_f64(1.5) + Duration::from_millis(2) {
            self.grown += since_last.as_secs_f64();
        }
        self.last = now;
        self.next = if now - due <= SLACK { due } else { now } + interval;
        self.in_flight += 1;
        true
    }

    /// Records that a call has ended, with or without a response.
    pub(super) fn end(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// Records that a call that left at `sent` was admitted, and what remains of the server's limits.
    pub(super) fn admit(&mut self, sent: Instant, now: Instant, quotas: &[Quota]) {
        if sent < self.resumes {
            return;
        }
        self.admitted = self.admitted.saturating_add(1);
        let Some(scarcest) = quotas.iter().min_by_key(|quota| (quota.remaining, Reverse(quota.within))) else { return };
        let rate = quotas.iter().map(Quota::rate).fold(f64::INFINITY, f64::min);
        self.quota = Some((rate, now + scarcest.within.min(LONGEST_HOLD)));
        // The calls in flight, including this one, may use up all that remains.
        if scarcest.remaining < self.in_flight && scarcest.is_exact() && sent >= self.held_until {
            if !scarcest.is_long() && scarcest.limit.is_none() {
                self.decrease(sent, now, now);
            }
            let hold = if scarcest.is_long() { LONGEST_HOLD } else { self.time_of(2) };
            self.held_until = now + scarcest.within.min(hold);
        }
    }

    /// Records that a call that left at `sent` was rejected, and pauses all calls for `wait`.
    pub(super) fn reject(&mut self, sent: Instant, now: Instant, wait: Duration) {
        let resumes = self.resumes.max(now + wait);
        // Calls that left before the last pause say nothing new.
        if sent >= self.resumes {
            self.decrease(sent, now, resumes);
            self.admitted = 0;
        }
        self.resumes = resumes;
    }

    /// Lowers the rate, because a call that left at `sent` was rejected.
    fn decrease(&mut self, sent: Instant, now: Instant, resumes: Instant) {
        let rejected = self.rate();
        let (pause, active) = (resumes - now, sent - self.resumes);
        let whole = (resumes - self.resumes).as_secs_f64().max(0.001);
        let admitted = (f64::from(self.admitted) / whole).min(rejected);
        let rate = match self.curve {
            // Too few to tell.
            _ if self.admitted < MIN_ADMITTED => rejected / 2.0,
            // The window is long, and its calls were used up early.
            _ if pause > active && pause > Duration::from_secs(1) => admitted,
            // The rate has just doubled.
            None => admitted.max(rejected / 2.0),
            Some(_) => ((admitted + rejected) / 2.0).max(rejected * SHARP_DECREASE),
        };
        let rate = rate.min(rejected * DECREASE).max(MIN_RATE);
        let depth = (rejected.min(rate * HEADROOM) - rate).max(0.0) * RECOVERY;
        self.curve = Some(Curve { plateau: rate + depth, depth });
        self.grown = 0.0;
    }
}
