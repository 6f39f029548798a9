//! Answers in Anthropic's form: a `message`, or its events.

use axum::response::sse::Event;
use serde_json::{Value, json};

use crate::{
    chat::response::Timings,
    error::ApiError,
    generate::{Delta, Finish, Outcome, Output},
    job::{Answer, Block},
    sse::{Adapter, named},
};

/// Thinking is not signed; the API wants the field.
const SIGNATURE: &str = "";

/// A whole message.
pub(super) fn message(model: &str, answer: &Answer) -> Value {
    let content: Vec<Value> = answer
        .blocks
        .iter()
        .map(|block| match block {
            Block::Reasoning(text) => json!({"type": "thinking", "thinking": text, "signature": SIGNATURE}),
            Block::Text(text) => json!({"type": "text", "text": text}),
            Block::Call(call) => {
                // Arguments are valid JSON by how they are made.
                let input: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
                json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input})
            }
        })
        .collect();
    let (reason, sequence) = stop_reason(&answer.outcome.finish);
    json!({
        "id": id(), "type": "message", "role": "assistant", "model": model, "content": content,
        "stop_reason": reason, "stop_sequence": sequence, "usage": usage(&answer.outcome),
        "timings": Timings::new(&answer.outcome.stats),
    })
}

fn id() -> String {
    format!("msg_{:032x}", rand::random::<u128>())
}

fn stop_reason(finish: &Finish) -> (&'static str, Option<&str>) {
    match finish {
        Finish::StopString(stop) => ("stop_sequence", Some(stop)),
        Finish::EndOfTurn => ("end_turn", None),
        Finish::ToolCalls => ("tool_use", None),
        Finish::Length | Finish::Cancelled | Finish::Deadline => ("max_tokens", None),
    }
}

/// Tokens whose state was reused count apart in this API.
fn usage(outcome: &Outcome) -> Value {
    let stats = &outcome.stats;
    json!({
        "input_tokens": stats.prompt_tokens.saturating_sub(stats.cached_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": stats.cached_tokens,
        "output_tokens": stats.completion_tokens,
    })
}

/// Kind of the block that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Thinking,
    Text,
    Call,
}

/// The events of a message.
pub(super) struct MessageStream {
    model: String,
    prompt_tokens: usize,
    /// Blocks begun.
    blocks: usize,
    open: Option<Open>,
}

impl MessageStream {
    pub(super) fn new(model: &str, prompt_tokens: usize) -> Self {
        Self { model: model.to_string(), prompt_tokens, blocks: 0, open: None }
    }

    fn close(&mut self, events: &mut Vec<Event>) {
        let Some(open) = self.open.take() else { return };
        let index = self.blocks - 1;
        if open == Open::Thinking {
            events.push(delta(index, &json!({"type": "signature_delta", "signature": SIGNATURE})));
        }
        events.push(named("content_block_stop", &json!({"type": "content_block_stop", "index": index})));
    }

    /// Makes a block of this kind the open one.
    fn block(&mut self, kind: Open, begin: &Value, events: &mut Vec<Event>) -> usize {
        if self.open != Some(kind) || kind == Open::Call {
            self.close(events);
            let body = json!({"type": "content_block_start", "index": self.blocks, "content_block": begin});
            events.push(named("content_block_start", &body));
            self.blocks += 1;
            self.open = Some(kind);
        }
        self.blocks - 1
    }
}

fn delta(index: usize, delta: &Value) -> Event {
    named("content_block_delta", &json!({"type": "content_block_delta", "index": index, "delta": delta}))
}

impl Adapter for MessageStream {
    fn begin(&mut self) -> Vec<Event> {
        let message = json!({
            "id": id(), "type": "message", "role": "assistant", "model": self.model, "content": [],
            "stop_reason": null, "stop_sequence": null,
            "usage": {
                "input_tokens": self.prompt_tokens, "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0, "output_tokens": 0,
            },
        });
        let start = named("message_start", &json!({"type": "message_start", "message": message}));
        vec![start, named("ping", &json!({"type": "ping"}))]
    }

    fn output(&mut self, _choice: usize, output: Output) -> Vec<Event> {
        let mut events = Vec::new();
        for piece in output.deltas {
            match piece {
                Delta::Reasoning(text) => {
                    let begin = json!({"type": "thinking", "thinking": "", "signature": SIGNATURE});
                    let index = self.block(Open::Thinking, &begin, &mut events);
                    events.push(delta(index, &json!({"type": "thinking_delta", "thinking": text})));
                }
                Delta::Content(text) => {
                    let index = self.block(Open::Text, &json!({"type": "text", "text": ""}), &mut events);
                    events.push(delta(index, &json!({"type": "text_delta", "text": text})));
                }
                Delta::CallStart { id, name, .. } => {
                    let begin = json!({"type": "tool_use", "id": id, "name": name, "input": {}});
                    self.block(Open::Call, &begin, &mut events);
                }
                Delta::CallArguments { json, .. } => {
                    let index = self.blocks.saturating_sub(1);
                    events.push(delta(index, &json!({"type": "input_json_delta", "partial_json": json})));
                }
                Delta::CallEnd { .. } | Delta::CallBroken { .. } => self.close(&mut events),
            }
        }
        events
    }

    fn finished(&mut self, _choice: usize, outcome: &Outcome) -> Vec<Event> {
        let mut events = Vec::new();
        self.close(&mut events);
        let (reason, sequence) = stop_reason(&outcome.finish);
        let body = json!({
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": sequence},
            "usage": usage(outcome),
        });
        events.push(named("message_delta", &body));
        events
    }

    fn end(&mut self) -> Vec<Event> {
        vec![named("message_stop", &json!({"type": "message_stop"}))]
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Event> {
        vec![named("error", &error.to_anthropic())]
    }
}
