//! Stores with several nodes, each of which has its own circuit breaker.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::set_default_local_recorder;
use metrics_util::debugging::DebuggingRecorder;
use tokio::time::sleep;
use tower_ratelimit::store::{Answer, Charges, KeyHash, KeyHasher, Node, Purpose, StoreFuture};
use tower_ratelimit::{Event, FixedWindow, Limit, Limiter, MetricsRecorder, Store, StoreErrorKind, Timestamp};

use crate::limited::ms;
use crate::metrics::series;
use support::faulty_store::{FaultyStore, Mode, Operation};

/// A store with two stores as its nodes.
#[derive(Clone, Debug)]
struct TwoNodes {
    hasher: KeyHasher,
    nodes: [FaultyStore; 2],
    names: Arc<Mutex<[&'static str; 2]>>,
    /// Whether the store reports the node of a key. A store that wraps another may not.
    hides_nodes: Arc<AtomicBool>,
}

impl TwoNodes {
    fn new() -> Self {
        Self {
            hasher: KeyHasher::with_secret([7; 16]),
            nodes: [(); 2].map(|()| FaultyStore::new(Mode::Works)),
            names: Arc::new(Mutex::new(["one", "two"])),
            hides_nodes: Arc::default(),
        }
    }

    fn place(&self, key: KeyHash) -> usize {
        key.as_u128() as usize % 2
    }

    fn name(&self, place: usize) -> Node {
        Node::new(self.names.lock().expect("no thread has panicked")[place])
    }

    /// Returns a key of the node at `place`.
    fn key(&self, place: usize) -> String {
        let mut keys = (0..).map(|key: u64| key.to_string());
        keys.find(|key| self.place(self.hasher.hash(key.as_bytes())) == place).expect("some key")
    }

    /// Lets each node decide its charges in turn.
    fn ask_nodes(&self, charges: &Charges, purpose: Purpose, longest_wait: Duration) -> StoreFuture<Answer> {
        let mut answers = Vec::new();
        for place in 0..2 {
            let is_own = |index: &usize| self.place(charges[*index].key()) == place;
            let indexes: Vec<usize> = (0..charges.len()).filter(is_own).collect();
            let mut own = charges.select(indexes.iter().copied());
            if !own.is_empty() {
                answers.push((
                    self.name(place),
                    self.nodes[place].decide(&mut own, purpose, longest_wait),
                    own,
                    indexes,
                ));
            }
        }
        let mut charges = charges.clone();
        StoreFuture::pending(async move {
            let mut at = Timestamp::EPOCH;
            for (name, answer, mut own, indexes) in answers {
                at = answer.await.map_err(|error| error.at(name))?.finish(&mut own);
                indexes.into_iter().zip(&*own).for_each(|(index, answered)| charges[index] = answered.clone());
            }
            Ok(Answer::with_charges(at, charges))
        })
    }
}

impl Store for TwoNodes {
    fn hasher(&self) -> KeyHasher {
        self.hasher
    }

    fn node(&self, key: KeyHash) -> Option<Node> {
        (!self.hides_nodes.load(Ordering::Relaxed)).then(|| self.name(self.place(key)))
    }

    fn decide(&self, charges: &mut Charges, purpose: Purpose, longest_wait: Duration) -> StoreFuture<Answer> {
        self.ask_nodes(charges, purpose, longest_wait)
    }

    fn refund(&self, charges: &Charges) -> StoreFuture<()> {
        self.nodes[self.place(charges[0].key())].refund(charges)
    }

    fn reset(&self, charges: &Charges) -> StoreFuture<()> {
        self.nodes[self.place(charges[0].key())].reset(charges)
    }
}

/// A limiter on two nodes, with its events.
struct Setup {
    store: TwoNodes,
    limiter: Limiter,
    /// Returns the changes of breakers, such as `"one: Open"`.
    changes: Arc<Mutex<Vec<String>>>,
}

impl Setup {
    fn new() -> Self {
        let (store, changes) = (TwoNodes::new(), Arc::<Mutex<Vec<String>>>::default());
        let seen = changes.clone();
        let limits = ["user", "tenant"].map(|name| Limit::new(name, FixedWindow::per_day(1_000_000)));
        let limiter = Limiter::builder(limits)
            .store(store.clone())
            .observe(move |event| {
                if let Event::BreakerChanged { state, node, .. } = event {
                    let node = node.map_or("none", Node::name);
                    seen.lock().expect("no thread has panicked").push(format!("{node}: {state:?}"));
                }
            })
            .build();
        Self { store, limiter, changes }
    }

    /// Requests a decision about keys of two nodes, or of the same node twice. An error names the node that failed.
    async fn ask(&self, places: [usize; 2]) -> Result<(), (StoreErrorKind, Option<String>)> {
        let [user, tenant] = places.map(|place| self.store.key(place));
        let answer = self.limiter.acquire_charges(&[(&user, 1), (&tenant, 1)]).await;
        answer.map(drop).map_err(|error| (error.kind(), error.node().map(|node| node.name().to_owned())))
    }

    /// Fails enough requests of a node to open its breaker.
    async fn fail(&self, place: usize) {
        self.store.nodes[place].set(Mode::Fails);
        for _ in 0..5 {
            assert!(matches!(self.ask([place, place]).await, Err((StoreErrorKind::Failed, _))));
        }
    }

    fn changes(&self) -> Vec<String> {
        std::mem::take(&mut *self.changes.lock().expect("no thread has panicked"))
    }
}

fn error<T>(kind: StoreErrorKind, node: &str) -> Result<T, (StoreErrorKind, Option<String>)> {
    Err((kind, Some(node.to_owned())))
}

#[tokio::test(start_paused = true)]
async fn a_failing_node_opens_only_its_own_breaker() {
    for (mode, kind) in [(Mode::Fails, StoreErrorKind::Failed), (Mode::Hangs, StoreErrorKind::TimedOut)] {
        let setup = Setup::new();
        setup.store.nodes[0].set(mode);
        for _ in 0..5 {
            assert_eq!(setup.ask([0, 0]).await, error(kind, "one"));
            assert_eq!(setup.ask([1, 1]).await, Ok(()));
        }
        for _ in 0..100 {
            assert_eq!(setup.ask([0, 0]).await, error(StoreErrorKind::BreakerOpen, "one"));
            assert_eq!(setup.ask([1, 1]).await, Ok(()));
        }
        assert_eq!(setup.changes(), ["one: Open"]);
    }
}

#[tokio::test(start_paused = true)]
async fn the_metric_of_a_breaker_names_its_node() {
    let exporter = DebuggingRecorder::new();
    let _installed = set_default_local_recorder(&exporter);
    let mut setup = Setup::new();
    setup.limiter = Limiter::builder(setup.limiter.limits().to_vec())
        .store(setup.store.clone())
        .recorder(MetricsRecorder::new())
        .build();
    setup.fail(1).await;
    let series = series(&exporter.snapshotter());
    assert_eq!((series.get("breaker_state{node=two}"), series.get("breaker_state{node=one}")), (Some(&1.0), None));
}

#[tokio::test(start_paused = true)]
async fn a_request_of_several_nodes_is_only_sent_if_none_of_their_breakers_is_open() {
    let setup = Setup::new();
    setup.store.nodes[1].set(Mode::Fails);
    for _ in 0..5 {
        assert_eq!(setup.ask([0, 1]).await, error(StoreErrorKind::Failed, "two"), "it counts for that node");
    }
    assert_eq!(setup.changes(), ["two: Open"]);
    let asked = || [0, 1].map(|place| setup.store.nodes[place].asked(Operation::Decide));
    let before = asked();
    for _ in 0..10 {
        assert_eq!(setup.ask([0, 1]).await, error(StoreErrorKind::BreakerOpen, "two"));
    }
    assert_eq!(asked(), before);
    assert_eq!(setup.ask([0, 0]).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn each_node_is_tried_by_itself() {
    let setup = Setup::new();
    for place in [0, 1] {
        setup.fail(place).await;
    }
    assert_eq!(setup.changes(), ["one: Open", "two: Open"]);
    // The first node has recovered, and the other one hangs.
    setup.store.nodes[0].set(Mode::Works);
    setup.store.nodes[1].set(Mode::Hangs);
    sleep(ms(200)).await;
    assert_eq!(setup.ask([0, 0]).await, Ok(()));
    assert_eq!(setup.changes(), ["one: Closed"]);
    for _ in 0..100 {
        assert!(setup.ask([0, 1]).await.is_err());
        assert_eq!(setup.ask([0, 0]).await, Ok(()));
        sleep(ms(20)).await;
    }
    assert_eq!(setup.changes(), [] as [&str; 0]);
    // The other node has recovered, too.
    setup.store.nodes[1].set(Mode::Works);
    for _ in 0..100 {
        let _ = setup.ask([0, 1]).await;
        sleep(ms(20)).await;
    }
    assert_eq!(setup.ask([0, 1]).await, Ok(()));
    assert_eq!(setup.changes(), ["two: Closed"]);
}

/// A failed trial of two nodes begins a pause of the node that failed, and the other one may be tried again at once.
#[tokio::test(start_paused = true)]
async fn a_trial_of_several_nodes_reports_each_result() {
    let setup = Setup::new();
    for place in [0, 1] {
        setup.fail(place).await;
    }
    setup.store.nodes[0].set(Mode::Works);
    sleep(ms(200)).await;
    assert_eq!(setup.ask([0, 1]).await, error(StoreErrorKind::Failed, "two"));
    assert_eq!(setup.ask([0, 1]).await, error(StoreErrorKind::BreakerOpen, "two"));
    assert_eq!(setup.changes(), ["one: Open", "two: Open"]);
    assert_eq!(setup.ask([0, 0]).await, Ok(()));
    assert_eq!(setup.changes(), ["one: Closed"]);
}

/// Like a failover.
#[tokio::test(start_paused = true)]
async fn a_new_node_is_used_at_once_and_a_removed_one_is_forgotten() {
    let setup = Setup::new();
    setup.fail(0).await;
    assert_eq!(setup.changes(), ["one: Open"]);
    setup.store.nodes[0].set(Mode::Works);
    setup.store.names.lock().expect("no thread has panicked")[0] = "three";
    assert_eq!(setup.ask([0, 0]).await, Ok(()));
    assert_eq!(setup.changes(), [] as [&str; 0]);
    sleep(Duration::from_secs(61)).await;
    assert_eq!(setup.ask([1, 1]).await, Ok(()));
    assert_eq!(setup.changes(), ["one: Closed"]);
}

/// A store that does not report the node of a key counts as one node.
#[tokio::test(start_paused = true)]
async fn a_store_without_nodes_has_one_breaker() {
    let setup = Setup::new();
    setup.store.hides_nodes.store(true, Ordering::Relaxed);
    setup.store.nodes[0].set(Mode::Fails);
    for _ in 0..5 {
        assert_eq!(setup.ask([0, 0]).await, error(StoreErrorKind::Failed, "one"));
    }
    assert_eq!(setup.ask([1, 1]).await, Err((StoreErrorKind::BreakerOpen, None)));
    assert_eq!(setup.changes(), ["none: Open"]);
}

/// When a store begins to report the nodes of keys, their breakers start closed.
#[tokio::test(start_paused = true)]
async fn discovering_nodes_clears_earlier_failures() {
    let setup = Setup::new();
    setup.store.hides_nodes.store(true, Ordering::Relaxed);
    setup.fail(0).await;
    setup.store.hides_nodes.store(false, Ordering::Relaxed);
    assert_eq!(setup.ask([1, 1]).await, Ok(()));
    assert_eq!(setup.changes(), ["none: Open", "none: Closed"]);
}
