//! Text in, text out: the layer between the engine, which knows only token ids, and the server and command line,
//! which know only text.
//!
//! messages → rendered prompt ids → engine → detokeniser → stop strings → reasoning split → tool calls.
//!
//! All of it after the engine runs inside the engine's sink, on the engine thread: some microseconds a token, and a
//! stop string ends the generation at the very token that completed it.

use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

use lily_engine::{
    CancelFlag, ConstraintHandle, Engine, EngineError, Event, GenerateRequest, SamplingParams, Stats,
};
use lily_text::{
    ChatTemplate, RenderRequest, Replay, TextError, TextModel, Tokenizer, ToolSet, prompt_starts_in_reasoning,
};

use crate::{
    decode::Decoder,
    grammar::{GrammarError, Grammars},
    marks,
};

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
    /// Which tokens may come next.
    pub constraint: Option<ConstraintHandle>,
    /// Everything the model writes is content: no reasoning, no calls.
    pub raw: bool,
}

/// A stretch of what the model said.
#[derive(Debug, Clone, PartialEq)]
pub enum Delta {
    /// The answer.
    Content(String),
    /// The thinking before it.
    Reasoning(String),
    /// A call of a declared function begins.
    CallStart {
        /// Place among the answer's calls, from 0.
        index: usize,
        /// Its id, new for every call.
        id: String,
        /// The function.
        name: String,
    },
    /// More of a call's arguments: JSON text, an object when joined.
    CallArguments {
        /// The call.
        index: usize,
        /// The piece.
        json: String,
    },
    /// A call is whole.
    CallEnd {
        /// The call.
        index: usize,
    },
    /// A call that began will not be whole: what the model wrote of it follows as content.
    CallBroken {
        /// The call.
        index: usize,
    },
}

/// A turn that ended in calls, as the model wrote it: what a client sends back is rendered as this, byte for byte.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Turn {
    /// Everything the model wrote.
    pub written: String,
    /// The reasoning in it.
    pub reasoning: String,
    /// The text in it.
    pub content: String,
    /// The calls in it.
    pub calls: Vec<TurnCall>,
}

/// A call as the client was told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnCall {
    /// Its id.
    pub id: String,
    /// The function.
    pub name: String,
    /// A JSON object, as text.
    pub arguments: String,
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
    /// The turn as it was written, when it ended in calls.
    pub turn: Option<Box<Turn>>,
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
    grammars: Arc<OnceLock<Result<Arc<Grammars>, GrammarError>>>,
}

impl TextEngine {
    /// Joins an engine with its model's tokenizer and template. `sampling` are the checkpoint's defaults,
    /// `stop_tokens` the ids that end a turn.
    pub fn new(engine: Engine, text: TextModel, sampling: SamplingParams, stop_tokens: Vec<u32>) -> Self {
        Self {
            engine,
            text: Arc::new(text),
            sampling: Arc::new(sampling),
            stop_tokens: stop_tokens.into(),
            grammars: Arc::default(),
        }
    }

    /// What grammars are compiled against. Made at the first call, which takes about half a second for a vocabulary
    /// of 248,320; call it from a thread that may block.
    pub fn grammars(&self) -> Result<Arc<Grammars>, GrammarError> {
        let make = || Grammars::new(self.tokenizer(), self.vocab(), &self.stop_tokens).map(Arc::new);
        self.grammars.get_or_init(make).clone()
    }

    /// Masks computed for grammars, microseconds they took together, the longest one, and microseconds the engine
    /// waited for them.
    pub fn mask_times(&self) -> [u64; 4] {
        self.grammars.get().and_then(|g| g.as_ref().ok()).map_or([0; 4], |g| g.times().figures())
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.text.tokenizer
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
        self.prompt_replaying(request, &[])
    }

    /// [`prompt`](Self::prompt), with turns of the assistant written as the model wrote them.
    pub fn prompt_replaying(&self, request: &RenderRequest, replays: &[Replay]) -> Result<Prompt, TextError> {
        let (text, ids) = self.text.render_ids_replaying(request, replays)?;
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
        let in_reasoning = prompt_starts_in_reasoning(&prompt.text);
        let mut decoder = Decoder::new(tokenizer.clone(), &options, in_reasoning);
        let request = GenerateRequest {
            marks: marks::marks(&tokenizer, &prompt.ids),
            prompt: prompt.ids,
            sampling: options.sampling,
            max_tokens: options.max_tokens,
            stop_tokens: self.stop_tokens.to_vec(),
            logprobs: options.logprobs,
            deadline: options.deadline,
            constraint: options.constraint,
        };
        let handle = move |event| match event {
            Event::Prefill { done, total } => sink(Update::Prefill { done, total }),
            Event::Token { id, logprobs } => {
                let output = decoder.token(id, logprobs);
                let wanted = output.is_empty() || sink(Update::Output(output));
                wanted && !decoder.is_finished()
            }
            Event::Finished { reason, stats } => {
                let output = decoder.end(reason);
                if !output.is_empty() {
                    sink(Update::Output(output));
                }
                let finish = decoder.finish(reason);
                let turn = decoder.take_turn(&finish);
                let reasoning_tokens = decoder.reasoning_tokens();
                sink(Update::Finished(Outcome { finish, stats, reasoning_tokens, turn }))
            }
            Event::Failed(error) => sink(Update::Failed(error)),
        };
        self.engine.submit(request, cancel, Box::new(handle))
    }
}
