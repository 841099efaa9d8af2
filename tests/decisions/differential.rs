//! The memory store agrees with the model in every field, to the microsecond and the token.

use proptest::prelude::*;

use crate::rule::every_rule;
use crate::subject::Subject;
use crate::trace::{Trace, traces};
use support::model::{Answer, ExpectedOutcome};

fn agrees(trace: &Trace) -> Result<(), TestCaseError> {
    let subject = Subject::new(&trace.rules);
    for step in trace.run() {
        let decision = subject.set(step.at).acquire_costs(&step.costs);
        prop_assert_eq!(Answer::from(&decision), step.answer.clone(), "at {}, costs {:?}", step.at, step.costs);
        prop_assert_eq!(decision.at().as_micros(), step.at);
        for (index, outcome) in decision.outcomes().iter().enumerate() {
            prop_assert_eq!((outcome.limit(), outcome.cost()), (index, step.costs[index]));
        }
        // A peek without a cost reports the same levels as the decision.
        let unasked = |limit| ExpectedOutcome { verdict: Ok(0), ..limit };
        prop_assert_eq!(subject.levels(), step.answer.limits.into_iter().map(unasked).collect::<Vec<_>>());
    }
    Ok(())
}

proptest! {
    #![proptest_config(support::cases(800))]

    #[test]
    fn limits_agree_with_the_model(trace in traces(every_rule(), 1, 30)) {
        agrees(&trace)?;
    }

    #[test]
    fn several_limits_agree_with_the_model(trace in traces(every_rule(), 3, 20)) {
        agrees(&trace)?;
    }
}
