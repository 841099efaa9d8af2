//! Random requests: every decision in memory and on Redis agrees with the model, to the microsecond.

use std::ops::Range;
use std::time::Duration;

use support::limits::acquire_costs;
use support::model::{Answer, Model, Spans, decide};
use support::rule::each;
use support::split_mix::Random;
use support::store_fixture::StoreFixture;
use support::time::{DAY, MICRO, MIDNIGHT};
use tower_ratelimit::{Limit, Limiter, Penalty};

/// Returns one to three limits of a few tokens, most of them with a penalty.
fn random_models(seed: u64) -> Vec<Model> {
    let mut random = Random(seed);
    let periods = [7, 1_000, 1_000_000, 60_000_000, 86_400_000_000];
    let model = |random: &mut Random| {
        let period = random.one_of(&periods) * 10;
        let rules = each(2 + random.below(3) as u32, period);
        let rule = rules[random.below(rules.len() as u64) as usize];
        let mut spans = [(); 4].map(|()| u128::from(1 + random.below(4) * random.one_of(&periods)));
        spans[1..3].sort();
        let [within, first, longest, kept] = spans;
        let kept = (random.below(2) == 0).then_some(kept);
        let longest = if random.below(4) == 0 { first } else { longest };
        let denials = 1 + random.below(4) as u32;
        let penalty = (random.below(4) > 0).then_some(Spans { denials, within, first, longest, kept });
        Model::new(rule).with_penalty(penalty)
    };
    (0..1 + random.below(3)).map(|_| model(&mut random)).collect()
}

fn limiter(fixture: &StoreFixture, seed: u64, models: &[Model]) -> Limiter {
    let span = |micros: u128| Duration::from_micros(micros as u64);
    let limit = |(index, model): (usize, &Model)| {
        let limit = Limit::new(format!("limit {index} of {seed}"), model.rule.algorithm());
        let Some(Spans { denials, within, first, longest, kept }) = model.penalty else { return limit };
        let penalty = Penalty::after(denials, span(within)).locked_out_for(span(first)).doubling_up_to(span(longest));
        limit.penalty(kept.map_or(penalty, |kept| penalty.remembered_for(span(kept))))
    };
    fixture.limiter(models.iter().enumerate().map(limit))
}

/// Counts of the cases that occurred.
#[derive(Debug, Default)]
struct Coverage {
    steps: usize,
    allowed: usize,
    /// Requests that began a lockout or were denied by one.
    locked_out: usize,
    answers: Vec<Answer>,
}

/// Runs a random trace, and compares it with the models if the clock never steps back.
async fn trace(fixture: &StoreFixture, seed: u64, steps_back: bool) -> Coverage {
    let mut models = random_models(seed);
    let limiter = limiter(fixture, seed, &models);
    fixture.set(MIDNIGHT);
    let mut random = Random(!seed);
    let mut edges = vec![1];
    let mut coverage = Coverage::default();
    for _ in 0..60 {
        let edge = Duration::from_micros(random.one_of(&edges)).min(400 * DAY);
        let ahead = match random.below(12) {
            0..6 => Duration::ZERO,
            6 => edge,
            7 => edge.saturating_sub(MICRO),
            8 => edge / 2,
            9 => edge + MICRO,
            _ => Duration::from_micros(random.below(1_000)),
        };
        if steps_back && random.below(6) == 0 {
            fixture.set(fixture.now().saturating_sub(ahead.as_micros() as u64));
        } else {
            fixture.advance(ahead);
        }
        if random.below(40) == 0 {
            limiter.reset("key").await.unwrap();
            models = random_models(seed);
        }
        let cost = |model: &Model| match random.below(8) {
            0 => 0,
            1 => model.rule.capacity() + 1,
            2 => model.rule.capacity(),
            _ => 1,
        };
        let costs: Vec<u64> = models.iter().map(cost).collect();
        let takes = random.below(6) > 0;
        let decision = if takes {
            acquire_costs(&limiter, "key", &costs).await.unwrap()
        } else {
            // A peek uses one cost for all limits.
            limiter.peek("key", costs[0]).await.unwrap()
        };
        let costs = if takes { costs } else { vec![costs[0]; costs.len()] };
        let answer = Answer::from(&decision);
        if !steps_back {
            let expected = decide(&mut models, fixture.now(), &costs, takes);
            assert_eq!(answer, expected, "seed {seed}, costs {costs:?}, takes {takes}, {models:?}");
        }
        coverage.steps += 1;
        coverage.allowed += usize::from(answer.allowed);
        coverage.locked_out += usize::from(decision.is_locked_out());
        let limits = answer.limits.iter().flat_map(|limit| [limit.more_after, Some(limit.reset_after)]);
        edges = limits.chain([answer.retry_after, Some(1)]).flatten().map(|edge| edge as u64).collect();
        coverage.answers.push(answer);
    }
    coverage
}

/// Runs traces. Enough requests must be allowed, and locked out.
async fn traces(seeds: Range<u64>, trace: impl AsyncFn(u64) -> Coverage) {
    let mut sum = Coverage::default();
    for seed in seeds {
        let coverage = trace(seed).await;
        sum.steps += coverage.steps;
        sum.allowed += coverage.allowed;
        sum.locked_out += coverage.locked_out;
    }
    assert!(sum.allowed * 8 > sum.steps && sum.locked_out * 8 > sum.steps, "{sum:?}");
}

#[tokio::test]
async fn memory_agrees_with_the_model() {
    traces(0..600, async |seed| trace(&StoreFixture::in_memory(), seed, false).await).await;
}

#[tokio::test]
async fn redis_agrees_with_the_model() {
    let fixture = StoreFixture::on_redis().await;
    traces(1_000..1_150, async |seed| trace(&fixture, seed, false).await).await;
}

/// Also with clocks that step back.
#[tokio::test]
async fn the_stores_agree() {
    let redis = StoreFixture::on_redis().await;
    traces(2_000..2_150, async |seed| {
        let memory = trace(&StoreFixture::in_memory(), seed, true).await;
        assert_eq!(memory.answers, trace(&redis, seed, true).await.answers, "seed {seed}");
        memory
    })
    .await;
}
