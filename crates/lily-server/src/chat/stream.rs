//! An answer as server-sent events.
//!
//! The first chunk (the role) goes out at once, before the engine has looked at the prompt; comments keep the
//! connection alive while nothing is said. An error after that can no longer be a status: it is an event named
//! `error`, after which the stream ends without `[DONE]`.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::response::{
    IntoResponse, Response, Sse,
    sse::{Event, KeepAlive},
};
use futures_core::Stream;
use serde::Serialize;
use tokio::sync::mpsc::UnboundedReceiver;

use super::{
    CancelOnDrop, finish_reason,
    response::{Chunk, ChunkChoice, DeltaBody, Head, Logprobs, Timings, Usage},
};
use crate::{
    app::Permit,
    error::ApiError,
    generate::{Delta, Outcome, Output, Update},
};

/// Silence after which a comment is sent. Proxies and clients commonly give up after 30 to 60 seconds.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// The events of one answer. Dropping it cancels the generation.
pub(super) struct ChatStream {
    updates: UnboundedReceiver<Update>,
    head: Head,
    include_usage: bool,
    /// Log-probabilities that have no chunk yet, when they are wanted.
    logprobs: Option<Logprobs>,
    calls: usize,
    ready: VecDeque<Event>,
    done: bool,
    _guards: (CancelOnDrop, Permit),
}

impl ChatStream {
    pub(super) fn new(
        updates: UnboundedReceiver<Update>,
        model: &str,
        include_usage: bool,
        logprobs: bool,
        guards: (CancelOnDrop, Permit),
    ) -> Self {
        let mut stream = Self {
            updates,
            head: Head::new("chat.completion.chunk", model),
            include_usage,
            logprobs: logprobs.then(Logprobs::default),
            calls: 0,
            ready: VecDeque::new(),
            done: false,
            _guards: guards,
        };
        let role =
            DeltaBody { role: Some("assistant"), content: Some(String::new()), ..DeltaBody::default() };
        stream.choice(role, None, None, None);
        stream
    }

    fn take(&mut self, update: Update) {
        match update {
            Update::Prefill { .. } => {}
            Update::Output(output) => self.output(output),
            Update::Finished(outcome) => self.finished(&outcome),
            Update::Failed(error) => self.failed(&error.into()),
        }
    }

    fn output(&mut self, output: Output) {
        if let Some(logprobs) = &mut self.logprobs {
            logprobs.extend(output.content_logprobs, output.reasoning_logprobs);
        }
        for delta in output.deltas {
            let body = DeltaBody::new(delta.clone(), self.calls);
            self.calls += usize::from(matches!(delta, Delta::ToolCall(_)));
            let logprobs = self.waiting_logprobs();
            self.choice(body, logprobs, None, None);
        }
    }

    fn finished(&mut self, outcome: &Outcome) {
        match finish_reason(outcome) {
            Err(error) => self.failed(&error),
            Ok(reason) => {
                let logprobs = self.waiting_logprobs();
                let timings = Timings::new(&outcome.stats);
                self.choice(DeltaBody::default(), logprobs, Some(reason), Some(timings));
                if self.include_usage {
                    let usage = Some(Some(Usage::new(outcome)));
                    self.event(&Chunk { head: self.head.clone(), choices: Vec::new(), usage, timings: None });
                }
                self.ready.push_back(Event::default().data("[DONE]"));
                self.done = true;
            }
        }
    }

    fn failed(&mut self, error: &ApiError) {
        self.ready.push_back(Event::default().event("error").data(error.to_json().to_string()));
        self.done = true;
    }

    /// Log-probabilities go with the first chunk that has text after them.
    fn waiting_logprobs(&mut self) -> Option<Logprobs> {
        self.logprobs.as_mut().filter(|l| !l.is_empty()).map(std::mem::take)
    }

    fn choice(
        &mut self,
        delta: DeltaBody,
        logprobs: Option<Logprobs>,
        finish_reason: Option<&'static str>,
        timings: Option<Timings>,
    ) {
        self.event(&Chunk {
            head: self.head.clone(),
            choices: vec![ChunkChoice { index: 0, delta, logprobs, finish_reason }],
            usage: self.include_usage.then_some(None),
            timings,
        });
    }

    fn event(&mut self, body: &impl Serialize) {
        // These types always serialise: their keys are strings.
        let data = serde_json::to_string(body).unwrap_or_default();
        self.ready.push_back(Event::default().data(data));
    }
}

impl Stream for ChatStream {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if self.done {
                return Poll::Ready(None);
            }
            match self.updates.poll_recv(context) {
                Poll::Ready(Some(update)) => self.take(update),
                // The engine went away without a word.
                Poll::Ready(None) => self.failed(&ApiError::stopping()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl IntoResponse for ChatStream {
    fn into_response(self) -> Response {
        let keep_alive = KeepAlive::new().interval(KEEP_ALIVE).text("keep-alive");
        let mut response = Sse::new(self).keep_alive(keep_alive).into_response();
        // Some reverse proxies (nginx) hold a response back unless told.
        response.headers_mut().insert("x-accel-buffering", axum::http::HeaderValue::from_static("no"));
        response
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, pin::pin, sync::Arc};

    use lily_engine::{BackendError, CancelFlag, EngineError, Stats};
    use tokio::sync::{Semaphore, mpsc};

    use super::*;
    use crate::generate::Finish;

    /// The events of a stream that is given `updates`, as text, and the flag that its end sets.
    async fn events(updates: Vec<Update>) -> (String, CancelFlag) {
        let (sender, receiver) = mpsc::unbounded_channel();
        updates.into_iter().for_each(|u| sender.send(u).unwrap());
        drop(sender);
        let cancel = CancelFlag::new();
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let guards = (CancelOnDrop(cancel.clone()), permit);
        let mut stream = pin!(ChatStream::new(receiver, "m", false, false, guards));
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
        let cancelled = Outcome { finish: Finish::Cancelled, stats: Stats::default(), reasoning_tokens: 0 };
        let (text, _) = events(vec![Update::Finished(cancelled)]).await;
        assert!(text.contains("event: error") && !text.contains("DONE"), "{text}");
    }

    #[tokio::test]
    async fn a_good_end_has_a_reason_and_is_marked() {
        let outcome = Outcome { finish: Finish::Length, stats: Stats::default(), reasoning_tokens: 0 };
        let (text, _) = events(vec![said("a"), Update::Finished(outcome)]).await;
        assert!(text.contains("length") && text.contains("[DONE]") && text.contains("timings"), "{text}");
    }
}
