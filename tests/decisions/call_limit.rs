//! Limits around any Tower service.

use std::convert::Infallible;
use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::faulty_store::{FaultyStore, Mode};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep};
use tower::limit::ConcurrencyLimit;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::{
    AcquireError, CallError, CallLimitLayer, FixedWindow, LeakyBucketQueue, Limit, Limiter, LiveLimits, MemoryStore,
    TokenBucket,
};

const TENTH: Duration = Duration::from_millis(100);

/// A job of a user, with a number of rows.
#[derive(Clone, Copy)]
struct Job(&'static str, u64);

/// The jobs that a service has run, and when.
#[derive(Clone)]
struct Ran(Arc<Mutex<Vec<(u64, Duration)>>>, Instant);

impl Ran {
    fn new() -> Self {
        Self(Arc::default(), Instant::now())
    }

    /// Returns the numbers of the jobs, and after how many milliseconds each began.
    fn millis(&self) -> Vec<(u64, u128)> {
        self.0.lock().unwrap().iter().map(|(job, at)| (*job, at.as_millis())).collect()
    }

    fn service(
        &self,
        layer: CallLimitLayer<Job>,
    ) -> impl Service<Job, Response = u64, Error = CallError<Infallible>, Future: Send> + Clone + Send + 'static + use<>
    {
        let ran = self.clone();
        layer.layer(service_fn(move |Job(_, number)| {
            ran.0.lock().unwrap().push((number, ran.1.elapsed()));
            async move { Ok(number) }
        }))
    }
}

fn by_user(limiter: &Limiter) -> CallLimitLayer<Job> {
    limiter.layer(|job: &Job| job.0)
}

fn denied<T, E>(result: Result<T, CallError<E>>) -> Option<Duration> {
    match result {
        Err(CallError::Limited(AcquireError::Denied { retry_after, .. })) => retry_after,
        _ => panic!("it was not denied"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_denied_call_does_not_reach_the_service() {
    let limiter = Limiter::new(Limit::new("one", TokenBucket::new(1, 1, TENTH)));
    let (ran, layer) = (Ran::new(), by_user(&limiter));
    let service = ran.service(layer);
    assert_eq!(service.clone().oneshot(Job("ann", 1)).await.unwrap(), 1);
    assert_eq!(denied(service.clone().oneshot(Job("ann", 2)).await), Some(TENTH));
    assert_eq!(service.clone().oneshot(Job("bob", 3)).await.unwrap(), 3);
    sleep(TENTH).await;
    assert_eq!(service.oneshot(Job("ann", 4)).await.unwrap(), 4);
    assert_eq!(ran.millis(), [(1, 0), (3, 0), (4, 100)]);
}

/// Being ready may have reserved a permit, which a denied call gives back.
#[tokio::test]
async fn a_denied_call_releases_what_the_service_has_reserved() {
    let limiter = Limiter::new(Limit::new("none", FixedWindow::per_day(1)));
    let inner = ConcurrencyLimit::new(service_fn(async |_: Job| Ok::<_, Infallible>(())), 1);
    let mut service = by_user(&limiter).cost(|_| 2).layer(inner);
    for _ in 0..3 {
        assert_eq!(denied(service.ready().await.unwrap().call(Job("ann", 1)).await), None);
    }
}

#[tokio::test]
async fn an_error_of_the_service_is_told_from_a_denial() {
    let limiter = Limiter::new([]);
    let service = limiter.layer(|job: &Job| job.0).layer(service_fn(async |_: Job| Err::<(), _>("broken")));
    assert!(matches!(service.oneshot(Job("ann", 1)).await, Err(CallError::Service("broken"))));
    let failing = Limiter::builder(Limit::new("one", FixedWindow::per_day(1)));
    let failing = failing.store(FaultyStore::new(Mode::FailsAtOnce)).build();
    let result = Ran::new().service(by_user(&failing)).oneshot(Job("ann", 1)).await;
    assert!(matches!(result, Err(CallError::Limited(AcquireError::Store(_)))));
}

/// Limits, keys and costs depend on the request, and all limits are charged or none.
#[tokio::test]
async fn closures_choose_the_limits_the_keys_and_the_costs() {
    let limits = ["jobs", "rows", "large"].map(|name| Limit::new(name, FixedWindow::per_day(100)));
    let limiter = Limiter::new(limits);
    let layer = by_user(&limiter)
        .charge("rows", |_| Some(("ignored", 100)))
        .charge("rows", |job: &Job| Some((("tenant", 7_u64), job.1)))
        .charge("large", |job: &Job| (job.1 > 50).then_some((job.0, 60)))
        .cost(|_| 2);
    let service = Ran::new().service(layer);
    let left = async |limit: &str, key: &str| {
        let limit = limiter.limit(limit).unwrap();
        let decision = if key.is_empty() { limit.peek(("tenant", 7_u64), 1) } else { limit.peek(key, 1) };
        decision.await.unwrap().outcomes()[0].remaining()
    };

    assert_eq!(service.clone().oneshot(Job("ann", 10)).await.unwrap(), 10);
    assert_eq!((left("jobs", "ann").await, left("rows", "").await, left("large", "ann").await), (98, 90, 100));
    assert_eq!(service.clone().oneshot(Job("ann", 51)).await.unwrap(), 51);
    assert_eq!((left("jobs", "ann").await, left("rows", "").await, left("large", "ann").await), (96, 39, 40));
    // Only "rows" denies.
    assert!(denied(service.oneshot(Job("bob", 50)).await).is_some());
    assert_eq!((left("jobs", "bob").await, left("rows", "").await, left("rows", "bob").await), (100, 39, 100));
}

#[test]
fn a_charge_of_an_unknown_limit_is_a_mistake() {
    let limiter = Limiter::new(Limit::new("jobs", FixedWindow::per_day(1)));
    let layer = by_user(&limiter);
    let panic = catch_unwind(AssertUnwindSafe(|| layer.charge("job", |job: &Job| Some((job.0, 1))))).unwrap_err();
    assert!(panic.downcast::<String>().unwrap().contains(r#"no limit named "job""#));
}

/// Starts calls in this order, each in a task.
async fn begin<S>(service: &S, jobs: impl IntoIterator<Item = Job>) -> Vec<JoinHandle<Result<u64, S::Error>>>
where
    S: Service<Job, Response = u64, Future: Send, Error: Send> + Clone + Send + 'static,
{
    let mut calls = Vec::new();
    for job in jobs {
        calls.push(tokio::spawn(service.clone().oneshot(job)));
        yield_now().await;
    }
    calls
}

#[tokio::test(start_paused = true)]
async fn calls_wait_for_their_turn_and_no_longer_than_allowed() {
    let limiter = Limiter::new(Limit::new("bucket", TokenBucket::new(1, 1, TENTH)));
    let ran = Ran::new();
    let service = ran.service(by_user(&limiter).wait_at_most(3 * TENTH));
    let calls = begin(&service, (0..5).map(|number| Job("ann", number))).await;
    // The last one waits until its time is over, because others are before it. The second one is cancelled.
    calls[1].abort();
    assert_eq!(begin(&service, [Job("bob", 9)]).await.remove(0).await.unwrap().unwrap(), 9);
    for (number, call) in calls.into_iter().enumerate().filter(|(number, _)| *number != 1) {
        assert_eq!(call.await.unwrap().unwrap(), number as u64);
    }
    assert_eq!(ran.millis(), [(0, 0), (9, 0), (2, 100), (3, 200), (4, 300)]);
    let mut calls = begin(&service, (0..5).map(|number| Job("ann", number))).await;
    let last = calls.pop().unwrap().await.unwrap();
    assert!(denied(last).is_some());
}

/// A queue delays calls without any setting. Cancelled calls at its end leave no hole.
#[tokio::test(start_paused = true)]
async fn a_queue_spaces_a_thousand_calls() {
    let queue = LeakyBucketQueue::per_second(100).waiting(2_000).burst(10);
    let limiter = Limiter::new(Limit::new("queue", queue));
    let ran = Ran::new();
    let service = ran.service(by_user(&limiter));
    let calls = begin(&service, (0..1_100).map(|number| Job("ann", number))).await;
    // From the last one on, because a place is given back while nobody is behind it.
    for call in calls[1_000..].iter().rev() {
        call.abort();
        yield_now().await;
    }
    let more = begin(&service, (2_000..2_010).map(|number| Job("ann", number))).await;
    for call in calls.into_iter().take(1_000).chain(more) {
        call.await.unwrap().unwrap();
    }
    let ran = ran.millis();
    assert_eq!(ran.len(), 1_010);
    for (place, (number, at)) in (0..).zip(ran) {
        assert_eq!(number, if place < 1_000 { place } else { place + 1_000 });
        let due = u128::from(place.saturating_sub(10)) * 10;
        assert!((due..=due + 1).contains(&at), "call {number} began after {at} ms instead of {due}");
    }
}

#[tokio::test]
async fn calls_without_a_limit_are_allowed() {
    let limiter = Limiter::new(Limit::new("one", FixedWindow::per_day(1)));
    let service = Ran::new().service(by_user(&limiter).charge("one", |_| None::<(u64, u64)>).wait_at_most(TENTH));
    for number in 0..3 {
        assert_eq!(service.clone().oneshot(Job("ann", number)).await.unwrap(), number);
    }
}

/// The layer's key and cost apply to a new limit. The charge of one that is gone has no effect.
#[tokio::test]
async fn replaced_limits_apply_to_the_next_call() {
    let limit = |name: &str, tokens| Limit::new(name, FixedWindow::per_day(tokens));
    let live = LiveLimits::new([limit("rows", 1)]);
    let limiter = Limiter::live_builder(&live).store(MemoryStore::new()).build();
    let service = Ran::new().service(by_user(&limiter).charge("rows", |job: &Job| Some((job.0, job.1))));
    assert!(denied(service.clone().oneshot(Job("ann", 2)).await).is_none());
    live.replace([limit("jobs", 1)]).unwrap();
    assert_eq!(service.clone().oneshot(Job("ann", 2)).await.unwrap(), 2);
    assert!(denied(service.oneshot(Job("ann", 2)).await).is_some());
}

/// A call that never ends keeps no other one from its turn.
#[tokio::test(start_paused = true)]
async fn a_turn_ends_when_the_service_is_called() {
    let limiter = Limiter::new(Limit::new("bucket", TokenBucket::new(1, 1, TENTH)));
    let layer = by_user(&limiter).wait_at_most(TENTH);
    let stuck = layer.layer(service_fn(|_: Job| pending::<Result<u64, Infallible>>()));
    let _call = begin(&stuck, [Job("ann", 0)]).await;
    assert_eq!(Ran::new().service(layer).oneshot(Job("ann", 1)).await.unwrap(), 1);
}
