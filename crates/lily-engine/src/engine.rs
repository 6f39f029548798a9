//! The engine thread: a queue of requests in front of one backend.

use lily_model::ModelConfig;

use crate::{
    backend::Backend,
    request::{CancelFlag, EngineError, Event, GenerateRequest},
};

/// Limits of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOptions {
    /// Most tokens of prompt and answer together.
    pub context_limit: usize,
    /// Most requests that may wait; one more is refused with [`EngineError::QueueFull`].
    pub queue_limit: usize,
    /// Prompt tokens computed between two looks at the cancel flag.
    pub prefill_chunk: usize,
    /// Ids at or above this are unused rows of `lm_head` and are never sampled (248,077 for Qwen3.6-35B-A3B, the
    /// checkpoint's `valid_vocab()`). `None`: every row may be sampled.
    pub valid_vocab: Option<usize>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { context_limit: 32_768, queue_limit: 64, prefill_chunk: 512, valid_vocab: None }
    }
}

/// A handle to the engine thread. Cheap to clone; the thread ends when the last handle is dropped.
#[derive(Debug, Clone)]
pub struct Engine {}

impl Engine {
    /// Starts the thread that owns `backend`.
    pub fn start(_backend: Box<dyn Backend>, _options: EngineOptions) -> Self {
        todo!()
    }

    /// The model's sizes.
    pub fn config(&self) -> &ModelConfig {
        todo!()
    }

    /// Limits.
    pub fn options(&self) -> &EngineOptions {
        todo!()
    }

    /// Queues a generation. `sink` is called on the engine thread with every [`Event`] and must not block; when it
    /// returns `false` the generation is cancelled. Requests that cannot run are refused here.
    pub fn submit(
        &self,
        _request: GenerateRequest,
        _cancel: CancelFlag,
        _sink: Box<dyn FnMut(Event) -> bool + Send>,
    ) -> Result<(), EngineError> {
        todo!()
    }

    /// Requests waiting and running.
    pub fn load(&self) -> (usize, usize) {
        todo!()
    }
}
