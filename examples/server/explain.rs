//! Explains requests instead of answering them: `/explain/user` tells what `/user` would do with the same request now.

use axum::Json;
use axum::extract::{MatchedPath, OriginalUri, Request};
use axum::http::header::VARY;
use axum::response::{IntoResponse, Response};
use tower_ratelimit::{RateLimitLayer, RequestHead};

use crate::page::accepts;

/// Returns the explanation as text, or as JSON for clients that accept it.
///
/// An explanation tells who uses how much. A real server shows it to its operators only.
pub(crate) async fn explain(layer: RateLimitLayer, mut request: Request) -> Response {
    // The URI is already that of the explained route, but these are not.
    request.extensions_mut().remove::<MatchedPath>();
    request.extensions_mut().remove::<OriginalUri>();
    let explanation = layer.explain(&RequestHead::of(&request)).await;
    let body = match accepts(request.headers(), "application/json") {
        true => Json(explanation).into_response(),
        false => format!("{explanation}\n").into_response(),
    };
    ([(VARY, "accept")], body).into_response()
}
