//! The state of each upstream: a bounded map from keys of requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use http::Request;
use http::header::HOST;

use crate::key::hash::{KeyHash, KeyHasher};
use crate::key::head::RequestHead;
use crate::key::{Hashed, KeyExtractor};

/// The maximum number of upstreams whose state is kept.
const MAX_UPSTREAMS: usize = 1_000;

/// The states of upstreams. Clones share them.
pub(super) struct Upstreams<T> {
    /// `None` stands for the host and the port.
    by: Option<Arc<dyn KeyExtractor>>,
    hasher: KeyHasher,
    states: Arc<Mutex<States<T>>>,
}

struct States<T> {
    by_key: HashMap<KeyHash, (Arc<T>, u64)>,
    /// The number of lookups, by which the least recently used state is found.
    lookups: u64,
}

impl<T> Upstreams<T> {
    pub(super) fn new() -> Self {
        let states = States { by_key: HashMap::new(), lookups: 0 };
        Self { by: None, hasher: KeyHasher::fast(), states: Arc::new(Mutex::new(states)) }
    }

    /// Sets the key.
    ///
    /// # Panics
    ///
    /// Panics if the key is asynchronous.
    #[track_caller]
    pub(super) fn set_key(&mut self, by: impl KeyExtractor) {
        assert!(!by.is_async(), "the key of an upstream is asynchronous: use `key::from_fn`");
        self.by = Some(Arc::new(by));
    }

    /// Returns the state of a request's upstream. Requests without a key share one.
    pub(super) fn of<B>(&self, request: &Request<B>, create: impl FnOnce() -> T) -> Arc<T> {
        let key = self.key(request);
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        states.lookups += 1;
        let now = states.lookups;
        if let Some((state, used)) = states.by_key.get_mut(&key) {
            *used = now;
            return state.clone();
        }
        if states.by_key.len() >= MAX_UPSTREAMS {
            // Those of calls in flight last.
            let order = |(state, used): &(Arc<T>, u64)| (Arc::strong_count(state) > 1, *used);
            let oldest = states.by_key.iter().min_by_key(|(_, entry)| order(entry)).map(|(key, _)| *key);
            oldest.map(|key| states.by_key.remove(&key));
        }
        let state = Arc::new(create());
        states.by_key.insert(key, (state.clone(), now));
        state
    }

    fn key<B>(&self, request: &Request<B>) -> KeyHash {
        if let Some(by) = &self.by {
            return match by.hashed(&RequestHead::of(request), &self.hasher) {
                Hashed::Known(Ok(key)) => key,
                _ => KeyHash::ZERO,
            };
        }
        let authority = request.uri().authority().map(|authority| authority.as_str().as_bytes());
        let host = authority.or_else(|| Some(request.headers().get(HOST)?.as_bytes()));
        host.map_or(KeyHash::ZERO, |host| self.hasher.hash(&host.to_ascii_lowercase()))
    }
}

// Without a bound on `T`.
impl<T> Clone for Upstreams<T> {
    fn clone(&self) -> Self {
        Self { by: self.by.clone(), hasher: self.hasher, states: self.states.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key;

    fn request(uri: &str) -> Request<()> {
        Request::get(uri).body(()).unwrap()
    }

    #[test]
    fn an_upstream_is_a_host_with_its_port() {
        let upstreams = Upstreams::<()>::new();
        let of = |request| upstreams.of(&request, || ());
        let example = of(request("http://example.org/a"));
        assert!(Arc::ptr_eq(&example, &of(request("https://EXAMPLE.org/b"))));
        let with_header = Request::get("/").header("host", "example.org").body(()).unwrap();
        assert!(Arc::ptr_eq(&example, &of(with_header)));
        assert!(!Arc::ptr_eq(&example, &of(request("http://example.org:81/a"))));
        assert!(Arc::ptr_eq(&of(request("/a")), &of(request("/b"))));
    }

    #[test]
    fn the_number_of_upstreams_is_bounded_and_those_in_use_stay() {
        let mut upstreams = Upstreams::<()>::new();
        upstreams.set_key(key::path());
        let first = upstreams.of(&request("/first"), || ());
        for number in 0..3 * MAX_UPSTREAMS {
            upstreams.of(&request(&format!("/{number}")), || ());
        }
        assert_eq!(upstreams.states.lock().unwrap().by_key.len(), MAX_UPSTREAMS);
        assert!(Arc::ptr_eq(&first, &upstreams.of(&request("/first"), || ())));
    }
}
