//! The policy of a rules file for requests that the store does not decide.

use http::{Request, StatusCode};
use support::faulty_store::{FaultyStore, Mode};

use crate::service::Limited;

/// Returns the statuses of ten requests under a limit of 8 per day with these fields.
fn answers(fields: &str) -> Vec<u16> {
    let limit = format!("rate_limit: {{ unit: day, requests_per_unit: 8, {fields} }}");
    let limited = Limited::by(&format!("domain: shop\ndescriptors:\n- {{ key: method, {limit} }}"))
        .store(FaultyStore::new(Mode::FailsAtOnce));
    let status = |_| limited.send(Request::get("/").body(()).unwrap()).status;
    (0..10).map(status).map(|status: StatusCode| status.as_u16()).collect()
}

#[test]
fn a_limit_has_its_own_policy_for_store_errors() {
    assert_eq!(answers(""), [503; 10]);
    assert_eq!(answers("on_store_error: reject"), [503; 10]);
    assert_eq!(answers("on_store_error: allow"), [200; 10]);
    let first = |allowed: usize| -> Vec<u16> { (0..10).map(|at| if at < allowed { 200 } else { 429 }).collect() };
    assert_eq!(answers("on_store_error: decide_locally"), first(8));
    assert_eq!(answers("on_store_error: decide_locally, nodes: 4"), first(2));
}
