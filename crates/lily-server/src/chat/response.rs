//! What `POST /v1/chat/completions` answers: OpenAI's `chat.completion` and `chat.completion.chunk`, plus
//! `reasoning_content` and llama.cpp's `timings`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lily_engine::Stats;
use serde::Serialize;
use serde_json::Value;

use crate::{
    generate::{Delta, Finish, Outcome, TokenLogprob, TokenText},
    tools::ToolCall,
};

/// Fields every answer and chunk of one request begins with.
#[derive(Debug, Clone, Serialize)]
pub struct Head {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    system_fingerprint: &'static str,
}

impl Head {
    /// A head with a new id and the present time. `object` is `chat.completion` or `chat.completion.chunk`.
    pub fn new(object: &'static str, model: &str) -> Self {
        Self {
            id: format!("chatcmpl-{:032x}", rand::random::<u128>()),
            object,
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            model: model.to_string(),
            system_fingerprint: concat!("lily-", env!("CARGO_PKG_VERSION")),
        }
    }
}

/// A whole answer.
#[derive(Debug, Serialize)]
pub struct Completion {
    /// Id, time, model.
    #[serde(flatten)]
    pub head: Head,
    /// Always one.
    pub choices: [Choice; 1],
    /// Token counts.
    pub usage: Usage,
    /// Times.
    pub timings: Timings,
}

/// The one choice of a whole answer.
#[derive(Debug, Serialize)]
pub struct Choice {
    /// 0.
    pub index: u32,
    /// What the model said.
    pub message: Message,
    /// When asked for.
    pub logprobs: Option<Logprobs>,
    /// `stop`, `length` or `tool_calls`.
    pub finish_reason: &'static str,
}

/// The assistant's message.
#[derive(Debug, Default, Serialize)]
pub struct Message {
    role: &'static str,
    /// `null` when the model only called tools.
    content: Option<String>,
    refusal: Option<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallBody>,
}

impl Message {
    /// An empty message of the assistant.
    pub fn new() -> Self {
        Self { role: "assistant", ..Self::default() }
    }

    /// Appends what came.
    pub fn push(&mut self, delta: Delta) {
        match delta {
            Delta::Content(text) => self.content.get_or_insert_default().push_str(&text),
            Delta::Reasoning(text) => self.reasoning_content.get_or_insert_default().push_str(&text),
            Delta::ToolCall(call) => self.tool_calls.push(CallBody::new(&call)),
        }
    }

    /// Content is a string, if an empty one, unless there are calls instead.
    pub fn finish(mut self) -> Self {
        if self.tool_calls.is_empty() {
            self.content.get_or_insert_default();
        }
        self
    }
}

/// A tool call as a client sees it.
#[derive(Debug, Clone, Serialize)]
pub struct CallBody {
    /// Place among the calls; only in chunks.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    id: String,
    r#type: &'static str,
    function: CallFunction,
}

#[derive(Debug, Clone, Serialize)]
struct CallFunction {
    name: String,
    /// A JSON object, as text.
    arguments: String,
}

impl CallBody {
    fn new(call: &ToolCall) -> Self {
        let arguments = Value::Object(call.arguments.clone()).to_string();
        Self {
            index: None,
            id: format!("call_{:024x}", rand::random::<u128>() >> 32),
            r#type: "function",
            function: CallFunction { name: call.name.clone(), arguments },
        }
    }
}

/// One server-sent event of a stream.
#[derive(Debug, Serialize)]
pub struct Chunk {
    /// Id, time, model.
    #[serde(flatten)]
    pub head: Head,
    /// One choice; none in the chunk that only carries the usage.
    pub choices: Vec<ChunkChoice>,
    /// `null` in all chunks but the last one of a stream with `include_usage`; absent in other streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<Usage>>,
    /// Times, with the finish reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
}

/// The choice of a chunk.
#[derive(Debug, Serialize)]
pub struct ChunkChoice {
    /// 0.
    pub index: u32,
    /// What was added.
    pub delta: DeltaBody,
    /// When asked for.
    pub logprobs: Option<Logprobs>,
    /// In the last choice: `stop`, `length` or `tool_calls`.
    pub finish_reason: Option<&'static str>,
}

/// What a chunk adds to the message.
#[derive(Debug, Default, Serialize)]
pub struct DeltaBody {
    /// In the first chunk: `assistant`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// More of the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// More of the reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// A whole call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<[CallBody; 1]>,
}

impl DeltaBody {
    /// The body of a delta; `calls` is the number of calls before it.
    pub fn new(delta: Delta, calls: usize) -> Self {
        match delta {
            Delta::Content(text) => Self { content: Some(text), ..Self::default() },
            Delta::Reasoning(text) => Self { reasoning_content: Some(text), ..Self::default() },
            Delta::ToolCall(call) => {
                let body = CallBody { index: Some(calls), ..CallBody::new(&call) };
                Self { tool_calls: Some([body]), ..Self::default() }
            }
        }
    }
}

/// Log-probabilities of a choice.
#[derive(Debug, Default, Serialize)]
pub struct Logprobs {
    /// Of the answer's tokens.
    pub content: Vec<LogprobEntry>,
    /// Of the reasoning's tokens.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasoning_content: Vec<LogprobEntry>,
    refusal: Option<()>,
}

impl Logprobs {
    /// Whether no token is in it.
    pub fn is_empty(&self) -> bool {
        self.content.is_empty() && self.reasoning_content.is_empty()
    }

    /// Appends tokens.
    pub fn extend(&mut self, content: Vec<TokenLogprob>, reasoning: Vec<TokenLogprob>) {
        self.content.extend(content.into_iter().map(LogprobEntry::new));
        self.reasoning_content.extend(reasoning.into_iter().map(LogprobEntry::new));
    }
}

/// A token's log-probability and its rivals'.
#[derive(Debug, Serialize)]
pub struct LogprobEntry {
    #[serde(flatten)]
    chosen: TokenEntry,
    top_logprobs: Vec<TokenEntry>,
}

/// A token: its text (with U+FFFD where it is not a whole character), its bytes, its log-probability.
#[derive(Debug, Serialize)]
struct TokenEntry {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl TokenEntry {
    fn new(token: TokenText, logprob: f32) -> Self {
        // OpenAI's floor for a probability of zero, which JSON cannot write as a logarithm.
        Self {
            token: String::from_utf8_lossy(&token.0).into_owned(),
            logprob: logprob.max(-9999.0),
            bytes: token.0,
        }
    }
}

impl LogprobEntry {
    fn new(entry: TokenLogprob) -> Self {
        Self {
            chosen: TokenEntry::new(entry.token, entry.logprob),
            top_logprobs: entry.top.into_iter().map(|(t, l)| TokenEntry::new(t, l)).collect(),
        }
    }
}

/// Token counts.
#[derive(Debug, Clone, Serialize)]
pub struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: CompletionDetails,
}

#[derive(Debug, Clone, Serialize)]
struct PromptDetails {
    cached_tokens: usize,
}

#[derive(Debug, Clone, Serialize)]
struct CompletionDetails {
    reasoning_tokens: usize,
}

impl Usage {
    /// The counts of a finished generation.
    pub fn new(outcome: &Outcome) -> Self {
        let stats = &outcome.stats;
        Self {
            prompt_tokens: stats.prompt_tokens,
            completion_tokens: stats.completion_tokens,
            total_tokens: stats.prompt_tokens + stats.completion_tokens,
            prompt_tokens_details: PromptDetails { cached_tokens: stats.cached_tokens },
            completion_tokens_details: CompletionDetails { reasoning_tokens: outcome.reasoning_tokens },
        }
    }
}

/// Times of a generation, with llama.cpp's field names. `prompt_n` counts the tokens computed, `cache_n` those whose
/// state was reused.
#[derive(Debug, Clone, Serialize)]
pub struct Timings {
    cache_n: usize,
    queued_ms: f64,
    prompt_n: usize,
    prompt_ms: f64,
    prompt_per_token_ms: f64,
    prompt_per_second: f64,
    predicted_n: usize,
    predicted_ms: f64,
    predicted_per_token_ms: f64,
    predicted_per_second: f64,
}

impl Timings {
    /// The times of a finished generation.
    pub fn new(stats: &Stats) -> Self {
        let computed = stats.prompt_tokens.saturating_sub(stats.cached_tokens);
        let (prompt_per_token_ms, prompt_per_second) = rates(computed, stats.prefill);
        let (predicted_per_token_ms, predicted_per_second) = rates(stats.completion_tokens, stats.decode);
        Self {
            cache_n: stats.cached_tokens,
            queued_ms: milliseconds(stats.queued),
            prompt_n: computed,
            prompt_ms: milliseconds(stats.prefill),
            prompt_per_token_ms,
            prompt_per_second,
            predicted_n: stats.completion_tokens,
            predicted_ms: milliseconds(stats.decode),
            predicted_per_token_ms,
            predicted_per_second,
        }
    }
}

/// Milliseconds with microsecond precision.
fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// (milliseconds a token, tokens a second); 0 where there is nothing to divide by.
#[allow(clippy::cast_precision_loss)]
fn rates(tokens: usize, time: Duration) -> (f64, f64) {
    let (tokens, seconds) = (tokens as f64, time.as_secs_f64());
    let ratio = |a: f64, b: f64| if b > 0.0 { (a / b * 1e3).round() / 1e3 } else { 0.0 };
    (ratio(seconds * 1e3, tokens), ratio(tokens, seconds))
}

/// OpenAI's word for why an answer ended; `None` for ends that are errors.
pub fn finish_reason(finish: &Finish) -> Option<&'static str> {
    match finish {
        Finish::EndOfTurn | Finish::StopString(_) => Some("stop"),
        Finish::Length => Some("length"),
        Finish::ToolCalls => Some("tool_calls"),
        Finish::Cancelled | Finish::Deadline => None,
    }
}
