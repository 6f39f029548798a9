//! `POST /v1/gate/check`: what would leave, and what would not, without sending anything.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
};
use lily_gate::body::Decision;
use serde_json::{Value, json};

use super::{Options, decide};
use crate::{app::App, body, error::ApiError};

/// The handler. The body is that of `/v1/chat/completions`.
pub(crate) async fn check(State(app): State<App>, request: Request) -> Result<Json<Value>, ApiError> {
    let mode = app.cloud.clone().ok_or_else(|| {
        ApiError::unsupported(
            "gate",
            "no gate is configured; start the server with --gate-policy FILE (and --cloud FILE to send)",
        )
    })?;
    let gate = Arc::clone(mode.gate()?);
    let headers = request.headers().clone();
    let body = body::read_json(request, app.config.body_limit).await?;
    let request: Value = serde_json::from_slice(&body)
        .map_err(|e| ApiError::body(format!("the body is not valid JSON: {e}")))?;
    let options = Options::read(&headers, &request)?;
    let asked = request.get("model").and_then(Value::as_str).unwrap_or_default();
    let name = asked.strip_prefix(super::PREFIX).unwrap_or(asked);
    let model = mode.cloud.as_ref().and_then(|c| c.model(name)).unwrap_or("model").to_owned();
    let (decision, ..) = decide(gate, request, model, options, true).await?;
    Ok(Json(shown(&decision)))
}

/// A decision for people and programs. `masked` is the body that would leave.
fn shown(decision: &Decision) -> Value {
    let mut shown = json!({
        "object": "gate.check",
        "verdict": decision.verdict(),
        "report": decision.report(),
    });
    match decision {
        Decision::Send(body) => {
            shown["masked"] = serde_json::from_slice(body.bytes()).unwrap_or(Value::Null);
        }
        Decision::Ask(_) => {}
        Decision::Local(kept) | Decision::Refuse(kept) => {
            shown["reason"] = kept.reason.clone().into();
            shown["path"] = kept.path.clone().into();
        }
    }
    shown
}
