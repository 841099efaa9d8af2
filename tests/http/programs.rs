//! The programs of `examples` that users copy do what their first lines say. The tests run the built programs.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::get;
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use support::answer::Answer;
use support::redis_server::{Folder, RedisServer, wait_until};
use support::server::Server;
use tower_ratelimit::{Limit, RateLimitLayer, TokenBucket, key};

/// A running program, which stops when it is dropped.
struct Program {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Returns the path of an example. Cargo builds them next to the folder of the test binaries.
    fn path(name: &str) -> PathBuf {
        let mut binary: PathBuf = std::env::current_exe().expect("a path to this test");
        binary.pop();
        binary.pop();
        binary.join("examples").join(name)
    }

    fn start(name: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(Self::path(name));
        let mut process = command.args(arguments).stdout(Stdio::piped()).spawn().unwrap_or_else(|error| {
            panic!("{name}: {error}; build it with `cargo build --workspace --all-features --examples`")
        });
        let output = BufReader::new(process.stdout.take().expect("a pipe"));
        Self { process, output }
    }

    /// Starts a server, and returns its address.
    fn serve(name: &str) -> (Self, String) {
        Self::serve_with(name, &["127.0.0.1:0"])
    }

    fn serve_with(name: &str, arguments: &[&str]) -> (Self, String) {
        let mut program = Self::start(name, arguments);
        let mut line = String::new();
        program.output.read_line(&mut line).expect("the program says where it listens");
        let uri = line.trim().strip_prefix("listening on ").expect("an address").to_owned();
        (program, uri)
    }

    /// Waits for the end of the program, and returns its output.
    fn output(mut self) -> String {
        let mut output = String::new();
        self.output.read_to_string(&mut output).expect("the program prints text");
        assert!(self.process.wait().expect("it ends").success(), "{output}");
        output
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn send(uri: &str, token: Option<&str>) -> Answer {
    let request = Request::get(uri);
    let request = match token {
        Some(token) => request.header("authorization", format!("Bearer {token}")),
        None => request,
    };
    let client = Client::builder(TokioExecutor::new()).build_http();
    Answer::of(client.request(request.body(Full::<Bytes>::default()).unwrap()).await.unwrap()).await
}

#[tokio::test]
async fn the_axum_server_limits_users_and_failed_logins() {
    let (_server, uri) = Program::serve("axum_server");
    let report = format!("{uri}/report");
    assert_eq!(send(&report, Some("ann")).await.body, "a report\n");
    assert_eq!(send(&report, Some("bob")).await.status, 200, "each user has a bucket");
    for _ in 0..20 {
        assert_eq!(send(&report, Some("mallory")).await.status, 401);
    }
    assert_eq!(send(&report, Some("mallory")).await.status, 429);
}

#[tokio::test]
async fn the_axum_server_charges_ten_for_a_report() {
    let (_server, uri) = Program::serve("axum_server");
    let left = |answer: Answer| {
        let lines = answer.headers.get_all("ratelimit").iter().filter_map(|line| line.to_str().ok());
        let daily = lines.filter_map(|line| line.split(r#""daily";r="#).nth(1)).next()?;
        daily.split(';').next()?.parse::<u32>().ok()
    };
    assert_eq!(left(send(&format!("{uri}/report"), Some("ann")).await), Some(9_990));
    assert_eq!(left(send(&format!("{uri}/hello"), Some("ann")).await), Some(9_989));
}

#[tokio::test]
async fn the_hyper_server_limits_by_address_across_connections() {
    let (_server, uri) = Program::serve("hyper_server");
    let mut denied = 0;
    for _ in 0..100 {
        let answer = send(&uri, None).await;
        assert!(answer.status == StatusCode::OK || answer.is_denied());
        denied += u32::from(answer.is_denied());
    }
    assert!(denied > 0, "all of 100 requests were allowed");
}

#[tokio::test]
async fn a_dry_run_reads_what_the_server_has_recorded() {
    let folder = Folder::new();
    let rules = folder.write(
        "rules.yaml",
        "
domain: recorded
descriptors:
- { key: header.x-user, rate_limit: { name: users, unit: day, requests_per_unit: 9 } }
- { key: path, value: '/users/{id}', rate_limit: { name: profiles, unit: day, requests_per_unit: 2 } }
- { key: remote_address, rate_limit: { name: visitors, unit: day, requests_per_unit: 3 } }
",
    );
    let requests = folder.write("requests.jsonl", "");
    let (_server, uri) = Program::serve_with("record_requests", &[&requests, "127.0.0.1:0"]);
    for path in ["/", "/users/1?token=s3cr3t", "/users/2", "/users/3"] {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let request = Request::get(format!("{uri}{path}")).header("x-user", "ann").header("authorization", "s3cr3t");
        client.request(request.body(Full::<Bytes>::default()).unwrap()).await.unwrap();
    }
    let recorded = || std::fs::read_to_string(&requests).unwrap();
    wait_until("the requests are recorded", || recorded().lines().count() == 4);
    assert!(!recorded().contains("s3cr3t"));
    let output = Program::start("dry_run", &[&rules, &requests]).output();
    let counts: Vec<&str> = output.lines().filter(|line| line.contains("requests denied")).map(str::trim).collect();
    let expected = [
        "1 of 4 requests denied, 0 rejected, 3 allowed, of which 0 without a limit",
        "users (header.x-user): 0 of 4 requests denied",
        "profiles (path=/users/{id}): 1 of 3 requests denied",
        "visitors (remote_address): 1 of 4 requests denied",
    ];
    assert_eq!(counts, expected, "{output}");
}

#[test]
fn the_tonic_client_gets_the_wait() {
    let output = Program::start("tonic_server", &[]).output();
    assert!(output.starts_with("allowed\nallowed\nallowed\n"), "{output}");
    assert!(output.contains("denied: ResourceExhausted: Too many requests"), "{output}");
}

/// Seven calls are in time: two at once, and one every 200 ms for a second.
#[test]
fn calls_of_the_tonic_client_wait_or_are_not_sent() {
    let output = Program::start("tonic_client", &[]).output();
    let sent = output.lines().filter(|line| *line == "sent").count();
    let denied = output.lines().filter(|line| line.starts_with("not sent: ResourceExhausted: Too many requests"));
    assert!(sent >= 7 && sent + denied.count() == 10, "{output}");
}

/// A server with the limit that the client respects.
#[tokio::test(flavor = "multi_thread")]
async fn the_reqwest_client_is_not_rejected() {
    let limits = RateLimitLayer::new([Limit::new("ten", TokenBucket::per_second(10).burst(5))]);
    let server = Server::axum(Router::new().route("/", get(async || "hello")).layer(limits)).await;
    let uri = server.uri("/");
    let output = tokio::task::spawn_blocking(move || Program::start("reqwest_client", &[&uri]).output()).await.unwrap();
    assert_eq!(output, "200 OK\n".repeat(10));
}

/// The server in the README, on another port.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_in_the_readme_shows_the_rejection_in_the_readme() {
    let readme = std::fs::read_to_string(support::repository("README.md")).expect("the README");
    let (before, after) = readme.split_once("\ncurl -s -i ").expect("the command");
    let command = format!("curl -s -i {}", after.lines().next().expect("a line"));
    let expected = after.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).expect("the response");
    assert!(
        before.contains("TokenBucket::per_second(10).burst(20)).by(key::peer_ip())"),
        "the test has the same limit"
    );
    let without_date = |text: &str| -> Vec<String> {
        text.lines().filter(|line| !line.starts_with("date: ")).map(|line| line.trim_end().to_owned()).collect()
    };
    let mut output = String::new();
    // On a slow machine, the bucket may refill during the 30 requests.
    for _ in 0..5 {
        let limits =
            RateLimitLayer::new([Limit::new("burst", TokenBucket::per_second(10).burst(20)).by(key::peer_ip())]);
        let server = Server::axum(Router::new().route("/", get(async || "hello")).layer(limits)).await;
        let uri = server.uri("");
        let command = command.replace("127.0.0.1:3000", uri.strip_prefix("http://").expect("a URL"));
        let run = move || Command::new("sh").args(["-c", &command]).output().expect("a shell").stdout;
        output = String::from_utf8(tokio::task::spawn_blocking(run).await.unwrap()).expect("text");
        if output.starts_with("HTTP/1.1 429") {
            break;
        }
    }
    assert_eq!(without_date(&output), without_date(expected), "{output}");
}

/// A server that other clients use, too.
#[tokio::test(flavor = "multi_thread")]
async fn the_reqwest_client_waits_as_a_rejection_asks() {
    let answered = Arc::new(Mutex::new(Vec::new()));
    let log = answered.clone();
    let app = Router::new().route(
        "/",
        get(async move || {
            let mut log = log.lock().unwrap();
            log.push(Instant::now());
            match log.len() {
                1 | 2 => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "1")]).into_response(),
                // Longer than the client waits.
                4 => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "90")]).into_response(),
                _ => "hello".into_response(),
            }
        }),
    );
    let server = Server::axum(app).await;
    let uri = server.uri("/");
    let run = move || Command::new(Program::path("reqwest_client")).arg(&uri).output().expect("the program");
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    // It gives up one request, and does not send the next one, because the server has asked for a longer wait.
    assert_eq!(String::from_utf8_lossy(&output.stdout), "200 OK\n429 Too Many Requests\n");
    assert!(String::from_utf8_lossy(&output.stderr).contains("Denied"), "{output:?}");
    let answered = answered.lock().unwrap();
    assert_eq!(answered.len(), 4);
    assert!(answered[..3].windows(2).all(|pair| pair[1] - pair[0] >= Duration::from_secs(1)));
}

/// Each of two regions sends 1,000 requests under a limit of 1,500.
#[test]
fn two_regions_decide_most_requests_without_a_call_and_share_the_limit() {
    let redis = RedisServer::start();
    let regions = [(), ()].map(|()| Program::start("regions", &[&redis.url(), "ann"]));
    let outputs = regions.map(Program::output);
    let count = |output: &str, of: &str| -> u32 {
        let before = output.split(of).next().expect("text").trim_end();
        before.rsplit([' ', '\n']).next().and_then(|number| number.parse().ok()).expect("a number")
    };
    let allowed = outputs.iter().map(|output| count(output, "allowed")).sum::<u32>();
    assert!((1_000..=1_500).contains(&allowed), "{outputs:#?}");
    for output in &outputs {
        assert!(count(output, "without a call") > 500, "{output}");
        assert!(count(output, "with a call") > 0, "{output}");
    }
}

#[test]
fn the_worker_runs_every_job_and_delays_those_over_the_limit() {
    let output = Program::start("worker_queue", &[]).output();
    let lines: Vec<&str> = output.lines().collect();
    for job in ["ann 1", "ann 2", "ann 3", "ann 4", "bob 1"] {
        assert_eq!(lines.iter().filter(|line| **line == format!("{job}: done")).count(), 1, "{output}");
    }
    let later = lines.iter().position(|line| line.ends_with("later")).expect("a job that is delayed");
    let bob = lines.iter().position(|line| line.starts_with("bob")).expect("a job of bob");
    let last = lines.iter().rposition(|line| line.starts_with("ann")).expect("a job of ann");
    assert!(later < bob && bob < last, "bob does not wait for ann: {output}");
}
