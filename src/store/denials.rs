//! Denials that are repeated in this process, so that a flood of denied requests does not reach the database.
//!
//! A remembered denial consists of the answered charges of a request, and the time of the answer. It is repeated for the
//! same limits, keys and costs until one of the waits is over.
//!
//! The present instant of the database's clock may not be known here, but it has bounds: its clock at the answer, plus
//! the time since the answer was received or since the request was sent. A request is denied if it is denied at the
//! upper bound, with the `retry_after` of the lower bound. So the database would have denied it, and admits a client
//! that returns after the wait.
//!
//! Each change that this process makes to a key (a charge, a refund, a reset, an override, a strike) advances the key's
//! epoch once it is complete or was given up. A denial is not repeated if a limit that denied is in a later epoch than
//! when the request was sent, even if the two answers arrive in another order.
//!
//! Denials by a limit with a penalty are strikes that the database has to count. So a denial of such a limit is
//! remembered only if it was no strike, which is while the key is locked out. Any change of the key ends it.

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use smallvec::SmallVec;

use crate::decision::{Charges, Outcome, Veto};
use crate::store::{Answer, Purpose};
use crate::time::{Clock, SystemClock, Timestamp};

/// The number of sets of two denials each. An attacker with that many denied keys evicts others' denials, which costs
/// calls to the database, but does not lift any limit.
const SETS: usize = 4_096;

/// The maximum number of limits and penalties in a remembered denial.
const MAX_STATES: usize = 8;

/// The number of counters of changes. Keys share them, so a change of one key may end the denials of others.
const COUNTERS: usize = 4_096;

/// A bounded cache of denials.
#[derive(Debug)]
pub(super) struct Denials {
    /// The time for which a denial is repeated. Zero if none is.
    pub(super) lifetime: Duration,
    /// On Linux, it goes on while the machine is suspended, as the database's clock does.
    clock: SystemClock,
    epochs: Box<[AtomicU64]>,
    /// Allocated by the first denial. Concurrent readers do not block each other.
    sets: OnceLock<Box<[RwLock<Set>]>>,
}

/// The newest denial, and the one before it. Selected by the fingerprint of all charges of a request: so clients that
/// share an exhausted limit have sets of their own.
type Set = [Option<Denial>; 2];

#[derive(Debug)]
struct Denial {
    outcomes: Box<[Outcome]>,
    /// As in [`Change`].
    epochs: SmallVec<[(usize, u64); 2]>,
    /// The instant of the decision, in µs of the database's clock.
    at: u64,
    /// The instant at which the first wait is over, or from which the charges are not sufficient: a charge in a log has
    /// expired, or an override.
    until: u64,
    /// The instants (in µs) on the clock of this process.
    sent: u64,
    received: u64,
}

impl Denials {
    /// Creates a cache whose denials are repeated for `lifetime`.
    pub(super) fn new(lifetime: Duration) -> Arc<Self> {
        let epochs = (0..COUNTERS).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { lifetime, clock: SystemClock::new(), epochs, sets: OnceLock::new() })
    }

    /// Answers a request that the database is certain to deny. Returns the instant of the decision.
    ///
    /// `clock` is the present instant (in µs) of the database's clock, if it is known.
    pub(super) fn answer(&self, charges: &mut [Outcome], clock: Option<u64>) -> Option<Timestamp> {
        let sets = self.sets.get()?;
        let set = sets[set_of(charges)].read().unwrap_or_else(PoisonError::into_inner);
        let denial = set.iter().flatten().find(|denial| denial.is_of(charges))?;
        let (earliest, latest) = denial.clock_bounds(self, clock)?;
        if latest >= denial.until || !denial.is_certain(self) {
            return None;
        }
        for (outcome, denied) in charges.iter_mut().zip(&denial.outcomes) {
            outcome.answer_like(denied, earliest.saturating_sub(denial.at));
        }
        debug_assert!(charges.iter().any(Outcome::denies), "a repeated denial denies");
        Some(Timestamp::from_micros(earliest.min(Timestamp::MAX.as_micros())))
    }

    /// Begins a request, which may change the states of charges if its purpose is to take, as those of refunds and resets
    /// are.
    pub(super) fn begin(self: &Arc<Self>, charges: &Charges, purpose: Purpose) -> Change {
        let epoch = |fingerprint: u128| {
            let counter = (fingerprint >> 64) as usize % COUNTERS;
            (counter, self.epochs[counter].load(Ordering::Acquire))
        };
        let epochs = charges.fingerprints().map(epoch).collect();
        Change { denials: self.clone(), epochs, sent: self.now(), purpose, changes: purpose == Purpose::Take }
    }

    /// Returns the present instant on the clock of this process, in µs.
    fn now(&self) -> u64 {
        self.clock.now().as_micros()
    }

    /// Remembers a denial in place of an equal one, or of the older one.
    fn insert(&self, denial: Denial) {
        if self.lifetime.is_zero() {
            return;
        }
        let sets = self.sets.get_or_init(|| (0..SETS).map(|_| RwLock::default()).collect());
        let mut set = sets[set_of(&denial.outcomes)].write().unwrap_or_else(PoisonError::into_inner);
        if !set[0].as_ref().is_some_and(|newest| newest.is_of(&denial.outcomes)) {
            set.swap(0, 1);
        }
        set[0] = Some(denial);
    }
}

/// Returns the set of a request's denial.
fn set_of(charges: &[Outcome]) -> usize {
    let fingerprint = charges.iter().fold(0, |all: u128, outcome| all.rotate_left(1) ^ outcome.fingerprint());
    (fingerprint >> 16) as usize % SETS
}

impl Denial {
    fn is_of(&self, charges: &[Outcome]) -> bool {
        self.outcomes.len() == charges.len()
            && self.outcomes.iter().zip(charges).all(|(known, outcome)| known.answers(outcome))
    }

    /// Returns whether no outcome that matters has changed. Limits that are available may have: otherwise, clients that
    /// share one would end each other's denials.
    fn is_certain(&self, denials: &Denials) -> bool {
        let mut epochs = self.epochs.iter();
        self.outcomes.iter().all(|outcome| {
            let has_penalty = outcome.penalty().is_some();
            // Limits in quota mode deny only if all of them do.
            let matters = outcome.denies() || outcome.veto == Veto::Quota || has_penalty;
            let mut own = epochs.by_ref().take(1 + usize::from(has_penalty));
            own.all(|(counter, epoch)| !matters || denials.epochs[*counter].load(Ordering::Acquire) == *epoch)
        })
    }

    /// Returns the earliest and the latest instant (in µs) that the database's clock may have reached, or `None` if the
    /// denial is too old or the clock has stepped back.
    fn clock_bounds(&self, denials: &Denials, clock: Option<u64>) -> Option<(u64, u64)> {
        let now = denials.now();
        let since_sent = now.saturating_sub(self.sent);
        if u128::from(since_sent) >= denials.lifetime.as_micros() {
            return None;
        }
        if let Some(now) = clock {
            return (now >= self.at).then_some((now, now));
        }
        let since_received = now.saturating_sub(self.received);
        // Synchronised clocks run up to 0.05 % too fast or too slow.
        Some((self.at + since_received - since_received.div_ceil(1_000), self.at + since_sent + since_sent / 1_000 + 2))
    }
}

/// A request under way. When this is dropped, however the request ended, it begins the next epoch of the charges that the
/// request may have changed.
#[derive(Debug)]
pub(super) struct Change {
    denials: Arc<Denials>,
    /// The counter of changes of each state, and its epoch when the request was sent.
    epochs: SmallVec<[(usize, u64); 2]>,
    sent: u64,
    purpose: Purpose,
    /// Whether the request may have changed its charges.
    changes: bool,
}

impl Change {
    /// Ends a request that the database has decided. Remembers the decision if it is a denial and no strike. `charges`
    /// are those of the request, in which the database may have answered.
    pub(super) fn decided(self, answer: &Answer, charges: &[Outcome]) {
        let charges = answer.charges.as_ref().map_or(charges, |charges| charges);
        self.remember(charges, answer.at.as_micros(), answer.valid_until.as_micros());
    }

    /// `until` is the instant (in µs) from which the answer may differ although no charge has changed.
    fn remember(mut self, charges: &[Outcome], at: u64, until: u64) {
        if self.purpose == Purpose::Preview || until <= at || !charges.iter().any(Outcome::denies) {
            return;
        }
        // A store of another crate may leave charges out.
        let states: usize = charges.iter().map(|outcome| 1 + usize::from(outcome.penalty().is_some())).sum();
        if states != self.epochs.len() || !charges.iter().all(Outcome::is_answered) {
            return;
        }
        if charges.iter().any(Outcome::is_strike) {
            return;
        }
        self.changes = false;
        if states > MAX_STATES {
            return;
        }
        let end = |outcome: &Outcome| {
            // When a lockout ends, a denial is a strike again.
            let waits = [outcome.wait, outcome.lockout_left()].into_iter().filter(|wait| *wait > 0);
            waits.map(|wait| at.saturating_add(wait)).fold(outcome.sufficient_until(at), u64::min)
        };
        let until = charges.iter().map(end).min().unwrap_or(u64::MAX).min(until);
        self.denials.insert(Denial {
            until,
            outcomes: charges.into(),
            epochs: mem::take(&mut self.epochs),
            at,
            sent: self.sent,
            received: self.denials.now(),
        });
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        if self.changes {
            for (counter, _) in &self.epochs {
                self.denials.epochs[*counter].fetch_add(1, Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, FixedWindow, KeyState, SlidingLog, SlidingWindow, TokenBucket};
    use crate::decision::{Charge, decide};
    use crate::key::hash::{KeyHash, KeyHasher};

    const NOON: u64 = 1_767_225_600_000_000;

    /// A request of 2 of 1 tokens.
    fn asked(limit: &str, algorithm: impl Into<Algorithm>, key: u64) -> Charge {
        let hasher = KeyHasher::with_secret([0; 16]);
        Charge::new(0, limit, algorithm.into(), &hasher).with_key(hasher.hash(&key.to_le_bytes()), 2)
    }

    fn daily(key: u64) -> Charges {
        Charges::of([asked("limit", FixedWindow::per_day(1), key)])
    }

    /// The database denies a request at noon. No key has a state.
    fn deny(change: Change, charges: &Charges) {
        let mut charges = charges.clone();
        let mut states = vec![KeyState::UNUSED; charges.len()];
        decide(&mut charges, &mut states, NOON, Purpose::Take);
        change.remember(&charges, NOON, u64::MAX);
    }

    fn is_denied(denials: &Denials, charges: &Charges) -> bool {
        let mut charges = charges.clone();
        denials.answer(&mut charges, Some(NOON)).is_some() && charges.iter().any(Outcome::denies)
    }

    #[test]
    fn the_cache_is_bounded() {
        let denials = Denials::new(Duration::from_secs(600));
        for key in 0..100_000 {
            let charges = daily(key);
            deny(denials.begin(&charges, Purpose::Take), &charges);
            assert!(is_denied(&denials, &charges), "the latest denial is repeated");
        }
        let sets = denials.sets.get().unwrap();
        let held: usize = sets.iter().map(|set| set.read().unwrap().iter().flatten().count()).sum();
        assert!(held <= 2 * SETS && held > SETS, "{held}");
        let bytes = |charges: usize| {
            2 * SETS * (charges - 1) * (size_of::<Outcome>() + size_of::<(usize, u64)>()) + size_of_val(&**sets)
        };
        assert!(bytes(1) < 4_000_000, "{}", bytes(1));
        assert!(bytes(MAX_STATES) < 20_000_000, "{}", bytes(MAX_STATES));
    }

    #[test]
    fn denials_of_many_limits_are_not_cached() {
        for (limits, is_cached) in [(8, true), (9, false)] {
            let denials = Denials::new(Duration::from_secs(600));
            let charges =
                Charges::of((0..limits).map(|limit| asked(&format!("limit {limit}"), FixedWindow::per_day(1), 1)));
            deny(denials.begin(&charges, Purpose::Take), &charges);
            assert_eq!(is_denied(&denials, &charges), is_cached, "of {limits} limits");
        }
    }

    #[test]
    fn a_denial_is_not_cached_after_a_later_change() {
        let denials = Denials::new(Duration::from_secs(600));
        let charges = daily(1);
        let asking = denials.begin(&charges, Purpose::Take);
        drop(denials.begin(&charges, Purpose::Take));
        deny(asking, &charges);
        assert!(!is_denied(&denials, &charges));

        deny(denials.begin(&charges, Purpose::Take), &charges);
        assert!(is_denied(&denials, &charges));
        drop(denials.begin(&charges, Purpose::Peek));
        assert!(is_denied(&denials, &charges), "a peek changes nothing");
        drop(denials.begin(&charges, Purpose::Take));
        assert!(!is_denied(&denials, &charges));
    }

    #[test]
    fn charges_to_a_shared_limit_with_capacity_do_not_end_a_denial() {
        let denials = Denials::new(Duration::from_secs(600));
        let mut shared = asked("shared", FixedWindow::per_day(1), 0);
        shared.cost = 1;
        let charges = Charges::of([shared, asked("own", FixedWindow::per_day(1), 1)]);
        deny(denials.begin(&charges, Purpose::Take), &charges);
        drop(denials.begin(&charges.select([0]), Purpose::Take));
        assert!(is_denied(&denials, &charges));
        assert!(!is_denied(&denials, &charges.select([1])), "the denial is of both limits");
        drop(denials.begin(&charges.select([1]), Purpose::Take));
        assert!(!is_denied(&denials, &charges));
    }

    /// What a key with an override has left does not follow from the size of the limit.
    #[test]
    fn a_denial_is_repeated_for_a_larger_limit_that_has_capacity_unless_it_can_be_overridden() {
        for is_overridable in [false, true] {
            let denials = Denials::new(Duration::from_secs(600));
            let mut shared = asked("shared", FixedWindow::per_day(5), 0);
            shared.is_overridable = is_overridable;
            let mut charges = Charges::of([shared, asked("own", FixedWindow::per_day(1), 1)]);
            deny(denials.begin(&charges, Purpose::Take), &charges);
            assert!(is_denied(&denials, &charges));
            charges[0].charge.set_algorithm(FixedWindow::per_day(6).into());
            assert_eq!(is_denied(&denials, &charges), !is_overridable);
        }
    }

    #[test]
    fn after_a_clock_step_back_the_database_decides() {
        let denials = Denials::new(Duration::from_secs(600));
        let mut charges = daily(1);
        deny(denials.begin(&charges, Purpose::Take), &charges);
        assert!(denials.answer(&mut charges, Some(NOON - 1)).is_none());
        assert!(denials.answer(&mut charges, Some(NOON)).is_some());
    }

    #[test]
    fn a_denial_by_a_log_is_repeated_as_the_log_decides() {
        let hasher = KeyHasher::with_secret([0; 16]);
        let mut repeated = 0;
        for algorithm in [Algorithm::from(SlidingLog::per_minute(100)), SlidingWindow::per_minute(100).into()] {
            for (charges, percent, cost) in
                (1..120).flat_map(|charges| [(charges, 0, 1), (charges, 0, 30), (charges, 20, 7)])
            {
                let denials = Denials::new(Duration::from_secs(600));
                let mut outcome = Charge::new(0, "limit", algorithm, &hasher);
                outcome.set_overage(percent);
                let mut states = [KeyState::UNUSED];
                let step = 400_000;
                for number in 0..charges {
                    let mut charged = Charges::of([outcome.with_key(KeyHash::ZERO, 1 + number % 3)]);
                    decide(&mut charged, &mut states, NOON + number * step, Purpose::Take);
                }
                let now = NOON + charges * step;
                let asked = Charges::of([outcome.with_key(KeyHash::ZERO, cost)]);
                let at = |at, states: &[KeyState]| {
                    let (mut decided, mut states) = (asked.clone(), states.to_vec());
                    decide(&mut decided, &mut states, at, Purpose::Take);
                    decided
                };
                denials.begin(&asked, Purpose::Take).remember(&at(now, &states), now, u64::MAX);
                for later in [0, 1, 10_000, 100_000, 399_999, 500_000, 5_000_000] {
                    let mut answered = asked.clone();
                    if denials.answer(&mut answered, Some(now + later)).is_some() {
                        let report = |charges: &Charges| {
                            let outcome = &charges[0];
                            (outcome.verdict(), outcome.remaining(), outcome.more_after(), outcome.reset_after())
                        };
                        let expected = at(now + later, &states);
                        assert_eq!(report(&answered), report(&expected), "{algorithm} {charges} {percent} {cost}");
                        repeated += 1;
                    }
                }
            }
        }
        assert!(repeated > 100, "{repeated}");
    }

    #[test]
    fn a_denial_is_of_one_algorithm() {
        let denials = Denials::new(Duration::from_secs(600));
        let bucket = TokenBucket::per_day(1);
        let [one, other] = [bucket, bucket.at_intervals()].map(|bucket| Charges::of([asked("limit", bucket, 1)]));
        deny(denials.begin(&one, Purpose::Take), &one);
        assert!(is_denied(&denials, &one) && !is_denied(&denials, &other));
    }

    #[test]
    fn a_repeated_denial_has_a_shorter_wait() {
        let denials = Denials::new(Duration::from_secs(600));
        let hasher = KeyHasher::with_secret([0; 16]);
        let limit = Charge::new(0, "limit", TokenBucket::per_second(2).into(), &hasher);
        let charges = Charges::of([limit.with_key(KeyHash::ZERO, 2)]);
        let mut states = [KeyState::UNUSED];
        for is_allowed in [true, false] {
            let (change, mut charges) = (denials.begin(&charges, Purpose::Take), charges.clone());
            decide(&mut charges, &mut states, NOON, Purpose::Take);
            assert_eq!(charges[0].is_allowed(), is_allowed);
            change.remember(&charges, NOON, u64::MAX);
        }
        let later = |micros| {
            let mut charges = charges.clone();
            denials.answer(&mut charges, Some(NOON + micros)).map(|_| (charges[0].wait, charges[0].remaining()))
        };
        assert_eq!(later(0), Some((1_000_000, 0)));
        assert_eq!(later(600_000), Some((400_000, 1)));
        assert_eq!(later(1_000_000), None);
    }

    /// The database may have decided as soon as the request was sent.
    #[test]
    fn a_slow_reply_shortens_the_lifetime_of_a_denial() {
        const SLOW: Duration = Duration::from_secs(5);
        let deny = |life| {
            let denials = Denials::new(life);
            let mut charges = daily(1);
            let mut change = denials.begin(&charges, Purpose::Take);
            change.sent -= SLOW.as_micros() as u64;
            deny(change, &charges);
            denials.answer(&mut charges, None)
        };
        assert!(deny(SLOW).is_none(), "a denial is as old as its request");
        assert!(deny(Duration::from_secs(3_600)).is_some());
    }

    #[test]
    fn no_denial_outlives_its_lifetime() {
        let denials = Denials::new(Duration::from_nanos(1));
        let charges = daily(1);
        deny(denials.begin(&charges, Purpose::Take), &charges);
        std::thread::sleep(Duration::from_millis(1));
        assert!(!is_denied(&denials, &charges));
    }

    #[test]
    fn without_a_lifetime_no_denial_is_cached() {
        let denials = Denials::new(Duration::ZERO);
        let charges = daily(1);
        deny(denials.begin(&charges, Purpose::Take), &charges);
        assert!(denials.sets.get().is_none());
    }
}
