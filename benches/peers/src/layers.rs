//! Measures what a layer adds to a request of an Axum application, without a network.

use std::net::Ipv4Addr;
use std::time::Instant;

use http::StatusCode;

use crate::algorithms::layered;
use crate::allocator;
use crate::app::{App, Call};
use crate::floors::{EMPTY_LAYER, NO_LAYER, apps};
use crate::quota::Quota;
use crate::race::{Runner, race, rounds};
use crate::scale::Scale;
use crate::spread::Spread;
use crate::subject::{Headers, LAYER, OURS, PEERS, Peer, Why};
use crate::table::Table;

/// The number of requests that are made in advance, each from another client.
const BATCH: u8 = 250;
const BATCHES: usize = 8;

/// The response that a case expects of a layer.
#[derive(Clone, Copy, PartialEq)]
pub enum Case {
    Allowed,
    AllowedWithHeaders,
    Denied,
}

pub const CASES: [Case; 3] = [Case::Allowed, Case::AllowedWithHeaders, Case::Denied];

impl Case {
    /// Returns an application for the case. Layers without headers also deny without them.
    pub fn app(self, peer: &dyn Peer) -> Result<App, Why> {
        match (self, peer.headers()) {
            (Self::Allowed, Headers::Always) => Err("always sends headers"),
            (Self::Allowed, _) => peer.app(Quota::PLENTY, false),
            (Self::AllowedWithHeaders, Headers::Never) => peer.app(Quota::PLENTY, false).and(Err("sends no headers")),
            (Self::AllowedWithHeaders, _) => peer.app(Quota::PLENTY, true),
            (Self::Denied, headers) => peer.app(Quota::ONE, headers != Headers::Never),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed, without headers",
            Self::AllowedWithHeaders => "allowed, with headers",
            Self::Denied => "denied, with headers and body",
        }
    }

    pub fn status(self) -> StatusCode {
        if self == Self::Denied { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK }
    }
}

/// An application, and the allocations of each of its requests.
struct Caller {
    app: App,
    status: StatusCode,
    allocations: f64,
}

pub fn compare(scale: &Scale) {
    println!("\n## Layers\n\nA whole request of an Axum application, called without a network, by one thread.");
    for case in CASES {
        let floors = apps().map(|(name, app)| Runner::new(name, Caller::new(app, StatusCode::OK)));
        let mut runners: Vec<Runner<Caller>> = floors.into();
        for peer in PEERS {
            if let Ok(app) = case.app(peer) {
                runners.push(Runner::new(title(peer, case), Caller::new(app, case.status())));
            }
        }
        race(&mut runners, scale.rounds, Caller::round);
        report(case, &runners);
    }
}

/// Measures requests with several limits.
pub fn limits(scale: &Scale) {
    for (headers, title) in [(false, "without headers"), (true, "with headers")] {
        let title = format!("More limits of one request of an Axum application, allowed {title}");
        let table = Table::new(&title, &["limits", "ns a request", "of one limit's"]);
        let app = |limits: usize| Caller::new(layered(limits, headers), StatusCode::OK);
        let mut runners = [1, 2, 3, 4, 8].map(|limits| Runner::new(limits.to_string(), app(limits)));
        race(&mut runners, scale.rounds, Caller::round);
        for Runner { name, rounds, .. } in &runners {
            table.row(name, &[&Spread::of(rounds), &Spread::ratio(rounds, &runners[0].rounds)]);
        }
    }
}

fn report(case: Case, runners: &[Runner<Caller>]) {
    let columns = [
        "",
        "ns",
        "of ours",
        "added to no layer, ns",
        "added to an empty layer, ns",
        "of what tower_governor adds to it",
        "allocations",
        "added to an empty layer's",
    ];
    let table = Table::new(&format!("A request that is {}", case.name()), &columns);
    let [none, empty, ours, layer] = [NO_LAYER, EMPTY_LAYER, OURS, LAYER].map(|name| rounds(runners, name));
    let base = Spread::above(layer, empty).median;
    let least = runners[1].subject.allocations;
    for Runner { name, subject, rounds } in runners {
        let ratio = Spread::ratio(rounds, ours);
        let [added, more] = [none, empty].map(|other| Spread::above(rounds, other));
        let of_layer = format!("{:.2}", more.median / base);
        let allocations = subject.allocations;
        let [all, above] = [allocations, allocations - least].map(|count| format!("{count:.2}"));
        table.row(name, &[&Spread::of(rounds), &ratio, &added, &more, &of_layer, &all, &above]);
    }
    for peer in PEERS {
        if let Err(why) = case.app(peer) {
            table.without(peer.name(), why);
        }
    }
}

/// Returns the name, and what is missing from its rejections.
pub fn title(peer: &dyn Peer, case: Case) -> String {
    let without =
        if case == Case::Denied && peer.headers() == Headers::Never { ", which sends no headers" } else { "" };
    format!("{}{without}", peer.name())
}

impl Caller {
    fn new(app: App, status: StatusCode) -> Self {
        Self { app: app.ready(), status, allocations: 0.0 }
    }

    fn round(&mut self) -> f64 {
        // Use up the one allowed request first. Some peers give it back within a second.
        for request in batch(&self.app) {
            self.app.answer(request);
        }
        let (mut nanos, mut allocations, mut as_expected) = (Vec::with_capacity(BATCHES), 0, 0);
        for _ in 0..BATCHES {
            let requests = batch(&self.app);
            let before = allocator::allocations();
            let start = Instant::now();
            for request in requests {
                as_expected += usize::from(self.app.answer(request) == self.status);
            }
            nanos.push(start.elapsed().as_nanos() as f64 / f64::from(BATCH));
            allocations += allocator::allocations() - before;
        }
        let requests = BATCHES * usize::from(BATCH);
        assert!(as_expected > requests / 2, "{as_expected} of {requests} are {}", self.status);
        self.allocations = allocations as f64 / requests as f64;
        Spread::of(&nanos).median
    }
}

pub fn batch(app: &App) -> Vec<Call> {
    (1..=BATCH).map(|client| app.request(Ipv4Addr::new(192, 0, 2, client))).collect()
}
