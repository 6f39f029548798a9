//! Answers to requests that do not leave, and to those that came back empty.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use lily_gate::body::{Cause, Consent, Kept};
use lily_hybrid::{CloudError, egress::EgressError};
use serde_json::json;

use crate::error::ApiError;

/// 409: the client's person is asked, and the same request comes again with the id.
pub(super) fn consent(consent: &Consent) -> Response {
    let body = json!({
        "error": {
            "message": "the request holds values that the policy lets leave with consent only; send it again, \
                        unchanged, with `privacy.approval` (or the header x-lily-approval) set to the approval id",
            "type": "invalid_request_error",
            "param": null,
            "code": "privacy_consent_required",
        },
        "privacy": {"approval": consent.approval, "report": consent.report},
    });
    (StatusCode::CONFLICT, Json(body)).into_response()
}

/// A request that does not leave.
pub(super) fn kept(kept: &Kept) -> ApiError {
    let (status, kind, code) = match kept.cause {
        Cause::Request => (StatusCode::BAD_REQUEST, "invalid_request_error", "privacy_request_invalid"),
        Cause::Policy => (StatusCode::FORBIDDEN, "invalid_request_error", "privacy_refused"),
        Cause::Unreadable => (StatusCode::FORBIDDEN, "invalid_request_error", "privacy_unreadable"),
        Cause::NoLayer2 => (StatusCode::FORBIDDEN, "invalid_request_error", "privacy_layer2_required"),
        Cause::Layer2 => (StatusCode::FORBIDDEN, "invalid_request_error", "privacy_layer2_failed"),
        Cause::Approval => (StatusCode::CONFLICT, "invalid_request_error", "privacy_approval_invalid"),
        Cause::Broken => (StatusCode::SERVICE_UNAVAILABLE, "server_error", "privacy_gate_broken"),
        Cause::Aborted => (StatusCode::SERVICE_UNAVAILABLE, "server_error", "privacy_aborted"),
    };
    ApiError {
        code: Some(code),
        param: kept.path.clone().filter(|path| !path.is_empty()),
        ..ApiError::new(status, kind, format!("the request was not sent to the cloud: {}", kept.reason))
    }
}

/// 503: there is no gate, and so no way out.
pub(super) fn closed(reason: &str) -> ApiError {
    ApiError {
        code: Some("privacy_gate_broken"),
        ..ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "server_error",
            format!(
                "nothing can be sent to the cloud, since the Privacy Gate could not be started: {reason}"
            ),
        )
    }
}

/// A request that left, or would have, and has no answer.
pub(super) fn cloud(error: &CloudError) -> ApiError {
    let (status, code) = match error {
        CloudError::Unknown(_) => (StatusCode::NOT_FOUND, "model_not_found"),
        CloudError::Egress(EgressError::Audit(_)) => (StatusCode::SERVICE_UNAVAILABLE, "audit_unavailable"),
        CloudError::Egress(EgressError::Client { .. }) => {
            (StatusCode::SERVICE_UNAVAILABLE, "upstream_unusable")
        }
        CloudError::Egress(EgressError::Unreachable { .. }) => {
            (StatusCode::BAD_GATEWAY, "upstream_unreachable")
        }
        CloudError::Refused { status: 429, .. } => (StatusCode::TOO_MANY_REQUESTS, "upstream_overloaded"),
        CloudError::Refused { .. } => (StatusCode::BAD_GATEWAY, "upstream_refused"),
    };
    ApiError { code: Some(code), ..ApiError::new(status, "server_error", error.to_string()) }
}

/// Whether the provider failed, and not the request or this machine.
pub(super) fn is_outage(error: &CloudError) -> bool {
    match error {
        CloudError::Egress(EgressError::Unreachable { .. }) => true,
        CloudError::Refused { status, .. } => *status >= 500,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::{io, path::PathBuf};

    use lily_hybrid::AuditError;

    use super::*;

    #[test]
    fn a_log_that_cannot_be_written_is_a_503() {
        let full = AuditError::Io { path: PathBuf::from("/log"), source: io::ErrorKind::StorageFull.into() };
        let error = cloud(&CloudError::Egress(EgressError::Audit(full)));
        assert_eq!((error.status, error.code), (StatusCode::SERVICE_UNAVAILABLE, Some("audit_unavailable")));
        assert!(
            error.message.contains("nothing was sent") && error.message.contains("/log"),
            "{}",
            error.message
        );
    }
}
