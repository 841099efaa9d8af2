//! 20 accounts an hour from each country, by a table of addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use tower_ratelimit::key::{self, TrustedProxies};
use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, Store};

pub(crate) const TRY: &str = "
curl -i -X POST http://HOST/accounts -H 'x-forwarded-for: 192.0.2.7'
curl -i -X POST http://HOST/accounts -H 'x-forwarded-for: 203.0.113.7'
";

/// The first and the last address of each network, and its country. Load a database of addresses here.
const TABLE: &str = "\
192.0.2.0,192.0.2.255,NL
198.51.100.0,198.51.100.255,BR
2001:db8::,2001:db8:ffff:ffff:ffff:ffff:ffff:ffff,BR";

pub(crate) fn app(store: Arc<dyn Store>) -> Router {
    let countries = Countries::parse(TABLE).expect("a valid table");
    // The proxy runs on this machine. With `peer_ip`, all clients would be in its country.
    let client = TrustedProxies::cidrs(["127.0.0.1"]).x_forwarded_for();
    let country = key::from_fn(move |head| {
        let address = client.resolve(head).ok()?;
        // Addresses that the table lacks share a bucket.
        Some(countries.of(address).unwrap_or("unknown").to_owned())
    });
    let accounts = Limit::new("accounts-by-country", FixedWindow::per_hour(20)).by(country);
    let limits = RateLimitLayer::builder([accounts]).store(store).build();
    Router::new().route("/accounts", post((StatusCode::CREATED, "created\n")).route_layer(limits))
}

/// The last address and the country of each network, by its first address.
struct Countries(BTreeMap<IpAddr, (IpAddr, String)>);

impl Countries {
    fn parse(table: &str) -> Option<Self> {
        let networks = table.lines().map(|line| {
            let mut fields = line.split(',');
            let (first, last) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
            Some((first, (last, fields.next()?.to_owned())))
        });
        networks.collect::<Option<_>>().map(Self)
    }

    fn of(&self, address: IpAddr) -> Option<&str> {
        let (_, (last, country)) = self.0.range(..=address).next_back()?;
        (address <= *last).then_some(country)
    }
}
