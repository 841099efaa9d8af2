//! A page of the example server in a headless Chromium.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fantoccini::wd::WebDriverCompatibleCommand;
use fantoccini::{Client, ClientBuilder, Locator};
use http::Method;
use serde_json::{Value, json};
use support::example_server::ExampleServer;
use support::patient::LONG;
use support::redis_server::Folder;
use tokio::sync::{Semaphore, SemaphorePermit};

pub(crate) struct Browser {
    pub(crate) client: Client,
    pub(crate) server: ExampleServer,
    _driver: Driver,
    /// Released last.
    _turn: SemaphorePermit<'static>,
}

/// Few browsers at a time, because each keeps a processor busy, and the page reports a server that hangs.
static TURNS: Semaphore = Semaphore::const_new(2);

impl Browser {
    /// Opens the page with this fragment, in a window 1280 pixels wide.
    ///
    /// # Panics
    ///
    /// Panics if `chromedriver` or Chromium is not installed.
    pub(crate) async fn open(fragment: &str) -> Self {
        let browser = Self::start(ExampleServer::start()).await;
        browser.go_to(fragment).await;
        browser
    }

    /// Starts a browser for the page of this server.
    pub(crate) async fn start(server: ExampleServer) -> Self {
        let turn = TURNS.acquire().await.expect("an open semaphore");
        let driver = Driver::start();
        let options = json!({
            // Chromium does not run as root with its sandbox.
            "args": ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--window-size=1280,1000"],
        });
        let capabilities = json!({
            "goog:chromeOptions": options,
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let client = ClientBuilder::new(hyper_util::client::legacy::connect::HttpConnector::new())
            .capabilities(capabilities.as_object().expect("an object").clone())
            .connect(&driver.url)
            .await
            .expect("Chromium starts; `bash tests/run` installs it");
        Self { client, server, _driver: driver, _turn: turn }
    }

    /// Loads the page with this fragment, and waits until each lane has a response of the server.
    pub(crate) async fn go_to(&self, fragment: &str) {
        self.client.goto("about:blank").await.expect("a blank page");
        self.client.goto(&format!("http://{}/#{fragment}", self.server.address)).await.expect("the page");
        let ready = "const levels = [...document.querySelectorAll('[data-part=level]')];
            return levels.length > 0 && levels.every((level) => /\\d/.test(level.textContent));";
        self.wait_until("each lane knows what remains", ready).await;
    }

    pub(crate) async fn evaluate(&self, script: &str) -> Value {
        self.client.execute(script, Vec::new()).await.unwrap_or_else(|error| panic!("{script}: {error}"))
    }

    /// Waits until `script` returns true.
    pub(crate) async fn wait_until(&self, what: &str, script: &str) {
        let begun = Instant::now();
        while self.evaluate(script).await != json!(true) {
            assert!(begun.elapsed() < LONG, "timed out: {what}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) async fn click(&self, id: &str) {
        let element = self.client.find(Locator::Id(id)).await.unwrap_or_else(|error| panic!("#{id}: {error}"));
        element.click().await.unwrap_or_else(|error| panic!("#{id}: {error}"));
    }

    /// Returns a figure of a lane, such as `allowed`: the number that its text begins with.
    pub(crate) async fn figure(&self, algorithm: &str, part: &str) -> u64 {
        let text = self.part(algorithm, part).await;
        let number = text.split(' ').next().and_then(|number| number.parse().ok());
        number.unwrap_or_else(|| panic!("{part} of {algorithm} is {text:?}"))
    }

    /// Returns the text of a part of a lane.
    pub(crate) async fn part(&self, algorithm: &str, part: &str) -> String {
        let script =
            format!("return document.querySelector('[data-lane={algorithm}] [data-part={part}]').textContent;");
        self.evaluate(&script).await.as_str().expect("text").to_owned()
    }

    /// Waits until a lane shows the decisions on this many requests.
    pub(crate) async fn wait_for_figures(&self, algorithm: &str, requests: u64) {
        let script = format!(
            "const number = (part) => Number(document.querySelector(`[data-lane={algorithm}] [data-part=${{part}}]`).textContent);
             return number('allowed') + number('denied') === {requests};"
        );
        self.wait_until(&format!("{algorithm} decides on {requests} requests"), &script).await;
    }

    /// Waits until a lane has allowed at least this many requests.
    pub(crate) async fn wait_for_some(&self, algorithm: &str, requests: u64) {
        let allowed = format!("document.querySelector('[data-lane={algorithm}] [data-part=allowed]').textContent");
        self.wait_until("requests are allowed", &format!("return Number({allowed}) >= {requests};")).await;
    }

    /// Returns the number of marks of a kind in a lane's chart.
    pub(crate) async fn marks(&self, algorithm: &str, kind: &str) -> usize {
        let script =
            format!("return document.querySelector('#{algorithm} .chart path.{kind}').getAttribute('d') ?? '';");
        self.evaluate(&script).await.as_str().expect("a path").matches('M').count()
    }

    /// Returns the table of a lane's requests, latest first.
    pub(crate) async fn table(&self, algorithm: &str) -> Vec<Vec<String>> {
        self.evaluate(&format!(
            "document.querySelector('#{algorithm} [data-part=toggle][aria-expanded=false]')?.click();"
        ))
        .await;
        let rows = format!("[...document.querySelectorAll('#{algorithm} tbody tr')]");
        self.wait_until("the table has rows", &format!("return {rows}.length > 0;")).await;
        let cells = "(row) => [...row.cells].map((cell) => cell.textContent)";
        let table = self.evaluate(&format!("return {rows}.map({cells});")).await;
        serde_json::from_value(table).expect("rows of texts")
    }

    /// Sends a command of the Chrome DevTools Protocol.
    pub(crate) async fn devtools(&self, command: &str, parameters: Value) -> Value {
        let body = json!({ "cmd": command, "params": parameters });
        self.client.issue_cmd(Post("goog/cdp/execute", body)).await.unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// Shows the page on a screen this wide.
    pub(crate) async fn resize(&self, width: u32, height: u32, is_phone: bool) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone });
        self.devtools("Emulation.setDeviceMetricsOverride", metrics).await;
    }

    /// Fails if the page shows or has logged an error, and closes the browser.
    pub(crate) async fn close(self) {
        let errors = "return [...document.querySelectorAll('.error')].map((error) => error.textContent).join('');";
        assert_eq!(self.evaluate(errors).await, "");
        // Chromium reports each denied request as an error of the network.
        self.close_despite(" 429 ").await;
    }

    /// Does the same as [`close`](Self::close), but expects responses with this status.
    pub(crate) async fn close_despite(self, status: &str) {
        let log = self.client.issue_cmd(Post("se/log", json!({ "type": "browser" }))).await.expect("the log");
        let is_expected = |entry: &&Value| {
            entry["source"] == "network" && entry["message"].as_str().is_some_and(|message| message.contains(status))
        };
        let entries = log.as_array().expect("entries");
        let errors: Vec<_> = entries.iter().filter(|entry| !is_expected(entry)).collect();
        assert!(errors.is_empty(), "{errors:#?}");
        self.client.close().await.expect("the browser closes");
    }
}

/// A command that the client library does not know.
#[derive(Debug)]
struct Post(&'static str, Value);

impl WebDriverCompatibleCommand for Post {
    fn endpoint(&self, base: &url::Url, session: Option<&str>) -> Result<url::Url, url::ParseError> {
        base.join(&format!("session/{}/{}", session.expect("a session"), self.0))
    }

    fn method_and_body(&self, _: &url::Url) -> (Method, Option<String>) {
        (Method::POST, Some(self.1.to_string()))
    }
}

/// A running `chromedriver`, which closes its browsers when it stops.
struct Driver {
    process: Child,
    url: String,
    /// The folder for the files of its browsers.
    _folder: Folder,
}

impl Driver {
    /// Starts a driver. One that can't have its port on both loopback addresses ends at once.
    fn start() -> Self {
        (0..5).find_map(|_| Self::try_start()).expect("chromedriver starts")
    }

    fn try_start() -> Option<Self> {
        let folder = Folder::new();
        let mut command = Command::new("chromedriver");
        command.arg("--port=0").env("TMPDIR", folder.path()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().expect("`chromedriver` is installed; `bash tests/run` installs it");
        let mut lines = BufReader::new(process.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        let Some(line) = lines.find(|line| line.contains("started successfully on port")) else {
            let _ = process.wait();
            return None;
        };
        let port = line.trim_end_matches('.').rsplit(' ').next().expect("a port");
        let url = format!("http://127.0.0.1:{port}");
        // A full pipe would block it.
        thread::spawn(move || lines.for_each(drop));
        Some(Self { process, url, _folder: folder })
    }

    /// Closes all browsers. Signals would leave them running.
    fn shut_down(&self) -> io::Result<()> {
        let address = self.url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(LONG))?;
        write!(stream, "GET /shutdown HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
        stream.read_to_string(&mut String::new()).map(drop)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.shut_down().is_err() {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}
