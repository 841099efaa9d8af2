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
const FILES: [(&str, &str, &str); 18] = [
    ("/page/style.css", CSS, include_str!("page/style.css")),
    ("/page/main.js", JAVASCRIPT, include_str!("page/main.js")),
    ("/page/address.js", JAVASCRIPT, include_str!("page/address.js")),
    ("/page/admissions.js", JAVASCRIPT, include_str!("page/admissions.js")),
    ("/page/algorithms.js", JAVASCRIPT, include_str!("page/algorithms.js")),
    ("/page/card.js", JAVASCRIPT, include_str!("page/card.js")),
    ("/page/chart.js", JAVASCRIPT, include_str!("page/chart.js")),
    ("/page/clock.js", JAVASCRIPT, include_str!("page/clock.js")),
    ("/page/comparison.js", JAVASCRIPT, include_str!("page/comparison.js")),
    ("/page/connection.js", JAVASCRIPT, include_str!("page/connection.js")),
    ("/page/explain.js", JAVASCRIPT, include_str!("page/explain.js")),
    ("/page/lane.js", JAVASCRIPT, include_str!("page/lane.js")),
    ("/page/mechanism.js", JAVASCRIPT, include_str!("page/mechanism.js")),
    ("/page/playback.js", JAVASCRIPT, include_str!("page/playback.js")),
    ("/page/response.js", JAVASCRIPT, include_str!("page/response.js")),
    ("/page/story.js", JAVASCRIPT, include_str!("page/story.js")),
    ("/page/svg.js", JAVASCRIPT, include_str!("page/svg.js")),
    ("/page/traffic.js", JAVASCRIPT, include_str!("page/traffic.js")),
];

/// Returns the routes of the page and its files. Clients that don't accept HTML, such as `curl`, get `help` at `/`.
pub(crate) fn routes(help: String) -> Router {
    let home = move |headers: HeaderMap| async move {
        match accepts(&headers, "text/html") {
            true => ([(VARY, "accept")], file(HTML, include_str!("page/index.html"))).into_response(),
            false => ([(VARY, "accept")], help).into_response(),
        }
    };
    FILES.iter().fold(Router::new().route("/", get(home)), |app, (path, content_type, text)| {
        app.route(path, get(|| async { file(content_type, text) }))
    })
}

/// Returns whether a client accepts this type of content by name.
pub(crate) fn accepts(headers: &HeaderMap, content_type: &str) -> bool {
    headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).is_some_and(|accept| accept.contains(content_type))
}

fn file(content_type: &'static str, text: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, content_type),
        (CACHE_CONTROL, "no-cache"),
        (CONTENT_SECURITY_POLICY, "default-src 'self'; img-src data:; frame-ancestors 'none'"),
    ];
    (headers, text).into_response()
}
