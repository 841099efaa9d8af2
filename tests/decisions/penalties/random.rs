//! Random requests: every decision in memory and on Redis agrees with the oracle, to the microsecond.

use std::time::Duration;

use support::limits::acquire_costs;
use tower_ratelimit::{Algorithm, Limit, Limiter, Penalty};

use crate::penalties::backend::{Backend, START};
use crate::penalties::oracle::{Oracle, Said, said};
use support::limits;
use support::split_mix::Random;

/// The settings of a penalty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spans {
    pub(crate) denials: u32,
    pub(crate) within: Duration,
    pub(crate) first: Duration,
    pub(crate) longest: Duration,
    pub(crate) kept: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct OneLimit {
    algorithm: Algorithm,
    pub(crate) penalty: Option<Spans>,
}

#[derive(Clone, Debug)]
pub(crate) struct Setting {
    seed: u64,
    pub(crate) limits: Vec<OneLimit>,
}

impl Setting {
    fn random(seed: u64) -> Self {
        let mut random = Random(seed);
        let periods = [7, 1_000, 1_000_000, 60_000_000, 86_400_000_000];
        let limit = |random: &mut Random| {
            let period = Duration::from_micros(random.one_of(&periods) * 10);
            let (_, algorithm) = limits::all(2 + random.below(3) as u32, period)[random.below(8) as usize];
            let mut spans = [(); 4].map(|()| Duration::from_micros(1 + random.below(4) * random.one_of(&periods)));
            spans[1..3].sort();
            let [within, first, longest, kept] = spans;
            let kept = (random.below(2) == 0).then_some(kept);
            let longest = if random.below(4) == 0 { first } else { longest };
            let denials = 1 + random.below(4) as u32;
            let penalty = (random.below(4) > 0).then_some(Spans { denials, within, first, longest, kept });
            OneLimit { algorithm, penalty }
        };
        let limits = (0..1 + random.below(3)).map(|_| limit(&mut random)).collect();
        Self { seed, limits }
    }

    /// Returns a limit without its penalty.
    pub(crate) fn bare(&self, index: usize) -> Limit {
        Limit::new(format!("limit {index} of {}", self.seed), self.limits[index].algorithm)
    }

    fn limiter(&self, backend: &Backend) -> Limiter {
        let limit = |index: usize| match self.limits[index].penalty {
            None => self.bare(index),
            Some(Spans { denials, within, first, longest, kept }) => {
                let penalty = Penalty::after(denials, within).locked_out_for(first).doubling_up_to(longest);
                self.bare(index).penalty(kept.map_or(penalty, |kept| penalty.remembered_for(kept)))
            }
        };
        backend.limiter((0..self.limits.len()).map(limit)).build()
    }
}

/// Counts of the cases that occurred.
#[derive(Debug, Default)]
struct Coverage {
    steps: usize,
    allowed: usize,
    /// Requests that began a lockout or were denied by one.
    refused: usize,
    answers: Vec<(bool, Option<Duration>, Vec<Said>)>,
}

/// Runs a random trace, and compares it with the oracle if the clock never steps back.
async fn trace(backend: &Backend, seed: u64, steps: usize, steps_back: bool) -> Coverage {
    let setting = Setting::random(seed);
    let limiter = setting.limiter(backend);
    backend.set(START);
    let mut oracle = (!steps_back).then(|| Oracle::new(&setting, &backend.clock));
    let mut random = Random(!seed);
    let mut edges = vec![Duration::from_micros(1)];
    let mut met = Coverage::default();
    for _ in 0..steps {
        let micro = Duration::from_micros(1);
        let edge = edges[random.below(edges.len() as u64) as usize].min(Duration::from_secs(86_400 * 400));
        let ahead = match random.below(12) {
            0..6 => Duration::ZERO,
            6 => edge,
            7 => edge.saturating_sub(micro),
            8 => edge / 2,
            9 => edge + micro,
            _ => Duration::from_micros(random.below(1_000)),
        };
        if steps_back && random.below(6) == 0 {
            backend.set(backend.now().saturating_sub(ahead.as_micros() as u64));
        } else {
            backend.advance(ahead);
        }
        if random.below(40) == 0 {
            limiter.reset("key").await.unwrap();
            oracle.iter_mut().for_each(Oracle::reset);
        }
        let costs: Vec<u64> = setting
            .limits
            .iter()
            .map(|limit| match random.below(8) {
                0 => 0,
                1 => limit.algorithm.capacity() + 1,
                2 => limit.algorithm.capacity(),
                _ => 1,
            })
            .collect();
        let takes = random.below(6) > 0;
        let decision = if takes {
            acquire_costs(&limiter, "key", &costs).await.unwrap()
        } else {
            // A peek uses one cost for all limits.
            limiter.peek("key", costs[0]).await.unwrap()
        };
        let costs = if takes { costs } else { vec![costs[0]; costs.len()] };
        let answer = said(&decision);
        if let Some(oracle) = &mut oracle {
            let expected = oracle.decide(&costs, takes);
            assert_eq!(answer, expected, "{}: seed {seed}, costs {costs:?}, takes {takes}, {setting:?}", backend.name);
        }
        met.steps += 1;
        met.allowed += usize::from(answer.0);
        met.refused += usize::from(decision.is_locked_out());
        edges =
            answer.1.into_iter().chain(answer.2.iter().flat_map(|said| said.2.into_iter().chain([said.3]))).collect();
        edges.push(micro);
        met.answers.push(answer);
    }
    met
}

#[track_caller]
fn covers_all(met: &[Coverage]) {
    let sum = |of: fn(&Coverage) -> usize| met.iter().map(of).sum::<usize>();
    let (steps, allowed, refused) = (sum(|met| met.steps), sum(|met| met.allowed), sum(|met| met.refused));
    assert!(allowed * 8 > steps && refused * 8 > steps, "{allowed} allowed and {refused} refused of {steps}");
}

#[tokio::test]
async fn memory_agrees_with_the_oracle() {
    let mut met = Vec::new();
    for seed in 0..600 {
        met.push(trace(&Backend::in_memory(), seed, 60, false).await);
    }
    covers_all(&met);
}

#[tokio::test]
async fn redis_agrees_with_the_oracle() {
    let backend = Backend::on_redis().await;
    let mut met = Vec::new();
    for seed in 1_000..1_150 {
        met.push(trace(&backend, seed, 60, false).await);
    }
    covers_all(&met);
}

/// Also with clocks that step back.
#[tokio::test]
async fn the_stores_agree() {
    let redis = Backend::on_redis().await;
    let mut met = Vec::new();
    for seed in 2_000..2_150 {
        let [one, other] = [trace(&Backend::in_memory(), seed, 60, true).await, trace(&redis, seed, 60, true).await];
        assert_eq!(one.answers, other.answers, "seed {seed}");
        met.push(one);
    }
    covers_all(&met);
}
