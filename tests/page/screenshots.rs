//! The pictures of the page in `docs/images`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::browser::Browser;

const DEVICES: [(&str, u32, u32); 2] = [("desktop", 1280, 1170), ("phone", 390, 844)];
const SCHEMES: [&str; 2] = ["light", "dark"];

/// The environment variable `SCREENSHOTS` writes them first, which needs `pngquant`.
#[tokio::test]
async fn pictures_of_the_page_are_small() {
    let folder = support::repository("docs/images");
    if std::env::var_os("SCREENSHOTS").is_some() {
        write_pictures(&folder).await;
    }
    for (device, _, _) in DEVICES {
        for scheme in SCHEMES {
            let path = folder.join(format!("{device}-{scheme}.png"));
            let length = fs::metadata(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).len();
            assert!(length < 150_000, "{} has {length} bytes", path.display());
        }
    }
}

async fn write_pictures(folder: &Path) {
    fs::create_dir_all(folder).expect("a folder");
    let browser = Browser::open("").await;
    browser.devtools("Emulation.setScrollbarsHidden", json!({ "hidden": true })).await;
    for (device, width, height) in DEVICES {
        browser.resize(width, height, device == "phone").await;
        browser.click("again").await;
        browser.click("edge").await;
        let is_done = "return Number(document.querySelector('#fixed-window [data-part=denied]').textContent) >= 10;";
        browser.wait_until("both bursts are decided", is_done).await;
        browser.click("steady").await;
        // Until the next window has begun.
        tokio::time::sleep(Duration::from_secs(12)).await;
        if device == "phone" {
            browser.evaluate("document.querySelector('.legend').scrollIntoView();").await;
        }
        for scheme in SCHEMES {
            let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
            browser.devtools("Emulation.setEmulatedMedia", features).await;
            let picture = browser.devtools("Page.captureScreenshot", json!({ "format": "png" })).await;
            let bytes = STANDARD.decode(picture["data"].as_str().expect("data")).expect("Base64");
            let path = folder.join(format!("{device}-{scheme}.png"));
            fs::write(&path, bytes).expect("written");
            let status = Command::new("pngquant").args(["--force", "--strip", "--ext", ".png"]).arg(&path).status();
            assert!(status.expect("`pngquant` is installed").success());
        }
    }
    browser.close().await;
}
