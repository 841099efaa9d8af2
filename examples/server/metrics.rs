//! Metrics of all limits, in the text format of Prometheus.

use std::sync::Arc;
use std::time::Duration;

use axum::http::header::CONTENT_TYPE;
use axum::routing::{MethodRouter, get};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder};
use tokio::time::sleep;
use tower_ratelimit::MetricsRecorder;

/// The upper bounds of the histogram of the store's response times, in seconds.
const BUCKETS: [f64; 8] = [0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1];

/// Installs the exporter. Returns the recorder for all layers, and the route that Prometheus scrapes.
///
/// Spawns a task that bounds the exporter's memory while nobody scrapes it.
pub(crate) fn install() -> Result<(Arc<MetricsRecorder>, MethodRouter), BuildError> {
    let durations = Matcher::Full("ratelimit_store_duration_seconds".to_owned());
    let exporter = PrometheusBuilder::new().set_buckets_for_metric(durations, &BUCKETS)?.install_recorder()?;
    let handle = exporter.clone();
    tokio::spawn(async move {
        loop {
            sleep(Duration::from_secs(5)).await;
            handle.run_upkeep();
        }
    });
    let recorder = Arc::new(MetricsRecorder::new());
    let gauges = recorder.clone();
    let export = move || async move {
        gauges.refresh();
        ([(CONTENT_TYPE, "text/plain; version=0.0.4")], exporter.render())
    };
    Ok((recorder, get(export)))
}
