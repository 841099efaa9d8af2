//! The page says why each request was allowed, delayed or denied.

use fantoccini::actions::{InputSource, MouseActions, PointerAction};

use crate::access::{press, tab_to_selector};
use crate::browser::Browser;

const WHY: &str = "return [...document.querySelectorAll('.why:not([hidden])')].map(({ textContent }) => textContent);";

#[tokio::test]
async fn requests_are_explained_by_keyboard() {
    let browser = Browser::open("show=fixed-window&fixed-window.period=3600").await;
    browser.click("burst").await;
    browser.wait_for_figures("fixed-window", 15).await;
    tab_to_selector(&browser, ".chart").await;
    let why = async || -> String {
        browser
            .wait_until("a request is explained", "return document.querySelector('.why:not([hidden])') !== null;")
            .await;
        browser.evaluate(WHY).await[0].as_str().expect("text").to_owned()
    };
    // The latest, and then the first.
    let denied = why().await;
    assert!(denied.starts_with("denied: 10 were counted since "), "{denied}");
    assert!(denied.contains(":00:00; free in ") && denied.ends_with(" s"), "{denied}");
    press(&browser, '\u{e011}').await;
    let first = "return document.querySelector('.why').textContent.startsWith('allowed: 1 of 10 counted since ');";
    browser.wait_until("the first request is explained", first).await;
    press(&browser, '\u{e014}').await;
    let second = "return document.querySelector('.why').textContent.startsWith('allowed: 2 of 10 counted since ');";
    browser.wait_until("the second request is explained", second).await;
    press(&browser, '\u{e00c}').await;
    browser.wait_until("Escape hides it", "return document.querySelector('.why').hidden;").await;
    browser.close().await;
}

#[tokio::test]
async fn a_request_is_explained_when_it_is_pointed_at() {
    let browser = Browser::open("show=leaky-bucket-queue&leaky-bucket-queue.interval=2").await;
    browser.click("burst").await;
    browser.wait_for_figures("leaky-bucket-queue", 15).await;
    // Stands still, so that the mark does not move away.
    browser.click("pause").await;
    for (kind, expected) in [("denied", "denied: 6 of 6 places were taken; free in "), ("arrived", "delayed by ")] {
        let place = format!(
            "const {{ left, top }} = document.querySelector('.chart path.{kind}').getBoundingClientRect();
            return [Math.round(left + 2), Math.round(top + 2)];"
        );
        let place: (i64, i64) = serde_json::from_value(browser.evaluate(&place).await).expect("a place");
        let to = PointerAction::MoveTo { duration: None, x: place.0 as f64, y: place.1 as f64 };
        browser.client.perform_actions(MouseActions::new("mouse".to_owned()).then(to)).await.expect("a move");
        let is_explained =
            format!("return document.querySelector('.why:not([hidden])')?.textContent.startsWith('{expected}');");
        browser.wait_until(kind, &is_explained).await;
    }
    browser.close().await;
}

#[tokio::test]
async fn each_algorithm_says_why_it_denies_and_what_has_just_happened() {
    // So slow that nothing comes back meanwhile, except from the queue.
    let browser = Browser::open(&crate::decisions::slow("&leaky-bucket-queue.interval=4")).await;
    browser.evaluate("document.getElementById('size').value = 25;").await;
    browser.click("burst").await;
    browser.wait_for_figures("leaky-bucket-queue", 25).await;
    for (algorithm, denied, caption) in [
        ("fixed-window", " were counted since ", "its window is full until "),
        ("sliding-log", " were counted since ", "each counts for exactly 3600 s"),
        ("sliding-window", " were counted since ", "the oldest bucket leaves every 360 s"),
        ("sliding-window-counter", " those of the window before; free in ", "the window before still counts "),
        ("token-bucket", "the bucket was empty; free in ", "one comes back every 360 s"),
        ("leaky-bucket", "the bucket was full; free in ", "one comes back every 360 s"),
        ("leaky-bucket-queue", "6 of 6 places were taken; free in ", "as only 5 may wait"),
    ] {
        let table = browser.table(algorithm).await;
        let reasons: Vec<_> = table.iter().map(|row| &row[1]).filter(|reason| reason.starts_with("denied: ")).collect();
        assert!(!reasons.is_empty() && reasons.iter().all(|reason| reason.contains(denied)), "{algorithm}: {table:?}");
        let is_said = format!(
            "return document.querySelector('#{algorithm} [data-part=caption]').textContent.includes('{caption}');"
        );
        browser.wait_until(&format!("{algorithm}: {caption}"), &is_said).await;
    }
    browser.close().await;
}
