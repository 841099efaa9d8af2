//! Naming the bucket of a request in an administrative endpoint.

use std::net::{IpAddr, SocketAddr};

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Method, Request};
use tower_ratelimit::key::{self, Key, KeyExtractor, PeerAddr, TrustedProxies};
use tower_ratelimit::{FixedWindow, Limit, OnMissingKey, StoreErrorKind};

use crate::overrides::daily;
use support::answer::{Answer, ask};
use support::store_fixture::{StoreFixture, on_both_stores};

on_both_stores!(
    overrides_find_keys_of_each_source,
    addresses_are_named_by_their_networks,
    keys_of_tuples_and_alternatives_can_be_named,
    a_limit_without_a_key_can_be_overridden_too,
    a_number_is_one_key_in_every_integer_type,
    an_address_of_the_network_or_its_text_names_the_network,
    an_override_is_of_one_limit,
);

/// A user, as an extension of an outer layer.
#[derive(Clone)]
struct User {
    id: u64,
}

fn request() -> Request<Body> {
    let mut request = Request::get("/orders/17")
        .header("x-customer", "42")
        .header("x-tenant", "shop")
        .header("host", "example.org")
        .header("authorization", "bearer aB")
        .header("x-forwarded-for", "2001:db8:1:2:3::4")
        .body(Body::empty())
        .unwrap();
    request.extensions_mut().insert(User { id: 42 });
    request.extensions_mut().insert(PeerAddr(SocketAddr::from(([192, 0, 2, 7], 50_000))));
    request
}

/// Checks that an override of `key` applies to the request above, and overrides of `others` do not.
async fn is_of(fixture: &StoreFixture, what: &str, by: impl KeyExtractor, key: impl Key, others: &[&dyn Key]) {
    applies(fixture, what, daily(100).by(by), &key, others).await;
}

async fn applies(fixture: &StoreFixture, what: &str, limit: Limit, key: &dyn Key, others: &[&dyn Key]) {
    let layer = fixture.builder(limit).build();
    let overrides = layer.limit("daily").unwrap();
    let app = Router::new().route("/orders/{id}", get(async || "")).layer(layer);
    let reported = |answer: Answer| (answer.status.as_u16(), answer.remaining());
    for other in others {
        // Some are errors.
        let _ = overrides.set_override(other, FixedWindow::per_day(300), None).await;
    }
    assert_eq!(reported(ask(&app, request()).await), (200, 99), "{what}, with other overrides");
    overrides.set_override(key, FixedWindow::per_day(200), None).await.unwrap();
    assert_eq!(reported(ask(&app, request()).await), (200, 198), "{what}");
    // Other keys have the same limit.
    overrides.remove_override(key).await.unwrap();
    overrides.reset(key).await.unwrap();
    for other in others {
        let _ = overrides.remove_override(other).await;
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

async fn overrides_find_keys_of_each_source(fixture: StoreFixture) {
    is_of(&fixture, "header", key::header("x-customer"), "42", &[&42_u64, &"shop", &("42", ""), &"042"]).await;
    is_of(&fixture, "host", key::host(), "Example.ORG:8080", &[&"example.com"]).await;
    is_of(&fixture, "credentials", key::header("authorization"), "Bearer  aB", &[&"Bearer ab", &"aB"]).await;
    is_of(&fixture, "extension", key::extension(|user: &User| user.id), 42_u64, &[&"42", &43_u64]).await;
    is_of(&fixture, "route", key::matched_route(), "/orders/{id}", &[&"/orders/17"]).await;
    is_of(&fixture, "path", key::path(), "/orders/17", &[&"/orders/{id}"]).await;
    is_of(&fixture, "method", key::method(), Method::GET.as_str(), &[&"HEAD"]).await;
    is_of(&fixture, "closure", key::from_async_fn(|_| async { Some(String::from("42")) }), "42", &[&42_u64]).await;
}

async fn addresses_are_named_by_their_networks(fixture: StoreFixture) {
    let [peer, mapped] = ["192.0.2.7", "::ffff:192.0.2.7"].map(ip);
    let [client, same_network, other_network] =
        ["2001:db8:1:2:3::4", "2001:db8:1:2:ffff::1", "2001:db8:1:3:3::4"].map(ip);
    let (by_peer, by_24_bits) = (key::peer_ip(), key::peer_ip().ipv4_prefix(24));
    let by_client = TrustedProxies::hops(1).x_forwarded_for();

    assert_eq!(by_peer.network(mapped), peer);
    assert_eq!(by_peer.network(client), by_peer.network(same_network));
    assert_eq!(key::peer_ip().ipv6_prefix(48).network(client), key::peer_ip().ipv6_prefix(48).network(other_network));
    assert_eq!(by_24_bits.network(peer), ip("192.0.2.0"));

    let [named_24_bits, named_client] = [by_24_bits.network(mapped), by_client.network(same_network)];
    is_of(&fixture, "peer", by_peer, peer, &[&"192.0.2.8", &client, &"localhost"]).await;
    is_of(&fixture, "network of the peer", by_24_bits, named_24_bits, &[&"192.0.3.7"]).await;
    is_of(&fixture, "client", by_client, named_client, &[&other_network, &peer]).await;
}

async fn keys_of_tuples_and_alternatives_can_be_named(fixture: StoreFixture) {
    let peer = ip("192.0.2.7");
    let both = (key::header("x-tenant"), key::header("x-customer"));
    is_of(&fixture, "tuple", both, ("shop", "42"), &[&("42", "shop"), &"shop42", &"shop"]).await;
    let either = key::header("x-customer").or(key::peer_ip());
    is_of(&fixture, "first", either, key::first("42"), &[&"42", &key::second("42"), &key::second(peer)]).await;
    let either = key::header("x-api-key").or(key::peer_ip());
    is_of(&fixture, "second", either, key::second(peer), &[&peer, &key::first(peer), &key::first("42")]).await;
    let nested = key::header("x-api-key").or(key::header("x-customer").or(key::peer_ip()));
    let named = ("shop", key::second(key::first("42")));
    is_of(&fixture, "nested", (key::header("x-tenant"), nested), named, &[&("shop", key::first("42"))]).await;
}

async fn a_limit_without_a_key_can_be_overridden_too(fixture: StoreFixture) {
    let shared = daily(100).by(key::header("x-api-key")).on_missing_key(OnMissingKey::Share);
    for (what, limit) in [("no key", daily(100)), ("shared key", shared)] {
        applies(&fixture, what, limit, &key::Shared, &[&(), &""]).await;
    }
}

async fn a_number_is_one_key_in_every_integer_type(fixture: StoreFixture) {
    let keys: [&dyn Key; 5] = [&42_i32, &42_u8, &42_i64, &42_u128, &42_usize];
    for key in keys {
        is_of(&fixture, "number", key::extension(|user: &User| user.id), key, &[&-42_i32, &"42"]).await;
    }
}

async fn an_address_of_the_network_or_its_text_names_the_network(fixture: StoreFixture) {
    let address = ip("2001:db8:1:2:ffff::1");
    let keys: [&dyn Key; 4] = [&"2001:db8:1:2:3::4", &String::from("2001:db8:1:2::"), &address, &"2001:db8:1:2::b4"];
    for key in keys {
        let by_client = TrustedProxies::hops(1).x_forwarded_for();
        is_of(&fixture, "client", by_client, key, &[&"2001:db8:1:3::4", &"192.0.2.7"]).await;
    }
    is_of(&fixture, "peer", key::peer_ip(), "192.0.2.7", &[&"192.0.2.8"]).await;
    let daily = fixture.builder(daily(100).by(key::peer_ip())).build().limit("daily").unwrap();
    let expected = "the key of the limit \"daily\" is not an address: give one, or its text";
    for error in [
        daily.reset("localhost").await.unwrap_err(),
        daily.peek(42_u64, 0).await.unwrap_err(),
        daily.set_override("192.0.2.0/24", FixedWindow::per_day(1), None).await.unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.to_string().as_str()), (StoreErrorKind::InvalidCall, expected));
    }
    // The bytes of an address, although they are text of another one: `1::2`.
    daily.set_override(ip("49.58.58.50"), FixedWindow::per_day(7), None).await.unwrap();
    assert!(daily.get_override("49.58.58.50").await.unwrap().is_some());
}

/// Each limiter and each limit has its own buckets.
async fn an_override_is_of_one_limit(fixture: StoreFixture) {
    let limits = ["daily", "other"].map(|name| Limit::new(name, FixedWindow::per_day(100)).overridable());
    let layer = fixture.builder(limits.map(|limit| limit.by(key::header("x-customer")))).build();
    layer.limit("daily").unwrap().set_override("42", FixedWindow::per_day(200), None).await.unwrap();
    let app = Router::new().route("/orders/{id}", get(async || "")).layer(layer);
    let answer = ask(&app, request()).await;
    assert_eq!((answer.remaining_of("daily"), answer.remaining_of("other")), (199, 99));
}
