//! A random trace, decided by the script and by a naive model.

use std::time::Duration;

use bytes::Buf;

use super::fake::Held;
use super::random::Random;
use super::{Redis, variable};
use crate::algorithm::{Algorithm, CompactState, KeyState, Lockout, NEVER, Penalty, Size};
use crate::decision::{Charge, Charges, Decision, Outcome, PenaltyOutcome, Verdict, Veto};
use crate::key::hash::KeyHasher;
use crate::store::redis::request::{self, INSTANT, Request, STATE, Task};
use crate::store::{Override, Purpose};
use crate::time::Timestamp;

/// Returns the limit, and the limit with its overage as a part of the capacity, which decides.
fn limit_and_ceiling(algorithm: Algorithm) -> [Algorithm; 2] {
    [0, algorithm.overage()].map(|more| Algorithm { overage: 0, capacity: algorithm.capacity + more, ..algorithm })
}

/// Returns the charge of a block that was taken with a charge.
pub(super) fn of_block(outcome: &Outcome, block: u64) -> Outcome {
    let mut of_block = outcome.clone();
    of_block.charge.cost = block;
    of_block
}

/// A request, and its expected decision.
#[derive(Debug)]
enum Step {
    Decide { task: Task, charges: Box<Charges>, expected: Vec<Expected> },
    Change,
}

#[derive(Debug)]
struct Expected {
    verdict: Verdict,
    is_over: bool,
    mark: CompactState,
    /// The tokens of the block.
    block: u64,
    /// The remaining tokens, and the spans until there are more and until the key is unused, in µs.
    standing: (u64, u64, u64),
    begun: Option<Lockout>,
    size: Size,
}

/// A trace: limits, their states, and a clock.
pub(super) struct Trace<'a> {
    random: Random,
    /// The random numbers of calendars, apart so that older seeds lead to the same traces.
    calendars: Random,
    /// The random numbers that change the sizes of buckets, in every third trace.
    sizes: Option<Random>,
    /// The random numbers of overrides, in every fifth trace.
    sizes_of_keys: Option<Random>,
    /// The random numbers of leases, in half of the traces without overrides.
    leases: Option<Random>,
    redis: &'a Redis,
    charges: Vec<Charge>,
    memories: Vec<KeyState>,
    /// The penalty of each limit, and whether denials are strikes.
    penalties: Vec<Option<(Penalty, bool)>>,
    strikes: Vec<CompactState>,
    /// The override of each limit, and when it expires.
    overrides: Vec<Option<(Size, Option<u64>)>>,
    /// Charges that can be refunded, with their positions.
    receipts: Vec<Vec<(usize, Outcome)>>,
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
        let mut leases =
            ((seed / 8).is_multiple_of(2) && !seed.is_multiple_of(5)).then_some(Random(seed.rotate_left(16)));
        for algorithm in &mut algorithms {
            if let Some(leases) = &mut leases
                && !leases.one_in(3)
            {
                *algorithm = leases.leased(*algorithm);
            }
        }
        let mut thresholds = Random(!seed);
        let mut penalties = Random(seed << 32);
        let key = hasher.hash(&seed.to_le_bytes());
        let mut charges = Vec::new();
        let mut of_limits = Vec::new();
        for (index, algorithm) in algorithms.iter().enumerate() {
            let mut outcome =
                Charge::new(index as u16, &format!("limit {index}"), *algorithm, &hasher).with_key(key, 0);
            outcome.is_overridable = seed.is_multiple_of(5);
            // In every second trace, so that older seeds lead to the same traces.
            let has = |random: &mut Random| seed % 2 == 1 && random.one_in(2);
            if has(&mut thresholds) {
                outcome.set_overage(thresholds.up_to(200) as u32);
            }
            if has(&mut thresholds) {
                outcome.veto = Veto::Shadow;
            }
            let has_penalty = seed % 4 >= 2 && outcome.veto() == Veto::Enforced && !penalties.one_in(3);
            of_limits.push(has_penalty.then(|| (penalties.penalty(), !penalties.one_in(8))));
            charges.push(outcome);
        }
        let own_clock = redis.fake().is_some() && random.one_in(3);
        let now = match random.below(6) {
            0 => random.below(1_000),
            1 if !own_clock => (1 << 52) - random.up_to(1 << 51),
            _ => 1_767_225_600_000_000 + random.up_to(1 << 40),
        };
        Self {
            sizes: seed.is_multiple_of(3).then_some(Random(seed ^ (1 << 63))),
            sizes_of_keys: seed.is_multiple_of(5).then_some(Random(seed ^ (1 << 62))),
            leases,
            redis,
            memories: vec![KeyState::UNUSED; charges.len()],
            overrides: vec![None; charges.len()],
            penalties: of_limits,
            strikes: vec![CompactState::UNUSED; charges.len()],
            charges,
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
        let clock = request::encode_clock(self.now);
        let clock = if self.own_clock { &[] } else { &clock[..] };
        let (now, replies) = self.redis.run(clock, &requests);
        assert_eq!(now, self.now);
        for (step, found) in steps.into_iter().zip(replies) {
            self.done.steps += 1;
            let found = found.unwrap();
            if variable("TWIN_SEED").is_some() {
                println!("{now} {step:?} {found:?}");
            }
            let Step::Decide { task, mut charges, expected } = step else { continue };
            let purpose = if task == Task::Peek { Purpose::Peek } else { Purpose::Take };
            found.answer(task, purpose, &mut charges, now).unwrap();
            self.compare(&charges, &expected);
        }
        self.check_expiry();
    }

    fn compare(&mut self, charges: &Charges, expected: &[Expected]) {
        for (outcome, &Expected { verdict, is_over, mark, block, standing, begun, size }) in
            charges.iter().zip(expected)
        {
            assert_eq!(outcome.clone().take_out_block(), block, "{outcome:?}");
            let flags = (outcome.uses_overage(), outcome.lockout(), outcome.algorithm().size());
            assert_eq!((outcome.verdict(), flags), (verdict, (is_over, begun, size)), "{outcome:?}");
            let (remaining, more_after, reset_after) = standing;
            let micros = |span| (span < NEVER).then(|| Duration::from_micros(span));
            let reported = (outcome.remaining(), outcome.more_after(), outcome.reset_after());
            assert_eq!(reported, (remaining, micros(more_after), Duration::from_micros(reset_after)), "{outcome:?}");
            self.done.begun += u64::from(begun.is_some());
            if mark != CompactState::UNUSED {
                assert_eq!(outcome.mark, mark, "{outcome:?}");
            }
        }
        let at = Timestamp::from_micros(self.now);
        let decision = Decision::new(at, charges.clone());
        self.done.allowed += u64::from(decision.is_allowed());
        let [limit, ..] = decision.outcomes() else { unreachable!("a trace has a limit") };
        let spans = [decision.retry_after(), limit.more_after(), Some(limit.reset_after())].into_iter().flatten();
        self.edges.extend(spans.map(|span| u64::try_from(span.as_micros()).unwrap_or(1 << 50).min(1 << 50)));
    }

    /// Every key has a TTL: until a second after its state expires, or after the later instant that the state of a bucket
    /// tells.
    fn check_expiry(&self) {
        let Some(fake) = self.redis.fake() else { return };
        if self.own_clock {
            fake.expire();
        }
        let keys = fake.keys.borrow();
        for (outcome, memory) in self.charges.iter().zip(&self.memories) {
            let name = request::name("t", &Charges::of([*outcome]), 0);
            let expires_at = memory.expires_at();
            let kept = match keys.get(name.as_bytes()) {
                Some((Held::Text(held), _)) if held.len() > STATE => (&held[STATE..]).get_uint_le(INSTANT),
                _ => expires_at,
            };
            assert!(kept >= expires_at, "{kept} {memory:?}");
            let Some((_, last)) = keys.get(name.as_bytes()) else { continue };
            let last = last.expect("a key with a TTL");
            // In its last ms, a key exists, but has expired.
            if self.own_clock && expires_at > self.now {
                assert_eq!(last, kept.div_ceil(1_000) + 1_000, "{outcome:?}");
            }
        }
    }

    fn resize(&mut self) {
        let Some(sizes) = &mut self.sizes else { return };
        if !sizes.one_in(6) {
            return;
        }
        let limit = sizes.below(self.charges.len() as u64) as usize;
        let outcome = &mut self.charges[limit];
        outcome.set_algorithm(sizes.resized(outcome.algorithm()));
    }

    /// Returns a request of all limits with these costs, and their penalties.
    fn charges(&self, mut cost: impl FnMut(&Charge) -> u64) -> Charges {
        let mut charges = Charges::default();
        for (charge, penalty) in self.charges.iter().zip(&self.penalties) {
            let charge = charge.with_key(charge.key(), cost(charge));
            let mut outcome = Outcome::new(charge, penalty.map(|(penalty, _)| PenaltyOutcome::new(penalty)));
            if penalty.is_some_and(|(_, makes_strikes)| !makes_strikes) {
                outcome.disable_strikes();
            }
            charges.push(outcome);
        }
        charges
    }

    fn step(&mut self) -> (Request, Step) {
        if let Some(request) = self.set_override() {
            return (request, Step::Change);
        }
        match self.random.below(12) {
            0..3 if !self.receipts.is_empty() => self.refund(),
            3 if self.random.one_in(4) => {
                self.memories = vec![KeyState::UNUSED; self.charges.len()];
                self.strikes = vec![CompactState::UNUSED; self.charges.len()];
                let all: Vec<usize> = (0..self.charges.len()).collect();
                (Request::reset("t", &self.charges(|_| 0), &all), Step::Change)
            }
            4 => self.decide(Task::Peek),
            5 if self.random.one_in(4) => self.decide(Task::PeekWithStrikes),
            _ => self.decide(Task::Acquire),
        }
    }

    /// Sets or removes an override sometimes.
    fn set_override(&mut self) -> Option<Request> {
        let sizes = self.sizes_of_keys.as_mut()?;
        let limit = sizes.below(self.charges.len() as u64) as usize;
        let outcome = &self.charges[limit];
        if !outcome.is_overridable() || !sizes.one_in(6) {
            return None;
        }
        if sizes.one_in(4) {
            self.overrides[limit] = None;
            return Some(Request::of_override(Task::Reset, "t", &Charges::of([*outcome])));
        }
        let algorithm = sizes.override_of(outcome.algorithm());
        let span = sizes.one_in(2).then(|| sizes.up_to(1 << 40));
        self.overrides[limit] = Some((algorithm.size(), span.map(|span| self.now + span)));
        let expires_after = span.map(Duration::from_micros);
        Some(Request::set_override("t", &Charges::of([*outcome]), Override { algorithm, expires_after }))
    }

    fn refund(&mut self) -> (Request, Step) {
        let which = self.random.below(self.receipts.len() as u64) as usize;
        let mut receipt = self.receipts.swap_remove(which);
        for (limit, outcome) in &mut receipt {
            outcome.charge.cost = if self.random.one_in(3) { self.random.up_to(outcome.cost) } else { outcome.cost };
            let state = &mut self.memories[*limit];
            state.refund(outcome.algorithm(), outcome.mark, self.now, outcome.cost);
        }
        let all: Vec<usize> = (0..receipt.len()).collect();
        (Request::refund("t", &Charges::of(receipt.into_iter().map(|(_, outcome)| outcome)), &all), Step::Change)
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

    fn decide(&mut self, mut task: Task) -> (Request, Step) {
        self.resize();
        let sender_clock = self.sender_clock();
        let costs: Vec<u64> =
            self.charges.iter().map(|charge| self.random.cost(charge.algorithm().capacity())).collect();
        let mut charges = self.charges(|charge| costs[charge.limit()]);
        if let Some(leases) = &mut self.leases
            && task == Task::Acquire
            && leases.one_in(2)
        {
            task = Task::Lease;
            for outcome in charges.iter_mut() {
                outcome.want_block(leases.cost(outcome.algorithm().capacity()).min(1 << 33));
            }
        }
        let request = Request::decide("t", task, sender_clock, &charges);

        // At the size that applies to the key.
        let mut sized = charges.clone();
        for (outcome, size) in sized.iter_mut().zip(&self.overrides) {
            if let Some((size, expires_at)) = size
                && expires_at.is_none_or(|at| at > self.now)
            {
                assert!(outcome.charge.resize(*size));
            }
        }
        let now = self.now;
        let verdict = |algorithm: &Algorithm, memory: &KeyState, cost| {
            Verdict::of(
                algorithm.wait(memory, now, cost, memory.used(algorithm, now)),
                algorithm.delay(memory, now, cost),
            )
        };
        let verdict_of = |(outcome, memory): (&Outcome, &KeyState)| {
            verdict(&limit_and_ceiling(*outcome.algorithm())[1], memory, outcome.cost)
        };
        let verdicts: Vec<Verdict> = sized.iter().zip(&self.memories).map(verdict_of).collect();
        let left: Vec<u64> = self.strikes.iter().map(|state| Penalty::lockout_left(state, now)).collect();
        let is_denied = |(index, outcome): (usize, &Outcome)| {
            outcome.veto() != Veto::Shadow && !verdicts[index].is_allowed() || outcome.cost > 0 && left[index] > 0
        };
        let takes = matches!(task, Task::Acquire | Task::Lease) && !sized.iter().enumerate().any(is_denied);
        let mut receipt = Vec::new();
        let mut expected = Vec::new();
        for (index, outcome) in sized.iter_mut().enumerate() {
            let algorithm = *outcome.algorithm();
            let ([limited, ceiling], memory) = (limit_and_ceiling(algorithm), &mut self.memories[index]);
            let is_over = verdicts[index].is_allowed() && !verdict(&limited, memory, outcome.cost).is_allowed();
            let mut mark = CompactState::UNUSED;
            let (mut begun, mut block) = (None, 0);
            if takes && verdicts[index].is_allowed() && outcome.cost > 0 {
                let charged = memory.attempt(&ceiling, self.now, outcome.cost).charged;
                memory.charge(&ceiling, self.now, outcome.cost, charged);
                block = outcome.wanted_block();
                if !verdict(&limited, memory, block).is_allowed() {
                    block = limited.remaining(memory.used(&limited, now));
                }
                if block > 0 {
                    let charged = memory.attempt(&limited, self.now, block).charged;
                    memory.charge(&limited, self.now, block, charged);
                }
                mark = memory.summary(&algorithm, self.now);
                outcome.mark = mark;
                receipt.push((index, outcome.clone()));
                if block > 0 {
                    receipt.push((index, of_block(outcome, block)));
                }
            }
            let used = memory.used(&limited, self.now);
            let summary = memory.summary(&limited, now);
            let (more_after, reset_after) =
                (limited.more_after(&summary, now, used), limited.reset_after(&summary, now));
            let strikes = &mut self.strikes[index];
            if let Some((penalty, true)) = self.penalties[index]
                && task != Task::Peek
                && left[index] == 0
                && !verdicts[index].is_allowed()
            {
                *strikes = penalty.strike(strikes, now);
                begun = Lockout::begun(strikes, now);
            }
            let mut standing =
                (limited.remaining(used), more_after, reset_after.max(strikes.expires_at.saturating_sub(now)));
            let mut verdict = verdicts[index];
            let left = Penalty::lockout_left(strikes, now);
            if left > 0 {
                standing.1 = if standing.0 > 0 { left } else { more_after.max(left) };
                standing.0 = 0;
                if outcome.cost > 0 {
                    verdict =
                        if verdict.is_allowed() { Verdict::of(left, 0) } else { verdict.and(Verdict::of(left, 0)) };
                }
            }
            let (is_over, size) = (is_over && verdict.is_allowed(), algorithm.size());
            expected.push(Expected { verdict, is_over, mark, block, standing, begun, size });
        }
        if !receipt.is_empty() {
            self.receipts.push(receipt);
        }
        (request, Step::Decide { task, charges: Box::new(charges), expected })
    }
}
