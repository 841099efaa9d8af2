//! Random limits and requests. Each request is explained before it is decided.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use tower::{Layer, service_fn};
use tower_ratelimit::explain::{Conclusion, Explanation};
use tower_ratelimit::key::{KeyExtractor, PeerAddr};
use tower_ratelimit::rules::{self, Extractors};
use tower_ratelimit::when::{self, Condition};
use tower_ratelimit::{
    AddressList, Algorithm, CostTable, Decision, KeyList, Limit, Limiter, ListAction, LiveLimits, ManualClock,
    OnMissingKey, Penalty, RateLimitLayer, RequestHead, Store, Timestamp, Verdict, key,
};

use crate::answer::{Answer, ask};
use crate::limits::all;
use crate::patient::Patient;
use crate::recording::Recording;
use crate::split_mix::Random;

/// 1 January 2026.
const START: u64 = 1_767_225_600_000_000;

/// The settings that random limits may have.
#[derive(Clone, Copy, Debug)]
pub struct Choices {
    /// Queues, which delay requests by Tokio's clock.
    pub queues: bool,
}

/// The number of checks of each kind of conclusion, so that a test can check that all of them occurred.
#[derive(Debug, Default)]
pub struct Checked {
    pub allowed: usize,
    pub delayed: usize,
    pub denied: usize,
    pub unlimited: usize,
    pub exempt: usize,
    pub listed: usize,
    pub missing: usize,
    pub not_enforced: usize,
    pub overage: usize,
    pub locked_out: usize,
    /// The number of overrides that were set.
    pub overrides: usize,
}

/// Two equal stores and their clock. Only requests of the first are explained.
pub struct Stores<S> {
    pub clock: ManualClock,
    pub explained: S,
    pub control: S,
}

type Extension = u64;

/// Runs a layer with random limits, which may be replaced, and random requests.
pub async fn check_layer<S: Store + Clone>(
    seed: u64,
    requests: usize,
    choices: Choices,
    stores: Stores<S>,
    checked: &mut Checked,
) {
    let Stores { clock, explained, control } = stores;
    clock.set(Timestamp::from_micros(START));
    let mut random = Random(seed);
    let is_spare = Arc::new(AtomicBool::new(true));
    let limits_seed = random.next();
    let live = [0, 1].map(|_| LiveLimits::new(limits(limits_seed, choices, &is_spare)));
    let options_seed = random.next();
    let (recorded, controlled) = (Recording::new(explained), Recording::new(control));
    let layers = [layer(&live[0], options_seed, recorded.clone()), layer(&live[1], options_seed, controlled.clone())];
    let services = layers.clone().map(|layer| {
        layer.layer(service_fn(|_: Request<()>| -> Ready<Result<Response<Full<Bytes>>, Infallible>> {
            ready(Ok(Response::default()))
        }))
    });
    for step in 0..requests {
        clock.advance(Duration::from_micros(random.one_of(&[0, 0, 1, 1_000, 300_000, 1_000_000, 5_000_000])));
        is_spare.store(random.below(2) == 0, Ordering::Relaxed);
        if random.below(12) == 0 {
            let seed = random.next();
            for live in &live {
                live.replace(limits(seed, choices, &is_spare)).expect("limits");
            }
        }
        if random.below(6) == 0 {
            let (user, percent) = (random.one_of(&USERS), random.one_of(&[50, 300]));
            for (layer, live) in layers.iter().zip(&live) {
                checked.overrides += usize::from(set_override(layer, live, user, percent).await);
            }
        }
        let request = request(&mut random);
        let explanation = layers[0].explain(&RequestHead::of(&request)).await;
        assert_eq!(explanation, layers[0].explain(&RequestHead::of(&request)).await, "explained twice");
        let answer = ask(&services[0], request.clone()).await;
        let control = ask(&services[1], request).await;
        let (decision, control_decision) = (recorded.take(), controlled.take());
        let context = format!("seed {seed}, request {step}:\n{explanation}\n{decision:#?}");
        assert_eq!(answer.status, control.status, "the explanation had a side effect: {context}");
        assert_eq!(
            decision.as_ref().map(Decision::outcomes),
            control_decision.as_ref().map(Decision::outcomes),
            "the explanation had a side effect: {context}"
        );
        compare(&explanation, decision.as_ref(), Some(&answer), checked, &context);
    }
}

/// Runs a limiter with random limits, which may be replaced, and random keys and costs.
pub async fn check_limiter<S: Store + Clone>(
    seed: u64,
    requests: usize,
    choices: Choices,
    stores: Stores<S>,
    checked: &mut Checked,
) {
    let Stores { clock, explained, control } = stores;
    clock.set(Timestamp::from_micros(START));
    let mut random = Random(seed);
    let is_spare = Arc::new(AtomicBool::new(true));
    let limits_seed = random.next();
    let live = [0, 1].map(|_| LiveLimits::new(plain_limits(limits_seed, choices, &is_spare)));
    let limiter = |live: &LiveLimits, store: S| Limiter::live_builder(live).store(store).patient().build();
    let [explained, control] = [limiter(&live[0], explained), limiter(&live[1], control)];
    for step in 0..requests {
        clock.advance(Duration::from_micros(random.one_of(&[0, 0, 1, 1_000, 300_000, 1_000_000, 5_000_000])));
        is_spare.store(random.below(2) == 0, Ordering::Relaxed);
        if random.below(12) == 0 {
            let seed = random.next();
            for live in &live {
                live.replace(plain_limits(seed, choices, &is_spare)).expect("limits");
            }
        }
        let (key, cost) = (random.one_of(&USERS), random.below(5));
        let explanation = explained.explain(key, cost).await;
        assert_eq!(explanation, explained.explain(key, cost).await, "explained twice");
        let decision = explained.acquire(key, cost).await.expect("a decision");
        let control = control.acquire(key, cost).await.expect("a decision");
        let context = format!("seed {seed}, request {step}:\n{explanation}\n{decision:#?}");
        assert_eq!(decision.outcomes(), control.outcomes(), "the explanation had a side effect: {context}");
        compare(&explanation, Some(&decision), None, checked, &context);
    }
}

/// Compares an explanation with the decision that followed and with the response.
fn compare(
    explanation: &Explanation,
    decision: Option<&Decision>,
    answer: Option<&Answer>,
    checked: &mut Checked,
    context: &str,
) {
    let explained = explanation.limits.iter().filter_map(|limit| limit.applied()?.outcome.clone());
    let decided = decision.map(Decision::outcomes).unwrap_or_default();
    assert_eq!(explained.collect::<Vec<_>>(), decided, "{context}");
    for outcome in decided {
        checked.not_enforced += usize::from(!outcome.verdict().is_allowed() && !outcome.is_enforced());
        checked.overage += usize::from(outcome.uses_overage());
        checked.locked_out += usize::from(outcome.is_locked_out());
    }
    if let Some(decision) = decision.filter(|decision| !decision.outcomes().is_empty()) {
        assert_eq!(explanation.at, Some(decision.at()), "{context}");
        assert_eq!(explanation.retry_after(), decision.retry_after(), "{context}");
        match (&explanation.conclusion, decision.verdict()) {
            (Conclusion::Allowed { delay }, Verdict::Allow { delay: decided }) => {
                assert_eq!(*delay, decided, "{context}")
            }
            (Conclusion::Denied { .. }, Verdict::Deny { .. }) => {}
            _ => panic!("another verdict: {context}"),
        }
    }
    let is_decided = !decided.is_empty();
    let status = answer.map(|answer| answer.status.as_u16());
    let expected: &[u16] = match &explanation.conclusion {
        Conclusion::Allowed { delay } => {
            match (is_decided, delay.is_zero()) {
                (false, _) => checked.unlimited += 1,
                (true, true) => checked.allowed += 1,
                (true, false) => checked.delayed += 1,
            }
            &[200]
        }
        Conclusion::Denied { .. } => {
            checked.denied += 1;
            &[429]
        }
        Conclusion::Exempt => {
            checked.exempt += 1;
            &[200]
        }
        Conclusion::Listed { action } => {
            checked.listed += 1;
            if *action == ListAction::TooManyRequests { &[429] } else { &[403] }
        }
        Conclusion::MissingKey { error } => {
            checked.missing += 1;
            if *error == key::KeyError::NotProvided { &[500] } else { &[400] }
        }
        other => panic!("{other:?}: {context}"),
    };
    assert!(status.is_none_or(|status| expected.contains(&status)), "{status:?}: {context}");
    let is_reached = matches!(explanation.conclusion, Conclusion::Allowed { .. } | Conclusion::Denied { .. });
    assert_eq!(decision.is_some_and(|decision| !decision.outcomes().is_empty()), is_reached && is_decided, "{context}");
}

const USERS: [&str; 3] = ["ann", "bob", "cy"];

fn request(random: &mut Random) -> Request<()> {
    let method = random.one_of(&["GET", "POST", "HEAD", "BREW"]);
    let uri = random.one_of(&["/", "/login", "/login?user=ann", "/api/a", "/api/b?user=bob", "/x?user=cy&user=ann"]);
    let mut request = Request::builder().method(method).uri(uri);
    for _ in 0..random.one_of(&[0, 1, 1, 1, 1, 2]) {
        request = request.header("x-user", random.one_of(&USERS));
    }
    if random.below(3) == 0 {
        request = request.header("x-plan", random.one_of(&["free", "pro"]));
    }
    if random.below(2) == 0 {
        request = request.header("cookie", format!("user={}", random.one_of(&USERS)));
    }
    let mut request = request.body(()).expect("a request");
    if random.below(20) > 0 {
        request.extensions_mut().insert(PeerAddr(([192, 0, 2, random.below(3) as u8], 50_000).into()));
    }
    if random.below(3) > 0 {
        request.extensions_mut().insert::<Extension>(random.below(3));
    }
    request
}

fn layer<S: Store + Clone>(live: &LiveLimits, seed: u64, store: Recording<S>) -> RateLimitLayer {
    let mut random = Random(seed);
    let mut builder = RateLimitLayer::live_builder(live).store(store).patient();
    builder = match random.below(4) {
        0 => builder,
        1 => builder.cost(random.below(3)),
        2 => builder.costs(CostTable::new().route(Method::POST, "/login", 2).path("/api/a", 0).otherwise(1)),
        _ => builder.cost_by(|head| head.uri.path().len() as u64 % 4),
    };
    if random.below(8) == 0 {
        builder = builder.shadow();
    }
    if random.below(5) == 0 {
        builder = builder.never_limit(AddressList::new(key::peer_ip(), ["192.0.2.1"]));
    }
    if random.below(5) == 0 {
        builder = builder.never_limit(when::header("x-plan", "pro").and(when::method(Method::POST)));
    }
    if random.below(5) == 0 {
        let action = random.one_of(&[ListAction::Forbidden, ListAction::TooManyRequests, ListAction::Shadow]);
        builder = builder.always_reject_with(action, KeyList::new(key::header("x-user"), ["cy"]));
    }
    builder.build()
}

/// Returns random limits from code, from a file, or both. Equal seeds return equal limits.
fn limits(seed: u64, choices: Choices, is_spare: &Arc<AtomicBool>) -> Vec<Limit> {
    let mut random = Random(seed);
    let kind = random.below(3);
    let mut limits = if kind == 0 { Vec::new() } else { plain_limits(random.next(), choices, is_spare) };
    limits = limits.into_iter().map(|limit| with_request(limit, &mut random)).collect();
    if kind < 2 {
        let yaml = file(&mut random);
        let extractors = Extractors::new().register("path", key::path()).register("later", later("x-user"));
        let place = random.below(limits.len() as u64 + 1) as usize;
        let mut rules = rules::from_yaml(&yaml, &extractors).expect("limits");
        rules.retain(|_| random.below(8) > 0);
        let rules = rules.into_iter().map(|limit| match random.below(6) {
            0 => limit.when(when::header("x-plan", "pro")),
            _ => limit,
        });
        limits.splice(place..place, rules.collect::<Vec<_>>());
    }
    limits
}

/// Returns random limits that need no request.
fn plain_limits(seed: u64, choices: Choices, is_spare: &Arc<AtomicBool>) -> Vec<Limit> {
    let mut random = Random(seed);
    (0..random.below(5)).map(|number| plain_limit(number, &mut random, choices, is_spare)).collect()
}

fn algorithm(random: &mut Random, choices: Choices) -> Algorithm {
    let tokens = 2 + random.below(6) as u32;
    let algorithms = all(tokens, Duration::from_secs(random.one_of(&[1, 7, 60])));
    let count = if choices.queues { algorithms.len() } else { algorithms.len() - 1 };
    algorithms[random.below(count as u64) as usize].1
}

fn plain_limit(number: u64, random: &mut Random, choices: Choices, is_spare: &Arc<AtomicBool>) -> Limit {
    let limit = Limit::new(format!("limit {number}"), algorithm(random, choices));
    let limit = match random.below(6) {
        0 => limit.soft(50),
        1 => {
            let is_spare = is_spare.clone();
            limit.elastic(50, move || is_spare.load(Ordering::Relaxed))
        }
        _ => limit,
    };
    let limit = match random.below(8) {
        0 => limit.shadow(),
        1 | 2 => limit.quota_mode(),
        3 | 4 => {
            let penalty = Penalty::after(1 + random.below(3) as u32, Duration::from_secs(10));
            limit.penalty(penalty.locked_out_for(Duration::from_secs(4)).doubling_up_to(Duration::from_secs(60)))
        }
        _ => limit,
    };
    if random.below(3) == 0 { limit.overridable() } else { limit }
}

fn with_request(limit: Limit, random: &mut Random) -> Limit {
    let limit = match random.below(10) {
        0 => limit,
        1 | 2 => limit.by(key::header("x-user")),
        3 => limit.by(key::peer_ip()),
        4 => limit.by((key::peer_ip(), key::method())),
        5 => limit.by(key::cookie("user").or(key::peer_ip())),
        6 => limit.by(key::query("user")),
        7 => limit.by(key::extension(|id: &Extension| *id)),
        8 => limit.by(later("x-user")),
        _ => limit.by((key::path(), later("x-user").or(key::from_fn(|head| Some(head.uri.path().len() as u64))))),
    };
    let limit = match random.below(3) {
        0 => limit,
        1 => limit.on_missing_key(OnMissingKey::Skip),
        _ => limit.on_missing_key(OnMissingKey::Share),
    };
    let limit = match random.below(6) {
        0 => limit.cost(random.below(2)),
        1 => limit.cost_by(|head| head.headers.len() as u64),
        _ => limit,
    };
    let limit = match random.below(8) {
        0 => limit.when(when::method(Method::POST).or(when::path_prefix("/api"))),
        1 => limit.when(when::not(when::header("x-plan", "pro"))),
        2 => limit.when(when::from_fn(|head| head.header("x-user").is_some()).label("known user")),
        3 => limit.when(when::route("/login")),
        _ => limit,
    };
    if random.below(4) == 0 {
        let size = limit.algorithm().to_owned();
        let other = all(9, Duration::from_secs(7))[0].1;
        limit.size_when(when::header("x-plan", "pro"), if random.below(2) == 0 { size } else { other })
    } else {
        limit
    }
}

type Found = Pin<Box<dyn Future<Output = Option<String>> + Send>>;

/// Returns the value of a header after a delay.
fn later(name: &'static str) -> impl KeyExtractor {
    key::from_async_fn(move |head| {
        let found = head.header(name).map(str::to_owned);
        Box::pin(async move {
            tokio::task::yield_now().await;
            found
        }) as Found
    })
}

/// Returns a rules file with some of these descriptors.
fn file(random: &mut Random) -> String {
    let descriptors = [
        "- { key: remote_address, rate_limit: { unit: minute, requests_per_unit: 3, algorithm: token_bucket } }",
        "- { key: remote_address, value: 192.0.2.1, rate_limit: { unit: second, requests_per_unit: 0 } }",
        "- { key: method, value: POST, rate_limit: { unit: minute, requests_per_unit: 4, name: posts, cost: 2 } }",
        "- { key: header.x-user, rate_limit: { unit: minute, requests_per_unit: 2, replaces: [{ name: posts }] } }",
        "- { key: header.x-user, value: bob, rate_limit: { unlimited: true, replaces: [{ name: posts }] } }",
        "- { key: method, rate_limit: { unit: minute, requests_per_unit: 6, key: [header.x-plan, later], \
           on_missing_key: skip, replaces: [{ name: api }] } }",
        "- { key: query.user, value: 'a*', rate_limit: { unit: minute, requests_per_unit: 2, on_missing_key: share } }",
        "- { key: later, shadow_mode: true, rate_limit: { unit: hour, requests_per_unit: 3 } }",
        "- { key: header.x-plan, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 2, soft: 50% } }",
        "- { key: path, value: /login, descriptors: [{ key: remote_address, \
           rate_limit: { period: 7s, requests_per_unit: 2, key: [header.x-user], on_missing_key: reject, \
           algorithm: sliding_log } }] }",
        "- { key: path, value: '/api/*', rate_limit: { name: api, unit: minute, requests_per_unit: 5, algorithm: leaky_bucket, \
           overridable: true } }",
    ];
    let chosen: Vec<&str> = descriptors.into_iter().filter(|_| random.below(2) == 0).collect();
    if chosen.is_empty() {
        "domain: shop".to_owned()
    } else {
        // The rules with these names may be missing, but those that replace them need some of these names.
        let named = "- { key: header.x-none, rate_limit: { name: api, unlimited: true } }\n\
                     - { key: header.x-never, rate_limit: { name: posts, unlimited: true } }";
        format!("domain: shop\ndescriptors:\n{}\n{named}", chosen.join("\n"))
    }
}

/// Overrides a limit for a user, if one is overridable. Returns whether there is one.
async fn set_override(layer: &RateLimitLayer, live: &LiveLimits, user: &str, percent: u32) -> bool {
    let limits = live.limits();
    let Some(limit) = limits.iter().find(|limit| limit.is_overridable()) else { return false };
    let Some(size) = resized(limit.algorithm(), percent) else { return false };
    let overrides = layer.limit(limit.name()).expect("the limit is overridable");
    overrides.set_override(user, size, None).await.is_ok()
}

/// Returns the same algorithm with the same period, in another size.
fn resized(algorithm: &Algorithm, percent: u32) -> Option<Algorithm> {
    [1, 7, 60].into_iter().find_map(|period| {
        (2..8).find_map(|tokens| {
            let position = all(tokens, Duration::from_secs(period)).iter().position(|(_, known)| known == algorithm)?;
            Some(all((tokens * percent / 100).max(2), Duration::from_secs(period))[position].1)
        })
    })
}
