//! Reading a request's body within limits of size, time and type.

use std::time::Duration;

use axum::{
    body::{Body, HttpBody},
    extract::Request,
    http::{HeaderMap, StatusCode, header},
};

use crate::error::ApiError;

/// A client that sends its body slower than this holds a place others could use.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// The whole body of a JSON request of at most `limit` bytes.
pub(crate) async fn read_json(request: Request, limit: usize) -> Result<Vec<u8>, ApiError> {
    check_content_type(request.headers())?;
    let body = request.into_body();
    // The length a client announces is refused before it is sent.
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large(limit));
    }
    match tokio::time::timeout(BODY_TIMEOUT, collect(body, limit)).await {
        Ok(read) => read,
        Err(_) => Err(ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            "invalid_request_error",
            format!("the body did not arrive within {} seconds", BODY_TIMEOUT.as_secs()),
        )),
    }
}

async fn collect(body: Body, limit: usize) -> Result<Vec<u8>, ApiError> {
    match axum::body::to_bytes(body, limit).await {
        Ok(bytes) => Ok(bytes.into()),
        Err(error) if is_over_limit(&error) => Err(too_large(limit)),
        Err(error) => Err(ApiError::body(format!("the body could not be read: {error}"))),
    }
}

fn is_over_limit(error: &axum::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if cause.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        source = cause.source();
    }
    false
}

fn too_large(limit: usize) -> ApiError {
    ApiError {
        code: Some("request_too_large"),
        ..ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "invalid_request_error",
            format!("the body is larger than {limit} bytes, the most this server takes"),
        )
    }
}

/// `application/json`, with any parameters; a missing type is taken to be it.
fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let text = value.to_str().unwrap_or("(not text)");
    let kind = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json")) {
        return Ok(());
    }
    Err(ApiError::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "invalid_request_error",
        format!("content-type is {text:?}; expected application/json"),
    ))
}
