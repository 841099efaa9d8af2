//! Random forged headers, followed by the entries of trusted proxies.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::{HeaderValue, Request};
use proptest::prelude::*;
use tower_ratelimit::RequestHead;
use tower_ratelimit::key::{AddressError, ClientIp, PeerAddr, TrustedProxies};

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

#[derive(Clone, Copy, Debug)]
enum List {
    XForwardedFor,
    Forwarded,
}

impl List {
    fn name(self) -> &'static str {
        match self {
            Self::XForwardedFor => "x-forwarded-for",
            Self::Forwarded => "forwarded",
        }
    }

    fn by(self, proxies: TrustedProxies) -> ClientIp {
        match self {
            Self::XForwardedFor => proxies.x_forwarded_for(),
            Self::Forwarded => proxies.forwarded(),
        }
    }
}

/// A hop, with its text in either header.
#[derive(Clone, Debug)]
struct Hop {
    address: Option<IpAddr>,
    plain: String,
    forwarded: String,
}

impl Hop {
    fn text(&self, list: List) -> &str {
        match list {
            List::XForwardedFor => &self.plain,
            List::Forwarded => &self.forwarded,
        }
    }
}

fn trusted() -> TrustedProxies {
    TrustedProxies::cidrs(["10.0.0.0/8", "fd00::/8"])
}

fn is_trusted(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.octets()[0] == 10,
        IpAddr::V6(address) => address.octets()[0] == 0xfd,
    }
}

fn resolve(by: &ClientIp, list: List, lines: &[Vec<u8>]) -> Result<IpAddr, AddressError> {
    let mut request = Request::new(());
    request.extensions_mut().insert(PeerAddr((PEER, 40_000).into()));
    for line in lines {
        request.headers_mut().append(list.name(), HeaderValue::from_bytes(line).expect("a server lets it through"));
    }
    by.resolve(&RequestHead::of(&request))
}

fn a_list() -> impl Strategy<Value = List> {
    prop_oneof![Just(List::XForwardedFor), Just(List::Forwarded)]
}

fn a_proxy() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<[u8; 3]>().prop_map(|[a, b, c]| IpAddr::from([10, a, b, c])),
        any::<[u8; 15]>().prop_map(|rest| {
            let mut octets = [0xfd; 16];
            octets[1..].copy_from_slice(&rest);
            IpAddr::from(octets)
        }),
    ]
}

fn a_client() -> impl Strategy<Value = IpAddr> {
    let any = prop_oneof![
        any::<u32>().prop_map(|bits| IpAddr::from(Ipv4Addr::from_bits(bits))),
        any::<u128>().prop_map(|bits| IpAddr::from(Ipv6Addr::from_bits(bits))),
    ];
    any.prop_map(|address| address.to_canonical()).prop_filter("it is no proxy", |address| !is_trusted(*address))
}

/// An address as a proxy may write it: with or without a port, brackets, a zone, or mapping.
fn spelled(address: IpAddr) -> impl Strategy<Value = String> {
    let port =
        prop_oneof![Just(String::new()), (0_u16..).prop_map(|port| format!(":{port}")), Just(":_x.1".to_owned())];
    let zone = prop_oneof![Just(""), Just("%eth0"), Just("%1")];
    (port, zone, any::<[bool; 2]>()).prop_map(move |(port, zone, [mapped, bare])| match address {
        IpAddr::V4(address) if mapped => format!("[{}]{port}", address.to_ipv6_mapped()),
        IpAddr::V4(address) => format!("{address}{port}"),
        IpAddr::V6(address) if bare => format!("{address}{zone}"),
        IpAddr::V6(address) => format!("[{address}{zone}]{port}"),
    })
}

/// Returns the text as a quoted string, with unnecessary escapes.
fn quoted(text: &str, eager: bool) -> String {
    let escaped = text.chars().map(|c| if eager || "\"\\".contains(c) { format!("\\{c}") } else { c.to_string() });
    format!("\"{}\"", escaped.collect::<String>())
}

/// Random content of a quoted string, biased towards characters that could end it.
fn a_text() -> impl Strategy<Value = String> {
    prop_oneof!["[,;=\"\\\\ forx0-9.]{0,12}", "[ -~]{0,12}", Just("\", for=6.6.6.6, x=\"".to_owned())]
}

fn a_hop(address: impl Strategy<Value = Option<IpAddr>>) -> impl Strategy<Value = Hop> {
    let spelled = address.prop_flat_map(|address| {
        let text = match address {
            Some(address) => spelled(address).boxed(),
            None => prop_oneof![Just("unknown"), Just("_hidden"), Just("1.2.3"), Just("_x:80")]
                .prop_map(str::to_owned)
                .boxed(),
        };
        text.prop_map(move |text| (address, text))
    });
    let others = prop::collection::vec((a_text(), any::<bool>()), 0..3);
    (spelled, others, any::<[bool; 4]>(), 0_usize..3).prop_map(
        |((address, text), others, [eager, upper, bare, spaced], at)| {
            let name = if upper { "FOR" } else { "for" };
            let is_token = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._".contains(&byte));
            let node = if bare && is_token { text.clone() } else { quoted(&text, eager) };
            let mut pairs: Vec<_> =
                others.iter().map(|(text, eager)| format!("host={}", quoted(text, *eager))).collect();
            pairs.insert(at.min(pairs.len()), format!("{name}={node}"));
            let [plain, forwarded] =
                [text, pairs.join(";")].map(|text| if spaced { format!(" {text} ") } else { text });
            Hop { address, plain, forwarded }
        },
    )
}

fn some_hop() -> impl Strategy<Value = Hop> {
    a_hop(prop_oneof![6 => a_proxy().prop_map(Some), 2 => a_client().prop_map(Some), 1 => Just(None)])
}

/// Random header values, biased towards characters with a meaning.
fn forged() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        4 => prop::sample::select(b",;=\"\\ \t:[]%._for19".to_vec()),
        1 => (0x20_u8..=0xff).prop_filter("it is visible", |byte| *byte != 0x7f),
    ];
    let texts = prop::sample::select(vec![
        "for=\"",
        "for=6.6.6.6",
        "\"\\\"",
        "6.6.6.6",
        "10.6.6.6",
        "for=10.6.6.6",
        "unknown",
        "\\\\\"",
        ", ",
    ]);
    let part = prop_oneof![prop::collection::vec(byte, 0..8), texts.prop_map(|text| text.as_bytes().to_vec())];
    prop::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
}

/// Distributes hops over lines. `breaks` marks the hops before which a line begins.
fn lines(hops: &[Hop], breaks: &[bool], list: List) -> Vec<Vec<u8>> {
    let mut lines: Vec<Vec<u8>> = Vec::new();
    for (hop, is_new) in hops.iter().zip(breaks.iter().cycle()) {
        let text = hop.text(list).as_bytes();
        match lines.last_mut() {
            Some(line) if !is_new => {
                line.push(b',');
                line.extend(text);
            }
            _ => lines.push(text.to_vec()),
        }
    }
    lines
}

/// A model that finds the client by networks, from left to right.
fn model_by_networks(hops: &[Hop]) -> IpAddr {
    let mut client = None;
    let way = hops.iter().map(|hop| hop.address).chain([Some(PEER)]);
    for address in way {
        client = match address {
            Some(address) if !is_trusted(address) => Some(address),
            Some(address) => client.or(Some(address)),
            None => None,
        };
    }
    client.expect("the peer is one")
}

fn model_by_number(hops: &[Hop], count: usize) -> Result<IpAddr, AddressError> {
    let counted = &hops[hops.len().saturating_sub(count)..];
    match counted.iter().map(|hop| hop.address).collect::<Option<Vec<_>>>() {
        None => Err(AddressError::Unreadable),
        Some(found) if found.len() < count => Err(AddressError::TooFewHops { expected: count, found: found.len() }),
        Some(found) => Ok(found[0]),
    }
}

proptest! {
    #![proptest_config(support::cases(1_000))]

    #[test]
    fn the_resolved_client_is_that_of_the_model(
        list in a_list(),
        hops in prop::collection::vec(some_hop(), 0..6),
        breaks in prop::collection::vec(any::<bool>(), 1..6),
        count in 1_usize..5,
    ) {
        let lines = lines(&hops, &breaks, list);
        prop_assert_eq!(resolve(&list.by(trusted()), list, &lines), Ok(model_by_networks(&hops)));
        let by_number = list.by(TrustedProxies::hops(count));
        prop_assert_eq!(resolve(&by_number, list, &lines), model_by_number(&hops, count));
    }

    /// commonly#538, talosctl-oidc#128 and others took the first address for the client.
    #[test]
    fn forged_entries_do_not_change_the_client(
        list in a_list(),
        forged in prop::collection::vec(forged(), 1..4),
        client in a_hop(a_client().prop_map(Some)),
        proxies in prop::collection::vec(a_hop(a_proxy().prop_map(Some)), 0..4),
        breaks in prop::collection::vec(any::<bool>(), 1..6),
        same_line: bool,
    ) {
        let added: Vec<_> = [std::slice::from_ref(&client), &*proxies].concat();
        let mut added_lines = lines(&added, &breaks, list);
        let mut all = forged;
        if same_line {
            let last = all.last_mut().unwrap();
            last.push(b',');
            last.extend(added_lines.remove(0));
        }
        all.extend(added_lines);
        let client = Ok(client.address.unwrap());
        prop_assert_eq!(resolve(&list.by(trusted()), list, &all), client);
        prop_assert_eq!(resolve(&list.by(TrustedProxies::hops(added.len())), list, &all), client);
    }

    #[test]
    fn nothing_panics(lines in prop::collection::vec(forged(), 0..4), count in 1_usize..5) {
        for list in [List::XForwardedFor, List::Forwarded] {
            prop_assert!(resolve(&list.by(trusted()), list, &lines).is_ok());
            let _ = resolve(&list.by(TrustedProxies::hops(count)), list, &lines);
            let single = TrustedProxies::hops(count).single_valued(list.name());
            prop_assert!(lines.len() == 1 || resolve(&single, list, &lines).is_err());
        }
    }
}

/// Headers with the most work, far larger than servers accept. More than linear work would take hours.
#[test]
fn the_longest_header_takes_linear_time() {
    let worst: [(List, &str); 5] = [
        (List::XForwardedFor, "10.0.0.1,"),
        (List::Forwarded, "for=10.0.0.1,"),
        (List::Forwarded, "\\\\\""),
        (List::Forwarded, "for=\"\\"),
        (List::Forwarded, "\\"),
    ];
    for (list, part) in worst {
        let line = format!("{},for=10.0.0.1", part.repeat(4_000_000 / part.len()));
        let _ = resolve(&list.by(trusted()), list, &[line.into_bytes()]);
    }
}
