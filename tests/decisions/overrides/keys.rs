//! Naming the bucket of a request in an administrative endpoint.

use std::net::{IpAddr, SocketAddr};

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Method, Request};
use tower_ratelimit::key::{self, Key, KeyExtractor, PeerAddr, TrustedProxies};
use tower_ratelimit::{FixedWindow, Limit, OnMissingKey, RateLimitLayer, StoreErrorKind};

use crate::overrides::backend::{Backend, on_each_backend};
use support::answer::ask;

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

/// Returns whether an override of `key` applies to the request above, and overrides of `others` do not.
async fn is_of(backend: &Backend, what: &str, limit: Limit, key: impl Key, others: &[&dyn Key]) {
    let layer = backend.layer([limit.overridable()]).build();
    let overrides = layer.limit("daily").unwrap();
    let app = Router::new().route("/orders/{id}", get(async || "")).layer(layer);
    for other in others {
        // Some are errors.
        let _ = overrides.set_override(other, FixedWindow::per_day(300), None).await;
    }
    let before = ask(&app, request()).await;
    assert_eq!((before.status.as_u16(), before.remaining()), (200, 99), "{what} in {}", backend.name);
    overrides.set_override(key, FixedWindow::per_day(200), None).await.unwrap();
    let after = ask(&app, request()).await;
    assert_eq!((after.status.as_u16(), after.remaining()), (200, 198), "{what} in {}", backend.name);
    // The next test uses the same names.
    let _ = ask(&app, request()).await;
}

fn daily() -> Limit {
    Limit::new("daily", FixedWindow::per_day(100))
}

#[tokio::test]
async fn overrides_find_keys_of_each_source() {
    on_each_backend(async |backend| {
        let by_header = daily().by(key::header("x-customer"));
        is_of(backend, "header", by_header, "42", &[&42_u64, &"shop", &("42", ""), &"042"]).await;
    })
    .await;
    on_each_backend(async |backend| {
        let by_host = daily().by(key::host());
        is_of(backend, "host", by_host, "Example.ORG:8080", &[&"example.com"]).await;
    })
    .await;
    on_each_backend(async |backend| {
        let by_credentials = daily().by(key::header("authorization"));
        is_of(backend, "credentials", by_credentials, "Bearer  aB", &[&"Bearer ab", &"aB"]).await;
    })
    .await;
    on_each_backend(async |backend| {
        let by_user = daily().by(key::extension(|user: &User| user.id));
        is_of(backend, "extension", by_user, 42_u64, &[&"42", &43_u64]).await;
    })
    .await;
    on_each_backend(async |backend| {
        is_of(backend, "route", daily().by(key::matched_route()), "/orders/{id}", &[&"/orders/17"]).await;
    })
    .await;
    on_each_backend(async |backend| {
        is_of(backend, "path", daily().by(key::path()), "/orders/17", &[&"/orders/{id}"]).await;
    })
    .await;
    on_each_backend(async |backend| {
        is_of(backend, "method", daily().by(key::method()), Method::GET.as_str(), &[&"HEAD"]).await;
    })
    .await;
    on_each_backend(async |backend| {
        let by_closure = daily().by(key::from_async_fn(|_| async { Some(String::from("42")) }));
        is_of(backend, "closure", by_closure, "42", &[&42_u64]).await;
    })
    .await;
}

#[tokio::test]
async fn addresses_are_named_by_their_networks() {
    let peer: IpAddr = "192.0.2.7".parse().unwrap();
    let mapped: IpAddr = "::ffff:192.0.2.7".parse().unwrap();
    let client: IpAddr = "2001:db8:1:2:3::4".parse().unwrap();
    let same_network: IpAddr = "2001:db8:1:2:ffff::1".parse().unwrap();
    let other_network: IpAddr = "2001:db8:1:3:3::4".parse().unwrap();

    assert_eq!(key::peer_ip().network(mapped), peer);
    assert_eq!(key::peer_ip().network(client), key::peer_ip().network(same_network));
    assert_eq!(key::peer_ip().ipv6_prefix(48).network(client), key::peer_ip().ipv6_prefix(48).network(other_network));
    assert_eq!(key::peer_ip().ipv4_prefix(24).network(peer), "192.0.2.0".parse::<IpAddr>().unwrap());

    on_each_backend(async |backend| {
        is_of(backend, "peer", daily().by(key::peer_ip()), peer, &[&"192.0.2.8", &client, &"localhost"]).await;
    })
    .await;
    on_each_backend(async |backend| {
        let by = key::peer_ip().ipv4_prefix(24);
        is_of(backend, "peer's network", daily().by(by.clone()), by.network(mapped), &[&"192.0.3.7"]).await;
    })
    .await;
    on_each_backend(async |backend| {
        let by = || TrustedProxies::hops(1).x_forwarded_for();
        let others: [&dyn Key; 2] = [&other_network, &peer];
        is_of(backend, "client", daily().by(by()), by().network(same_network), &others).await;
    })
    .await;
}

#[tokio::test]
async fn keys_of_tuples_and_alternatives_can_be_named() {
    let peer: IpAddr = "192.0.2.7".parse().unwrap();
    on_each_backend(async |backend| {
        let both = daily().by((key::header("x-tenant"), key::header("x-customer")));
        is_of(backend, "tuple", both, ("shop", "42"), &[&("42", "shop"), &"shop42", &"shop"]).await;
    })
    .await;
    on_each_backend(async |backend| {
        let either = daily().by(key::header("x-customer").or(key::peer_ip()));
        is_of(backend, "first", either, key::first("42"), &[&"42", &key::second("42"), &key::second(peer)]).await;
    })
    .await;
    on_each_backend(async |backend| {
        let either = daily().by(key::header("x-api-key").or(key::peer_ip()));
        is_of(backend, "second", either, key::second(peer), &[&peer, &key::first(peer), &key::first("42")]).await;
    })
    .await;
    on_each_backend(async |backend| {
        let nested = key::header("x-api-key").or(key::header("x-customer").or(key::peer_ip()));
        let both = daily().by((key::header("x-tenant"), nested));
        let named = ("shop", key::second(key::first("42")));
        is_of(backend, "nested", both, named, &[&("shop", key::first("42"))]).await;
    })
    .await;
}

#[tokio::test]
async fn a_limit_without_a_key_can_be_overridden_too() {
    on_each_backend(async |backend| {
        is_of(backend, "no extractor", daily(), key::Shared, &[&(), &""]).await;
    })
    .await;
    on_each_backend(async |backend| {
        let shared = daily().by(key::header("x-api-key")).on_missing_key(OnMissingKey::Share);
        is_of(backend, "shared", shared, key::Shared, &[&(), &""]).await;
    })
    .await;
}

#[tokio::test]
async fn a_number_is_one_key_in_every_integer_type() {
    let keys: [&dyn Key; 5] = [&42_i32, &42_u8, &42_i64, &42_u128, &42_usize];
    for key in keys {
        on_each_backend(async |backend| {
            let by_user = daily().by(key::extension(|user: &User| user.id));
            is_of(backend, "number", by_user, key, &[&-42_i32, &"42"]).await;
        })
        .await;
    }
}

#[tokio::test]
async fn an_address_of_the_network_or_its_text_names_the_network() {
    let address: IpAddr = "2001:db8:1:2:ffff::1".parse().unwrap();
    let keys: [&dyn Key; 4] = [&"2001:db8:1:2:3::4", &String::from("2001:db8:1:2::"), &address, &"2001:db8:1:2::b4"];
    for key in keys {
        on_each_backend(async |backend| {
            let client = daily().by(TrustedProxies::hops(1).x_forwarded_for());
            is_of(backend, "client", client, key, &[&"2001:db8:1:3::4", &"192.0.2.7"]).await;
        })
        .await;
    }
    on_each_backend(async |backend| {
        is_of(backend, "peer", daily().by(key::peer_ip()), "192.0.2.7", &[&"192.0.2.8"]).await;
    })
    .await;
    let limits = RateLimitLayer::new([daily().by(key::peer_ip()).overridable()]);
    let daily = limits.limit("daily").unwrap();
    let expected = "the key of the limit \"daily\" is not an address: give one, or its text";
    for error in [
        daily.reset("localhost").await.unwrap_err(),
        daily.peek(42_u64, 0).await.unwrap_err(),
        daily.set_override("192.0.2.0/24", FixedWindow::per_day(1), None).await.unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.to_string().as_str()), (StoreErrorKind::InvalidCall, expected));
    }
    // The bytes of an address, although they are text of another one: `1::2`.
    let octets: IpAddr = "49.58.58.50".parse().unwrap();
    daily.set_override(octets, FixedWindow::per_day(7), None).await.unwrap();
    assert!(daily.get_override("49.58.58.50").await.unwrap().is_some());
}

/// Each limiter and each limit has its own buckets.
#[tokio::test]
async fn an_override_is_of_one_limit() {
    on_each_backend(async |backend| {
        let limits =
            |size| ["daily", "other"].map(|name| Limit::new(name, size).by(key::header("x-customer")).overridable());
        let layer: RateLimitLayer = backend.layer(limits(FixedWindow::per_day(100))).build();
        layer.limit("daily").unwrap().set_override("42", FixedWindow::per_day(200), None).await.unwrap();
        let app = Router::new().route("/orders/{id}", get(async || "")).layer(layer);
        let answer = ask(&app, request()).await;
        assert_eq!((answer.remaining_of("daily"), answer.remaining_of("other")), (199, 99), "{}", backend.name);
    })
    .await;
}
