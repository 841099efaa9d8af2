//! A service with limits from a file, and the limits that apply to its requests.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};

use http::{Request, Response, StatusCode};
use tokio::runtime::{Builder, Runtime};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_ratelimit::explain::Explanation;
use tower_ratelimit::key::PeerAddr;
use tower_ratelimit::rules::{self, Extractors};
use tower_ratelimit::{HttpOptions, Limit, RateLimitLayer, RequestHead, Store};

pub(crate) struct Limited {
    builder: tower_ratelimit::Builder<HttpOptions>,
    layer: RateLimitLayer,
    runtime: Runtime,
}

/// The result of a request.
#[derive(Debug, PartialEq)]
pub(crate) struct Coverage {
    pub(crate) status: StatusCode,
    /// The remaining tokens of each limit that applied, by name.
    pub(crate) left: BTreeMap<String, u32>,
}

impl Limited {
    pub(crate) fn by(yaml: &str) -> Self {
        Self::with(yaml, &Extractors::new())
    }

    pub(crate) fn with(yaml: &str, extractors: &Extractors) -> Self {
        Self::of(rules::from_yaml(yaml, extractors).unwrap())
    }

    pub(crate) fn of(limits: Vec<Limit>) -> Self {
        Self::of_builder(RateLimitLayer::builder(limits))
    }

    pub(crate) fn of_builder(builder: tower_ratelimit::Builder<HttpOptions>) -> Self {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        Self { layer: builder.clone().build(), builder, runtime }
    }

    pub(crate) fn store(self, store: impl Store) -> Self {
        let builder = self.builder.store(store);
        Self { layer: builder.clone().build(), builder, ..self }
    }

    pub(crate) fn send(&self, request: Request<()>) -> Coverage {
        let inner = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(String::new())) });
        let mut service = self.layer.layer(inner);
        let response = self.runtime.block_on(async { service.ready().await.unwrap().call(request).await.unwrap() });
        let standings = response.headers().get("ratelimit").map_or("", |value| value.to_str().unwrap());
        Coverage {
            status: response.status(),
            left: standings.split(", ").filter(|member| !member.is_empty()).map(standing).collect(),
        }
    }

    pub(crate) fn explain(&self, request: &Request<()>) -> Explanation {
        self.runtime.block_on(self.layer.explain(&RequestHead::of(request)))
    }

    /// Returns whether the request was forwarded.
    pub(crate) fn allows(&self, request: Request<()>) -> bool {
        self.send(request).status == StatusCode::OK
    }
}

/// Parses a member such as `"name";r=9;t=60`.
fn standing(member: &str) -> (String, u32) {
    let (name, parameters) = member.trim_start_matches('"').split_once('"').unwrap();
    let left = parameters.split(';').find_map(|parameter| parameter.strip_prefix("r=")).unwrap();
    (name.to_owned(), left.parse().unwrap())
}

/// Returns `GET /` with headers.
pub(crate) fn with(headers: &[(&str, &str)]) -> Request<()> {
    let request = headers.iter().fold(Request::get("/"), |request, (name, value)| request.header(*name, *value));
    request.body(()).unwrap()
}

/// Returns `GET /` from a peer.
pub(crate) fn from(peer: &str) -> Request<()> {
    let peer: IpAddr = peer.parse().unwrap();
    let mut request = with(&[]);
    request.extensions_mut().insert(PeerAddr(SocketAddr::new(peer, 50_000)));
    request
}
