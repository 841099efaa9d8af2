//! The state of each upstream: a bounded map from keys of requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use http::uri::{Authority, Scheme};
use http::{Request, Uri};

use crate::key::hash::{KeyHash, KeyHasher};
use crate::key::head::RequestHead;
use crate::key::spelling::host;
use crate::key::{self, Hashed, KeyExtractor};

/// The maximum number of upstreams whose state is kept.
const MAX_UPSTREAMS: usize = 1_000;

/// The states of upstreams. Clones share them.
pub(super) struct Upstreams<T> {
    key: Arc<dyn KeyExtractor>,
    hasher: KeyHasher,
    states: Arc<Mutex<States<T>>>,
}

struct States<T> {
    by_key: HashMap<KeyHash, (Arc<T>, u64)>,
    /// The number of lookups, by which the least recently used state is found.
    lookups: u64,
}

impl<T> States<T> {
    fn empty() -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self { by_key: HashMap::new(), lookups: 0 }))
    }
}

impl<T> Upstreams<T> {
    /// Creates a map whose keys are hosts and ports.
    pub(super) fn new() -> Self {
        let port = |uri: &Uri| match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => 443_u16,
            _ => 80,
        };
        Self::by(key::from_fn(move |head| {
            let authority: Authority = match head.uri.authority() {
                Some(authority) => authority.clone(),
                None => head.header("host")?.parse().ok()?,
            };
            let host = host(authority.host().as_bytes())?.into_owned();
            Some((host, authority.port_u16().unwrap_or_else(|| port(head.uri))))
        }))
    }

    /// Creates a map with other keys.
    ///
    /// # Panics
    ///
    /// Panics if the key is asynchronous.
    #[track_caller]
    pub(super) fn by(key: impl KeyExtractor) -> Self {
        assert!(!key.is_async(), "the key of an upstream is asynchronous: use `key::from_fn`");
        Self { key: Arc::new(key), hasher: KeyHasher::fast(), states: States::empty() }
    }

    /// Returns a copy without the states.
    pub(super) fn without_states(&self) -> Self {
        Self { states: States::empty(), ..self.clone() }
    }

    /// Returns the state of a request's upstream. Requests without a key share one. Forgets another one if there are
    /// too many: the least recently used one, but those last that `is_needed` or a call still uses.
    pub(super) fn of<B>(
        &self,
        request: &Request<B>,
        create: impl FnOnce() -> T,
        is_needed: impl Fn(&T) -> bool,
    ) -> Arc<T> {
        let key = match self.key.hashed(&RequestHead::of(request), &self.hasher) {
            Hashed::Known(Ok(key)) => key,
            _ => KeyHash::ZERO,
        };
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        states.lookups += 1;
        let now = states.lookups;
        if let Some((state, used)) = states.by_key.get_mut(&key) {
            *used = now;
            return state.clone();
        }
        if states.by_key.len() >= MAX_UPSTREAMS {
            let order = |(state, used): &(Arc<T>, u64)| (Arc::strong_count(state) > 1 || is_needed(state), *used);
            let oldest = states.by_key.iter().min_by_key(|(_, entry)| order(entry)).map(|(key, _)| *key);
            oldest.map(|key| states.by_key.remove(&key));
        }
        let state = Arc::new(create());
        states.by_key.insert(key, (state.clone(), now));
        state
    }
}

// Without a bound on `T`.
impl<T> Clone for Upstreams<T> {
    fn clone(&self) -> Self {
        Self { key: self.key.clone(), hasher: self.hasher, states: self.states.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(uri: &str) -> Request<()> {
        Request::get(uri).body(()).unwrap()
    }

    #[test]
    fn an_upstream_is_a_host_with_its_port() {
        let upstreams = Upstreams::<()>::new();
        let of = |uri: &str| upstreams.of(&request(uri), || (), |()| false);
        let (plain, encrypted) = (of("http://example.org/a"), of("https://example.org/a"));
        assert!(!Arc::ptr_eq(&plain, &encrypted));
        assert!(Arc::ptr_eq(&plain, &of("http://EXAMPLE.org:80/b")));
        assert!(Arc::ptr_eq(&encrypted, &of("https://example.org:443/b")));
        assert!(!Arc::ptr_eq(&plain, &of("http://example.org:81/a")));
        assert!(!Arc::ptr_eq(&plain, &of("http://example.com/a")));
        assert!(Arc::ptr_eq(&plain, &of("http://ann:secret@example.org./a")));
        let with_header = Request::get("/").header("host", "example.org").body(()).unwrap();
        assert!(Arc::ptr_eq(&plain, &upstreams.of(&with_header, || (), |()| false)));
        assert!(Arc::ptr_eq(&of("/a"), &of("/b")));
    }

    #[test]
    fn the_number_of_upstreams_is_bounded_and_those_in_use_stay() {
        let upstreams = Upstreams::<bool>::by(key::path());
        let of = |uri: &str, state| upstreams.of(&request(uri), || state, |is_needed| *is_needed);
        let first = of("/first", false);
        of("/paused", true);
        for number in 0..3 * MAX_UPSTREAMS {
            of(&format!("/{number}"), false);
        }
        assert_eq!(upstreams.states.lock().unwrap().by_key.len(), MAX_UPSTREAMS);
        assert!(Arc::ptr_eq(&first, &of("/first", true)));
        assert!(*of("/paused", false));
        assert!(*of("/1", true), "it was forgotten");
    }
}
