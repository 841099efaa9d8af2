//! The bounds and the invalidation of cached denials.

use std::sync::Arc;
use std::time::Duration;

use super::cache::SETS;
use super::denial::Denial;
use super::invalidation::MAX_LIMITS;
use super::log_summary::summarize;
use super::{DenialCache, Invalidation};
use crate::algorithm::{Algorithm, CompactState, FixedWindow, KeyState, SlidingLog, SlidingWindow, StoredKey};
use crate::hash::{KeyHash, KeyHasher};
use crate::limit_spec::LimitSettings;
use crate::store::evaluation::preview::CopiedStates;
use crate::store::evaluation::{self, Task};
use crate::store::{Charge, LimitSpec, OwnedCharge};
use crate::time::Timestamp;

const NOON: u64 = 1_767_225_600_000_000;

fn hasher() -> KeyHasher {
    KeyHasher::with_secret([0; 16])
}

fn spec(name: &str) -> Arc<LimitSpec> {
    Arc::new(LimitSpec::new(LimitSettings::new(name.into(), 0, FixedWindow::per_day(1).into()), &hasher()))
}

fn key(n: u64) -> KeyHash {
    hasher().hash(&n.to_le_bytes())
}

fn begin(denials: &Arc<DenialCache>, charges: &[Charge<'_>], changes: bool) -> Invalidation {
    Invalidation::new(denials, charges.iter().map(|charge| (charge.spec, charge.key)), changes)
}

fn unused(charges: &[Charge<'_>]) -> CopiedStates {
    let unused = |charge: &Charge<'_>| StoredKey {
        state: KeyState::unused(charge.spec.algorithm()),
        penalty: CompactState::UNUSED,
    };
    CopiedStates(charges.iter().map(unused).collect())
}

/// The database denies a request at noon. No key has a state, and the request costs 2 of 1 tokens.
fn deny(invalidation: Invalidation, charges: &[Charge<'_>]) {
    let mut states = unused(charges);
    let decision = evaluation::decide(&mut states, charges, Timestamp::from_micros(NOON), Task::Decide);
    invalidation.decided(charges, &decision, states.0, u64::MAX);
}

fn is_denied(denials: &DenialCache, charges: &[Charge<'_>]) -> bool {
    denials.deny(charges, Some(NOON)).is_some_and(|decision| !decision.is_allowed())
}

#[test]
fn the_cache_is_bounded() {
    let denials = DenialCache::new(Duration::from_secs(600));
    let spec = spec("limit");
    for n in 0..100_000 {
        let charge = [Charge { spec: &spec, key: key(n), cost: 2 }];
        deny(begin(&denials, &charge, true), &charge);
        assert!(is_denied(&denials, &charge), "the latest denial is repeated");
    }
    let sets = denials.sets.get().unwrap();
    let held: usize = sets.iter().map(|set| set.read().unwrap().iter().flatten().count()).sum();
    assert!(held <= 2 * SETS && held > SETS, "{held}");
    let bytes = |most: usize| 2 * SETS * most + size_of_val(&**sets);
    assert!(bytes(size_of::<Denial>()) < 4_000_000, "{}", size_of::<Denial>());
    // More than two limits are stored on the heap, and so are three entries of each log.
    let of_limit = size_of::<OwnedCharge>() + size_of::<StoredKey>() + size_of::<u64>() + 3 * 16;
    let most = size_of::<Denial>() + MAX_LIMITS * of_limit;
    assert!(bytes(most) < 20_000_000, "{most}");
}

#[test]
fn a_denial_is_not_cached_after_a_later_change() {
    let denials = DenialCache::new(Duration::from_secs(600));
    let spec = spec("limit");
    let charge = [Charge { spec: &spec, key: key(1), cost: 2 }];
    let asking = begin(&denials, &charge, true);
    drop(begin(&denials, &charge, true));
    deny(asking, &charge);
    assert!(!is_denied(&denials, &charge));

    deny(begin(&denials, &charge, true), &charge);
    assert!(is_denied(&denials, &charge));
    drop(begin(&denials, &charge, false));
    assert!(is_denied(&denials, &charge), "a peek changes nothing");
    drop(begin(&denials, &charge, true));
    assert!(!is_denied(&denials, &charge));
}

#[test]
fn charges_to_a_shared_limit_with_capacity_do_not_end_a_denial() {
    let denials = DenialCache::new(Duration::from_secs(600));
    let [shared, own] = [spec("shared"), spec("own")];
    let charges = [Charge { spec: &shared, key: key(0), cost: 1 }, Charge { spec: &own, key: key(1), cost: 2 }];
    deny(begin(&denials, &charges, true), &charges);
    drop(begin(&denials, &charges[..1], true));
    assert!(is_denied(&denials, &charges));
    assert!(!is_denied(&denials, &charges[1..]), "the denial is of both limits");
    drop(begin(&denials, &charges[1..], true));
    assert!(!is_denied(&denials, &charges));
}

#[test]
fn after_a_clock_step_back_the_database_decides() {
    let denials = DenialCache::new(Duration::from_secs(600));
    let spec = spec("limit");
    let charge = [Charge { spec: &spec, key: key(1), cost: 2 }];
    deny(begin(&denials, &charge, true), &charge);
    assert!(denials.deny(&charge, Some(NOON - 1)).is_none());
    assert!(denials.deny(&charge, Some(NOON)).is_some());
}

#[test]
fn denials_of_a_bucket_refilled_at_intervals_are_cached_exactly() {
    use crate::algorithm::TokenBucket;
    let denials = DenialCache::new(Duration::from_secs(600));
    let bucket = TokenBucket::per_day(1);
    let [one, other] = [bucket, bucket.at_intervals()]
        .map(|bucket| Arc::new(LimitSpec::new(LimitSettings::new("limit".into(), 0, bucket.into()), &hasher())));
    let [one, other] = [&one, &other].map(|spec| [Charge { spec, key: key(1), cost: 2 }]);
    deny(begin(&denials, &one, true), &one);
    assert!(is_denied(&denials, &one) && !is_denied(&denials, &other));
}

/// The database may have decided as soon as the request was sent.
#[test]
fn a_slow_reply_shortens_the_lifetime_of_a_denial() {
    const SLOW: Duration = Duration::from_secs(5);
    let deny = |life| {
        let denials = DenialCache::new(life);
        let spec = spec("limit");
        let charge = [Charge { spec: &spec, key: key(1), cost: 2 }];
        let mut invalidation = begin(&denials, &charge, true);
        invalidation.sent = invalidation.sent.checked_sub(SLOW).unwrap();
        deny(invalidation, &charge);
        denials.deny(&charge, None)
    };
    assert!(deny(SLOW).is_none(), "a denial is as old as its request");
    assert!(deny(Duration::from_secs(3_600)).is_some());
}

#[test]
fn no_denial_outlives_its_lifetime() {
    let denials = DenialCache::new(Duration::from_nanos(1));
    let spec = spec("limit");
    let charge = [Charge { spec: &spec, key: key(1), cost: 2 }];
    deny(begin(&denials, &charge, true), &charge);
    std::thread::sleep(Duration::from_millis(1));
    assert!(!is_denied(&denials, &charge));
}

#[test]
fn without_a_lifetime_no_denial_is_cached() {
    let denials = DenialCache::new(Duration::ZERO);
    let spec = spec("limit");
    let charge = [Charge { spec: &spec, key: key(1), cost: 2 }];
    deny(begin(&denials, &charge, true), &charge);
    assert!(denials.sets.get().is_none());
}

#[test]
fn the_summary_of_a_log_decides_as_the_log_does() {
    let mut summarized = 0;
    for algorithm in [Algorithm::from(SlidingLog::per_minute(100)), SlidingWindow::per_minute(100).into()] {
        for (charges, percent, cost) in
            (1..120).flat_map(|charges| [(charges, 0, 1), (charges, 0, 30), (charges, 20, 7)])
        {
            let settings = LimitSettings::new("limit".into(), 0, algorithm);
            let spec = Arc::new(LimitSpec::new(LimitSettings { overage_percent: percent, ..settings }, &hasher()));
            let charge = Charge { spec: &spec, key: key(1), cost };
            let mut log = unused(&[charge]).0.remove(0).state;
            let step = 400_000;
            for number in 0..charges {
                spec.algorithm().decide(log.as_state_mut(), NOON + number * step, 1 + number % 3);
            }
            let now = NOON + charges * step;
            let mut summary = log.clone();
            let until = summarize(&mut summary, &charge, now);
            let of = |state: &KeyState, at| format!("{:?}", spec.algorithm().evaluate(state.as_state(), at, cost));
            for at in [now, (now + until) / 2, until - 1] {
                assert_eq!(of(&summary, at), of(&log, at), "{algorithm:?} {charges} {percent} {cost}");
            }
            summarized += usize::from(summary != log);
        }
    }
    assert!(summarized > 100, "{summarized}");
}
