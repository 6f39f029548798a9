//! The engine thread: a queue of requests in front of one backend.
//!
//! Callers hold an [`Engine`] handle and submit requests from any thread; one thread owns the backend and computes for
//! several generations at once, in rounds of one token for each and at most one chunk of a prompt, and looks at cancel
//! flags, deadlines and the queue between them. Requests begin in the order they came.

mod generation;
mod queue;
mod scheduler;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use lily_model::ModelConfig;

use self::{
    generation::Setting,
    queue::{Job, Queue},
};
use crate::{
    backend::{Backend, MemoryFigures},
    cache::{CacheOptions, DiskError, PrefixCache},
    figures::EngineFigures,
    request::{CancelFlag, EngineError, Event, GenerateRequest},
    validate::{self, Limits},
};

/// Limits of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineOptions {
    /// Most tokens of prompt and answer together.
    pub context_limit: usize,
    /// Most requests that may wait; one more is refused with [`EngineError::QueueFull`]. A request that can run at
    /// once does not wait.
    pub queue_limit: usize,
    /// Most requests that run at once. Each takes a sequence's memory, and all are decoded together.
    pub max_running: usize,
    /// Most prompt tokens computed at a time; `None`: [`Backend::usual_chunk`].
    pub prefill_chunk: Option<usize>,
    /// How long running answers may wait for a chunk of another prompt. Chunks are made as short as that takes.
    pub slice: Duration,
    /// Ids at or above this are unused rows of `lm_head` and are never sampled (248,077 for Qwen3.6-35B-A3B, the
    /// checkpoint's `valid_vocab()`). `None`: every row may be sampled.
    pub valid_vocab: Option<usize>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            context_limit: 32_768,
            queue_limit: 64,
            max_running: 8,
            prefill_chunk: None,
            slice: Duration::from_millis(100),
            valid_vocab: None,
        }
    }
}

impl EngineOptions {
    /// Most prompt tokens computed at a time on this backend.
    fn chunk(&self, backend: &dyn Backend) -> usize {
        self.prefill_chunk.unwrap_or(backend.usual_chunk()).clamp(1, backend.max_chunk().max(1))
    }

    /// These options within what model and backend can do: the context within the model's longest, the chunk
    /// within the backend's largest, the valid ids within the vocabulary.
    fn effective(mut self, backend: &dyn Backend) -> Self {
        let (config, max_chunk) = (backend.config(), backend.max_chunk().max(1));
        if self.context_limit > config.max_position_embeddings {
            tracing::warn!(
                asked = self.context_limit,
                most = config.max_position_embeddings,
                "the context limit is lowered to the longest context the model was made for"
            );
            self.context_limit = config.max_position_embeddings;
        }
        self.prefill_chunk = Some(self.chunk(backend));
        // A backend decodes at most as many sequences as it prefills tokens.
        self.max_running = self.max_running.clamp(1, max_chunk);
        self.valid_vocab = self.valid_vocab.map(|v| v.clamp(1, config.vocab_size.max(1)));
        self
    }
}

/// A handle to the engine thread. Cheap to clone; when the last handle is dropped the thread stops at its next step,
/// generations that wait or run fail with [`EngineError::Stopped`], and the drop returns when the thread has ended.
#[derive(Debug, Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
    config: ModelConfig,
    options: EngineOptions,
    limits: Limits,
    backend: &'static str,
}

impl Engine {
    /// Starts the thread that owns `backend`, with a prefix cache in memory. Options beyond what model and backend can do
    /// are lowered; [`Engine::options`] tells.
    pub fn start(backend: Box<dyn Backend>, options: EngineOptions) -> Self {
        let cache = CacheOptions { dir: None, ..CacheOptions::default() };
        Self::launch(backend, options, |backend, _| {
            PrefixCache::open(&cache, backend, || {}).unwrap_or_else(|_| PrefixCache::disabled())
        })
    }

    /// [`start`](Engine::start) with a prefix cache of these options. Fails when its directory cannot be used.
    pub fn start_with_cache(
        backend: Box<dyn Backend>,
        options: EngineOptions,
        cache: &CacheOptions,
    ) -> Result<Self, DiskError> {
        let mut failed = None;
        let engine = Self::launch(backend, options, |backend, queue| {
            let opened = PrefixCache::open(cache, backend, move || queue.wake());
            opened.unwrap_or_else(|error| {
                failed = Some(error);
                PrefixCache::disabled()
            })
        });
        failed.map_or(Ok(engine), Err)
    }

    fn launch(
        backend: Box<dyn Backend>,
        options: EngineOptions,
        open: impl FnOnce(&dyn Backend, Arc<Queue>) -> PrefixCache,
    ) -> Self {
        let config = backend.config().clone();
        let options = options.effective(backend.as_ref());
        let limits = Limits {
            context: options.context_limit,
            vocab: config.vocab_size,
            valid_vocab: options.valid_vocab.unwrap_or(config.vocab_size),
        };
        let setting = Setting {
            context_limit: limits.context,
            prefill_chunk: options.chunk(backend.as_ref()),
            valid_vocab: limits.valid_vocab,
            slice: options.slice,
        };
        let queue = Arc::new(Queue::new(options.queue_limit, options.max_running));
        let cache = open(backend.as_ref(), queue.clone());
        queue.set_memory(backend.memory());
        let name = backend.name();
        let spawned = thread::Builder::new().name("lily-engine".into()).spawn({
            let queue = queue.clone();
            move || scheduler::run(queue, backend, cache, setting)
        });
        let thread = spawned
            .inspect_err(|error| {
                tracing::error!(%error, "the engine thread could not be started");
                queue.ask_to_stop();
            })
            .ok();
        Self {
            inner: Arc::new(Inner {
                queue,
                thread: Mutex::new(thread),
                config,
                options,
                limits,
                backend: name,
            }),
        }
    }

    /// The model's sizes.
    pub fn config(&self) -> &ModelConfig {
        &self.inner.config
    }

    /// The limits in force.
    pub fn options(&self) -> &EngineOptions {
        &self.inner.options
    }

    /// The backend's device name.
    pub fn backend_name(&self) -> &'static str {
        self.inner.backend
    }

    /// The backend's bytes in use, as of the end of the last generation.
    pub fn memory(&self) -> MemoryFigures {
        self.inner.queue.memory()
    }

    /// What the engine did since it started, as of the end of the last generation.
    pub fn figures(&self) -> EngineFigures {
        self.inner.queue.figures()
    }

    /// Whether the engine thread takes requests. It stops when its backend is past use.
    pub fn is_running(&self) -> bool {
        !self.inner.queue.is_stopped()
    }

    /// Queues a generation. `sink` is called on the engine thread with every [`Event`] and must not block; when it
    /// returns `false` the generation is cancelled (and still hears of its end). Requests that cannot run are
    /// refused here.
    ///
    /// A request cancelled while it waits leaves the queue at the engine's next step; [`load`](Engine::load) and the
    /// queue limit stop counting it at once.
    pub fn submit(
        &self,
        request: GenerateRequest,
        cancel: CancelFlag,
        sink: Box<dyn FnMut(Event) -> bool + Send>,
    ) -> Result<(), EngineError> {
        validate::request(&request, &self.inner.limits)?;
        self.inner.queue.push(Job { request, cancel, sink, submitted: Instant::now() })
    }

    /// Requests waiting and running.
    pub fn load(&self) -> (usize, usize) {
        self.inner.queue.load()
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("backend", &self.backend).field("options", &self.options).finish()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.queue.ask_to_stop();
        let handle = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // A sink may own the last handle and be dropped on the engine thread, which cannot wait for itself.
        if let Some(handle) = handle.filter(|h| h.thread().id() != thread::current().id())
            && handle.join().is_err()
        {
            tracing::error!("the engine thread panicked");
        }
    }
}
