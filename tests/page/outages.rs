//! The page reports that the server hangs or has stopped, or that its store fails, and shows the requests of others.

use std::process::Command;
use std::time::Duration;

use serde_json::json;
use support::example_server::ExampleServer;
use support::http_client::get;
use support::redis_server::RedisServer;

use crate::browser::Browser;

#[tokio::test]
async fn an_outage_is_one_alert_and_a_gap_in_each_chart() {
    let mut browser =
        Browser::open("show=fixed-window,token-bucket&rate=10&fixed-window.limit=1000&token-bucket.capacity=1000")
            .await;
    browser.click("steady").await;
    browser.wait_for_some("token-bucket", 5).await;
    signal(&browser, "-STOP");
    browser.wait_until("the page reports that the server hangs", &reports("the server hangs")).await;
    let is_marked = "return document.querySelector('[data-part=level]').textContent.includes(' left at ');";
    browser.wait_until("what remains is marked as stale", is_marked).await;
    browser.wait_until("each chart has a gap", GAPS).await;
    signal(&browser, "-CONT");
    browser
        .wait_until("the server answers again", "return document.getElementById('banner').textContent === '';")
        .await;
    browser.wait_until("the gap stays", GAPS).await;
    let is_known = "return document.querySelector('[data-part=level]').textContent.endsWith(' left');";
    browser.wait_until("what remains is known again", is_known).await;

    browser.server.process.kill().expect("a running server");
    browser.wait_until("the page reports that the server has stopped", &reports("The server cannot be reached")).await;
    // A line of the chart would be drawn above or below the gap: only the mark of a chosen request may be above it.
    let is_last = "return [...document.querySelectorAll('.chart path.gap')].every((gap) =>
        gap.nextElementSibling.classList.contains('chosen') && !gap.parentNode.nextElementSibling?.matches('g'));";
    assert_eq!(browser.evaluate(is_last).await, json!(true));
    let alerts = "return [...document.querySelectorAll('[role=alert], [aria-live=assertive]')].map(({ id }) => id);";
    assert_eq!(browser.evaluate(alerts).await, json!(["banner"]));
    browser.close_despite("net::ERR_").await;
}

#[tokio::test]
async fn a_redis_that_fails_is_an_outage_and_requests_of_other_servers_have_their_own_marks() {
    let mut redis = RedisServer::start();
    let url = redis.url();
    let other = ExampleServer::start_with(&["--redis", &url]);
    let browser = Browser::start(ExampleServer::start_with(&["--redis", &url])).await;
    browser.go_to("show=fixed-window&fixed-window.period=3600").await;
    for _ in 0..3 {
        get(other.address, "/fixed-window?limit=10&period=3600").await.expect("a response");
    }
    // The path of a mark has one `M`.
    let three = "return document.querySelector('.chart path.others').getAttribute('d')?.split('M').length === 1 + 3;";
    browser.wait_until("the other server's requests are marked", three).await;
    browser.click("one").await;
    browser.wait_for_figures("fixed-window", 1).await;
    browser.wait_until("6 remain", "return document.querySelector('[data-part=level]').textContent[0] === '6';").await;
    assert_eq!(browser.evaluate(three).await, json!(true), "an own request is none of another server");

    // A bucket that refills meanwhile tells them apart, too.
    browser.go_to("show=token-bucket").await;
    for _ in 0..6 {
        get(other.address, "/token-bucket?capacity=10&amount=10&interval=4&refill=continuous")
            .await
            .expect("a response");
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    let six = "return document.querySelector('.chart path.others').getAttribute('d')?.split('M').length === 1 + 6;";
    browser.wait_until("the requests are marked although they came back", six).await;

    redis.stop();
    browser.wait_until("the page reports that the store fails", &reports("its store fails")).await;
    browser.wait_until("the chart has a gap", GAPS).await;
    browser.close_despite(" 503 ").await;
}

/// A path without data has no gap.
const GAPS: &str = "const gaps = [...document.querySelectorAll('.chart path.gap')];
    return gaps.length > 0 && gaps.every((gap) => (gap.getAttribute('d') ?? '') !== '');";

fn reports(text: &str) -> String {
    format!("return document.getElementById('banner').textContent.includes('{text}');")
}

fn signal(browser: &Browser, signal: &str) {
    let pid = browser.server.process.id().to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().expect("kill").success());
}
