//! Limits that are looked for together: one look at a request says which of them it meets, where each
//! would otherwise be asked.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use super::OnMissingKey;
use crate::key::{KeyBuf, KeyError};
use crate::request::RequestHead;

/// Finds which of some limits a request meets.
pub(crate) trait Search: Send + Sync + 'static {
    /// Hands `meet` the place of each limit that the request meets, in the order of places, with its key
    /// or with why that is missing. Where something is yet to come, nothing is handed, and what is met
    /// then is returned.
    fn search(&self, head: &RequestHead<'_>, meet: &mut Meet<'_>) -> Option<Searching>;

    /// The most that one request can meet, of the limits at the places for which `limit` says what becomes
    /// of requests without a key.
    fn most(&self, limit: &dyn Fn(usize) -> Option<OnMissingKey>) -> usize;
}

/// Whoever is handed what a request meets.
pub(crate) type Meet<'a> = dyn FnMut(usize, Result<&KeyBuf, KeyError>) + 'a;

/// What a request meets, once it is known.
pub(crate) type Searching = Pin<Box<dyn Future<Output = Vec<(usize, Result<KeyBuf, KeyError>)>> + Send>>;

/// Where a limit is among those that are looked for together.
#[derive(Clone)]
pub(crate) struct Place {
    pub(super) search: Arc<dyn Search>,
    pub(super) index: usize,
}

/// Some limits of a limiter that are looked for together.
#[derive(Clone)]
pub(crate) struct Together {
    pub(crate) search: Arc<dyn Search>,
    /// Which limit of the limiter is at each place, if it is there.
    limits: Vec<Option<u16>>,
}

impl Together {
    pub(super) fn new(search: Arc<dyn Search>) -> Self {
        Self { search, limits: Vec::new() }
    }

    pub(super) fn put(&mut self, place: usize, limit: u16) {
        if self.limits.len() <= place {
            self.limits.resize(place + 1, None);
        }
        self.limits[place] = Some(limit);
    }

    /// The limiter's limit at a place.
    pub(crate) fn at(&self, place: usize) -> Option<usize> {
        self.limits.get(place).copied().flatten().map(usize::from)
    }
}
