//! The page tells its story on load, and lets it be replayed, paused, slowed down and interrupted.

use fantoccini::Locator;
use serde_json::{Value, json};

use crate::browser::Browser;

/// Counts the requests that the page sends from now on, apart from those that only ask.
const COUNT: &str = "const send = window.fetch;
    window.sent = 0;
    window.fetch = (path, options) => ((window.sent += path.includes('cost=1')), send(path, options));";

const SENT: &str = "return window.sent;";

#[tokio::test]
async fn the_story_is_told_once_and_compares_the_algorithms() {
    let browser = Browser::open("").await;
    browser.wait_until("the story is told", IS_TOLD).await;
    // 10 requests before the edge and 10 after it, and those at twice the rate.
    let sent = browser.figure("fixed-window", "allowed").await + browser.figure("fixed-window", "denied").await;
    assert!((30..50).contains(&sent), "{sent}");
    let most = async |algorithm| browser.figure(algorithm, "peak").await;
    let [fixed, queue] = [most("fixed-window").await, most("leaky-bucket-queue").await];
    assert!(fixed > 10 && queue <= 10, "{fixed}, {queue}");
    let is_over = "return [...document.querySelectorAll('.is-over')].map((cell) => cell.parentNode.dataset.lane);";
    let over = browser.evaluate(is_over).await;
    assert!(over.as_array().is_some_and(|lanes| lanes.contains(&json!("fixed-window"))), "{over}");
    assert!(over.as_array().is_some_and(|lanes| !lanes.contains(&json!("token-bucket"))), "a burst is as promised");

    // A replay shows the same requests again, and sends none.
    record_captions(&browser).await;
    browser.evaluate(COUNT).await;
    let figures = figures(&browser).await;
    browser.click("play").await;
    browser.wait_until("the figures start over", STARTS_OVER).await;
    browser.wait_until("the replay is over", IS_TOLD).await;
    assert_eq!(browser.evaluate(SENT).await, json!(0));
    let is_same = format!("return document.getElementById('comparison').innerText === {figures};");
    browser.wait_until("the figures are the same", &is_same).await;
    let captions = browser.evaluate("return [...window.captions];").await;
    let captions: Vec<String> = serde_json::from_value(captions).expect("texts");
    assert!(captions.iter().any(|caption| caption.contains(" seconds: the edge ")), "{captions:#?}");
    browser.close().await;
}

#[tokio::test]
async fn a_replay_can_be_paused_and_slowed_down() {
    let browser = Browser::open("").await;
    browser.wait_until("the story is told", IS_TOLD).await;
    browser.click("play").await;
    browser.wait_until("the figures start over", STARTS_OVER).await;
    browser.wait_for_some("fixed-window", 10).await;
    browser.click("pause").await;
    let later = "return new Promise((resolve) => setTimeout(resolve, 500));";
    browser.evaluate(later).await;
    let frozen = (figures(&browser).await, browser.evaluate(POSITION).await);
    browser.evaluate(later).await;
    assert_eq!((figures(&browser).await, browser.evaluate(POSITION).await), frozen);
    // Only what sends requests, or the button itself, returns to what moves.
    browser.evaluate("document.querySelector('[data-part=toggle]').click();").await;
    browser.evaluate(later).await;
    assert_eq!(browser.evaluate(POSITION).await, frozen.1);
    browser.click("pause").await;

    // In slow motion, the chart moves half as far in the same time.
    let usual = speed(&browser).await;
    browser.click("slow").await;
    let slow = speed(&browser).await;
    assert!((0.3..0.8).contains(&(slow / usual)), "{slow} of {usual} pixels a second");
    browser.close().await;
}

#[tokio::test]
async fn the_first_input_ends_the_story() {
    let browser = Browser::open("").await;
    browser.client.find(Locator::Css("h1")).await.expect("a title").click().await.expect("a click");
    let status = "return document.getElementById('status').textContent;";
    assert_eq!(browser.evaluate(status).await, json!("The story has stopped."));
    browser.evaluate(COUNT).await;
    browser.evaluate("return new Promise((resolve) => setTimeout(resolve, 6000));").await;
    assert_eq!(browser.evaluate(SENT).await, json!(0));
    browser.close().await;
}

#[tokio::test]
async fn without_motion_the_story_waits_to_be_played() {
    let browser = Browser::open("show=token-bucket").await;
    let features = json!({ "features": [{ "name": "prefers-reduced-motion", "value": "reduce" }] });
    browser.devtools("Emulation.setEmulatedMedia", features).await;
    browser.go_to("").await;
    let status = browser.evaluate("return document.getElementById('status').textContent;").await;
    assert!(status.as_str().expect("text").starts_with("Press Play for the story"), "{status}");
    browser.evaluate(COUNT).await;
    browser.evaluate("return new Promise((resolve) => setTimeout(resolve, 6000));").await;
    assert_eq!(browser.evaluate(SENT).await, json!(0));
    browser.click("play").await;
    browser.wait_for_some("fixed-window", 1).await;
    browser.close().await;
}

#[tokio::test]
async fn a_client_in_the_address_sends_until_it_is_stopped() {
    let browser = Browser::open("client=twice&show=token-bucket&cost=3").await;
    browser.wait_for_some("token-bucket", 3).await;
    let pressed = "return [...document.querySelectorAll('#clients [aria-pressed=true]')].map(({ name }) => name);";
    assert_eq!(browser.evaluate(pressed).await, json!(["twice"]));
    let hash = "return [location.hash, document.getElementById('cost').value];";
    assert_eq!(browser.evaluate(hash).await, json!(["#client=twice&show=token-bucket&cost=3", "3"]));
    browser.evaluate("document.querySelector('#clients [name=retries]').click();").await;
    assert_eq!(browser.evaluate(pressed).await, json!(["retries"]));
    browser
        .wait_until(
            "retries are denied",
            "return Number(document.querySelector('[data-part=denied]').textContent) > 9;",
        )
        .await;
    browser.evaluate("document.querySelector('#clients [name=retries]').click();").await;
    assert_eq!(browser.evaluate(pressed).await, json!([]));
    assert_eq!(browser.evaluate(hash).await, json!(["#show=token-bucket&cost=3", "3"]));
    browser.click("steady").await;
    assert_eq!(browser.evaluate(hash).await, json!(["#client=steady&show=token-bucket&cost=3", "3"]));
    browser.go_to("client=steady&show=token-bucket&cost=3").await;
    assert_eq!(browser.evaluate("return document.getElementById('steady').textContent;").await, json!("Stop"));
    browser.close().await;
}

#[tokio::test]
async fn a_story_is_forgotten_with_its_requests() {
    let browser = Browser::open("").await;
    browser.wait_until("the story is told", IS_TOLD).await;
    let label = "return document.getElementById('play').textContent;";
    assert_eq!(browser.evaluate(label).await, json!("Replay"));
    // What moves is slowed down in the present, too.
    browser.click("slow").await;
    browser.wait_until("it is slow", "return document.querySelector('#slow[aria-pressed=true]') !== null;").await;
    browser.click("again").await;
    browser
        .wait_until("there is nothing to replay", "return document.getElementById('play').textContent === 'Play';")
        .await;
    browser.close().await;
}

const IS_TOLD: &str =
    "return document.getElementById('status').textContent.startsWith('At most in a period: Fixed window ');";

const STARTS_OVER: &str = "return document.querySelector('[data-part=allowed]').textContent === '0';";

/// Where the latest request of the first chart is.
const POSITION: &str =
    "return Math.round(document.querySelector('.chart path.allowed').getBoundingClientRect().right);";

/// Returns the table that compares the algorithms.
async fn figures(browser: &Browser) -> Value {
    browser.evaluate("return document.getElementById('comparison').innerText;").await
}

async fn record_captions(browser: &Browser) {
    let record = "window.captions = new Set();
        const caption = document.querySelector('#fixed-window [data-part=caption]');
        new MutationObserver(() => window.captions.add(caption.textContent)).observe(caption, { childList: true });";
    browser.evaluate(record).await;
}

/// Returns how many pixels the first chart moves in a second.
async fn speed(browser: &Browser) -> f64 {
    let measure = "const position = () => document.querySelector('.chart path.allowed').getBoundingClientRect().right;
        const frame = (then) => requestAnimationFrame(() => then([position(), performance.now()]));
        return new Promise((resolve) => frame(([before, begun]) => setTimeout(frame, 1000, ([after, ended]) =>
            resolve((before - after) / (ended - begun) * 1000))));";
    browser.evaluate(measure).await.as_f64().expect("a number")
}
