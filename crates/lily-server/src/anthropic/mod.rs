//! Anthropic's API: `POST /v1/messages` and `/v1/messages/count_tokens`.

mod output;
mod request;

use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use serde_json::json;

use crate::{app::App, body, chat::RequestContext, error::ApiError, job, sse::EventStream};

/// `POST /v1/messages`.
pub(crate) async fn messages(State(app): State<App>, request: Request) -> Response {
    answer(app, request).await.unwrap_or_else(ApiError::into_anthropic)
}

async fn answer(app: App, request: Request) -> Result<Response, ApiError> {
    let permit = app.admit()?;
    let body = body::read_json(request, app.config.body_limit).await?;
    let app_ = app.clone();
    let (prepared, stream) = job::blocking(move || {
        let asked = request::parse(&body, &app_.context, true)?;
        Ok((job::prepare(&app_, asked.job)?, asked.stream))
    })
    .await?;
    let prompt_tokens = prepared.prompt.ids.len();
    let running = job::start(&app, prepared)?;
    if stream {
        let adapter = output::MessageStream::new(app.model_id(), prompt_tokens);
        return Ok(EventStream::new(running, adapter, permit).into_response());
    }
    let answers = job::collect(running).await?;
    drop(permit);
    match answers.first() {
        Some(answer) => Ok(Json(output::message(app.model_id(), answer)).into_response()),
        None => Err(ApiError::stopping()),
    }
}

/// `POST /v1/messages/count_tokens`.
pub(crate) async fn count_tokens(State(app): State<App>, request: Request) -> Response {
    count(app, request).await.unwrap_or_else(ApiError::into_anthropic)
}

async fn count(app: App, request: Request) -> Result<Response, ApiError> {
    let _permit = app.admit()?;
    let body = body::read_json(request, app.config.body_limit).await?;
    let tokens = job::blocking(move || {
        let asked = request::parse(&body, &app.context, false)?;
        Ok(job::prepare(&app, asked.job)?.prompt.ids.len())
    })
    .await?;
    Ok(Json(json!({"input_tokens": tokens})).into_response())
}

/// Checks a body.
pub(crate) fn check(body: &[u8], context: &RequestContext) -> Result<(), ApiError> {
    request::parse(body, context, true).map(drop)
}
