//! A slow implementation of the decision rules in `src/guide/semantics.md`.
//!
//! A model only keeps the list of allowed requests, and applies the definitions to it: is there capacity at an instant?
//! It finds remaining tokens and waits by searching with that question instead of by formulas. Fractions are counted in
//! `1/interval` of a token, or `1/amount` of a µs.

use tower_ratelimit::Rounding;

use crate::rule::{Kind, Rule};

/// One key under one limit.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) rule: Rule,
    /// The times and costs of allowed requests, in order. A refund removes its charge.
    pub(crate) taken: Vec<(u128, u128)>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) allowed: bool,
    pub(crate) retry_after: Option<u128>,
    pub(crate) delay: u128,
    pub(crate) limits: Vec<ExpectedOutcome>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ExpectedOutcome {
    pub(crate) verdict: Result<Delay, Wait>,
    pub(crate) remaining: u64,
    pub(crate) more_after: Option<u128>,
    pub(crate) reset_after: u128,
}

type Delay = u128;
type Wait = Option<u128>;

/// Decides one request by all models, and charges it if all have capacity.
pub(crate) fn decide(models: &mut [Model], at: u64, costs: &[u64]) -> Answer {
    let at = u128::from(at);
    let all_have_room = |at| models.iter().zip(costs).all(|(model, &cost)| model.has_capacity(at, cost));
    let allowed = all_have_room(at);
    let retry_after = if allowed { None } else { least(|wait| all_have_room(at + wait)) };

    let verdict = |model: &Model, cost| match model.has_capacity(at, cost) {
        true => Ok(model.delay(at, cost)),
        false => Err(least(|wait| model.has_capacity(at + wait, cost))),
    };
    let verdicts: Vec<_> = models.iter().zip(costs).map(|(model, &cost)| verdict(model, cost)).collect();
    let longest = verdicts.iter().filter_map(|verdict| verdict.ok()).max().unwrap_or(0);

    if allowed {
        for (model, &cost) in models.iter_mut().zip(costs).filter(|(_, cost)| **cost > 0) {
            model.taken.push((at, cost.into()));
        }
    }
    let report = |(model, verdict): (&Model, _)| ExpectedOutcome {
        verdict,
        remaining: model.remaining(at),
        more_after: model.more_after(at),
        reset_after: model.reset_after(at),
    };
    let limits = models.iter().zip(verdicts).map(report).collect();
    Answer { allowed, retry_after, delay: if allowed { longest } else { 0 }, limits }
}

/// Returns the shortest wait for which `it_holds`, or `None` if there is none. It must hold for all longer waits.
fn least(it_holds: impl Fn(u128) -> bool) -> Option<u128> {
    if it_holds(0) {
        return Some(0);
    }
    // 2^32 intervals of 366 days are less than 2^80 µs.
    let mut enough = (0..=80).map(|bits| 1 << bits).find(|&wait| it_holds(wait))?;
    let mut short = enough / 2;
    while enough - short > 1 {
        let middle = short + (enough - short) / 2;
        if it_holds(middle) { enough = middle } else { short = middle }
    }
    Some(enough)
}

impl Model {
    pub(crate) fn new(rule: Rule) -> Self {
        Self { rule, taken: Vec::new() }
    }

    pub(crate) fn has_capacity(&self, at: u128, cost: u64) -> bool {
        let cost = u128::from(cost);
        if cost == 0 {
            return true;
        }
        match self.rule {
            Rule::FixedWindow { limit, .. }
            | Rule::Calendar { limit, .. }
            | Rule::SlidingLog { limit, .. }
            | Rule::SlidingWindow { limit, .. } => self.used(at) + cost <= limit.into(),
            Rule::Counter { limit, .. } => self.used(at) + cost <= limit.into(),
            Rule::Bucket { kind, capacity, interval, .. } => {
                let [cost, capacity] = [cost, capacity.into()].map(|tokens| tokens * u128::from(interval));
                match kind {
                    Kind::Tokens | Kind::TokensAtIntervals => self.level(at) >= cost,
                    Kind::Meter => self.level(at) + cost <= capacity,
                    Kind::Queue => self.level(at) + cost - u128::from(interval) <= capacity,
                }
            }
        }
    }

    fn delay(&self, at: u128, cost: u64) -> u128 {
        match self.rule {
            Rule::Bucket { kind: Kind::Queue, amount, .. } if cost > 0 => self.level(at).div_ceil(amount.into()),
            _ => 0,
        }
    }

    /// Returns the largest cost for which there is capacity.
    pub(crate) fn remaining(&self, at: u128) -> u64 {
        let [mut fits, mut too_much] = [0, self.rule.capacity() + 1];
        while too_much - fits > 1 {
            let middle = fits + (too_much - fits) / 2;
            if self.has_capacity(at, middle) { fits = middle } else { too_much = middle }
        }
        fits
    }

    fn more_after(&self, at: u128) -> Option<u128> {
        let more = self.remaining(at) + 1;
        least(|wait| self.has_capacity(at + wait, more))
    }

    pub(crate) fn reset_after(&self, at: u128) -> u128 {
        least(|wait| self.is_as_new(at + wait)).expect("all is forgotten at last")
    }

    fn is_as_new(&self, at: u128) -> bool {
        match self.rule {
            Rule::Counter { period, .. } => {
                self.sum(|then| then / u128::from(period) + 1 >= at / u128::from(period)) == 0
            }
            Rule::FixedWindow { .. } | Rule::Calendar { .. } | Rule::SlidingLog { .. } | Rule::SlidingWindow { .. } => {
                self.used(at) == 0
            }
            Rule::Bucket { kind: Kind::Meter | Kind::Queue, .. } => self.level(at) == 0,
            Rule::Bucket { capacity, interval, .. } => self.level(at) == u128::from(capacity) * u128::from(interval),
        }
    }

    fn sum(&self, counts: impl Fn(u128) -> bool) -> u128 {
        self.taken.iter().filter(|(then, _)| counts(*then)).map(|(_, cost)| cost).sum()
    }

    /// Returns the tokens that count in a window.
    fn used(&self, at: u128) -> u128 {
        match self.rule {
            Rule::FixedWindow { period, .. } => {
                let window = |then| then / u128::from(period);
                self.sum(|then| window(then) == window(at))
            }
            Rule::Calendar { dates, .. } => {
                let window = dates.start(at);
                self.sum(|then| dates.start(then) == window)
            }
            Rule::SlidingLog { period, .. } => self.sum(|then| at - then < period.into()),
            Rule::SlidingWindow { width, buckets, .. } => {
                let bucket = |then| then / u128::from(width);
                self.sum(|then| bucket(at) - bucket(then) < buckets.into())
            }
            Rule::Counter { period, rounding, .. } => {
                let period = u128::from(period);
                let window = |then| then / period;
                let before = self.sum(|then| window(then) + 1 == window(at)) * (period - at % period);
                let before = match rounding {
                    Rounding::Up => before.div_ceil(period),
                    Rounding::Down => before / period,
                };
                before + self.sum(|then| window(then) == window(at))
            }
            Rule::Bucket { .. } => unreachable!("a bucket has a level"),
        }
    }

    /// Returns the level of a bucket, or the backlog of a queue.
    fn level(&self, at: u128) -> u128 {
        let Rule::Bucket { kind, capacity, amount, interval } = self.rule else { unreachable!("a window counts") };
        let [capacity, amount, interval] = [capacity.into(), amount.into(), u128::from(interval)];
        let full = capacity * interval;
        let mut last = 0;
        let steps = self.taken.iter().copied().chain([(at, 0)]);
        match kind {
            Kind::Tokens => steps.fold(full, |level, (then, cost)| {
                let grown = level + amount * (then - last);
                last = then;
                grown.min(full) - cost * interval
            }),
            Kind::Meter => steps.fold(0, |level: u128, (then, cost)| {
                let leaked = amount * (then - last);
                last = then;
                level.saturating_sub(leaked) + cost * interval
            }),
            Kind::Queue => {
                let free =
                    self.taken.iter().fold(0, |free: u128, (then, cost)| free.max(then * amount) + cost * interval);
                free.saturating_sub(at * amount)
            }
            Kind::TokensAtIntervals => {
                let mut was_full = 0;
                steps.fold(capacity, |tokens, (then, cost)| {
                    let intervals = |until| (until - was_full) / interval;
                    let tokens = capacity.min(tokens + amount * (intervals(then) - intervals(last)));
                    last = then;
                    if tokens == capacity {
                        was_full = then;
                    }
                    tokens - cost
                }) * interval
            }
        }
    }
}
