//! The program on free ports of 127.0.0.1, which stops when it is dropped, and clients for it.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::Full;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use support::answer::Answer;
use support::redis_server::Folder;

pub(crate) struct Program {
    pub(crate) process: Child,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    log: Arc<Mutex<String>>,
    folder: Folder,
}

/// Returns the command of the program with a clean environment.
pub(crate) fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tower-ratelimit"));
    command.env_clear();
    command
}

impl Program {
    /// Starts the program with the built-in rules.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_in(command(), Folder::new(), arguments)
    }

    /// Starts the program with the built-in rules, and at most this many open files.
    pub(crate) fn with_open_files(limit: u32) -> Self {
        let mut shell = Command::new("/bin/sh");
        let script = format!("ulimit -n {limit}; exec \"$0\" \"$@\"");
        shell.env_clear().args(["-c", &script]).arg(command().get_program());
        Self::start_in(shell, Folder::new(), &[])
    }

    /// Starts the program with these rules.
    pub(crate) fn with_rules(rules: &str, arguments: &[&str]) -> Self {
        let folder = Folder::new();
        let file = folder.write("rules.yaml", rules);
        Self::start_in(command(), folder, &[&["--rules", &file], arguments].concat())
    }

    fn start_in(mut command: Command, folder: Folder, arguments: &[&str]) -> Self {
        command.args(["--listen", "127.0.0.1:0", "--listen-admin", "127.0.0.1:0"]).args(arguments);
        let mut process = command.stderr(Stdio::piped()).spawn().expect("the program starts");
        let (sender, lines) = mpsc::channel();
        let (stderr, log) =
            (BufReader::new(process.stderr.take().expect("a pipe")), Arc::new(Mutex::new(String::new())));
        let written = log.clone();
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                *written.lock().unwrap() += &format!("{line}\n");
                let _ = sender.send(line);
            }
        });
        let ready = lines.iter().find(|line| line.contains("ready address="));
        let ready = ready.unwrap_or_else(|| panic!("it did not start: {}", log.lock().unwrap()));
        let address_of = |name| {
            let (_, rest) = ready.split_once(name).expect("an address");
            rest.split_whitespace().next().and_then(|address| address.parse().ok()).expect("an address")
        };
        Self { address: address_of(" address="), admin: address_of(" admin="), process, log, folder }
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Replaces the rules that it was started with.
    pub(crate) fn replace_rules(&self, rules: &str) {
        self.folder.write("rules.yaml", rules);
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().expect("kill runs").success());
    }

    /// Checks a request of a client as a proxy does.
    pub(crate) async fn auth(&self, method: &str, uri: &str, client: &str, more: &[(&str, &str)]) -> Answer {
        let forwarded = [("x-forwarded-method", method), ("x-forwarded-uri", uri), ("x-forwarded-for", client)];
        self.get("/auth/test", &[&forwarded, more].concat()).await
    }

    pub(crate) async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        send(self.address, Method::GET, path, headers, "").await
    }

    pub(crate) async fn json(&self, call: serde_json::Value) -> Answer {
        send(self.address, Method::POST, "/json", &[("content-type", "application/json")], &call.to_string()).await
    }

    /// Returns the value of a metric, given the beginning of its line.
    pub(crate) async fn metric(&self, metric: &str) -> f64 {
        let metrics = send(self.admin, Method::GET, "/metrics", &[], "").await.body;
        let line = metrics.lines().find_map(|line| line.strip_prefix(metric));
        line.unwrap_or_else(|| panic!("no {metric} in {metrics}")).trim().parse().expect("a number")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sends a request on a new connection.
pub(crate) async fn send(to: SocketAddr, method: Method, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    send_from(Ipv4Addr::LOCALHOST, to, method, path, headers, body).await
}

/// Sends a request on a new connection from an address of this machine.
pub(crate) async fn send_from(
    from: Ipv4Addr,
    to: SocketAddr,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let mut connector = HttpConnector::new();
    connector.set_local_address(Some(from.into()));
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build(connector);
    let request = Request::builder().method(method).uri(format!("http://{to}{path}"));
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let request = request.body(Full::from(body.to_owned())).expect("a valid request");
    Answer::of(client.request(request).await.expect("the server answers")).await
}

/// Waits until something holds, on a loaded machine, too.
pub(crate) async fn wait_until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..600 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{what}: not within a minute");
}
