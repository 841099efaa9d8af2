//! A store that records the last decision of the store that it wraps.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tower_ratelimit::store::{Answer, Charges, KeyHasher, Purpose, StoreFuture};
use tower_ratelimit::{Decision, Store, Timestamp};

#[derive(Clone, Debug)]
pub struct Recording<S> {
    inner: S,
    last: Arc<Mutex<Option<Decision>>>,
}

impl<S: Store> Recording<S> {
    pub fn new(inner: S) -> Self {
        Self { inner, last: Arc::default() }
    }

    /// Takes the last decision, if it has not been taken yet.
    pub fn take(&self) -> Option<Decision> {
        self.last.lock().unwrap().take()
    }

    fn keep(&self, at: Timestamp, charges: &Charges, purpose: Purpose) {
        if purpose == Purpose::Take {
            *self.last.lock().unwrap() = Some(Decision::new(at, charges.clone()));
        }
    }
}

impl<S: Store + Clone> Store for Recording<S> {
    fn hasher(&self) -> KeyHasher {
        self.inner.hasher()
    }

    fn decide(&self, charges: &mut Charges, purpose: Purpose, longest_wait: Duration) -> StoreFuture<Answer> {
        let recording = self.clone();
        match self.inner.decide(charges, purpose, longest_wait).into_ready() {
            Ok(Ok(answer)) => {
                let at = answer.finish(charges);
                self.keep(at, charges, purpose);
                StoreFuture::ready(Ok(Answer::new(at)))
            }
            Ok(Err(error)) => StoreFuture::ready(Err(error)),
            Err(pending) => {
                let mut charges = charges.clone();
                StoreFuture::pending(async move {
                    let at = pending.await?.finish(&mut charges);
                    recording.keep(at, &charges, purpose);
                    Ok(Answer::with_charges(at, charges))
                })
            }
        }
    }

    fn refund(&self, charges: &Charges) -> StoreFuture<()> {
        self.inner.refund(charges)
    }

    fn reset(&self, charges: &Charges) -> StoreFuture<()> {
        self.inner.reset(charges)
    }

    fn decide_at_once(&self, charges: &mut Charges, purpose: Purpose) -> Option<Timestamp> {
        let at = self.inner.decide_at_once(charges, purpose)?;
        self.keep(at, charges, purpose);
        Some(at)
    }

    fn inner(&self) -> Option<&dyn Store> {
        Some(&self.inner)
    }
}
