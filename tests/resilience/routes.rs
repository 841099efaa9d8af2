//! Routes with their own costs, on stores that fail at each step.

use http::Request;
use tokio::time::sleep;
use tower::{Layer, ServiceBuilder};
use tower_ratelimit::{
    Builder, CircuitBreaker, FixedWindow, HeaderStyle, HttpOptions, Limit, OnStoreError, RateLimitLayer, ResetFormat,
    Share,
};

use crate::limited::{EventLog, Events, LOCALLY, ask, hello, ms};
use support::faulty_store::{FaultyStore, Mode, Operation};

/// Returns a limit of ten per day.
fn layer(store: &FaultyStore, policy: OnStoreError) -> Builder<HttpOptions> {
    RateLimitLayer::builder(Limit::new("ten", FixedWindow::per_day(10)))
        .store(store.clone())
        .circuit_breaker(CircuitBreaker::off())
        .headers([HeaderStyle::XRateLimit(ResetFormat::Seconds)])
        .on_store_error(policy)
}

/// Calls a route that costs `inner` inside a router that costs `outer`. Between the two charges, `break_it` changes the
/// store. Background refunds complete before it returns.
async fn route(
    layer: &RateLimitLayer,
    outer: u64,
    inner: u64,
    break_it: impl Fn() + Clone + Send + Sync + 'static,
) -> EventLog {
    let reported = route_at_once(layer, outer, inner, break_it).await;
    sleep(ms(100)).await;
    reported
}

async fn route_at_once(
    layer: &RateLimitLayer,
    outer: u64,
    inner: u64,
    break_it: impl Fn() + Clone + Send + Sync + 'static,
) -> EventLog {
    let between = tower::util::MapRequestLayer::new(move |request: Request<()>| {
        break_it();
        request
    });
    let service =
        ServiceBuilder::new().layer(layer.cost(outer)).layer(between).layer(layer.cost(inner)).service(hello());
    ask(&service, Request::new(())).await
}

/// Returns the remaining tokens in the store, after its recovery.
async fn left(store: &FaultyStore) -> u64 {
    store.set(Mode::Works);
    let reported = ask(&layer(store, OnStoreError::Reject).cost(0).build().layer(hello()), Request::new(())).await;
    reported.header("x-ratelimit-remaining").expect("it is reported").parse().expect("a number")
}

const FAILING: [Mode; 3] = [Mode::Fails, Mode::FailsAtOnce, Mode::Hangs];

#[tokio::test(start_paused = true)]
async fn route_costs_work_while_the_store_works() {
    let store = FaultyStore::new(Mode::Works);
    let layer = layer(&store, OnStoreError::Reject).build();
    assert_eq!(route(&layer, 1, 4, || ()).await.header("x-ratelimit-remaining"), Some("6"));
    assert_eq!(route(&layer, 4, 1, || ()).await.header("x-ratelimit-remaining"), Some("5"));
    assert_eq!(route(&layer, 1, 6, || ()).await.status, 429);
    assert_eq!(left(&store).await, 5);
}

#[tokio::test(start_paused = true)]
async fn a_difference_that_cannot_be_charged_is_rejected_and_the_routers_charge_refunded() {
    for mode in FAILING {
        let (store, events) = (FaultyStore::new(Mode::Works), Events::default());
        let layer = layer(&store, OnStoreError::Reject).observe(events.observer()).build();
        let breaking = store.clone();
        let reported = route(&layer, 1, 4, move || breaking.set_for(Operation::Decide, mode)).await;
        assert_eq!(reported.status, 503);
        assert_eq!(reported.header("x-ratelimit-remaining"), None);
        assert_eq!(events.all().len(), 2, "{:?}", events.all());
        assert_eq!(left(&store).await, 10, "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_route_difference_that_cannot_be_charged_is_allowed_by_policy() {
    for mode in FAILING {
        let store = FaultyStore::new(Mode::Works);
        let breaking = store.clone();
        let layer = layer(&store, OnStoreError::Allow).build();
        let reported = route(&layer, 1, 4, move || breaking.set(mode)).await;
        assert_eq!((reported.status.as_u16(), reported.header("x-ratelimit-remaining")), (200, Some("9")));
        assert_eq!(left(&store).await, 9);
    }
}

#[tokio::test(start_paused = true)]
async fn a_difference_that_the_store_cannot_charge_is_charged_locally() {
    for mode in FAILING {
        let store = FaultyStore::new(Mode::Works);
        let layer = layer(&store, LOCALLY).build();
        for (remaining, status) in [(Some("4"), 200), (Some("4"), 429)] {
            store.set(Mode::Works);
            let breaking = store.clone();
            let reported = route(&layer, 1, 7, move || breaking.set_for(Operation::Decide, mode)).await;
            assert_eq!(
                (reported.status.as_u16(), reported.header("x-ratelimit-remaining")),
                (status, remaining),
                "{mode:?}"
            );
        }
        // The store's charge for the request that was denied locally has been refunded.
        assert_eq!(left(&store).await, 9, "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refund_that_fails_is_not_tried_twice() {
    for mode in FAILING {
        for (policy, status, kept) in [(OnStoreError::Reject, 503, 9), (OnStoreError::Allow, 200, 6)] {
            let store = FaultyStore::new(Mode::Works);
            let layer = layer(&store, policy).build();
            let breaking = store.clone();
            let reported = route(&layer, 4, 1, move || breaking.set_for(Operation::Refund, mode)).await;
            assert_eq!(reported.status, status);
            // The refund of 3 of 4 failed with an unknown result. The last token has not been refunded yet.
            let asked = if policy == OnStoreError::Reject { 2 } else { 1 };
            assert_eq!(store.asked(Operation::Refund), asked);
            assert!(left(&store).await <= kept, "{mode:?} {policy:?}");
        }
    }
}

/// A denial before the failure stands under every policy.
#[tokio::test(start_paused = true)]
async fn a_denial_stands_if_its_refund_fails() {
    for mode in FAILING {
        for policy in [OnStoreError::Reject, OnStoreError::Allow, LOCALLY] {
            let (store, events) = (FaultyStore::new(Mode::Works), Events::default());
            let layer = layer(&store, policy).observe(events.observer()).build();
            assert_eq!(route(&layer, 1, 6, || ()).await.status, 200);
            let breaking = store.clone();
            let reported = route(&layer, 1, 6, move || breaking.set_for(Operation::Refund, mode)).await;
            assert_eq!(reported.status, 429, "{mode:?} {policy:?}");
            assert_eq!(events.count("failed"), 1);
            assert_eq!(store.asked(Operation::Refund), 1);
            assert_eq!(left(&store).await, 3, "the router's 1 stays charged");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn requests_charged_locally_stay_local() {
    let store = FaultyStore::new(Mode::Works);
    let layer = layer(&store, OnStoreError::DecideLocally(Share::one_of(2))).build();
    let back = |store: &FaultyStore| {
        let store = store.clone();
        move || store.set(Mode::Works)
    };
    // The local share is 5.
    for (outer, inner, status, remaining) in [
        (1, 3, 200, Some("2")),
        (2, 1, 200, Some("1")),
        (1, 3, 429, Some("1")),
        (1, 7, 503, None),
        (1, 1, 200, Some("0")),
    ] {
        store.set(Mode::Fails);
        let reported = route(&layer, outer, inner, back(&store)).await;
        assert_eq!(
            (reported.status.as_u16(), reported.header("x-ratelimit-remaining")),
            (status, remaining),
            "{outer}, {inner}"
        );
    }
    assert_eq!(left(&store).await, 10, "the store has heard of nothing");
    assert_eq!(store.asked(Operation::Refund), 0);
}

#[tokio::test(start_paused = true)]
async fn an_uncharged_cost_is_charged_whole_by_the_route() {
    let store = FaultyStore::new(Mode::Fails);
    let layer = layer(&store, OnStoreError::Allow).build();
    let back = store.clone();
    let reported = route(&layer, 1, 4, move || back.set(Mode::Works)).await;
    assert_eq!((reported.status.as_u16(), reported.header("x-ratelimit-remaining")), (200, Some("6")));
    assert_eq!(left(&store).await, 6);
}

#[tokio::test(start_paused = true)]
async fn routes_do_not_call_the_store_while_the_breaker_is_open() {
    let store = FaultyStore::new(Mode::Works);
    let layer = layer(&store, OnStoreError::Reject).circuit_breaker(CircuitBreaker::new().failures(1)).build();
    let breaking = store.clone();
    // The store takes the router's charge. The route's charge fails, and opens the breaker.
    let reported = route_at_once(&layer, 1, 4, move || breaking.set(Mode::Fails)).await;
    assert_eq!(reported.status, 503);
    let asked = store.asked(Operation::Decide);
    let reported = route_at_once(&layer, 1, 4, || ()).await;
    assert_eq!((reported.status.as_u16(), reported.after), (503, ms(0)));
    assert_eq!(store.asked(Operation::Decide), asked);
}

/// A refund before the failure is not repeated.
#[tokio::test(start_paused = true)]
async fn refunds_happen_once() {
    for mode in FAILING {
        let store = FaultyStore::new(Mode::Works);
        let layer = layer(&store, OnStoreError::Reject).build();
        assert_eq!(route(&layer, 1, 5, || ()).await.status, 200);
        let breaking = store.clone();
        let reported = route(&layer, 4, 1, move || breaking.set_for(Operation::Decide, mode)).await;
        assert_eq!((reported.status.as_u16(), store.asked(Operation::Refund)), (503, 2));
        assert_eq!(left(&store).await, 5, "{mode:?}");
    }
}

/// A local charge is refunded locally, without the store.
#[tokio::test(start_paused = true)]
async fn an_open_breaker_does_not_affect_local_charges() {
    let (store, events) = (FaultyStore::new(Mode::Fails), Events::default());
    let layer =
        layer(&store, LOCALLY).circuit_breaker(CircuitBreaker::new().failures(1)).observe(events.observer()).build();
    assert_eq!(route(&layer, 1, 1, || ()).await.header("x-ratelimit-remaining"), Some("9"));
    let before = events.count("failed");
    assert_eq!(route(&layer, 5, 2, || ()).await.header("x-ratelimit-remaining"), Some("7"));
    assert_eq!(events.count("failed"), before + 1, "the router's");
}
