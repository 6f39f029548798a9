//! The engine thread's loop.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Instant,
};

use super::{
    generation::{Generation, Outcome, Setting, end_unstarted},
    queue::Queue,
};
use crate::{
    backend::{Backend, BackendError, MemoryFigures},
    request::EngineError,
    timeline::Timelines,
};

/// Fails whatever waits when the thread ends, for whatever reason.
struct StopGuard(Arc<Queue>);

impl Drop for StopGuard {
    fn drop(&mut self) {
        for job in self.0.stop() {
            end_unstarted(job, Outcome::Failed(EngineError::Stopped));
        }
    }
}

/// The backend cannot be used any more.
struct Unusable;

/// Runs jobs until the queue stops or the backend becomes unusable.
pub fn run(queue: Arc<Queue>, backend: Box<dyn Backend>, setting: Setting) {
    let _guard = StopGuard(queue.clone());
    let mut worker = Worker { queue, backend, timelines: Timelines::new(setting.context_limit), setting };
    while let Some(job) = worker.queue.next() {
        if worker.generate(Generation::new(job, setting)).is_err() {
            tracing::error!("the backend failed while cleaning up after a panic; the engine stops");
            return;
        }
    }
}

struct Worker {
    queue: Arc<Queue>,
    backend: Box<dyn Backend>,
    timelines: Timelines,
    setting: Setting,
}

impl Worker {
    fn generate(&mut self, mut generation: Generation) -> Result<(), Unusable> {
        let outcome = loop {
            match self.queue.sweep(Instant::now()) {
                None => break Outcome::Failed(EngineError::Stopped),
                Some(ended) => {
                    ended.into_iter().for_each(|(job, reason)| end_unstarted(job, Outcome::Finished(reason)))
                }
            }
            // Unwind safety: after a panic the sequence is freed and the timelines are replaced; the backend is only
            // used further when that works.
            let step = catch_unwind(AssertUnwindSafe(|| {
                generation.step(self.backend.as_mut(), &mut self.timelines)
            }));
            match step {
                Ok(None) => {}
                Ok(Some(outcome)) => break outcome,
                Err(panic) => return self.recover(generation, panic),
            }
        };
        let timeline = generation.take_timeline();
        let kept = catch_unwind(AssertUnwindSafe(|| {
            if let Some(timeline) = timeline {
                self.timelines.keep(self.backend.as_mut(), timeline);
            }
            self.backend.memory()
        }));
        // Released first: who hears of the end may submit again at once.
        self.queue.release(*kept.as_ref().unwrap_or(&MemoryFigures::default()));
        generation.end(outcome);
        kept.map(drop).map_err(|_| Unusable)
    }

    /// Fails the generation during which the backend panicked, and drops every sequence.
    fn recover(&mut self, generation: Generation, panic: Box<dyn Any + Send>) -> Result<(), Unusable> {
        let message = panic_message(panic.as_ref());
        tracing::error!(message, "the backend panicked; the request fails");
        let mut timelines =
            std::mem::replace(&mut self.timelines, Timelines::new(self.setting.context_limit));
        let cleaned = catch_unwind(AssertUnwindSafe(|| {
            timelines.clear(self.backend.as_mut());
            if let Some(sequence) = generation.sequence() {
                self.backend.free_sequence(sequence);
            }
            self.backend.memory()
        }));
        self.queue.release(*cleaned.as_ref().unwrap_or(&MemoryFigures::default()));
        let name = self.backend.name();
        generation
            .end(Outcome::Failed(BackendError::Device(format!("backend {name} panicked: {message}")).into()));
        cleaned.map(drop).map_err(|_| Unusable)
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}
