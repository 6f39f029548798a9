//! What `POST /v1/chat/completions` answers: OpenAI's `chat.completion` and `chat.completion.chunk`, plus
//! `reasoning_content` and llama.cpp's `timings`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lily_engine::Stats;
use serde::Serialize;

use crate::{
    generate::{Delta, Finish, Outcome, TokenLogprob, TokenText, TurnCall},
    job::Answer,
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
        Self::with_prefix("chatcmpl", object, model)
    }

    /// [`new`](Self::new), with an id of another kind.
    pub fn with_prefix(prefix: &str, object: &'static str, model: &str) -> Self {
        Self {
            id: format!("{prefix}-{:032x}", rand::random::<u128>()),
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
    /// As many as were asked for.
    pub choices: Vec<Choice>,
    /// Token counts.
    pub usage: Usage,
    /// Times.
    pub timings: Option<Timings>,
}

impl Completion {
    /// The body for these answers to one prompt.
    pub fn new(model: &str, answers: Vec<Answer>, logprobs: bool) -> Self {
        let usage = Usage::of(answers.iter().map(|a| &a.outcome));
        // The choices run one beside the other; the times are the first one's.
        let timings = answers.first().map(|a| Timings::new(&a.outcome.stats));
        let choices =
            answers.into_iter().enumerate().map(|(index, answer)| Choice::new(index, answer, logprobs));
        Self { head: Head::new("chat.completion", model), choices: choices.collect(), usage, timings }
    }
}

/// A choice of a whole answer.
#[derive(Debug, Serialize)]
pub struct Choice {
    /// Its place, from 0.
    pub index: usize,
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

impl Choice {
    fn new(index: usize, mut answer: Answer, logprobs: bool) -> Self {
        let entries =
            (std::mem::take(&mut answer.content_logprobs), std::mem::take(&mut answer.reasoning_logprobs));
        let tool_calls: Vec<CallBody> = answer.calls().map(CallBody::whole).collect();
        let content = answer.content();
        Self {
            index,
            message: Message {
                role: "assistant",
                // Content is a string, if an empty one, unless there are calls instead.
                content: if tool_calls.is_empty() { Some(content.unwrap_or_default()) } else { content },
                refusal: None,
                reasoning_content: answer.reasoning(),
                tool_calls,
            },
            logprobs: logprobs.then(|| {
                let mut logprobs = Logprobs::default();
                logprobs.extend(entries.0, entries.1);
                logprobs
            }),
            finish_reason: finish_reason(&answer.outcome.finish),
        }
    }
}

/// A tool call as a client sees it: whole, or a piece of one in a chunk.
#[derive(Debug, Clone, Serialize)]
pub struct CallBody {
    /// Place among the calls; only in chunks.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    function: CallFunction,
}

#[derive(Debug, Clone, Serialize)]
struct CallFunction {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// A JSON object, as text.
    arguments: String,
}

impl CallBody {
    fn whole(call: &TurnCall) -> Self {
        Self {
            index: None,
            id: Some(call.id.clone()),
            r#type: Some("function"),
            function: CallFunction { name: Some(call.name.clone()), arguments: call.arguments.clone() },
        }
    }

    fn begin(index: usize, id: String, name: String) -> Self {
        Self {
            index: Some(index),
            id: Some(id),
            r#type: Some("function"),
            function: CallFunction { name: Some(name), arguments: String::new() },
        }
    }

    fn more(index: usize, arguments: String) -> Self {
        Self { index: Some(index), id: None, r#type: None, function: CallFunction { name: None, arguments } }
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
    /// How much of the prompt is processed; in chunks that carry nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_progress: Option<Progress>,
}

/// How much of the prompt is processed, with llama.cpp's field names.
#[derive(Debug, Clone, Serialize)]
pub struct Progress {
    /// Prompt tokens.
    pub total: usize,
    /// Those whose state was reused.
    pub cache: usize,
    /// Processed, reused ones included.
    pub processed: usize,
    /// Since the request was taken.
    pub time_ms: u64,
}

/// The choice of a chunk.
#[derive(Debug, Serialize)]
pub struct ChunkChoice {
    /// Its place, from 0.
    pub index: usize,
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
    /// A call that begins, or more of its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<[CallBody; 1]>,
}

impl DeltaBody {
    /// The body of a delta; `None` for ends of calls, which the format does not mark.
    pub fn new(delta: Delta) -> Option<Self> {
        let call = |body| Some(Self { tool_calls: Some([body]), ..Self::default() });
        match delta {
            Delta::Content(text) => Some(Self { content: Some(text), ..Self::default() }),
            Delta::Reasoning(text) => Some(Self { reasoning_content: Some(text), ..Self::default() }),
            Delta::CallStart { index, id, name } => call(CallBody::begin(index, id, name)),
            Delta::CallArguments { index, json } => call(CallBody::more(index, json)),
            Delta::CallEnd { .. } | Delta::CallBroken { .. } => None,
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

/// Log-probabilities as entries.
pub fn logprob_entries(list: Vec<TokenLogprob>) -> Vec<LogprobEntry> {
    list.into_iter().map(LogprobEntry::new).collect()
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
    /// The counts of finished generations from one prompt.
    pub fn of<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> Self {
        let (mut prompt, mut cached, mut completion, mut reasoning) = (0, 0, 0, 0);
        for outcome in outcomes {
            prompt = outcome.stats.prompt_tokens;
            cached = cached.max(outcome.stats.cached_tokens);
            completion += outcome.stats.completion_tokens;
            reasoning += outcome.reasoning_tokens;
        }
        Self {
            prompt_tokens: prompt,
            completion_tokens: completion,
            total_tokens: prompt + completion,
            prompt_tokens_details: PromptDetails { cached_tokens: cached },
            completion_tokens_details: CompletionDetails { reasoning_tokens: reasoning },
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

/// OpenAI's word for why an answer ended. (Ends that are errors do not come here.)
pub fn finish_reason(finish: &Finish) -> &'static str {
    match finish {
        Finish::EndOfTurn | Finish::StopString(_) => "stop",
        Finish::Length | Finish::Cancelled | Finish::Deadline => "length",
        Finish::ToolCalls => "tool_calls",
    }
}
