//! `POST /v1/chat/completions`.
//!
//! The handler checks the request and renders the prompt before it answers anything, so that everything a client did
//! wrong is a 4xx. A dropped connection drops the handler (before the answer begins) or the stream (after), and with
//! it the generation.

pub(crate) mod messages;
mod request;
pub(crate) mod response;
mod stream;
pub(crate) mod thinking;
mod tools;

use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};

pub(crate) use request::choices;
pub use request::{ChatJob, RequestContext, parse, stream_options};

use crate::{app::App, body, error::ApiError, job, sse::EventStream};

/// The handler.
pub(crate) async fn completions(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let permit = app.admit()?;
    let body = body::read_json(request, app.config.body_limit).await?;
    let app_ = app.clone();
    let (prepared, asked) = job::blocking(move || {
        let ChatJob { job, logprobs, stream, include_usage, progress } = parse(&body, &app_.context)?;
        let settings = stream::Settings { logprobs, include_usage, progress };
        Ok((job::prepare(&app_, job)?, stream.then_some(settings).ok_or(logprobs)))
    })
    .await?;
    let running = job::start(&app, prepared)?;
    match asked {
        Ok(settings) => {
            let adapter = stream::ChatStream::new(app.model_id(), running.n, settings);
            Ok(EventStream::new(running, adapter, permit).into_response())
        }
        Err(logprobs) => {
            let answers = job::collect(running).await?;
            drop(permit);
            Ok(Json(response::Completion::new(app.model_id(), answers, logprobs)).into_response())
        }
    }
}
