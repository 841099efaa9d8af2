//! What the layer allocates for a request, beyond what the service within does.
//!
//! Keys have been seen before: a store's table has grown by then.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::Empty;
use tower::{Layer, Service, ServiceExt};
use tower_ratelimit::key::{KeyExtractor, PeerAddr};
use tower_ratelimit::{FixedWindow, HeaderStyle, Limit, RateLimitLayer, Reset, TokenBucket, key};

struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}
