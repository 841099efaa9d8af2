//! Metrics in Prometheus, the dashboard, and the alerts.

mod dashboard;
mod example_server;
mod prometheus;
