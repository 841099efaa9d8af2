//! Indexes: limits that are found together, by one lookup per request, rather than checked one by one.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use super::policy::OnMissingKey;
use crate::key::heads::RequestHead;
use crate::key::{KeyBuf, KeyError, KeyPart};

/// Finds the limits that apply to a request, among limits that are numbered by position.
pub(crate) trait LimitIndex: Send + Sync + 'static {
    /// Calls `on_match` with the position of each limit that matches the request, in ascending order. Returns `None`
    /// when all matches have been passed to `on_match`. If a key is asynchronous, `on_match` is not called, and the
    /// returned future resolves to all matches.
    ///
    /// A limit replaces others only if `policy` returns its policy for missing keys, and it has a key by that policy.
    fn find(
        &self,
        head: &RequestHead<'_>,
        policy: &MissingKeyPolicy<'_>,
        on_match: &mut OnMatch<'_>,
    ) -> Option<PendingMatches>;

    /// Describes the key of the limit at a position, for explanations.
    fn describe_key(&self, position: usize, head: &RequestHead<'_>) -> Vec<KeyPart>;

    /// Returns the maximum number of matches for one request, among the positions for which `policy` returns the
    /// limit's policy for missing keys.
    fn max_matches(&self, policy: &MissingKeyPolicy<'_>) -> usize;
}

/// The key of a limit that matches a request, unless the key is missing. `None` if another match replaces the limit.
pub(crate) type Match<K> = Option<Result<K, KeyError>>;

/// Returns the policy for missing keys of the limit at a position, or `None` if the limiter lacks the limit or its
/// condition does not hold.
pub(crate) type MissingKeyPolicy<'a> = dyn Fn(usize) -> Option<OnMissingKey> + 'a;

/// Receives the position of a limit that matches.
pub(crate) type OnMatch<'a> = dyn FnMut(usize, Match<&KeyBuf>) + 'a;

/// The matches of a request with asynchronous keys.
pub(crate) type PendingMatches = Pin<Box<dyn Future<Output = Vec<(usize, Match<KeyBuf>)>> + Send>>;

/// The position of a limit in an index.
#[derive(Clone)]
pub(crate) struct IndexPosition {
    pub(crate) index: Arc<dyn LimitIndex>,
    pub(crate) position: usize,
}

/// An index, and the limits of a limiter that are in it.
#[derive(Clone)]
pub(crate) struct IndexedLimits {
    pub(super) index: Arc<dyn LimitIndex>,
    /// The number of the limit at each position. `None` if the limiter does not have it.
    limits: Vec<Option<u16>>,
}

impl IndexedLimits {
    pub(super) fn new(index: Arc<dyn LimitIndex>) -> Self {
        Self { index, limits: Vec::new() }
    }

    pub(super) fn insert(&mut self, position: usize, limit: u16) {
        if self.limits.len() <= position {
            self.limits.resize(position + 1, None);
        }
        self.limits[position] = Some(limit);
    }

    /// Returns the numbers of the limiter's limits in the index.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = usize> {
        self.limits.iter().copied().flatten().map(usize::from)
    }

    /// Returns the number of the limiter's limit at `position`.
    pub(crate) fn get(&self, position: usize) -> Option<usize> {
        self.limits.get(position).copied().flatten().map(usize::from)
    }
}
