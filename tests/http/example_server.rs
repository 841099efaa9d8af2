//! The example server behaves as its documentation and the README say.

use std::io::{BufRead, BufReader, Read, Write};
use std::iter;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::example_server::ExampleServer;
use support::redis_server::RedisServer;

/// Plain requests, so that a test sees every header.
trait Ask {
    /// Returns the head, in lowercase, and the body of the response to a request line and headers.
    fn ask(&self, request: &str) -> (String, String);

    fn status(&self, request: &str) -> u16 {
        self.ask(request).0.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status")
    }
}

/// Returns the number in the field `remaining` of the response to `GET path`.
fn remaining(server: &ExampleServer, path: &str) -> Option<u64> {
    let (head, body) = server.ask(&format!("GET {path}"));
    assert!(head.starts_with("http/1.1 200"), "{head}");
    serde_json::from_str::<Value>(&body).expect("JSON")["remaining"].as_u64()
}

impl Ask for ExampleServer {
    fn ask(&self, request: &str) -> (String, String) {
        let mut stream = TcpStream::connect(self.address).expect("a connection");
        let (line, headers) = request.split_once('\n').unwrap_or((request, ""));
        write!(stream, "{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n").expect("sent");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("a response");
        let (head, body) = response.split_once("\r\n\r\n").expect("a head");
        (head.to_ascii_lowercase(), body.to_owned())
    }
}

#[test]
fn every_route_has_the_limits_of_the_help_text() {
    let server = ExampleServer::start();
    assert!(server.output.contains("curl -i http://127.0.0.1:"), "{}", server.output);
    let help = server.ask("GET /").1;
    let algorithms =
        ["fixed-window", "sliding-log", "sliding-window", "sliding-window-counter", "token-bucket", "leaky-bucket"];
    for name in algorithms {
        assert!(help.contains(&format!("GET /{name}?")), "{help}");
        // On a slow machine, a bucket may refill a little, or a window may end in between.
        let request = format!("GET /{name}\nx-user: ann\r\n");
        let mut answers = (0..60).map(|_| server.ask(&request));
        let allowed = answers.by_ref().take_while(|(head, _)| head.starts_with("http/1.1 200")).count();
        assert!((10..50).contains(&allowed), "{name} allowed {allowed} at once");
        let Some((head, body)) = answers.find(|(head, _)| head.starts_with("http/1.1 429")) else {
            panic!("{name} denies at most one of 60");
        };
        for reported in ["retry-after: ", "cache-control: no-store", "x-ratelimit-remaining: 0"] {
            assert!(head.contains(reported), "{name}: {reported:?} is missing in\n{head}");
        }
        assert!(head.contains(&format!("ratelimit-policy: \"{name}\";q=10;w=10")), "{head}");
        assert!(body.contains("Too many requests"), "{body}");
        // Other users have their own buckets, by name or by address.
        assert_eq!(server.status(&format!("GET /{name}\nx-user: bob\r\n")), 200);
        assert_eq!(server.status(&format!("GET /{name}")), 200);
    }
}

#[test]
fn a_full_queue_denies_and_the_queued_requests_wait() {
    let server = ExampleServer::start();
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
    let server = ExampleServer::start();
    let left = |request: &str| -> u64 {
        let head = server.ask(request).0;
        let left = head.split("x-ratelimit-remaining: ").nth(1).and_then(|rest| rest.lines().next()).expect("a level");
        left.trim().parse().expect("a number")
    };
    // The window of 10 seconds may end in between, so there is a second attempt.
    let taken = || (left("GET /user"), left("POST /user"));
    let right = |(after_get, after_post): (u64, u64)| after_get == after_post + 2;
    assert!(right(taken()) || right(taken()));
}

#[test]
fn a_daily_limit_is_not_charged_for_requests_that_a_limit_per_second_denies() {
    let server = ExampleServer::start();
    let head = (0..10).map(|_| server.ask("GET /friends").0).find(|head| head.contains(" 429 ")).expect("a denial");
    let allowed = head.split("\"day\";r=").nth(1).and_then(|rest| rest.split(';').next()).expect("a level");
    assert!(allowed.parse::<u64>().expect("a number") >= 140, "{head}");
}

#[test]
fn a_client_that_accepts_json_gets_the_exact_wait_of_a_denial() {
    let server = ExampleServer::start();
    let request = "GET /token-bucket?capacity=1&amount=1&interval=3600\naccept: application/json\r\n";
    assert_eq!(server.status(request), 200);
    let (head, body) = server.ask(request);
    assert!(head.starts_with("http/1.1 429") && head.contains("content-type: application/json"), "{head}");
    let denial: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(denial["remaining"], 0);
    let wait = denial["retry_after_seconds"].as_f64().expect("a number");
    assert!((3500.0..3600.0).contains(&wait) && wait.fract() > 0.0, "{wait}");
}

#[test]
fn browsers_get_a_page_and_other_clients_the_help() {
    let server = ExampleServer::start();
    let (head, page) = server.ask("GET /\naccept: text/html,application/xhtml+xml;q=0.9,*/*;q=0.8\r\n");
    assert!(head.contains("content-type: text/html"), "{head}");
    assert!(head.contains("vary: accept"), "{head}");
    assert_eq!(server.ask("GET /\naccept: */*\r\n").1, server.ask("GET /help").1);

    // The program contains all resources of the page.
    let files: Vec<_> = page.split('"').filter(|text| text.starts_with("/page/")).collect();
    assert_eq!(files, ["/page/style.css", "/page/main.js"]);
    let mut files: Vec<_> = files.into_iter().map(str::to_owned).collect();
    let mut read = 0;
    while let Some(path) = files.get(read) {
        let (head, text) = server.ask(&format!("GET {path}"));
        assert!(head.starts_with("http/1.1 200"), "{path}: {head}");
        assert!(!text.contains("https://"), "{path} loads from elsewhere");
        let imports = text.split("from './").skip(1).filter_map(|rest| rest.split('\'').next());
        for import in imports.map(|name| format!("/page/{name}")) {
            if !files.contains(&import) {
                files.push(import);
            }
        }
        read += 1;
    }
    assert_eq!(read, 18, "{files:?}");
}

#[test]
fn parameters_configure_an_algorithm() {
    let server = ExampleServer::start();
    for (request, policy) in [
        ("GET /fixed-window?limit=20&period=60", "\"fixed-window\";q=20;w=60"),
        ("GET /sliding-log?period=2.5", "\"sliding-log\";q=10;w=3"),
        ("GET /sliding-window?limit=3&buckets=1", "\"sliding-window\";q=3;w=10"),
        ("GET /sliding-window-counter?rounding=down", "\"sliding-window-counter\";q=10;w=10"),
        ("GET /token-bucket?capacity=40&refill=interval", "\"token-bucket\";q=40;w=40"),
        ("GET /leaky-bucket?capacity=5&amount=1&interval=60", "\"leaky-bucket\";q=5;w=300"),
        ("GET /leaky-bucket-queue?waiting=2&amount=1&interval=0.1", "\"leaky-bucket-queue\";q=3"),
        ("GET /leaky-bucket-queue?waiting=2&burst=4&amount=1&interval=0.1", "\"leaky-bucket-queue\";q=7"),
    ] {
        let (head, _) = server.ask(request);
        assert!(head.contains(&format!("ratelimit-policy: {policy}")), "{request}: {head}");
    }
}

#[test]
fn invalid_parameters_are_explained() {
    let server = ExampleServer::start();
    for (request, reason) in [
        ("fixed-window?limit=0", "limit is 0: use 1 to 1000 on this server"),
        ("fixed-window?limit=1001", "limit is 1001: use 1 to 1000 on this server"),
        ("fixed-window?limit=ten", "limit is \"ten\": write a positive number"),
        ("fixed-window?limit=-1", "limit is \"-1\": write a positive number"),
        ("fixed-window?period=0", "period is 0 seconds: use whole microseconds, from 1 µs to 366 days"),
        ("fixed-window?period=-1", "period is -1: write a positive number of seconds"),
        ("fixed-window?period=NaN", "period is NaN: write a positive number of seconds"),
        ("fixed-window?period=inf", "period is inf: write a positive number of seconds"),
        (
            "fixed-window?period=1e9",
            "period is 11574 days 1 hour 46 minutes 40 seconds: use whole microseconds, from 1 µs to 366 days",
        ),
        ("sliding-window?buckets=7", "period 10 seconds does not divide into 7 buckets of whole microseconds"),
        ("token-bucket?refill=daily", "refill is \"daily\": write continuous or interval"),
        ("token-bucket?limit=5", "token-bucket has no parameter \"limit\": /help lists them"),
        ("leaky-bucket-queue?waiting=0", "waiting is 0: use 1 to 1000 on this server"),
        ("leaky-bucket?cost=-1", "cost is \"-1\": write a positive number"),
    ] {
        let (head, body) = server.ask(&format!("GET /{request}"));
        assert!(head.starts_with("http/1.1 400"), "{request}: {head}");
        assert!(body.starts_with(reason), "{request}: {body}");
    }
    assert_eq!(server.status("GET /fixed-window?cost=18446744073709551615"), 429);
}

#[test]
fn a_permit_describes_and_resets_what_was_charged() {
    let server = ExampleServer::start();
    let path = "/sliding-log?limit=10&period=3600";
    let (head, body) = server.ask(&format!("GET {path}&cost=4"));
    assert!(head.starts_with("http/1.1 200"), "{head}");
    let first: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!([&first["cost"], &first["remaining"]], [4, 6]);
    assert_eq!(first["delay_seconds"].as_f64(), Some(0.0));
    // A cost of 0 charges nothing.
    let left = || remaining(&server, &format!("{path}&cost=0"));
    assert_eq!(left(), Some(6));
    assert_eq!(server.status(&format!("GET {path}&cost=7")), 429);
    assert_eq!(server.status(&format!("DELETE {path}")), 204);
    assert_eq!(left(), Some(10));
}

#[test]
fn json_names_the_units_of_times() {
    fn collect(value: &Value, path: &str, names: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    collect(value, name, names);
                }
            }
            Value::Array(values) => values.iter().for_each(|value| collect(value, path, names)),
            Value::Number(_) | Value::Null => names.push(path.to_owned()),
            _ => {}
        }
    }
    let server = ExampleServer::start();
    let mut names = Vec::new();
    for request in ["token-bucket", "leaky-bucket-queue", "explain/friends", "explain/token-bucket?cost=20"] {
        let body = server.ask(&format!("GET /{request}\naccept: application/json\r\n")).1;
        collect(&serde_json::from_str(&body).expect("JSON"), "", &mut names);
    }
    // These count tokens, or are absent.
    let tokens = ["cost", "remaining", "debt", "capacity", "rule", "condition", "missing_key", "store_error"];
    names.retain(|name| !tokens.contains(&name.as_str()));
    assert!(names.len() > 20, "{names:?}");
    assert!(names.iter().all(|name| name.ends_with("_seconds")), "{names:?}");
}

#[test]
fn clients_that_try_many_parameters_reset_no_limit() {
    let server = ExampleServer::start();
    let path = "/token-bucket?interval=3600";
    assert_eq!(remaining(&server, path), Some(9));
    // More than the number of layers that the server keeps.
    for limit in 1..=300 {
        assert_eq!(server.status(&format!("GET /fixed-window?limit={limit}&cost=0")), 200);
    }
    assert_eq!(remaining(&server, path), Some(8));
}

#[cfg(unix)]
#[test]
fn the_server_stops_on_sigterm_although_clients_wait() {
    let mut server = ExampleServer::start();
    let send = |request: &str| {
        let mut stream = TcpStream::connect(server.address).expect("a connection");
        write!(stream, "{request}").expect("sent");
        stream
    };
    // One connection is idle, one has sent half a request, one waits for an hour, and one for 2 seconds.
    let mut idle = send("GET /help HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert_ne!(idle.read(&mut [0; 1_000]).expect("a response"), 0);
    let _half = send("GET /help HTTP/1.1\r\nhost:");
    let waiting = ["interval=3600", "interval=2"].map(|interval| {
        let path = format!("/leaky-bucket-queue?amount=1&{interval}");
        let remaining = || remaining(&server, &format!("{path}&cost=0"));
        assert_eq!(server.status(&format!("GET {path}")), 200);
        let before = remaining();
        let stream = send(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"));
        while remaining() >= before {}
        stream
    });
    let pid = server.process.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
    let start = Instant::now();
    let status = loop {
        if let Some(status) = server.process.try_wait().expect("a status") {
            break status;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "the server did not stop");
        thread::sleep(Duration::from_millis(10));
    };
    assert!(status.success(), "{status}");
    let responses = waiting.map(|mut stream| {
        let mut response = String::new();
        stream.read_to_string(&mut response).map(|_| response).unwrap_or_default()
    });
    assert_eq!(responses[0], "");
    assert!(responses[1].starts_with("HTTP/1.1 200"), "{responses:?}");
}

#[test]
fn a_wrong_argument_and_an_unreachable_redis_are_named() {
    for (arguments, code, reported) in [
        (&["--listen", "nowhere"][..], 2, "\"nowhere\" is not an address and port"),
        (&["--redis"], 2, "--redis needs a URL"),
        (&["--rdis"], 2, "\"--rdis\""),
        (&["--redis", "redis://127.0.0.1:1"], 1, "no connection to Redis"),
    ] {
        let output = ExampleServer::command().args(arguments).output().expect("it ran");
        assert_eq!(output.status.code(), Some(code));
        assert!(String::from_utf8_lossy(&output.stderr).contains(reported), "{output:?}");
    }
}

#[test]
fn two_servers_on_one_redis_share_their_limits() {
    let redis = RedisServer::start();
    let servers = [(), ()].map(|()| ExampleServer::start_with(&["--redis", &redis.url()]));
    // Redis may reply too late if the machine is loaded.
    let remaining = |server: &ExampleServer| {
        let ask = || server.ask("GET /token-bucket?capacity=50&interval=3600");
        let (_, body) = iter::repeat_with(ask).find(|(head, _)| head.contains(" 200 ")).expect("a decision");
        serde_json::from_str::<Value>(&body).expect("JSON")["remaining"].as_u64()
    };
    let first = remaining(&servers[0]);
    assert!(remaining(&servers[1]) < first, "servers share limits with the same parameters");

    // Both servers together allow ten requests in ten seconds, and hardly more. A request whose reply is late on a
    // loaded machine may have been charged.
    let statuses: Vec<u16> = (0..40).map(|n| servers[n % 2].status("GET /sliding-log\nx-user: ann\r\n")).collect();
    let count = |status| statuses.iter().filter(|other| **other == status).count();
    let [allowed, denied, late] = [200, 429, 503].map(count);
    assert_eq!(allowed + denied + late, 40, "{statuses:?}");
    assert!((10..20).contains(&(allowed + late)), "{statuses:?}");
    assert!(!statuses[..10].contains(&429), "{statuses:?}");
}

#[test]
fn an_outage_of_redis_is_logged_on_the_console() {
    let mut redis = RedisServer::start();
    let mut server = ExampleServer::spawn(
        ExampleServer::command().args(["--redis", &redis.url()]).stderr(Stdio::piped()).env_remove("RUST_LOG"),
    );
    assert_eq!(server.status("GET /token-bucket"), 200);
    redis.stop();
    assert_eq!(server.status("GET /token-bucket"), 503);
    let stderr = BufReader::new(server.process.stderr.take().expect("a pipe"));
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let line = lines.recv_timeout(Duration::from_secs(20)).expect("a line in the log");
    assert!(line.contains("WARN") && line.contains("Redis"), "{line}");
}
