//! The bounds and the invalidation of cached denials.

use deadpool_redis::redis::Value;

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::cache::SETS;
use super::denial::Denial;
use super::invalidation::{MAX_BYTES, MAX_LIMITS};
use super::{DenialCache, Invalidation};
use crate::algorithm::FixedWindow;
use crate::hash::{KeyHash, KeyHasher};
use crate::limit_spec::LimitSettings;
use crate::store::redis::charge::outcomes;
use crate::store::redis::charge::override_cache::OverrideCache;
use crate::store::redis::charge::prepared::PreparedCharge;
use crate::store::redis::script::codec::StoredState;
use crate::store::redis::script::{Replies, Task};
use crate::store::{Charge, LimitSpec};

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
    Invalidation::new(denials, charges.iter().map(|charge| charge.spec.fingerprint(charge.key)), changes)
}

/// Redis denies a request at noon. No key has a state, and the request costs 2 of 1 tokens.
fn deny(invalidation: Invalidation, charges: &[Charge<'_>]) {
    let prepared: SmallVec<[PreparedCharge; 2]> =
        charges.iter().map(|charge| PreparedCharge::new(charge, &OverrideCache::default())).collect();
    let instant = StoredState { micros: NOON.into(), counts: [0, 0] }.to_bytes();
    let mut bytes = instant.to_vec();
    bytes.extend([b'n', charges.len() as u8]);
    bytes.extend(charges.iter().map(|_| 0));
    let reply = Replies::parse(Value::BulkString(bytes), 1).unwrap().replies.remove(0).unwrap();
    let decision = outcomes::decision(Task::Acquire, NOON, &prepared, &reply).unwrap();
    invalidation.decided(prepared, reply, &decision);
}

fn is_denied(denials: &DenialCache, charges: &[Charge<'_>]) -> bool {
    denials.deny(charges, Some(NOON), u64::MAX).is_some_and(|decision| !decision.is_allowed())
}

#[test]
fn the_cache_is_bounded() {
    let denials = DenialCache::new(Duration::from_secs(600)).unwrap();
    let spec = spec("limit");
    for n in 0..100_000 {
        let charge = [Charge { spec: &spec, key: key(n), cost: 2 }];
        deny(begin(&denials, &charge, true), &charge);
        assert!(is_denied(&denials, &charge), "the latest denial is repeated");
    }
    let sets = denials.sets.get().unwrap();
    let held: usize = sets.iter().map(|set| set.read().unwrap().iter().flatten().count()).sum();
    assert!(held <= 2 * SETS && held > SETS, "{held}");
    // More than two limits are stored on the heap.
    let most = size_of::<Denial>() + MAX_LIMITS * (size_of::<PreparedCharge>() + size_of::<u64>()) + MAX_BYTES;
    assert!(2 * SETS * most + size_of_val(&**sets) < 10_000_000, "{most}");
}

#[test]
fn a_denial_is_not_cached_after_a_later_change() {
    let denials = DenialCache::new(Duration::from_secs(600)).unwrap();
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
    let denials = DenialCache::new(Duration::from_secs(600)).unwrap();
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
fn after_a_clock_step_back_redis_decides() {
    let denials = DenialCache::new(Duration::from_secs(600)).unwrap();
    let spec = spec("limit");
    let charge = [Charge { spec: &spec, key: key(1), cost: 2 }];
    deny(begin(&denials, &charge, true), &charge);
    assert!(denials.deny(&charge, Some(NOON - 1), u64::MAX).is_none());
    assert!(denials.deny(&charge, Some(NOON), u64::MAX).is_some());
}

#[test]
fn denials_of_a_bucket_refilled_at_intervals_are_cached_exactly() {
    use crate::algorithm::TokenBucket;
    let denials = DenialCache::new(Duration::from_secs(600)).unwrap();
    let bucket = TokenBucket::per_day(1);
    let [one, other] = [bucket, bucket.at_intervals()]
        .map(|bucket| Arc::new(LimitSpec::new(LimitSettings::new("limit".into(), 0, bucket.into()), &hasher())));
    let [one, other] = [&one, &other].map(|spec| [Charge { spec, key: key(1), cost: 2 }]);
    deny(begin(&denials, &one, true), &one);
    assert!(is_denied(&denials, &one) && !is_denied(&denials, &other));
}

/// Redis may have decided as soon as the request was sent.
#[test]
fn a_slow_reply_shortens_the_lifetime_of_a_denial() {
    const SLOW: Duration = Duration::from_secs(5);
    let deny = |life| {
        let denials = DenialCache::new(life).unwrap();
        let spec = spec("limit");
        let charge = [Charge { spec: &spec, key: key(1), cost: 2 }];
        let mut invalidation = begin(&denials, &charge, true);
        invalidation.sent = invalidation.sent.checked_sub(SLOW).unwrap();
        deny(invalidation, &charge);
        denials.deny(&charge, None, u64::MAX)
    };
    assert!(deny(SLOW).is_none(), "a denial is as old as its request");
    assert!(deny(Duration::from_secs(3_600)).is_some());
}

#[test]
fn no_denial_outlives_its_lifetime() {
    assert!(DenialCache::new(Duration::ZERO).is_none());
    let denials = DenialCache::new(Duration::from_nanos(1)).unwrap();
    let spec = spec("limit");
    let charge = [Charge { spec: &spec, key: key(1), cost: 2 }];
    deny(begin(&denials, &charge, true), &charge);
    std::thread::sleep(Duration::from_millis(1));
    assert!(!is_denied(&denials, &charge));
}
