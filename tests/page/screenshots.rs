//! The pictures of the page in `docs/images`, which the environment variable `SCREENSHOTS` writes.

use std::fs;
use std::process::Command;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::browser::Browser;

#[tokio::test]
async fn screenshots_are_written_on_request() {
    if std::env::var_os("SCREENSHOTS").is_none() {
        return;
    }
    let folder = support::repository("docs/images");
    fs::create_dir_all(&folder).expect("a folder");
    let browser = Browser::open("").await;
    browser.devtools("Emulation.setScrollbarsHidden", json!({ "hidden": true })).await;
    for (device, width, height) in [("desktop", 1280, 1170), ("phone", 390, 844)] {
        browser.resize(width, height, device == "phone").await;
        browser.click("again").await;
        browser.click("edge").await;
        let is_done = "return Number(document.querySelector('#fixed-window [data-part=denied]').textContent) >= 10;";
        browser.wait_until("both bursts are decided", is_done).await;
        browser.click("steady").await;
        tokio::time::sleep(Duration::from_secs(12)).await;
        if device == "phone" {
            browser.evaluate("document.querySelector('.legend').scrollIntoView();").await;
        }
        for scheme in ["light", "dark"] {
            let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
            browser.devtools("Emulation.setEmulatedMedia", features).await;
            let picture = browser.devtools("Page.captureScreenshot", json!({ "format": "png" })).await;
            let path = folder.join(format!("{device}-{scheme}.png"));
            let bytes = STANDARD.decode(picture["data"].as_str().expect("data")).expect("Base64");
            fs::write(&path, bytes).expect("written");
            let status = Command::new("pngquant").args(["--force", "--strip", "--ext", ".png"]).arg(&path).status();
            assert!(status.expect("`pngquant` is installed").success());
        }
    }
    browser.close().await;
}
