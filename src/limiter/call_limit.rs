//! The layer and the service that limit calls of any Tower service.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, mem};

use smallvec::SmallVec;
use tower_layer::Layer;
use tower_service::Service;

use super::Limiter;
use super::acquire::allowed;
use super::acquire_error::AcquireError;
use super::call_error::CallError;
use super::wait::{delay, wait};
use crate::engine::{Engine, SlotGuard};
use crate::error::or_panic;
use crate::key::Key;
use crate::key::hash::{KeyHash, KeyHasher};
use crate::limit::Limit;

/// Limits the calls of a Tower service with requests of any type, such as jobs, messages and outgoing calls.
///
/// Created by [`Limiter::layer`]. By default, each call costs one token of every limit, and a denial is an error. The
/// order in which the methods are called does not matter. [`Limiter::explain`] explains the limits without the
/// closures.
///
/// ```
/// use std::time::Duration;
/// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
/// use tower_ratelimit::{CallError, FixedWindow, Limit, Limiter, TokenBucket};
///
/// struct Job {
///     tenant: String,
///     user: u64,
///     rows: u64,
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::new([
///     Limit::new("jobs", TokenBucket::per_second(10)),
///     Limit::new("rows", FixedWindow::per_day(1_000)),
/// ]);
/// let limits = limiter
///     .layer(|job: &Job| job.tenant.clone())
///     // Another key and cost for one of the limits. `None` would leave it out.
///     .charge("rows", |job: &Job| Some((job.user, job.rows)))
///     .wait_at_most(Duration::from_secs(5));
///
/// let run = service_fn(async |job: Job| Ok::<_, std::io::Error>(job.rows));
/// let mut worker = ServiceBuilder::new().layer(limits).service(run);
///
/// let job = |rows| Job { tenant: "shop".to_owned(), user: 7, rows };
/// assert_eq!(worker.ready().await?.call(job(400)).await?, 400);
/// let error = worker.ready().await?.call(job(700)).await.unwrap_err();
/// assert!(matches!(error, CallError::Limited(error) if error.is_denied()));
/// # Ok(())
/// # }
/// ```
#[must_use = "a layer does nothing until it is applied to a service"]
pub struct CallLimitLayer<R> {
    config: Arc<CallConfig<R>>,
}

/// How calls are limited.
struct CallConfig<R> {
    limiter: Limiter,
    key: Arc<KeyOf<R>>,
    cost: Arc<CostOf<R>>,
    /// The charges of single limits, by name.
    charges: Vec<(Box<str>, Arc<ChargeOf<R>>)>,
    /// How long a call may wait until the limits allow it. `None` if it does not wait.
    longest_wait: Option<Duration>,
}

type KeyOf<R> = dyn Fn(&R, &KeyHasher) -> KeyHash + Send + Sync;
type CostOf<R> = dyn Fn(&R) -> u64 + Send + Sync;
type ChargeOf<R> = dyn Fn(&R, &KeyHasher) -> Option<(KeyHash, u64)> + Send + Sync;

impl Limiter {
    /// Returns a layer that limits the calls of a service by the key that `key` returns for each request.
    ///
    /// Requests can be of any type. For HTTP servers and clients, a [`RateLimitLayer`](crate::RateLimitLayer) has
    /// extractors of keys, and responses with headers.
    #[doc(alias = "job")]
    #[doc(alias = "worker")]
    pub fn layer<R, K: Key>(&self, key: impl Fn(&R) -> K + Send + Sync + 'static) -> CallLimitLayer<R> {
        CallLimitLayer {
            config: Arc::new(CallConfig {
                limiter: self.clone(),
                key: Arc::new(move |request, hasher| key(request).hash_with(hasher)),
                cost: Arc::new(|_| 1),
                charges: Vec::new(),
                longest_wait: None,
            }),
        }
    }
}

impl<R> CallLimitLayer<R> {
    /// Sets the number of tokens that a call costs, for all limits without a [`charge`](Self::charge) of their own. A
    /// cost of 0 takes nothing. Defaults to 1.
    pub fn cost(mut self, cost: impl Fn(&R) -> u64 + Send + Sync + 'static) -> Self {
        Arc::make_mut(&mut self.config).cost = Arc::new(cost);
        self
    }

    /// Sets the key and the cost of a call for the limit called `limit`. If the closure returns `None`, the limit does
    /// not apply to the call.
    ///
    /// # Panics
    ///
    /// Panics if no limit has that name.
    #[track_caller]
    pub fn charge<K: Key>(
        mut self,
        limit: &str,
        charge: impl Fn(&R) -> Option<(K, u64)> + Send + Sync + 'static,
    ) -> Self {
        or_panic(self.config.limiter.limit(limit));
        let charge = move |request: &R, hasher: &KeyHasher| {
            let (key, cost) = charge(request)?;
            Some((key.hash_with(hasher), cost))
        };
        let charges = &mut Arc::make_mut(&mut self.config).charges;
        charges.retain(|(name, _)| **name != *limit);
        charges.push((limit.into(), Arc::new(charge)));
        self
    }

    /// Lets a call wait until the limits allow it, for `longest` at most, as [`Limiter::wait_at_most`] does. By
    /// default, calls wait only in a [`LeakyBucketQueue`](crate::LeakyBucketQueue).
    ///
    /// Calls with the same key of the [layer](Limiter::layer) are served in the order in which their futures are first
    /// polled, whatever the keys of their [charges](Self::charge) are.
    ///
    /// A call that waits keeps what the inner service has reserved for it by being ready, such as a permit of
    /// `ConcurrencyLimit`. Place such a layer outside this one, if calls of other keys should not wait for that.
    pub fn wait_at_most(mut self, longest: Duration) -> Self {
        Arc::make_mut(&mut self.config).longest_wait = Some(longest);
        self
    }
}

impl<S, R> Layer<S> for CallLimitLayer<R> {
    type Service = CallLimit<S, R>;

    fn layer(&self, inner: S) -> Self::Service {
        CallLimit { inner, config: self.config.clone() }
    }
}

/// Limits the calls of a service. Created by a [`CallLimitLayer`].
///
/// Its error is a [`CallError`], which tells a denial from an error of the service. A call that is dropped while it
/// waits takes no tokens: a slot of a [`LeakyBucketQueue`](crate::LeakyBucketQueue) is refunded if it is the last one.
pub struct CallLimit<S, R> {
    inner: S,
    config: Arc<CallConfig<R>>,
}

impl<S, R> Service<R> for CallLimit<S, R>
where
    S: Service<R> + Clone + Send + 'static,
    S::Future: Send,
    R: Send + 'static,
{
    type Response = S::Response;
    type Error = CallError<S::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, Self::Error>> + Send>>;

    /// Polls the inner service. Limits never make this service unready, because they depend on the request.
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(CallError::Service)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let clone = self.inner.clone();
        // The service that was polled ready. If the call is denied, dropping it releases what it has reserved.
        let mut service = mem::replace(&mut self.inner, clone);
        let admission = self.config.admit(&request);
        Box::pin(async move {
            // Holds its slots until the call ends.
            let _held = admission.await.map_err(CallError::Limited)?;
            service.call(request).await.map_err(CallError::Service)
        })
    }
}

impl<R> CallConfig<R> {
    /// Returns a future that is ready once a call may proceed.
    fn admit(&self, request: &R) -> impl Future<Output = Result<SlotGuard, AcquireError>> + Send + use<R> {
        let engine = self.limiter.current().into_owned();
        let key = (self.key)(request, engine.hasher());
        let asked = self.asked(&engine, request, key);
        let longest_wait = self.longest_wait;
        async move {
            let charges = || {
                let mut charges = engine.limits.no_charges();
                asked.iter().for_each(|&(limit, key, cost)| engine.limits.add(&mut charges, limit, key, cost));
                charges
            };
            if let Some(longest) = longest_wait {
                let cost = asked.iter().map(|&(_, _, cost)| cost).max().unwrap_or_default();
                return wait(&engine, key, cost, charges, longest).await;
            }
            delay(&engine, allowed(engine.hold(charges()).await?)?).await
        }
    }

    /// Returns the limits that apply to a call, each with its key and cost.
    fn asked(&self, engine: &Engine, request: &R, key: KeyHash) -> SmallVec<[(usize, KeyHash, u64); 4]> {
        let cost = (self.cost)(request);
        let asked = |(index, limit): (usize, &Limit)| {
            let own = self.charges.iter().find(|(name, _)| **name == *limit.name());
            let charge = own.map_or(Some((key, cost)), |(_, charge)| charge(request, engine.hasher()));
            charge.map(|(key, cost)| (index, key, cost))
        };
        engine.limits.iter().enumerate().filter_map(asked).collect()
    }
}

// Derived, these would require that `R` can be cloned.
impl<R> Clone for CallConfig<R> {
    fn clone(&self) -> Self {
        Self {
            limiter: self.limiter.clone(),
            key: self.key.clone(),
            cost: self.cost.clone(),
            charges: self.charges.clone(),
            longest_wait: self.longest_wait,
        }
    }
}

impl<R> Clone for CallLimitLayer<R> {
    fn clone(&self) -> Self {
        Self { config: self.config.clone() }
    }
}

impl<S: Clone, R> Clone for CallLimit<S, R> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), config: self.config.clone() }
    }
}

impl<R> fmt::Debug for CallLimitLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CallLimitLayer").field(&self.config.limiter).finish()
    }
}

impl<S: fmt::Debug, R> fmt::Debug for CallLimit<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallLimit").field("inner", &self.inner).field("limiter", &self.config.limiter).finish()
    }
}
