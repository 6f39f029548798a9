//! `POST /v1/chat/completions`.
//!
//! The handler checks the request and renders the prompt before it answers anything, so that everything a client did
//! wrong is a 4xx. From then on the engine thread sends [`Update`]s through an unbounded channel: a client that reads
//! slowly never holds the engine up, and what can pile up is bounded by the context limit.
//!
//! A dropped connection drops the handler (before the answer begins) or the stream (after), and with it
//! [`CancelOnDrop`].

mod messages;
mod neutral;
mod request;
mod response;
mod stream;
mod thinking;
mod tools;

use axum::{
    Json,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use lily_engine::CancelFlag;
use lily_text::TextError;
use tokio::sync::mpsc;

use request::ChatJob;
pub use request::{RequestContext, model_not_found};

use crate::{
    app::App,
    body,
    error::ApiError,
    generate::{Finish, Outcome, Prompt, Update},
};

/// Cancels a generation when whatever waits for it goes away.
pub(crate) struct CancelOnDrop(CancelFlag);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// The handler.
pub(crate) async fn completions(State(app): State<App>, request: Request) -> Result<Response, ApiError> {
    let permit = app.admit()?;
    let body = body::read_json(request, app.config.body_limit).await?;
    let (job, prompt) = prepare(&app, body).await?;
    let ChatJob { options, stream, include_usage, .. } = job;

    let logprobs = options.logprobs.is_some();
    let (sender, updates) = mpsc::unbounded_channel();
    let cancel = CancelFlag::new();
    let guard = CancelOnDrop(cancel.clone());
    app.engine.generate(prompt, options, cancel, move |update| sender.send(update).is_ok())?;

    if stream {
        let stream =
            stream::ChatStream::new(updates, app.model_id(), include_usage, logprobs, (guard, permit));
        return Ok(stream.into_response());
    }
    let answer = collect(updates, app.model_id(), logprobs).await;
    drop((guard, permit));
    answer.map(|completion| Json(completion).into_response())
}

/// Checks the body and renders the prompt, on a thread that may block: a megabyte of messages takes a good part of
/// a second to tokenize.
async fn prepare(app: &App, body: Vec<u8>) -> Result<(ChatJob, Prompt), ApiError> {
    let app = app.clone();
    let work = move || {
        let job = request::parse(&body, &app.context)?;
        let prompt = app.engine.prompt(&job.render).map_err(text_error)?;
        Ok((job, prompt))
    };
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(internal()))
}

/// A failure of the server itself.
fn internal() -> ApiError {
    ApiError::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "server_error",
        "the request could not be prepared; the server's log says more",
    )
}

/// Errors of normalising and rendering are the request's.
fn text_error(error: TextError) -> ApiError {
    match error {
        TextError::Message { ref path, .. } => ApiError::invalid(path.clone(), error.to_string()),
        error => ApiError::invalid("messages", error.to_string()),
    }
}

/// Waits for the whole answer.
async fn collect(
    mut updates: mpsc::UnboundedReceiver<Update>,
    model: &str,
    want_logprobs: bool,
) -> Result<response::Completion, ApiError> {
    let mut message = response::Message::new();
    let mut logprobs = response::Logprobs::default();
    while let Some(update) = updates.recv().await {
        match update {
            Update::Prefill { .. } => {}
            Update::Output(output) => {
                output.deltas.into_iter().for_each(|delta| message.push(delta));
                logprobs.extend(output.content_logprobs, output.reasoning_logprobs);
            }
            Update::Finished(outcome) => {
                let finish_reason = finish_reason(&outcome)?;
                return Ok(response::Completion {
                    head: response::Head::new("chat.completion", model),
                    choices: [response::Choice {
                        index: 0,
                        message: message.finish(),
                        logprobs: want_logprobs.then_some(logprobs),
                        finish_reason,
                    }],
                    usage: response::Usage::new(&outcome),
                    timings: response::Timings::new(&outcome.stats),
                });
            }
            Update::Failed(error) => return Err(error.into()),
        }
    }
    Err(ApiError::stopping())
}

/// The finish reason, or the error that the end was. Clients that are still there did not cancel: the server did.
fn finish_reason(outcome: &Outcome) -> Result<&'static str, ApiError> {
    response::finish_reason(&outcome.finish).ok_or_else(|| match outcome.finish {
        Finish::Deadline => ApiError {
            code: Some("timeout"),
            ..ApiError::new(
                StatusCode::GATEWAY_TIMEOUT,
                "server_error",
                "the generation took longer than this server allows",
            )
        },
        _ => ApiError::stopping(),
    })
}
