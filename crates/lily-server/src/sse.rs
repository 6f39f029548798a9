//! Answers as server-sent events, for all APIs.
//!
//! The first events go out at once, before the engine has looked at the prompt; comments keep the connection alive
//! while nothing is said. An error after that can no longer be a status: it is an event, after which the stream ends.

use std::{
    collections::VecDeque,
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    http::HeaderValue,
    response::{
        IntoResponse, Response, Sse,
        sse::{Event, KeepAlive},
    },
};
use futures_core::Stream;
use serde::Serialize;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::{
    app::Permit,
    error::ApiError,
    generate::{Outcome, Output, Update},
    job::{self, CancelOnDrop, Running},
};

/// Silence after which a comment is sent. Proxies and clients commonly give up after 30 to 60 seconds.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// How one API writes an answer as events.
pub(crate) trait Adapter: Unpin + Send + 'static {
    /// The events that come before anything is known.
    fn begin(&mut self) -> Vec<Event>;
    /// Prompt tokens processed so far.
    fn prefill(&mut self, _choice: usize, _done: usize, _total: usize) -> Vec<Event> {
        Vec::new()
    }
    /// More of an answer.
    fn output(&mut self, choice: usize, output: Output) -> Vec<Event>;
    /// An answer is over, and well.
    fn finished(&mut self, choice: usize, outcome: &Outcome) -> Vec<Event>;
    /// All answers are over.
    fn end(&mut self) -> Vec<Event>;
    /// Something failed; nothing comes after these.
    fn failed(&mut self, error: &ApiError) -> Vec<Event>;
}

/// An event of a JSON body.
pub(crate) fn event(body: &impl Serialize) -> Event {
    // These types always serialise: their keys are strings.
    Event::default().data(serde_json::to_string(body).unwrap_or_default())
}

/// [`event`] with a name.
pub(crate) fn named(name: &str, body: &impl Serialize) -> Event {
    event(body).event(name)
}

/// The events of one request. Dropping it cancels the generations.
pub(crate) struct EventStream<A> {
    updates: UnboundedReceiver<(usize, Update)>,
    adapter: A,
    left: usize,
    ready: VecDeque<Event>,
    done: bool,
    _guards: (CancelOnDrop, Permit),
}

impl<A: Adapter> EventStream<A> {
    pub(crate) fn new(running: Running, mut adapter: A, permit: Permit) -> Self {
        let ready = adapter.begin().into();
        let Running { updates, n, guard } = running;
        Self { updates, adapter, left: n, ready, done: false, _guards: (guard, permit) }
    }

    fn take(&mut self, choice: usize, update: Update) {
        let events = match update {
            Update::Prefill { done, total } => self.adapter.prefill(choice, done, total),
            Update::Output(output) => self.adapter.output(choice, output),
            Update::Finished(outcome) => match job::check_end(&outcome) {
                Err(error) => return self.failed(&error),
                Ok(()) => {
                    let mut events = self.adapter.finished(choice, &outcome);
                    self.left -= 1;
                    if self.left == 0 {
                        events.extend(self.adapter.end());
                        self.done = true;
                    }
                    events
                }
            },
            Update::Failed(error) => return self.failed(&error.into()),
        };
        self.ready.extend(events);
    }

    fn failed(&mut self, error: &ApiError) {
        let events = self.adapter.failed(error);
        self.ready.extend(events);
        self.done = true;
    }
}

impl<A: Adapter> Stream for EventStream<A> {
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
                Poll::Ready(Some((choice, update))) => self.take(choice, update),
                // The engine went away without a word.
                Poll::Ready(None) => self.failed(&ApiError::stopping()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl<A: Adapter> IntoResponse for EventStream<A> {
    fn into_response(self) -> Response {
        let keep_alive = KeepAlive::new().interval(KEEP_ALIVE).text("keep-alive");
        let mut response = Sse::new(self).keep_alive(keep_alive).into_response();
        // Some reverse proxies (nginx) hold a response back unless told.
        response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
        response
    }
}
