//! The memory store agrees with the oracle in every field, to the microsecond and the token.

use proptest::prelude::*;

use crate::oracle::Answer;
use crate::rule::{any_rule, small_rule};
use crate::subject::Subject;
use crate::trace::{Trace, traces};

fn agrees(trace: &Trace) -> Result<(), TestCaseError> {
    let subject = Subject::new(&trace.rules);
    for step in trace.run() {
        let decision = subject.set(step.at).acquire_costs(&step.costs);
        prop_assert_eq!(Answer::from(&decision), step.answer.clone(), "at {}, costs {:?}", step.at, step.costs);
        prop_assert_eq!(decision.at().as_micros(), step.at);
        for (index, outcome) in decision.outcomes().iter().enumerate() {
            prop_assert_eq!((outcome.limit(), outcome.cost()), (index, step.costs[index]));
        }
        // A peek reports the same remaining tokens as the decision.
        let levels = subject.levels();
        for (level, limit) in levels.iter().zip(&step.answer.limits) {
            prop_assert_eq!(level.remaining, limit.remaining);
            prop_assert_eq!(level.more_after, limit.more_after);
            prop_assert_eq!(level.reset_after, limit.reset_after);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(support::cases(400))]

    #[test]
    fn small_limits_agree_with_the_oracle(trace in traces(small_rule(), 1, 30)) {
        agrees(&trace)?;
    }

    #[test]
    fn limits_of_any_size_agree_with_the_oracle(trace in traces(any_rule(), 1, 20)) {
        agrees(&trace)?;
    }

    #[test]
    fn several_small_limits_agree_with_the_oracle(trace in traces(small_rule(), 3, 20)) {
        agrees(&trace)?;
    }

    #[test]
    fn several_limits_of_any_size_agree_with_the_oracle(trace in traces(any_rule(), 3, 12)) {
        agrees(&trace)?;
    }
}
