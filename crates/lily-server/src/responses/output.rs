//! A `response` object and its items.

use std::{
    collections::HashMap,
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::{Map, Value, json};

use crate::{
    chat::response::{Timings, logprob_entries},
    generate::{Finish, Outcome, TokenLogprob},
    job::{Answer, Block},
};

/// Joined names of the functions in namespaces: (namespace, name).
pub(super) type Namespaces = HashMap<String, (String, String)>;

/// What a response repeats of its request.
#[derive(Debug, Clone)]
pub(super) struct Echo {
    pub(super) instructions: Value,
    pub(super) max_output_tokens: Option<usize>,
    pub(super) temperature: f32,
    pub(super) top_p: f32,
    pub(super) top_logprobs: u64,
    pub(super) logprobs: bool,
    pub(super) effort: Value,
    pub(super) format: Value,
    pub(super) tools: Vec<Value>,
    pub(super) namespaces: Namespaces,
    pub(super) tool_choice: Value,
    pub(super) parallel_tool_calls: bool,
    pub(super) metadata: Map<String, Value>,
}

/// The part of a response that is known before it is.
#[derive(Debug, Clone)]
pub(super) struct Head {
    id: String,
    created: u64,
    model: String,
    pub(super) echo: Echo,
}

/// A number as it was sent, without f32's digits.
fn number(value: f32) -> Value {
    value.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

/// A new id of a kind of item.
pub(super) fn new_id(prefix: &str) -> String {
    format!("{prefix}_{:032x}", rand::random::<u128>())
}

/// A reasoning item.
pub(super) fn reasoning_item(id: &str, status: &str, text: &str) -> Value {
    let content = if text.is_empty() { json!([]) } else { json!([{"type": "reasoning_text", "text": text}]) };
    json!({
        "id": id, "type": "reasoning", "status": status, "summary": [], "content": content,
        "encrypted_content": null,
    })
}

/// The one part of a message.
pub(super) fn text_part(text: &str, logprobs: Vec<TokenLogprob>) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprob_entries(logprobs)})
}

/// A message item.
pub(super) fn message_item(id: &str, status: &str, content: &[Value]) -> Value {
    json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": content})
}

impl Head {
    pub(super) fn new(model: &str, echo: Echo) -> Self {
        Self {
            id: new_id("resp"),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            model: model.to_string(),
            echo,
        }
    }

    /// A call item.
    pub(super) fn call_item(
        &self,
        id: &str,
        status: &str,
        call_id: &str,
        name: &str,
        arguments: &str,
    ) -> Value {
        let mut item = json!({
            "id": id, "type": "function_call", "status": status, "call_id": call_id, "name": name,
            "arguments": arguments,
        });
        if let Some((namespace, name)) = self.echo.namespaces.get(name) {
            item["namespace"] = json!(namespace);
            item["name"] = json!(name);
        }
        item
    }

    /// The object with this status and these items.
    pub(super) fn object(&self, status: &str, output: &[Value], outcome: Option<&Outcome>) -> Value {
        let echo = &self.echo;
        let incomplete = match outcome.map(|o| &o.finish) {
            Some(Finish::Length) => json!({"reason": "max_output_tokens"}),
            _ => Value::Null,
        };
        json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": status,
            "background": false, "error": null, "incomplete_details": incomplete,
            "instructions": echo.instructions, "max_output_tokens": echo.max_output_tokens,
            "max_tool_calls": null, "model": self.model, "output": output,
            "parallel_tool_calls": echo.parallel_tool_calls, "previous_response_id": null,
            "reasoning": {"effort": echo.effort, "summary": null}, "service_tier": "default", "store": false,
            "temperature": number(echo.temperature), "text": {"format": echo.format, "verbosity": "medium"},
            "tool_choice": echo.tool_choice, "tools": echo.tools, "top_logprobs": echo.top_logprobs,
            "top_p": number(echo.top_p), "truncation": "disabled", "usage": outcome.map(usage),
            "user": null, "metadata": echo.metadata, "timings": outcome.map(|o| Timings::new(&o.stats)),
        })
    }

    /// The object of a whole answer.
    pub(super) fn whole(&self, mut answer: Answer) -> Value {
        let status = status(&answer.outcome);
        let mut logprobs = Some(std::mem::take(&mut answer.content_logprobs)).filter(|_| self.echo.logprobs);
        let items: Vec<Value> = answer
            .blocks
            .iter()
            .map(|block| match block {
                Block::Reasoning(text) => reasoning_item(&new_id("rs"), status, text),
                Block::Text(text) => {
                    let part = text_part(text, logprobs.take().unwrap_or_default());
                    message_item(&new_id("msg"), status, &[part])
                }
                Block::Call(call) => {
                    self.call_item(&new_id("fc"), status, &call.id, &call.name, &call.arguments)
                }
            })
            .collect();
        self.object(status, &items, Some(&answer.outcome))
    }
}

/// `completed`, or `incomplete` when a token limit ended it.
pub(super) fn status(outcome: &Outcome) -> &'static str {
    match outcome.finish {
        Finish::Length => "incomplete",
        _ => "completed",
    }
}

fn usage(outcome: &Outcome) -> Value {
    let stats = &outcome.stats;
    json!({
        "input_tokens": stats.prompt_tokens,
        "input_tokens_details": {"cached_tokens": stats.cached_tokens},
        "output_tokens": stats.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": outcome.reasoning_tokens},
        "total_tokens": stats.prompt_tokens + stats.completion_tokens,
    })
}
