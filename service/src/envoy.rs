//! Envoy's rate limit service.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::Duration as ProtoDuration;
use http::Request;
use tokio::runtime::Handle;
use tonic::Status;
use tower_ratelimit::store::Outcome;
use tower_ratelimit::{Decision, Reason, RequestHead, RequestLimiter, rules};

use crate::App;
use crate::rules::Hits;

/// The most descriptors of a call. Envoy sends a few.
const MAX_DESCRIPTORS: usize = 64;

pub(crate) struct RateLimitService(pub(crate) App);

#[tonic::async_trait]
impl rate_limit_service_server::RateLimitService for RateLimitService {
    async fn should_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, Status> {
        should_rate_limit(&self.0, request.into_inner()).await.map(tonic::Response::new)
    }
}

/// Decides a call: charges all of its descriptors or none, and then refunds negative hits.
///
/// # Errors
///
/// Returns a status if the call is invalid, or if the store fails.
pub(crate) async fn should_rate_limit(app: &App, call: RateLimitRequest) -> Result<RateLimitResponse, Status> {
    check(&call)?;
    let Some(domain) = app.domains.get(&call.domain) else {
        app.unknown_domains.report(&call.domain);
        let statuses = call.descriptors.iter().map(|_| status(None)).collect();
        return Ok(RateLimitResponse { overall_code: Code::Ok.into(), statuses, ..Default::default() });
    };
    let decisions = decide(&domain.limiter, &call).await.map_err(rejection)?;
    let decided = || decisions.iter().flatten();
    let is_allowed = decided().all(Decision::is_allowed);
    Ok(RateLimitResponse {
        overall_code: if is_allowed { Code::Ok } else { Code::OverLimit }.into(),
        statuses: decisions.iter().map(|decision| status(decision.as_ref())).collect(),
        response_headers_to_add: headers(decided()),
        ..Default::default()
    })
}

/// The domains without rules that calls have named. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct UnknownDomains(Arc<Mutex<HashSet<String>>>);

impl UnknownDomains {
    /// The most domains that are logged, and the most characters of their names.
    const MAX: usize = 100;

    /// Counts a call, and logs the first one for its domain.
    fn report(&self, domain: &str) {
        metrics::counter!("ratelimit_unknown_domain_total").increment(1);
        let name: String = domain.chars().take(Self::MAX).collect();
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.len() < Self::MAX && !logged.contains(&name) {
            tracing::warn!(
                domain = name,
                "calls for a domain without rules are allowed: add its file to --rules, or correct the `domain`"
            );
            logged.insert(name);
        }
    }
}

fn check(call: &RateLimitRequest) -> Result<(), Status> {
    let count = call.descriptors.len();
    if call.domain.is_empty() {
        return Err(Status::invalid_argument("the domain is empty: set the `domain` of the filter"));
    }
    if count == 0 {
        return Err(Status::invalid_argument("there is no descriptor: configure `rate_limits` for the route"));
    }
    check_count(count).map_err(Status::invalid_argument)?;
    if call.descriptors.iter().any(|descriptor| descriptor.entries.is_empty()) {
        return Err(Status::invalid_argument("a descriptor has no entry: send at least one"));
    }
    if call.descriptors.iter().any(|descriptor| descriptor.limit.is_some()) {
        let message = "a descriptor has a `limit` of its own: write it into the rules, and leave it out here";
        return Err(Status::unimplemented(message));
    }
    Ok(())
}

/// Checks the number of descriptors of a call.
///
/// # Errors
///
/// Returns a message if there are too many.
pub(crate) fn check_count(count: usize) -> Result<(), String> {
    if count <= MAX_DESCRIPTORS {
        return Ok(());
    }
    Err(format!("{count} descriptors: send at most {MAX_DESCRIPTORS}"))
}

/// Returns the tokens that a descriptor takes, or returns if its hits are negative.
fn hits(call: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> Hits {
    Hits(match &descriptor.hits_addend {
        Some(hits) => hits.value,
        None => call.hits_addend.max(1).into(),
    })
}

/// The charges of a call that is not answered yet. If this is dropped before, as when the client cancels the call, it
/// refunds them in the background. A store that fails then keeps them until they expire.
struct Unanswered<'a> {
    limiter: &'a RequestLimiter,
    charged: &'a [Decision],
}

impl Unanswered<'_> {
    fn answered(mut self) {
        self.charged = &[];
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        for decision in self.charged {
            let refund = self.limiter.refund(decision.clone().into_receipt());
            if let Ok(runtime) = Handle::try_current() {
                runtime.spawn(refund);
            }
        }
    }
}

/// Decides the descriptors, and waits for the delay of queues. Returns the decisions in order, and none for negative
/// hits of a denied call, which changes nothing.
///
/// # Errors
///
/// Returns the reason if the call is rejected without a decision. Its charges are then refunded in the background.
async fn decide(limiter: &RequestLimiter, call: &RateLimitRequest) -> Result<Vec<Option<Decision>>, Reason> {
    let entries = |descriptor: &RateLimitDescriptor| {
        let entries = descriptor.entries.iter().map(|entry| (entry.key.clone(), entry.value.clone()));
        entries.collect::<Vec<_>>()
    };
    let mut requests = rules::descriptors(call.descriptors.iter().map(entries));
    for (request, descriptor) in requests.iter_mut().zip(&call.descriptors) {
        request.extensions_mut().insert(hits(call, descriptor));
    }
    let of_sign = |is_negative: bool| -> Vec<RequestHead<'_>> {
        let pairs = requests.iter().zip(&call.descriptors);
        let of_sign = pairs.filter(|(_, descriptor)| descriptor.is_negative_hits == is_negative);
        of_sign.map(|(request, _): (&Request<()>, _)| RequestHead::of(request)).collect()
    };
    let (positive, negative) = (of_sign(false), of_sign(true));
    let charged = limiter.decide_all(&positive).await?;
    let mut refunded = Vec::new();
    if charged.iter().all(Decision::is_allowed) {
        let unanswered = Unanswered { limiter, charged: &charged };
        let delay = charged.iter().map(Decision::delay).max().unwrap_or_default();
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if !negative.is_empty() {
            refunded = limiter.refund_costs(&negative).await?;
        }
        unanswered.answered();
    }
    let (mut charged, mut refunded) = (charged.into_iter(), refunded.into_iter());
    let next = |descriptor: &RateLimitDescriptor| {
        if descriptor.is_negative_hits { refunded.next() } else { charged.next() }
    };
    Ok(call.descriptors.iter().map(next).collect())
}

fn rejection(reason: Reason) -> Status {
    match reason {
        Reason::StoreFailed => Status::unavailable("the store does not answer"),
        Reason::TooManyLimits => Status::invalid_argument("more than 64 limits apply: send fewer descriptors"),
        _ => Status::invalid_argument("a descriptor lacks the `key` of a limit: send an entry for it"),
    }
}

/// Returns the status of a descriptor. At most one limit applies to it.
fn status(decision: Option<&Decision>) -> DescriptorStatus {
    let code = if decision.is_none_or(Decision::is_allowed) { Code::Ok } else { Code::OverLimit };
    let status = DescriptorStatus { code: code.into(), ..Default::default() };
    let Some((decision, outcome)) = decision.and_then(|decision| Some((decision, decision.outcomes().first()?))) else {
        return status;
    };
    let reset = outcome.reset_after();
    DescriptorStatus {
        current_limit: Some(current_limit(decision, outcome)),
        limit_remaining: clamped(outcome.remaining()),
        duration_until_reset: Some(ProtoDuration {
            seconds: reset.as_secs().try_into().unwrap_or(i64::MAX),
            nanos: reset.subsec_nanos().cast_signed(),
        }),
        ..status
    }
}

/// The units of Envoy's API, with the seconds that they have at least and at most.
const UNITS: [(Unit, u64, u64); 7] = [
    (Unit::Second, 1, 1),
    (Unit::Minute, 60, 60),
    (Unit::Hour, 3_600, 3_600),
    // Of a calendar, when clocks change.
    (Unit::Day, 82_800, 90_000),
    (Unit::Week, 601_200, 608_400),
    (Unit::Month, 2_415_600, 2_682_000),
    (Unit::Year, 31_532_400, 31_626_000),
];

/// Returns the limit as Envoy's API can express it. A bucket has the rate at which it refills, if that is a number for
/// a unit. A limit for another period has the unit `UNKNOWN`.
fn current_limit(decision: &Decision, outcome: &Outcome) -> RateLimit {
    let algorithm = outcome.algorithm().without_lease();
    let (capacity, window) = (algorithm.capacity(), algorithm.window_at(decision.at()));
    let seconds = window.as_secs();
    let is_whole = window.subsec_nanos() == 0 && seconds > 0;
    let unit = UNITS.iter().find(|(_, least, most)| is_whole && (*least..=*most).contains(&seconds));
    let divides = |unit: &&(Unit, u64, u64)| unit.1 < seconds && (capacity * unit.1).is_multiple_of(seconds);
    let (unit, tokens) = match (unit, UNITS[..3].iter().rev().find(divides)) {
        (Some((unit, ..)), _) => (*unit, capacity),
        (None, Some((unit, span, _))) if is_whole && capacity > 0 => (*unit, capacity * span / seconds),
        _ => (Unit::Unknown, capacity),
    };
    RateLimit { name: String::new(), requests_per_unit: clamped(tokens), unit: unit.into() }
}

/// Returns the headers of the tightest limit: the one that denies the call for longest, or else the one with the fewest
/// remaining tokens.
fn headers<'a>(decisions: impl Iterator<Item = &'a Decision>) -> Vec<HeaderValue> {
    let outcomes = decisions.flat_map(|decision| decision.outcomes().iter().map(move |outcome| (decision, outcome)));
    let tightness = |(_, outcome): &(&Decision, &Outcome)| {
        let wait = outcome.denies().then(|| outcome.verdict().retry_after().unwrap_or(Duration::MAX));
        (Reverse(wait), outcome.remaining())
    };
    let Some((decision, outcome)) = outcomes.min_by_key(tightness) else { return Vec::new() };
    let algorithm = outcome.algorithm().without_lease();
    let (capacity, window) = (algorithm.capacity(), seconds(algorithm.window_at(decision.at())));
    // A limit of requests in flight has no window.
    let policy = if window == 0 { String::new() } else { format!(", {capacity};w={window}") };
    let mut headers = vec![
        ("RateLimit-Limit", format!("{capacity}{policy}")),
        ("RateLimit-Remaining", outcome.remaining().to_string()),
        ("RateLimit-Reset", seconds(outcome.reset_after()).to_string()),
    ];
    if let Some(wait) = outcome.verdict().retry_after().filter(|_| outcome.denies()) {
        headers.push(("Retry-After", seconds(wait).to_string()));
    }
    let header = |(key, value): (&str, String)| HeaderValue { key: key.to_owned(), value, ..Default::default() };
    headers.into_iter().map(header).collect()
}

/// Rounds up to whole seconds.
fn seconds(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}

fn clamped(tokens: u64) -> u32 {
    tokens.try_into().unwrap_or(u32::MAX)
}
