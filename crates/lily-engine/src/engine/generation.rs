//! One generation as a state machine: each [`Generation::step`] computes at most one prefill chunk or one token, so
//! that the engine thread can look around (cancel flags, deadlines, later other generations) between two steps.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use super::queue::{Job, Sink, interrupted};
use crate::{
    backend::{Backend, BackendError, Interrupt, SequenceId},
    request::{CancelFlag, EngineError, Event, FinishReason, GenerateRequest, Stats},
    sampling::{SampleError, Sampler},
    timeline::{Sync, Timeline, Timelines},
};

/// How a generation ended.
pub enum Outcome {
    Finished(FinishReason),
    Failed(EngineError),
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
}

/// Ends a job that never ran.
pub fn end_unstarted(job: Job, outcome: Outcome) {
    let stats = Stats {
        prompt_tokens: job.request.prompt.len(),
        queued: job.submitted.elapsed(),
        ..Default::default()
    };
    end(&mut Output { sink: job.sink, panicked: false }, outcome, stats);
}

fn end(output: &mut Output, outcome: Outcome, stats: Stats) {
    output.emit(match outcome {
        Outcome::Finished(reason) => Event::Finished { reason, stats },
        Outcome::Failed(error) => Event::Failed(error),
    });
}

/// What an engine's generations have in common.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub context_limit: usize,
    pub prefill_chunk: usize,
    pub valid_vocab: usize,
}

/// A generation that runs.
pub struct Generation {
    request: GenerateRequest,
    cancel: CancelFlag,
    output: Output,
    /// Absent before the first step and after an error.
    timeline: Option<Timeline>,
    /// The timeline's sequence, known even when a panic took the timeline away.
    sequence: Option<SequenceId>,
    sampler: Sampler,
    setting: Setting,
    most: usize,
    stats: Stats,
    started: Instant,
    /// When the logits of the last prompt token were there.
    prefilled: Option<Instant>,
}

impl Generation {
    pub fn new(job: Job, setting: Setting) -> Self {
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
            most: request.max_tokens.unwrap_or(setting.context_limit.saturating_sub(prompt)),
            stats: Stats {
                prompt_tokens: prompt,
                queued: started.saturating_duration_since(submitted),
                ..Default::default()
            },
            request,
            cancel,
            output: Output { sink, panicked: false },
            timeline: None,
            sequence: None,
            setting,
            started,
            prefilled: None,
        }
    }

    /// Computes at most one chunk or token. `Some`: the generation is over.
    pub fn step(&mut self, backend: &mut dyn Backend, timelines: &mut Timelines) -> Option<Outcome> {
        if let Some(reason) = interrupted(&self.request, &self.cancel, Instant::now()) {
            return Some(Outcome::Finished(reason));
        }
        let Some(mut timeline) = self.timeline.take() else {
            return self.start(backend, timelines).err();
        };
        let result = if timeline.tokens().len() < self.request.prompt.len() {
            self.prefill_chunk(backend, timelines, &mut timeline)
        } else {
            self.next_token(backend, &mut timeline)
        };
        match result {
            Ok(end) => {
                self.timeline = Some(timeline);
                end.map(Outcome::Finished)
            }
            Err(BackendError::Interrupted) => {
                // The chunks before this one are kept for whoever asks again.
                self.timeline = Some(timeline);
                let reason = interrupted(&self.request, &self.cancel, Instant::now());
                Some(Outcome::Finished(reason.unwrap_or(FinishReason::Cancelled)))
            }
            Err(error) => {
                // Its state is unknown now; it must not be reused.
                timeline.free(backend);
                Some(Outcome::Failed(error.into()))
            }
        }
    }

    fn start(&mut self, backend: &mut dyn Backend, timelines: &mut Timelines) -> Result<(), Outcome> {
        let (timeline, why) =
            timelines.sync(backend, &self.request.prompt).map_err(|e| Outcome::Failed(e.into()))?;
        let cached = timeline.tokens().len();
        tracing::debug!(prompt = self.request.prompt.len(), cached, ?why, "prompt synchronised");
        debug_assert!(cached == 0 || matches!(why, Sync::Reused | Sync::Restored));
        self.stats.cached_tokens = cached;
        if cached == self.request.prompt.len() {
            self.prefilled = Some(Instant::now());
        }
        self.sequence = Some(timeline.sequence());
        self.timeline = Some(timeline);
        self.progress(cached).map_or(Ok(()), |reason| Err(Outcome::Finished(reason)))
    }

    fn progress(&mut self, done: usize) -> Option<FinishReason> {
        let total = self.request.prompt.len();
        (!self.output.emit(Event::Prefill { done, total })).then_some(FinishReason::Cancelled)
    }

    fn prefill_chunk(
        &mut self,
        backend: &mut dyn Backend,
        timelines: &mut Timelines,
        timeline: &mut Timeline,
    ) -> Result<Option<FinishReason>, BackendError> {
        let total = self.request.prompt.len();
        let done = timeline.tokens().len();
        let mut end = total.min(done + self.setting.prefill_chunk);
        let mark = Timelines::checkpoint_position(total).filter(|&at| at > done);
        end = mark.map_or(end, |at| end.min(at));
        backend.set_interrupt(Some(self.interrupt()));
        let result = timeline.prefill(backend, &self.request.prompt[done..end], end == total);
        backend.set_interrupt(None);
        result?;
        if mark == Some(end) {
            timelines.checkpoint(backend, timeline);
        }
        if end == total {
            self.prefilled = Some(Instant::now());
        }
        Ok(self.progress(end))
    }

    /// What the backend asks while it computes a chunk.
    fn interrupt(&self) -> Interrupt {
        let (cancel, deadline) = (self.cancel.clone(), self.request.deadline);
        Arc::new(move || cancel.is_cancelled() || deadline.is_some_and(|d| Instant::now() >= d))
    }

    fn next_token(
        &mut self,
        backend: &mut dyn Backend,
        timeline: &mut Timeline,
    ) -> Result<Option<FinishReason>, BackendError> {
        if self.stats.completion_tokens >= self.most {
            return Ok(Some(FinishReason::Length));
        }
        // The last token delivered is appended only when another one is wanted.
        let position = timeline.tokens().len();
        let Some(logits) = timeline.logits() else {
            return Err(BackendError::Device(format!("no logits at position {position}")));
        };
        let sampled = self.sampler.sample(logits).map_err(|e| match e {
            SampleError::NonFinite => BackendError::NonFinite { position: position - 1 },
            SampleError::Shape { .. } => BackendError::Device(e.to_string()),
        })?;
        self.stats.completion_tokens += 1;
        let id = sampled.id;
        if self.request.stop_tokens.contains(&id) {
            return Ok(Some(FinishReason::Stop));
        }
        if !self.output.emit(Event::Token { id, logprobs: sampled.logprobs }) {
            return Ok(Some(FinishReason::Cancelled));
        }
        if self.stats.completion_tokens >= self.most {
            return Ok(Some(FinishReason::Length));
        }
        if let Some(reason) = interrupted(&self.request, &self.cancel, Instant::now()) {
            return Ok(Some(reason));
        }
        timeline.decode(backend, id)?;
        Ok(None)
    }

    /// The timeline, when it is whole.
    pub fn take_timeline(&mut self) -> Option<Timeline> {
        self.timeline.take()
    }

    /// The sequence it works on, once it has one.
    pub fn sequence(&self) -> Option<SequenceId> {
        self.sequence
    }

    /// Sends the last event.
    pub fn end(mut self, outcome: Outcome) {
        let now = Instant::now();
        let split = self.prefilled.unwrap_or(now);
        self.stats.prefill = split.saturating_duration_since(self.started);
        self.stats.decode = self.prefilled.map_or(Duration::ZERO, |t| now.saturating_duration_since(t));
        end(&mut self.output, outcome, self.stats);
    }
}
