//! Prometheus on a free port of 127.0.0.1, and `promtool`.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::http_client::get;
use support::redis_server::{Folder, free_port};
use tokio::time::sleep;

/// The longest time to wait for Prometheus on a loaded machine.
const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Prometheus {
    process: Child,
    address: SocketAddr,
    _folder: Folder,
}

impl Prometheus {
    /// Starts a server that scrapes `target` every second.
    pub(crate) async fn start(target: SocketAddr) -> Self {
        let folder = Folder::new();
        let config = folder.path().join("prometheus.yml");
        let text = format!(
            "global: {{ scrape_interval: 1s }}\n\
             scrape_configs: [{{ job_name: test, static_configs: [{{ targets: ['{target}'] }}] }}]\n"
        );
        std::fs::write(&config, text).expect("a writable folder");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stderr(Stdio::null())
            .spawn()
            .expect("Prometheus is installed");
        let prometheus = Self { process, address, _folder: folder };
        let start = Instant::now();
        while !prometheus.is_ready().await {
            assert!(start.elapsed() < TIMEOUT, "Prometheus did not start");
            sleep(Duration::from_millis(100)).await;
        }
        prometheus
    }

    async fn is_ready(&self) -> bool {
        get(self.address, "/-/ready").await.is_ok_and(|response| response.starts_with("Prometheus Server is Ready"))
    }

    /// Returns the results of a query, as soon as there are any.
    ///
    /// # Panics
    ///
    /// Panics if the query is invalid, or has no results for a minute.
    pub(crate) async fn query(&self, query: &str) -> Vec<Value> {
        let start = Instant::now();
        loop {
            let encoded: String = url::form_urlencoded::byte_serialize(query.as_bytes()).collect();
            let text = get(self.address, &format!("/api/v1/query?query={encoded}")).await.expect("a response");
            let response: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(response["status"], "success", "{query}: {text}");
            let results = response["data"]["result"].as_array().expect("a list of results");
            // A ratio without requests is not a number.
            let results: Vec<_> = results.iter().filter(|result| result["value"][1] != "NaN").cloned().collect();
            if !results.is_empty() {
                return results;
            }
            assert!(start.elapsed() < TIMEOUT, "{query} has no results");
            sleep(Duration::from_millis(500)).await;
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs `promtool` with `input`, and returns its output if it finds a problem.
pub(crate) fn promtool(arguments: &[&str], input: &str) -> Result<(), String> {
    let mut process = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is installed");
    process.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("promtool reads its input");
    let output = process.wait_with_output().expect("promtool exits");
    let text = [output.stdout, output.stderr].concat();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&text).into_owned()) }
}
