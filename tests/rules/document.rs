//! The documentation of rules files in `src/guide/rules.md` is complete.

use std::fs;

use tower_ratelimit::key;
use tower_ratelimit::rules::{self, Extractors};

fn document() -> String {
    fs::read_to_string(support::repository("src/guide/rules.md")).unwrap()
}

/// Returns the blocks between ```` ```yaml ```` and ```` ``` ````.
fn examples(document: &str) -> Vec<&str> {
    let after = document.split("```yaml\n").skip(1);
    after.map(|rest| rest.split_once("```").unwrap().0).collect()
}

#[test]
fn every_example_loads() {
    let document = document();
    let examples = examples(&document);
    assert!(examples.len() >= 4, "only {} examples were found", examples.len());
    let extractors = Extractors::new().register("plan", key::header("x-plan")).register("auth_type", key::path());
    for example in examples {
        let limits = rules::from_yaml(example, &extractors);
        assert!(limits.is_ok_and(|limits| !limits.is_empty()), "{example}");
    }
}

/// Every known field is in a table.
#[test]
fn every_field_is_documented() {
    let document = document();
    // The error for an unknown field lists the known ones.
    let wrong = "domain: d\nzzzzzz: 1\ndescriptors:\n- { key: path, zzzzzz: 1 }\n- { key: path, rate_limit: { zzzzzz: 1 } }\n\
                 - { key: path, rate_limit: { unit: day, requests_per_unit: 1, penalty: { zzzzzz: 1 } } }";
    let error = rules::from_yaml(wrong, &Extractors::new()).unwrap_err().to_string();
    let lists = error.lines().filter(|line| line.contains("zzzzzz"));
    let known: Vec<&str> = lists.flat_map(|line| line.split('`').skip(3).step_by(2)).collect();
    assert!(known.len() >= 30, "{known:?}");
    for field in known {
        assert!(document.contains(&format!("| `{field}` |")), "{field} has no row");
    }
}
