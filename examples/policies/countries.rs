//! 20 accounts an hour from each country, by a database of addresses in MaxMind's format, such as
//! GeoLite2 or DB-IP.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::post;
use maxminddb::{Reader, path};
use tower_ratelimit::key::{self, TrustedProxies};
use tower_ratelimit::{FixedWindow, Limit, RateLimitLayer, Store};

pub(crate) const TRY: &str = "
curl -i -X POST http://HOST/accounts -H 'x-forwarded-for: 192.0.2.7'
curl -i -X POST http://HOST/accounts -H 'x-forwarded-for: 203.0.113.7'
";

pub(crate) fn app(store: Arc<dyn Store>) -> Router {
    let path = std::env::var("COUNTRIES").unwrap_or("GeoLite2-Country.mmdb".to_owned());
    let countries = Reader::open_readfile(&path);
    with(countries.unwrap_or_else(|error| panic!("{path}: {error}: set COUNTRIES to the path of a database")), store)
}

/// Limits by the countries of a database.
pub(crate) fn with(countries: Reader<Vec<u8>>, store: Arc<dyn Store>) -> Router {
    // The proxy runs on this machine. With `peer_ip`, all clients would be in its country.
    let client = TrustedProxies::cidrs(["127.0.0.1"]).x_forwarded_for();
    let country = key::from_fn(move |head| {
        let address = client.resolve(head).ok()?;
        // Addresses that the database lacks share a bucket.
        Some(country_of(&countries, address).unwrap_or("unknown").to_owned())
    });
    let accounts = Limit::new("accounts-by-country", FixedWindow::per_hour(20)).by(country);
    let limits = RateLimitLayer::builder([accounts]).store(store).build();
    Router::new().route("/accounts", post((StatusCode::CREATED, "created\n")).route_layer(limits))
}

/// Returns the code of an address' country, such as `NL`.
fn country_of(countries: &Reader<Vec<u8>>, address: IpAddr) -> Option<&str> {
    countries.lookup(address).ok()?.decode_path(&path!["country", "iso_code"]).ok()?
}
