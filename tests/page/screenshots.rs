//! The pictures of the page in `docs/images`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::browser::Browser;

const SCHEMES: [&str; 2] = ["light", "dark"];

/// The environment variable `SCREENSHOTS` writes them first, which needs `pngquant`.
#[tokio::test]
async fn pictures_of_the_page_are_small() {
    let folder = support::repository("docs/images");
    if std::env::var_os("SCREENSHOTS").is_some() {
        write_pictures(&folder).await;
    }
    let pictures = fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("a file").metadata());
    let lengths: Vec<_> = pictures.map(|metadata| metadata.expect("a file").len()).collect();
    assert_eq!(lengths.len(), SCHEMES.len());
    assert!(lengths.iter().sum::<u64>() <= 150_000, "{lengths:?} bytes");
}

async fn write_pictures(folder: &Path) {
    let browser = Browser::open("").await;
    browser.devtools("Emulation.setScrollbarsHidden", json!({ "hidden": true })).await;
    browser.resize(1440, 900, false).await;
    browser.go_to("").await;
    let is_doubled = "return document.querySelector('[data-part=caption]').textContent.includes('doubled');";
    browser.wait_until("the edge has doubled the limit", is_doubled).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    // Stands still, so that both pictures are the same.
    browser.click("pause").await;
    for scheme in SCHEMES {
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        browser.devtools("Emulation.setEmulatedMedia", features).await;
        let picture = browser.devtools("Page.captureScreenshot", json!({ "format": "png" })).await;
        let bytes = STANDARD.decode(picture["data"].as_str().expect("data")).expect("Base64");
        let path = folder.join(format!("{scheme}.png"));
        fs::write(&path, bytes).expect("written");
        let status = Command::new("pngquant").args(["64", "--force", "--strip", "--ext", ".png"]).arg(&path).status();
        assert!(status.expect("`pngquant` is installed").success());
    }
    browser.close().await;
}
