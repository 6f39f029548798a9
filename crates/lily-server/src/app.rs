//! What every handler shares.

use std::{sync::Arc, time::SystemTime};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    CloudMode, ServerConfig, chat::RequestContext, error::ApiError, generate::TextEngine, metrics::Metrics,
    replay::Replays,
};

/// A place in the server; held from before a request's body is read until its answer is over.
pub(crate) type Permit = OwnedSemaphorePermit;

/// Shared state. Cheap to clone.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) engine: TextEngine,
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) context: Arc<RequestContext>,
    /// Seconds since 1970 at which the model was loaded.
    pub(crate) created: u64,
    /// The gate and the models behind it; none unless configured.
    pub(crate) cloud: Option<CloudMode>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) replays: Arc<Replays>,
    admission: Arc<Semaphore>,
    places: usize,
}

impl App {
    pub(crate) fn new(engine: TextEngine, config: ServerConfig) -> Self {
        let mut models = vec![config.model_id.clone()];
        models.extend(config.aliases.iter().cloned());
        let context = RequestContext {
            sampling: engine.default_sampling().clone(),
            vocab: engine.vocab(),
            thinking: config.thinking,
            models,
            template: engine.template().cloned(),
        };
        // Some run, the others wait. Bounding requests before their bodies are read bounds memory.
        let options = engine.engine().options();
        let places = options.queue_limit.saturating_add(options.max_running).min(Semaphore::MAX_PERMITS);
        Self {
            engine,
            cloud: config.cloud.clone(),
            config: Arc::new(config),
            context: Arc::new(context),
            created: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            metrics: Arc::default(),
            replays: Arc::default(),
            admission: Arc::new(Semaphore::new(places)),
            places,
        }
    }

    /// The id reported in answers.
    pub(crate) fn model_id(&self) -> &str {
        &self.config.model_id
    }

    /// A place for a generation, or 429.
    pub(crate) fn admit(&self) -> Result<Permit, ApiError> {
        self.admission.clone().try_acquire_owned().map_err(|_| {
            ApiError::overloaded(format!(
                "{} requests are running and waiting, the most this server takes; try again later",
                self.places
            ))
        })
    }
}
