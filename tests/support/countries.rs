//! A database of countries in MaxMind's format: <https://maxmind.github.io/MaxMind-DB/>.

use ipnet::{IpNet, Ipv6Net};

/// Returns a database in which each network is in the country with this code.
pub fn database(networks: &[(&str, &str)]) -> Vec<u8> {
    // Each node has two records, for the next bit of an address: the number of a node, or the position of a country.
    let (mut nodes, mut countries) = (vec![[Record::Unknown; 2]], Vec::new());
    for (network, code) in networks {
        let network = match network.parse().expect("a network") {
            // Addresses of IPv4 are at the beginning of the tree, under `::/96`.
            IpNet::V4(v4) => {
                Ipv6Net::new(u128::from(u32::from(v4.network())).into(), 96 + v4.prefix_len()).expect("a network")
            }
            IpNet::V6(v6) => v6,
        };
        let bit = |place: u8| (u128::from(network.network()) >> (127 - place) & 1) as usize;
        let mut node = 0;
        for place in 0..network.prefix_len() - 1 {
            if let Record::Unknown = nodes[node][bit(place)] {
                nodes[node][bit(place)] = Record::Node(nodes.len());
                nodes.push([Record::Unknown; 2]);
            }
            let Record::Node(next) = nodes[node][bit(place)] else { panic!("{network} overlaps with another network") };
            node = next;
        }
        nodes[node][bit(network.prefix_len() - 1)] = Record::Country(countries.len());
        countries.extend(map(&[("country", map(&[("iso_code", text(code))]))]));
    }

    let count = nodes.len();
    let record = |record| match record {
        Record::Node(node) => node,
        Record::Unknown => count,
        Record::Country(position) => count + 16 + position,
    };
    let mut file = Vec::new();
    for node in nodes.into_iter().flatten() {
        file.extend((record(node) as u32).to_be_bytes());
    }
    file.extend([0; 16]);
    file.extend(countries);
    file.extend(b"\xab\xcd\xefMaxMind.com");
    file.extend(map(&[
        ("node_count", number(6, count as u64)),
        ("record_size", number(5, 32)),
        ("ip_version", number(5, 6)),
        ("database_type", text("Test-Country")),
        ("languages", vec![0, 11 - 7]),
        ("binary_format_major_version", number(5, 2)),
        ("binary_format_minor_version", number(5, 0)),
        ("build_epoch", number(9, 1)),
        ("description", map(&[])),
    ]));
    file
}

#[derive(Clone, Copy)]
enum Record {
    Node(usize),
    Unknown,
    Country(usize),
}

/// Encodes a text of less than 29 bytes.
fn text(text: &str) -> Vec<u8> {
    [&[2 << 5 | text.len() as u8], text.as_bytes()].concat()
}

/// Encodes a number of the type 5, 6 or 9: 16, 32 or 64 bits without their leading zeros.
fn number(kind: u8, number: u64) -> Vec<u8> {
    let bytes: Vec<u8> = number.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
    let size = bytes.len() as u8;
    let control = if kind < 8 { vec![kind << 5 | size] } else { vec![size, kind - 7] };
    [control, bytes].concat()
}

fn map(fields: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let fields_encoded = fields.iter().flat_map(|(name, value)| [text(name), value.clone()].concat());
    [7 << 5 | fields.len() as u8].into_iter().chain(fields_encoded).collect()
}
