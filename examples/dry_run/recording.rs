//! Recorded requests: a line of JSON for each, in the order of their times.
//!
//! ```json
//! {"at": "2026-01-01T00:00:00Z", "method": "GET", "path": "/x?p=2", "headers": {"x-user": "ann"}, "peer": "192.0.2.7"}
//! ```
//!
//! | field | |
//! |---|---|
//! | `at` | when the request arrived: seconds since the Unix epoch, or an instant of RFC 3339 |
//! | `method` | defaults to `GET` |
//! | `path` | with the query, if there was one |
//! | `route` | the route that the router matched, such as `/users/{id}`; defaults to the path without its query |
//! | `headers` | a value or a list of values for each name |
//! | `peer` | the peer's IP address |

use std::collections::HashMap;
use std::error::Error;
use std::net::{IpAddr, SocketAddr};

use http::Request;
use serde::Deserialize;
use serde_json::Value;
use tower_ratelimit::Timestamp;
use tower_ratelimit::key::{PeerAddr, RoutePattern};

/// A recorded request, and when it arrived.
pub(crate) struct Recorded {
    pub(crate) at: Timestamp,
    pub(crate) request: Request<()>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    at: Value,
    #[serde(default = "get")]
    method: String,
    path: String,
    route: Option<String>,
    #[serde(default)]
    headers: HashMap<String, Values>,
    peer: Option<IpAddr>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Values {
    One(String),
    Several(Vec<String>),
}

fn get() -> String {
    "GET".to_owned()
}

impl Recorded {
    /// Parses a line.
    pub(crate) fn parse(line: &str) -> Result<Self, Box<dyn Error>> {
        let line: Line = serde_json::from_str(line)?;
        let mut request = Request::builder().method(&*line.method).uri(line.path);
        for (name, values) in line.headers {
            let values = match values {
                Values::One(value) => vec![value],
                Values::Several(values) => values,
            };
            request = values.into_iter().fold(request, |request, value| request.header(&name, value));
        }
        let mut request = request.body(())?;
        let route = line.route.unwrap_or_else(|| request.uri().path().to_owned());
        request.extensions_mut().insert(RoutePattern(route));
        if let Some(peer) = line.peer {
            request.extensions_mut().insert(PeerAddr(SocketAddr::new(peer, 0)));
        }
        Ok(Self { at: timestamp(&line.at)?, request })
    }
}

fn timestamp(at: &Value) -> Result<Timestamp, Box<dyn Error>> {
    let micros = match at {
        Value::Number(seconds) => (seconds.as_f64().unwrap_or(-1.0) * 1e6).round(),
        Value::String(text) => text.parse::<jiff::Timestamp>()?.as_microsecond() as f64,
        _ => return Err(format!("`at` is {at}: use seconds since the Unix epoch, or an instant of RFC 3339").into()),
    };
    if !(0.0..=Timestamp::MAX.as_micros() as f64).contains(&micros) {
        return Err(format!("`at` is {micros} µs after 1970: use an instant from 1970 on").into());
    }
    Ok(Timestamp::from_micros(micros as u64))
}
