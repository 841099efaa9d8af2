//! Random requests that go where it hurts: to the edges, which the last answer tells.

use proptest::prelude::*;
use tower_ratelimit::Timestamp;

use crate::oracle::{Answer, Model, decide};
use crate::rule::Rule;

/// When a request comes, after the one before.
#[derive(Clone, Copy, Debug)]
enum Gap {
    SameInstant,
    Micros(u64),
    /// Thousandths of the limit's span.
    OfSpan(u64),
    /// To the next edge of a window, bucket or interval, and so many µs further.
    ToEdge(i8),
    /// As long as the last answer said, and so many µs more.
    Retry(i8),
    More(i8),
    Reset(i8),
}

/// What it asks for.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Nothing,
    One,
    /// What remained, and so much more.
    Left(u64),
    /// The capacity, and so much more.
    All(u64),
    /// Thousandths of the capacity.
    OfAll(u64),
    Huge,
}

#[derive(Clone, Debug)]
pub(crate) struct Trace {
    pub(crate) rules: Vec<Rule>,
    start: u64,
    steps: Vec<(Gap, [Ask; 3], usize)>,
}

/// One request of a trace, and what the models say of it.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) at: u64,
    pub(crate) costs: Vec<u64>,
    pub(crate) answer: Answer,
}

/// Up to `steps` requests of one key, that meet 1 to `limits` of the rules.
pub(crate) fn traces(rule: impl Strategy<Value = Rule>, limits: usize, steps: usize) -> impl Strategy<Value = Trace> {
    let gap = prop_oneof![
        3 => Just(Gap::SameInstant),
        2 => (1u64..=3).prop_map(Gap::Micros),
        3 => (0u64..=2_500).prop_map(Gap::OfSpan),
        3 => (-1i8..=1).prop_map(Gap::ToEdge),
        3 => (-1i8..=0).prop_map(Gap::Retry),
        2 => (-1i8..=0).prop_map(Gap::More),
        1 => (-1i8..=0).prop_map(Gap::Reset),
    ];
    let ask = prop_oneof![
        1 => Just(Ask::Nothing),
        4 => Just(Ask::One),
        4 => (0u64..=1).prop_map(Ask::Left),
        1 => (0u64..=1).prop_map(Ask::All),
        4 => (0u64..=1_000).prop_map(Ask::OfAll),
        1 => Just(Ask::Huge),
    ];
    // The epoch, a usual day, the year 2100, and the last instant that there is, or close by.
    let start = prop_oneof![
        Just(0),
        0u64..100,
        Just(1_767_225_600_000_000),
        4_102_444_800_000_000u64..=4_102_444_900_000_000,
        Just(Timestamp::MAX.as_micros() - 1_000),
    ];
    let rules = prop::collection::vec(rule, 1..=limits);
    let steps = prop::collection::vec((gap, [ask.clone(), ask.clone(), ask], 0usize..3), 1..=steps);
    (rules, start, steps).prop_map(|(rules, start, steps)| Trace { rules, start, steps })
}

impl Trace {
    /// The same steps, made for other limits and begun at another instant.
    pub(crate) fn against(&self, rules: &[Rule], start: u64) -> Self {
        Self { rules: rules.to_vec(), start, steps: self.steps.clone() }
    }

    /// The requests, one after the other, each put together from what was said of the last.
    pub(crate) fn run(&self) -> Vec<Step> {
        let mut models: Vec<_> = self.rules.iter().copied().map(Model::new).collect();
        let mut at = self.start;
        let mut last: Option<Answer> = None;
        let mut run = Vec::new();
        for &(gap, asks, focus) in &self.steps {
            let focus = focus % models.len();
            at = gap.after(at, self.rules[focus], last.as_ref(), focus);
            let costs = models.iter().zip(asks).map(|(model, ask)| ask.of(model, at)).collect::<Vec<_>>();
            let answer = decide(&mut models, at, &costs);
            last = Some(answer.clone());
            run.push(Step { at, costs, answer });
        }
        run
    }
}

impl Gap {
    fn after(self, at: u64, rule: Rule, last: Option<&Answer>, focus: usize) -> u64 {
        let limit = last.map(|last| &last.limits[focus]);
        let unit = rule.unit();
        let (gap, more) = match self {
            Self::SameInstant => (0, 0),
            Self::Micros(micros) => (micros.into(), 0),
            Self::OfSpan(thousandths) => (rule.span() * u128::from(thousandths) / 1_000, 0),
            Self::ToEdge(more) => (u128::from(unit - at % unit), more),
            Self::Retry(more) => (last.and_then(|last| last.retry_after).unwrap_or(0), more),
            Self::More(more) => (limit.and_then(|limit| limit.more_after).unwrap_or(0), more),
            Self::Reset(more) => (limit.map_or(0, |limit| limit.reset_after), more),
        };
        let then = (u128::from(at) + gap).saturating_add_signed(more.into());
        // What would be after the end of time is now.
        u64::try_from(then).ok().filter(|then| (at..=Timestamp::MAX.as_micros()).contains(then)).unwrap_or(at)
    }
}

impl Ask {
    fn of(self, model: &Model, at: u64) -> u64 {
        let capacity = model.rule.capacity();
        match self {
            Self::Nothing => 0,
            Self::One => 1,
            Self::Left(more) => model.remaining(at.into()) + more,
            Self::All(more) => capacity + more,
            Self::OfAll(thousandths) => capacity * thousandths / 1_000,
            Self::Huge => u64::MAX,
        }
    }
}
