//! A request's body: read whole, within its limits.

use std::time::Instant;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use hyper::{HeaderMap, Request};
use tokio::time::timeout;

use crate::limits::{BODY_STALL, BODY_TIME};
use crate::wire::error::{ApiError, Kind};

/// Reads it.
///
/// # Errors
/// When it is longer than `bytes_max`, comes too slowly, is compressed, or the connection breaks.
pub(crate) async fn read(request: Request<Body>, bytes_max: usize) -> Result<Bytes, ApiError> {
    let (head, mut body) = request.into_parts();
    let encoding = head.headers.get(CONTENT_ENCODING);
    if encoding.is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(ApiError::new(Kind::Encoding, "compressed bodies are not taken: send it as it is"));
    }
    let told = length(&head.headers);
    if told.is_some_and(|told| told > bytes_max as u64) {
        return Err(too_large(bytes_max));
    }
    let began = Instant::now();
    let mut bytes = BytesMut::new();
    loop {
        let left = BODY_TIME.saturating_sub(began.elapsed()).min(BODY_STALL);
        let frame = match timeout(left, body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(_))) => {
                return Err(ApiError::new(Kind::Invalid, "the body is broken off or badly framed"));
            }
            Ok(None) => return Ok(bytes.freeze()),
            Err(_) => {
                return Err(ApiError::new(Kind::Timeout, "the body came too slowly: send it without pauses"));
            }
        };
        if let Some(data) = frame.data_ref() {
            if bytes.len() + data.len() > bytes_max {
                return Err(too_large(bytes_max));
            }
            if bytes.is_empty() {
                // One allocation where the length is told, which is within the limit by now.
                bytes.reserve(
                    told.and_then(|told| usize::try_from(told).ok()).unwrap_or(data.len()).min(1 << 20),
                );
            }
            bytes.extend_from_slice(data);
        }
    }
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn too_large(bytes_max: usize) -> ApiError {
    ApiError::new(
        Kind::TooLarge,
        format!("the body has more than {bytes_max} bytes: send less, or start the server with --body-limit"),
    )
}
