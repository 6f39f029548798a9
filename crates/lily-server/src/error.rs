//! What a client gets instead of an answer: an HTTP status and OpenAI's error body,
//! `{"error": {"message", "type", "param", "code"}}`.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use lily_engine::{BackendError, EngineError};
use serde_json::{Value, json};

/// Seconds a client is asked to wait when the queue is full. One request of a few hundred tokens takes about
/// this long; the client's own back-off does the rest.
const RETRY_AFTER_SECONDS: u32 = 1;

/// A refused or failed request.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// OpenAI's `type`.
    pub kind: &'static str,
    /// What was found, what was expected.
    pub message: String,
    /// Path of the offending field, for example `messages[2].content`.
    pub param: Option<String>,
    /// OpenAI's machine-readable `code`.
    pub code: Option<&'static str>,
    /// Value of the `Retry-After` header, seconds.
    pub retry_after: Option<u32>,
}

impl ApiError {
    /// An error of `status` with no parameter and no code.
    pub fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), param: None, code: None, retry_after: None }
    }

    /// 400: the field `param` is missing or has a wrong value.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            param: Some(param.into()),
            ..Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
        }
    }

    /// 400: the field `param` is understood, but this server does not do what it asks.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: Some("unsupported_parameter"), ..Self::invalid(param, message) }
    }

    /// 400: the field `param` does not exist.
    pub fn unknown(param: impl Into<String>) -> Self {
        let param = param.into();
        let message = format!("unknown parameter `{param}`; remove it or check its spelling");
        Self { code: Some("unknown_parameter"), ..Self::invalid(param, message) }
    }

    /// 400: a body that is not what the endpoint takes, with no single field to blame.
    pub fn body(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 429: too much is waiting.
    pub fn overloaded(message: impl Into<String>) -> Self {
        Self {
            code: Some("queue_full"),
            retry_after: Some(RETRY_AFTER_SECONDS),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
        }
    }

    /// 503: the server is going away.
    pub fn stopping() -> Self {
        Self {
            code: Some("shutting_down"),
            retry_after: Some(RETRY_AFTER_SECONDS),
            ..Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "server_error",
                "the server is shutting down; send the request again later",
            )
        }
    }

    /// Anthropic's error body. The field at fault is in the message.
    pub fn to_anthropic(&self) -> Value {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "api_error",
        };
        let message = match &self.param {
            Some(param) if !self.message.contains(param.as_str()) => format!("{param}: {}", self.message),
            _ => self.message.clone(),
        };
        json!({"type": "error", "error": {"type": kind, "message": message}})
    }

    /// The response with Anthropic's body.
    pub fn into_anthropic(self) -> Response {
        let body = self.to_anthropic();
        self.respond(body)
    }

    fn respond(self, body: Value) -> Response {
        let mut response = (self.status, Json(body)).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }

    /// OpenAI's error body.
    pub fn to_json(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }})
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        match error {
            EngineError::EmptyPrompt => Self::invalid("messages", message),
            EngineError::ContextLength { prompt, max_tokens, limit } => {
                let asked = max_tokens.map_or_else(
                    || "leaves no room for an answer".to_string(),
                    |m| format!("and max_tokens {m} make {}", prompt.saturating_add(m)),
                );
                Self {
                    code: Some("context_length_exceeded"),
                    ..Self::invalid(
                        "messages",
                        format!(
                            "the context limit is {limit} tokens; the prompt of {prompt} tokens {asked}. \
                             Shorten the messages or lower max_tokens"
                        ),
                    )
                }
            }
            EngineError::BadParameter { name, .. } => Self::invalid(name, message),
            EngineError::QueueFull { .. } => Self::overloaded(message),
            EngineError::Stopped => Self::stopping(),
            EngineError::Backend(BackendError::OutOfMemory { .. }) => Self {
                code: Some("out_of_memory"),
                retry_after: Some(RETRY_AFTER_SECONDS),
                ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
            },
            // The grammar asked for more than its limits allow: the request's doing, not the server's.
            EngineError::Backend(BackendError::Constraint(_)) => Self {
                code: Some("constraint_failed"),
                ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_request_error", message)
            },
            EngineError::Backend(_) => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = self.to_json();
        self.respond(body)
    }
}
