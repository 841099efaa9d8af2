//! The resolution of the client's address from headers.

use std::net::IpAddr;

use http::{HeaderName, HeaderValue, Request};
use tower_ratelimit::RequestHead;
use tower_ratelimit::key::{AddressError, ClientIp, PeerAddr, TrustedProxies, UnixPeer, peer_ip};

use crate::service::{from, get, panic_message};

const TOO_FEW: AddressError = AddressError::TooFewHops { expected: 1, found: 0 };

fn address(text: &str) -> IpAddr {
    text.parse().expect("it is an address")
}

fn resolve(by: &ClientIp, mut request: Request<()>, name: &str, lines: &[&str]) -> Result<IpAddr, AddressError> {
    for line in lines {
        let value = HeaderValue::from_bytes(line.as_bytes()).expect("it is a header's value");
        request.headers_mut().append(name.parse::<HeaderName>().unwrap(), value);
    }
    by.resolve(&RequestHead::of(&request))
}

fn private() -> TrustedProxies {
    TrustedProxies::cidrs(["10.0.0.0/8", "fd00::/8"])
}

/// Returns the client behind the trusted peer 10.0.0.1 with these lines of `X-Forwarded-For`.
#[track_caller]
fn listed(lines: &[&str], client: &str) {
    let found = resolve(&private().x_forwarded_for(), from("10.0.0.1"), "X-Forwarded-For", lines);
    assert_eq!(found, Ok(address(client)), "{lines:?}");
}

/// The same for `Forwarded`.
#[track_caller]
fn forwarded(lines: &[&str], client: &str) {
    let found = resolve(&private().forwarded(), from("10.0.0.1"), "Forwarded", lines);
    assert_eq!(found, Ok(address(client)), "{lines:?}");
}

#[test]
fn a_peer_that_is_not_trusted_is_the_client() {
    for peer in ["192.0.2.1", "11.0.0.0", "2001:db8::1", "::1", "::10.0.0.1"] {
        for lines in [&["10.0.0.1"][..], &["198.51.100.1"], &["for=198.51.100.1"], &["unknown"], &[]] {
            let found = |by: ClientIp, name| resolve(&by, from(peer), name, lines);
            assert_eq!(found(private().x_forwarded_for(), "x-forwarded-for"), Ok(address(peer)));
            assert_eq!(found(private().forwarded(), "forwarded"), Ok(address(peer)));
            assert_eq!(found(private().single_valued("x-real-ip"), "x-real-ip"), Ok(address(peer)));
        }
    }
}

/// CVE-2026-110723, -110724, -110726 (Eclipse ECSP), tower_governor key_extractor.rs:134, commonly#538,
/// talosctl-oidc#128, PrepPilot#1438: the leftmost address was taken for the client.
#[test]
fn the_first_untrusted_hop_is_the_client() {
    for (lines, client) in [
        (&["192.0.2.1"][..], "192.0.2.1"),
        (&["198.51.100.1, 192.0.2.1"], "192.0.2.1"),
        (&["198.51.100.1, 192.0.2.1, 10.0.0.2, 10.0.0.3"], "192.0.2.1"),
        (&["10.0.0.9, 192.0.2.1, fd00::2,10.0.0.3"], "192.0.2.1"),
        (&["198.51.100.1,\t192.0.2.1:4711 , [fd00::2]:80"], "192.0.2.1"),
        (&["[2001:db8:0:1::1]:4711"], "2001:db8:0:1::1"),
        // Lines of a repeated header are one list.
        (&["198.51.100.1", "192.0.2.1"], "192.0.2.1"),
        (&["198.51.100.1, 192.0.2.1", "10.0.0.2", "10.0.0.3, 10.0.0.4"], "192.0.2.1"),
        (&["192.0.2.1", ""], "10.0.0.1"),
        // If all are trusted, the leftmost is the client.
        (&[], "10.0.0.1"),
        (&["10.0.0.2"], "10.0.0.2"),
        (&["10.0.0.4", "10.0.0.3, 10.0.0.2"], "10.0.0.4"),
        // An address is canonical before it is compared.
        (&["192.0.2.1, ::ffff:10.0.0.2, ::ffff:a00:3"], "192.0.2.1"),
        (&["198.51.100.1, [::ffff:192.0.2.1]:80"], "192.0.2.1"),
    ] {
        listed(lines, client);
    }
    for (lines, client) in [
        (&["for=198.51.100.1, for=192.0.2.1, for=\"[fd00::2]\", for=10.0.0.2"][..], "192.0.2.1"),
        (&["for=198.51.100.1, for=192.0.2.1", "for=10.0.0.2"], "192.0.2.1"),
        (&["for=\"198.51.100.1", "for=192.0.2.1\", for=10.0.0.2"], "10.0.0.2"),
        (&["for=10.0.0.4, for=10.0.0.3"], "10.0.0.4"),
    ] {
        forwarded(lines, client);
    }
}

/// CVE-2026-39409 (Hono), CVE-2026-123603 (hickory): lists of addresses did not contain mapped ones.
#[test]
fn a_peer_is_canonical_before_it_is_compared() {
    for (peer, client) in [("::ffff:10.0.0.1", "192.0.2.1"), ("::ffff:192.0.2.9", "192.0.2.9")] {
        let found = resolve(&private().x_forwarded_for(), from(peer), "x-forwarded-for", &["192.0.2.1"]);
        assert_eq!(found, Ok(address(client)));
    }
}

#[test]
fn an_invalid_address_ends_the_search_for_the_client() {
    for bad in ["unknown", "_hidden", "", " ", "unix:", "-", "10.0.0.256", "[10.0.0.7]", "\"10.0.0.7\"", "10.0.0.7 x"] {
        listed(&[&format!("192.0.2.1, 10.0.0.7, {bad}")], "10.0.0.1");
        listed(&[&format!("192.0.2.1, 10.0.0.7, {bad}, 10.0.0.2")], "10.0.0.2");
        listed(&[&format!("{bad}, 192.0.2.1, 10.0.0.2")], "192.0.2.1");
        listed(&[&format!("{bad}, 10.0.0.3, 10.0.0.2")], "10.0.0.3");
    }
}

#[test]
fn forwarded_headers_are_parsed() {
    for element in [
        "for=192.0.2.1",
        "For=192.0.2.1",
        "FOR=\"192.0.2.1\"",
        "for=\"192.0.2.1:4711\"",
        "for=192.0.2.1:4711",
        "for=\"192.0.2.1:_port\"",
        "for=\"\\1\\92.0.2.1\"",
        "for=\"[::ffff:192.0.2.1]:80\"",
        "for=[::ffff:192.0.2.1]",
        "for=\"::ffff:192.0.2.1\"",
        "for=192.0.2.1;proto=https;by=10.0.0.9",
        "proto=https;by=_proxy; for=192.0.2.1 ;host=example.org",
        "host=\"a,b\";for=192.0.2.1",
        "for=192.0.2.1;host=\"for=198.51.100.1, for=198.51.100.2\"",
        "for=192.0.2.1;host=\"\\\", for=198.51.100.1, \\\"\"",
        "for=192.0.2.1;host=\"\\\\\\\", for=198.51.100.1, \\\\\"",
        "for=192.0.2.1;host=\"\"",
        ";;for=192.0.2.1;;",
        "secret=_a'b;for=192.0.2.1",
    ] {
        forwarded(&[element], "192.0.2.1");
        forwarded(&[&format!("for=198.51.100.9,{element}")], "192.0.2.1");
        forwarded(&[&format!("for=198.51.100.9, {element} , for=10.0.0.2")], "192.0.2.1");
    }
    forwarded(&["for=\"[2001:db8::1]:4711\""], "2001:db8::1");
    forwarded(&["for=\"[fe80::1%eth0]\""], "fe80::1");
}

#[test]
fn malformed_forwarded_elements_name_no_client() {
    for element in [
        "for=unknown",
        "for=_hidden",
        "for=\"_hidden:80\"",
        "for",
        "for=",
        "for=\"\"",
        "for =192.0.2.1",
        "for= 192.0.2.1",
        "by=192.0.2.1",
        "proto=https",
        "192.0.2.1",
        "for=192.0.2.1;for=192.0.2.1",
        "for=192.0.2.1;For=198.51.100.1",
        "for=192.0.2.1 proto=https",
        "for=192.0.2.1;proto",
        "for=192.0.2.1;=x",
        "for=192.0.2.1;a b=x",
        "for=192.0.2.1;host=a\"b",
        "for=192.0.2.1;host=a\\b",
        "for=192.0.2.1;host=a=b",
        "for=192.0.2.1;host=\"a\"b",
        "for=192.0.2.1;host=\"a",
        "for=192.0.2.1;host=\"a\\\"",
        "for=192.0.2.1\"",
        "for=\"192.0.2.1",
        "\"for=192.0.2.1\"",
        "for='192.0.2.1'",
        "for=\" 192.0.2.1\"",
        "for=\"192.0.2.1, 198.51.100.1\"",
        "",
        ";",
    ] {
        forwarded(&[element], "10.0.0.1");
        forwarded(&[&format!("{element}, for=10.0.0.2")], "10.0.0.2");
    }
}

/// RFC 9110, section 5.6.4: in a quoted string, a backslash escapes any character.
#[test]
fn a_backslash_before_any_character_of_a_quoted_value_stands_for_that_character() {
    let escaped = |text: &str| text.chars().map(|character| format!("\\{character}")).collect::<String>();
    for (node, client) in [
        ("192.0.2.1", "192.0.2.1"),
        ("192.0.2.1:4711", "192.0.2.1"),
        ("192.0.2.1:_port", "192.0.2.1"),
        ("[2001:db8::a]", "2001:db8::a"),
        ("[2001:DB8::a%eth0]:80", "2001:db8::a"),
    ] {
        forwarded(&[&format!("for=\"{}\"", escaped(node))], client);
        forwarded(&[&format!("host=\"{}\";for=\"{node}\", for=10.0.0.2", escaped("a, \"b\\\";for="))], client);
        // One backslash at every position.
        for place in 0..node.len() {
            let (before, after) = node.split_at(place);
            forwarded(&[&format!("for=198.51.100.9, for=\"{before}\\{after}\", for=10.0.0.2")], client);
            // Two are an escaped backslash, and three are that and an escaped character. No address contains a
            // backslash.
            forwarded(&[&format!("for=198.51.100.9, for=\"{before}\\\\{after}\", for=10.0.0.2")], "10.0.0.2");
            forwarded(&[&format!("for=198.51.100.9, for=\"{before}\\\\\\{after}\", for=10.0.0.2")], "10.0.0.2");
        }
    }
}

#[test]
fn overlong_addresses_are_ignored() {
    let long = |escaped: usize| format!("for=\"192.0.2.1:_{}\"", "\\a".repeat(escaped));
    forwarded(&[&long(50)], "192.0.2.1");
    forwarded(&[&long(60)], "10.0.0.1");
    forwarded(&[&long(100_000), "for=10.0.0.2"], "10.0.0.2");
}

/// A quote that a client leaves open does not extend into the proxy's element.
#[test]
fn unclosed_quotes_do_not_join_elements() {
    for forged in
        ["for=\"", "for=\"198.51.100.1", "\"", "\\", "\"\\", "a=\"\\\"", "for=198.51.100.1;x=\"", "\"\"\"", "="]
    {
        for added in
            ["for=192.0.2.1", "for=\"192.0.2.1:80\"", "host=\"a\\\", b\";for=192.0.2.1", "for=192.0.2.1;x=\"\\\\\""]
        {
            forwarded(&[&format!("{forged},{added}")], "192.0.2.1");
            forwarded(&[&format!("{forged}, {added}, for=\"10.0.0.2\"")], "192.0.2.1");
            forwarded(&[forged, added], "192.0.2.1");
        }
    }
}

#[test]
fn hops_are_counted_from_the_right() {
    let found = |count, lines: &[&str]| {
        resolve(&TrustedProxies::hops(count).x_forwarded_for(), from("203.0.113.1"), "x-forwarded-for", lines)
    };
    let all = ["192.0.2.1, 192.0.2.2", "192.0.2.3"];
    for count in 1..=3 {
        assert_eq!(found(count, &all), Ok(address(&format!("192.0.2.{}", 4 - count))));
    }
    assert_eq!(found(4, &all), Err(AddressError::TooFewHops { expected: 4, found: 3 }));
    assert_eq!(found(1, &[]), Err(TOO_FEW));
    assert_eq!(found(usize::MAX, &[]), Err(AddressError::TooFewHops { expected: usize::MAX, found: 0 }));
    for bad in ["unknown", "_hidden", "", "192.0.2.256"] {
        assert_eq!(found(2, &["192.0.2.1", bad, "192.0.2.3"]), Err(AddressError::Unreadable));
        assert_eq!(found(3, &["192.0.2.1", bad, "192.0.2.3"]), Err(AddressError::Unreadable));
        assert_eq!(found(1, &["192.0.2.1", bad, "192.0.2.3"]), Ok(address("192.0.2.3")));
    }
    let by = TrustedProxies::hops(2).forwarded();
    assert_eq!(
        resolve(&by, get("/"), "forwarded", &["for=192.0.2.1;x=\", \"", "for=10.0.0.1"]),
        Ok(address("192.0.2.1"))
    );
}

#[test]
fn a_single_valued_header_is_one_address() {
    for by in [private().single_valued("CF-Connecting-IP"), TrustedProxies::hops(2).single_valued("cf-connecting-ip")] {
        let found = |lines: &[&str]| resolve(&by, from("10.0.0.1"), "cf-connecting-ip", lines);
        assert_eq!(found(&["192.0.2.1"]), Ok(address("192.0.2.1")));
        assert_eq!(found(&[" [2001:db8::1]:80\t"]), Ok(address("2001:db8::1")));
        assert_eq!(found(&["::ffff:192.0.2.1"]), Ok(address("192.0.2.1")));
        // A single address can be trusted.
        assert_eq!(found(&["10.0.0.9"]), Ok(address("10.0.0.9")));
        assert_eq!(found(&["192.0.2.1", "192.0.2.2"]), Err(AddressError::Repeated));
        assert_eq!(found(&["192.0.2.1", "192.0.2.1"]), Err(AddressError::Repeated));
        for bad in ["192.0.2.1, 192.0.2.2", "192.0.2.1,", "", "unknown", "for=192.0.2.1"] {
            assert_eq!(found(&[bad]), Err(AddressError::Unreadable), "{bad}");
        }
    }
    let absent = |by: ClientIp| resolve(&by, from("10.0.0.1"), "x-forwarded-for", &["192.0.2.1"]);
    assert_eq!(absent(private().single_valued("x-real-ip")), Ok(address("10.0.0.1")));
    assert_eq!(absent(TrustedProxies::hops(1).single_valued("x-real-ip")), Err(TOO_FEW));
}

#[test]
fn without_a_peer_only_hops_find_the_client() {
    let list = ["192.0.2.1"];
    for by in [private().x_forwarded_for(), private().trust_unix_peers().x_forwarded_for()] {
        assert_eq!(resolve(&by, get("/"), "x-forwarded-for", &list), Err(AddressError::NoPeer));
    }
    let single = private().trust_unix_peers().single_valued("x-forwarded-for");
    assert_eq!(resolve(&single, get("/"), "x-forwarded-for", &list), Err(AddressError::NoPeer));
    let hops = TrustedProxies::hops(1).x_forwarded_for();
    assert_eq!(resolve(&hops, get("/"), "x-forwarded-for", &list), Ok(address("192.0.2.1")));
}

#[test]
fn unix_peers_are_trusted_only_if_configured() {
    let unix = || {
        let mut request = get("/");
        request.extensions_mut().insert(UnixPeer);
        request
    };
    let list = |by: ClientIp, lines: &[&str]| resolve(&by, unix(), "x-forwarded-for", lines);
    let trusting = || private().trust_unix_peers();
    assert_eq!(list(private().x_forwarded_for(), &["192.0.2.1"]), Err(AddressError::NoPeer));
    assert_eq!(list(trusting().x_forwarded_for(), &["198.51.100.1, 192.0.2.1, 10.0.0.1"]), Ok(address("192.0.2.1")));
    assert_eq!(list(trusting().x_forwarded_for(), &["unknown, 10.0.0.1"]), Ok(address("10.0.0.1")));
    assert_eq!(list(trusting().x_forwarded_for(), &["192.0.2.1, unknown"]), Err(AddressError::Unreadable));
    assert_eq!(list(trusting().x_forwarded_for(), &[]), Err(TOO_FEW));
    assert_eq!(list(trusting().single_valued("x-forwarded-for"), &["192.0.2.1"]), Ok(address("192.0.2.1")));
    assert_eq!(list(trusting().single_valued("x-real-ip"), &["192.0.2.1"]), Err(TOO_FEW));

    // A peer with an address is trusted by its address only.
    let mut request = unix();
    request.extensions_mut().insert(PeerAddr(([203, 0, 113, 1], 80).into()));
    let found = resolve(&trusting().x_forwarded_for(), request, "x-forwarded-for", &["192.0.2.1"]);
    assert_eq!(found, Ok(address("203.0.113.1")));
}

#[cfg(unix)]
#[test]
fn tonic_says_that_a_peer_is_on_a_unix_socket() {
    let mut request = get("/");
    let unix = tonic::transport::server::UdsConnectInfo { peer_addr: None, peer_cred: None };
    request.extensions_mut().insert(unix);
    let by = private().trust_unix_peers().x_forwarded_for();
    assert_eq!(resolve(&by, request, "x-forwarded-for", &["192.0.2.1"]), Ok(address("192.0.2.1")));
}

#[test]
fn invalid_proxies_are_errors() {
    let cidrs = |cidrs: &[&str]| TrustedProxies::try_cidrs(cidrs).unwrap_err().to_string();
    assert_eq!(cidrs(&[]), "no proxy is trusted: name at least one network or hop, or use `key::peer_ip`");
    for bad in ["", "10.0.0.0/33", "10.0.0/8", "fd00::/129", "example.org", "10.0.0.1:80", "[::1]", "10.0.0.0/", "*"] {
        let remedy = "is not a network: write one like \"10.0.0.0/8\" or \"fd00::/8\", or a single address";
        assert_eq!(cidrs(&["10.0.0.0/8", bad]), format!("{bad:?} {remedy}"));
    }
    assert_eq!(
        cidrs(&["fd00::1/64"]),
        "the network \"fd00::1/64\" has bits beyond its prefix: write \"fd00::/64\", or the address without a prefix \
         if that alone is meant"
    );
}

/// CVE-2026-76835 (OAuth2 Proxy): every address was trusted.
#[test]
fn trusting_all_addresses_is_an_error() {
    let rejected = |cidrs: &[&str], family: &str| {
        let expected = format!(
            "the trusted networks cover all of {family}, so that every client could choose its address: name the \
             proxies' networks, or count the proxies with `TrustedProxies::hops` if nobody else can connect"
        );
        assert_eq!(TrustedProxies::try_cidrs(cidrs).unwrap_err().to_string(), expected);
    };
    rejected(&["0.0.0.0/0"], "IPv4");
    rejected(&["10.0.0.0/8", "0.0.0.0/1", "128.0.0.0/1"], "IPv4");
    rejected(&["::ffff:0.0.0.0/96"], "IPv4");
    rejected(&["10.0.0.0/8", "::/0"], "IPv6");
    rejected(&["2000::/3"], "IPv6");
}

type Configure = fn() -> ClientIp;

/// throttle-kit client_ip.rs:304: the number of hops was 0 instead of the documented 1, so the client's own header was
/// trusted.
#[test]
fn invalid_settings_panic() {
    let panics: [(Configure, &str); 9] = [
        (|| TrustedProxies::cidrs(["0.0.0.0/0"]).forwarded(), "cover all of IPv4"),
        (
            || TrustedProxies::hops(0).forwarded(),
            "no proxy is trusted: name at least one network or hop, or use `key::peer_ip`",
        ),
        (|| private().single_valued(""), "\"\" is not a header's name"),
        (
            || private().single_valued("x real ip"),
            "\"x real ip\" is not a header's name: use letters, digits and dashes",
        ),
        (|| private().forwarded().ipv4_prefix(0), "an IPv4 prefix has 0 bits: use 1 to 32"),
        (|| private().forwarded().ipv6_prefix(129), "an IPv6 prefix has 129 bits: use 1 to 128"),
        (|| peer_ip().ipv4_prefix(33), "an IPv4 prefix has 33 bits: use 1 to 32"),
        (|| peer_ip().ipv6_prefix(0), "an IPv6 prefix has 0 bits: use 1 to 128"),
        (|| peer_ip().ipv6_prefix(129), "an IPv6 prefix has 129 bits: use 1 to 128"),
    ];
    for (configure, expected) in panics {
        let message = panic_message(configure);
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn address_errors_say_what_is_missing() {
    assert_eq!(
        AddressError::NoPeer.to_string(),
        "the server does not provide the peer's address, or the peer is on a Unix socket that is not trusted"
    );
    assert_eq!(
        AddressError::TooFewHops { expected: 3, found: 1 }.to_string(),
        "the header names 1 of the 3 hops that trusted proxies append: the request bypassed one of them, or fewer append \
         to this header"
    );
}

/// The table in the guide's page on keys.
#[test]
fn a_proxy_without_a_valid_entry_is_the_client_or_an_error() {
    for (lines, client) in [
        (&[][..], "10.0.0.1"),
        (&[""], "10.0.0.1"),
        (&["unknown"], "10.0.0.1"),
        (&["999.1.1.1"], "10.0.0.1"),
        (&["198.51.100.7, unknown"], "10.0.0.1"),
        (&["unknown, 198.51.100.1"], "198.51.100.1"),
    ] {
        listed(lines, client);
        let by_number = TrustedProxies::hops(1).x_forwarded_for();
        let found = resolve(&by_number, from("10.0.0.1"), "x-forwarded-for", lines).ok();
        assert_eq!(found, Some(address(client)).filter(|_| client != "10.0.0.1"), "{lines:?}");
    }
}
