//! What every API does with a checked request: render the prompt, compile its grammar, generate, and fold what comes
//! into an answer.
//!
//! The APIs only translate: a body becomes a [`Job`], and [`Update`]s become a body or events of their own.

use std::sync::Arc;

use axum::http::StatusCode;
use lily_engine::CancelFlag;
use lily_text::{RenderRequest, TextError, prompt_starts_in_reasoning};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::{
    app::App,
    error::ApiError,
    generate::{
        Delta, Finish, GenerateOptions, Outcome, Output, Prompt, TextEngine, TokenLogprob, TurnCall, Update,
    },
    grammar::{Grammar, Grammars, constraint::ConstraintSpec},
};

/// Most answers to one prompt.
pub(crate) const MAX_CHOICES: usize = 16;

/// Where a prompt comes from.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// Messages, by the chat template.
    Chat(RenderRequest),
    /// Text as it is.
    Text(String),
    /// Token ids.
    Ids(Vec<u32>),
}

/// A checked request of any API.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub(crate) source: Source,
    pub(crate) options: GenerateOptions,
    /// The answer's grammar, and the field it came in.
    pub(crate) answer: Option<(Grammar, String)>,
    /// The grammar of calls that the model begins by itself.
    pub(crate) calls: Option<(Grammar, String)>,
    /// Most tokens of thinking.
    pub(crate) thinking_budget: Option<usize>,
    /// Answers to generate.
    pub(crate) n: usize,
}

impl Job {
    /// A job without constraints, for one answer.
    pub(crate) fn new(source: Source, options: GenerateOptions) -> Self {
        Self { source, options, answer: None, calls: None, thinking_budget: None, n: 1 }
    }
}

/// A job with its prompt and its compiled grammars.
pub(crate) struct Prepared {
    pub(crate) prompt: Prompt,
    options: GenerateOptions,
    spec: ConstraintSpec,
    grammars: Option<Arc<Grammars>>,
    pub(crate) n: usize,
}

/// Renders and compiles. A megabyte of messages takes a good part of a second to tokenize, so this belongs on a thread
/// that may block; see [`blocking`].
pub(crate) fn prepare(app: &App, job: Job) -> Result<Prepared, ApiError> {
    let prompt = prompt(&app.engine, app, &job.source)?;
    let room = app.engine.engine().options().context_limit.saturating_sub(prompt.ids.len());
    let mut spec = ConstraintSpec {
        thinking_budget: job.thinking_budget,
        max_tokens: Some(job.options.max_tokens.map_or(room, |most| most.min(room))),
        ..ConstraintSpec::default()
    };
    let mut grammars = None;
    if job.answer.is_some() || job.calls.is_some() || job.thinking_budget.is_some() {
        let made =
            app.engine.grammars().map_err(|e| ApiError::unsupported("response_format", e.to_string()))?;
        let compile = |grammar: &Option<(Grammar, String)>| match grammar {
            None => Ok(None),
            Some((grammar, param)) => made
                .compile(grammar)
                .map(Some)
                .map_err(|e| ApiError::invalid(param, format!("`{param}` cannot be used as a grammar: {e}"))),
        };
        spec.answer = compile(&job.answer)?;
        spec.calls = compile(&job.calls)?;
        grammars = Some(made);
    }
    Ok(Prepared { prompt, options: job.options, spec, grammars, n: job.n })
}

fn prompt(engine: &TextEngine, app: &App, source: &Source) -> Result<Prompt, ApiError> {
    match source {
        Source::Chat(render) => {
            let replays = app.replays.find(&render.messages);
            engine.prompt_replaying(render, &replays).map_err(text_error)
        }
        Source::Text(text) => {
            let ids =
                engine.tokenizer().encode(text).map_err(|e| ApiError::invalid("prompt", e.to_string()))?;
            Ok(Prompt { text: text.clone(), ids })
        }
        Source::Ids(ids) => Ok(Prompt { text: engine.tokenizer().decode(ids, false), ids: ids.clone() }),
    }
}

/// Runs work on a thread that may block.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let failed = || {
        ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "server_error",
            "the request could not be prepared; the server's log says more",
        )
    };
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(failed()))
}

/// Errors of normalising and rendering are the request's.
pub(crate) fn text_error(error: TextError) -> ApiError {
    match error {
        TextError::Message { ref path, .. } => ApiError::invalid(path.clone(), error.to_string()),
        error => ApiError::invalid("messages", error.to_string()),
    }
}

/// Cancels a generation when whatever waits for it goes away.
pub(crate) struct CancelOnDrop(CancelFlag);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

#[cfg(test)]
impl CancelOnDrop {
    pub(crate) fn new(flag: CancelFlag) -> Self {
        Self(flag)
    }
}

/// Generations that run. Dropping it cancels them.
pub(crate) struct Running {
    /// (choice, what it tells).
    pub(crate) updates: UnboundedReceiver<(usize, Update)>,
    /// Choices that run.
    pub(crate) n: usize,
    pub(crate) guard: CancelOnDrop,
}

/// Starts the generations of a job. The engine's thread sends through an unbounded channel: a client that reads slowly
/// never holds the engine up, and what can pile up is bounded by the context limit.
pub(crate) fn start(app: &App, prepared: Prepared) -> Result<Running, ApiError> {
    let (sender, updates) = unbounded_channel();
    let cancel = CancelFlag::new();
    let guard = CancelOnDrop(cancel.clone());
    let Prepared { prompt, options, spec, grammars, n } = prepared;
    let in_reasoning = !options.raw && prompt_starts_in_reasoning(&prompt.text);
    let opener = prompt.text.rsplit_once("<|im_start|>assistant\n").map(|(_, opener)| opener.to_string());
    for choice in 0..n {
        let mut options = options.clone();
        options.sampling.seed = options.sampling.seed.wrapping_add(choice as u64);
        if let Some(grammars) = &grammars {
            options.constraint = spec
                .start(grammars, app.engine.tokenizer(), in_reasoning)
                .map_err(|e| ApiError::invalid("response_format", e.to_string()))?;
        }
        let (sender, opener) = (sender.clone(), opener.clone());
        let (metrics, replays) = (app.metrics.clone(), app.replays.clone());
        app.engine.generate(prompt.clone(), options, cancel.clone(), move |update| {
            if let Update::Finished(outcome) = &update {
                metrics.finished(outcome);
                if let (Some(turn), Some(opener)) = (&outcome.turn, &opener) {
                    replays.keep(opener, turn);
                }
            }
            sender.send((choice, update)).is_ok()
        })?;
    }
    Ok(Running { updates, n, guard })
}

/// A stretch of an answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Block {
    Reasoning(String),
    Text(String),
    Call(TurnCall),
}

/// One whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    /// In the order they came.
    pub(crate) blocks: Vec<Block>,
    pub(crate) content_logprobs: Vec<TokenLogprob>,
    pub(crate) reasoning_logprobs: Vec<TokenLogprob>,
    pub(crate) outcome: Outcome,
}

/// An answer that grows.
#[derive(Debug, Default)]
struct Growing {
    blocks: Vec<Block>,
    content_logprobs: Vec<TokenLogprob>,
    reasoning_logprobs: Vec<TokenLogprob>,
}

impl Growing {
    fn push(&mut self, output: Output) {
        self.content_logprobs.extend(output.content_logprobs);
        self.reasoning_logprobs.extend(output.reasoning_logprobs);
        for delta in output.deltas {
            match (delta, self.blocks.last_mut()) {
                (Delta::Content(more), Some(Block::Text(text)))
                | (Delta::Reasoning(more), Some(Block::Reasoning(text))) => text.push_str(&more),
                (Delta::Content(text), _) => self.blocks.push(Block::Text(text)),
                (Delta::Reasoning(text), _) => self.blocks.push(Block::Reasoning(text)),
                (Delta::CallStart { id, name, .. }, _) => {
                    self.blocks.push(Block::Call(TurnCall { id, name, arguments: String::new() }));
                }
                (Delta::CallArguments { json, .. }, Some(Block::Call(call))) => {
                    call.arguments.push_str(&json)
                }
                (Delta::CallBroken { .. }, Some(Block::Call(_))) => {
                    self.blocks.pop();
                    // Text on both sides of the call that was none is one text.
                }
                (Delta::CallArguments { .. } | Delta::CallEnd { .. } | Delta::CallBroken { .. }, _) => {}
            }
        }
    }
}

impl Answer {
    /// The texts of one kind, joined; `None` when there is none.
    fn joined(&self, pick: impl Fn(&Block) -> Option<&str>) -> Option<String> {
        let mut texts = self.blocks.iter().filter_map(pick).peekable();
        texts.peek().is_some().then(|| texts.collect())
    }

    pub(crate) fn content(&self) -> Option<String> {
        self.joined(|b| if let Block::Text(text) = b { Some(text.as_str()) } else { None })
    }

    pub(crate) fn reasoning(&self) -> Option<String> {
        self.joined(|b| if let Block::Reasoning(text) = b { Some(text.as_str()) } else { None })
    }

    pub(crate) fn calls(&self) -> impl Iterator<Item = &TurnCall> {
        self.blocks.iter().filter_map(|b| if let Block::Call(call) = b { Some(call) } else { None })
    }
}

/// Waits for all answers.
pub(crate) async fn collect(mut running: Running) -> Result<Vec<Answer>, ApiError> {
    let mut growing: Vec<Growing> = (0..running.n).map(|_| Growing::default()).collect();
    let mut answers: Vec<Option<Answer>> = (0..running.n).map(|_| None).collect();
    let mut left = running.n;
    while left > 0 {
        let Some((choice, update)) = running.updates.recv().await else { return Err(ApiError::stopping()) };
        match update {
            Update::Prefill { .. } => {}
            Update::Output(output) => growing[choice].push(output),
            Update::Finished(outcome) => {
                check_end(&outcome)?;
                let Growing { blocks, content_logprobs, reasoning_logprobs } =
                    std::mem::take(&mut growing[choice]);
                answers[choice] = Some(Answer { blocks, content_logprobs, reasoning_logprobs, outcome });
                left -= 1;
            }
            Update::Failed(error) => return Err(error.into()),
        }
    }
    Ok(answers.into_iter().flatten().collect())
}

/// The error that an end was, if it was one. Clients that are still there did not cancel: the server did.
pub(crate) fn check_end(outcome: &Outcome) -> Result<(), ApiError> {
    match outcome.finish {
        Finish::Deadline => Err(ApiError {
            code: Some("timeout"),
            ..ApiError::new(
                StatusCode::GATEWAY_TIMEOUT,
                "server_error",
                "the generation took longer than this server allows",
            )
        }),
        Finish::Cancelled => Err(ApiError::stopping()),
        _ => Ok(()),
    }
}
