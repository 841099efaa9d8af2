//! The records of decisions, rejections and events.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::calls::Calls;
use tower_ratelimit::{
    DecidedBy, DecisionRecord, Event, FixedWindow, LeakyBucketQueue, Limit, Limiter, OnStoreError, RateLimitLayer,
    Reason, Recorder, Rejection, Stats, key, when,
};

use crate::limited::{LOCALLY, ask, hello, limiter, ms, visit, with};
use support::faulty_store::{FaultyStore, Mode};
use tower::Layer;

/// A recorder that keeps everything as text.
#[derive(Clone, Default)]
struct Recorded(Arc<Mutex<Vec<String>>>);

impl Recorded {
    fn push(&self, text: String) {
        self.0.lock().expect("no test panicked while recording").push(text);
    }

    /// Takes the records since the last call.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().expect("no test panicked while recording"))
    }
}

impl Recorder for Recorded {
    fn decision(&self, decision: &DecisionRecord<'_>) {
        for limit in decision.limits() {
            let near = if limit.is_near_limit() { " near" } else { "" };
            let (source, outcome) = (decision.decision.decided_by().as_str(), limit.outcome.kind().as_str());
            let (charged, cost, remaining, capacity) = (
                limit.charged(),
                limit.outcome.cost(),
                limit.outcome.remaining(),
                limit.outcome.algorithm().capacity(),
            );
            self.push(format!("{} {outcome} {source} {charged}/{cost} {remaining}/{capacity}{near}", limit.name));
        }
    }

    fn rejection(&self, rejection: &Rejection<'_>) {
        let limits: Vec<&str> = rejection.denied_by().map(|limit| limit.name).collect();
        match rejection.reason {
            Reason::Limited { .. } => self.push(format!("rejected {} by {}", rejection.head.uri, limits.join(", "))),
            reason => self.push(format!("rejected {}: {reason:?} {limits:?}", rejection.head.uri)),
        }
    }

    fn event(&self, event: &Event<'_>) {
        self.push(format!("{event:?}").chars().take_while(char::is_ascii_alphabetic).collect());
    }
}

fn window(name: &str, tokens: u32) -> Limit {
    Limit::new(name, FixedWindow::per_day(tokens))
}

#[tokio::test(start_paused = true)]
async fn every_outcome_of_a_limit_is_recorded() {
    let recorded = Recorded::default();
    let acquire = async |limits: Vec<Limit>, costs: &[u64]| {
        let limiter = Limiter::builder(limits).recorder(recorded.clone()).build();
        for cost in costs {
            let _ = limiter.acquire("ann", *cost).await.expect("the memory store does not fail");
        }
        recorded.take()
    };
    assert_eq!(
        acquire(vec![window("plain", 5)], &[3, 1, 1, 1]).await,
        [
            "plain allowed memory 3/3 2/5",
            "plain allowed memory 1/1 1/5 near",
            "plain allowed memory 1/1 0/5 near",
            "plain denied memory 0/1 0/5"
        ]
    );
    assert_eq!(
        acquire(vec![window("soft", 10).soft(10)], &[10, 1]).await,
        ["soft allowed memory 10/10 0/10 near", "soft overage memory 1/1 0/10 near", "OverageUsed"]
    );
    assert_eq!(
        acquire(vec![window("shadow", 1).shadow()], &[2]).await,
        ["shadow shadow_denied memory 0/2 1/1", "ShadowDenied"]
    );
    let quotas = vec![window("own", 1).quota_mode(), window("team", 9).quota_mode()];
    assert_eq!(acquire(quotas, &[2]).await, ["own quota_exceeded memory 0/2 1/1", "team allowed memory 2/2 7/9"]);
    let queue = Limit::new("queue", LeakyBucketQueue::per_second(1).waiting(9));
    assert_eq!(acquire(vec![queue], &[1, 1]).await, ["queue allowed memory 1/1 9/10", "queue delayed memory 1/1 8/10"]);
    // A limit with capacity is not charged for a request that another one denies.
    assert_eq!(
        acquire(vec![window("wide", 9), window("narrow", 1)], &[2]).await,
        ["wide allowed memory 0/2 9/9", "narrow denied memory 0/2 1/1"]
    );
    // Nor does it use overage for that.
    assert_eq!(
        acquire(vec![window("soft", 10).soft(10), window("narrow", 1)], &[11]).await,
        ["soft overage memory 0/11 10/10", "narrow denied memory 0/11 1/1"]
    );
    // Nor is its key near the limit for that.
    assert_eq!(
        acquire(vec![window("wide", 10), window("narrow", 8)], &[8, 1]).await,
        [
            "wide allowed memory 8/8 2/10 near",
            "narrow allowed memory 8/8 0/8 near",
            "wide allowed memory 0/1 2/10",
            "narrow denied memory 0/1 0/8"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn the_source_of_each_decision_is_recorded() {
    let (store, recorded) = (FaultyStore::new(Mode::Works), Recorded::default());
    let limiter = limiter(&store).on_store_error(LOCALLY).recorder(recorded.clone()).build();
    let mut lines = Vec::new();
    for mode in [Mode::Works, Mode::Remembered, Mode::Fails, Mode::FailsAtOnce, Mode::Hangs] {
        store.set(mode);
        let _ = limiter.acquire("ann", 1).await.expect("decided locally");
        lines.push(recorded.take().join(", "));
    }
    assert_eq!(
        lines,
        [
            "ten allowed store 1/1 9/10",
            "ten allowed remembered_denial 1/1 8/10",
            "StoreFailed, FellBack, ten allowed fallback 1/1 9/10",
            "StoreFailed, FellBack, ten allowed fallback 1/1 8/10",
            "StoreFailed, FellBack, ten allowed fallback 1/1 7/10"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_allowed_by_policy_is_recorded_without_limits() {
    struct Sources(Mutex<Vec<(DecidedBy, usize)>>);
    impl Recorder for Sources {
        fn decision(&self, decision: &DecisionRecord<'_>) {
            let record = (decision.decision.decided_by(), decision.limits().count());
            self.0.lock().expect("no test panicked while recording").push(record);
        }
    }
    let sources = Arc::new(Sources(Mutex::default()));
    let store = FaultyStore::new(Mode::Fails);
    let limiter = limiter(&store).on_store_error(OnStoreError::Allow).recorder(sources.clone()).build();
    assert!(limiter.acquire("ann", 1).await.expect("allowed").is_allowed());
    assert_eq!(*sources.0.lock().unwrap(), [(DecidedBy::Unlimited, 0)]);
}

#[tokio::test]
async fn the_duration_includes_the_wait_for_the_store() {
    #[derive(Default)]
    struct Longest(Mutex<Duration>);
    impl Recorder for Longest {
        fn decision(&self, decision: &DecisionRecord<'_>) {
            let mut longest = self.0.lock().expect("no test panicked while recording");
            *longest = decision.duration.max(*longest);
        }
    }
    let longest = Arc::new(Longest::default());
    let store = FaultyStore::new(Mode::Slow(ms(30)));
    let limiter = limiter(&store).deadline(ms(10_000)).recorder(longest.clone()).build();
    assert!(limiter.allows("ann", 1).await);
    assert!(*longest.0.lock().unwrap() >= ms(30));
}

#[tokio::test(start_paused = true)]
async fn the_capacity_is_the_size_for_the_request() {
    let recorded = Recorded::default();
    let limit = window("daily", 5).size_by(|head| head.header("x-pro").map(|_| FixedWindow::per_day(50).into()));
    let layer = RateLimitLayer::builder([limit]).recorder(recorded.clone()).build();
    ask(&layer.layer(hello()), with(&[("x-pro", "1")])).await;
    ask(&layer.layer(hello()), with(&[])).await;
    assert_eq!(recorded.take(), ["daily allowed memory 1/1 49/50", "daily allowed memory 1/1 3/5"]);
}

#[tokio::test(start_paused = true)]
async fn peeks_are_not_recorded() {
    let (store, recorded) = (FaultyStore::new(Mode::Works), Recorded::default());
    let limiter = limiter(&store).recorder(recorded.clone()).build();
    let _ = limiter.peek("ann", 1).await.expect("a decision");
    assert_eq!(recorded.take(), [] as [&str; 0]);
}

#[tokio::test(start_paused = true)]
async fn all_recorders_of_a_layer_receive_decisions_and_rejections() {
    let (one, other) = (Recorded::default(), Recorded::default());
    let limits = RateLimitLayer::builder([window("day", 2), window("free", 9)]);
    let layer = limits.recorder(one.clone()).recorder(other.clone()).near_limit(100).build();
    assert_eq!(visit(&layer).await.status, 200);
    assert_eq!(visit(&layer.cost(2)).await.status, 429);
    let expected = [
        "day allowed memory 1/1 1/2",
        "free allowed memory 1/1 8/9",
        "day denied memory 0/2 1/2",
        "free allowed memory 0/2 8/9",
        "rejected / by day",
    ];
    assert_eq!(one.take(), expected);
    assert_eq!(other.take(), expected);
}

#[tokio::test(start_paused = true)]
async fn rejections_without_a_decision_are_recorded_with_their_reason() {
    let recorded = Recorded::default();
    let limits = || RateLimitLayer::builder([window("day", 2).by(key::header("x-user"))]).recorder(recorded.clone());
    assert_eq!(visit(&limits().build()).await.status, 400);
    assert_eq!(recorded.take(), ["rejected /: MissingKey(NotSent) []"]);
    let listed = limits().always_reject(when::header("x-user", "eve")).build();
    assert_eq!(ask(&listed.layer(hello()), with(&[("x-user", "eve")])).await.status, 403);
    assert_eq!(recorded.take(), ["ListMatched", "rejected /: Listed(Forbidden) []"]);
    let failing = limits().store(FaultyStore::new(Mode::Fails)).build();
    assert_eq!(ask(&failing.layer(hello()), with(&[("x-user", "ann")])).await.status, 503);
    assert_eq!(recorded.take(), ["StoreFailed", "FellBack", "rejected /: StoreFailed []"]);
}

#[test]
fn a_share_of_a_limit_beyond_100_percent_is_an_error() {
    for percent in [0, 101] {
        let error = Limiter::builder([window("day", 2)]).near_limit(percent).try_build().unwrap_err();
        assert_eq!(error.to_string(), format!("near_limit is {percent} percent: use 1 to 100"));
    }
}

#[tokio::test(start_paused = true)]
async fn stats_count_per_limit_and_name_the_keys_denied_most() {
    let display = |limit: &str, head: &tower_ratelimit::RequestHead<'_>| {
        Some(format!("user {} of {limit}", head.header("x-user")?))
    };
    let stats = Stats::new().top_keys(2).display_keys(display);
    let limits = [window("users", 1).by(key::header("x-user")), window("all", 1).shadow()];
    let service = RateLimitLayer::builder(limits).recorder(stats.clone()).build().layer(hello());
    for (user, requests) in [("bob", 2), ("ann", 5), ("eve", 3)] {
        for _ in 0..requests {
            ask(&service, with(&[("x-user", user)])).await;
        }
    }
    let [all, users] = &stats.limits()[..] else { panic!("there are two limits: {stats:?}") };
    assert_eq!((all.limit.as_str(), all.allowed, all.denied, all.shadow_denied, all.charged), ("all", 1, 0, 9, 1));
    assert_eq!(all.top_keys, []);
    assert_eq!((users.limit.as_str(), users.allowed, users.denied, users.charged), ("users", 3, 7, 3));
    let top: Vec<_> = users.top_keys.iter().map(|key| (key.key.as_str(), key.denied, key.error)).collect();
    assert_eq!(top, [("user ann of users", 4, 0), ("user eve of users", 3, 1)]);
}

#[tokio::test(start_paused = true)]
async fn stats_count_delayed_requests_and_overage_as_allowed() {
    let stats = Stats::new();
    let queue = Limit::new("queue", LeakyBucketQueue::per_second(1).waiting(9));
    let limiter = Limiter::builder([queue, window("soft", 1).soft(100)]).recorder(stats.clone()).build();
    for _ in 0..3 {
        let _ = limiter.acquire("ann", 1).await.expect("the memory store does not fail");
    }
    // The queue had capacity for the request that the other limit denied.
    let counts = stats.limits().into_iter().map(|limit| (limit.allowed, limit.denied, limit.charged));
    assert_eq!(counts.collect::<Vec<_>>(), [(3, 0, 2), (2, 1, 2)]);
}

#[tokio::test(start_paused = true)]
async fn a_key_is_displayed_by_its_first_denied_request_in_at_most_128_bytes() {
    let stats = Stats::new().top_keys(2).display_keys(|_, head| Some(head.header("x-text")?.replace('~', "é")));
    let limit = window("users", 1).by(key::header("x-user"));
    let service = RateLimitLayer::builder([limit]).recorder(stats.clone()).build().layer(hello());
    // The first request is allowed. The text of the second is 129 bytes long, of which the last two are one character.
    let expected = "b".repeat(127);
    for text in ["a", &format!("{expected}~"), "c"] {
        ask(&service, with(&[("x-user", "ann"), ("x-text", text)])).await;
    }
    assert_eq!(stats.limits()[0].top_keys.iter().map(|key| &key.key).collect::<Vec<_>>(), [&expected]);
}

#[tokio::test(start_paused = true)]
async fn stats_keep_at_most_a_thousand_keys() {
    let stats = Stats::new().top_keys(2_000);
    let limiter = Limiter::builder([window("mails", 1)]).recorder(stats.clone()).build();
    for key in 0..1_001_u64 {
        let _ = limiter.acquire(key, 2).await.expect("the memory store does not fail");
    }
    assert_eq!(stats.limits()[0].top_keys.len(), 1_000);
}

/// A limit in quota mode neither allows nor denies a request that another one allows.
#[tokio::test(start_paused = true)]
async fn stats_count_no_request_that_only_another_quota_allows() {
    let stats = Stats::new().top_keys(5);
    let quotas = [window("own", 1).quota_mode(), window("team", 4).quota_mode()];
    let limiter = Limiter::builder(quotas).recorder(stats.clone()).build();
    for _ in 0..3 {
        let _ = limiter.acquire("ann", 2).await.expect("the memory store does not fail");
    }
    let counts = stats.limits().into_iter().map(|limit| {
        (limit.limit, [limit.allowed, limit.denied, limit.shadow_denied, limit.charged], limit.top_keys.len())
    });
    let expected = [("own".to_owned(), [0; 4], 0), ("team".to_owned(), [2, 1, 0, 4], 1)];
    assert_eq!(counts.collect::<Vec<_>>(), expected);
}

#[tokio::test(start_paused = true)]
async fn stats_show_the_fingerprints_of_explanations_where_no_display_is_set() {
    let stats = Stats::new().top_keys(5);
    let limiter = Limiter::builder([window("mails", 1)]).recorder(stats.clone()).build();
    for _ in 0..3 {
        let _ = limiter.acquire("ann@example.org", 1).await.expect("the memory store does not fail");
    }
    let limits = stats.limits();
    let [key] = &limits[0].top_keys[..] else { panic!("one key was denied: {stats:?}") };
    assert_eq!((key.key.len(), key.denied), (32, 2));
    let explanation = limiter.explain("ann@example.org", 1).await;
    assert_eq!(Some(&key.key), explanation.limits[0].applied().map(|applied| &applied.fingerprint));
}
