//! The page at `/`, whose files are part of the program.

use axum::Router;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, VARY};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// The path, content type and text of each file that the page loads.
const FILES: [(&str, &str, &str); 11] = [
    ("/page/style.css", CSS, include_str!("page/style.css")),
    ("/page/main.js", JAVASCRIPT, include_str!("page/main.js")),
    ("/page/address.js", JAVASCRIPT, include_str!("page/address.js")),
    ("/page/admissions.js", JAVASCRIPT, include_str!("page/admissions.js")),
    ("/page/algorithms.js", JAVASCRIPT, include_str!("page/algorithms.js")),
    ("/page/card.js", JAVASCRIPT, include_str!("page/card.js")),
    ("/page/chart.js", JAVASCRIPT, include_str!("page/chart.js")),
    ("/page/clock.js", JAVASCRIPT, include_str!("page/clock.js")),
    ("/page/lane.js", JAVASCRIPT, include_str!("page/lane.js")),
    ("/page/traffic.js", JAVASCRIPT, include_str!("page/traffic.js")),
    ("/page/response.js", JAVASCRIPT, include_str!("page/response.js")),
];

/// Returns the routes of the page and its files. Clients that don't accept HTML, such as `curl`, get `help` at `/`.
pub(crate) fn routes(help: String) -> Router {
    let home = move |headers: HeaderMap| async move {
        let accepts_html =
            headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default().contains("text/html");
        match accepts_html {
            true => ([(VARY, "accept")], file(HTML, include_str!("page/index.html"))).into_response(),
            false => ([(VARY, "accept")], help).into_response(),
        }
    };
    FILES.iter().fold(Router::new().route("/", get(home)), |app, (path, content_type, text)| {
        app.route(path, get(|| async { file(content_type, text) }))
    })
}

fn file(content_type: &'static str, text: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, content_type),
        (CACHE_CONTROL, "no-cache"),
        (CONTENT_SECURITY_POLICY, "default-src 'self'; img-src data:; frame-ancestors 'none'"),
    ];
    (headers, text).into_response()
}
