//! nginx and Caddy with the configurations of `service/README.md`, in front of a plain upstream.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::routing::any;
use http::Method;
use support::redis_server::{Folder, RedisServer, free_port};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::program::{Program, send, send_from, wait_until};

const RULES: &str = "
domain: default
descriptors:
- key: path
  value: /many
  descriptors:
  - key: remote_address
    rate_limit: { name: many, unit: year, requests_per_unit: 25 }
- key: method
  value: POST
  descriptors:
  - key: remote_address
    rate_limit: { name: post, unit: year, requests_per_unit: 1 }
";

/// The part of the README in a fence of this language.
fn of_readme(language: &str) -> String {
    let readme = fs::read_to_string(support::repository("service/README.md")).expect("a README");
    let (_, rest) = readme.split_once(&format!("```{language}\n")).expect("a configuration");
    rest.split_once("```").expect("its end").0.to_owned()
}

/// Replaces text that has to be there once.
#[track_caller]
fn replace(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "{from} in {text}");
    text.replace(from, to)
}

/// A proxy, which stops when it is dropped.
struct Proxy {
    process: Child,
    address: SocketAddr,
    _folder: Folder,
}

impl Proxy {
    /// Starts nginx with the limiters in front of an upstream.
    async fn nginx(limiters: &[&Program], upstream: SocketAddr) -> Self {
        let (folder, address) = (Folder::new(), SocketAddr::from((Ipv4Addr::LOCALHOST, free_port())));
        let servers: String = limiters.iter().map(|limiter| format!("server {};", limiter.address)).collect();
        let config = replace(&of_readme("nginx"), "server 127.0.0.1:8080;", &servers);
        let config = replace(&config, "listen 80;", &format!("listen {address};"));
        let config = replace(&config, "127.0.0.1:3000", &upstream.to_string());
        // Folders that any user may write to.
        let path = folder.path().display();
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let temporary: String = temporary.iter().map(|name| format!("{name}_temp_path {path}/{name};")).collect();
        let config = replace(&config, "http {", &format!("pid {path}/pid; http {{ access_log off; {temporary}"));
        let file = folder.write("nginx.conf", config);
        let mut command = Command::new("nginx");
        command.args(["-c", &file, "-p", &path.to_string(), "-e", "stderr", "-g", "daemon off; master_process off;"]);
        Self::start(command, address, folder).await
    }

    async fn caddy(limiters: &[&Program], upstream: SocketAddr) -> Self {
        let (folder, address) = (Folder::new(), SocketAddr::from((Ipv4Addr::LOCALHOST, free_port())));
        let servers: Vec<String> = limiters.iter().map(|limiter| limiter.address.to_string()).collect();
        let config = replace(&of_readme("caddy"), "127.0.0.1:8080", &servers.join(" "));
        let config = replace(&config, ":80 {", &format!("http://{address} {{"));
        let config = replace(&config, "127.0.0.1:3000", &upstream.to_string());
        let file = folder.write("Caddyfile", format!("{{\n\tadmin off\n}}\n{config}"));
        let mut command = Command::new("caddy");
        command.args(["run", "--config", &file, "--adapter", "caddyfile"]);
        command.env("XDG_CONFIG_HOME", folder.path()).env("XDG_DATA_HOME", folder.path());
        Self::start(command, address, folder).await
    }

    async fn start(mut command: Command, address: SocketAddr, folder: Folder) -> Self {
        let process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the proxy is installed");
        let proxy = Self { process, address, _folder: folder };
        wait_until("the proxy listens", async || TcpStream::connect(address).await.is_ok()).await;
        proxy
    }

    /// Sends requests at once, and returns how many were allowed.
    async fn allowed_of(&self, requests: usize) -> usize {
        let mut tasks = JoinSet::new();
        for _ in 0..requests {
            let address = self.address;
            tasks.spawn(async move { send(address, Method::GET, "/many", &[], "").await.status.as_u16() });
        }
        let statuses = tasks.join_all().await;
        assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
        statuses.iter().filter(|status| **status == 200).count()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts an upstream, which counts its requests.
async fn upstream() -> (SocketAddr, Arc<AtomicU64>) {
    let count = Arc::new(AtomicU64::new(0));
    let counted = count.clone();
    let app = Router::new().fallback(any(move || async move {
        counted.fetch_add(1, Ordering::Relaxed);
        "upstream"
    }));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, app).await });
    (address, count)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Nginx,
    Caddy,
}

/// Two instances on one Redis, behind a proxy.
async fn admits_the_limit(kind: Kind) {
    let redis = RedisServer::start();
    let secret = "00112233445566778899aabbccddeeff";
    let arguments =
        ["--redis", &redis.url(), "--secret", secret, "--deadline-ms", "10000", "--trusted-proxies", "127.0.0.1"];
    let programs = [Program::with_rules(RULES, &arguments), Program::with_rules(RULES, &arguments)];
    let (upstream, count) = upstream().await;
    let limiters = [&programs[0], &programs[1]];
    let proxy = match kind {
        Kind::Nginx => Proxy::nginx(&limiters, upstream).await,
        Kind::Caddy => Proxy::caddy(&limiters, upstream).await,
    };
    assert_eq!(proxy.allowed_of(100).await, 25);
    assert_eq!(count.load(Ordering::Relaxed), 25);
    let decided =
        "ratelimit_decisions_total{domain=\"default\",limit=\"many\",outcome=\"allowed\",decided_by=\"store\"}";
    if kind == Kind::Nginx {
        // Caddy chooses at random.
        assert!(programs[0].metric(decided).await > 0.0 && programs[1].metric(decided).await > 0.0);
    }

    let denied = send(proxy.address, Method::GET, "/many?a=b", &[], "").await;
    assert_eq!(denied.status, 429);
    assert!(denied.header("retry-after").is_some_and(|wait| wait.parse::<u64>().is_ok()), "{denied:?}");
    assert_eq!(denied.header("ratelimit-policy"), Some("\"many\";q=25;w=31536000"));
    assert!(denied.header("ratelimit").is_some_and(|left| left.starts_with("\"many\";r=0;t=")), "{denied:?}");
    assert!(denied.body.starts_with("Too many requests"), "{denied:?}");

    // Other limits, which see the method.
    let allowed = send(proxy.address, Method::POST, "/", &[], "body").await;
    assert_eq!((allowed.status.as_u16(), allowed.body.as_str()), (200, "upstream"));
    if kind == Kind::Nginx {
        assert!(allowed.header("ratelimit").is_some_and(|left| left.starts_with("\"post\";r=0;t=")), "{allowed:?}");
        assert_eq!(allowed.header("retry-after"), None);
    }
    assert_eq!(send(proxy.address, Method::POST, "/", &[], "body").await.status, 429);

    // A client that is no proxy can neither choose its address, nor the request that is limited.
    let client = Ipv4Addr::new(127, 0, 0, 9);
    let mut statuses = Vec::new();
    for forged in ["192.0.2.1", "192.0.2.2"] {
        let headers = [("x-forwarded-for", forged), ("x-forwarded-method", "GET"), ("x-forwarded-uri", "/free")];
        statuses.push(send_from(client, proxy.address, Method::POST, "/", &headers, "").await.status.as_u16());
    }
    assert_eq!(statuses, [200, 429]);
}

#[tokio::test]
async fn nginx_admits_the_limit() {
    admits_the_limit(Kind::Nginx).await;
}

#[tokio::test]
async fn caddy_admits_the_limit() {
    admits_the_limit(Kind::Caddy).await;
}

#[tokio::test]
async fn nginx_fails_closed_without_the_limiter() {
    let (upstream, count) = upstream().await;
    let program = Program::with_rules(RULES, &[]);
    let proxy = Proxy::nginx(&[&program], upstream).await;
    drop(program);
    assert_eq!(send(proxy.address, Method::GET, "/", &[], "").await.status, 500);
    assert_eq!(count.load(Ordering::Relaxed), 0);
}
