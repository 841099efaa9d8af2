//! Soft limits.

use std::time::Duration;

use support::calls::{Calls, Now};
use support::rule::{Rule, each};
use support::split_mix::Random;
use support::store_fixture::{StoreFixture, on_both_stores};
use support::time::{DAY, MICRO};
use tower_ratelimit::{FixedWindow, Limit, Limiter, Verdict};

use crate::thresholds::{app, layer, send, status};

on_both_stores!(
    every_algorithm_allows_its_overage_as_defined,
    clients_and_observers_see_overage,
    a_route_may_cost_as_much_as_limit_and_overage,
);

/// Returns a limit of each algorithm, with `tokens` at once and 10 per 10 ms.
fn all(tokens: u32) -> impl Iterator<Item = Rule> {
    let rules = each(tokens, 10_000).into_iter().filter(|rule| !matches!(rule, Rule::Calendar { .. }));
    rules.map(move |rule| match rule {
        Rule::Bucket { kind, interval, .. } => Rule::Bucket { kind, capacity: tokens, amount: 10, interval },
        rule => rule,
    })
}

/// By definition, 10 and 25 % of it, rounded down, are 12. Decisions are those of a limit of 12, but the remaining
/// tokens count from 10, and requests that leave less than 2 of 12 use overage.
async fn every_algorithm_allows_its_overage_as_defined(fixture: StoreFixture) {
    let steps = if fixture.is_memory { 3_000 } else { 250 };
    for (index, (ten, twelve)) in all(10).zip(all(12)).enumerate() {
        let soft = fixture.limiter(Limit::new(format!("soft {index}"), ten.algorithm()).soft(25));
        let hard = fixture.limiter(Limit::new(format!("hard {index}"), twelve.algorithm()));
        let mut random = Random(1);
        let mut below = |most| random.below(most);
        let (mut flagged, mut denied) = (0, 0);
        for step in 0..steps {
            let span = [0, 0, below(3), below(1_000), below(4_000), below(30_000)][below(6) as usize];
            fixture.advance(Duration::from_micros(span));
            let cost = [0, 1, 1, 2, 3, below(15)][below(6) as usize];
            let [is, expected] = [&soft, &hard].map(|limiter| limiter.acquire("key", cost));
            let (is, expected) = (is.await.unwrap(), expected.await.unwrap());
            let context = format!("{ten:?} step {step} cost {cost}: {is:?} {expected:?}");
            assert_eq!(is.verdict(), expected.verdict(), "{context}");
            let [one, other] = [&is, &expected].map(|decision| &decision.outcomes()[0]);
            assert_eq!(one.remaining(), other.remaining().saturating_sub(2), "{context}");
            assert_eq!(one.reset_after(), other.reset_after(), "{context}");
            let over = is.is_allowed() && cost > 0 && other.remaining() < 2;
            assert_eq!(one.uses_overage(), over, "{context}");
            flagged += usize::from(over);
            denied += usize::from(!is.is_allowed());

            // Returns the shortest wait after which more tokens remain.
            if let Some(more) = one.more_after().filter(|_| step % 5 == 0) {
                fixture.advance(more - MICRO);
                assert_eq!(soft.left("key").await, [one.remaining()], "{context}");
                fixture.advance(MICRO);
                assert!(soft.left("key").await[0] > one.remaining(), "{context}");
            }
            // Refunded tokens are unused.
            if step % 7 == 0 {
                for (limiter, decision) in [(&soft, is), (&hard, expected)] {
                    limiter.refund(decision.into_receipt()).await.unwrap();
                }
            }
        }
        assert!(flagged > steps / 50 && denied > steps / 50, "{ten:?}: {flagged} flagged, {denied} denied");
    }
}

async fn clients_and_observers_see_overage(fixture: StoreFixture) {
    let limits =
        [Limit::new("daily", FixedWindow::new(2, DAY)).soft(100), Limit::new("all", FixedWindow::new(100, DAY))];
    let (layer, events) = layer(&fixture, limits);
    let exposed: Vec<_> = layer.clone().build().exposed_headers();
    assert!(exposed.iter().any(|name| name == "ratelimit-overage"), "{exposed:?}");
    let app = app(layer);
    let over = Some("\"daily\"");
    for expected in [(200, 1, None), (200, 0, None), (200, 0, over), (200, 0, over), (429, 0, None)] {
        let answer = send(&app, "/", "").await;
        let overage = answer.header("ratelimit-overage");
        assert_eq!((answer.status.as_u16(), answer.remaining_of("daily"), overage), expected);
        assert!(answer.header("ratelimit-policy").unwrap().starts_with("\"daily\";q=2;w=86400"));
    }
    assert_eq!(events.take(), ["over daily 0", "over daily 0"]);
}

/// A route whose cost exceeds the limit without overage is charged the difference.
async fn a_route_may_cost_as_much_as_limit_and_overage(fixture: StoreFixture) {
    let (layer, events) = layer(&fixture, Limit::new("daily", FixedWindow::new(2, DAY)).soft(50));
    let app = app(layer);
    assert_eq!([status(&app, "/expensive").await, status(&app, "/").await], [200, 429]);
    assert_eq!(events.take(), ["over daily 0"]);
    fixture.advance(DAY);
    // The charge of a denied route is refunded.
    assert_eq!([status(&app, "/").await, status(&app, "/expensive").await, status(&app, "/").await], [200, 429, 200]);
}

#[test]
fn implausible_settings_are_errors() {
    let limit = || Limit::new("daily", FixedWindow::new(4_000_000_000, DAY));
    let error =
        |limit: Limit| Limiter::builder(limit).try_build().err().map_or(String::new(), |error| error.to_string());
    assert_eq!(error(limit().soft(0)), "the limit \"daily\" is soft by 0 %: use at least 1, or leave it hard");
    let expected = "the limit \"daily\" of 4000000000 and 10 % of that are more than";
    assert!(error(limit().elastic(10, || true)).starts_with(expected));
    assert_eq!(error(limit().soft(7)), "");
    let decision = Limiter::new(Limit::new("few", FixedWindow::new(9, DAY)).soft(10)).acquire("key", 10).now();
    assert_eq!(decision.verdict(), Verdict::Deny { retry_after: None }, "10 % of 9 are no whole token");
}
