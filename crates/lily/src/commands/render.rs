//! `lily render`: messages to prompt text and ids.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use lily_text::RenderRequest;
use serde_json::{Map, Value, json};

use crate::{device, output::print};

/// Render messages through the chat template.
///
/// The request is a JSON object with `messages`, optionally `tools`, and any template keywords such as
/// `add_generation_prompt` and `enable_thinking`. Prints a JSON object with `text` and `ids`, or with `error` when
/// the template (or the check before it) refuses the messages.
#[derive(Debug, Args)]
pub struct RenderArgs {
    /// Directory with tokenizer.json, tokenizer_config.json and chat_template.jinja, or `lily-mini`.
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// The request, a JSON file.
    #[arg(long, value_name = "FILE")]
    request: PathBuf,

    /// Give the messages to the template as they are, without checking and normalising them first.
    #[arg(long)]
    raw: bool,
}

/// Runs the command.
pub fn run(args: &RenderArgs) -> Result<()> {
    let text = device::open_text(&args.dir)?;
    let path = args.request.display().to_string();
    let bytes = fs::read(&args.request).with_context(|| path.clone())?;
    let request: Map<String, Value> =
        serde_json::from_slice(&bytes).with_context(|| format!("{path}: expected a JSON object"))?;
    let request = request_of(request).with_context(|| path)?;
    let out = match text.render_ids(&request, !args.raw) {
        Ok((text, ids)) => json!({"text": text, "ids": ids}),
        Err(error) => json!({"error": error.to_string()}),
    };
    Ok(print(&format!("{out}\n"))?)
}

fn request_of(mut fields: Map<String, Value>) -> Result<RenderRequest> {
    let messages = match fields.shift_remove("messages") {
        Some(Value::Array(messages)) => messages,
        Some(_) => bail!("`messages` is not a list"),
        None => bail!("`messages` is missing"),
    };
    let tools = match fields.shift_remove("tools") {
        Some(Value::Array(tools)) => Some(tools),
        Some(Value::Null) | None => None,
        Some(_) => bail!("`tools` is not a list"),
    };
    Ok(RenderRequest { messages, tools, kwargs: fields })
}
