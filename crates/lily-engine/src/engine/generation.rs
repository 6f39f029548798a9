//! One generation: what it has, what it wants next, and what it tells its caller. The scheduler computes for it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use super::queue::{Job, Sink, interrupted};
use crate::{
    backend::{BackendError, Draw, Interrupt},
    cache::Mark,
    request::{CancelFlag, EngineError, Event, FinishReason, GenerateRequest, Stats},
    sampling::{SampleError, Sampled, Sampler, penalties},
    timeline::{self, Timeline},
};

/// How a generation ended.
#[derive(Debug)]
pub enum Outcome {
    Finished(FinishReason),
    Failed(EngineError),
}

impl From<BackendError> for Outcome {
    fn from(error: BackendError) -> Self {
        Self::Failed(error.into())
    }
}

/// Calls a sink. One that panics is never called again and counts as having returned `false`.
struct Output {
    sink: Sink,
    panicked: bool,
}

impl Output {
    fn emit(&mut self, event: Event) -> bool {
        if self.panicked {
            return false;
        }
        // The sink is the caller's: whatever state its panic leaves behind is not looked at again here.
        catch_unwind(AssertUnwindSafe(|| (self.sink)(event))).unwrap_or_else(|_| {
            tracing::error!("an event sink panicked; its generation is cancelled");
            self.panicked = true;
            false
        })
    }

    fn end(&mut self, outcome: Outcome, stats: Stats) {
        self.emit(match outcome {
            Outcome::Finished(reason) => Event::Finished { reason, stats },
            Outcome::Failed(error) => Event::Failed(error),
        });
    }
}

/// Ends a job that never ran.
pub fn end_unstarted(job: Job, outcome: Outcome) {
    let stats = Stats {
        prompt_tokens: job.request.prompt.len(),
        queued: job.submitted.elapsed(),
        ..Default::default()
    };
    Output { sink: job.sink, panicked: false }.end(outcome, stats);
}

/// What an engine's generations have in common.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub context_limit: usize,
    pub prefill_chunk: usize,
    pub valid_vocab: usize,
    pub slice: Duration,
}

/// What a generation waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// A sequence, and the best checkpoint for it.
    Start,
    /// The rest of its target to be computed.
    Prefill,
    /// The logits after its next token.
    Decode,
}

/// How a device may choose the tokens of a request. The host has to where history, a constraint or log-probabilities
/// come in.
fn draw(request: &GenerateRequest) -> Option<Draw> {
    let p = &request.sampling;
    let cold = p.temperature > 0.0 && p.temperature < Draw::COLDEST;
    if cold || penalties::any(p) || request.constraint.is_some() || request.logprobs.is_some() {
        return None;
    }
    Some(Draw {
        temperature: p.temperature,
        top_p: p.top_p,
        min_p: p.min_p,
        top_k: p.top_k.try_into().unwrap_or(u32::MAX),
        seed: p.seed,
    })
}

/// A generation that runs.
pub struct Generation {
    pub request: GenerateRequest,
    cancel: CancelFlag,
    output: Output,
    pub phase: Phase,
    /// Absent while it starts.
    pub timeline: Option<Timeline>,
    /// Tokens whose logits are wanted first: the prompt, or all tokens so far when they must be computed again.
    pub target: Vec<u32>,
    /// The token delivered last, which its sequence has not seen.
    pub next: Option<u32>,
    /// Checkpoints to take in the target, in order.
    pub places: Vec<Mark>,
    /// Whether how its prompt was had is told.
    pub counted: bool,
    /// It waited for a checkpoint to be read from its file.
    pub waited_for_file: bool,
    /// Position of the deepest checkpoint of its tokens.
    pub saved: usize,
    sampler: Sampler,
    /// How the device may choose its tokens; `None`: it takes the host to do it.
    pub draw: Option<Draw>,
    most: usize,
    pub stats: Stats,
    started: Instant,
    /// When the logits of the last prompt token were there.
    prefilled: Option<Instant>,
}

impl Generation {
    pub fn new(job: Job, setting: &Setting) -> Self {
        let Job { request, cancel, sink, submitted } = job;
        let started = Instant::now();
        let prompt = request.prompt.len();
        Self {
            sampler: Sampler::new(
                request.sampling.clone(),
                &request.prompt,
                setting.valid_vocab,
                request.logprobs,
            ),
            draw: draw(&request),
            most: request.max_tokens.unwrap_or(setting.context_limit.saturating_sub(prompt)),
            stats: Stats {
                prompt_tokens: prompt,
                queued: started.saturating_duration_since(submitted),
                ..Default::default()
            },
            target: request.prompt.clone(),
            request,
            cancel,
            output: Output { sink, panicked: false },
            phase: Phase::Start,
            timeline: None,
            next: None,
            places: Vec::new(),
            counted: false,
            waited_for_file: false,
            saved: 0,
            started,
            prefilled: None,
        }
    }

    /// Why it must not go on, if so.
    pub fn interrupted(&self) -> Option<FinishReason> {
        interrupted(&self.request, &self.cancel, Instant::now())
    }

    /// Tokens of the longest sequence it may need.
    pub fn capacity(&self, setting: &Setting) -> usize {
        self.request.prompt.len().saturating_add(self.most).min(setting.context_limit)
    }

    /// Tokens its sequence has seen.
    pub fn position(&self) -> usize {
        self.timeline.as_ref().map_or(0, |t| t.tokens.len())
    }

    /// Tokens of the target that are still to be computed.
    pub fn left(&self) -> usize {
        self.target.len().saturating_sub(self.position())
    }

    /// It has a sequence that has seen the first `cached` tokens of the target.
    pub fn begin(&mut self, timeline: Timeline) {
        let cached = timeline.tokens.len();
        self.places = timeline::places(&self.request.marks, cached, self.request.prompt.len());
        self.saved = cached;
        self.timeline = Some(timeline);
        self.phase = Phase::Prefill;
    }

    /// Its sequence is lost: everything is computed again. Returns the sequence.
    pub fn restart(&mut self) -> Option<Timeline> {
        let timeline = self.timeline.take();
        if let Some(timeline) = &timeline {
            self.target.clone_from(&timeline.tokens);
            self.target.extend(self.next.take());
        }
        self.phase = Phase::Start;
        timeline
    }

    /// Tells the caller how much of the prompt is there.
    pub fn progress(&mut self) -> Option<Outcome> {
        let total = self.request.prompt.len();
        // Computed again, it was all told before.
        if self.prefilled.is_some() || self.target.len() > total {
            return None;
        }
        let done = self.position();
        let wanted = self.output.emit(Event::Prefill { done, total });
        (!wanted).then_some(Outcome::Finished(FinishReason::Cancelled))
    }

    /// What the backend asks while it computes a chunk.
    pub fn interrupt(&self) -> Interrupt {
        let (cancel, deadline) = (self.cancel.clone(), self.request.deadline);
        Arc::new(move || cancel.is_cancelled() || deadline.is_some_and(|d| Instant::now() >= d))
    }

    /// Takes the logits of the last token seen, `[vocab]`, and delivers the next one, which is appended only when
    /// another is wanted. `Some`: the generation is over.
    pub fn accept(&mut self, logits: &[f32]) -> Option<Outcome> {
        let finished = |reason| Some(Outcome::Finished(reason));
        self.prefilled.get_or_insert_with(Instant::now);
        self.phase = Phase::Decode;
        if self.stats.completion_tokens >= self.most {
            return finished(FinishReason::Length);
        }
        match self.sampler.sample_within(logits, self.request.constraint.as_ref()) {
            Ok(sampled) => self.deliver(sampled),
            Err(SampleError::NonFinite) => {
                let position = self.position().saturating_sub(1);
                Some(BackendError::NonFinite { position }.into())
            }
            Err(error @ SampleError::Shape { .. }) => Some(BackendError::Device(error.to_string()).into()),
            Err(SampleError::Constraint(error)) => Some(BackendError::Constraint(error).into()),
        }
    }

    /// Takes a token that the device has chosen; otherwise as [`accept`](Self::accept).
    pub fn accept_drawn(&mut self, id: u32) -> Option<Outcome> {
        self.deliver(Sampled { id, logprobs: None })
    }

    /// Steps that it may take at once: tokens it may still deliver, and room of its sequence.
    pub fn most_steps(&self, setting: &Setting) -> usize {
        let room = self.capacity(setting).saturating_sub(self.position());
        self.most.saturating_sub(self.stats.completion_tokens).min(room).max(1)
    }

    fn deliver(&mut self, sampled: Sampled) -> Option<Outcome> {
        let finished = |reason| Some(Outcome::Finished(reason));
        self.stats.completion_tokens += 1;
        let id = sampled.id;
        if self.request.stop_tokens.contains(&id) {
            return finished(FinishReason::Stop);
        }
        if !self.output.emit(Event::Token { id, logprobs: sampled.logprobs }) {
            return finished(FinishReason::Cancelled);
        }
        if self.stats.completion_tokens >= self.most {
            return finished(FinishReason::Length);
        }
        self.next = Some(id);
        None
    }

    /// Sends the last event.
    pub fn end(&mut self, outcome: Outcome) {
        let now = Instant::now();
        let split = self.prefilled.unwrap_or(now);
        self.stats.prefill = split.saturating_duration_since(self.started);
        self.stats.decode = self.prefilled.map_or(Duration::ZERO, |t| now.saturating_duration_since(t));
        self.output.end(outcome, self.stats);
    }
}
