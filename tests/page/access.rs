//! The page is usable by keyboard, on a phone, and with a screen reader.

use fantoccini::actions::{InputSource, KeyAction, KeyActions};
use serde_json::json;

use crate::browser::Browser;

/// All seven lanes.
pub(crate) const ALL: &str = "show=fixed-window,sliding-log,sliding-window,sliding-window-counter,token-bucket,leaky-bucket,\
                   leaky-bucket-queue";

#[tokio::test]
async fn the_page_is_usable_by_keyboard_alone() {
    let browser = Browser::open("show=token-bucket&token-bucket.interval=3600").await;
    // Past the checkboxes to the button.
    tab_to(&browser, "burst").await;
    let outline = "return getComputedStyle(document.activeElement).outlineStyle;";
    assert_eq!(browser.evaluate(outline).await, json!("solid"), "the focus is visible");
    press(&browser, '\u{e007}').await;
    browser.wait_for_figures("token-bucket", 15).await;
    assert_eq!(browser.figure("token-bucket", "allowed").await, 10);

    // The table of requests opens and closes.
    tab_to_selector(&browser, "[data-part=toggle]").await;
    press(&browser, ' ').await;
    browser.wait_until("the table is shown", "return document.querySelectorAll('.lane tbody tr').length === 15;").await;
    let expanded = "return document.activeElement.getAttribute('aria-expanded');";
    assert_eq!(browser.evaluate(expanded).await, json!("true"));

    // A checkbox adds a lane.
    tab_to_selector(&browser, "#own summary").await;
    press(&browser, '\u{e007}').await;
    tab_to_selector(&browser, "[name=fixed-window]").await;
    press(&browser, ' ').await;
    browser.wait_until("the lane is added", "return document.getElementById('fixed-window') !== null;").await;
    browser.close().await;
}

#[tokio::test]
async fn no_width_scrolls_sideways() {
    let browser = Browser::open(ALL).await;
    browser.evaluate("document.querySelectorAll('[data-part=toggle]').forEach((button) => button.click());").await;
    browser.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; });").await;
    browser.click("burst").await;
    browser.wait_for_figures("fixed-window", 15).await;
    for (width, is_phone) in [(320, true), (390, true), (700, false), (1000, false), (1280, false), (1920, false)] {
        browser.resize(width, 844, is_phone).await;
        // A phone zooms out if the content is too wide, so `innerWidth` is not meaningful.
        let needed = browser.evaluate("return document.documentElement.scrollWidth;").await;
        assert!(needed.as_u64() <= Some(width.into()), "{width} px: the page needs {needed}");
    }
    browser.close().await;
}

#[tokio::test]
async fn nothing_is_cut_off_on_a_screen_of_320_pixels() {
    let browser = Browser::open(ALL).await;
    browser.resize(320, 640, true).await;
    browser.click("burst").await;
    browser.wait_for_figures("fixed-window", 15).await;
    browser.evaluate("document.querySelectorAll('[data-part=toggle]').forEach((button) => button.click());").await;
    browser.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; });").await;
    browser.wait_until("tables are filled", "return document.querySelectorAll('.lane tbody tr').length > 90;").await;
    // As after some hours.
    browser
        .evaluate(
            "document.querySelectorAll('td:first-child').forEach((time) => { time.textContent = '12345.678 s'; });",
        )
        .await;
    assert_eq!(browser.evaluate(include_str!("cut_off.js")).await, json!([]));
    browser.close().await;
}

#[tokio::test]
async fn a_phone_shows_a_chart_when_requests_are_sent() {
    let browser = Browser::open("").await;
    // Scrolls at once.
    let features = json!({ "features": [{ "name": "prefers-reduced-motion", "value": "reduce" }] });
    browser.devtools("Emulation.setEmulatedMedia", features).await;
    for (width, height) in [(390, 844), (320, 640)] {
        browser.resize(width, height, true).await;
        for button in ["burst", "one"] {
            browser.evaluate("scrollTo(0, 0);").await;
            browser.click(button).await;
            let is_visible = "const bottom = document.querySelector('.actions').getBoundingClientRect().top;
                return [...document.querySelectorAll('.chart')].map((chart) => chart.getBoundingClientRect())
                    .some((chart) => chart.top >= 0 && chart.bottom <= bottom);";
            browser.wait_until("a whole chart is visible", is_visible).await;
        }
    }
    // A chart that is in view already stays where it is.
    browser.evaluate("document.getElementById('token-bucket').scrollIntoView();").await;
    browser.click("one").await;
    let is_decided = "return document.getElementById('status').textContent.startsWith('Fixed window: ');";
    browser.wait_until("the requests are decided", is_decided).await;
    let top = browser.evaluate("return document.getElementById('token-bucket').getBoundingClientRect().top;").await;
    assert!(top.as_f64().is_some_and(|top| (-1.0..20.0).contains(&top)), "{top}");
    browser.close().await;
}

#[tokio::test]
async fn the_legend_explains_everything_that_the_charts_draw() {
    let browser = Browser::open(ALL).await;
    let classes = |within: &str| {
        let paths = format!("[...document.querySelectorAll('{within} path')]");
        format!("return [...new Set({paths}.map((path) => path.getAttribute('class')))].sort();")
    };
    // A line under the marks and one under the counts are no data.
    let drawn = browser.evaluate(&classes(".chart").replace(".sort", ".filter((name) => name !== 'base').sort")).await;
    assert!(drawn.as_array().is_some_and(|classes| classes.len() > 9), "{drawn}");
    assert_eq!(browser.evaluate(&classes(".legend")).await, drawn);
    browser.close().await;
}

#[tokio::test]
async fn controls_on_a_phone_are_large_enough_to_touch_and_within_reach() {
    let browser = Browser::open("").await;
    browser.resize(390, 844, true).await;
    let small = "const targets = [...document.querySelectorAll('button, label:has(input), select')];
        return targets.filter((target) => target.offsetParent || getComputedStyle(target).position === 'fixed')
            .map((target) => [target.textContent, target.getBoundingClientRect().height])
            .filter(([, height]) => height > 0 && height < 28);";
    assert_eq!(browser.evaluate(small).await, json!([]));
    // The buttons that send requests stay visible next to the charts.
    browser.evaluate("document.getElementById('leaky-bucket-queue').scrollIntoView();").await;
    let bottom = browser.evaluate("return document.getElementById('burst').getBoundingClientRect().bottom;").await;
    assert!((700.0..=844.0).contains(&bottom.as_f64().expect("a number")), "{bottom}");
    browser.close().await;
}

#[tokio::test]
async fn every_control_and_chart_has_an_accessible_name() {
    let browser = Browser::open(ALL).await;
    browser.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; });").await;
    browser.click("burst").await;
    browser.wait_for_figures("sliding-log", 15).await;
    let tree = browser.devtools("Accessibility.getFullAXTree", json!({})).await;
    let nodes = tree["nodes"].as_array().expect("nodes");
    let mut named = 0;
    for node in nodes.iter().filter(|node| node["ignored"] == json!(false)) {
        let role = node["role"]["value"].as_str().unwrap_or_default();
        if ["button", "checkbox", "spinbutton", "combobox", "group", "region", "form", "article"].contains(&role) {
            assert_ne!(node["name"]["value"].as_str().unwrap_or_default(), "", "{node}");
            named += 1;
        }
    }
    assert!(named > 40, "{named}");
    let label = "return document.querySelector('#sliding-log .chart').getAttribute('aria-label');";
    let label = browser.evaluate(label).await;
    assert!(label.as_str().expect("text").starts_with("10 requests allowed"), "{label}");
    browser.close().await;
}

#[tokio::test]
async fn text_has_enough_contrast_in_light_and_dark() {
    let browser = Browser::open("").await;
    browser.click("burst").await;
    browser.wait_for_figures("fixed-window", 15).await;
    for scheme in ["light", "dark"] {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        browser.devtools("Emulation.setEmulatedMedia", features).await;
        let pale = browser.evaluate(include_str!("contrast.js")).await;
        assert_eq!(pale, json!([]), "{scheme}");
    }
    browser.close().await;
}

async fn tab_to(browser: &Browser, id: &str) {
    tab_to_selector(browser, &format!("#{id}")).await;
}

/// Presses Tab until the element has the focus.
pub(crate) async fn tab_to_selector(browser: &Browser, selector: &str) {
    for _ in 0..60 {
        press(browser, '\u{e004}').await;
        if browser.evaluate(&format!("return document.activeElement.matches('{selector}');")).await == json!(true) {
            return;
        }
    }
    panic!("Tab does not reach {selector}");
}

pub(crate) async fn press(browser: &Browser, key: char) {
    let keys =
        KeyActions::new("keyboard".to_owned()).then(KeyAction::Down { value: key }).then(KeyAction::Up { value: key });
    browser.client.perform_actions(keys).await.expect("a key is pressed");
}
