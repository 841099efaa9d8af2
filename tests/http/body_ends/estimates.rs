//! Estimated costs, which are capped at the sizes of limits.

use tower::Layer;
use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, when};

use crate::service::{Hello, layer, per_day, with};
use support::answer::ask;

/// Returns a limit whose requests cost as much as their header `x-cost`.
fn limit(name: &str, tokens: u32) -> Limit {
    per_day(name, tokens).cost_by(|head| head.header("x-cost").unwrap().parse().unwrap())
}

/// Returns the status of a request with a cost, and the remaining tokens of each limit in the headers.
async fn visit(limits: &RateLimitLayer, cost: u64) -> (u16, Vec<i64>) {
    let answer = ask(&limits.layer(Hello::default()), with(&[("x-cost", &cost.to_string())])).await;
    (answer.status.as_u16(), answer.standings().iter().map(|limit| limit.get("r").unwrap()).collect())
}

#[tokio::test]
async fn an_estimate_is_capped_at_the_size_of_each_limit() {
    let limits = layer([limit("small", 10).settle_at_end(|_| None), limit("large", 100).settle_by(|_| None)]);
    assert_eq!(visit(&limits, u64::MAX).await, (200, vec![0, 0]));
    assert_eq!(visit(&limits, 1).await.0, 429);
    // Other costs are charged in full.
    let limits = layer([limit("small", 10).settle_at_end(|_| None), limit("large", 100)]);
    assert_eq!(visit(&limits, 11).await, (200, vec![0, 89]));
    assert_eq!(visit(&layer([limit("other", 10)]), 11).await.0, 429);
    assert_eq!(visit(&layer([limit("other", 10).count_if(|_| true)]), 11).await.0, 429);
    assert_eq!(visit(&layer([limit("other", 10).settle_by(|_| None).count_if(|_| true)]), 11).await.0, 429);
    assert_eq!(visit(&layer([limit("both", 10).settle_at_end(|_| None).count_if(|_| true)]), 11).await.0, 200);
}

#[tokio::test]
async fn an_estimate_may_use_overage() {
    let limits = layer([limit("soft", 10).soft(50).settle_at_end(|end| Some(end.bytes))]);
    assert_eq!(visit(&limits, 12).await.0, 200);
    let limits = layer([limit("soft", 10).soft(50).settle_at_end(|end| Some(end.bytes))]);
    assert_eq!(visit(&limits, 16).await.0, 200);
}

#[tokio::test]
async fn an_estimate_is_capped_at_the_size_for_its_request() {
    let pro = when::header("x-cost", "50");
    let limits = layer([limit("sizes", 10).size_when(pro, FixedWindow::per_day(40)).settle_at_end(|_| Some(0))]);
    assert_eq!(visit(&limits, 50).await, (200, vec![0]));
    assert_eq!(visit(&limits, 20).await, (200, vec![0]));
}

#[tokio::test]
async fn the_estimate_of_a_route_is_capped() {
    let limits = layer([per_day("bytes", 10).settle_at_end(|_| None)]);
    let service = limits.layer(limits.cost_by(|_| 50).layer(Hello::default()));
    let answer = ask(&service, with(&[])).await;
    assert_eq!((answer.status.as_u16(), answer.remaining()), (200, 0));
    assert_eq!(ask(&service, with(&[])).await.status, 429);
}
