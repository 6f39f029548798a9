//! What a client may say about privacy with its request: a field `privacy`, or headers.
//!
//! ```json
//! {"model": "cloud/gpt", "messages": [], "privacy": {"session": "s-1", "approval": "apr_...", "on_sensitive": "error",
//!  "style": "ascii"}}
//! ```
//!
//! `mode` may repeat what the model says: `cloud` for `cloud/NAME`, `local` for the model of this machine. It never changes
//! where a request goes.

use axum::http::{HeaderMap, header};
use lily_gate::policy::Style;
use serde::Deserialize;
use serde_json::Value;

use crate::error::ApiError;

/// Longest session name.
const LONGEST: usize = 256;

/// The wishes of one request.
#[derive(Debug, Default)]
pub(super) struct Options {
    /// Who asks.
    pub client: String,
    pub session: Option<String>,
    pub approval: Option<String>,
    /// Whether a request that stays is answered by this machine; not said: as the policy says.
    pub answer_here: Option<bool>,
    /// The form of stand-ins.
    pub style: Option<Style>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    mode: Option<String>,
    session: Option<String>,
    approval: Option<String>,
    on_sensitive: Option<String>,
    style: Option<Style>,
}

impl Options {
    /// Reads the field and the headers; the field wins.
    pub(super) fn read(headers: &HeaderMap, request: &Value) -> Result<Self, ApiError> {
        let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
        let body = Body::read(request)?;
        if body.mode.as_deref().is_some_and(|mode| mode != "cloud") {
            return Err(ApiError::invalid(
                "privacy.mode",
                "the model says `cloud` and `privacy.mode` something else; for an answer of this machine, name its model",
            ));
        }
        let answer_here = match body.on_sensitive.as_deref() {
            None => None,
            Some("local") => Some(true),
            Some("error") => Some(false),
            Some(other) => {
                return Err(ApiError::invalid(
                    "privacy.on_sensitive",
                    format!("found {other:?}; expected \"local\" or \"error\""),
                ));
            }
        };
        let session = body.session.or_else(|| text("x-lily-session"));
        if session.as_ref().is_some_and(|s| s.is_empty() || s.len() > LONGEST) {
            return Err(ApiError::invalid("privacy.session", format!("expected 1 to {LONGEST} bytes")));
        }
        let key = headers.get(header::AUTHORIZATION).or_else(|| headers.get("x-api-key"));
        Ok(Self {
            client: key.map(|k| String::from_utf8_lossy(k.as_bytes()).into_owned()).unwrap_or_default(),
            session,
            approval: body.approval.or_else(|| text("x-lily-approval")),
            answer_here,
            style: body.style,
        })
    }
}

impl Body {
    fn read(request: &Value) -> Result<Self, ApiError> {
        match request.get("privacy") {
            None | Some(Value::Null) => Ok(Self::default()),
            Some(value) => {
                Self::deserialize(value).map_err(|e| ApiError::invalid("privacy", format!("`privacy`: {e}")))
            }
        }
    }
}

/// Checks and takes out the field of a request for a model of this machine. Whether there was one.
pub(super) fn take_local(request: &mut Value) -> Result<bool, ApiError> {
    let mode = Body::read(request)?.mode;
    if mode.as_deref().is_some_and(|mode| mode != "local") {
        return Err(ApiError::invalid(
            "privacy.mode",
            "the model is one of this machine and `privacy.mode` says something else; models in the cloud are cloud/NAME",
        ));
    }
    Ok(request.as_object_mut().is_some_and(|fields| fields.shift_remove("privacy").is_some()))
}

/// Whether a stream's client asked for the token counts.
pub(super) fn include_usage(request: &Value) -> bool {
    request.pointer("/stream_options/include_usage").and_then(Value::as_bool).unwrap_or(false)
}
