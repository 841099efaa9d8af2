//! Random calls of permits: no more than the limit is admitted, no credit is created, and no reset moves. A route with a
//! cost of its own decides as a single layer would.

use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use proptest::prelude::*;
use support::bucket_model::{BucketModel, Draining, Level};
use support::limits::kind;
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{
    Algorithm, FixedWindow, HeaderStyle, Limit, ManualClock, MemoryStore, Permit, RateLimitLayer, ResetFormat,
    SlidingLog, Timestamp, TokenBucket,
};

const LIMIT: u64 = 20;
const PERIOD: u64 = 1_000;

#[derive(Clone, Debug)]
enum Act {
    /// A request, which is refunded if its response does not count.
    Request {
        cost: u64,
        counts: bool,
    },
    Charge(prop::sample::Index, u64),
    Settle(prop::sample::Index, u64),
    Refund(prop::sample::Index),
    /// Advances the clock, in seconds.
    Wait(u64),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let which = any::<prop::sample::Index>;
    let act = prop_oneof![
        4 => (0..=8_u64, prop::bool::weighted(0.8)).prop_map(|(cost, counts)| Act::Request { cost, counts }),
        3 => (which(), 0..=8_u64).prop_map(|(which, more)| Act::Charge(which, more)),
        4 => (which(), 0..=25_u64).prop_map(|(which, actual)| Act::Settle(which, actual)),
        2 => which().prop_map(Act::Refund),
        3 => prop_oneof![0..=100_u64, 0..=2_500_u64].prop_map(Act::Wait),
    ];
    prop::collection::vec(act, 1..60)
}

/// A charge that has not been refunded.
#[derive(Clone, Copy, Debug)]
struct OpenCharge {
    by: usize,
    at: u64,
    tokens: u64,
    mark: Level,
}

/// A naive model of a limit.
struct Oracle {
    algorithm: Algorithm,
    now: u64,
    taken: Vec<OpenCharge>,
    /// The level of a bucket.
    level: Level,
}

const BUCKET: BucketModel =
    BucketModel { draining: Draining::Continuous, capacity: LIMIT, amount: LIMIT, interval: PERIOD };

impl Oracle {
    /// Returns the instant from which a charge no longer counts.
    fn ends(&self, at: u64) -> u64 {
        match kind(&self.algorithm) == "a fixed window" {
            true => (at / PERIOD + 1) * PERIOD,
            false => at + PERIOD,
        }
    }

    fn left(&self) -> u64 {
        if kind(&self.algorithm) == "a token bucket" {
            return BUCKET.left(&self.level, self.now);
        }
        let counts = self.taken.iter().filter(|taken| self.ends(taken.at) > self.now);
        LIMIT.checked_sub(counts.map(|taken| taken.tokens).sum()).expect("no more is admitted than the limit")
    }

    fn resets_at(&self) -> u64 {
        let counts = self.taken.iter().filter(|taken| taken.tokens > 0);
        counts.map(|taken| self.ends(taken.at)).max().unwrap_or(self.now).max(self.now)
    }

    fn paid(&self, by: usize) -> u64 {
        self.taken.iter().filter(|taken| taken.by == by).map(|taken| taken.tokens).sum()
    }

    fn take(&mut self, by: usize, tokens: u64) {
        if tokens == 0 {
            return;
        }
        BUCKET.charge(&mut self.level, self.now, tokens);
        // Charges of a request after which a bucket is full at the same instant are refunded as one.
        let last = self.taken.iter_mut().rfind(|taken| taken.by == by && taken.tokens > 0);
        let is_bucket = kind(&self.algorithm) == "a token bucket";
        if let Some(last) = last.filter(|last| is_bucket && last.mark.expires_at == self.level.expires_at) {
            last.tokens += tokens;
            return;
        }
        self.taken.push(OpenCharge { by, at: self.now, tokens, mark: self.level });
    }

    /// The last charge is refunded first.
    fn refund_charge(&mut self, by: usize, mut tokens: u64) {
        for taken in self.taken.iter_mut().rev().filter(|taken| taken.by == by) {
            let back = taken.tokens.min(tokens);
            taken.tokens -= back;
            BUCKET.refund(&mut self.level, &taken.mark, self.now, back);
            tokens -= back;
        }
    }
}

struct Run {
    oracle: Oracle,
    clock: ManualClock,
    layer: RateLimitLayer,
    permits: Vec<Permit>,
}

impl Run {
    fn new(algorithm: Algorithm) -> Self {
        let clock = ManualClock::new(Timestamp::EPOCH);
        let limit = Limit::new("limit", algorithm).count_if(|response| response.status == 200);
        let cost =
            |head: &tower_ratelimit::RequestHead<'_>| head.header("x-cost").map_or(0, |cost| cost.parse().unwrap());
        let layer = RateLimitLayer::builder([limit])
            .store(MemoryStore::new().clock(clock.clone()))
            .headers([HeaderStyle::XRateLimit(ResetFormat::Epoch)])
            .cost_by(cost)
            .permits()
            .build();
        Self {
            oracle: Oracle { algorithm, now: 0, taken: Vec::new(), level: Level::default() },
            clock,
            layer,
            permits: Vec::new(),
        }
    }

    async fn ask(&self, cost: u64, status: u16) -> Response<()> {
        let service = service_fn(async |request: Request<Body>| {
            let status: u16 = request.headers()["x-status"].to_str().unwrap().parse().unwrap();
            let permit = Permit::of(request.extensions()).expect("a permit");
            Ok::<_, std::convert::Infallible>(
                Response::builder().status(status).extension(permit).body(Body::empty()).unwrap(),
            )
        });
        let request = Request::get("/").header("x-cost", cost).header("x-status", status).body(Body::empty()).unwrap();
        self.layer.layer(service).oneshot(request).await.unwrap().map(drop)
    }

    async fn act(&mut self, act: Act) -> Result<(), TestCaseError> {
        let one = |which: prop::sample::Index, permits: &Vec<Permit>| {
            (!permits.is_empty()).then(|| which.index(permits.len())).map(|index| (index, permits[index].clone()))
        };
        let left = self.oracle.left();
        match act {
            Act::Request { cost, counts } => {
                let response = self.ask(cost, if counts { 200 } else { 404 }).await;
                prop_assert!(response.status() == 429 || cost <= left, "{cost} of {left} was allowed");
                prop_assert!(response.status() != 429 || cost > left, "{cost} of {left} was denied");
                if response.status() != 429 {
                    let by = self.permits.len();
                    self.oracle.take(by, if counts { cost } else { 0 });
                    self.permits.push(response.extensions().get::<Permit>().expect("a permit").clone());
                }
            }
            Act::Charge(which, more) => {
                let Some((by, permit)) = one(which, &self.permits) else { return Ok(()) };
                if permit.charge(more).await.unwrap().is_allowed() {
                    prop_assert!(more <= left, "{more} of {left} were charged");
                    self.oracle.take(by, more);
                }
            }
            Act::Settle(which, actual) => {
                let Some((by, permit)) = one(which, &self.permits) else { return Ok(()) };
                let paid = self.oracle.paid(by);
                let shortfall = permit.settle(actual).await.unwrap().shortfall;
                if actual <= paid {
                    prop_assert_eq!(shortfall, 0);
                    self.oracle.refund_charge(by, paid - actual);
                } else {
                    prop_assert!(actual - shortfall - paid <= left, "{actual} but {shortfall} of {left} after {paid}");
                    self.oracle.take(by, actual - shortfall - paid);
                }
            }
            Act::Refund(which) => {
                let Some((by, permit)) = one(which, &self.permits) else { return Ok(()) };
                permit.refund().await.unwrap();
                self.oracle.refund_charge(by, u64::MAX);
            }
            Act::Wait(seconds) => {
                self.oracle.now += seconds;
                self.clock.advance(Duration::from_secs(seconds));
            }
        }
        Ok(())
    }

    async fn check_remaining(&self) -> Result<(), TestCaseError> {
        let reported = self.ask(0, 200).await;
        let number = |name: &str| reported.headers()[name].to_str().unwrap().parse::<u64>().unwrap();
        let (left, resets_at) = (number("x-ratelimit-remaining"), number("x-ratelimit-reset"));
        prop_assert_eq!(left, self.oracle.left());
        if kind(&self.oracle.algorithm) != "a token bucket" {
            prop_assert_eq!(resets_at, self.oracle.resets_at());
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(support::cases(200))]

    #[test]
    fn permits_are_sound(which in 0..3_usize, acts in acts()) {
        let (limit, period) = (LIMIT as u32, Duration::from_secs(PERIOD));
        let algorithm = [
            FixedWindow::new(limit, period).into(),
            SlidingLog::new(limit, period).into(),
            TokenBucket::new(limit, limit, period).into(),
        ][which];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let mut run = Run::new(algorithm);
            for act in acts {
                run.act(act).await?;
                run.check_remaining().await?;
            }
            Ok::<_, TestCaseError>(())
        })?;
    }
}

/// A limit of a limiter with several layers.
#[derive(Clone, Debug)]
struct Mixed {
    algorithm: Algorithm,
    own_cost: Option<u64>,
    /// Enforced, soft, in shadow mode, or in quota mode.
    mode: u8,
}

impl Mixed {
    fn limit(&self, index: usize) -> Limit {
        let mut limit = Limit::new(index.to_string(), self.algorithm);
        limit = match self.mode {
            0 => limit,
            1 => limit.soft(50),
            2 => limit.shadow(),
            _ => limit.quota_mode(),
        };
        match self.own_cost {
            None => limit,
            Some(cost) => limit.cost_by(move |_| cost),
        }
    }
}

fn mixed() -> impl Strategy<Value = Vec<Mixed>> {
    let algorithm = (1..12_u32, 0..3_usize, 0..3_usize).prop_map(|(limit, period, which)| -> Algorithm {
        let period = Duration::from_secs([10, 60, 1_000][period]);
        match which {
            0 => FixedWindow::new(limit, period).into(),
            1 => SlidingLog::new(limit, period).into(),
            _ => TokenBucket::new(limit, limit, period).into(),
        }
    });
    let own_cost = prop_oneof![2 => Just(None), 1 => (1..4_u64).prop_map(Some)];
    let limit = (algorithm, own_cost, 0..6_u8);
    prop::collection::vec(limit.prop_map(|(algorithm, own_cost, mode)| Mixed { algorithm, own_cost, mode }), 1..4)
}

/// A service behind layers, which passes on what a handler sees.
struct Layers {
    clock: ManualClock,
    outer: RateLimitLayer,
    /// The layer of the route, if it is not the only one.
    inner: Option<RateLimitLayer>,
}

impl Layers {
    fn new(limits: &[Mixed], is_nested: bool) -> Self {
        let clock = ManualClock::new(Timestamp::EPOCH);
        let cost =
            |head: &tower_ratelimit::RequestHead<'_>| head.header("x-cost").map_or(0, |cost| cost.parse().unwrap());
        let limits = limits.iter().enumerate().map(|(index, limit)| limit.limit(index));
        let builder = RateLimitLayer::builder(limits.collect::<Vec<_>>())
            .store(MemoryStore::new().clock(clock.clone()))
            .headers([HeaderStyle::IETF, HeaderStyle::Overage, HeaderStyle::XRateLimit(ResetFormat::Epoch)])
            .permits();
        let outer = if is_nested { builder.cost(1) } else { builder.cost_by(cost) }.build();
        let inner = is_nested.then(|| outer.cost_by(cost));
        Self { clock, outer, inner }
    }

    /// Returns the status, the headers and what the handler has seen, or `None` if the outer of two layers denies.
    async fn ask(&self, cost: u64, settled: Option<u64>) -> Option<String> {
        let service = service_fn(move |request: Request<Body>| async move {
            let permit = Permit::of(request.extensions()).expect("a permit");
            let mut seen = String::new();
            if let Some(settled) = settled {
                let settled = permit.settle(settled).await.unwrap();
                seen = format!("{} {}", settled.shortfall, permit.charge(1).await.unwrap().is_allowed());
            }
            Ok::<_, std::convert::Infallible>(Response::builder().header("x-seen", seen).body(Body::empty()).unwrap())
        });
        let request = Request::get("/").header("x-cost", cost).body(Body::empty()).unwrap();
        let response = match &self.inner {
            None => self.outer.layer(service).oneshot(request).await.unwrap().map(drop),
            Some(inner) => {
                let inner = inner.layer(service);
                let reached = service_fn(move |request: Request<Body>| {
                    let inner = inner.clone();
                    async move { inner.oneshot(request).await.map(|response| add_header(response.map(|_| Body::empty()))) }
                });
                let response = self.outer.layer(reached).oneshot(request).await.unwrap().map(drop);
                response.headers().get("x-reached")?;
                response
            }
        };
        let mut headers: Vec<_> = response.headers().iter().filter(|(name, _)| *name != "x-reached").collect();
        headers.sort_by_key(|(name, _)| name.as_str());
        Some(format!("{} {headers:?}", response.status()))
    }
}

fn add_header(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert("x-reached", "yes".parse().unwrap());
    response
}

proptest! {
    #![proptest_config(support::cases(500))]

    /// As long as the layer of the router allows the request.
    #[test]
    fn a_route_in_a_router_decides_as_a_single_layer_does(
        limits in mixed(),
        requests in prop::collection::vec((1..8_u64, prop::option::of(0..9_u64), 0..90_u64), 1..25),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let [single, nested] = [false, true].map(|is_nested| Layers::new(&limits, is_nested));
            for (cost, settled, wait) in requests {
                let answers = (nested.ask(cost, settled).await, single.ask(cost, settled).await.unwrap());
                match answers {
                    (Some(nested), single) => prop_assert_eq!(nested, single),
                    (None, single) => prop_assert!(single.starts_with("429"), "{}", single),
                }
                [&single, &nested].iter().for_each(|layers| layers.clock.advance(Duration::from_secs(wait)));
            }
            Ok::<_, TestCaseError>(())
        })?;
    }
}
