//! A cloud answer in OpenAI's form: whole, or as server-sent events. Ids and times are this server's own.

use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    Json,
    http::{HeaderValue, StatusCode},
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
};
use futures_core::Stream;
use lily_hybrid::{Answer, CloudEvent, Ending, Usage};
use serde_json::{Map, Value, json};
use tokio::sync::OwnedSemaphorePermit;

use crate::error::ApiError;

/// Silence after which a comment is sent.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// The members that every chunk of an answer begins with.
fn head(object: &str, model: &str) -> Map<String, Value> {
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let mut head = Map::new();
    head.insert("id".into(), format!("chatcmpl-{:032x}", rand::random::<u128>()).into());
    head.insert("object".into(), object.into());
    head.insert("created".into(), created.into());
    head.insert("model".into(), model.into());
    head
}

fn usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "route": "cloud",
    })
}

/// What the gate did to the answer.
fn privacy(ending: &Ending) -> Value {
    json!({"restored": ending.restored, "unrestored": ending.unrestored, "redacted": ending.redacted})
}

fn failed(code: &'static str, message: String) -> ApiError {
    ApiError { code: Some(code), ..ApiError::new(StatusCode::BAD_GATEWAY, "server_error", message) }
}

#[derive(Default)]
struct Message {
    content: Option<String>,
    reasoning: Option<String>,
    refusal: Option<String>,
    calls: BTreeMap<usize, (String, String, String)>,
    finish: Option<&'static str>,
}

impl Message {
    fn into_json(self, index: usize) -> Value {
        let mut message = json!({"role": "assistant", "content": self.content, "refusal": self.refusal});
        if let Some(reasoning) = self.reasoning {
            message["reasoning_content"] = reasoning.into();
        }
        if !self.calls.is_empty() {
            let calls = self.calls.into_values().map(|(id, name, arguments)| {
                json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
            });
            message["tool_calls"] = calls.collect();
        } else if message["content"].is_null() {
            message["content"] = "".into();
        }
        json!({"index": index, "message": message, "logprobs": null, "finish_reason": self.finish.unwrap_or("stop")})
    }
}

/// Waits for a whole answer. A part of one is an error.
pub(super) async fn collect(mut answer: Answer, model: &str) -> Result<Json<Value>, ApiError> {
    let mut choices: BTreeMap<usize, Message> = BTreeMap::new();
    while let Some(event) = answer.events.recv().await {
        match event {
            CloudEvent::Content { choice, text } => {
                choices.entry(choice).or_default().content.get_or_insert_default().push_str(&text);
            }
            CloudEvent::Reasoning { choice, text } => {
                choices.entry(choice).or_default().reasoning.get_or_insert_default().push_str(&text);
            }
            CloudEvent::Refusal { choice, text } => {
                choices.entry(choice).or_default().refusal.get_or_insert_default().push_str(&text);
            }
            CloudEvent::ToolCall { choice, index, id, name } => {
                choices.entry(choice).or_default().calls.insert(index, (id, name, String::new()));
            }
            CloudEvent::Arguments { choice, index, text } => {
                if let Some((_, _, arguments)) = choices.entry(choice).or_default().calls.get_mut(&index) {
                    arguments.push_str(&text);
                }
            }
            CloudEvent::Finish { choice, reason } => choices.entry(choice).or_default().finish = Some(reason),
            CloudEvent::Failed { code, message } => return Err(failed(code, message)),
            CloudEvent::End(ending) => {
                let mut body = head("chat.completion", model);
                let choices: Vec<Value> = choices.into_iter().map(|(i, m)| m.into_json(i)).collect();
                body.insert("choices".into(), choices.into());
                body.insert("usage".into(), usage(&ending.usage.unwrap_or_default()));
                body.insert("privacy".into(), privacy(&ending));
                return Ok(Json(Value::Object(body)));
            }
        }
    }
    Err(failed("upstream_cut", "the answer ended without a word".into()))
}

/// An answer as server-sent events.
pub(super) fn stream(
    answer: Answer,
    model: &str,
    include_usage: bool,
    place: OwnedSemaphorePermit,
) -> Response {
    let events = Events {
        answer,
        head: head("chat.completion.chunk", model),
        include_usage,
        begun: Vec::new(),
        ready: VecDeque::new(),
        done: false,
        _place: place,
    };
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE).text("keep-alive");
    let mut response = Sse::new(events).keep_alive(keep_alive).into_response();
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Dropping it ends the request to the provider.
struct Events {
    answer: Answer,
    head: Map<String, Value>,
    include_usage: bool,
    /// Answers that had their first chunk, with the role.
    begun: Vec<usize>,
    ready: VecDeque<Event>,
    done: bool,
    _place: OwnedSemaphorePermit,
}

impl Events {
    fn take(&mut self, event: CloudEvent) {
        match event {
            CloudEvent::Content { choice, text } => self.delta(choice, json!({"content": text})),
            CloudEvent::Reasoning { choice, text } => self.delta(choice, json!({"reasoning_content": text})),
            CloudEvent::Refusal { choice, text } => self.delta(choice, json!({"refusal": text})),
            CloudEvent::ToolCall { choice, index, id, name } => {
                let function = json!({"name": name, "arguments": ""});
                let call = json!({"index": index, "id": id, "type": "function", "function": function});
                self.delta(choice, json!({"tool_calls": [call]}));
            }
            CloudEvent::Arguments { choice, index, text } => {
                self.delta(
                    choice,
                    json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]}),
                );
            }
            CloudEvent::Finish { choice, reason } => self.choice(choice, json!({}), Some(reason)),
            CloudEvent::End(ending) => {
                let mut last = self.head.clone();
                last.insert("choices".into(), json!([]));
                if let Some(counts) = ending.usage.as_ref().filter(|_| self.include_usage) {
                    last.insert("usage".into(), usage(counts));
                }
                last.insert("privacy".into(), privacy(&ending));
                // Clients that did not ask for a last chunk without choices may stumble over one.
                if self.include_usage {
                    self.event(last);
                }
                self.ready.push_back(Event::default().data("[DONE]"));
                self.done = true;
            }
            CloudEvent::Failed { code, message } => self.failed(&failed(code, message)),
        }
    }

    fn failed(&mut self, error: &ApiError) {
        self.ready.push_back(Event::default().event("error").data(error.to_json().to_string()));
        self.done = true;
    }

    fn delta(&mut self, choice: usize, mut delta: Value) {
        if !self.begun.contains(&choice) {
            self.begun.push(choice);
            delta["role"] = "assistant".into();
        }
        self.choice(choice, delta, None);
    }

    fn choice(&mut self, choice: usize, delta: Value, finish: Option<&str>) {
        let mut chunk = self.head.clone();
        let choices = json!([{"index": choice, "delta": delta, "logprobs": null, "finish_reason": finish}]);
        chunk.insert("choices".into(), choices);
        if self.include_usage {
            chunk.insert("usage".into(), Value::Null);
        }
        self.event(chunk);
    }

    fn event(&mut self, chunk: Map<String, Value>) {
        self.ready.push_back(Event::default().data(Value::Object(chunk).to_string()));
    }
}

impl Stream for Events {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if self.done {
                return Poll::Ready(None);
            }
            match self.answer.events.poll_recv(context) {
                Poll::Ready(Some(event)) => self.take(event),
                Poll::Ready(None) => {
                    self.failed(&failed("upstream_cut", "the answer ended without a word".into()))
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}
