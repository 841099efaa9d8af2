//! Batches of all kinds of requests, of several limiters and keys, in one call of the script. They are compared with
//! the memory store, which decides them one after the other.

use std::time::Duration;

use smallvec::SmallVec;

use super::Redis;
use super::fake::Held;
use super::random::Random;
use super::trace::{Done, of_block};
use crate::algorithm::Penalty;
use crate::decision::{Charge, Charges, Outcome, PenaltyOutcome, Verdict, Veto};
use crate::key::hash::{KeyHash, KeyHasher};
use crate::store::memory::MemoryStore;
use crate::store::redis::request::{self, Reply, Request, Task};
use crate::store::{Override, OverrideOperation, Purpose, Store};
use crate::time::{ManualClock, Timestamp};

const PREFIX: &str = "b";
const KEYS: u64 = 6;
const MOST: u64 = 24;

/// One request of a batch.
#[derive(Clone, Debug)]
enum Ask {
    Decide {
        task: Task,
        limiter: usize,
        key: KeyHash,
        costs: SmallVec<[u64; 3]>,
    },
    /// The refund of earlier charges.
    Refund {
        limiter: usize,
        key: KeyHash,
        charged: Charges,
    },
    Reset {
        limiter: usize,
        key: KeyHash,
    },
    /// Sets the override of a limit, or removes it.
    Override {
        limiter: usize,
        limit: usize,
        key: KeyHash,
        size: Option<Override>,
    },
}

impl Ask {
    /// Returns the limiter and the key.
    fn of(&self) -> (usize, KeyHash) {
        let (Self::Decide { limiter, key, .. }
        | Self::Refund { limiter, key, .. }
        | Self::Reset { limiter, key }
        | Self::Override { limiter, key, .. }) = self;
        (*limiter, *key)
    }
}

/// A key that was overwritten with a malformed value, and its earlier value.
struct Broken {
    limiter: usize,
    key: KeyHash,
    name: Vec<u8>,
    held: Option<(Held, Option<u64>)>,
}

/// Limiters with their keys, on Redis and in memory.
pub(super) struct Batches<'a> {
    random: Random,
    redis: &'a Redis,
    memory: MemoryStore,
    clock: ManualClock,
    /// The charges of each limiter's limits, with their penalties.
    limiters: Vec<Vec<(Charge, Option<Penalty>)>>,
    keys: Vec<KeyHash>,
    /// Refunds to come.
    receipts: Vec<Ask>,
    /// Earlier spans that led to an edge.
    edges: Vec<u64>,
    done: Done,
}

impl<'a> Batches<'a> {
    pub(super) fn new(seed: u64, redis: &'a Redis) -> Self {
        let mut random = Random(seed);
        let hasher = KeyHasher::with_secret([0; 16]);
        let now = match random.below(6) {
            0 => random.below(1_000),
            1 => (1 << 52) - random.up_to(1 << 40),
            2 => (1 << 52) - random.up_to(1 << 51),
            _ => 1_767_225_600_000_000 + random.up_to(1 << 40),
        };
        let clock = ManualClock::new(Timestamp::from_micros(now));
        let mut limiter = |limiter: u64| {
            let mut charges = Vec::new();
            for limit in 0..[1, 1, 2, 3][limiter as usize] {
                let kind = random.below(9);
                let name = format!("limit {limiter}.{limit}");
                let algorithm = random.algorithm(kind);
                let algorithm = if random.one_in(3) { random.leased(algorithm) } else { algorithm };
                let mut outcome = Charge::new(limit, &name, algorithm, &hasher);
                if random.one_in(3) {
                    outcome.set_overage(random.up_to(200) as u32);
                }
                outcome.is_overridable = random.one_in(3) && algorithm.term == 0;
                let mode = random.below(6);
                match mode {
                    0 => outcome.veto = Veto::Shadow,
                    2 | 3 => outcome.veto = Veto::Quota,
                    _ => {}
                }
                charges.push((outcome, (mode == 1).then(|| random.penalty())));
            }
            charges
        };
        Self {
            limiters: (0..4).map(&mut limiter).collect(),
            keys: (0..KEYS).map(|key| hasher.hash(format!("{seed}:{key}").as_bytes())).collect(),
            memory: MemoryStore::new().max_keys(1_000).clock(clock.clone()).with_hasher(hasher),
            receipts: Vec::new(),
            edges: Vec::new(),
            done: Done::default(),
            redis,
            clock,
            random,
        }
    }

    pub(super) fn run(mut self, calls: u64) -> Done {
        for _ in 0..calls {
            self.step_clock();
            self.resize();
            self.call();
        }
        self.done
    }

    /// Forward only, because the memory store removes expired states, which would count again after a step back.
    fn step_clock(&mut self) {
        let random = &mut self.random;
        let edge = if self.edges.is_empty() { 1 } else { self.edges[random.below(self.edges.len() as u64) as usize] };
        let ahead = match random.below(8) {
            0..3 => 0,
            3 => edge,
            4 => edge.saturating_sub(1),
            5 => random.up_to(edge.max(1)),
            6 => random.up_to(1_000),
            _ => random.up_to(1 << 40),
        };
        self.clock.set(Timestamp::from_micros((self.now() + ahead).min(1 << 52)));
        self.edges.clear();
    }

    fn now(&self) -> u64 {
        crate::time::Clock::now(&self.clock).as_micros()
    }

    /// Changes a rate sometimes, so that requests of one call find a state of the old rate.
    fn resize(&mut self) {
        if !self.random.one_in(4) {
            return;
        }
        let (limiter, limit) = self.limit();
        let (charge, _) = &mut self.limiters[limiter][limit];
        charge.set_algorithm(self.random.resized(charge.algorithm()));
    }

    fn limit(&mut self) -> (usize, usize) {
        let limiter = self.random.below(self.limiters.len() as u64) as usize;
        (limiter, self.random.below(self.limiters[limiter].len() as u64) as usize)
    }

    /// Corrupts a key sometimes, for one call.
    fn corrupt_key(&mut self) -> Option<Broken> {
        let fake = self.redis.fake().filter(|_| self.random.one_in(3))?;
        let (limiter, limit) = self.limit();
        let key = self.keys[self.random.below(KEYS) as usize];
        let name =
            request::name(PREFIX, &Charges::of([self.limiters[limiter][limit].0.with_key(key, 0)]), 0).into_bytes();
        let text = b"broken".to_vec();
        let held = if self.random.one_in(2) { Held::Text(text) } else { Held::List([text].into()) };
        let held = fake.keys.borrow_mut().insert(name.clone(), (held, Some(u64::MAX)));
        Some(Broken { limiter, key, name, held })
    }

    fn mend(&self, broken: Broken) {
        let Some(fake) = self.redis.fake() else { return };
        let mut keys = fake.keys.borrow_mut();
        match broken.held {
            Some(held) => keys.insert(broken.name, held),
            None => keys.remove(&broken.name),
        };
    }

    fn call(&mut self) {
        let mut asks: Vec<Ask> = Vec::new();
        for _ in 0..self.random.up_to(MOST) {
            let last = asks.last().cloned();
            asks.push(self.ask(last));
        }
        let broken = self.corrupt_key();
        let is_broken = |ask: &Ask| broken.as_ref().is_some_and(|broken| ask.of() == (broken.limiter, broken.key));
        // A reset would repair the key, and a refund of several limits would refund those before the malformed one.
        asks.retain(|ask| matches!(ask, Ask::Decide { .. }) || !is_broken(ask));
        let requests: Vec<Request> = asks.iter().map(|ask| self.request(ask)).collect();
        let now = self.now();
        let (at, replies) = self.redis.run(&request::encode_clock(now), &requests);
        assert_eq!(at, now);
        for (ask, found) in asks.into_iter().zip(replies) {
            self.done.steps += 1;
            if is_broken(&ask) {
                let fault = found.unwrap_err().to_string();
                assert!(fault.contains("UNREADABLE") || fault.contains("WRONGTYPE"), "{fault}");
                continue;
            }
            self.perform(&ask, found.unwrap());
        }
        if let Some(broken) = broken {
            self.mend(broken);
        }
    }

    /// Performs a request in memory, and compares the answers.
    fn perform(&mut self, ask: &Ask, found: Reply) {
        match ask {
            Ask::Decide { task, limiter, key, .. } => {
                let purpose = if *task == Task::Peek { Purpose::Peek } else { Purpose::Take };
                let (mut charges, mut expected) = (self.asked(ask), self.asked(ask));
                found.answer(*task, purpose, &mut charges, self.now()).unwrap();
                self.memory.decide_now(&mut expected, purpose);
                let is_allowed = self.compare(ask, &charges, &expected);
                if is_allowed && purpose == Purpose::Take {
                    expected.retain(|outcome| outcome.is_allowed() && outcome.cost() > 0);
                    for index in 0..expected.len() {
                        let block = expected[index].take_out_block();
                        if block > 0 {
                            expected.push(of_block(&expected[index], block));
                        }
                    }
                    self.receipts.push(Ask::Refund { limiter: *limiter, key: *key, charged: expected });
                }
            }
            Ask::Refund { charged, .. } => self.memory.refund(charged).into_ready().unwrap().unwrap(),
            Ask::Reset { .. } => self.memory.reset(&self.asked(ask)).into_ready().unwrap().unwrap(),
            Ask::Override { limit, size, .. } => {
                let asked = Charges::of([self.asked(ask)[*limit].charge]);
                let operation = size.map_or(OverrideOperation::Remove, OverrideOperation::Set);
                self.memory.access_override(&asked, operation).into_ready().unwrap().unwrap();
            }
        }
    }

    /// Often the same as the last one for another key, because such requests share their encoding.
    fn ask(&mut self, last: Option<Ask>) -> Ask {
        let random = &mut self.random;
        let key = self.keys[random.below(KEYS) as usize];
        if let Some(Ask::Decide { task, limiter, costs, .. }) = last
            && !random.one_in(4)
        {
            return Ask::Decide { task, limiter, key, costs };
        }
        let limiter = random.below(self.limiters.len() as u64) as usize;
        let task = match random.below(24) {
            0 => return Ask::Reset { limiter, key },
            1..6 if !self.receipts.is_empty() => {
                let which = random.below(self.receipts.len() as u64) as usize;
                let mut refund = self.receipts.swap_remove(which);
                if let Ask::Refund { charged, .. } = &mut refund {
                    for outcome in charged.iter_mut() {
                        outcome.charge.cost = if random.one_in(3) { random.up_to(outcome.cost) } else { outcome.cost };
                    }
                }
                return refund;
            }
            6..9 => Task::Peek,
            9 => {
                let limit = random.below(self.limiters[limiter].len() as u64) as usize;
                let (outcome, _) = &self.limiters[limiter][limit];
                if outcome.is_overridable() {
                    let expires_after = random.one_in(2).then(|| Duration::from_micros(random.up_to(1 << 40)));
                    let size = Override { algorithm: random.override_of(outcome.algorithm()), expires_after };
                    return Ask::Override { limiter, limit, key, size: (!random.one_in(4)).then_some(size) };
                }
                Task::Acquire
            }
            10..14 => Task::Lease,
            _ => Task::Acquire,
        };
        let ones = random.one_in(2);
        let mut costs = SmallVec::<[u64; 3]>::new();
        for (charge, _) in &self.limiters[limiter] {
            costs.push(if ones { 1 } else { random.cost(charge.algorithm().capacity()) });
        }
        Ask::Decide { task, limiter, key, costs }
    }

    fn request(&self, ask: &Ask) -> Request {
        let charges = self.asked(ask);
        let all: Vec<usize> = (0..charges.len()).collect();
        let one = |limit: usize| Charges::of([charges[limit].charge]);
        match ask {
            Ask::Decide { task, .. } => Request::decide(PREFIX, *task, self.now(), &charges),
            Ask::Refund { .. } => Request::refund(PREFIX, &charges, &all),
            Ask::Reset { .. } => Request::reset(PREFIX, &charges, &all),
            Ask::Override { limit, size: Some(size), .. } => Request::set_override(PREFIX, &one(*limit), *size),
            Ask::Override { limit, size: None, .. } => Request::of_override(Task::Reset, PREFIX, &one(*limit)),
        }
    }

    /// Returns the charges of a request.
    fn asked(&self, ask: &Ask) -> Charges {
        if let Ask::Refund { charged, .. } = ask {
            return charged.clone();
        }
        let (limiter, key) = ask.of();
        let cost = |index: usize| if let Ask::Decide { costs, .. } = ask { costs[index] } else { 0 };
        let mut charges = Charges::default();
        for (index, (charge, penalty)) in self.limiters[limiter].iter().enumerate() {
            let mut outcome = Outcome::new(charge.with_key(key, cost(index)), penalty.map(PenaltyOutcome::new));
            if let Ask::Decide { task: Task::Lease, .. } = ask {
                outcome.want_block(cost(index).wrapping_mul(7) % (1 << 33));
            }
            charges.push(outcome);
        }
        charges
    }

    /// Compares the answers, and returns whether the request was allowed.
    fn compare(&mut self, ask: &Ask, charges: &[Outcome], expected: &[Outcome]) -> bool {
        let is_allowed = !expected.iter().any(Outcome::denies);
        let takes = is_allowed && matches!(ask, Ask::Decide { task: Task::Acquire | Task::Lease, .. });
        let reported = |outcome: &Outcome| {
            let is_charged = takes && outcome.is_allowed() && outcome.cost() > 0;
            let flags = (outcome.uses_overage(), outcome.is_enforced(), outcome.lockout(), outcome.algorithm().size());
            let quota = (outcome.remaining(), outcome.more_after(), outcome.reset_after());
            let block = outcome.clone().take_out_block();
            (outcome.verdict(), flags, quota, block, is_charged.then_some(outcome.mark))
        };
        let [found, expected_reports] =
            [charges, expected].map(|charges| charges.iter().map(reported).collect::<Vec<_>>());
        assert_eq!(found, expected_reports, "{ask:?} of {expected:?}");
        self.done.allowed += u64::from(is_allowed);
        self.done.begun += expected.iter().filter(|outcome| outcome.lockout().is_some()).count() as u64;
        let spans = expected.iter().flat_map(|outcome| {
            let retry_after = match outcome.verdict() {
                Verdict::Deny { retry_after } => retry_after,
                Verdict::Allow { .. } => None,
            };
            [outcome.more_after(), Some(outcome.reset_after()), retry_after]
        });
        let spans = spans.flatten().filter_map(|span| u64::try_from(span.as_micros()).ok());
        self.edges.extend(spans.filter(|span| *span < 1 << 50));
        is_allowed
    }
}
