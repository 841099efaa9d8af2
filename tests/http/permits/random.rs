//! Random calls of permits: no more than the limit is admitted, no credit is created, and no reset moves.

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
