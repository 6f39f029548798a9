//! OpenAI's `POST /v1/responses`.
//!
//! Responses are not stored: `store` may be false or left out, and conversations are sent whole.

mod input;
mod output;
mod request;
mod stream;

use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};

use crate::{app::App, body, chat::RequestContext, error::ApiError, job, sse::EventStream};

/// The handler.
pub(crate) async fn responses(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let permit = app.admit()?;
    let body = body::read_json(request, app.config.body_limit).await?;
    let app_ = app.clone();
    let (prepared, echo, stream) = job::blocking(move || {
        let asked = request::parse(&body, &app_.context)?;
        Ok((job::prepare(&app_, asked.job)?, asked.echo, asked.stream))
    })
    .await?;
    let running = job::start(&app, prepared)?;
    let head = output::Head::new(app.model_id(), echo);
    if stream {
        return Ok(EventStream::new(running, stream::ResponseStream::new(head), permit).into_response());
    }
    let answers = job::collect(running).await?;
    drop(permit);
    match answers.into_iter().next() {
        Some(answer) => Ok(Json(head.whole(answer)).into_response()),
        None => Err(ApiError::stopping()),
    }
}

/// Checks a body.
pub(crate) fn check(body: &[u8], context: &RequestContext) -> Result<(), ApiError> {
    request::parse(body, context).map(drop)
}
