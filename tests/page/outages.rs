//! The page reports that the server hangs or has stopped.

use std::process::Command;

use crate::browser::Browser;

#[tokio::test]
async fn a_server_that_hangs_is_reported_and_so_is_one_that_has_stopped() {
    let mut browser = Browser::open("show=token-bucket").await;
    signal(&browser, "-STOP");
    browser.wait_until("the page reports that the server hangs", &reports("the server hangs")).await;
    assert_eq!(browser.part("token-bucket", "remaining").await, "–", "nobody knows what remains");
    signal(&browser, "-CONT");
    let is_gone = "return document.querySelector('[data-part=error]').textContent === '';";
    browser.wait_until("the server answers again", is_gone).await;

    browser.server.process.kill().expect("a running server");
    browser.wait_until("the page reports that the server has stopped", &reports("The server cannot be reached")).await;
    browser.close_despite("net::ERR_").await;
}

fn reports(text: &str) -> String {
    format!("return document.querySelector('[data-part=error]').textContent.includes('{text}');")
}

fn signal(browser: &Browser, signal: &str) {
    let pid = browser.server.process.id().to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().expect("kill").success());
}
