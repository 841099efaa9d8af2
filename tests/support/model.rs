//! A slow implementation of the decision rules in the guide's page on semantics, and of the documentation of `Penalty`.
//!
//! A model keeps the allowed requests and the denials of a key, or the level of a bucket with the marks of its charges,
//! and applies the definitions to them. It finds waits by searching for the instant from which the answer is another.
//! Spans are in µs.

use tower_ratelimit::{Decision, Rounding, Verdict};

use crate::rule::{Kind, Rule};

/// One key under one limit.
#[derive(Clone, Debug)]
pub struct Model {
    pub rule: Rule,
    pub penalty: Option<Spans>,
    /// The times and costs of allowed requests, in order, less what was refunded.
    pub charges: Vec<(u128, u128)>,
    /// The times of denials.
    denials: Vec<u128>,
    level: Level,
}

/// The settings of a penalty.
#[derive(Clone, Copy, Debug)]
pub struct Spans {
    pub denials: u32,
    pub within: u128,
    pub first: u128,
    pub longest: u128,
    pub kept: Option<u128>,
}

/// The level that the last charge of a bucket has left, in units of 1/`interval` of a token, or in tokens if these drain
/// at intervals.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    units: i128,
    /// The instant of the last charge, or the end of its interval.
    at: i128,
    /// The amount at which it was charged.
    amount: i128,
    expires_at: i128,
}

/// A charge: its position among the charges of its model, and the level after it.
#[derive(Clone, Copy, Debug)]
pub struct Charged {
    pub index: usize,
    mark: Level,
}

impl Charged {
    /// Returns whether another charge drains at the same instant.
    pub fn drains_with(&self, other: &Self) -> bool {
        self.mark.expires_at == other.mark.expires_at
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub allowed: bool,
    pub retry_after: Option<u128>,
    pub delay: u128,
    pub limits: Vec<ExpectedOutcome>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ExpectedOutcome {
    pub verdict: Result<Delay, Wait>,
    pub remaining: u64,
    pub more_after: Option<u128>,
    pub reset_after: u128,
    pub is_locked_out: bool,
}

type Delay = u128;
type Wait = Option<u128>;

impl From<&Decision> for Answer {
    fn from(decision: &Decision) -> Self {
        let limits = decision.outcomes().iter().map(|outcome| ExpectedOutcome {
            verdict: match outcome.verdict() {
                Verdict::Allow { delay } => Ok(delay.as_micros()),
                Verdict::Deny { retry_after } => Err(retry_after.map(|wait| wait.as_micros())),
            },
            remaining: outcome.remaining(),
            more_after: outcome.more_after().map(|wait| wait.as_micros()),
            reset_after: outcome.reset_after().as_micros(),
            is_locked_out: outcome.is_locked_out(),
        });
        Self {
            allowed: decision.is_allowed(),
            retry_after: decision.retry_after().map(|wait| wait.as_micros()),
            delay: decision.delay().as_micros(),
            limits: limits.collect(),
        }
    }
}

/// Decides one request by all models. If it `takes`, charges it if all allow it, and notes the denials otherwise.
pub fn decide(models: &mut [Model], at: u64, costs: &[u64], takes: bool) -> Answer {
    let verdicts: Vec<_> = models.iter().zip(costs).map(|(model, &cost)| model.verdict(at.into(), cost)).collect();
    let allowed = verdicts.iter().all(Result::is_ok);
    for (model, &cost) in models.iter_mut().zip(costs).filter(|(_, cost)| takes && **cost > 0) {
        if allowed {
            model.charge(at, cost);
        } else if !model.has_capacity(at.into(), cost) {
            model.denials.push(at.into());
        }
    }
    // A denial may have begun a lockout.
    let outcome = |((model, &cost), verdict): ((&Model, _), Result<_, _>)| ExpectedOutcome {
        verdict: verdict.or_else(|_| model.verdict(at.into(), cost)),
        ..model.outcome(at.into())
    };
    let limits: Vec<_> = models.iter().zip(costs).zip(verdicts).map(outcome).collect();
    let waits = || limits.iter().filter_map(|limit| limit.verdict.err()).collect::<Option<Vec<_>>>();
    let longest = limits.iter().filter_map(|limit| limit.verdict.ok()).max().unwrap_or(0);
    Answer {
        allowed,
        retry_after: if allowed { None } else { waits().and_then(|waits| waits.into_iter().max()) },
        delay: if allowed { longest } else { 0 },
        limits,
    }
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
    pub fn new(rule: Rule) -> Self {
        Self { rule, penalty: None, charges: Vec::new(), denials: Vec::new(), level: Level::default() }
    }

    pub fn with_penalty(self, penalty: Option<Spans>) -> Self {
        Self { penalty, ..self }
    }

    pub fn has_capacity(&self, at: u128, cost: u64) -> bool {
        cost == 0 || cost <= self.remaining(at)
    }

    /// Returns the largest cost for which there is capacity, regardless of a lockout.
    pub fn remaining(&self, at: u128) -> u64 {
        let used = match self.rule {
            Rule::Bucket { .. } => {
                let (units, token) = (self.units(&self.level, at as i128), self.token());
                (units.div_euclid(token) + i128::from(units.rem_euclid(token) > 0)) as u128
            }
            _ => self.used(at),
        };
        u128::from(self.rule.capacity()).saturating_sub(used) as u64
    }

    pub fn reset_after(&self, at: u128) -> u128 {
        least(|wait| self.is_unused(at + wait)).expect("everything expires")
    }

    /// Charges a request, whether or not it is allowed.
    pub fn charge(&mut self, at: u64, cost: u64) -> Charged {
        self.charges.push((at.into(), cost.into()));
        if let Rule::Bucket { kind, amount, .. } = self.rule {
            let units = self.units(&self.level, at.into());
            let begins = match kind {
                Kind::TokensAtIntervals if units == 0 => i128::from(at) + self.interval(),
                Kind::TokensAtIntervals => self.level.at + self.refills(&self.level, at.into()) * self.interval(),
                _ => at.into(),
            };
            self.set_level(units + i128::from(cost) * self.token(), begins, amount.into());
        }
        Charged { index: self.charges.len() - 1, mark: self.level }
    }

    /// Refunds `cost` tokens of a charge. A bucket takes what has not drained of them off the level that the last charge
    /// has left, and a queue only refunds its last place.
    pub fn refund(&mut self, charged: &Charged, at: u64, cost: u64) {
        let (at, level, mark) = (i128::from(at), self.level, charged.mark);
        let mut back = i128::from(cost);
        if let Rule::Bucket { kind, amount, .. } = self.rule {
            let free_at = |level: Level| (level.amount, level.units + level.at * level.amount);
            back *= self.token();
            back = match kind {
                Kind::Tokens | Kind::Meter => back.min(self.units(&mark, at)),
                Kind::TokensAtIntervals if mark.expires_at <= at => 0,
                Kind::TokensAtIntervals => (back - self.refills(&mark, at) * i128::from(amount)).max(0),
                Kind::Queue { .. } if free_at(level) == free_at(mark) => back,
                Kind::Queue { .. } => 0,
            };
            if back > 0 && self.units(&level, at) <= back {
                self.level.units = 0;
            } else if back > 0 {
                self.set_level(level.units - back, level.at, level.amount);
            }
            if matches!(kind, Kind::Queue { .. }) && back == 0 {
                return;
            }
        }
        let left = &mut self.charges[charged.index].1;
        *left = left.saturating_sub(cost.into());
    }

    fn verdict(&self, at: u128, cost: u64) -> Result<Delay, Wait> {
        let lockout = self.lockout(at).filter(|_| cost > 0);
        match (self.has_capacity(at, cost), lockout) {
            (true, None) => Ok(self.delay(at, cost)),
            (true, Some(left)) => Err(Some(left)),
            (false, _) => {
                Err(least(|wait| self.has_capacity(at + wait, cost)).map(|wait| wait.max(lockout.unwrap_or(0))))
            }
        }
    }

    /// Returns the outcome of a request without a cost.
    fn outcome(&self, at: u128) -> ExpectedOutcome {
        let (remaining, lockout) = (self.remaining(at), self.lockout(at));
        let more_after = match lockout {
            Some(left) if remaining > 0 => Some(left),
            _ => least(|wait| self.has_capacity(at + wait, remaining + 1)).map(|after| after.max(lockout.unwrap_or(0))),
        };
        ExpectedOutcome {
            verdict: Ok(0),
            remaining: if lockout.is_some() { 0 } else { remaining },
            more_after,
            reset_after: self.reset_after(at).max(self.replay().expires_at.saturating_sub(at)),
            is_locked_out: lockout.is_some(),
        }
    }

    fn delay(&self, at: u128, cost: u64) -> u128 {
        match self.rule {
            Rule::Bucket { kind: Kind::Queue { burst }, amount, .. } if cost > 0 => {
                let behind = self.units(&self.level, at as i128) - i128::from(burst) * self.token();
                (behind.max(0) as u128).div_ceil(amount.into())
            }
            _ => 0,
        }
    }

    fn is_unused(&self, at: u128) -> bool {
        match self.rule {
            Rule::Counter { period, .. } => {
                self.sum(|then| then / u128::from(period) + 1 >= at / u128::from(period)) == 0
            }
            Rule::Bucket { .. } => self.units(&self.level, at as i128) == 0,
            _ => self.used(at) == 0,
        }
    }

    fn sum(&self, counts: impl Fn(u128) -> bool) -> u128 {
        self.charges.iter().filter(|(then, _)| counts(*then)).map(|(_, cost)| cost).sum()
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
            Rule::Counter { period, rounding, weight, .. } => {
                let period = u128::from(period);
                let window = |then| then / period;
                let before = self.sum(|then| window(then) + 1 == window(at)) * (period - at % period);
                let before = before * u128::from(weight);
                let before = match rounding {
                    Rounding::Up => before.div_ceil(period * 100),
                    Rounding::Down => before / (period * 100),
                };
                before + self.sum(|then| window(then) == window(at))
            }
            Rule::Bucket { .. } => unreachable!("a bucket has a level"),
        }
    }
}

/// Buckets.
impl Model {
    fn set_level(&mut self, units: i128, at: i128, amount: i128) {
        let drains = (units + amount - 1) / amount;
        let expires_at = match self.rule {
            Rule::Bucket { kind: Kind::TokensAtIntervals, .. } => at + (drains - 1) * self.interval(),
            _ => at + drains,
        };
        self.level = Level { units, at, amount, expires_at };
    }

    /// Returns the units that have not drained.
    fn units(&self, level: &Level, now: i128) -> i128 {
        let Rule::Bucket { kind, amount, .. } = self.rule else { unreachable!("a window counts") };
        let drained = match kind {
            _ if level.expires_at <= now => level.units,
            Kind::TokensAtIntervals => self.refills(level, now) * i128::from(amount),
            _ => (now - level.at) * i128::from(amount),
        };
        (level.units - drained).max(0)
    }

    fn refills(&self, level: &Level, now: i128) -> i128 {
        ((now - level.at).div_euclid(self.interval()) + 1).max(0)
    }

    fn interval(&self) -> i128 {
        self.rule.unit().into()
    }

    /// Returns the units of a token.
    fn token(&self) -> i128 {
        match self.rule {
            Rule::Bucket { kind: Kind::TokensAtIntervals, .. } => 1,
            _ => self.interval(),
        }
    }
}

/// The result of all denials.
#[derive(Default)]
struct Replay {
    /// The lockouts: the start of each, its end, the end of its level, and the level.
    lockouts: Vec<(u128, u128, u128, u32)>,
    /// The strikes in the last span.
    strikes: Vec<u128>,
    /// When the strikes and the level have expired.
    expires_at: u128,
}

/// Penalties.
impl Model {
    fn replay(&self) -> Replay {
        let mut replay = Replay::default();
        let Some(Spans { denials, within, first, longest, kept }) = self.penalty else { return replay };
        for &at in &self.denials {
            if replay.lockouts.iter().any(|&(began, ends, ..)| (began..ends).contains(&at)) {
                continue;
            }
            if replay.strikes.first().is_some_and(|&began| at >= began + within) {
                replay.strikes.clear();
            }
            replay.strikes.push(at);
            if replay.strikes.len() == denials as usize {
                let last = replay.lockouts.last().filter(|&&(_, _, known, _)| at < known);
                let level = last.map_or(1, |&(.., level)| level + 1);
                let span = (1..level).fold(first, |span, _| (2 * span).min(longest)).min(longest);
                let ends = at + span;
                replay.lockouts.push((at, ends, ends + kept.unwrap_or(span), level));
                replay.strikes.clear();
            }
        }
        let counted = replay.strikes.first().map_or(0, |&began| began + within);
        replay.expires_at = replay.lockouts.last().map_or(0, |&(_, _, known, _)| known).max(counted);
        replay
    }

    /// Returns the rest of the lockout.
    fn lockout(&self, at: u128) -> Option<u128> {
        let (_, ends, ..) = *self.replay().lockouts.last()?;
        ends.checked_sub(at).filter(|left| *left > 0)
    }
}
