//! A random trace, decided by the script and by a naive model.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::fake::Held;
use super::random::Random;
use super::{Redis, variable};
use crate::algorithm::{Algorithm, Availability, ChargeMark, CompactState, KeyState, Lockout, Penalty, QuotaSnapshot};
use crate::decision::{Decision, Verdict};
use crate::hash::{KeyHash, KeyHasher};
use crate::limit_spec::{LimitSettings, Mode};
use crate::store::redis::charge::override_cache::OverrideCache;
use crate::store::redis::charge::prepared::PreparedCharge;
use crate::store::redis::charge::{outcomes, requests};
use crate::store::redis::key;
use crate::store::redis::script::{self, Replies, Request, Task, state};
use crate::store::{Charge, LimitSpec, Refund};

/// Returns the limit, and the limit with its overage as a part of the capacity, which decides.
fn limit_and_ceiling(spec: &LimitSpec) -> [Algorithm; 2] {
    let algorithm = *spec.algorithm();
    [Algorithm { overage: 0, ..algorithm }, algorithm.with_overage_as_capacity()]
}

/// A request, and its expected decision.
#[derive(Debug)]
enum Step {
    Decide { task: Task, asked: SmallVec<[PreparedCharge; 2]>, expected: Vec<Expected> },
    Change,
}

#[derive(Debug)]
struct Expected {
    verdict: Verdict,
    is_over: bool,
    mark: ChargeMark,
    standing: QuotaSnapshot,
    is_penalty: bool,
    begun: Option<Lockout>,
}

/// A trace: limits, their states, and a clock.
pub(super) struct Trace<'a> {
    random: Random,
    /// The random numbers of calendars, apart so that older seeds lead to the same traces.
    calendars: Random,
    /// The random numbers that change the sizes of buckets, in every third trace.
    sizes: Option<Random>,
    redis: &'a Redis,
    spec: Vec<Arc<LimitSpec>>,
    key: KeyHash,
    memories: Vec<KeyState>,
    /// The states of the limits' penalties.
    penalties: Vec<CompactState>,
    receipts: Vec<Vec<(usize, u64, ChargeMark)>>,
    now: u64,
    /// Earlier spans that led to an edge.
    edges: Vec<u64>,
    /// Whether the clock of Redis is used. Keys then expire, and time does not stand still.
    own_clock: bool,
    done: Done,
}

/// Counts of the cases that a run has compared.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    pub(super) steps: u64,
    /// Decisions that allowed a request.
    pub(super) allowed: u64,
    /// Lockouts that began.
    pub(super) begun: u64,
}

impl<'a> Trace<'a> {
    pub(super) fn new(seed: u64, redis: &'a Redis) -> Self {
        let mut random = Random(seed);
        let hasher = KeyHasher::with_secret([0; 16]);
        let limits = 1 + random.below(3) * random.below(2);
        let algorithms = (0..limits).map(|_| {
            let kind = random.below(8);
            random.algorithm(kind)
        });
        let mut algorithms: Vec<Algorithm> = algorithms.collect();
        let mut calendars = Random(seed.rotate_left(32));
        for algorithm in &mut algorithms {
            if seed.is_multiple_of(3) && calendars.one_in(2) {
                *algorithm = calendars.algorithm(8);
            }
        }
        let mut thresholds = Random(!seed);
        let mut penalties = Random(seed << 32);
        let mut spec = |(index, algorithm): (usize, &Algorithm)| {
            let mut settings = LimitSettings::new(format!("limit {index}").into(), index as u16, *algorithm);
            // In every second trace, so that older seeds lead to the same traces.
            let has = |random: &mut Random| seed % 2 == 1 && random.one_in(2);
            if has(&mut thresholds) {
                settings.overage_percent = thresholds.up_to(200) as u32;
            }
            if has(&mut thresholds) {
                settings.mode = Mode::Shadow;
            }
            if seed % 4 < 2 || settings.mode == Mode::Shadow || penalties.one_in(3) {
                return Arc::new(LimitSpec::new(settings, &hasher));
            }
            settings.penalty = Some(penalties.penalty());
            let spec = Arc::new(LimitSpec::new(settings, &hasher));
            if penalties.one_in(8) { spec.without_strikes() } else { spec }
        };
        let spec = algorithms.iter().enumerate().map(&mut spec).collect();
        let own_clock = redis.fake().is_some() && random.one_in(3);
        let now = match random.below(6) {
            0 => random.below(1_000),
            1 if !own_clock => (1 << 52) - random.up_to(1 << 51),
            _ => 1_767_225_600_000_000 + random.up_to(1 << 40),
        };
        Self {
            sizes: seed.is_multiple_of(3).then_some(Random(seed ^ (1 << 63))),
            redis,
            spec,
            key: hasher.hash(&seed.to_le_bytes()),
            memories: algorithms.iter().map(KeyState::unused).collect(),
            penalties: vec![CompactState::UNUSED; algorithms.len()],
            receipts: Vec::new(),
            now,
            edges: Vec::new(),
            own_clock,
            done: Done::default(),
            random,
            calendars,
        }
    }

    pub(super) fn run(mut self, calls: u64) -> Done {
        for _ in 0..calls {
            self.step_clock();
            let together = 1 + self.random.below(3) * self.random.below(2);
            self.call(together);
        }
        self.done
    }

    fn step_clock(&mut self) {
        let random = &mut self.random;
        let edge = if self.edges.is_empty() { 1 } else { self.edges[random.below(self.edges.len() as u64) as usize] };
        let ahead = match random.below(10) {
            0..3 => 0,
            3..5 => edge,
            5 => edge.saturating_sub(1),
            6 => random.up_to(edge.max(1)),
            7 => random.up_to(1_000),
            8 => random.up_to(1 << 20),
            _ => random.next() >> (14 + random.below(50)),
        };
        self.now = if !self.own_clock && random.one_in(8) {
            self.now.saturating_sub(ahead)
        } else {
            (self.now + ahead).min(1 << 52)
        };
        self.edges.clear();
    }

    fn call(&mut self, together: u64) {
        let steps: Vec<(Request, Step)> = (0..together).map(|_| self.step()).collect();
        let (requests, steps): (Vec<Request>, Vec<Step>) = steps.into_iter().unzip();
        if let Some(fake) = self.redis.fake() {
            // The test's clock cannot be combined with that of Redis.
            fake.time.set(if self.own_clock { self.now } else { 1_700_000_000_123_456 });
            if self.own_clock {
                fake.expire();
            }
        }
        let clock = script::encode_clock(self.now);
        let clock = if self.own_clock { &[] } else { &clock[..] };
        let Replies { now, replies } = self.redis.run(clock, &requests);
        assert_eq!(now, self.now);
        for (step, found) in steps.into_iter().zip(replies) {
            self.done.steps += 1;
            let found = found.unwrap();
            if variable("TWIN_SEED").is_some() {
                println!("{now} {step:?} {found:?}");
            }
            let Step::Decide { task, asked, expected } = step else { continue };
            let decision = outcomes::decision(task, now, &asked, &found).unwrap();
            self.compare(&decision, &expected);
        }
        self.check_expiry();
    }

    fn compare(&mut self, decision: &Decision, expected: &[Expected]) {
        self.done.allowed += u64::from(decision.is_allowed());
        for (outcome, &Expected { verdict, is_over, mark, standing, is_penalty, begun }) in
            decision.outcomes().iter().zip(expected)
        {
            assert_eq!((outcome.verdict(), outcome.uses_overage()), (verdict, is_over), "{:?}", self.spec);
            let QuotaSnapshot { remaining, more_after, reset_after } = standing;
            let reported = (outcome.remaining(), outcome.more_after(), outcome.reset_after());
            assert_eq!(
                reported,
                (remaining, more_after.map(Duration::from_micros), Duration::from_micros(reset_after)),
                "{:?}",
                self.spec
            );
            assert_eq!((outcome.is_penalty(), outcome.lockout()), (is_penalty, begun), "{:?}", self.spec);
            self.done.begun += u64::from(begun.is_some());
            if mark != ChargeMark::default() {
                assert_eq!(outcome.mark, mark, "{:?}", self.spec);
            }
        }
        let spans =
            [decision.retry_after(), decision.outcomes()[0].more_after(), Some(decision.outcomes()[0].reset_after())];
        let spans = spans.into_iter().flatten().map(|span| u64::try_from(span.as_micros()).unwrap_or(1 << 50));
        self.edges.extend(spans.map(|span| span.min(1 << 50)));
    }

    /// Every key has a TTL: until its state expires, or until the later instant that the state of a bucket tells.
    fn check_expiry(&self) {
        let Some(fake) = self.redis.fake() else { return };
        if self.own_clock {
            fake.expire();
        }
        let keys = fake.keys.borrow();
        let limits = self.spec.iter().zip(&self.memories).map(|(spec, memory)| {
            let name = key::name("t", spec, self.key);
            let expires_at = memory.as_state().expires_at();
            let kept = match keys.get(name.as_bytes()) {
                Some((Held::Text(held), _)) if held.len() > state::STATE => state::number(&held[state::STATE..]),
                _ => expires_at,
            };
            assert!(kept >= expires_at, "{kept} {memory:?}");
            (name, expires_at, kept)
        });
        let penalties = self.spec.iter().zip(&self.penalties).map(|(spec, record)| {
            (key::of_penalty(key::name("t", spec, self.key)), record.expires_at, record.expires_at)
        });
        for (name, expires_at, kept) in limits.chain(penalties) {
            let Some((_, last)) = keys.get(name.as_bytes()) else { continue };
            let last = last.expect("a key with a TTL");
            // In its last ms, a key exists, but has expired.
            if self.own_clock && expires_at > self.now {
                assert_eq!(last, kept.div_ceil(1_000), "{:?}", self.spec);
            }
        }
    }

    fn resize(&mut self) {
        let Some(sizes) = &mut self.sizes else { return };
        if !sizes.one_in(6) {
            return;
        }
        let hasher = KeyHasher::with_secret([0; 16]);
        let spec = sizes.below(self.spec.len() as u64) as usize;
        let spec = &mut self.spec[spec];
        *spec = Arc::new(spec.with_algorithm(sizes.resized(spec.algorithm()), &hasher));
    }

    fn step(&mut self) -> (Request, Step) {
        match self.random.below(12) {
            0..3 if !self.receipts.is_empty() => self.refund(),
            3 if self.random.one_in(4) => {
                let keys: Vec<_> = self.spec.iter().map(|spec| (spec, self.key)).collect();
                let request = requests::reset("t", &keys);
                self.memories = self.spec.iter().map(|spec| KeyState::unused(spec.algorithm())).collect();
                self.penalties.fill(CompactState::UNUSED);
                (request, Step::Change)
            }
            4 => self.decide(Task::Peek),
            5 if self.random.one_in(4) => self.decide(Task::PeekWithStrikes),
            _ => self.decide(Task::Acquire),
        }
    }

    fn refund(&mut self) -> (Request, Step) {
        let which = self.random.below(self.receipts.len() as u64) as usize;
        let receipt = self.receipts.swap_remove(which);
        let mut refunds = Vec::new();
        for &(limit, cost, mark) in &receipt {
            let spec = &self.spec[limit];
            let part = if self.random.one_in(3) { self.random.up_to(cost) } else { cost };
            self.memories[limit].as_state_mut().refund(spec.algorithm(), mark, self.now, part);
            refunds.push(Refund { spec, key: self.key, cost: part, mark });
        }
        (requests::refund("t", &refunds), Step::Change)
    }

    /// The sender's clock: off by less than a window, if at all.
    fn sender_clock(&mut self) -> u64 {
        let off = self.calendars.up_to(22 * 3_600_000_000);
        match self.calendars.below(4) {
            0 => self.now.saturating_sub(off),
            1 => self.now + off,
            _ => self.now,
        }
    }

    fn decide(&mut self, task: Task) -> (Request, Step) {
        self.resize();
        let sender_clock = self.sender_clock();
        let costs: Vec<u64> = self.spec.iter().map(|spec| self.random.cost(spec.capacity())).collect();
        let rooms: Vec<Availability> = self
            .spec
            .iter()
            .zip(&mut self.memories)
            .zip(&costs)
            .map(|((spec, memory), &cost)| limit_and_ceiling(spec)[1].availability(memory.as_state(), self.now, cost))
            .collect();
        let own = rooms.clone();
        let penalised = |(((room, spec), record), &cost): (((Availability, &Arc<LimitSpec>), &CompactState), &u64)| {
            if cost == 0 || spec.penalty().is_none() { room } else { Penalty::restrict(record, self.now, room) }
        };
        let rooms: Vec<Availability> =
            rooms.into_iter().zip(&self.spec).zip(&self.penalties).zip(&costs).map(penalised).collect();
        let has_capacity = |(spec, room): (&Arc<LimitSpec>, &Availability)| room.is_now() || !spec.is_enforced();
        let take = task == Task::Acquire && self.spec.iter().zip(&rooms).all(has_capacity);
        let mut receipt = Vec::new();
        let mut expected = Vec::new();
        for (limit, spec) in self.spec.iter().enumerate() {
            let ([limited, ceiling], memory) = (limit_and_ceiling(spec), self.memories[limit].as_state_mut());
            let is_over = rooms[limit].is_now() && !limited.availability(memory, self.now, costs[limit]).is_now();
            let mut mark = ChargeMark::default();
            if take && rooms[limit].is_now() && costs[limit] > 0 {
                memory.charge(&ceiling, self.now, costs[limit]);
                mark = ChargeMark(memory.summary(spec.algorithm(), self.now));
                receipt.push((limit, costs[limit], mark));
            }
            let mut standing = limited.snapshot(memory, self.now);
            let (mut room, mut is_penalty, mut begun) = (rooms[limit], false, None);
            if let Some(by) = spec.penalty() {
                let record = &mut self.penalties[limit];
                let is_refused = Penalty::locked_for(record, self.now) > 0;
                if task != Task::Peek && spec.counts_strikes() && !own[limit].is_now() && !is_refused {
                    begun = by.strike(record, self.now);
                    room = Penalty::restrict(record, self.now, room);
                }
                standing = Penalty::restrict_snapshot(record, self.now, standing);
                is_penalty = Penalty::locked_for(record, self.now) > 0;
            }
            expected.push(Expected { verdict: room.into(), is_over, mark, standing, is_penalty, begun });
        }
        let charge = |(spec, &cost)| Charge { spec, key: self.key, cost };
        let charges: Vec<Charge<'_>> = self.spec.iter().zip(&costs).map(charge).collect();
        let asked: SmallVec<[PreparedCharge; 2]> =
            charges.iter().map(|charge| PreparedCharge::new(charge, &OverrideCache::default())).collect();
        let request = requests::decide("t", task, sender_clock, &asked);
        if !receipt.is_empty() {
            self.receipts.push(receipt);
        }
        (request, Step::Decide { task, asked, expected })
    }
}
