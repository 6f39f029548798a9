//! What a caller asks of the engine, and what it gets back.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    backend::BackendError,
    cache::{CacheOutcome, Mark},
    constraint::ConstraintHandle,
};

/// How the next token is chosen. `temperature == 0` is greedy.
///
/// Order of application: logit bias, repetition penalty, presence and frequency penalties, temperature, top-k,
/// top-p, min-p, draw.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0 = greedy; otherwise logits are divided by it.
    pub temperature: f32,
    /// Keep the `top_k` most likely tokens; 0 = all.
    pub top_k: usize,
    /// Keep the smallest set of tokens whose probability reaches `top_p`; 1 = all.
    pub top_p: f32,
    /// Drop tokens less likely than `min_p` times the most likely one; 0 = none.
    pub min_p: f32,
    /// Subtracted once from the logit of every token generated so far.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a token for each time it was generated.
    pub frequency_penalty: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt or output; 1 = off.
    pub repetition_penalty: f32,
    /// Added to logits before everything else: (token id, bias).
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the draw; the same seed, prompt and parameters give the same tokens.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

/// One generation.
#[derive(Debug, Clone)]
pub struct GenerateRequest {
    /// Prompt ids; at least one.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Most tokens to generate. `None`: up to the context limit.
    pub max_tokens: Option<usize>,
    /// Ids that end the generation (they are reported as [`FinishReason::Stop`] and not as a token).
    pub stop_tokens: Vec<u32>,
    /// `Some(n)`: report the log-probability of every token, and of the `n` most likely ones.
    /// Log-probabilities are of the model's raw distribution, before penalties, bias and temperature.
    pub logprobs: Option<usize>,
    /// Give up after this moment.
    pub deadline: Option<Instant>,
    /// Places in the prompt where later prompts are likely to part from it; in any order. Empty: a little before its
    /// end.
    pub marks: Vec<Mark>,
    /// Which tokens may come next: a grammar, a thinking budget. A request that is sent again needs a fresh one.
    pub constraint: Option<ConstraintHandle>,
}

/// Stops a generation from any thread, at any stage.
#[derive(Debug, Clone, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// A flag not set.
    pub fn new() -> Self {
        Self::default()
    }
    /// Asks the engine to stop; takes effect at the next chunk or token.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }
    /// Whether it was asked.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// A token's log-probability and its strongest rivals.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// Natural log of the probability of the token chosen.
    pub logprob: f32,
    /// (id, log-probability), most likely first.
    pub top: Vec<(u32, f32)>,
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token.
    Stop,
    /// `max_tokens` or the context limit.
    Length,
    /// The caller cancelled.
    Cancelled,
    /// The deadline passed.
    Deadline,
}

/// Counts and times of one generation.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stats {
    /// Prompt tokens.
    pub prompt_tokens: usize,
    /// Prompt tokens whose state was reused rather than computed.
    pub cached_tokens: usize,
    /// How the prompt's state was had.
    pub cache: CacheOutcome,
    /// Tokens generated (a stop token counts).
    pub completion_tokens: usize,
    /// Waiting for the engine.
    pub queued: Duration,
    /// Computing the prompt.
    pub prefill: Duration,
    /// Generating.
    pub decode: Duration,
}

/// What a generation tells its caller, in order: any number of `Prefill`, any number of `Token`, then exactly one
/// `Finished` or `Failed`.
#[derive(Debug)]
pub enum Event {
    /// Prompt tokens processed so far, of how many.
    Prefill {
        /// Processed (including cached ones).
        done: usize,
        /// In the prompt.
        total: usize,
    },
    /// A generated token.
    Token {
        /// Its id.
        id: u32,
        /// When asked for.
        logprobs: Option<TokenLogprobs>,
    },
    /// The end.
    Finished {
        /// Why.
        reason: FinishReason,
        /// Counts and times.
        stats: Stats,
    },
    /// The end, by an error.
    Failed(EngineError),
}

/// Why a request was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No prompt.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// Prompt and answer do not fit.
    #[error("{}", context_length(*prompt, *max_tokens, *limit))]
    ContextLength {
        /// Prompt tokens.
        prompt: usize,
        /// Tokens asked for.
        max_tokens: Option<usize>,
        /// Context limit.
        limit: usize,
    },
    /// A sampling parameter is out of range.
    #[error("{name} is {found}; expected {expected}")]
    BadParameter {
        /// Parameter name.
        name: &'static str,
        /// Value given.
        found: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// Too many requests wait.
    #[error("{waiting} requests are waiting; the queue holds {limit}")]
    QueueFull {
        /// Waiting.
        waiting: usize,
        /// Most that may wait.
        limit: usize,
    },
    /// The engine is shutting down or its thread died.
    #[error("the engine is not running")]
    Stopped,
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

fn context_length(prompt: usize, max_tokens: Option<usize>, limit: usize) -> String {
    match max_tokens {
        Some(asked) if prompt < limit => format!(
            "the prompt has {prompt} tokens and {asked} were asked for; the context limit is {limit}: shorten the \
             prompt or ask for fewer tokens"
        ),
        _ => format!(
            "the prompt has {prompt} tokens and leaves no room for an answer; the context limit is {limit}: shorten \
             the prompt"
        ),
    }
}
