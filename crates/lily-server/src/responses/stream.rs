//! A response as events.

use axum::response::sse::Event;
use serde_json::{Value, json};

use super::output::{Head, message_item, new_id, reasoning_item, status, text_part};
use crate::{
    chat::response::logprob_entries,
    error::ApiError,
    generate::{Delta, Outcome, Output, TokenLogprob},
    sse::{Adapter, named},
};

/// The item that grows.
enum Open {
    Reasoning { id: String, text: String },
    Message { id: String, text: String, logprobs: Vec<TokenLogprob> },
    Call { id: String, call_id: String, name: String, arguments: String },
}

/// The events of one response.
pub(super) struct ResponseStream {
    head: Head,
    sequence: u64,
    /// Items that are over.
    items: Vec<Value>,
    open: Option<Open>,
    /// Log-probabilities that have no event yet.
    logprobs: Vec<TokenLogprob>,
    end: Option<Outcome>,
}

impl ResponseStream {
    pub(super) fn new(head: Head) -> Self {
        Self { head, sequence: 0, items: Vec::new(), open: None, logprobs: Vec::new(), end: None }
    }

    /// An event with the next number.
    fn event(&mut self, kind: &str, mut body: Value) -> Event {
        body["type"] = kind.into();
        body["sequence_number"] = self.sequence.into();
        self.sequence += 1;
        named(kind, &body)
    }

    /// Begins an item, after ending the one before.
    fn begin_item(&mut self, open: Open, item: &Value, part: Option<&Value>, events: &mut Vec<Event>) {
        self.close("completed", events);
        let index = self.items.len();
        events.push(self.event("response.output_item.added", json!({"output_index": index, "item": item})));
        if let Some(part) = part {
            let body =
                json!({"item_id": item["id"], "output_index": index, "content_index": 0, "part": part});
            events.push(self.event("response.content_part.added", body));
        }
        self.open = Some(open);
    }

    fn close(&mut self, status: &str, events: &mut Vec<Event>) {
        let Some(open) = self.open.take() else { return };
        let index = self.items.len();
        let at = |id: &str| json!({"item_id": id, "output_index": index, "content_index": 0});
        let with = |id: &str, field: &str, value: Value| {
            let mut body = at(id);
            body[field] = value;
            body
        };
        let item = match open {
            Open::Reasoning { id, text } => {
                let done = with(&id, "text", json!(text));
                events.push(self.event("response.reasoning_text.done", done));
                let part = with(&id, "part", json!({"type": "reasoning_text", "text": text}));
                events.push(self.event("response.content_part.done", part));
                reasoning_item(&id, status, &text)
            }
            Open::Message { id, text, logprobs } => {
                let mut done = with(&id, "text", json!(text));
                done["logprobs"] = json!(logprob_entries(logprobs.clone()));
                events.push(self.event("response.output_text.done", done));
                let part = text_part(&text, logprobs);
                let body = with(&id, "part", part.clone());
                events.push(self.event("response.content_part.done", body));
                message_item(&id, status, &[part])
            }
            Open::Call { id, call_id, name, arguments } => {
                let body =
                    json!({"item_id": id, "output_index": index, "name": name, "arguments": arguments});
                events.push(self.event("response.function_call_arguments.done", body));
                self.head.call_item(&id, status, &call_id, &name, &arguments)
            }
        };
        events.push(self.event("response.output_item.done", json!({"output_index": index, "item": item})));
        self.items.push(item);
    }

    fn piece(&mut self, delta: Delta, events: &mut Vec<Event>) {
        match delta {
            Delta::Reasoning(more) => {
                if !matches!(self.open, Some(Open::Reasoning { .. })) {
                    let id = new_id("rs");
                    let item = reasoning_item(&id, "in_progress", "");
                    let part = json!({"type": "reasoning_text", "text": ""});
                    self.begin_item(Open::Reasoning { id, text: String::new() }, &item, Some(&part), events);
                }
                let index = self.items.len();
                if let Some(Open::Reasoning { id, text }) = &mut self.open {
                    text.push_str(&more);
                    let body =
                        json!({"item_id": id, "output_index": index, "content_index": 0, "delta": more});
                    events.push(self.event("response.reasoning_text.delta", body));
                }
            }
            Delta::Content(more) => {
                if !matches!(self.open, Some(Open::Message { .. })) {
                    let id = new_id("msg");
                    let item = message_item(&id, "in_progress", &[]);
                    let part = text_part("", Vec::new());
                    let open = Open::Message { id, text: String::new(), logprobs: Vec::new() };
                    self.begin_item(open, &item, Some(&part), events);
                }
                let index = self.items.len();
                let new = std::mem::take(&mut self.logprobs);
                if let Some(Open::Message { id, text, logprobs }) = &mut self.open {
                    text.push_str(&more);
                    logprobs.extend(new.iter().cloned());
                    let body = json!({"item_id": id, "output_index": index, "content_index": 0, "delta": more,
                        "logprobs": logprob_entries(new)});
                    events.push(self.event("response.output_text.delta", body));
                }
            }
            Delta::CallStart { id: call_id, name, .. } => {
                let id = new_id("fc");
                let item = self.head.call_item(&id, "in_progress", &call_id, &name, "");
                let open = Open::Call { id, call_id, name, arguments: String::new() };
                self.begin_item(open, &item, None, events);
            }
            Delta::CallArguments { json: more, .. } => {
                let index = self.items.len();
                if let Some(Open::Call { id, arguments, .. }) = &mut self.open {
                    arguments.push_str(&more);
                    let body = json!({"item_id": id, "output_index": index, "delta": more});
                    events.push(self.event("response.function_call_arguments.delta", body));
                }
            }
            Delta::CallEnd { .. } => self.close("completed", events),
            Delta::CallBroken { .. } => self.close("incomplete", events),
        }
    }
}

impl Adapter for ResponseStream {
    fn begin(&mut self) -> Vec<Event> {
        let object = self.head.object("in_progress", &[], None);
        let created = self.event("response.created", json!({"response": object}));
        vec![created, self.event("response.in_progress", json!({"response": object}))]
    }

    fn output(&mut self, _choice: usize, output: Output) -> Vec<Event> {
        if self.head.echo.logprobs {
            self.logprobs.extend(output.content_logprobs);
        }
        let mut events = Vec::new();
        output.deltas.into_iter().for_each(|delta| self.piece(delta, &mut events));
        events
    }

    fn finished(&mut self, _choice: usize, outcome: &Outcome) -> Vec<Event> {
        let mut events = Vec::new();
        self.close(status(outcome), &mut events);
        self.end = Some(outcome.clone());
        events
    }

    fn end(&mut self) -> Vec<Event> {
        let Some(outcome) = self.end.take() else { return Vec::new() };
        let status = status(&outcome);
        let response = self.head.object(status, &self.items, Some(&outcome));
        vec![self.event(&format!("response.{status}"), json!({"response": response}))]
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Event> {
        let mut response = self.head.object("failed", &self.items, None);
        response["error"] = json!({"code": error.code.unwrap_or("server_error"), "message": error.message});
        vec![self.event("response.failed", json!({"response": response}))]
    }
}
