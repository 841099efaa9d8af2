//! The example server does what its first lines and the README say.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use support::redis_server::RedisServer;

/// The running example, which ends with the test.
struct Server {
    process: Child,
    address: SocketAddr,
    says: String,
}

impl Server {
    fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(arguments: &[&str]) -> Self {
        let mut process =
            command().args(["--listen", "127.0.0.1:0"]).args(arguments).stdout(Stdio::piped()).spawn().unwrap_or_else(
                |error| panic!("{error}; build it with `cargo build --workspace --all-features --examples`"),
            );
        let (sender, lines) = mpsc::channel();
        let stdout = BufReader::new(process.stdout.take().expect("a pipe"));
        thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let mut says = String::new();
        while !says.contains("for all routes") {
            says += &lines.recv_timeout(Duration::from_secs(20)).expect("the server says where it listens");
            says.push('\n');
        }
        let address = says.split("http://").nth(1).and_then(|rest| rest.split(',').next()).expect("an address");
        Self { process, address: address.parse().expect("an address"), says }
    }

    /// The head and the body of the answer.
    fn ask(&self, request: &str) -> (String, String) {
        let mut stream = TcpStream::connect(self.address).expect("a connection");
        let (line, headers) = request.split_once('\n').unwrap_or((request, ""));
        write!(stream, "{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.to_ascii_lowercase(), body.to_owned())
    }

    fn status(&self, request: &str) -> u16 {
        self.ask(request).0.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status")
    }
}

/// Cargo builds examples beside the folder of test binaries.
fn command() -> Command {
    let mut binary = std::env::current_exe().expect("a path to this test");
    binary.pop();
    binary.pop();
    let binary: PathBuf = binary.join("examples").join("server");
    Command::new(binary)
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn every_route_limits_as_the_help_says() {
    let server = Server::start();
    assert!(server.says.contains("curl -i http://127.0.0.1:"), "{}", server.says);
    let help = server.ask("GET /").1;
    let algorithms =
        ["fixed-window", "sliding-log", "sliding-window", "sliding-window-counter", "token-bucket", "leaky-bucket"];
    for name in algorithms {
        assert!(help.contains(&format!("GET /{name}\n")), "{help}");
        // On a slow machine a bucket fills a little, or a window ends, on the way.
        let request = format!("GET /{name}\nx-user: ann\r\n");
        let mut answers = (0..60).map(|_| server.ask(&request));
        let allowed = answers.by_ref().take_while(|(head, _)| head.starts_with("http/1.1 200")).count();
        assert!((10..50).contains(&allowed), "{name} allowed {allowed} at once");
        let Some((head, body)) = answers.find(|(head, _)| head.starts_with("http/1.1 429")) else {
            panic!("{name} refuses one of 60 only");
        };
        for told in ["retry-after: ", "cache-control: no-store", "x-ratelimit-remaining: 0"] {
            assert!(head.contains(told), "{name}: {told:?} is missing in\n{head}");
        }
        assert!(head.contains(&format!("ratelimit-policy: \"{name}\";q=10;w=10")), "{head}");
        assert!(body.contains("Too many requests"), "{body}");
        // Others are counted apart: by another name, or by address.
        assert_eq!(server.status(&format!("GET /{name}\nx-user: bob\r\n")), 200);
        assert_eq!(server.status(&format!("GET /{name}")), 200);
    }
}

#[test]
fn a_full_queue_denies_and_the_queued_requests_wait() {
    let server = Server::start();
    let statuses: Vec<u16> = thread::scope(|scope| {
        let asked: Vec<_> = (0..12).map(|_| scope.spawn(|| server.status("GET /leaky-bucket-queue"))).collect();
        asked.into_iter().map(|status| status.join().expect("an answer")).collect()
    });
    let allowed = statuses.iter().filter(|status| **status == 200).count();
    assert!((6..12).contains(&allowed), "{statuses:?}");
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
}

#[test]
fn writing_costs_two_and_reading_one() {
    let server = Server::start();
    let left = |request: &str| -> u64 {
        let head = server.ask(request).0;
        let left = head.split("x-ratelimit-remaining: ").nth(1).and_then(|rest| rest.lines().next()).expect("a level");
        left.trim().parse().expect("a number")
    };
    // The window of 10 seconds may end in between: then it is tried once more in the next.
    let taken = || (left("GET /user"), left("POST /user"));
    let right = |(after_get, after_post): (u64, u64)| after_get == after_post + 2;
    assert!(right(taken()) || right(taken()));
}

#[test]
fn a_daily_limit_is_not_charged_for_requests_that_a_limit_per_second_denies() {
    let server = Server::start();
    let head = (0..10).map(|_| server.ask("GET /friends").0).find(|head| head.contains(" 429 ")).expect("a refusal");
    let allowed = head.split("\"day\";r=").nth(1).and_then(|rest| rest.split(';').next()).expect("a level");
    assert!(allowed.parse::<u64>().expect("a number") >= 140, "{head}");
}

#[cfg(unix)]
#[test]
fn it_stops_on_sigterm() {
    let mut server = Server::start();
    let pid = server.process.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
    let patience = Instant::now() + Duration::from_secs(20);
    let status = loop {
        if let Some(status) = server.process.try_wait().expect("a status") {
            break status;
        }
        assert!(Instant::now() < patience, "it goes on");
        thread::sleep(Duration::from_millis(10));
    };
    assert!(status.success(), "{status}");
}

#[test]
fn a_wrong_argument_is_named() {
    for (arguments, told) in [
        (&["--listen", "nowhere"][..], "\"nowhere\" is no address"),
        (&["--redis"], "--redis wants a URL"),
        (&["--rdis"], "\"--rdis\""),
    ] {
        let output = command().args(arguments).output().expect("it ran");
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains(told), "{output:?}");
    }
}

#[test]
fn two_servers_on_one_redis_share_their_limits() {
    let redis = RedisServer::start();
    let servers = [(), ()].map(|()| Server::start_with(&["--redis", &redis.url()]));
    // At least ten in any ten seconds, and hardly more than that whatever server is asked. One that Redis answers too
    // late, as the machine stands still, may have been charged.
    let statuses: Vec<u16> = (0..40).map(|n| servers[n % 2].status("GET /sliding-log\nx-user: ann\r\n")).collect();
    let count = |status| statuses.iter().filter(|other| **other == status).count();
    let [allowed, refused, late] = [200, 429, 503].map(count);
    assert_eq!(allowed + refused + late, 40, "{statuses:?}");
    assert!((10..20).contains(&(allowed + late)), "{statuses:?}");
    assert!(!statuses[..10].contains(&429), "{statuses:?}");
}

#[test]
fn a_redis_that_is_not_there_is_named() {
    let output = command().args(["--redis", "redis://127.0.0.1:1"]).output().expect("it ran");
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("no connection to Redis"), "{told}");
}
