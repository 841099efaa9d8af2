//! A store of another crate, whose futures wait as those of a store in a database do.

use std::sync::Arc;

use tower_ratelimit::store::{Charge, KeyHash, KeyHasher, LimitSpec, Refund, StoreFuture};
use tower_ratelimit::{Decision, MemoryStore, Store, conformance};

#[derive(Debug)]
struct Remote(Arc<MemoryStore>);

type Parts = Vec<(Arc<LimitSpec>, KeyHash, u64)>;

impl Remote {
    /// Runs an operation on the charges in the background, so that it completes even if its caller gives up.
    fn run<F>(&self, charges: &[Charge<'_>], operation: F) -> StoreFuture<Decision>
    where
        F: Fn(&MemoryStore, &[Charge<'_>]) -> StoreFuture<Decision> + Send + 'static,
    {
        let parts: Parts = charges.iter().map(|charge| (charge.spec.clone(), charge.key, charge.cost)).collect();
        let store = self.0.clone();
        let task = tokio::spawn(async move {
            tokio::task::yield_now().await;
            let charges: Vec<_> = parts.iter().map(|(spec, key, cost)| Charge::new(spec, *key, *cost)).collect();
            operation(&store, &charges).await
        });
        StoreFuture::pending(async move { task.await.unwrap() })
    }
}

impl Store for Remote {
    fn hasher(&self) -> KeyHasher {
        self.0.hasher()
    }

    fn decide(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.run(charges, MemoryStore::decide)
    }

    fn peek(&self, charges: &[Charge<'_>]) -> StoreFuture<Decision> {
        self.run(charges, MemoryStore::peek)
    }

    fn refund(&self, refunds: &[Refund<'_>]) -> StoreFuture<()> {
        let parts = refunds.iter().map(|refund| (refund.spec.clone(), refund.key, refund.cost, refund.mark));
        let (store, parts) = (self.0.clone(), parts.collect::<Vec<_>>());
        StoreFuture::pending(async move {
            tokio::task::yield_now().await;
            let refunds = parts.iter().map(|(spec, key, cost, mark)| Refund::new(spec, *key, *cost, *mark));
            store.refund(&refunds.collect::<Vec<_>>()).await
        })
    }

    fn reset(&self, keys: &[(&Arc<LimitSpec>, KeyHash)]) -> StoreFuture<()> {
        self.0.reset(keys)
    }
}

#[tokio::test]
async fn a_store_of_another_crate_whose_futures_wait_conforms() {
    conformance::check_all(async |clock| Remote(Arc::new(MemoryStore::new().clock(clock)))).await;
}
