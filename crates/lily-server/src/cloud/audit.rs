//! `GET /v1/audit/{id}`: exactly what left for a request, and what became of it.
//!
//! The id is that of the answer's `x-lily-audit`. What is shown is the log's own lines: the body as it left, the spans
//! without their values, and the outcome. Originals are not in the log, and so not here.

use axum::{
    Json,
    extract::{Path, State, rejection::PathRejection},
    http::StatusCode,
};
use lily_hybrid::{
    AuditError,
    audit::{find, receipt},
};
use serde_json::{Value, json};

use crate::{app::App, error::ApiError};

/// The handler.
pub(crate) async fn show(
    State(app): State<App>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(id) = id.map_err(|e| ApiError::body(format!("the path is wrong: {}", e.body_text())))?;
    let cloud = app.cloud.as_ref().and_then(|mode| mode.cloud.clone()).ok_or_else(|| {
        ApiError::unsupported(
            "audit",
            "nothing can leave this server, so there is no log; start it with --cloud FILE",
        )
    })?;
    // The log may be long, and reading it waits for the disk.
    let read = tokio::task::spawn_blocking(move || {
        let directory = cloud.audit().path().parent().map(ToOwned::to_owned).unwrap_or_default();
        find(&directory, &id).map(|(line, about)| (line, about, id))
    });
    let read = read.await.map_err(|_| unreadable("the reader ended early"))?;
    let (line, about, id) = read.map_err(|error| match error {
        AuditError::Content { .. } => ApiError {
            code: Some("audit_not_found"),
            ..ApiError::new(
                StatusCode::NOT_FOUND,
                "invalid_request_error",
                "the audit log has no line with this id; expected the value of an answer's x-lily-audit",
            )
        },
        other => unreadable(&other.to_string()),
    })?;
    let shown = json!({
        "object": "audit.record",
        "id": id,
        "receipt": receipt(&line, &about),
        "record": line,
        "about": about,
    });
    Ok(Json(shown))
}

fn unreadable(reason: &str) -> ApiError {
    ApiError {
        code: Some("audit_unavailable"),
        ..ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "server_error",
            format!("the audit log cannot be read: {reason}"),
        )
    }
}
