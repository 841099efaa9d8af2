//! Counts of decisions, for an admin endpoint.

use std::cmp::Reverse;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::per_label::PerLabel;
use super::{DecisionRecord, LimitRecord, Recorder, Rejection};
use crate::decision::OutcomeKind;
use crate::error::printable;
use crate::key::head::RequestHead;

/// The longest display of a key, in bytes. Clients may choose a part of it.
const MAX_DISPLAY: usize = 128;

/// Counts the decisions of each limit in this process, and optionally finds the keys that are denied most often.
///
/// Add it to a limiter by [`Builder::recorder`](crate::Builder::recorder). Clones share the counts, so that several
/// limiters can count together. Limits with the same name are counted together.
///
/// ```
/// use axum::{Router, routing::get};
/// use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, Stats, key};
///
/// let stats = Stats::new().top_keys(10).display_keys(|_, head| Some(head.header("x-user")?.to_owned()));
/// let limits = RateLimitLayer::builder([Limit::new("users", FixedWindow::per_minute(60)).by(key::header("x-user"))])
///     .recorder(stats.clone())
///     .build();
///
/// // Behind authentication: the keys of clients may be confidential.
/// let admin: Router = Router::new().route("/stats", get(move || async move { format!("{:#?}", stats.limits()) }));
/// let app: Router = Router::new().route("/", get("hello")).layer(limits).merge(admin);
/// ```
#[derive(Clone, Default)]
pub struct Stats {
    limits: Arc<PerLabel<Counters>>,
    top_keys: usize,
    display: Option<Arc<DisplayKey>>,
}

type DisplayKey = dyn Fn(&str, &RequestHead<'_>) -> Option<String> + Send + Sync;

#[derive(Default)]
struct Counters {
    allowed: AtomicU64,
    denied: AtomicU64,
    shadow_denied: AtomicU64,
    charged: AtomicU64,
    top_keys: Mutex<TopKeys>,
}

/// The keys denied most often, with their fingerprints. The text of a key is empty until it is displayed.
type TopKeys = Vec<(u128, TopKey)>;

/// The counts of a limit, since its [`Stats`] were created. Serializes with the feature `serde`.
#[derive(Clone, Debug, Eq, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LimitStats {
    /// The name of the limit.
    pub limit: String,
    /// The number of requests for which the limit had capacity, including delayed ones and those that used overage or
    /// debt.
    pub allowed: u64,
    /// The number of requests that the limit denied.
    pub denied: u64,
    /// The number of requests that the limit would have denied if it were not in [shadow mode](crate::Limit::shadow).
    pub shadow_denied: u64,
    /// The number of tokens charged. Refunds are not subtracted.
    pub charged: u64,
    /// The keys that were denied most often, in descending order. Empty unless [enabled](Stats::top_keys).
    pub top_keys: Vec<TopKey>,
}

/// A key that a limit denied often.
#[derive(Clone, Debug, Eq, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct TopKey {
    /// The key as [`Stats::display_keys`] displays it, or its fingerprint in hexadecimal.
    pub key: String,
    /// The number of its denials, at most.
    pub denied: u64,
    /// The number of these denials that may be those of other keys.
    pub error: u64,
}

impl Stats {
    /// Creates a recorder whose counts are 0.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Finds the keys that each limit denies most often, at most `keys` of them, up to 1,000. Defaults to 0.
    ///
    /// Each key takes a few hundred bytes. With more keys, the counts of the first ones are more exact. Each denial
    /// takes a lock.
    #[must_use]
    pub fn top_keys(self, keys: usize) -> Self {
        Self { top_keys: keys.min(1_000), ..self }
    }

    /// Sets the function that displays a key, from the name of the limit and the first request with that key that it
    /// denied. At most 128 bytes of the result are kept. By default, and if `display` returns `None` or an empty
    /// text, a key is displayed by its fingerprint, which does not reveal it.
    ///
    /// Display the value that the limit is keyed by: if an address is denied, the user of one of its requests says
    /// little about it.
    ///
    /// ```
    /// use tower_ratelimit::Stats;
    /// use tower_ratelimit::key::PeerAddr;
    ///
    /// let stats = Stats::new().top_keys(10).display_keys(|limit, head| match limit {
    ///     "users" => Some(head.header("x-user")?.to_owned()),
    ///     "addresses" => Some(head.extensions.get::<PeerAddr>()?.0.ip().to_string()),
    ///     _ => None,
    /// });
    /// # let _ = stats;
    /// ```
    ///
    /// A limiter without HTTP has no requests: its keys are displayed by their fingerprints.
    #[must_use]
    pub fn display_keys(
        self,
        display: impl Fn(&str, &RequestHead<'_>) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self { display: Some(Arc::new(display)), ..self }
    }

    /// Returns the counts of all limits that have decided a request, ordered by name.
    #[must_use]
    pub fn limits(&self) -> Vec<LimitStats> {
        let read = |(limit, counters): (&str, &Counters)| {
            let mut keys = counters.top_keys().clone();
            keys.sort_by_key(|(fingerprint, key)| (Reverse(key.denied), *fingerprint));
            for (fingerprint, key) in keys.iter_mut().filter(|(_, key)| key.key.is_empty()) {
                key.key = format!("{fingerprint:032x}");
            }
            LimitStats {
                limit: limit.to_owned(),
                allowed: counters.allowed.load(Ordering::Relaxed),
                denied: counters.denied.load(Ordering::Relaxed),
                shadow_denied: counters.shadow_denied.load(Ordering::Relaxed),
                charged: counters.charged.load(Ordering::Relaxed),
                top_keys: keys.into_iter().map(|(_, key)| key).collect(),
            }
        };
        self.limits.entries().into_iter().map(read).collect()
    }

    fn counters(&self, limit: &LimitRecord<'_>) -> &Counters {
        self.limits.get(limit.name, |_| Counters::default())
    }
}

impl Recorder for Stats {
    fn decision(&self, decision: &DecisionRecord<'_>) {
        for limit in decision.limits() {
            let counters = self.counters(&limit);
            let counter = match limit.outcome.kind() {
                OutcomeKind::Denied => &counters.denied,
                OutcomeKind::ShadowDenied => &counters.shadow_denied,
                OutcomeKind::QuotaExceeded => continue,
                OutcomeKind::Allowed | OutcomeKind::Delayed | OutcomeKind::Overage | OutcomeKind::Debt => {
                    &counters.allowed
                }
            };
            counter.fetch_add(1, Ordering::Relaxed);
            counters.charged.fetch_add(limit.charged(), Ordering::Relaxed);
            if self.top_keys > 0 && limit.outcome.kind() == OutcomeKind::Denied {
                count_key(&mut counters.top_keys(), limit.outcome.fingerprint(), self.top_keys);
            }
        }
    }

    /// Displays the denied keys that are kept and have no text yet.
    fn rejection(&self, rejection: &Rejection<'_>) {
        let Some(display) = &self.display else { return };
        for limit in rejection.denied_by() {
            let (counters, fingerprint) = (self.counters(&limit), limit.outcome.fingerprint());
            if find_key(&mut counters.top_keys(), fingerprint).is_none_or(|key| !key.key.is_empty()) {
                continue;
            }
            // Not called under the lock, because it is the user's.
            let Some(text) = display(limit.name, &rejection.head) else { continue };
            let text = printable(&text);
            let end = (0..=MAX_DISPLAY.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
            if let Some(key) = find_key(&mut counters.top_keys(), fingerprint) {
                key.key = text[..end].to_owned();
            }
        }
    }
}

impl Counters {
    fn top_keys(&self) -> MutexGuard<'_, TopKeys> {
        self.top_keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.limits()).finish()
    }
}

/// Counts a denial of a key, and keeps at most `capacity` keys, by the Space-Saving algorithm (Metwally, Agrawal and
/// El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data Streams", 2005): a new key replaces the
/// least frequent one and inherits its count.
fn count_key(keys: &mut TopKeys, fingerprint: u128, capacity: usize) {
    if let Some(known) = find_key(keys, fingerprint) {
        known.denied += 1;
    } else if keys.len() < capacity {
        keys.push((fingerprint, TopKey { key: String::new(), denied: 1, error: 0 }));
    } else if let Some(rarest) = keys.iter_mut().min_by_key(|(_, key)| key.denied) {
        let error = rarest.1.denied;
        *rarest = (fingerprint, TopKey { key: String::new(), denied: error + 1, error });
    }
}

fn find_key(keys: &mut TopKeys, fingerprint: u128) -> Option<&mut TopKey> {
    keys.iter_mut().find(|(known, _)| *known == fingerprint).map(|(_, key)| key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frequent_key_is_found_among_many_rare_ones() {
        let mut keys = TopKeys::new();
        for rare in 0..10_000 {
            count_key(&mut keys, 1_000 + rare, 10);
            if rare % 4 == 0 {
                count_key(&mut keys, 1, 10);
            }
        }
        let (first, key) = keys.iter().max_by_key(|(_, key)| key.denied).unwrap();
        assert_eq!(*first, 1);
        assert!((2_500 - key.error..=2_500 + key.error).contains(&key.denied), "{key:?}");
        assert_eq!(keys.len(), 10);
    }

    #[test]
    fn few_keys_are_counted_exactly_and_read_in_descending_order() {
        let stats = Stats::new();
        let counters = stats.limits.get("limit", |_| Counters::default());
        for (fingerprint, times) in [(7, 3), (8, 5), (9, 1)] {
            (0..times).for_each(|_| count_key(&mut counters.top_keys(), fingerprint, 3));
        }
        let top_keys = stats.limits().remove(0).top_keys;
        let counts: Vec<_> = top_keys.iter().map(|key| (&key.key[30..], key.denied, key.error)).collect();
        assert_eq!(counts, [("08", 5, 0), ("07", 3, 0), ("09", 1, 0)]);
    }
}
