//! The page shows the decisions of the server.

use std::time::Instant;

use serde_json::json;
use support::http_client::get;
use support::patient::LONG;

use crate::access::ALL;
use crate::browser::Browser;

/// Every algorithm except the queue, so slow that no token comes back during a burst.
const SLOW: [(&str, &str); 6] = [
    ("fixed-window", "period"),
    ("sliding-log", "period"),
    ("sliding-window", "period"),
    ("sliding-window-counter", "period"),
    ("token-bucket", "interval"),
    ("leaky-bucket", "interval"),
];

/// Returns the fragment of a page that shows all algorithms, with these settings and `more`.
pub(crate) fn slow(more: &str) -> String {
    let settings: Vec<_> = SLOW.iter().map(|(name, span)| format!("&{name}.{span}=3600")).collect();
    format!("{ALL}{}{more}", settings.concat())
}

#[tokio::test]
async fn each_algorithm_allows_10_requests_of_a_burst_of_15() {
    let names: Vec<_> = SLOW.iter().map(|(name, _)| *name).collect();
    let browser = Browser::open(&slow("").replace(",leaky-bucket-queue", "")).await;
    browser.click("burst").await;
    let announced = "return document.getElementById('status').textContent.includes('denied');";
    browser.wait_until("the burst is announced", announced).await;
    for name in names {
        browser.wait_for_figures(name, 15).await;
        let figures = [browser.figure(name, "allowed").await, browser.figure(name, "denied").await];
        assert_eq!(figures, [10, 5], "{name}");
        assert_eq!(browser.figure(name, "delayed").await, 0, "{name}");
        assert_eq!(browser.figure(name, "level").await, 0, "{name}");
        assert_eq!(browser.figure(name, "peak").await, 10, "{name}");
        assert_eq!(browser.marks(name, "allowed").await, 10, "{name}");
        // A cross has two strokes.
        assert_eq!(browser.marks(name, "denied").await, 2 * 5, "{name}");
        let table = browser.table(name).await;
        assert_eq!(table.iter().filter(|row| row[1].starts_with("allowed: ")).count(), 10, "{table:?}");
        assert_eq!(table.iter().filter(|row| row[1].starts_with("denied: ")).count(), 5, "{table:?}");
    }
    let status = browser.evaluate("return document.getElementById('status').textContent;").await;
    assert!(status.as_str().expect("text").starts_with("Fixed window: 10 allowed, 5 denied."), "{status}");

    let response = browser.evaluate("return document.getElementById('response').textContent;").await;
    for line in ["429 Too Many Requests", "ratelimit-policy: \"fixed-window\";q=10;w=3600", "retry-after: "] {
        assert!(response.as_str().expect("text").contains(line), "{line:?} is missing in {response}");
    }
    browser.close().await;
}

#[tokio::test]
async fn a_queue_delays_requests_evenly() {
    // One request every half a second.
    let browser = Browser::open("show=leaky-bucket-queue&leaky-bucket-queue.interval=5").await;
    browser.click("burst").await;
    let name = "leaky-bucket-queue";
    browser.wait_for_figures(name, 15).await;
    // On a slow machine, the queue moves on while the burst arrives.
    let [allowed, delayed] = [browser.figure(name, "allowed").await, browser.figure(name, "delayed").await];
    assert!((6..15).contains(&allowed), "{allowed}");
    assert!((5..=allowed).contains(&delayed), "{delayed}");
    // The chart may be drawn a little later.
    let marks = format!("document.querySelector('#{name} .chart path.delayed').getAttribute('d').match(/M/g).length");
    browser.wait_until("each delayed request has a mark", &format!("return {marks} === {delayed};")).await;

    // The chart shows when each leaves, to a tenth of a pixel.
    let turns =
        browser.evaluate(&format!("return document.querySelector('#{name} path.turns').getAttribute('d');")).await;
    let turns =
        turns.as_str().expect("a path").split('M').skip(1).filter_map(|mark| mark.split(' ').next()?.parse().ok());
    let mut turns: Vec<f64> = turns.collect();
    turns.sort_by(f64::total_cmp);
    let mut gaps: Vec<_> = turns.windows(2).map(|pair| pair[1] - pair[0]).collect();
    gaps.sort_by(f64::total_cmp);
    assert!(gaps.len() > 4 && gaps[gaps.len() / 2] - gaps[0] < 0.3, "{gaps:?}");
    assert_eq!(browser.figure(name, "peak").await, allowed.min(10));
    browser.close().await;
}

#[tokio::test]
async fn requests_that_leave_a_queue_exactly_a_period_apart_are_not_in_one_period() {
    // One request every tenth of a second.
    let browser = Browser::open("show=leaky-bucket-queue&leaky-bucket-queue.interval=1").await;
    browser.evaluate("document.getElementById('rate').value = 20;").await;
    browser.click("steady").await;
    let passed = "return Number(document.querySelector('[data-part=allowed]').textContent) >= 40;";
    browser.wait_until("40 requests have passed", passed).await;
    let peak = browser.figure("leaky-bucket-queue", "peak").await;
    assert!(peak <= 10, "{peak} in a period");
    browser.close().await;
}

#[tokio::test]
async fn a_burst_across_an_edge_passes_a_fixed_window_twice_and_a_log_once() {
    let browser = Browser::open("show=fixed-window,sliding-log&fixed-window.period=6&sliding-log.period=6").await;
    browser.evaluate("document.getElementById('size').value = 10;").await;
    // On a slow machine, the edge may come before the end of the first burst.
    let begun = Instant::now();
    while begun.elapsed() < 4 * LONG {
        browser.click("again").await;
        browser.click("edge").await;
        browser.wait_for_figures("fixed-window", 20).await;
        browser.wait_for_figures("sliding-log", 20).await;
        assert!(browser.figure("sliding-log", "peak").await <= 10);
        if browser.figure("fixed-window", "peak").await == 20 {
            return browser.close().await;
        }
    }
    panic!("no burst across an edge passed twice");
}

#[tokio::test]
async fn a_steady_rate_goes_on_until_it_is_stopped_and_charges_the_cost() {
    let browser = Browser::open("show=token-bucket&token-bucket.capacity=100&token-bucket.interval=3600").await;
    browser.evaluate("document.getElementById('cost').value = 3; document.getElementById('rate').value = 20;").await;
    browser.click("steady").await;
    let three = "return Number(document.querySelector('[data-part=allowed]').textContent) >= 3;";
    browser.wait_until("three requests are allowed", three).await;
    browser.click("steady").await;
    let is_idle = "return document.getElementById('steady').textContent === 'Steady';";
    browser.wait_until("it has stopped", is_idle).await;
    let sums = "const number = (part) => parseInt(document.querySelector(`[data-part=${part}]`).textContent);
        return number('level') === 100 - 3 * number('allowed');";
    browser.wait_until("what remains is what was not charged", sums).await;
    browser.close().await;
}

#[tokio::test]
async fn the_restart_button_resets_the_server() {
    let browser = Browser::open("show=sliding-log&sliding-log.period=3600").await;
    browser.click("one").await;
    browser.wait_for_figures("sliding-log", 1).await;
    let remains = |count: u64| {
        format!("return document.querySelector('[data-part=level]').textContent.startsWith('{count} of ');")
    };
    browser.wait_until("9 remain", &remains(9)).await;
    // A reload keeps the state.
    browser.go_to("show=sliding-log&sliding-log.period=3600").await;
    browser.wait_until("9 remain", &remains(9)).await;
    browser.click("again").await;
    browser.wait_until("10 remain", &remains(10)).await;
    browser.close().await;
}

#[tokio::test]
async fn settings_apply_at_once_and_the_server_explains_invalid_ones() {
    let browser = Browser::open("show=sliding-window&sliding-window.period=60").await;
    let set = |name: &str, value: &str| {
        format!(
            "const input = document.querySelector('[name={name}]');
             input.value = '{value}'; input.dispatchEvent(new Event('change'));"
        )
    };
    browser.evaluate(&set("limit", "4")).await;
    let remains = "return document.querySelector('[data-part=level]').textContent === '4 of 4 left';";
    browser.wait_until("4 remain", remains).await;
    let fragment = browser.evaluate("return location.hash;").await;
    assert_eq!(fragment, json!("#show=sliding-window&sliding-window.limit=4&sliding-window.period=60"));

    browser.evaluate(&set("buckets", "7")).await;
    let explains = "return document.querySelector('[data-part=error]').textContent.includes('does not divide into 7');";
    browser.wait_until("the server explains", explains).await;
    browser.evaluate(&set("buckets", "6")).await;
    let is_gone = "return document.querySelector('[data-part=error]').textContent === '';";
    browser.wait_until("the error is gone", is_gone).await;
    browser.close_despite(" 400 ").await;
}

#[tokio::test]
async fn an_idle_page_shows_the_requests_of_others_within_a_second() {
    let browser = Browser::open("show=token-bucket&token-bucket.interval=3600").await;
    get(browser.server.address, "/token-bucket?interval=3600&cost=3").await.expect("a response");
    let remains = "return document.querySelector('[data-part=level]').textContent === '7 of 10 left';";
    browser.wait_until("7 remain", remains).await;
    let step = "return document.querySelector('.chart path.counted').getAttribute('d').includes('V');";
    browser.wait_until("the chart shows the step", step).await;
    assert_eq!(browser.figure("token-bucket", "allowed").await, 0, "the page counts its own requests only");

    // How long it waits before it asks again. How long an answer takes depends on the load of the machine.
    let count = "window.pauses = [];
        const start = window.setTimeout;
        window.setTimeout = (callback, pause) => (window.pauses.push(pause), start(callback, pause));";
    browser.evaluate(count).await;
    let asked = "performance.getEntriesByType('resource').filter(({ name }) => name.includes('cost=0')).length";
    browser.wait_until("the page has asked ten times", &format!("return {asked} >= 10;")).await;
    browser.wait_until("it asks again", "return window.pauses.length >= 5;").await;
    let pauses: Vec<f64> = serde_json::from_value(browser.evaluate("return window.pauses;").await).expect("times");
    assert!(pauses.iter().all(|pause| *pause <= 500.0), "{pauses:?}");
    browser.close().await;
}

#[tokio::test]
async fn a_page_at_rest_says_what_to_press() {
    let browser = Browser::open("show=token-bucket").await;
    let text = browser.evaluate("return document.getElementById('status').textContent;").await;
    assert_eq!(text, json!("Press Play for the story, choose a client, or send a burst."));
    // Without a lane, no button has an effect.
    browser.evaluate("document.querySelector('[name=token-bucket]').click();").await;
    let is_said = "return document.querySelector('main').innerText.includes('Choose an algorithm above');";
    browser.wait_until("the page says what to choose", is_said).await;
    browser.close().await;
}

#[tokio::test]
async fn a_number_out_of_range_is_rejected_before_anything_is_sent() {
    let browser = Browser::open("show=token-bucket&token-bucket.interval=3600").await;
    let set = |id: &str, value: &str| {
        format!(
            "const input = document.getElementById('{id}');
             input.value = '{value}'; input.dispatchEvent(new Event('input', {{ bubbles: true }}));"
        )
    };
    for (field, invalid, name, button) in
        [("cost", "2000", "Cost", "one"), ("size", "0", "Burst of", "burst"), ("rate", "", "Steady at", "steady")]
    {
        let usual = browser.evaluate(&format!("return document.getElementById('{field}').value;")).await;
        browser.evaluate(&set(field, invalid)).await;
        browser.click(button).await;
        let is_rejected = format!(
            "return document.getElementById('status').textContent.startsWith('Nothing was sent. {name}: ')
                && document.activeElement.id === '{field}'
                && getComputedStyle(document.getElementById('status')).color === 'rgb(185, 40, 28)';"
        );
        browser.wait_until("it is rejected", &is_rejected).await;
        browser.evaluate(&set(field, usual.as_str().expect("text"))).await;
    }
    browser.click("one").await;
    // This request is the first.
    browser.wait_for_figures("token-bucket", 1).await;
    assert_eq!(browser.figure("token-bucket", "allowed").await, 1);

    // A steady rate pauses while a number is out of range.
    browser.click("steady").await;
    let is_told = "return document.getElementById('status').textContent.startsWith('Nothing was sent. Cost: ');";
    browser.evaluate(&set("cost", "1001")).await;
    assert_eq!(browser.evaluate(is_told).await, json!(true));
    browser.evaluate(&set("cost", "1")).await;
    assert_eq!(browser.evaluate(is_told).await, json!(false));
    let goes_on = "return Number(document.querySelector('[data-part=allowed]').textContent) > 3;";
    browser.wait_until("it goes on", goes_on).await;
    browser.close().await;
}
