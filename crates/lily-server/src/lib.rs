//! The HTTP APIs, OpenAI's and Anthropic's, and the text-level generation that they share with the command line.
//!
//! * [`generate`]: messages to prompt to engine to text, reasoning and tool calls;
//! * `cloud`: models in the cloud behind the Privacy Gate, when configured;
//! * [`grammar`]: structured output as constraints on the next token;
//! * [`serve`]: listening and shutting down;
//! * [`error`]: what a client gets instead of an answer.
//!
//! Each API (`chat`, `completions`, `responses`, `anthropic`) checks its body and makes a `Job` of it; what the job
//! tells becomes the API's answer or its events. Requests are refused loudly: a field that is not implemented is a 400
//! with its name, unless its value changes nothing. The paths are in `openapi`.

mod anthropic;
mod app;
mod body;
mod chat;
mod cloud;
mod completions;
mod decode;
pub mod error;
mod fields;
mod format;
pub mod generate;
pub mod grammar;
mod guard;
mod job;
mod marks;
mod metrics;
mod openapi;
mod params;
mod replay;
mod responses;
mod routes;
pub mod serve;
mod sse;
mod tokens;
mod tools;

pub use cloud::{CloudMode, EngineProposer};
pub use generate::{
    Delta, Finish, GenerateOptions, Outcome, Output, Prompt, TextEngine, TokenLogprob, Turn, TurnCall, Update,
};
pub use serve::{ServeError, Server, ServerConfig};

/// Checks a body as the endpoint of this path would, for a model without a chat template: what the fuzz targets call.
pub fn check_body(path: &str, body: &[u8]) -> Result<(), error::ApiError> {
    let context = chat::RequestContext {
        sampling: lily_engine::SamplingParams::default(),
        vocab: 1000,
        thinking: None,
        models: vec!["model".to_string()],
        template: None,
    };
    match path {
        "/v1/completions" => completions::check(body, &context),
        "/v1/responses" => responses::check(body, &context),
        "/v1/messages" => anthropic::check(body, &context),
        _ => chat::parse(body, &context).map(drop),
    }
}
