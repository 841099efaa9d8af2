//! Random fleets, networks and loads: no key is ever admitted more than its limits allow.
#![allow(clippy::print_stdout, reason = "how many requests were judged")]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use support::split_mix::Random;
use support::time::MIDNIGHT;
use tokio::runtime::Builder;
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::{Instant, sleep, timeout};
use tower_ratelimit::{Clock, DecidedBy, MemoryStore};

use crate::judge::{KINDS, Kind, Rule};
use crate::world::{Calls, Network, Process, StoreClock, limits};

/// The number of seeds for each algorithm, and the first.
const SEEDS: &str = "RATELIMIT_TEST_LEASES_SEEDS";
const FIRST: &str = "RATELIMIT_TEST_LEASES_FIRST";

/// The admitted requests of each key: their instants on the clock of the store, and their costs.
type Admitted = Rc<RefCell<BTreeMap<u64, Vec<(u64, u64)>>>>;

#[derive(Default)]
struct Done {
    admitted: u64,
    by_lease: u64,
    over: Vec<String>,
}

/// A fleet, and the load on it.
struct Simulation {
    random: Random,
    rules: Vec<Rule>,
    /// The sizes that rules get for a while, and have otherwise.
    larger: Option<Vec<Rule>>,
    term: Duration,
    network: Network,
    admitted: Admitted,
    by_lease: Rc<Cell<u64>>,
}

const SPAN: Duration = Duration::from_secs(4);

impl Simulation {
    fn new(seed: u64, kinds: &[Kind]) -> Self {
        let mut random = Random(seed);
        let mut rule = |kind: &Kind| {
            let span = 10 * (5_000 + random.below(150_000));
            Rule { kind: *kind, tokens: 4 + random.below(120), amount: 1 + random.below(60), span }
        };
        let rules: Vec<Rule> = kinds.iter().map(&mut rule).collect();
        // A bucket can't be leased for as long as it fills.
        let buckets = rules.iter().filter(|rule| matches!(rule.kind, Kind::TokenBucket | Kind::LeakyBucket));
        let longest = buckets.map(|rule| (rule.tokens - 1) * rule.span / rule.amount).min().unwrap_or(u64::MAX);
        let term = Duration::from_micros((5_000 + random.below(295_000)).min(longest).max(1_000));
        let larger = |rule: &Rule| Rule { tokens: rule.tokens * 3 / 2, amount: rule.amount * 5 / 4, ..*rule };
        let larger = seed.is_multiple_of(5).then(|| rules.iter().map(larger).collect());
        let most = random.one_of(&[0, 1_000, 20_000, 60_000]);
        let network = Network { least: most / 4, most, lost: random.one_of(&[0, 0, 30]) };
        Self { random, rules, larger, term, network, admitted: Rc::default(), by_lease: Rc::default() }
    }

    /// Runs the fleet, and judges what it has admitted.
    fn run(mut self, done: &mut Done, name: &str) {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        LocalSet::new().block_on(&runtime, self.simulate());
        done.by_lease += self.by_lease.get();
        for (key, mut admitted) in self.admitted.take() {
            if self.network.most == 0 {
                // After a step back, time stands still for a key.
                let mut latest = 0;
                for (at, _) in &mut admitted {
                    latest = latest.max(*at);
                    *at = latest;
                }
            }
            admitted.sort_unstable();
            done.admitted += admitted.len() as u64;
            for rule in self.larger.as_ref().unwrap_or(&self.rules) {
                let excess = rule.excess(&admitted);
                if excess > 0 {
                    let (term, network) = (self.term, self.network);
                    done.over.push(format!(
                        "{name}, key {key}: {excess} tokens over {rule:?}, leased for {term:?}, {network:?}"
                    ));
                }
            }
        }
    }

    async fn simulate(&mut self) {
        let random = &mut self.random;
        let clock = StoreClock::new(MIDNIGHT - random.below(2_000_000), random.below(801) as i64 - 400);
        let store = Arc::new(MemoryStore::new().max_keys(1_000).clock(clock.clone()));
        let (count, keys, calls) = (1 + random.below(8), 1 + random.below(3), Arc::<Calls>::default());
        let start = |seed| Rc::new(Process::start(&self.rules, self.term, &store, self.network, seed, &calls));
        let processes: Vec<Rc<Process>> = (0..count).map(|_| start(random.next())).collect();
        // The fleet asks for a half of what the first limit allows, or up to three times as much.
        let rate = if self.rules[0].is_bucket() { self.rules[0].amount } else { self.rules[0].tokens };
        let gap = self.rules[0].span * count / (rate * (1 + random.below(6))) + 1;
        let began = Instant::now();
        let clients = processes.iter().map(|process| {
            let client = Client {
                process: process.clone(),
                clock: clock.clone(),
                keys,
                admitted: self.admitted.clone(),
                by_lease: self.by_lease.clone(),
            };
            spawn_local(client.send(Random(random.next()), gap))
        });
        let clients: Vec<_> = clients.collect();
        let disturbs = random.below(3) > 0;
        while began.elapsed() < SPAN {
            sleep(Duration::from_millis(20 + random.below(300))).await;
            let process = &processes[random.below(count) as usize];
            match random.below(8) {
                0..3 if disturbs => {
                    process.cut(true);
                    sleep(Duration::from_millis(random.below(500))).await;
                    process.cut(false);
                }
                // It has crashed, for the others.
                3 if disturbs && count > 1 => processes[0].cut(true),
                4 if self.network.most == 0 => clock.step_back(random.below(200_000)),
                5..7 => {
                    if let Some(larger) = &self.larger {
                        let rules = if random.below(2) == 0 { larger } else { &self.rules };
                        // If a larger bucket can't be leased for so long, it stays as it is.
                        let _ = process.limits.replace(limits(rules, self.term));
                    }
                }
                _ => {}
            }
        }
        clients.iter().for_each(JoinHandle::abort);
        sleep(Duration::from_secs(3)).await;
    }
}

/// The clients of a process.
#[derive(Clone)]
struct Client {
    process: Rc<Process>,
    clock: Arc<StoreClock>,
    keys: u64,
    admitted: Admitted,
    by_lease: Rc<Cell<u64>>,
}

impl Client {
    /// Sends requests: one after the other, some at once, and few for a while.
    async fn send(self, mut random: Random, gap: u64) {
        loop {
            let pause = if random.below(8) == 0 { gap * 12 } else { random.below(2 * gap) };
            sleep(Duration::from_micros(pause)).await;
            for _ in 0..if random.below(10) == 0 { 1 + random.below(12) } else { 1 } {
                let (key, cost) = (random.below(self.keys), 1 + random.below(3) * (random.below(3) / 2));
                // Some give up, and some requests are refunded.
                let patience = random.one_of(&[5, 50, 2_000, 2_000, 2_000]);
                spawn_local(self.clone().request(key, cost, Duration::from_millis(patience), random.below(12) == 0));
            }
        }
    }

    async fn request(self, key: u64, cost: u64, patience: Duration, is_refunded: bool) {
        let limiter = &self.process.limiter;
        let Ok(Ok(decision)) = timeout(patience, limiter.acquire(key.to_le_bytes(), cost)).await else { return };
        if !decision.is_allowed() {
            return;
        }
        let is_leased = decision.decided_by() == DecidedBy::Lease;
        self.by_lease.update(|count| count + u64::from(is_leased));
        let has_steps = self.process.link.network.most == 0;
        // A decision of the store has an instant. One by a lease is made now, and so are all without a delay.
        let is_now = is_leased || has_steps;
        let at = if is_now { self.clock.now() } else { decision.at() }.as_micros();
        if is_refunded && !has_steps {
            sleep(Duration::from_millis(30)).await;
            let _ = limiter.refund(decision.into_receipt()).await;
        } else {
            self.admitted.borrow_mut().entry(key).or_default().push((at, cost));
        }
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|number| number.parse().ok()).unwrap_or(default)
}

/// Simulates fleets of one limit of each kind, and of two and three.
fn simulate_all(kinds: impl Fn(Kind, &mut Random) -> Vec<Kind>, seeds: u64) {
    let (first, seeds) = (number(FIRST, 0), number(SEEDS, seeds));
    for kind in KINDS {
        let mut done = Done::default();
        for seed in first..first + seeds {
            let kinds = kinds(kind, &mut Random(!seed));
            Simulation::new(seed, &kinds).run(&mut done, &format!("seed {seed} of {kinds:?}"));
        }
        let Done { admitted, by_lease, over } = &done;
        println!(
            "{kind:?}: {admitted} requests were admitted, {by_lease} of them by leases; {} seeds over",
            over.len()
        );
        assert!(over.is_empty(), "{over:#?}");
        assert!(*by_lease > admitted / 50, "{by_lease} of {admitted} were decided by leases");
    }
}

#[test]
fn fleets_never_exceed_a_limit() {
    simulate_all(|kind, _| vec![kind], 50);
}

#[test]
fn fleets_never_exceed_one_of_several_limits() {
    simulate_all(
        |kind, random| {
            let others = 1 + random.below(2);
            let mut kinds = vec![kind];
            while kinds.len() <= others as usize {
                let other = random.one_of(&KINDS);
                if !kinds.contains(&other) {
                    kinds.push(other);
                }
            }
            kinds
        },
        15,
    );
}
