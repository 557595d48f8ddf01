//! Answers as HTTP has them.

use axum::body::Body;
use axum::response::Response;
use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use serde_json::Value;

use crate::wire::error::ApiError;

const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// JSON.
pub(crate) fn json(value: &Value) -> Response {
    with_type("application/json", Body::from(value.to_string()))
}

/// Any text.
pub(crate) fn with_type(kind: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// A stream of events, which nothing on the way is to keep back.
pub(crate) fn stream(body: Body) -> Response {
    let mut response = with_type("text/event-stream", body);
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(X_ACCEL_BUFFERING, HeaderValue::from_static("no"));
    response
}

/// A fault, with the body of its interface.
pub(crate) fn error(error: &ApiError, body: &Value) -> Response {
    let mut response = json(body);
    *response.status_mut() =
        StatusCode::from_u16(error.kind.status()).expect("invariant: every kind has a status");
    if let Some(seconds) = error.retry_after_s {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

/// The same in OpenAI's words, which most clients know.
pub(crate) fn openai_error(fault: &ApiError) -> Response {
    error(fault, &fault.openai())
}
