//! What all services of a limiter share.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::Extensions;
use smallvec::SmallVec;

use super::headers::Headers;
use super::lists::Lists;
use super::merge::is_first_report;
use super::rejection_format::RejectionFormat;
use crate::cost::Cost;
use crate::error::ConfigError;
#[cfg(feature = "tracing")]
use crate::limit::Limit;
use crate::limit::{Derived, LimitsSnapshot};
use crate::resilience::StoreClient;

/// All that a limiter's services share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) client: Arc<StoreClient>,
    pub(super) lists: Lists,
    pub(super) cost: Cost,
    pub(super) headers: Headers,
    pub(super) format: RejectionFormat,
    /// Whether handlers may charge and give back.
    pub(super) permits: bool,
    pub(super) identity: Arc<Identity>,
    pub(super) variant: Variant,
    /// Its rules, if they can be replaced: what requests go by is made of both.
    pub(super) following: Option<Derived<Shared>>,
    /// What was made so: of which rules.
    pub(super) set: Option<Arc<LimitsSnapshot>>,
}

/// What makes a limiter the same one on a router and on its routes.
#[derive(Debug, Default)]
pub(super) struct Identity {
    /// How many variants of it, which charge differently, are in use.
    variants: AtomicUsize,
    /// It was reported that the server does not provide a key.
    pub(super) has_reported: AtomicBool,
    /// How many requests were marked, to find out whether a layer is applied twice.
    marked: AtomicUsize,
    /// It was reported that a layer is applied twice.
    has_reported_twice: AtomicBool,
    /// Whether it was logged that a request lacks an extension.
    pub(super) has_reported_extension: AtomicBool,
}

/// How many requests are marked. A mark takes an allocation or two, which most requests are to be spared.
const MARKED: usize = 64;

/// A mark among a request's extensions: the limiters' variants that it has passed.
#[derive(Clone, Default)]
struct Passed(SmallVec<[Arc<AtomicBool>; 2]>);

/// A way in which a limiter charges, and whether it is in use. A copy is another one.
#[derive(Debug, Default)]
pub(super) struct Variant(Arc<AtomicBool>);

impl Clone for Variant {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Variant {
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Shared {
    /// What a request goes by that comes now, to its end.
    #[inline]
    pub(super) fn present(self: &Arc<Self>) -> Cow<'_, Arc<Self>> {
        match &self.following {
            None => Cow::Borrowed(self),
            Some(following) => Cow::Owned(following.get(self, Self::by)),
        }
    }

    /// Derives what requests go by, unless that is done, and has it kept up to date.
    pub(super) fn prepare(self: &Arc<Self>) {
        drop(self.present());
    }

    /// What a request goes by that came earlier, and goes by the rules of `other`.
    pub(super) fn beside(self: &Arc<Self>, other: &Self) -> Cow<'_, Arc<Self>> {
        let present = self.present();
        match (&other.set, &present.set) {
            (Some(then), Some(now)) if !Arc::ptr_eq(then, now) => Cow::Owned(Arc::new(self.by(then))),
            _ => present,
        }
    }

    fn by(&self, set: &Arc<LimitsSnapshot>) -> Self {
        let client = self.client.with_limits(set);
        let mut shared = Self { client: Arc::new(client), following: None, set: Some(set.clone()), ..self.clone() };
        shared.headers.set_limits(shared.client.limits().as_slice());
        // It charges in the same way.
        shared.variant = Variant(self.variant.0.clone());
        shared
    }

    /// Returns a variant of this limiter with another cost.
    ///
    /// # Errors
    ///
    /// See [`check_cost`](Self::check_cost).
    pub(super) fn with_cost(&self, cost: Cost) -> Result<Arc<Self>, ConfigError> {
        let mut variant = Self { cost, ..self.clone() };
        variant.following.iter_mut().for_each(Derived::reset);
        variant.check_cost()?;
        Ok(Arc::new(variant))
    }

    /// Checks that every limit can allow the cost, now and after a replacement of live limits.
    ///
    /// # Errors
    ///
    /// A limit could never allow a constant cost, or a path in a cost table does not start with a slash.
    pub(super) fn check_cost(&self) -> Result<(), ConfigError> {
        self.cost.validate()?;
        let Some(largest) = self.cost.largest() else { return Ok(()) };
        match &self.following {
            Some(following) => following.live_limits().require_cost(largest),
            None => self.client.limits().check_cost(largest),
        }
    }

    /// Notes that a service was made of this variant.
    pub(super) fn note_use(&self) {
        if !self.variant.0.swap(true, Ordering::Relaxed) {
            self.identity.variants.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Marks one of the first requests, and reports if it has come through the same layer before.
    #[inline]
    pub(super) fn mark(self: &Arc<Self>, extensions: &mut Extensions) {
        if self.identity.marked.load(Ordering::Relaxed) < MARKED {
            self.mark_first(extensions);
        }
    }

    #[cold]
    fn mark_first(self: &Arc<Self>, extensions: &mut Extensions) {
        self.identity.marked.fetch_add(1, Ordering::Relaxed);
        let Passed(variants) = extensions.get_or_insert_default();
        if !variants.iter().any(|variant| Arc::ptr_eq(variant, &self.variant.0)) {
            variants.push(self.variant.0.clone());
        } else if !self.identity.has_reported_twice.swap(true, Ordering::Relaxed) {
            let present = self.present();
            // Not once more when its headers are merged.
            present.headers.limit_names().for_each(|name| _ = is_first_report(name));
            #[cfg(feature = "tracing")]
            tracing::warn!(
                limit = present.client.limits().as_slice().first().map_or("", Limit::name),
                "a request passed the same layer twice, and was charged twice: apply the layer once, to a router or \
                 to its routes. For a route that costs something else, use `layer.cost(…)`. If a handler sends \
                 requests to its own service, it must not copy the extensions of the request it handles",
            );
        }
    }

    /// Whether a request that goes on may be charged more or less later: then a note goes with it of
    /// what it was charged.
    #[inline]
    pub(super) fn keeps_a_ledger(&self) -> bool {
        self.permits || self.has_variants() || self.client.limits().settles_by_response()
    }

    /// Whether a request may meet this limiter more than once, at different costs.
    #[inline]
    pub(super) fn has_variants(&self) -> bool {
        self.identity.variants.load(Ordering::Relaxed) > 1
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("client", &self.client)
            .field("lists", &self.lists)
            .field("cost", &self.cost)
            .field("format", &self.format)
            .finish_non_exhaustive()
    }
}
