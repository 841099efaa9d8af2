//! A slow implementation of the documentation of `Penalty`. It keeps all denials, and derives everything from them. The
//! rest of a decision comes from limits without penalties.

use std::time::Duration;

use tower_ratelimit::{Decision, Limiter, ManualClock, MemoryStore, Verdict};

use crate::penalties::random::{Setting, Spans};

/// The outcome of one limit: its wait or delay, its remaining tokens, when more and when all tokens are back, and
/// whether its key is locked out.
pub(crate) type Said = (Result<Duration, Option<Duration>>, u64, Option<Duration>, Duration, bool);

pub(crate) fn said(decision: &Decision) -> (bool, Option<Duration>, Vec<Said>) {
    let outcomes = decision.outcomes().iter().map(|outcome| {
        let verdict = match outcome.verdict() {
            Verdict::Allow { delay } => Ok(delay),
            Verdict::Deny { retry_after } => Err(retry_after),
        };
        let is_locked_out = outcome.is_locked_out();
        (verdict, outcome.remaining(), outcome.more_after(), outcome.reset_after(), is_locked_out)
    });
    (decision.is_allowed(), decision.retry_after(), outcomes.collect())
}

/// One key under one limit.
struct Model {
    limiter: Limiter,
    penalty: Option<Spans>,
    /// The instants of the limit's denials.
    denials: Vec<Duration>,
}

/// The result of all denials.
#[derive(Default)]
struct Replay {
    /// The lockouts: the start of each, its end, the end of its level, and the level.
    refusals: Vec<(Duration, Duration, Duration, u32)>,
    /// The strikes in the last span.
    strikes: Vec<Duration>,
}

impl Model {
    fn replay(&self) -> Replay {
        let mut replay = Replay::default();
        let Some(Spans { denials, within, first, longest, kept }) = self.penalty else { return replay };
        for &at in &self.denials {
            if replay.refusals.iter().any(|&(began, ends, ..)| (began..ends).contains(&at)) {
                continue;
            }
            if replay.strikes.first().is_some_and(|&began| at >= began + within) {
                replay.strikes.clear();
            }
            replay.strikes.push(at);
            if replay.strikes.len() == denials as usize {
                let last = replay.refusals.last().filter(|&&(_, _, known, _)| at < known);
                let level = last.map_or(1, |&(.., level)| level + 1);
                let span = (1..level).fold(first, |span, _| (2 * span).min(longest)).min(longest);
                let ends = at + span;
                replay.refusals.push((at, ends, ends + kept.unwrap_or(span), level));
                replay.strikes.clear();
            }
        }
        replay
    }

    /// Returns the rest of the lockout.
    fn left(&self, now: Duration) -> Option<Duration> {
        let (_, ends, ..) = *self.replay().refusals.last()?;
        ends.checked_sub(now).filter(|left| !left.is_zero())
    }

    fn say(&self, now: Duration, cost: u64) -> Said {
        let (mut verdict, mut remaining, mut more_after, mut reset_after, _) =
            said(&now_of(self.limiter.peek("key", cost))).2[0];
        let Some(spans) = self.penalty else { return (verdict, remaining, more_after, reset_after, false) };
        let replay = self.replay();
        let left = self.left(now);
        if let Some(left) = left {
            if cost > 0 {
                verdict = Err(match verdict {
                    Ok(_) => Some(left),
                    Err(wait) => wait.map(|wait| wait.max(left)),
                });
            }
            more_after = if remaining > 0 { Some(left) } else { more_after.map(|after| after.max(left)) };
            remaining = 0;
        }
        let counted = replay.strikes.first().map(|&began| began + spans.within);
        let known = replay.refusals.last().map(|&(_, _, known, _)| known);
        for until in counted.into_iter().chain(known) {
            reset_after = reset_after.max(until.saturating_sub(now));
        }
        (verdict, remaining, more_after, reset_after, left.is_some())
    }
}

pub(crate) struct Oracle {
    clock: ManualClock,
    models: Vec<Model>,
}

fn now_of(answer: tower_ratelimit::store::StoreFuture<Decision>) -> Decision {
    answer.into_ready().expect("memory answers at once").unwrap()
}

impl Oracle {
    pub(crate) fn new(setting: &Setting, clock: &ManualClock) -> Self {
        let model = |index: usize| {
            let limiter =
                Limiter::builder([setting.bare(index)]).store(MemoryStore::new().clock(clock.clone())).build();
            Model { limiter, penalty: setting.limits[index].penalty, denials: Vec::new() }
        };
        Self { clock: clock.clone(), models: (0..setting.limits.len()).map(model).collect() }
    }

    pub(crate) fn decide(&mut self, costs: &[u64], takes: bool) -> (bool, Option<Duration>, Vec<Said>) {
        let now = Duration::from_micros(tower_ratelimit::Clock::now(&self.clock).as_micros());
        let charges = || self.models.iter().zip(costs);
        let is_allowed = charges().all(|(model, &cost)| model.say(now, cost).0.is_ok());
        let delays: Vec<_> = charges().map(|(model, &cost)| model.say(now, cost).0).collect();
        for (model, &cost) in self.models.iter_mut().zip(costs).filter(|(_, cost)| takes && **cost > 0) {
            if is_allowed {
                assert!(now_of(model.limiter.acquire("key", cost)).is_allowed());
            } else if model.penalty.is_some() && !now_of(model.limiter.peek("key", cost)).is_allowed() {
                model.denials.push(now);
            }
        }
        let after = self.models.iter().zip(costs).zip(delays).map(|((model, &cost), delay)| {
            let (verdict, remaining, more_after, reset_after, is_locked_out) = model.say(now, cost);
            // Limits that have already allowed are not asked again.
            let verdict = if delay.is_ok() { delay } else { verdict };
            (verdict, remaining, more_after, reset_after, is_locked_out)
        });
        let after: Vec<Said> = after.collect();
        let waits: Vec<Option<Duration>> = after.iter().filter_map(|said| said.0.err()).collect();
        let retry_after = if is_allowed { None } else { waits.into_iter().collect::<Option<Vec<_>>>() };
        (is_allowed, retry_after.and_then(|waits| waits.into_iter().max()), after)
    }

    pub(crate) fn reset(&mut self) {
        for model in &mut self.models {
            model.denials.clear();
            model.limiter.reset("key").into_ready().unwrap().unwrap();
        }
    }
}
