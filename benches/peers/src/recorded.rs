//! This crate with recorders, to count what they add.

use tower_ratelimit::{Builder, Limit, Limiter, MetricsRecorder, RateLimitLayer, Recorder, Stats, key};

use crate::algorithms::bucket;
use crate::app::App;
use crate::subject::Memory;

/// Ignores everything it receives.
struct Ignore;

impl Recorder for Ignore {}

/// Adds the recorder called `name`, if there is one.
fn record<T>(builder: Builder<T>, name: &str) -> Option<Builder<T>> {
    match name {
        "an empty recorder" => Some(builder.recorder(Ignore)),
        "stats" => Some(builder.recorder(Stats::new())),
        // Without an exporter, whose counters are not this crate's.
        "metrics" => Some(builder.recorder(MetricsRecorder::new())),
        _ => None,
    }
}

/// Returns a limiter with the recorder called `name`.
pub fn limiter(name: &str) -> Option<Box<dyn Memory>> {
    let builder = record(Limiter::builder([Limit::new("limit", bucket())]), name)?;
    Some(Box::new(builder.build()))
}

/// Returns an application with the recorder called `name`, which allows requests and sends no headers.
pub fn app(name: &str) -> Option<App> {
    let layer = RateLimitLayer::builder([Limit::new("limit", bucket()).by(key::peer_ip())]).headers([]);
    Some(App::Axum(App::hello().layer(record(layer, name)?.build().keep_body())))
}
