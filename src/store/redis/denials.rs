//! Denials remembered, so that who asks on and on is denied here and not in Redis.
//!
//! What is remembered is what the keys of a denied request held, and when. The algorithms' own code
//! decides by it, so that another cost, or a limit that was raised, finds the room that it would find
//! in Redis: and goes there. Only denials are answered, and only by the rate that was asked for, as Redis
//! has what is owed paid at the rate that last asked.
//!
//! Whatever this process has Redis do with a key (a charge, a refund, a reset) counts up the key's
//! epoch once that is known to be done, or was given up. A denial whose request left in an earlier
//! epoch is neither remembered nor told, wherever the two replies overtook each other.
//!
//! Where a limit has a penalty, Redis has to count its denials: only those are remembered that none was
//! counted of, and of these only those told by which none would be: while its key is refused, or the limit
//! has room. What this process has Redis do with such a key ends them all, as what it has room for is not
//! all that it says.
//!
//! Redis' present instant is not known here, but it lies between two that are: what its clock said
//! in the reply, and the time since that came, or since the request left. Only what is denied at the
//! later one is denied, by the wait that is left at the earlier one: so Redis would have denied it,
//! and admits who comes back then.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::ask::Asked;
use super::decision;
use super::script::Reply;
use super::script::codec::{self, Codec};
use crate::decision::{Decision, Outcome};
use crate::store::Charge;

/// How many sets of two there are. An attacker who has that many keys denied displaces others'
/// denials, which costs Redis a call each, and no one their limit.
const SETS: usize = 4_096;

/// Of how many keys the epochs are told apart: of so many that a busy key seldom ends the denials of
/// another one.
const EPOCHS: usize = 4_096;

/// The most limits of a request whose denial is remembered, and the most bytes that they held.
const LIMITS: usize = 8;
const BYTES: usize = 256;

#[derive(Debug)]
pub(super) struct Denials {
    /// For how long one is told before Redis is asked again.
    life: Duration,
    epochs: Box<[AtomicU64]>,
    /// None until the first denial. Those who are told one do not wait for each other.
    sets: OnceLock<Box<[RwLock<Set>]>>,
}

/// Where the hashes of a request's keys lead, all together: a spent limit that many clients share
/// denies each at a place of its own.
type Set = [Option<Box<Denial>>; 2];

#[derive(Debug)]
struct Denial {
    /// What led here.
    print: u128,
    asked: SmallVec<[Asked; 2]>,
    found: Reply,
    /// Of each limit, when the request left.
    epochs: SmallVec<[u64; 2]>,
    /// What Redis' clock said, in µs.
    at: u64,
    /// The instant from which something else would be said: by logs, of which not all is known here, or as an
    /// override has expired.
    until: u64,
    sent: Instant,
    received: Instant,
}

impl Denials {
    /// Denials that are told for `life`; for none, there are none.
    pub(super) fn new(life: Duration) -> Option<Arc<Self>> {
        let epochs = || (0..EPOCHS).map(|_| AtomicU64::new(0)).collect();
        (!life.is_zero()).then(|| Arc::new(Self { life, epochs: epochs(), sets: OnceLock::new() }))
    }

    pub(super) fn life(&self) -> Duration {
        self.life
    }

    /// The decision on a request that Redis would surely deny before `until`, when its limits are of another size.
    /// `clock` is the present instant, where it is handed in.
    pub(super) fn answer(&self, charges: &[Charge<'_>], clock: Option<u64>, until: u64) -> Option<Decision> {
        let sets = self.sets.get()?;
        let print = print(charges.iter().copied());
        let set = set(sets, print).read().unwrap_or_else(PoisonError::into_inner);
        let denial = set.iter().flatten().find(|denial| denial.print == print && denial.is_of(charges))?;
        denial.answer(self, charges, clock, until)
    }

    /// Watches over a request that leaves now, and may change what `charges` find from here on.
    pub(super) fn watch(self: &Arc<Self>, prints: impl Iterator<Item = u128>, changes: bool) -> Watch {
        let epochs = prints.map(|print| (epoch(print), self.epoch(print)));
        Watch { denials: self.clone(), epochs: epochs.collect(), sent: Instant::now(), changes }
    }

    /// The present epoch of a key.
    fn epoch(&self, print: u128) -> u64 {
        self.epochs[epoch(print)].load(Ordering::Acquire)
    }

    fn remember(&self, denial: Denial) {
        let sets = self.sets.get_or_init(|| (0..SETS).map(|_| RwLock::default()).collect());
        let mut set = set(sets, denial.print).write().unwrap_or_else(PoisonError::into_inner);
        let same = set.iter().position(|place| place.as_ref().is_some_and(|other| other.print == denial.print));
        // Or else an empty place, or that of the older one.
        let place = same.unwrap_or_else(|| usize::from(age(&set[1]) < age(&set[0])));
        match &mut set[place] {
            Some(other) => **other = denial,
            empty => *empty = Some(Box::new(denial)),
        }
    }
}

fn age(place: &Option<Box<Denial>>) -> Option<Instant> {
    place.as_ref().map(|denial| denial.received)
}

fn set(sets: &[RwLock<Set>], print: u128) -> &RwLock<Set> {
    &sets[(print >> 16) as usize % SETS]
}

/// One hash of all that is charged, in its order.
fn print<'a>(charges: impl Iterator<Item = Charge<'a>>) -> u128 {
    charges.fold(0, |print: u128, charge| print.rotate_left(1) ^ charge.spec.fingerprint(charge.key))
}

fn epoch(print: u128) -> usize {
    (print >> 64) as usize % EPOCHS
}

impl Denial {
    /// Whether `charges` name the same limits and keys.
    fn is_of(&self, charges: &[Charge<'_>]) -> bool {
        let same = |(asked, charge): (&Asked, &Charge<'_>)| {
            let asked = asked.charge();
            let is_record = || matches!(Codec::of(asked.spec.rule().reporting()), Codec::Compact(_));
            if Arc::ptr_eq(asked.spec, charge.spec) {
                return asked.key == charge.key && (asked.cost == charge.cost || is_record());
            }
            let [one, other] = [asked.spec, charge.spec].map(|spec| (spec.algorithm(), spec.ceiling()));
            asked.spec.fingerprint(asked.key) == charge.spec.fingerprint(charge.key)
                // What was found of a penalty stands behind what was found of its limit.
                && asked.spec.penalty().is_some() == charge.spec.penalty().is_some()
                && (one.0.tag(), codec::amount(one.0)) == (other.0.tag(), codec::amount(other.0))
                // Of a log, only what the answer needed is known.
                && (is_record() || (one == other && asked.cost == charge.cost))
        };
        self.asked.len() == charges.len() && self.asked.iter().zip(charges).all(same)
    }

    fn answer(&self, denials: &Denials, charges: &[Charge<'_>], clock: Option<u64>, until: u64) -> Option<Decision> {
        let now = Instant::now();
        let since_sent = now.saturating_duration_since(self.sent);
        if since_sent >= denials.life {
            return None;
        }
        let (earliest, latest) = match clock {
            // It stepped back.
            Some(now) if now < self.at => return None,
            Some(now) => (now, now),
            None => {
                let since_received = now.saturating_duration_since(self.received).as_micros() as u64;
                // Clocks that are kept in time run up to 500 millionths too fast or too slow.
                let latest = since_sent.as_micros() as u64;
                (self.at + since_received - since_received.div_ceil(1_000), self.at + latest + latest / 1_000 + 2)
            }
        };
        if latest >= self.until.min(until) {
            return None;
        }
        let mut is_known = true;
        let mut epochs = self.epochs.iter();
        let denial = decision::denial(earliest, latest, charges.iter().copied(), &self.found, |charge, seen| {
            let is_penalised = charge.spec.penalty().is_some();
            let epoch = epochs.next().is_some_and(|epoch| *epoch == denials.epoch(charge.spec.fingerprint(charge.key)));
            // What a limit with room has left may be told a little late, or else whoever shares it would
            // end the denials of all others.
            is_known &= epoch || !(seen.denies || is_penalised);
            is_known &= seen.is_penalty || !(is_penalised && seen.denies);
        });
        denial.filter(|_| is_known)
    }
}

/// A request that is on its way. Once that ends, however it does, what it changed begins an epoch.
#[derive(Debug)]
pub(super) struct Watch {
    denials: Arc<Denials>,
    /// Of each limit, where its epoch is counted, and which it was.
    epochs: SmallVec<[(usize, u64); 2]>,
    sent: Instant,
    changes: bool,
}

impl Watch {
    /// Nothing has changed.
    pub(super) fn changed_nothing(mut self) {
        self.changes = false;
    }

    /// It was decided. If it was denied, nothing has changed, and that is remembered; unless it has changed a
    /// rate, by which the next is denied, or was a strike.
    pub(super) fn decided(mut self, asked: SmallVec<[Asked; 2]>, found: Reply, decision: &Decision) {
        let changes = (self.changes && decision.is_allowed()) || decision::changes_a_rate(&asked, &found);
        if changes || decision.is_allowed() {
            self.changes = changes;
            return;
        }
        let is_struck = |(asked, outcome): (&Asked, &Outcome)| {
            let counts = asked.charge().spec.counts_strikes();
            counts && outcome.denies() && (!outcome.is_penalty() || outcome.lockout().is_some())
        };
        let struck: SmallVec<[bool; 4]> = asked.iter().zip(decision.outcomes()).map(is_struck).collect();
        if struck.contains(&true) {
            let mut struck = struck.into_iter();
            self.epochs.retain(|_| struck.next() == Some(true));
            return;
        }
        self.changes = false;
        // A quota denies only if all do: what is remembered of each limit alone does not tell that.
        if asked.len() > 1 && asked.iter().any(|asked| asked.charge().spec.is_quota()) {
            return;
        }
        if asked.len() > LIMITS || found.len() > BYTES {
            return;
        }
        let at = decision.at().as_micros();
        let logs = decision.outcomes().iter().zip(&asked).filter_map(|(outcome, asked)| {
            let is_log = matches!(Codec::of(asked.charge().spec.rule().reporting()), Codec::Log(_));
            outcome.more_after().filter(|_| is_log)
        });
        let overrides = asked.iter().filter_map(Asked::until).min().unwrap_or(u64::MAX);
        let until = logs.min().map_or(u64::MAX, |after| at.saturating_add(after.as_micros() as u64)).min(overrides);
        let denial = Denial {
            print: print(asked.iter().map(Asked::charge)),
            epochs: self.epochs.iter().map(|(_, epoch)| *epoch).collect(),
            at,
            until,
            sent: self.sent,
            received: Instant::now(),
            found,
            asked,
        };
        self.denials.remember(denial);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.changes {
            for (place, _) in &self.epochs {
                self.denials.epochs[*place].fetch_add(1, Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use deadpool_redis::redis::Value;

    use super::*;
    use crate::algorithm::FixedWindow;
    use crate::hash::{KeyHash, KeyHasher};
    use crate::limit_spec::LimitSettings;
    use crate::store::LimitSpec;
    use crate::store::redis::beliefs::Beliefs;
    use crate::store::redis::script::{Replies, Task};

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

    fn watch(denials: &Arc<Denials>, charges: &[Charge<'_>], changes: bool) -> Watch {
        denials.watch(charges.iter().map(|charge| charge.spec.fingerprint(charge.key)), changes)
    }

    /// Redis denies what `watch` has seen leave: at noon, all keys hold nothing, and 2 of 1 is asked for.
    fn deny(watch: Watch, charges: &[Charge<'_>]) {
        let asked: SmallVec<[Asked; 2]> =
            charges.iter().map(|charge| Asked::new(charge, &Beliefs::default())).collect();
        let instant = codec::StoredState { micros: NOON.into(), counts: [0, 0] }.to_bytes();
        let mut reply = instant.to_vec();
        reply.extend([b'n', charges.len() as u8]);
        reply.extend(charges.iter().map(|_| 0));
        let found = Replies::parse(Value::BulkString(reply), 1).unwrap().replies.remove(0).unwrap();
        let decision = decision::of(Task::Acquire, NOON, &asked, &found).unwrap();
        watch.decided(asked, found, &decision);
    }

    fn is_denied(denials: &Denials, charges: &[Charge<'_>]) -> bool {
        denials.answer(charges, Some(NOON), u64::MAX).is_some_and(|decision| !decision.is_allowed())
    }

    #[test]
    fn many_keys_take_no_more_than_there_is_room_for() {
        let denials = Denials::new(Duration::from_secs(600)).unwrap();
        let spec = spec("limit");
        for n in 0..100_000 {
            let charge = [Charge { spec: &spec, key: key(n), cost: 2 }];
            deny(watch(&denials, &charge, true), &charge);
            assert!(is_denied(&denials, &charge), "the latest is told");
        }
        let sets = denials.sets.get().unwrap();
        let held: usize = sets.iter().map(|set| set.read().unwrap().iter().flatten().count()).sum();
        assert!(held <= 2 * SETS && held > SETS, "{held}");
        // What is beside it on the heap, where more than two limits are asked.
        let most = size_of::<Denial>() + LIMITS * (size_of::<Asked>() + size_of::<u64>()) + BYTES;
        assert!(2 * SETS * most + size_of_val(&**sets) < 10_000_000, "{most}");
    }

    #[test]
    fn a_denial_that_a_change_overtook_is_not_told() {
        let denials = Denials::new(Duration::from_secs(600)).unwrap();
        let spec = spec("limit");
        let charge = [Charge { spec: &spec, key: key(1), cost: 2 }];
        let asking = watch(&denials, &charge, true);
        drop(watch(&denials, &charge, true));
        deny(asking, &charge);
        assert!(!is_denied(&denials, &charge));

        deny(watch(&denials, &charge, true), &charge);
        assert!(is_denied(&denials, &charge));
        drop(watch(&denials, &charge, false));
        assert!(is_denied(&denials, &charge), "a peek changes nothing");
        drop(watch(&denials, &charge, true));
        assert!(!is_denied(&denials, &charge));
    }

    #[test]
    fn what_others_take_of_a_shared_limit_with_room_leaves_a_denial_alone() {
        let denials = Denials::new(Duration::from_secs(600)).unwrap();
        let [shared, own] = [spec("shared"), spec("own")];
        let charges = [Charge { spec: &shared, key: key(0), cost: 1 }, Charge { spec: &own, key: key(1), cost: 2 }];
        deny(watch(&denials, &charges, true), &charges);
        drop(watch(&denials, &charges[..1], true));
        assert!(is_denied(&denials, &charges));
        assert!(!is_denied(&denials, &charges[1..]), "it is of both limits");
        drop(watch(&denials, &charges[1..], true));
        assert!(!is_denied(&denials, &charges));
    }

    #[test]
    fn a_clock_that_stepped_back_asks_redis() {
        let denials = Denials::new(Duration::from_secs(600)).unwrap();
        let spec = spec("limit");
        let charge = [Charge { spec: &spec, key: key(1), cost: 2 }];
        deny(watch(&denials, &charge, true), &charge);
        assert!(denials.answer(&charge, Some(NOON - 1), u64::MAX).is_none());
        assert!(denials.answer(&charge, Some(NOON), u64::MAX).is_some());
    }

    /// Their keys in Redis are two.
    #[test]
    fn a_bucket_filled_at_intervals_is_another_one() {
        use crate::algorithm::TokenBucket;
        let denials = Denials::new(Duration::from_secs(600)).unwrap();
        let bucket = TokenBucket::per_day(1);
        let [one, other] = [bucket, bucket.at_intervals()]
            .map(|bucket| Arc::new(LimitSpec::new(LimitSettings::new("limit".into(), 0, bucket.into()), &hasher())));
        let [one, other] = [&one, &other].map(|spec| [Charge { spec, key: key(1), cost: 2 }]);
        deny(watch(&denials, &one, true), &one);
        assert!(is_denied(&denials, &one) && !is_denied(&denials, &other));
    }

    /// Redis may have decided as soon as the request left.
    #[test]
    fn a_slow_reply_takes_from_the_life_of_a_denial() {
        const SLOW: Duration = Duration::from_secs(5);
        let deny = |life| {
            let denials = Denials::new(life).unwrap();
            let spec = spec("limit");
            let charge = [Charge { spec: &spec, key: key(1), cost: 2 }];
            let mut watch = watch(&denials, &charge, true);
            watch.sent = watch.sent.checked_sub(SLOW).unwrap();
            deny(watch, &charge);
            denials.answer(&charge, None, u64::MAX)
        };
        assert!(deny(SLOW).is_none(), "it is as old as its request");
        assert!(deny(Duration::from_secs(3_600)).is_some());
    }

    #[test]
    fn none_outlives_its_span() {
        assert!(Denials::new(Duration::ZERO).is_none());
        let denials = Denials::new(Duration::from_nanos(1)).unwrap();
        let spec = spec("limit");
        let charge = [Charge { spec: &spec, key: key(1), cost: 2 }];
        deny(watch(&denials, &charge, true), &charge);
        std::thread::sleep(Duration::from_millis(1));
        assert!(!is_denied(&denials, &charge));
    }
}
