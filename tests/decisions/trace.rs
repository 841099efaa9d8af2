//! Random requests close to edge cases, which follow from the last decision.

use proptest::prelude::*;
use tower_ratelimit::Timestamp;

use support::model::{Answer, Model, decide};
use support::rule::Rule;

/// The time of a request, relative to the previous one.
#[derive(Clone, Copy, Debug)]
enum Gap {
    SameInstant,
    Micros(u64),
    /// This many thousandths of the limit's span later.
    OfSpan(u64),
    /// This many µs after the next edge of a window, bucket or interval.
    ToEdge(i8),
    /// This many µs after the wait of the last decision.
    Retry(i8),
    More(i8),
    Reset(i8),
}

/// The cost of a request.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Nothing,
    One,
    /// This many tokens more than the remaining ones.
    Left(u64),
    /// This many tokens more than the capacity.
    All(u64),
    /// This many thousandths of the capacity.
    OfAll(u64),
    Huge,
}

#[derive(Clone, Debug)]
pub(crate) struct Trace {
    pub(crate) rules: Vec<Rule>,
    start: u64,
    steps: Vec<(Gap, [Ask; 3], usize)>,
}

/// One request of a trace, with the decision of the models.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) at: u64,
    pub(crate) costs: Vec<u64>,
    pub(crate) answer: Answer,
}

/// Returns up to `steps` requests of one key under 1 to `limits` of the rules.
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
    // Near the epoch, in 2026, near the year 2100, or near the last instant.
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
    /// Returns the same steps for other limits and from another instant.
    pub(crate) fn against(&self, rules: &[Rule], start: u64) -> Self {
        Self { rules: rules.to_vec(), start, steps: self.steps.clone() }
    }

    /// Returns the requests. Each depends on the decision about the previous one.
    pub(crate) fn run(&self) -> Vec<Step> {
        let mut models: Vec<_> = self.rules.iter().copied().map(Model::new).collect();
        let mut at = self.start;
        let mut last: Option<Answer> = None;
        let mut run = Vec::new();
        for &(gap, asks, focus) in &self.steps {
            let focus = focus % models.len();
            at = gap.after(at, self.rules[focus], last.as_ref(), focus);
            let costs = models.iter().zip(asks).map(|(model, ask)| ask.of(model, at)).collect::<Vec<_>>();
            let answer = decide(&mut models, at, &costs, true);
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
        // An instant after the last one becomes the current one.
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
