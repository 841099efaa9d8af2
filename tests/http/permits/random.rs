//! Random calls of permits: no more than the limit is admitted, no credit is created, and no reset moves. A route with a
//! cost of its own decides as a single layer would.

use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use proptest::prelude::*;
use support::model::{Charged, Model};
use support::rule::{Kind, Rule};
use tower::{Layer, ServiceExt, service_fn};
use tower_ratelimit::{
    Algorithm, FixedWindow, HeaderStyle, Limit, ManualClock, MemoryStore, Permit, RateLimitLayer, ResetFormat,
    SlidingLog, Timestamp, TokenBucket,
};

use super::settle_each;

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

/// A model of a limit whose charges are those of permits.
struct Charges {
    model: Model,
    now: u64,
    /// The charges: their permits, and their tokens that are not refunded.
    charges: Vec<(usize, Charged, u64)>,
}

impl Charges {
    fn left(&self) -> u64 {
        self.model.remaining(self.now.into())
    }

    fn paid(&self, by: usize) -> u64 {
        self.charges.iter().filter(|charge| charge.0 == by).map(|charge| charge.2).sum()
    }

    fn take(&mut self, by: usize, tokens: u64) {
        if tokens == 0 {
            return;
        }
        let charged = self.model.charge(self.now, tokens);
        // Charges of a request after which a bucket is full at the same instant are refunded as one.
        let last = self.charges.iter_mut().rfind(|charge| charge.0 == by && charge.2 > 0);
        let is_bucket = matches!(self.model.rule, Rule::Bucket { .. });
        match last.filter(|last| is_bucket && last.1.drains_with(&charged)) {
            Some(last) => last.2 += tokens,
            None => self.charges.push((by, charged, tokens)),
        }
    }

    /// The last charge is refunded first.
    fn refund(&mut self, by: usize, mut tokens: u64) {
        for charge in self.charges.iter_mut().rev().filter(|charge| charge.0 == by) {
            let back = charge.2.min(tokens);
            charge.2 -= back;
            self.model.refund(&charge.1, self.now, back);
            tokens -= back;
        }
    }
}

struct Run {
    charges: Charges,
    clock: ManualClock,
    layer: RateLimitLayer,
    permits: Vec<Permit>,
}

impl Run {
    fn new(rule: Rule) -> Self {
        let clock = ManualClock::new(Timestamp::EPOCH);
        let limit = Limit::new("limit", rule.algorithm()).count_if(|response| response.status == 200);
        let cost =
            |head: &tower_ratelimit::RequestHead<'_>| head.header("x-cost").map_or(0, |cost| cost.parse().unwrap());
        let layer = RateLimitLayer::builder(limit)
            .store(MemoryStore::new().clock(clock.clone()))
            .headers(HeaderStyle::XRateLimit(ResetFormat::Epoch))
            .cost_by(cost)
            .permits()
            .build();
        Self {
            charges: Charges { model: Model::new(rule), now: 0, charges: Vec::new() },
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
        let left = self.charges.left();
        match act {
            Act::Request { cost, counts } => {
                let response = self.ask(cost, if counts { 200 } else { 404 }).await;
                prop_assert!(response.status() == 429 || cost <= left, "{cost} of {left} was allowed");
                prop_assert!(response.status() != 429 || cost > left, "{cost} of {left} was denied");
                if response.status() != 429 {
                    let by = self.permits.len();
                    self.charges.take(by, if counts { cost } else { 0 });
                    self.permits.push(response.extensions().get::<Permit>().expect("a permit").clone());
                }
            }
            Act::Charge(which, more) => {
                let Some((by, permit)) = one(which, &self.permits) else { return Ok(()) };
                if permit.charge(more).await.unwrap().is_allowed() {
                    prop_assert!(more <= left, "{more} of {left} were charged");
                    self.charges.take(by, more);
                }
            }
            Act::Settle(which, actual) => {
                let Some((by, permit)) = one(which, &self.permits) else { return Ok(()) };
                let paid = self.charges.paid(by);
                let shortfall = permit.settle(actual).await.unwrap().shortfall;
                if actual <= paid {
                    prop_assert_eq!(shortfall, 0);
                    self.charges.refund(by, paid - actual);
                } else {
                    prop_assert!(actual - shortfall - paid <= left, "{actual} but {shortfall} of {left} after {paid}");
                    self.charges.take(by, actual - shortfall - paid);
                }
            }
            Act::Refund(which) => {
                let Some((by, permit)) = one(which, &self.permits) else { return Ok(()) };
                permit.refund().await.unwrap();
                self.charges.refund(by, u64::MAX);
            }
            Act::Wait(seconds) => {
                self.charges.now += 1_000_000 * seconds;
                self.clock.advance(Duration::from_secs(seconds));
            }
        }
        Ok(())
    }

    async fn check_remaining(&self) -> Result<(), TestCaseError> {
        let reported = self.ask(0, 200).await;
        let number = |name: &str| reported.headers()[name].to_str().unwrap().parse::<u64>().unwrap();
        let (left, resets_at) = (number("x-ratelimit-remaining"), number("x-ratelimit-reset"));
        prop_assert_eq!(left, self.charges.left());
        let Charges { model, now, .. } = &self.charges;
        if !matches!(model.rule, Rule::Bucket { .. }) {
            prop_assert_eq!(u128::from(resets_at) * 1_000_000, u128::from(*now) + model.reset_after((*now).into()));
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(support::cases(200))]

    #[test]
    fn permits_are_sound(which in 0..3_usize, acts in acts()) {
        let (limit, period) = (20, 1_000_000_000);
        let rule = [
            Rule::FixedWindow { limit, period },
            Rule::SlidingLog { limit, period },
            Rule::Bucket { kind: Kind::Tokens, capacity: limit, amount: limit, interval: period },
        ][which];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let mut run = Run::new(rule);
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
                let shortfall = settle_each(&permit, settled).await;
                seen = format!("{shortfall} {}", permit.charge(1).await.unwrap().is_allowed());
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
