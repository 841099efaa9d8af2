//! Real Axum servers on the loopback interface, a thread each, and a client on another.

mod client;

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;

use client::Client;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use crate::app::App;
use crate::floors::{EMPTY_LAYER, NO_LAYER, apps};
use crate::layers::{Case, title};
use crate::race::{Runner, race, rounds};
use crate::scale::Scale;
use crate::spread::Spread;
use crate::subject::{OURS, PEERS};
use crate::table::Table;

/// Connections, each of an address of its own.
const CONNECTIONS: u8 = 32;

pub fn compare(scale: &Scale) {
    println!(
        "\n## Servers\n\n`axum::serve` on one thread, {CONNECTIONS} connections of as many addresses, a request at a \
         time on each; the client has a thread of its own."
    );
    let runtime = runtime();
    for case in [Case::Allowed, Case::AllowedWithHeaders, Case::Denied] {
        let connect =
            |name: String, app: App| Runner::new(name, runtime.block_on(Client::connect(serve(app), CONNECTIONS)));
        let mut runners: Vec<_> = apps().map(|(name, app)| connect(name.to_owned(), app)).into();
        for peer in PEERS {
            if let Ok(app) = case.app(peer) {
                let mut runner = connect(title(peer, case), app);
                // Who is to be denied has the one that is allowed, and is measured after that.
                let statuses = runtime.block_on(runner.subject.statuses());
                assert!(statuses.iter().all(|&status| status == case.status()), "{}: {statuses:?}", runner.name);
                runners.push(runner);
            }
        }
        race(&mut runners, scale.long_rounds, |client| runtime.block_on(client.load(scale.span)));
        let table = Table::new(
            &format!("Every request {}", case.name()),
            &["", "requests a second", "of no layer's", "of an empty layer's", "of ours"],
        );
        for Runner { name, rounds: own, .. } in &runners {
            let [none, empty, ours] =
                [NO_LAYER, EMPTY_LAYER, OURS].map(|base| Spread::ratio(own, rounds(&runners, base)));
            table.row(name, &[&Spread::of(own), &none, &empty, &ours]);
        }
        for peer in PEERS {
            if let Err(why) = case.app(peer) {
                table.without(peer.name(), why);
            }
        }
    }
}

/// Serves until the process ends.
fn serve(app: App) -> SocketAddr {
    let runtime = runtime();
    let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).expect("a free port");
    let address = listener.local_addr().expect("its address");
    thread::spawn(move || runtime.block_on(app.serve(listener)));
    address
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}
