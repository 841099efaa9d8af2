//! Runs Axum servers on the loopback interface, each in a thread, with a client in another.

mod client;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use client::Client;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use crate::app::App;
use crate::floors::{NO_LAYER, apps};
use crate::layers::{Case, title};
use crate::race::{Runner, race};
use crate::scale::Scale;
use crate::spread::Spread;
use crate::subject::{OURS, PEERS};
use crate::table::Table;

/// The number of connections, each from an address of its own.
const CONNECTIONS: u8 = 32;

/// A client, and the measurements of its server's thread.
struct Loaded {
    client: Client,
    /// The file in which Linux reports how long the thread has run.
    ran: PathBuf,
    /// Per request, in each round.
    micros: Vec<f64>,
}

pub fn compare(scale: &Scale) {
    println!(
        "\n## Servers\n\n`axum::serve` runs on one thread. A client on another thread sends one request at a time on \
         each of {CONNECTIONS} connections, each from another address. The CPU time is that of the server's thread, \
         including the kernel, as Linux reports it."
    );
    let runtime = runtime();
    for case in [Case::Allowed, Case::AllowedWithHeaders, Case::Denied] {
        let connect = |name: String, app: App| Runner::new(name, Loaded::new(app, &runtime));
        let mut runners: Vec<_> = apps().map(|(name, app)| connect(name.to_owned(), app)).into();
        for peer in PEERS {
            if let Ok(app) = case.app(peer) {
                let mut runner = connect(title(peer, case), app);
                // Use up the one allowed request before measuring denials.
                let statuses = runtime.block_on(runner.subject.client.statuses());
                assert!(statuses.iter().all(|&status| status == case.status()), "{}: {statuses:?}", runner.name);
                runners.push(runner);
            }
        }
        race(&mut runners, scale.long_rounds as usize, |loaded| runtime.block_on(loaded.round(scale)));
        // Ignore the first round.
        for runner in &mut runners {
            runner.subject.micros.remove(0);
        }
        report(case, &runners);
    }
}

fn report(case: Case, runners: &[Runner<Loaded>]) {
    let columns = ["", "requests a second", "of no layer's", "of ours", "CPU µs a request", "of no layer's", "of ours"];
    let table = Table::new(&format!("Every request {}", case.name()), &columns);
    let find = |name| runners.iter().find(|runner| runner.name == name).expect("it has run");
    let (none, ours) = (find(NO_LAYER), find(OURS));
    for runner in runners {
        let [per_second, micros] = [&runner.rounds, &runner.subject.micros];
        let [of_none, of_ours] = [none, ours].map(|base| Spread::ratio(per_second, &base.rounds));
        let [cpu_none, cpu_ours] = [none, ours].map(|base| Spread::ratio(micros, &base.subject.micros));
        let (per_second, micros) = (Spread::of(per_second), Spread::of(micros));
        table.row(&runner.name, &[&per_second, &of_none, &of_ours, &micros, &cpu_none, &cpu_ours]);
    }
    for peer in PEERS {
        if let Err(why) = case.app(peer) {
            table.without(peer.name(), why);
        }
    }
}

impl Loaded {
    fn new(app: App, runtime: &Runtime) -> Self {
        let (address, ran) = serve(app);
        Self { client: runtime.block_on(Client::connect(address, CONNECTIONS)), ran, micros: Vec::new() }
    }

    /// Requests per second.
    async fn round(&mut self, scale: &Scale) -> f64 {
        let (before, started) = (self.ran(), Instant::now());
        let asked = self.client.load(scale.span).await;
        let per_second = asked / started.elapsed().as_secs_f64();
        self.micros.push((self.ran() - before) / 1e3 / asked);
        per_second
    }

    /// CPU time of the server's thread in ns, or NaN on systems that do not report it.
    fn ran(&self) -> f64 {
        let text = fs::read_to_string(&self.ran).unwrap_or_default();
        text.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(f64::NAN)
    }
}

/// Serves until the process ends.
fn serve(app: App) -> (SocketAddr, PathBuf) {
    let runtime = runtime();
    let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
    let address = listener.local_addr().expect("its address");
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let task = fs::read_link("/proc/thread-self").unwrap_or_default();
        tell.send(Path::new("/proc").join(task).join("schedstat")).expect("it is waited for");
        runtime.block_on(app.serve(listener))
    });
    (address, told.recv().expect("it starts"))
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}
