//! Batches of all kinds of requests, of several limiters and keys, in one call of the script. They are compared with
//! the memory store, which decides them one after the other.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Redis;
use super::fake::Held;
use super::random::Random;
use super::trace::Done;
use crate::algorithm::ChargeMark;
use crate::decision::Decision;
use crate::hash::{KeyHash, KeyHasher};
use crate::limit_spec::{LimitSettings, Mode};
use crate::store::memory::MemoryStore;
use crate::store::redis::charge::override_cache::OverrideCache;
use crate::store::redis::charge::prepared::PreparedCharge;
use crate::store::redis::charge::{outcomes, requests};
use crate::store::redis::key;
use crate::store::redis::script::{self, Replies, Request, Task};
use crate::store::{Charge, LimitSpec, Refund, Store};
use crate::time::{ManualClock, Timestamp};

const PREFIX: &str = "b";
const KEYS: u64 = 6;
const MOST: u64 = 24;

/// One request of a batch.
#[derive(Clone, Debug)]
enum Ask {
    Decide { task: Task, limiter: usize, key: KeyHash, costs: SmallVec<[u64; 3]> },
    Refund(Receipt),
    Reset { limiter: usize, key: KeyHash },
}

impl Ask {
    fn is_of(&self, its_limiter: usize, its_key: KeyHash) -> bool {
        let (Self::Decide { limiter, key, .. }
        | Self::Refund(Receipt { limiter, key, .. })
        | Self::Reset { limiter, key }) = self;
        (*limiter, *key) == (its_limiter, its_key)
    }
}

/// Charges that can be refunded: the costs and marks of limits, by limiter and key.
#[derive(Clone, Debug)]
struct Receipt {
    limiter: usize,
    key: KeyHash,
    taken: Vec<(usize, u64, ChargeMark)>,
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
    hasher: KeyHasher,
    limiters: Vec<Vec<Arc<LimitSpec>>>,
    keys: Vec<KeyHash>,
    receipts: Vec<Receipt>,
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
            let limit = |limit: u64| {
                let kind = random.below(9);
                let name = format!("limit {limiter}.{limit}");
                let mut settings = LimitSettings::new(name.into(), limit as u16, random.algorithm(kind));
                if random.one_in(3) {
                    settings.overage_percent = random.up_to(200) as u32;
                }
                match random.below(6) {
                    0 => settings.mode = Mode::Shadow,
                    1 => settings.penalty = Some(random.penalty()),
                    2 | 3 => settings.mode = Mode::Quota,
                    _ => {}
                }
                Arc::new(LimitSpec::new(settings, &hasher))
            };
            (0..[1, 1, 2, 3][limiter as usize]).map(limit).collect()
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
            hasher,
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
        let spec = &mut self.limiters[limiter][limit];
        *spec = Arc::new(spec.with_algorithm(self.random.resized(spec.algorithm()), &self.hasher));
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
        let name = key::name(PREFIX, &self.limiters[limiter][limit], key).into_bytes();
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
        let is_broken = |ask: &Ask| broken.as_ref().is_some_and(|broken| ask.is_of(broken.limiter, broken.key));
        // A reset would repair the key, and a refund of several limits would refund those before the malformed one.
        asks.retain(|ask| matches!(ask, Ask::Decide { .. }) || !is_broken(ask));
        let requests: Vec<Request> = asks.iter().map(|ask| self.request(ask)).collect();
        let now = self.now();
        let Replies { now: at, replies } = self.redis.run(&script::encode_clock(now), &requests);
        assert_eq!(at, now);
        for (ask, found) in asks.into_iter().zip(replies) {
            self.done.steps += 1;
            if is_broken(&ask) {
                let fault = found.unwrap_err().to_string();
                assert!(fault.contains("UNREADABLE") || fault.contains("WRONGTYPE"), "{fault}");
                continue;
            }
            let found = found.unwrap();
            match &ask {
                Ask::Decide { task, .. } => {
                    let decision = outcomes::decision(*task, now, &self.asked(&ask), &found).unwrap();
                    let expected = self.decide(&ask);
                    self.compare(&ask, &decision, &expected);
                    self.keep(&ask, &expected);
                }
                Ask::Refund(receipt) => {
                    let refunded = self.memory.refund(&self.refunds(receipt));
                    refunded.into_ready().unwrap().unwrap();
                }
                Ask::Reset { limiter, key } => {
                    let keys: Vec<_> = self.limiters[*limiter].iter().map(|spec| (spec, *key)).collect();
                    self.memory.reset(&keys).into_ready().unwrap().unwrap();
                }
            }
        }
        if let Some(broken) = broken {
            self.mend(broken);
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
                let mut receipt = self.receipts.swap_remove(which);
                for (_, cost, _) in &mut receipt.taken {
                    *cost = if random.one_in(3) { random.up_to(*cost) } else { *cost };
                }
                return Ask::Refund(receipt);
            }
            6..9 => Task::Peek,
            _ => Task::Acquire,
        };
        let ones = random.one_in(2);
        let cost = |spec: &Arc<LimitSpec>| if ones { 1 } else { random.cost(spec.capacity()) };
        let costs = self.limiters[limiter].iter().map(cost).collect();
        Ask::Decide { task, limiter, key, costs }
    }

    fn request(&self, ask: &Ask) -> Request {
        match ask {
            Ask::Decide { task, .. } => requests::decide(PREFIX, *task, self.now(), &self.asked(ask)),
            Ask::Refund(receipt) => requests::refund(PREFIX, &self.refunds(receipt)),
            Ask::Reset { limiter, key } => {
                let keys: Vec<_> = self.limiters[*limiter].iter().map(|spec| (spec, *key)).collect();
                requests::reset(PREFIX, &keys)
            }
        }
    }

    fn charges(&self, ask: &Ask) -> Vec<Charge<'_>> {
        let Ask::Decide { limiter, key, costs, .. } = ask else { unreachable!("only decisions have charges") };
        let charge = |(spec, &cost)| Charge { spec, key: *key, cost };
        self.limiters[*limiter].iter().zip(costs).map(charge).collect()
    }

    fn asked(&self, ask: &Ask) -> SmallVec<[PreparedCharge; 2]> {
        self.charges(ask).iter().map(|charge| PreparedCharge::new(charge, &OverrideCache::default())).collect()
    }

    fn refunds(&self, receipt: &Receipt) -> Vec<Refund<'_>> {
        let spec = &self.limiters[receipt.limiter];
        let refund = |&(limit, cost, mark): &(usize, u64, ChargeMark)| Refund {
            spec: &spec[limit],
            key: receipt.key,
            cost,
            mark,
        };
        receipt.taken.iter().map(refund).collect()
    }

    fn decide(&self, ask: &Ask) -> Decision {
        let charges = self.charges(ask);
        let answer = match ask {
            Ask::Decide { task: Task::Peek, .. } => self.memory.peek(&charges),
            _ => self.memory.decide(&charges),
        };
        answer.into_ready().unwrap().unwrap()
    }

    fn compare(&mut self, ask: &Ask, decision: &Decision, expected: &Decision) {
        let reported = |decision: &Decision| {
            let outcomes = decision.outcomes().iter().map(|outcome| {
                let of_penalty = (outcome.is_penalty(), outcome.lockout());
                let is_charged = decision.is_charged() && outcome.is_allowed() && outcome.cost > 0;
                let mark = (is_charged && outcome.lockout().is_none()).then_some(outcome.mark);
                (
                    outcome.verdict(),
                    outcome.uses_overage(),
                    (outcome.remaining(), outcome.more_after(), outcome.reset_after()),
                    of_penalty,
                    mark,
                )
            });
            (decision.is_allowed(), decision.retry_after(), outcomes.collect::<Vec<_>>())
        };
        assert_eq!(reported(decision), reported(expected), "{ask:?} of {:?}", self.limiters);
        self.done.allowed += u64::from(expected.is_allowed());
        self.done.begun += expected.outcomes().iter().filter(|outcome| outcome.lockout().is_some()).count() as u64;
        let spans = expected.outcomes().iter().flat_map(|outcome| [outcome.more_after(), Some(outcome.reset_after())]);
        let spans = spans.flatten().chain(expected.retry_after());
        self.edges.extend(spans.filter_map(|span| u64::try_from(span.as_micros()).ok()).filter(|span| *span < 1 << 50));
    }

    /// Keeps the charges of a decision for refunds.
    fn keep(&mut self, ask: &Ask, decision: &Decision) {
        let Ask::Decide { task: Task::Acquire, limiter, key, costs } = ask else { return };
        if !decision.is_allowed() {
            return;
        }
        let outcomes = decision.outcomes().iter().zip(costs).enumerate();
        let taken = outcomes.filter(|(_, (outcome, cost))| outcome.is_allowed() && **cost > 0);
        let taken: Vec<_> = taken.map(|(limit, (outcome, &cost))| (limit, cost, outcome.mark)).collect();
        if !taken.is_empty() {
            self.receipts.push(Receipt { limiter: *limiter, key: *key, taken });
        }
    }
}
