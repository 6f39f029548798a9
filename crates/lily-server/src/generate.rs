//! Text in, text out: the layer between the engine, which knows only token ids, and the server and command line,
//! which know only text.
//!
//! messages → rendered prompt ids → engine → detokeniser → stop strings → reasoning split → tool calls.
//!
//! All of it after the engine runs inside the engine's sink, on the engine thread: some microseconds a token, and a
//! stop string ends the generation at the very token that completed it.

use std::{sync::Arc, time::Instant};

use lily_engine::{
    CancelFlag, Engine, EngineError, Event, FinishReason, GenerateRequest, SamplingParams, Stats,
    TokenLogprobs,
};
use lily_text::{
    ChatTemplate, Detokenizer, Piece, ReasoningSplitter, RenderRequest, StopMatcher, TextError, TextModel,
    Tokenizer, prompt_starts_in_reasoning,
};

use crate::marks;
use crate::tools::{Span, ToolCall, ToolScanner, ToolSet};

/// A prompt ready for the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// The rendered text.
    pub text: String,
    /// Its token ids.
    pub ids: Vec<u32>,
}

/// What to generate after a prompt.
#[derive(Debug, Clone, Default)]
pub struct GenerateOptions {
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Most tokens to generate; `None`: up to the context limit.
    pub max_tokens: Option<usize>,
    /// Strings that end the generation; they are matched on everything the model writes and never shown.
    pub stop: Vec<String>,
    /// `Some(n)`: report every token's log-probability and its `n` most likely rivals.
    pub logprobs: Option<usize>,
    /// Functions the model may call; calls to them are taken out of the text.
    pub tools: ToolSet,
    /// Stop after this many calls.
    pub max_tool_calls: Option<usize>,
    /// Give up after this moment.
    pub deadline: Option<Instant>,
}

/// A stretch of what the model said.
#[derive(Debug, Clone, PartialEq)]
pub enum Delta {
    /// The answer.
    Content(String),
    /// The thinking before it.
    Reasoning(String),
    /// A whole call of a declared function.
    ToolCall(ToolCall),
}

/// A token with its log-probability, as text and as bytes (a token may be part of a character).
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    /// The chosen token.
    pub token: TokenText,
    /// Natural log of its probability.
    pub logprob: f32,
    /// The most likely tokens, most likely first.
    pub top: Vec<(TokenText, f32)>,
}

/// A token's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenText(pub Vec<u8>);

/// What became certain with a token.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Output {
    /// Text and calls, in order.
    pub deltas: Vec<Delta>,
    /// Log-probabilities of the tokens that made the answer (including those of tool calls).
    pub content_logprobs: Vec<TokenLogprob>,
    /// Log-probabilities of the tokens that made the reasoning.
    pub reasoning_logprobs: Vec<TokenLogprob>,
}

impl Output {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.deltas.is_empty() && self.content_logprobs.is_empty() && self.reasoning_logprobs.is_empty()
    }
}

/// Why the answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finish {
    /// The model ended its turn.
    EndOfTurn,
    /// A stop string was written.
    StopString(String),
    /// `max_tokens` or the context limit.
    Length,
    /// The model called tools.
    ToolCalls,
    /// Cancelled.
    Cancelled,
    /// The deadline passed.
    Deadline,
}

/// The end of a generation.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Why.
    pub finish: Finish,
    /// Counts and times.
    pub stats: Stats,
    /// Tokens spent on reasoning, of `stats.completion_tokens`.
    pub reasoning_tokens: usize,
}

/// What a generation tells its caller, in order: any number of `Prefill`, any number of `Output`, then one
/// `Finished` or `Failed`.
#[derive(Debug)]
pub enum Update {
    /// Prompt tokens processed, of how many.
    Prefill {
        /// Processed.
        done: usize,
        /// In the prompt.
        total: usize,
    },
    /// More of the answer.
    Output(Output),
    /// The end.
    Finished(Outcome),
    /// The end, by an error.
    Failed(EngineError),
}

/// A loaded model that speaks text. Cheap to clone.
#[derive(Clone)]
pub struct TextEngine {
    engine: Engine,
    text: Arc<TextModel>,
    sampling: Arc<SamplingParams>,
    stop_tokens: Arc<[u32]>,
}

impl TextEngine {
    /// Joins an engine with its model's tokenizer and template. `sampling` are the checkpoint's defaults,
    /// `stop_tokens` the ids that end a turn.
    pub fn new(engine: Engine, text: TextModel, sampling: SamplingParams, stop_tokens: Vec<u32>) -> Self {
        Self { engine, text: Arc::new(text), sampling: Arc::new(sampling), stop_tokens: stop_tokens.into() }
    }

    /// The engine below.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The model's chat template, if it has one.
    pub fn template(&self) -> Option<&Arc<ChatTemplate>> {
        self.text.template.as_ref()
    }

    /// The checkpoint's sampling defaults.
    pub fn default_sampling(&self) -> &SamplingParams {
        &self.sampling
    }

    /// Ids below this may be sampled and biased.
    pub fn vocab(&self) -> usize {
        self.engine.options().valid_vocab.unwrap_or(self.engine.config().vocab_size)
    }

    /// Normalises and renders messages through the checkpoint's chat template.
    pub fn prompt(&self, request: &RenderRequest) -> Result<Prompt, TextError> {
        let (text, ids) = self.text.render_ids(request, true)?;
        Ok(Prompt { text, ids })
    }

    /// Queues a generation. `sink` runs on the engine thread and must not block; when it returns `false` the
    /// generation is cancelled.
    pub fn generate(
        &self,
        prompt: Prompt,
        options: GenerateOptions,
        cancel: CancelFlag,
        mut sink: impl FnMut(Update) -> bool + Send + 'static,
    ) -> Result<(), EngineError> {
        let tokenizer = self.text.tokenizer.clone();
        let mut decoder = Decoder::new(tokenizer.clone(), &options, prompt_starts_in_reasoning(&prompt.text));
        let request = GenerateRequest {
            marks: marks::marks(&tokenizer, &prompt.ids),
            prompt: prompt.ids,
            sampling: options.sampling,
            max_tokens: options.max_tokens,
            stop_tokens: self.stop_tokens.to_vec(),
            logprobs: options.logprobs,
            deadline: options.deadline,
        };
        let handle = move |event| match event {
            Event::Prefill { done, total } => sink(Update::Prefill { done, total }),
            Event::Token { id, logprobs } => {
                let output = decoder.token(id, logprobs);
                let wanted = output.is_empty() || sink(Update::Output(output));
                wanted && decoder.finish.is_none()
            }
            Event::Finished { reason, stats } => {
                let output = decoder.end();
                if !output.is_empty() {
                    sink(Update::Output(output));
                }
                let finish = decoder.finish(reason);
                sink(Update::Finished(Outcome { finish, stats, reasoning_tokens: decoder.reasoning_tokens }))
            }
            Event::Failed(error) => sink(Update::Failed(error)),
        };
        self.engine.submit(request, cancel, Box::new(handle))
    }
}

/// Turns a generation's tokens into deltas.
struct Decoder {
    tokenizer: Arc<Tokenizer>,
    /// Taken at the end.
    detokenizer: Option<Detokenizer>,
    stops: StopMatcher,
    splitter: ReasoningSplitter,
    scanner: Option<ToolScanner>,
    max_tool_calls: usize,
    in_reasoning: bool,
    reasoning_tokens: usize,
    /// Tokens whose text is not out yet.
    pending: Vec<TokenLogprob>,
    /// Set when the text itself ended the generation.
    finish: Option<Finish>,
}

impl Decoder {
    fn new(tokenizer: Arc<Tokenizer>, options: &GenerateOptions, in_reasoning: bool) -> Self {
        Self {
            detokenizer: Some(Detokenizer::new(tokenizer.clone(), true)),
            tokenizer,
            stops: StopMatcher::new(options.stop.clone()),
            splitter: ReasoningSplitter::new(in_reasoning),
            scanner: (!options.tools.is_empty()).then(|| ToolScanner::new(options.tools.clone())),
            max_tool_calls: options.max_tool_calls.unwrap_or(usize::MAX),
            in_reasoning,
            reasoning_tokens: 0,
            pending: Vec::new(),
            finish: None,
        }
    }

    fn token(&mut self, id: u32, logprobs: Option<TokenLogprobs>) -> Output {
        if self.finish.is_some() {
            return Output::default();
        }
        self.reasoning_tokens += usize::from(self.in_reasoning);
        if let Some(logprobs) = logprobs {
            let entry = TokenLogprob {
                token: self.token_text(id),
                logprob: logprobs.logprob,
                top: logprobs.top.iter().map(|&(id, logprob)| (self.token_text(id), logprob)).collect(),
            };
            self.pending.push(entry);
        }
        let Some(detokenizer) = &mut self.detokenizer else { return Output::default() };
        let text = detokenizer.push(id);
        self.text(&text, false)
    }

    /// What was held back until the end.
    fn end(&mut self) -> Output {
        if self.finish.is_some() {
            return Output::default();
        }
        let text = self.detokenizer.take().map_or_else(String::new, Detokenizer::finish);
        self.text(&text, true)
    }

    fn text(&mut self, text: &str, last: bool) -> Output {
        let outcome = self.stops.push(text);
        let mut text = outcome.text;
        let stopped = outcome.stopped.is_some();
        if let Some(stop) = outcome.stopped {
            self.finish = Some(Finish::StopString(stop));
        } else if last {
            text.push_str(&self.stops.finish());
        }
        let mut pieces = self.splitter.push(&text);
        if last || stopped {
            pieces.extend(self.splitter.finish());
        }
        let mut output = Output::default();
        let (mut reasoning_bytes, mut content_bytes) = (0, 0);
        for piece in pieces {
            match piece {
                Piece::Reasoning(text) => {
                    self.in_reasoning = true;
                    reasoning_bytes += text.len();
                    push_text(&mut output.deltas, Delta::Reasoning(text));
                }
                Piece::Content(text) => {
                    self.in_reasoning = false;
                    content_bytes += text.len();
                    self.content(text, &mut output.deltas);
                }
            }
        }
        if last || stopped {
            let spans = self.scanner.as_mut().map(ToolScanner::finish).unwrap_or_default();
            self.spans(spans, &mut output.deltas);
        }
        if content_bytes > 0 {
            output.content_logprobs = self.take_pending(content_bytes, stopped);
        }
        if reasoning_bytes > 0 {
            output.reasoning_logprobs = self.take_pending(reasoning_bytes, stopped);
        }
        if content_bytes > 0 {
            // What is left made neither: `</think>` and the blanks after it.
            self.pending.clear();
        }
        output
    }

    fn content(&mut self, text: String, deltas: &mut Vec<Delta>) {
        match &mut self.scanner {
            None => push_text(deltas, Delta::Content(text)),
            Some(scanner) => {
                let spans = scanner.push(&text);
                self.spans(spans, deltas);
            }
        }
    }

    fn spans(&mut self, spans: Vec<Span>, deltas: &mut Vec<Delta>) {
        for span in spans {
            match span {
                Span::Text(text) => push_text(deltas, Delta::Content(text)),
                Span::Call(call) => deltas.push(Delta::ToolCall(call)),
            }
            let calls = deltas.iter().filter(|d| matches!(d, Delta::ToolCall(_))).count();
            if calls > 0 && self.scanner.as_ref().is_some_and(|s| s.calls() >= self.max_tool_calls) {
                self.finish.get_or_insert(Finish::ToolCalls);
                break;
            }
        }
    }

    /// The pending tokens that made `bytes` bytes of text: the last ones that are long enough, since tokens before
    /// them left no text (tags and blanks around them). When a stop string cut the text, its tokens come last
    /// instead, and the first ones made the text.
    fn take_pending(&mut self, bytes: usize, cut: bool) -> Vec<TokenLogprob> {
        let mut covered = 0;
        let mut enough = |entry: &TokenLogprob| {
            let more = covered < bytes;
            covered += entry.token.0.len();
            more
        };
        if cut {
            let n = self.pending.iter().take_while(|e| enough(e)).count();
            let taken = self.pending.drain(..n).collect();
            self.pending.clear();
            taken
        } else {
            let n = self.pending.iter().rev().take_while(|e| enough(e)).count();
            self.pending.split_off(self.pending.len() - n)
        }
    }

    fn token_text(&self, id: u32) -> TokenText {
        TokenText(self.tokenizer.token_bytes(id).unwrap_or_default())
    }

    fn finish(&self, reason: FinishReason) -> Finish {
        if let Some(finish) = &self.finish {
            return finish.clone();
        }
        match reason {
            FinishReason::Stop if self.scanner.as_ref().is_some_and(|s| s.calls() > 0) => Finish::ToolCalls,
            FinishReason::Stop => Finish::EndOfTurn,
            FinishReason::Length => Finish::Length,
            FinishReason::Cancelled => Finish::Cancelled,
            FinishReason::Deadline => Finish::Deadline,
        }
    }
}

/// Appends text, joined to the last delta when that is of the same kind.
fn push_text(deltas: &mut Vec<Delta>, delta: Delta) {
    match (deltas.last_mut(), delta) {
        (_, Delta::Content(text) | Delta::Reasoning(text)) if text.is_empty() => {}
        (Some(Delta::Content(a)), Delta::Content(b)) | (Some(Delta::Reasoning(a)), Delta::Reasoning(b)) => {
            a.push_str(&b);
        }
        (_, delta) => deltas.push(delta),
    }
}
