//! The OpenAI-compatible HTTP API, and the text-level generation that it shares with the command line.
//!
//! * [`generate`]: messages to prompt to engine to text, reasoning and tool calls;
//! * `cloud`: models in the cloud behind the Privacy Gate, when configured;
//! * [`tools`]: finding tool calls in what the model writes;
//! * [`serve`]: listening and shutting down;
//! * [`error`]: what a client gets instead of an answer.
//!
//! Requests are refused loudly: a field that is not implemented is a 400 with its name, unless its value changes
//! nothing. Paths: `POST /v1/chat/completions`, `GET /v1/models`, `GET /v1/models/{id}`, `GET /health`.

mod app;
mod body;
mod chat;
mod cloud;
pub mod error;
pub mod generate;
mod guard;
mod marks;
mod routes;
pub mod serve;
pub mod tools;

pub use cloud::CloudMode;
pub use generate::{
    Delta, Finish, GenerateOptions, Outcome, Output, Prompt, TextEngine, TokenLogprob, Update,
};
pub use serve::{ServeError, Server, ServerConfig};
