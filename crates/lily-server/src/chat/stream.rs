//! An answer as chunks: OpenAI's `chat.completion.chunk`.

use std::time::Instant;

use axum::response::sse::Event;

use super::response::{
    Chunk, ChunkChoice, DeltaBody, Head, Logprobs, Progress, Timings, Usage, finish_reason,
};
use crate::{
    error::ApiError,
    generate::{Outcome, Output},
    sse::{Adapter, event, named},
};

/// What the request asked of the stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub(super) logprobs: bool,
    /// One more chunk with the usage at the end.
    pub(super) include_usage: bool,
    /// Chunks that tell how much of the prompt is processed.
    pub(super) progress: bool,
}

/// The chunks of one request.
pub(super) struct ChatStream {
    head: Head,
    settings: Settings,
    /// Log-probabilities that have no chunk yet, by choice.
    logprobs: Vec<Logprobs>,
    outcomes: Vec<Outcome>,
    started: Instant,
    cached: Option<usize>,
}

impl ChatStream {
    pub(super) fn new(model: &str, n: usize, settings: Settings) -> Self {
        Self {
            head: Head::new("chat.completion.chunk", model),
            settings,
            logprobs: (0..n).map(|_| Logprobs::default()).collect(),
            outcomes: Vec::new(),
            started: Instant::now(),
            cached: None,
        }
    }

    fn chunk(&self, choices: Vec<ChunkChoice>) -> Chunk {
        Chunk {
            head: self.head.clone(),
            choices,
            usage: self.settings.include_usage.then_some(None),
            timings: None,
            prompt_progress: None,
        }
    }

    /// Log-probabilities go with the first chunk that has text after them.
    fn waiting_logprobs(&mut self, choice: usize) -> Option<Logprobs> {
        self.logprobs.get_mut(choice).filter(|l| !l.is_empty()).map(std::mem::take)
    }

    fn choice(&self, index: usize, delta: DeltaBody, logprobs: Option<Logprobs>) -> Event {
        event(&self.chunk(vec![ChunkChoice { index, delta, logprobs, finish_reason: None }]))
    }
}

impl Adapter for ChatStream {
    fn begin(&mut self) -> Vec<Event> {
        let role =
            || DeltaBody { role: Some("assistant"), content: Some(String::new()), ..DeltaBody::default() };
        (0..self.logprobs.len()).map(|choice| self.choice(choice, role(), None)).collect()
    }

    fn prefill(&mut self, choice: usize, done: usize, total: usize) -> Vec<Event> {
        if !self.settings.progress || choice > 0 {
            return Vec::new();
        }
        let cache = *self.cached.get_or_insert(done);
        let time_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let progress = Progress { total, cache, processed: done, time_ms };
        vec![event(&Chunk { prompt_progress: Some(progress), ..self.chunk(Vec::new()) })]
    }

    fn output(&mut self, choice: usize, output: Output) -> Vec<Event> {
        if self.settings.logprobs
            && let Some(logprobs) = self.logprobs.get_mut(choice)
        {
            logprobs.extend(output.content_logprobs, output.reasoning_logprobs);
        }
        let mut events = Vec::new();
        for body in output.deltas.into_iter().filter_map(DeltaBody::new) {
            let logprobs = self.waiting_logprobs(choice);
            events.push(self.choice(choice, body, logprobs));
        }
        events
    }

    fn finished(&mut self, choice: usize, outcome: &Outcome) -> Vec<Event> {
        let last = ChunkChoice {
            index: choice,
            delta: DeltaBody::default(),
            logprobs: self.waiting_logprobs(choice),
            finish_reason: Some(finish_reason(&outcome.finish)),
        };
        let chunk = Chunk { timings: Some(Timings::new(&outcome.stats)), ..self.chunk(vec![last]) };
        self.outcomes.push(outcome.clone());
        vec![event(&chunk)]
    }

    fn end(&mut self) -> Vec<Event> {
        let usage = self.settings.include_usage.then(|| {
            let usage = Some(Some(Usage::of(&self.outcomes)));
            event(&Chunk { usage, ..self.chunk(Vec::new()) })
        });
        usage.into_iter().chain([Event::default().data("[DONE]")]).collect()
    }

    fn failed(&mut self, error: &ApiError) -> Vec<Event> {
        vec![named("error", &error.to_json())]
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, pin::pin, sync::Arc};

    use futures_core::Stream;
    use lily_engine::{BackendError, CancelFlag, EngineError, Stats};
    use tokio::sync::{Semaphore, mpsc};

    use super::*;
    use crate::{
        generate::{Delta, Finish, Update},
        job::{CancelOnDrop, Running},
        sse::EventStream,
    };

    /// The events of a stream that is given `updates`, as text, and the flag that its end sets.
    async fn events(updates: Vec<Update>) -> (String, CancelFlag) {
        let (sender, receiver) = mpsc::unbounded_channel();
        updates.into_iter().for_each(|u| sender.send((0, u)).unwrap());
        drop(sender);
        let cancel = CancelFlag::new();
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let running = Running { updates: receiver, n: 1, guard: CancelOnDrop::new(cancel.clone()) };
        let settings = Settings { logprobs: false, include_usage: false, progress: false };
        let mut stream = pin!(EventStream::new(running, ChatStream::new("m", 1, settings), permit));
        let mut text = String::new();
        while let Some(Ok(event)) = poll_fn(|c| stream.as_mut().poll_next(c)).await {
            text += &format!("{event:?}\n");
        }
        (text, cancel)
    }

    fn said(text: &str) -> Update {
        Update::Output(Output { deltas: vec![Delta::Content(text.into())], ..Output::default() })
    }

    #[tokio::test]
    async fn an_error_in_the_middle_is_an_event_and_the_end() {
        let failed = EngineError::Backend(BackendError::NonFinite { position: 7 });
        let (text, cancel) = events(vec![said("a"), Update::Failed(failed), said("never")]).await;
        assert!(text.contains("assistant") && text.contains("event: error"), "{text}");
        assert!(text.contains("non-finite value at position 7") && text.contains("server_error"), "{text}");
        assert!(!text.contains("never") && !text.contains("DONE"), "{text}");
        assert!(cancel.is_cancelled());
    }

    #[tokio::test]
    async fn an_engine_that_goes_away_is_an_error_too() {
        let (text, _) = events(vec![said("a")]).await;
        assert!(text.contains("event: error") && text.contains("shutting_down"), "{text}");
        let cancelled =
            Outcome { finish: Finish::Cancelled, stats: Stats::default(), reasoning_tokens: 0, turn: None };
        let (text, _) = events(vec![Update::Finished(cancelled)]).await;
        assert!(text.contains("event: error") && !text.contains("DONE"), "{text}");
    }

    #[tokio::test]
    async fn a_good_end_has_a_reason_and_is_marked() {
        let outcome =
            Outcome { finish: Finish::Length, stats: Stats::default(), reasoning_tokens: 0, turn: None };
        let (text, _) = events(vec![said("a"), Update::Finished(outcome)]).await;
        assert!(text.contains("length") && text.contains("[DONE]") && text.contains("timings"), "{text}");
    }
}
